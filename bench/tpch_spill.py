"""TPC-H with all columns in GPU memory, and with less of it: `tpch_spill.py FOREBAY FOLDER ROUNDS HOST_BYTES GPU_BYTES...`

The folder is that of `forebay bench tables --generate tpch`. For each GPU_BYTES, as `8GiB`, or `0` for all, a server may use
so much memory of the GPU for SQL, and HOST_BYTES of pinned memory of the host. Needs psycopg and duckdb, and a GPU. Prints
JSON lines as in `bench/record/`: the time that a client sees, the time of the kernels, and the megabytes that they read from
device memory, from the host over the bus, and from the disk. Exits with 1 if answers differ from those of DuckDB, which are
kept in the folder.
"""

import pathlib
import pickle
import re
import statistics
import sys
import tempfile
import time

import duckdb

from sql_gpu import are_alike, device_names, line, rows, server_of, set_all, stop, timed, tpch_queries

TABLES = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
MEGABYTES = {"device_mb": "MB on the device", "host_mb": "MB on the host", "disk_mb": "MB read from disk"}
# What a bus of PCIe 5 brings, in megabytes for each millisecond (bench/record/, `join-a-pinned/limit`).
BUS = 53


def wanted_of(folder):
    """Returns the answers of DuckDB, and the number of rows of `lineitem`."""
    kept = pathlib.Path(folder) / "answers.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    duck = duckdb.connect()
    duck.execute("SET memory_limit = '48GB'")
    for table in TABLES:
        duck.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder}/{table}.parquet'")
    began = time.perf_counter()
    queries = tpch_queries.QUERIES.items()
    answers = {number: rows(duck.execute(query.strip().rstrip(";")).fetchall()) for number, query in queries}
    print(f"# DuckDB answered in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    found = answers, duck.execute("SELECT count(*) FROM lineitem").fetchone()[0]
    kept.write_bytes(pickle.dumps(found))
    return found


def measure(client, query, rounds):
    """Measures a query. Returns its answer, values by metric, and the last plan."""
    times, answer = timed(lambda: client.execute(query).fetchall(), rounds)
    found = {"client_ms": times, "device_ms": []} | {metric: [] for metric in MEGABYTES}
    for _ in range(rounds):
        plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
        found["device_ms"].append(sum(map(float, re.findall(r"(?:ran|stayed) there: .*? in ([\d.]+) ms", plan))))
        for metric, words in MEGABYTES.items():
            found[metric].append(sum(map(float, re.findall(rf"([\d.]+) {words}", plan))))
    return answer, found, plan


def main(forebay, folder, rounds, host_bytes, *kinds):
    device = device_names()[0]
    wanted, count = wanted_of(folder)
    wrong = []
    for gpu_bytes in kinds:
        engine = "forebay, all GPU memory" if gpu_bytes == "0" else f"forebay, {gpu_bytes} of GPU memory"
        total = 0
        with tempfile.TemporaryDirectory() as data:
            # Column files would be written while queries are measured.
            settings = ["--tables-gpu-disk-bytes-max", "0", "--tables-gpu-host-bytes-max", host_bytes]
            settings += ["--tables-gpu-bytes-max", gpu_bytes, "--memory-bytes-max", "100GiB"]
            server, client = server_of(forebay, folder, data, *settings)
            set_all(client, "gpu = on", "compile = wait")
            for number, query in tpch_queries.QUERIES.items():
                query = query.strip().rstrip(";")
                first, _ = timed(lambda: client.execute(query).fetchall(), 1)
                answer, found, plan = measure(client, query, int(rounds))
                for metric, values in found.items():
                    line(f"tpch-spill {number}", engine, metric, values, count, device)
                ms, by_bus = statistics.median(found["client_ms"]), statistics.median(found["host_mb"]) / BUS
                total += ms
                print(f"# {engine}, query {number}: first {first[0]:.0f} ms, then {ms:.1f} ms, by the bus {by_bus:.1f} ms",
                      *re.findall(r"[a-z ]+ of [\d.]+ MB in [\d x]+ slices", plan), file=sys.stderr, flush=True)
                for reason in re.findall(r"ran on the CPU: .*|OnCpuExec.*", plan):
                    print("#", reason, file=sys.stderr)
                if not are_alike(answer, wanted[number]):
                    wrong.append((engine, number))
            line("tpch-spill, 22 queries, total", engine, "client_ms", [total], count, device)
            stop(server, client)
    if wrong:
        print(f"# answers differ: {wrong}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
