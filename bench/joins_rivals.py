"""Joins of other programs over the rows of `forebay bench joins`: `joins_rivals.py SCALE ROUNDS [WORKLOAD...]`

Needs numpy and pyarrow, and duckdb or datafusion, or both. Both sides are in the program's memory, and all cores join them. Prints
JSON lines as in `bench/record/`. Exits with 1 if a count or a sum is not that of the generator's formulas, which are
those of `crates/hash-index/src/workload.rs`.
"""

import concurrent.futures
import datetime
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np
import pyarrow as pa

MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHUFFLE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
SHUFFLE_ADDEND = np.uint64(0x7F4A7C15F39CC060)
FOREIGN_SEED, BUILD_SEED, PROBE_SEED = map(np.uint64, (0x2545F4914F6CDD1D, 0x5851F42D4C957F2D, 0x14057B7EF767814F))
# Build rows, probe rows and type of keys and payloads. Workload B's build side is not scaled.
WORKLOADS = {"a": (1 << 27, 1 << 31, np.uint64), "b": (1 << 18, 1 << 31, np.uint64),
             "c": (1_024_000_000, 1_024_000_000, np.uint32)}
BUILD_ROWS_MIN = 1 << 18
PART_ROWS = 1 << 22
QUERY = "SELECT count(*), sum(b.payload), sum(p.payload) FROM probe AS p JOIN build AS b ON p.key = b.key"
CORES = len(os.sched_getaffinity(0))
_COMMIT = pathlib.Path(__file__).parent / "commit"
COMMIT = _COMMIT.read_text().strip() if _COMMIT.exists() else "unknown"


def mixed(x):
    x = (x ^ (x >> np.uint64(30))) * MIX[0]
    x = (x ^ (x >> np.uint64(27))) * MIX[1]
    return x ^ (x >> np.uint64(31))


def shuffled(x, bits):
    mask, half = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    x = (x * SHUFFLE[0] + SHUFFLE_ADDEND) & mask
    x = ((x ^ (x >> half)) * SHUFFLE[1]) & mask
    return x ^ (x >> half)


def build_keys(rows, build_rows):
    bits = max((build_rows - 1).bit_length(), 1)
    keys = shuffled(rows, bits)
    while (outside := keys >= build_rows).any():
        keys[outside] = shuffled(keys[outside], bits)
    return keys


def foreign_keys(rows, build_rows):
    """Returns the upper 64 bits of the products of random numbers and the number of build rows, which is below 2^32."""
    random, count, low = mixed(rows + FOREIGN_SEED), np.uint64(build_rows), np.uint64(32)
    upper, lower = (random >> low) * count, (random & np.uint64(0xFFFFFFFF)) * count
    return (upper + (lower >> low)) >> low


def side(name, build_rows, rows, kind):
    """Returns keys and payloads of a side, and the payloads of the build side that its rows meet."""
    columns = [np.empty(rows, kind) for _ in range(2)]
    met = np.zeros(-(-rows // PART_ROWS), np.uint64)

    def fill(part):
        first, end = part * PART_ROWS, min((part + 1) * PART_ROWS, rows)
        numbers = np.arange(first, end, dtype=np.uint64)
        keys = (build_keys if name == "build" else foreign_keys)(numbers, build_rows)
        of_build = mixed(keys ^ BUILD_SEED).astype(kind)
        columns[0][first:end] = keys
        columns[1][first:end] = of_build if name == "build" else mixed(numbers ^ PROBE_SEED)
        met[part] = of_build.sum(dtype=np.uint64)
    with concurrent.futures.ThreadPoolExecutor(CORES) as threads:
        list(threads.map(fill, range(len(met))))
    return columns, int(met.sum(dtype=np.uint64))


def in_duckdb(tables):
    import duckdb
    connection = duckdb.connect()
    connection.execute(f"SET threads = {CORES}")
    for name, table in tables.items():
        connection.register("arrow", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow")
        connection.unregister("arrow")
    return f"duckdb {duckdb.__version__}", lambda: connection.execute(QUERY).fetchone()


def in_datafusion(tables):
    import datafusion
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(CORES))
    for name, table in tables.items():
        batches = table.to_batches(max_chunksize=8192)
        share = -(-len(batches) // CORES)
        context.register_record_batches(name, [batches[at:at + share] for at in range(0, len(batches), share)])

    def run():
        batch = pa.Table.from_batches(context.sql(QUERY).collect())
        return [column[0].as_py() for column in batch.columns]
    return f"datafusion {datafusion.__version__}", run


def measure(letter, scale, rounds):
    build_rows, probe_rows, kind = WORKLOADS[letter]
    build_rows = build_rows if letter == "b" else max(int(build_rows * scale), BUILD_ROWS_MIN)
    probe_rows = max(int(probe_rows * scale), 1)
    (keys, payloads), _ = side("build", build_rows, build_rows, kind)
    tables = {"build": pa.table({"key": keys, "payload": payloads})}
    (keys, payloads), met = side("probe", build_rows, probe_rows, kind)
    tables["probe"] = pa.table({"key": keys, "payload": payloads})
    wanted = (probe_rows, met, int(payloads.sum(dtype=np.uint64)))
    are_right = any(map(importlib.util.find_spec, ("duckdb", "datafusion")))
    for program, engine in (("duckdb", in_duckdb), ("datafusion", in_datafusion)):
        if not importlib.util.find_spec(program):
            continue
        engine, run = engine(tables)
        seconds = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            found = run()
            seconds.append(time.perf_counter() - began)
            if tuple(int(it) % (1 << 64) for it in found) != wanted:
                print(f"# {engine}: {found}, not {wanted}", file=sys.stderr)
                are_right = False
        rates = [(build_rows + probe_rows) / it / 1e9 for it in seconds[1:]]
        print(json.dumps({
            "bench": "joins", "case": f"join-cpu/{letter}", "engine": engine, "device": f"host:{CORES}",
            "driver": "none", "metric": "giga_tuples_per_s", "median": statistics.median(rates), "min": min(rates), "max": max(rates),
            "n": len(rates), "expect": probe_rows, "commit": COMMIT,
            "date": datetime.datetime.now(datetime.UTC).strftime("%FT%TZ"),
            "command": " ".join(["python3 bench/joins_rivals.py", *sys.argv[1:]])}), flush=True)
        del run
    return are_right


def main(scale, rounds, *letters):
    return int(not all([measure(letter, float(scale), int(rounds)) for letter in letters or WORKLOADS]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
