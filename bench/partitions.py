"""Joins of two tables in pinned memory, whose keys have no order: `partitions.py FOREBAY FOLDER ROUNDS ROWS GPU_BYTES...`

Writes two tables of ROWS rows to the folder: keys of 61 bits, each once in both, and a number. For each GPU_BYTES, such as
`1GiB`, starts a server that may use that much GPU memory for SQL. The table of the join has no room there, so the server
divides the rows, or reads them again for each slice. Needs psycopg, duckdb and a GPU. Prints JSON lines as in
`bench/record/`: the time of the kernels, and the latency of a client, with the GPU and in DuckDB over its own tables in
memory. Exits with 1 if answers differ.
"""

import pathlib
import re
import sys
import tempfile

import duckdb

from sql_gpu import SETTINGS, are_alike, device_names, device_times, line, server_of, set_all, stop, timed

QUERIES = {
    "inner": "SELECT count(*), sum(v), sum(w), sum(v * w) FROM l JOIN r ON l.k = r.k",
    "inner, half of the rows": "SELECT count(*), sum(v), sum(w) FROM l JOIN r ON l.k = r.k WHERE v < 500000",
    "left": "SELECT count(w), sum(v), sum(w) FROM l LEFT JOIN r ON l.k = r.k AND w < 300000",
    "semi": "SELECT count(*), sum(v) FROM l WHERE k IN (SELECT k FROM r WHERE w < 900000)",
    "grouped": "SELECT w % 1000, count(*), sum(v) FROM l JOIN r ON l.k = r.k GROUP BY 1",
}


def write(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    for table, number, prime in (("l", "v", 2654435761), ("r", "w", 2246822519)):
        path = folder / f"{table}.parquet"
        if not path.exists():
            # Multiplying by a prime shuffles the rows. No two keys share the 61 bits of the hash that remain.
            duckdb.sql(f"""COPY (SELECT CAST(hash((i * {prime}) % {count}) >> 3 AS BIGINT) AS k,
                CAST(hash(i + {prime}) % 1000000 AS BIGINT) AS {number} FROM range({count}) AS n(i)) TO '{path}'""")


def main(forebay, folder, rounds, count, *sizes):
    device = device_names()[0]
    folder, rounds, count = pathlib.Path(folder), int(rounds), int(count)
    write(folder, count)
    duck = duckdb.connect()
    for table in ("l", "r"):
        duck.execute(f"CREATE TABLE {table} AS SELECT * FROM '{folder}/{table}.parquet'")
    wanted, wrong = {}, []
    for name, query in QUERIES.items():
        times, wanted[name] = timed(lambda query=query: duck.execute(query).fetchall(), rounds)
        line(f"partitions, {name}", "duckdb", "client_ms", times, count, device)
    duck.close()
    for gpu_bytes in sizes:
        engine = f"forebay, {gpu_bytes} of GPU memory"
        with tempfile.TemporaryDirectory() as data:
            settings = ["--tables-gpu-disk-bytes-max", "0", "--tables-gpu-host-bytes-max", "48GiB"]
            settings += ["--tables-gpu-bytes-max", gpu_bytes, "--memory-bytes-max", "100GiB"]
            server, client = server_of(forebay, str(folder), data, *settings)
            set_all(client, *SETTINGS)
            for name, query in QUERIES.items():
                # Loads the columns and compiles the kernels.
                timed(lambda query=query: client.execute(query).fetchall(), 2)
                times, answer = timed(lambda query=query: client.execute(query).fetchall(), rounds)
                line(f"partitions, {name}", engine, "client_ms", times, count, device)
                line(f"partitions, {name}", engine, "device_ms", device_times(client, query, rounds), count, device)
                plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
                print(f"# {engine}, {name}:", *re.findall(r"ran there: .*", plan), file=sys.stderr, flush=True)
                if not are_alike(answer, wanted[name]):
                    wrong.append((engine, name))
            stop(server, client)
    if wrong:
        print(f"# answers differ: {wrong}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
