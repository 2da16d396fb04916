"""Aggregates over one table on a GPU, on the CPU and in DuckDB: `sql_gpu.py FOREBAY TPCH [ROUNDS]`

The folder is that of `forebay bench tables --generate tpch`. Needs psycopg and duckdb, and a GPU. Prints JSON lines as in
`bench/record/`: the time of the kernel on the device, and the time that a client sees, with the GPU, without it, and in
DuckDB over a table of its own in memory. Exits with 1 if answers differ.
"""

import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import duckdb
import psycopg

QUERIES = {
    "q6": """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
        AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "q1": """SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
        sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
        avg(l_quantity)::float8, avg(l_extendedprice)::float8, avg(l_discount)::float8, count(*)
        FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY 1, 2 ORDER BY 1, 2""",
    "count": "SELECT count(*) FROM lineitem WHERE l_quantity < 24",
    "by month": """SELECT date_trunc('month', l_shipdate)::date AS month, l_shipmode, count(*), sum(l_extendedprice)
        FROM lineitem WHERE l_returnflag <> 'R' GROUP BY 1, 2 ORDER BY 1, 2""",
    "like": "SELECT l_shipmode, count(*) FROM lineitem WHERE l_shipinstruct LIKE '%BACK%' GROUP BY 1 ORDER BY 1",
}
COLUMNS = """l_quantity l_extendedprice l_discount l_tax l_returnflag l_linestatus l_shipdate l_shipmode
    l_shipinstruct""".split()


def rows(found):
    return [tuple(float(it) if not isinstance(it, str | datetime.date) else it for it in row) for row in found]


def are_alike(one, other):
    def near(a, b):
        return a == b if isinstance(a, str | datetime.date) else abs(a - b) <= 2e-5 * max(abs(a), abs(b))
    return len(one) == len(other) and all(near(*pair) for a, b in zip(one, other) for pair in zip(a, b))


def line(case, engine, metric, values, rows_count, device):
    print(json.dumps({
        "bench": "sql-gpu", "case": case, "engine": engine, "device": device, "driver": "none", "metric": metric,
        "median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values),
        "expect": rows_count, "commit": COMMIT, "date": datetime.datetime.now(datetime.UTC).strftime("%FT%TZ"),
        "command": "python3 bench/sql_gpu.py forebay TPCH",
    }), flush=True)


def timed(run, rounds):
    times, answer = [], None
    for _ in range(rounds):
        began = time.perf_counter()
        answer = run()
        times.append((time.perf_counter() - began) * 1e3)
    return times, rows(answer)


def main(forebay, folder, rounds=15):
    device = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"], capture_output=True,
                            text=True, check=True).stdout.strip()
    failed = False
    with tempfile.TemporaryDirectory() as data:
        command = [forebay, "serve", "--data", data, "--devices", "cuda:0", "--tables", folder, "--until-stdin-ends"]
        command += ["--mongodb-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address = None
        for text in server.stdout:
            if found := re.search(r"postgres\S*://\S+", text):
                address = found[0]
                break
        client = psycopg.connect(address, autocommit=True)
        duck = duckdb.connect()
        began = time.perf_counter()
        duck.execute(f"CREATE TABLE lineitem AS SELECT {', '.join(COLUMNS)} FROM '{folder}/lineitem.parquet'")
        print(f"# DuckDB read its table in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        count = duck.execute("SELECT count(*) FROM lineitem").fetchone()[0]
        client.execute("SET forebay.gpu = on")
        client.execute("SET forebay.compile = wait")
        client.execute("SET forebay.strict = on")
        for case, query in QUERIES.items():
            began = time.perf_counter()
            client.execute(query).fetchall()
            print(f"# {case}: first run {time.perf_counter() - began:.2f} s", file=sys.stderr, flush=True)
            times, on_gpu = timed(lambda: client.execute(query).fetchall(), rounds)
            line(case, "forebay, GPU", "client_ms", times, count, device)
            kernel = []
            for _ in range(rounds):
                plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
                found = re.search(r"ran there: .*? in ([\d.]+) ms", plan)
                if not found:
                    print(plan, file=sys.stderr)
                    return 1
                kernel.append(float(found[1]))
            line(case, "forebay, GPU", "device_ms", kernel, count, device)
            client.execute("SET forebay.gpu = off")
            times, on_cpu = timed(lambda: client.execute(query).fetchall(), 3)
            line(case, "forebay, CPU", "client_ms", times, count, device)
            client.execute("SET forebay.gpu = on")
            times, in_duck = timed(lambda: duck.execute(query).fetchall(), 5)
            line(case, "duckdb " + duckdb.__version__, "client_ms", times, count, device)
            if on_gpu != on_cpu or not are_alike(on_gpu, in_duck):
                print(f"# {case}: answers differ\n{on_gpu}\n{on_cpu}\n{in_duck}", file=sys.stderr)
                failed = True
        client.close()
        server.stdin.close()
        server.wait(30)
    return int(failed)


COMMIT = (pathlib.Path(__file__).parent / "commit").read_text().strip() if (
    pathlib.Path(__file__).parent / "commit").exists() else subprocess.run(
    ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
