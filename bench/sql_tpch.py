"""TPC-H and the Star Schema Benchmark on Parquet: Forebay, DataFusion and DuckDB in turn. `sql_tpch.py FOREBAY TPCH SSB`

The folders are those of `forebay bench tables --generate tpch` and `ssb`; the second may be left out. Needs psycopg, and
compares with datafusion and duckdb if they are installed. Prints JSON lines as in `bench/record/`: the totals of all
queries' median, best and worst times, by the clock and of processors.
"""

import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import psycopg

try:
    import datafusion
except ImportError:
    datafusion = None
try:
    import duckdb
except ImportError:
    duckdb = None

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/drivers/python"))
import ssb_queries
import tpch_queries

ROUNDS, THREADS = 5, 2
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def engines(forebay, folder):
    """Returns, by engine, a function that runs a query, and one that returns the processor time so far."""
    command = [forebay, "serve", "--memory", "--tables", folder, "--memory-bytes-max", "8GiB", "--until-stdin-ends"]
    command += ["--mongodb-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    uri = None
    while uri is None:
        uri = re.search(r"postgresql://\S+", server.stdout.readline())
    sql = psycopg.connect(uri.group(), autocommit=True)
    running = {"forebay": (lambda query: sql.execute(query).fetchall(), lambda: processor_seconds(server.pid))}
    files = list(pathlib.Path(folder).glob("*.parquet"))
    if datafusion is not None:
        context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(THREADS))
        for file in files:
            context.register_parquet(file.stem, str(file))
        running[f"datafusion {datafusion.__version__}"] = (lambda query: context.sql(query).collect(), time.process_time)
    if duckdb is not None:
        duck = duckdb.connect(config={"threads": THREADS})
        for file in files:
            duck.execute(f'CREATE VIEW "{file.stem}" AS FROM \'{file}\'')
        running[f"duckdb {duckdb.__version__}"] = (lambda query: duck.execute(query).fetchall(), time.process_time)
    return server, running


def main():
    forebay, *folders = sys.argv[1:]
    for bench, folder, queries in zip(("tpch", "ssb"), folders, (tpch_queries.QUERIES, ssb_queries.QUERIES)):
        server, running = engines(forebay, folder)
        times = {}
        for _ in range(ROUNDS):
            for number, query in queries.items():
                for engine, (run, processor) in running.items():
                    clock, used = time.perf_counter(), processor()
                    run(query.strip().rstrip(";"))
                    times.setdefault((engine, number), []).append(
                        (time.perf_counter() - clock, processor() - used)
                    )
        for engine in running:
            for index, metric in enumerate(("wall_s", "processor_s")):
                runs = [[run[index] for run in times[engine, number]] for number in queries]
                totals = [sum(map(of, runs)) for of in (statistics.median, min, max)]
                record(bench, engine, metric, totals, len(queries))
        server.stdin.close()
        server.wait()


def record(bench, engine, metric, totals, count):
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = {"bench": f"sql-{bench}", "case": f"{count} queries, total", "engine": engine, "device": f"{THREADS} cores",
            "driver": "none", "metric": metric, "median": totals[0], "min": totals[1], "max": totals[2], "n": ROUNDS, "expect": None,
            "commit": "", "date": date, "command": "python3 bench/sql_tpch.py forebay TPCH SSB"}  # fmt: skip
    print(json.dumps(line), flush=True)


main()
