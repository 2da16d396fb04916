"""Ten million rows of four columns to Python: Flight SQL and PostgreSQL's protocol in turn. `sql_flight.py FOREBAY [ROWS]`

Needs adbc-driver-flightsql, adbc-driver-postgresql, psycopg and pyarrow. Prints JSON lines as in `bench/record/`: the
time from the query to the last row in Python, by the clock, and the server's processor time.
"""

import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import adbc_driver_flightsql.dbapi
import adbc_driver_postgresql.dbapi
import numpy
import psycopg
import pyarrow
import pyarrow.parquet

ROUNDS = 3
QUERY = "SELECT id, price, name, day FROM items"
TICKS = os.sysconf("SC_CLK_TCK")


def write_items(path, rows):
    random = numpy.random.default_rng(1)
    names = pyarrow.array([f"item number {number}" for number in range(10_000)])
    days = (random.integers(0, 10_000, rows)).astype("datetime64[D]")
    columns = {
        "id": pyarrow.array(numpy.arange(rows)),
        "price": pyarrow.array(random.random(rows)),
        "name": names.take(pyarrow.array(random.integers(0, 10_000, rows))),
        "day": pyarrow.array(days),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def serve(forebay, folder):
    command = [forebay, "serve", "--memory", "--tables", folder, "--until-stdin-ends", "--mongodb-listen", "127.0.0.1:0"]
    command += ["--postgres-listen", "127.0.0.1:0", "--flight-listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = ""
    while "mongodb://" not in lines:
        lines += server.stdout.readline()
    return server, re.search(r"postgresql://\S+", lines).group(), re.search(r"grpc://\S+", lines).group()


def adbc(connection):
    def fetch():
        with connection.cursor() as cursor:
            cursor.execute(QUERY)
            return cursor.fetch_arrow_table().num_rows

    return fetch


def all_at_once(connection):
    return lambda: len(connection.cursor(binary=True).execute(QUERY).fetchall())


def by_cursor(connection):
    def fetch():
        with connection.transaction(), connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = 100_000
            return sum(1 for _ in cursor.execute(QUERY))

    return fetch


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main():
    forebay, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        write_items(f"{folder}/items.parquet", rows)
        server, sql, grpc = serve(forebay, folder)
        psycopg_sql = psycopg.connect(sql, autocommit=True)
        clients = {
            "adbc flight sql": adbc(adbc_driver_flightsql.dbapi.connect(grpc, autocommit=True)),
            "adbc postgresql": adbc(adbc_driver_postgresql.dbapi.connect(sql, autocommit=True)),
            "psycopg binary, cursor": by_cursor(psycopg_sql),
            "psycopg binary, fetchall": all_at_once(psycopg_sql),
        }
        times = {}
        for _ in range(ROUNDS):
            for name, fetch in clients.items():
                clock, used = time.perf_counter(), processor_seconds(server.pid)
                assert fetch() == rows
                spent = time.perf_counter() - clock, processor_seconds(server.pid) - used
                times.setdefault(name, []).append(spent)
        for name, runs in times.items():
            for metric, values in zip(("wall_s", "server_processor_s"), zip(*runs)):
                record(f"{rows} rows of 4 columns", name, metric, values)
        server.stdin.close()
        server.wait()


def record(case, engine, metric, values):
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = {"bench": "sql-transfer", "case": case, "engine": engine, "device": f"{len(os.sched_getaffinity(0))} cores", "driver": "none",
            "metric": metric, "median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values),
            "expect": None, "commit": "", "date": date, "command": "python3 bench/sql_flight.py forebay"}  # fmt: skip
    print(json.dumps(line), flush=True)


main()
