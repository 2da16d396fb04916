"""Counts on a collection by SQL and by the documents door, in turn: `sql_collections.py FOREBAY DEVICES DOCUMENTS`.

Needs psycopg and pymongo. Prints JSON lines as in `bench/record/`.
"""

import datetime
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg
import pymongo

ROUNDS, RUNS = 2, 31
WORDS = """react vue babel plugin webpack loader cli utils core types node eslint config ui kit server api client test
    data""".split()
LICENCES = ["MIT", "ISC", "Apache-2.0", None]
REGEX = "^(vue|babel).*[0-9]{4}$"
# The condition of SQL, and the filter of MongoDB that means the same.
CONDITIONS = {
    "substring": ("name LIKE '%webpack%'", {"name": re.compile("webpack", re.S)}),
    "prefix": ("name LIKE 'web%'", {"name": re.compile("^web", re.S)}),
    "not, any case": (
        "name NOT ILIKE '%WEBPACK%'",
        {"name": {"$not": re.compile("WEBPACK", re.I | re.S), "$ne": None}},
    ),
    "regex": (f"name ~ '{REGEX}'", {"name": {"$regex": REGEX}}),
    "all": ("true", {}),
}


def start(forebay, devices, folder):
    """Starts a server. Returns it, its MongoDB connection string, and its PostgreSQL one."""
    command = [forebay, "serve", "--data", folder, "--devices", devices, "--until-stdin-ends"]
    command += ["--mongodb-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = {}
    while len(found) < 2:
        line = server.stdout.readline()
        found |= {kind: uri for kind, uri in re.findall(r"((?:mongodb|postgresql))(://\S+)", line)}
    return server, "mongodb" + found["mongodb"], "postgresql" + found["postgresql"]


def fill(names, count):
    draw = random.Random(1)
    for first in range(0, count, 50_000):
        numbers = range(first, min(count, first + 50_000))
        word = lambda: draw.choice(WORDS)
        names.insert_many(
            {"_id": n, "name": f"{word()}-{word()}-{n % 99991}", "licence": draw.choice(LICENCES)} for n in numbers
        )
    for field in ("name", "licence"):
        names.create_index([(field, "cache")])
    while "'state': 'building'" in str(list(names.aggregate([{"$indexStats": {}}]))):
        time.sleep(0.2)


def timed(run):
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        answer = run()
        times.append(1000 * (time.perf_counter() - begin))
    return answer, times


def main():
    forebay, devices, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        server, mongodb, postgresql = start(forebay, devices, folder)
        names = pymongo.MongoClient(mongodb).shop.names
        fill(names, count)
        sql = psycopg.connect(postgresql, autocommit=True)
        grouped = "SELECT licence, count(*) FROM shop.names GROUP BY licence"
        cases = {"groups": (
            lambda: len(sql.execute(grouped).fetchall()),
            lambda: len(list(names.aggregate([{"$group": {"_id": "$licence", "n": {"$sum": 1}}}]))),
        )}  # fmt: skip
        for name, (condition, query) in CONDITIONS.items():
            cases[name] = (
                lambda query=f"SELECT count(*) FROM shop.names WHERE {condition}": sql.execute(query).fetchone()[0],
                lambda query=query: names.database.command("count", "names", query=query)["n"],
            )
        for name, doors in cases.items():
            all_times = {"forebay, SQL": [], "forebay, documents": []}
            for _ in range(ROUNDS):
                answers = []
                for engine, run in zip(all_times, doors):
                    answer, times = timed(run)
                    answers.append(answer)
                    all_times[engine] += times
                assert answers[0] == answers[1], name
            for engine, times in all_times.items():
                record(name, engine, devices, times, answers[0])
        server.stdin.close()
        server.wait()


def record(case, engine, devices, times, answer):
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = {"bench": "sql-collections", "case": case, "engine": engine, "device": devices, "driver": "none",
            "metric": "client_ms", "median": statistics.median(times), "min": min(times), "max": max(times),
            "n": len(times), "expect": answer, "commit": "", "date": date,
            "command": " ".join(["python3", "bench/sql_collections.py", *sys.argv[1:]])}  # fmt: skip
    print(json.dumps(line), flush=True)


main()
