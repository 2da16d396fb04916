"""Forebay as a proxy, through pymongo: counts and finds beside FerretDB alone, and the lag of caches behind the upstream in a storm.

    FOREBAY=... FERRETDB=... PYTHONPATH=tests/drivers/python python bench/upstream.py counts NAMES [--record FILE]
    FOREBAY=... FERRETDB=... PYTHONPATH=tests/drivers/python python bench/upstream.py finds [--documents 100000] [--record FILE]
    FOREBAY=... PYTHONPATH=tests/drivers/python python bench/upstream.py storm [--seconds 600] [--rate 5000] [--compare 100] [--record FILE]

`counts` inserts a million names (the lines of a file) into FerretDB on SQLite and caches them. `finds` finds whole documents, few
and many, early and late in the collection, after Forebay has measured how fast FerretDB returns them. `storm` runs two
Forebay servers: an upstream that keeps a history of changes, and a proxy. Clients write directly to the upstream and search through
the proxy, which compares each of its answers with the upstream's (`--upstream-compare-percent 100`). With `--compare 0`, `storm`
measures the lag: the time from the acknowledgement of a direct write until a count through the proxy includes the document. The
count is repeated without a pause.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import tempfile
import threading
import time

import pymongo
from servers import start_ferretdb, start_forebay

PATTERNS = ["webpack.*plugin", "(mysql|postgres|mongo).*(pool|stream)", "^@[a-z]+/[a-z]+-client$", "[0-9]{4}-[0-9]{2}"]
NAMES = 1_000_000
ITEMS = 100_000
BATCH = 50
RUNS = 25


class Report:
    """Prints figures, and appends them to a file of JSON lines."""

    def __init__(self, options):
        self.file = options.record
        self.command = f"python bench/upstream.py {options.what}"
        if options.what == "storm":
            self.command += f" --compare {options.compare} --seconds {options.seconds:g}"

    def add(self, case, engine, metric, values, expect=None):
        line = {
            "bench": "upstream", "case": case, "engine": engine, "device": f"{os.cpu_count()} cores", "driver": "none",
            "metric": metric, "median": statistics.median(values), "min": min(values), "max": max(values),
            "n": len(values), "expect": expect, "commit": os.environ.get("FOREBAY_COMMIT", "unknown"),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "command": self.command,
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        if self.file:
            with open(self.file, "a") as file:
                print(json.dumps(line), file=file)


def timed(run):
    start = time.perf_counter()
    result = run()
    return (time.perf_counter() - start) * 1e3, result


def wait_until_cached(db, collection, field):
    explain = {"count": collection, "query": {field: "x"}}
    while "load" in (reason := db.command("explain", explain).get("forebay", {}).get("reason", "")):
        time.sleep(0.05)
    if reason:
        raise RuntimeError(reason)


def cache(db, collection, field):
    db.command("createIndexes", collection, indexes=[{"key": {field: "cache"}, "name": f"{field}_cache"}])
    wait_until_cached(db, collection, field)


def counts(options, report):
    with open(options.names, encoding="utf-8") as lines:
        names = [line.rstrip("\n") for line, _ in zip(lines, range(options.documents))]
    with tempfile.TemporaryDirectory() as folder:
        store = start_ferretdb(folder)
        front = start_forebay("--memory", "--upstream", store.uri, "--upstream-writes", "exclusive", "--devices", "host:2")
        try:
            direct, proxied = (pymongo.MongoClient(server.uri).shop for server in (store, front))
            for start in range(0, len(names), 10_000):
                batch = [{"_id": start + n, "name": name} for n, name in enumerate(names[start : start + 10_000])]
                direct.names.insert_many(batch)
            load, _ = timed(lambda: cache(proxied, "names", "name"))
            report.add("upstream-load", "forebay in front", "documents_per_s", [len(names) / load * 1e3], len(names))
            for pattern in PATTERNS:
                query = {"name": {"$regex": pattern}}
                count = lambda db: db.command("count", "names", query=query)["n"]
                alone, expect = timed(lambda: count(direct))
                cached = [timed(lambda: count(proxied)) for _ in range(RUNS)]
                if any(found != expect for _, found in cached):
                    raise RuntimeError(f"/{pattern}/: FerretDB counts {expect}, the cache {cached}")
                case = f"pymongo-count: {pattern}"
                times = [took for took, _ in cached]
                report.add(case, "FerretDB v1.24.2 SQLite", "client_ms", [alone], expect)
                report.add(case, "forebay in front", "client_ms", times, expect)
                report.add(case, "forebay in front", "times_ferretdb", [alone / statistics.median(times)], expect)
        finally:
            front.stop()
            store.stop()


FINDS = {
    "late, 11 documents": ({"name": {"$regex": "-9999[0-9]$|^item-77$"}}, {}),
    "one document in the middle": ({"name": "item-{middle}"}, {}),
    "one early document, limit 1": ({"name": {"$regex": "^item-77$"}}, {"limit": 1}),
    "one late document, limit 1": ({"name": {"$regex": "^item-{late}$"}}, {"limit": 1}),
    "11 documents and a condition on another field": ({"name": {"$regex": "-9999[0-9]$|^item-77$"}, "n": {"$gte": 5}}, {}),
    "100 documents": ({"name": {"$regex": "^item-[0-9]*77[0-9]$"}}, {"limit": 100}),
    "many documents, limit 1": ({"name": {"$regex": "^item-"}}, {"limit": 1}),
    "many documents, limit 20": ({"name": {"$regex": "^item-"}}, {"limit": 20}),
    "many documents and a condition on another field, limit 1": ({"name": {"$regex": "^item-"}, "n": 3}, {"limit": 1}),
    "many documents": ({"name": {"$regex": "7$"}}, {}),
    "many documents, cached fields only": ({"name": {"$regex": "7$"}}, {"projection": {"_id": 0, "name": 1}}),
}
FIND_RUNS = 5
# Finds that take less than `SHORT_FIND_MS` are repeated `SHORT_FIND_RUNS` times, so that their medians are stable.
SHORT_FIND_MS = 20
SHORT_FIND_RUNS = 300
RATIO_MAX = 1.5


def finds(options, report):
    count = options.documents
    with tempfile.TemporaryDirectory() as folder:
        store = start_ferretdb(folder)
        front = start_forebay("--memory", "--upstream", store.uri, "--upstream-writes", "exclusive", "--devices", "host:2")
        try:
            direct, proxied = (pymongo.MongoClient(server.uri).shop.items for server in (store, front))
            for start in range(0, count, 10_000):
                numbers = range(start, min(start + 10_000, count))
                ids = ({"_id": n} if options.ids == "int" else {} for n in numbers)
                direct.insert_many([it | {"name": f"item-{n}", "n": n % 10, "text": "x" * 100} for it, n in zip(ids, numbers)])
            cache(proxied.database, "items", "name")
            for case, (query, arguments) in FINDS.items():
                text = json.dumps(query).replace("{middle}", str(count // 2)).replace("{late}", str(count - 2))
                query = json.loads(text.replace("-9999[0-9]", f"-{(count - 10) // 10}[0-9]"))
                find(report, f"{case}, _id {options.ids}", direct, proxied, query, arguments)
        finally:
            front.stop()
            store.stop()


def find(report, case, direct, proxied, query, arguments):
    run = lambda collection: sorted(document.get("name") for document in collection.find(query, **arguments))
    command = {"find": "items", "filter": query, **arguments}
    reason = lambda: proxied.database.command("explain", command).get("forebay", {}).get("reason", "the cache answers")
    while "being measured" in (why := reason()):
        time.sleep(0.1)
    alone, cached = [], []
    is_short = timed(lambda: run(direct))[0] < SHORT_FIND_MS
    for _ in range(SHORT_FIND_RUNS if is_short else FIND_RUNS):
        for collection, times in ((direct, alone), (proxied, cached)):
            took, found = timed(lambda: run(collection))
            times.append((took, len(found)))
    if len({count for _, count in alone + cached}) > 1:
        raise RuntimeError(f"{case}: FerretDB finds {alone}, the proxy {cached}")
    expect = alone[0][1]
    alone, cached = ([took for took, _ in times] for times in (alone, cached))
    ratio = statistics.median(cached) / statistics.median(alone)
    print(f"{case}: {why}")
    report.add(f"find: {case}", "FerretDB v1.24.2 SQLite", "client_ms", alone, expect)
    report.add(f"find: {case}", "forebay in front", "client_ms", cached, expect)
    report.add(f"find: {case}", "forebay in front", "of_ferretdb", [ratio], expect)
    if ratio > RATIO_MAX:
        print(f"{case}: takes more than {RATIO_MAX} times as long as FerretDB alone")


class Storm:
    """The two threads of a storm: one writes to the upstream at a steady rate; one searches through the proxy or measures its lag."""

    WORDS = ["web", "pack", "pool", "stream", "x", "Ä", "mongo"]

    def __init__(self, store, front, rate):
        self.store, self.front, self.rate = store.uri, front.uri, rate
        self.over = threading.Event()
        self.written, self.searches, self.lags = 0, 0, []

    def write(self):
        things = pymongo.MongoClient(self.store).shop.things
        rng, begun = random.Random(1), time.perf_counter()
        while not self.over.is_set():
            writes = [self.one(rng) for _ in range(BATCH)]
            things.bulk_write(writes, ordered=False)
            self.written += BATCH
            time.sleep(max(0, begun + self.written / self.rate - time.perf_counter()))

    def one(self, rng):
        ident, name = rng.randrange(100_000), "-".join(rng.choices(self.WORDS, k=3))
        match rng.randrange(4):
            case 0:
                return pymongo.DeleteOne({"_id": ident})
            case 1:
                return pymongo.ReplaceOne({"_id": ident}, {"name": name, "n": rng.randrange(10)}, upsert=True)
            case _:
                return pymongo.UpdateOne({"_id": ident}, {"$set": {"name": name}}, upsert=True)

    def search(self):
        things, rng = pymongo.MongoClient(self.front).shop.things, random.Random(2)
        while not self.over.is_set():
            pattern = rng.choice(["^web", "pool$", "x.*x", "Ä", "(pack|mongo)-stream"])
            if rng.randrange(3):
                things.database.command("count", "things", query={"name": {"$regex": pattern}})
            else:
                name = "-".join(rng.choices(self.WORDS, k=3))
                list(things.find({"name": name}, {"_id": 1, "name": 1}, batch_size=10_000))
            self.searches += 1

    def measure(self):
        direct = pymongo.MongoClient(self.store).shop.things
        proxied = pymongo.MongoClient(self.front).shop
        number = 0
        while not self.over.is_set():
            number += 1
            name = f"probe {number}"
            direct.insert_one({"_id": f"p{number % 1000}-{number}", "name": name})
            took, _ = timed(lambda: self.until_there(proxied, name))
            self.lags.append(took)
            time.sleep(0.1)

    def until_there(self, db, name):
        while not db.command("count", "things", query={"name": name})["n"]:
            pass


def storm(options, report):
    with tempfile.TemporaryDirectory() as folder:
        store = start_forebay("--data", f"{folder}/store", "--documents-change-history-bytes-max", "1GiB", "--devices", "host:1")
        front = start_forebay(
            "--data", f"{folder}/front", "--upstream", store.uri, "--devices", "host:1", "--upstream-compare-percent", str(options.compare),
        )  # fmt: skip
        try:
            pymongo.MongoClient(store.uri).shop.create_collection("things")
            proxied = pymongo.MongoClient(front.uri)
            cache(proxied.shop, "things", "name")
            it = Storm(store, front, options.rate)
            # A comparison pauses the proxy's replica, so the lag is measured in a run without comparisons.
            work = (it.write, it.search) if options.compare else (it.write, it.measure)
            threads = [threading.Thread(target=run) for run in work]
            for thread in threads:
                thread.start()
            time.sleep(options.seconds)
            it.over.set()
            for thread in threads:
                thread.join()
            time.sleep(1)
            for pattern in PATTERNS + ["^web", "x.*x", "Ä"]:
                query = {"name": {"$regex": pattern}}
                both = [pymongo.MongoClient(server.uri).shop for server in (store, front)]
                counts = [db.command("count", "things", query=query)["n"] for db in both]
                if counts[0] != counts[1]:
                    raise SystemExit(f"/{pattern}/: the upstream counts {counts[0]}, the proxy {counts[1]}")
            status = proxied.admin.command("serverStatus")["forebayUpstream"]
            print(status, "errors in the log:", [line for line in front.lines if "ERROR" in line][:3])
            report.add("storm", "forebay in front", "writes_per_s", [it.written / options.seconds])
            if it.lags:
                report.add("storm", "forebay in front", "lag_ms", it.lags)
                p99 = statistics.quantiles(it.lags, n=100)[98]
                report.add("storm", "forebay in front", "lag_p99_ms", [p99])
                return
            report.add("storm", "forebay in front", "compared", [status["compared"]])
            report.add("storm", "forebay in front", "differed", [status["differed"]], 0)
            if status["differed"] or not status["compared"]:
                raise SystemExit("answers differed, or none was compared")
        finally:
            front.stop()
            store.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["counts", "finds", "storm"])
    parser.add_argument("names", nargs="?", help="a file of names, one per line")
    parser.add_argument("--documents", type=int)
    parser.add_argument("--ids", choices=["ObjectId", "int"], default="ObjectId", help="the _ids of finds: FerretDB 1 finds ints by a scan")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=5_000, help="writes per second")
    parser.add_argument("--compare", type=int, default=100, help="percentage of answers to compare; 0 to measure the lag")
    parser.add_argument("--record", help="append the figures to this file")
    options = parser.parse_args()
    options.documents = options.documents or {"finds": ITEMS}.get(options.what, NAMES)
    {"counts": counts, "finds": finds, "storm": storm}[options.what](options, Report(options))


if __name__ == "__main__":
    main()
