"""Queries of a server that has just started, with the page cache cold: `cold.py FOREBAY FOLDER ROUNDS CASE`

The folder is that of `forebay bench tables --generate ssb` for the cases `scan-disk` and `scan-passes`, which read column
files, and of `tpch` for `tpch-cold`, which reads Parquet. Needs psycopg and duckdb, and a GPU. Prints JSON lines as in `bench/record/`.
Exits with 1 if answers differ.
"""

import concurrent.futures
import mmap
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import time

import duckdb

import sql_gpu
import tpch_queries
from sql_gpu import are_alike, device_names, line, server_of, set_all, stop, timed

BLOCK_BYTES = 8 << 20
READS = 8


def evict(folder):
    """Drops the files of a folder from the page cache."""
    os.sync()
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def raw_rate(paths):
    """Reads files past the page cache, as many blocks at the same time as the server, and then by `dd`. Returns the higher
    rate in GB/s."""
    free = queue.SimpleQueue()
    for _ in range(READS):
        buffer = mmap.mmap(-1, BLOCK_BYTES)
        # The pages are there before they are read into.
        buffer.write(bytes(BLOCK_BYTES))
        free.put(buffer)

    def read(block):
        path, offset = block
        buffer = free.get()
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        count = os.preadv(file, [buffer], offset)
        os.close(file)
        free.put(buffer)
        return count
    blocks = [(path, offset) for path in paths for offset in range(0, path.stat().st_size, BLOCK_BYTES)]
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(READS) as threads:
        count = sum(threads.map(read, blocks))
    by_threads = count / (time.perf_counter() - began)
    began = time.perf_counter()
    for path in paths:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", f"bs={BLOCK_BYTES}", "iflag=direct"], check=True,
                       stderr=subprocess.DEVNULL)
    return max(by_threads, count / (time.perf_counter() - began)) / 1e9


def column_files(data):
    """Returns the column files when all are written."""
    folder, seen = pathlib.Path(data) / "columns", []
    while True:
        time.sleep(2)
        found = sorted(folder.iterdir())
        if found and found == seen and not any(it.name.startswith(".unfinished") for it in found):
            return found
        seen = found


def of_views(folder):
    """Returns a DuckDB that reads the Parquet files."""
    duck = duckdb.connect()
    for path in pathlib.Path(folder).glob("*.parquet"):
        duck.execute(f"CREATE VIEW {path.stem} AS SELECT * FROM '{path}'")
    return duck


def scan_disk(forebay, folder, rounds, measured):
    query = sql_gpu.SSB["ssb 1.1"].strip().rstrip(";")
    with tempfile.TemporaryDirectory() as data:
        server, client = server_of(forebay, folder, data)
        set_all(client, "gpu = on", "compile = wait", "strict = on")
        times, wanted = timed(lambda: client.execute(query).fetchall(), 1)
        measured("forebay, GPU, from Parquet", "client_ms", times)
        files = column_files(data)
        stop(server, client)
        figures = {name: [] for name in ("gb_s", "raw_gb_s", "part_of_raw", "client_ms")}
        for _ in range(rounds):
            evict(data)
            before = raw_rate(files)
            server, client = server_of(forebay, folder, data)
            set_all(client, "gpu = on", "compile = wait", "strict = on")
            began = time.perf_counter()
            plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
            figures["client_ms"].append((time.perf_counter() - began) * 1e3)
            found = re.search(r"([\d.]+) MB read from disk by (\S+) in ([\d.]+) ms", plan)
            if not found:
                sys.exit(plan)
            if sql_gpu.rows(client.execute(query).fetchall()) != wanted:
                sys.exit("answers differ")
            stop(server, client)
            raw = max(before, raw_rate(files))
            rate = float(found[1]) / float(found[3])
            for name, value in (("gb_s", rate), ("raw_gb_s", raw), ("part_of_raw", rate / raw)):
                figures[name].append(value)
    print(f"# {found[1]} MB by {found[2]}, {len(files)} column files", file=sys.stderr)
    for name, values in figures.items():
        measured(f"forebay, GPU, {found[2]}", name, values)
    in_duck = []
    for _ in range(rounds):
        evict(folder)
        times, answer = timed(lambda: of_views(folder).execute(query).fetchall(), 1)
        in_duck += times
    measured(f"duckdb {duckdb.__version__}, from Parquet", "client_ms", in_duck)
    return are_alike(answer, wanted)


