"""SQL beside searches of documents, on one GPU: `mixed.py FOREBAY FOLDER [SECONDS] [CLIENTS] [DOCUMENTS]`

The folder is that of `forebay bench tables --generate ssb`. One client runs the 13 queries of the Star Schema Benchmark
in a loop, and others, each a process, count the documents of a collection that match a regular expression: each alone,
and then both. Every answer is compared: of SQL with that of the CPU, of counts with Python's `re`. Needs psycopg and
pymongo, and a GPU. Prints JSON lines as in `bench/record/`, and exits with 1 if an answer differs.
"""

import multiprocessing
import random
import re
import sys
import tempfile
import time

import pymongo

import sql_gpu

WORDS = """special pending unusual express furious final regular silent even bold ironic dogged quick blithe careful
requests packages accounts deposits theodolites pinto beans foxes ideas dependencies instructions excuses platelets
asymptotes courts dolphins multipliers sauternes warthogs frets dinos attainments somas braids hockey players""".split()
PATTERNS = [f"{one}.*{other}" for one in WORDS[:4] for other in WORDS[15:18]] + ["^(bold|even) [a-f]", "beans? [p-z]+s$"]


def comments(count):
    of = random.Random(17)
    return [" ".join(of.choices(WORDS, k=of.randint(6, 14))) for _ in range(count)]


def search(uri, number, counts, until, found):
    """Counts in a loop. Puts the number of counts, and up to three wrong ones, in `found`."""
    collection = pymongo.MongoClient(uri).mixed.notes
    of, done, wrong = random.Random(number), 0, []
    while time.time() < until:
        pattern = of.choice(PATTERNS)
        answer = collection.count_documents({"text": {"$regex": pattern}})
        if answer != counts[pattern]:
            wrong.append((pattern, answer))
        done += 1
    found.put((done, wrong[:3]))


def searches(uri, clients, counts, seconds):
    """Starts clients that count for some seconds. Returns a function that waits for them and returns counts a second."""
    found, until = multiprocessing.Queue(), time.time() + seconds
    arguments = [(uri, number, counts, until, found) for number in range(clients)]
    started = [multiprocessing.Process(target=search, args=it) for it in arguments]
    began = time.time()
    for process in started:
        process.start()

    def rate():
        answers = [found.get() for _ in started]
        took = time.time() - began
        for process in started:
            process.join()
        wrong = [it for _, of_client in answers for it in of_client]
        if wrong:
            sys.exit(f"counts differ: {wrong[:5]}, expected {counts}")
        return sum(done for done, _ in answers) / took
    return rate


def loop(client, answers, seconds):
    """Runs the queries in a loop. Returns queries a second."""
    began, done = time.time(), 0
    while (took := time.time() - began) < seconds or done < len(answers):
        for query, wanted in answers.items():
            if client.execute(query).fetchall() != wanted:
                sys.exit(f"an answer differs: {query}")
            done += 1
    return done / took


def main(forebay, folder, seconds="15", clients="16", documents="1000000"):
    seconds, clients, documents = float(seconds), int(clients), int(documents)
    device = sql_gpu.device_names()[0]
    texts = comments(documents)
    counts = {pattern: sum(1 for it in texts if re.search(pattern, it)) for pattern in PATTERNS}
    with tempfile.TemporaryDirectory() as data:
        server, client, uri = sql_gpu.server_of(forebay, folder, data, with_documents=True)
        collection = pymongo.MongoClient(uri).mixed.notes
        collection.create_index([("text", "cache")])
        for first in range(0, documents, 20_000):
            collection.insert_many([{"text": it} for it in texts[first:first + 20_000]])
        for pattern, wanted in counts.items():
            if (answer := collection.count_documents({"text": {"$regex": pattern}})) != wanted:
                sys.exit(f"{pattern}: {answer}, expected {wanted}")
        answers = {}
        for query in sql_gpu.SSB.values():
            query = query.strip().rstrip(";")
            client.execute("SET forebay.gpu = off")
            answers[query] = client.execute(query).fetchall()
            sql_gpu.set_all(client, *sql_gpu.SETTINGS)
            client.execute(query).fetchall()
        rates = {}
        for round_ in range(3):
            rates.setdefault("SSB alone", []).append(loop(client, answers, seconds))
            rates.setdefault("searches alone", []).append(searches(uri, clients, counts, seconds)())
            rate = searches(uri, clients, counts, seconds)
            rates.setdefault("SSB beside searches", []).append(loop(client, answers, seconds))
            rates.setdefault("searches beside SSB", []).append(rate())
            print(f"# round {round_}: {rates}", file=sys.stderr, flush=True)
        for case, of_rounds in rates.items():
            sql_gpu.line(f"mixed, {case}", f"forebay, GPU, {clients} clients of {documents} documents", "per_second",
                         of_rounds, documents, device)
        for name, other in (("SSB", "searches"), ("searches", "SSB")):
            parts = [beside / alone for beside, alone in zip(rates[f"{name} beside {other}"], rates[f"{name} alone"])]
            sql_gpu.line("mixed", f"forebay, GPU, {clients} clients of {documents} documents", f"{name.lower()}_part_of_alone",
                         parts, documents, device)
        sql_gpu.stop(server, client)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
