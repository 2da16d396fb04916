"""TPC-H on Parquet with 4 GiB of memory, and the disk for what is larger. `sql_spill.py FOREBAY TPCH [OPTION...]`

The folder is that of `forebay bench tables --generate tpch --scale 10`; the options are passed to `forebay serve`.
Needs psycopg. Prints a JSON line for each query as in `bench/record/`: the time by the clock, the rows or the error, and
the peaks of the process's resident memory and of the temporary files, in bytes. Exits with 1 if a query fails.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/drivers/python"))
import tpch_queries

MEMORY, QUERY_MEMORY = "4GiB", "2GiB"
SAMPLE_SECONDS = 0.1
TIMEOUT = "30min"


class Peak(threading.Thread):
    """Watches the bytes below a folder, and keeps the largest."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder = folder
        self.bytes = 0
        self.ends = threading.Event()
        self.start()

    def run(self):
        while not self.ends.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, self.now())

    def now(self):
        total = 0
        for file in self.folder.rglob("*"):
            try:
                total += file.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    def end(self):
        self.ends.set()
        self.join()
        return self.bytes


def peak_memory(pid):
    """Returns the peak of the resident memory of a process since `forget_peak`, in bytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def forget_peak(pid):
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def start(forebay, folder, data, options):
    command = [forebay, "serve", "--data", data, "--tables", folder, "--memory-bytes-max", MEMORY, "--until-stdin-ends"]
    command += ["--tables-memory-bytes-max", QUERY_MEMORY, "--mongodb-listen", "127.0.0.1:0"]
    command += ["--postgres-listen", "127.0.0.1:0", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, text=True, **pipes)
    for line in server.stdout:
        if found := re.search(r"postgresql://\S+", line):
            return server, found[0]
    raise RuntimeError(f"{command} did not listen")


def run(uri, query):
    """Returns the number of rows of a query, or `None`, and the error."""
    try:
        with psycopg.connect(uri, autocommit=True) as sql:
            sql.execute(f"SET statement_timeout = '{TIMEOUT}'")
            return len(sql.execute(query.strip().rstrip(";")).fetchall()), None
    except psycopg.Error as error:
        return None, " ".join(str(error).split())


def main():
    forebay, folder, *options = sys.argv[1:]
    failed, total, most = 0, 0.0, 0
    with tempfile.TemporaryDirectory() as data:
        server, uri = start(forebay, folder, data, options)
        for number, query in tpch_queries.QUERIES.items():
            forget_peak(server.pid)
            disk, clock = Peak(pathlib.Path(data)), time.perf_counter()
            rows, error = run(uri, query)
            seconds, spilled = time.perf_counter() - clock, disk.end()
            if server.poll() is not None:
                server, uri = start(forebay, folder, data, options)
            memory = peak_memory(server.pid)
            failed, total, most = failed + (error is not None), total + seconds, max(most, memory)
            further = {"memory_bytes": memory, "disk_bytes": spilled, "rows": rows, "error": error}
            record(f"query {number}", seconds, further, options)
        record(f"{len(tpch_queries.QUERIES)} queries, total", total, {"memory_bytes": most, "failed": failed}, options)
        server.stdin.close()
        server.wait()
    sys.exit(1 if failed else 0)


def record(case, seconds, further, options):
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    command = " ".join(["python3 bench/sql_spill.py forebay TPCH", *options])
    line = {"bench": "sql-spill", "case": case, "engine": "forebay", "device": f"{len(os.sched_getaffinity(0))} cores, {MEMORY}",
            "driver": "none", "metric": "wall_s", "median": seconds, "min": seconds, "max": seconds, "n": 1, "expect": None,
            "commit": "", "date": date, "command": command, **further}  # fmt: skip
    print(json.dumps(line), flush=True)


main()