def scan_passes(forebay, folder, rounds, measured):
    """Measures a query over columns that have no room in memory, and are read from column files each time."""
    query = sql_gpu.SSB["ssb 1.1"].strip().rstrip(";")
    limits = ["--tables-gpu-bytes-max", "1GiB", "--tables-gpu-host-bytes-max", "1"]
    with tempfile.TemporaryDirectory() as data:
        server, client = server_of(forebay, folder, data, *limits)
        set_all(client, "gpu = on", "compile = wait", "strict = on")
        times, wanted = timed(lambda: client.execute(query).fetchall(), 1)
        measured("forebay, GPU, from Parquet", "client_ms", times)
        files = column_files(data)
        figures = {name: [] for name in ("gb_s", "raw_gb_s", "part_of_raw", "client_ms")}
        for _ in range(rounds):
            before = raw_rate(files)
            times, answer = timed(lambda: client.execute(query).fetchall(), 1)
            plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
            found = re.search(r"([\d.]+) MB read from disk by (\S+) in ([\d.]+) ms.*, ([\d.]+) ms with", plan)
            if not found or answer != wanted:
                sys.exit(f"{plan}\n{answer}\n{wanted}")
            raw, rate = max(before, raw_rate(files)), float(found[1]) / float(found[4])
            for name, value in (("gb_s", rate), ("raw_gb_s", raw), ("part_of_raw", rate / raw), ("client_ms", times[0])):
                figures[name].append(value)
        stop(server, client)
    print(f"# {plan}"[:3000], file=sys.stderr)
    for name, values in figures.items():
        measured(f"forebay, GPU, {found[2]}", name, values)
    return are_alike(of_views(folder).execute(query).fetchall(), wanted)


def tpch_cold(forebay, folder, rounds, measured):
    are_same, means = True, {}
    for number, query in tpch_queries.QUERIES.items():
        query, times, answers = query.strip().rstrip(";"), {}, {}
        for _ in range(rounds):
            for gpu in ("on", "auto"):
                with tempfile.TemporaryDirectory() as data:
                    server, client = server_of(forebay, folder, data)
                    set_all(client, f"gpu = {gpu}")
                    evict(folder)
                    took, answers[gpu] = timed(lambda: client.execute(query).fetchall(), 1)
                    times.setdefault(f"forebay, gpu = {gpu}", []).extend(took)
                    stop(server, client)
            evict(folder)
            took, answers["duck"] = timed(lambda: of_views(folder).execute(query).fetchall(), 1)
            times.setdefault(f"duckdb {duckdb.__version__}", []).extend(took)
        for engine, values in times.items():
            measured(engine, "client_ms", values, f"tpch-cold {number}")
            means.setdefault(engine, []).append(statistics.median(values))
        if answers["on"] != answers["auto"] or not are_alike(answers["on"], answers["duck"]):
            print(f"# {number}: answers differ\n{answers}"[:4000], file=sys.stderr)
            are_same = False
    for engine, values in means.items():
        measured(engine, "client_ms", [sum(values)], "tpch-cold, 22 queries, total")
        measured(engine, "client_ms", [statistics.geometric_mean(values)], "tpch-cold, 22 queries, geometric mean")
    return are_same


def main(forebay, folder, rounds, case):
    device = device_names()[0]
    fact = "lineitem" if case == "tpch-cold" else "lineorder"
    count = duckdb.execute(f"SELECT count(*) FROM '{folder}/{fact}.parquet'").fetchone()[0]

    def measured(engine, metric, values, name=case):
        line(name, engine, metric, values, count, device)
    run = {"scan-disk": scan_disk, "scan-passes": scan_passes, "tpch-cold": tpch_cold}[case]
    return int(not run(forebay, folder, int(rounds), measured))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
