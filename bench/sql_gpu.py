"""SQL on a GPU, on the CPU and in DuckDB: `sql_gpu.py FOREBAY FOLDER [ROUNDS] [CASE...]`

The folder, in which the file `small.parquet` of a million rows is written, is that of `forebay bench tables --generate tpch` or `ssb`. Needs psycopg and duckdb, and a GPU. Prints JSON
lines as in `bench/record/`: the time of the kernels on the device, and the time that a client sees, with the GPU, without
it, and in DuckDB over tables of its own in memory. Exits with 1 if answers differ. The case `tpch-hot`, alone, is the 22
queries of TPC-H, whatever part of them runs on the GPU. The case `like`, alone, searches the comments of orders for patterns
that are new in each round. The case `floats`, alone, is queries over the numbers of `lineitem` in double precision, in a file
that is written beside the others. The case `rows`, alone, is queries that return rows, and a `ROLLUP`; `many`, alone, joins that repeat rows, of all pairs, unions, and several `DISTINCT` aggregates; `windows`, alone, window functions and a sort; `texts`, alone, groups by texts of
many values, in a file of 50 million rows that is written beside the others; `times`, alone, groups by times, in a file of
100 million rows; `groups`, alone, 100 million groups by random keys, in a file of 200 million rows (2.4 GB). The case `scan-pinned`, alone, is a scan of columns for which the GPU has no room, in
pinned memory of the host. What measures a target is printed under the name of the target, too (`TARGETS`). The case
`cancel`, alone, cancels such a scan and a sort in device memory, and measures how long it takes until a short query answers.
"""

import datetime
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import duckdb
import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/drivers/python"))
import ssb_queries
import tpch_queries

TPCH = {
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
    "by supplier": """SELECT l_suppkey, count(*), sum(l_quantity) FROM lineitem GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 10""",
    "by part": """SELECT l_partkey, count(*), sum(l_extendedprice * (1 - l_discount)) FROM lineitem GROUP BY 1
        ORDER BY 3 DESC, 1 LIMIT 10""",
    "large orders": """SELECT l_orderkey, sum(l_quantity) FROM lineitem GROUP BY 1 HAVING sum(l_quantity) > 312
        ORDER BY 2 DESC, 1""",
    "like of few values": "SELECT l_shipmode, count(*) FROM lineitem WHERE l_shipinstruct LIKE '%BACK%' GROUP BY 1 ORDER BY 1",
}
FLOATS = {
    "floats, q6": TPCH["q6"].replace("lineitem", "floats"),
    "floats, q1": TPCH["q1"].replace("lineitem", "floats"),
    "floats, by discount": """SELECT l_discount, count(*), min(l_extendedprice), max(l_extendedprice), avg(l_quantity) FROM floats
        GROUP BY 1 ORDER BY 1""",
    "floats, no decimals": """SELECT l_returnflag, count(*), max(ratio), sum(ratio), avg(ratio) FROM floats WHERE ratio < 0.001
        GROUP BY 1 ORDER BY 1""",
}
ROWS = {
    "rows, of a day": """SELECT l_orderkey, l_extendedprice, l_shipmode FROM lineitem
        WHERE l_shipdate = DATE '1995-05-05' AND l_discount = 0.05""",
    "rows, first": """SELECT l_extendedprice, l_orderkey, l_shipdate FROM lineitem
        ORDER BY l_extendedprice DESC, l_orderkey, l_shipdate LIMIT 10""",
    "rows, first of some": """SELECT l_extendedprice, l_orderkey FROM lineitem WHERE l_shipmode = 'AIR' AND l_quantity < 5
        ORDER BY l_extendedprice DESC, l_orderkey LIMIT 100""",
    "rows, any": "SELECT l_shipmode FROM lineitem WHERE l_shipmode = 'AIR' AND l_extendedprice > 104900 LIMIT 20",
    "rows, rollup": """SELECT l_returnflag, l_shipmode, count(*), sum(l_quantity) FROM lineitem
        GROUP BY ROLLUP (l_returnflag, l_shipmode)""",
}
MANY = {
    "many, items of an order": """SELECT one.l_shipmode, count(*), sum(other.l_quantity) FROM lineitem one
        JOIN lineitem other ON one.l_orderkey = other.l_orderkey WHERE one.l_returnflag = 'R' GROUP BY 1 ORDER BY 1""",
    "many, suppliers of a part": """SELECT l_returnflag, count(*), min(ps_supplycost), sum(ps_availqty) FROM lineitem
        JOIN partsupp ON l_partkey = ps_partkey GROUP BY 1 ORDER BY 1""",
    "many, orders of a customer": """SELECT count(*), sum(one.o_totalprice + other.o_totalprice) FROM orders one
        JOIN orders other ON one.o_custkey = other.o_custkey WHERE one.o_orderpriority = '1-URGENT'""",
    "many, customers and orders": """SELECT c_mktsegment, count(*), count(o_orderkey), max(o_orderpriority) FROM customer
        LEFT JOIN orders ON c_custkey = o_custkey GROUP BY 1 ORDER BY 1""",
    "many, all customers and orders": """SELECT c_mktsegment, count(*), count(c_custkey), sum(o_totalprice) FROM customer
        FULL JOIN orders ON c_custkey = o_custkey GROUP BY 1 ORDER BY 1""",
    "pairs, items in bands of prices": """SELECT n_name, count(*), sum(l_quantity) FROM lineitem
        JOIN nation ON l_extendedprice BETWEEN 4000 * n_nationkey AND 4000 * n_nationkey + 6000 GROUP BY 1 ORDER BY 1""",
    "pairs, items above the mean": """SELECT l_shipmode, count(*), sum(l_extendedprice - mean) FROM lineitem
        CROSS JOIN (SELECT CAST(avg(o_totalprice) / 4 AS DECIMAL(15, 2)) AS mean FROM orders) AS o WHERE l_extendedprice > mean GROUP BY 1 ORDER BY 1""",
    "union of orders and items": """SELECT kind, count(*), sum(price), max(price) FROM (
        SELECT o_orderpriority AS kind, o_totalprice AS price FROM orders JOIN customer ON o_custkey = c_custkey
        UNION ALL SELECT l_shipmode, l_extendedprice FROM lineitem WHERE l_quantity > 10) AS u GROUP BY 1 ORDER BY 1""",
    "outer, cheaper suppliers": """SELECT l_returnflag, count(*), count(ps_suppkey), sum(ps_availqty) FROM lineitem
        LEFT JOIN partsupp ON l_partkey = ps_partkey AND ps_supplycost * 40 < l_extendedprice GROUP BY 1 ORDER BY 1""",
    "outer, bands of prices": """SELECT n_name, count(*), sum(o_totalprice) FROM orders
        LEFT JOIN nation ON o_totalprice BETWEEN 20000 * n_nationkey AND 20000 * n_nationkey + 9000 GROUP BY 1 ORDER BY 1""",
    "full, orders of some customers": """SELECT c_mktsegment, count(*), count(o_orderkey), sum(o_totalprice) FROM customer
        FULL JOIN orders ON c_custkey = o_custkey AND o_totalprice > 10 * c_acctbal GROUP BY 1 ORDER BY 1""",
    "distinct, by flag": """SELECT l_returnflag, count(DISTINCT l_suppkey), count(DISTINCT l_shipdate), sum(l_quantity)
        FROM lineitem GROUP BY 1 ORDER BY 1""",
    "distinct, of all": "SELECT count(DISTINCT l_partkey), count(DISTINCT l_orderkey), count(*) FROM lineitem",
    "distinct, of months": """SELECT date_trunc('month', l_shipdate)::date, count(DISTINCT l_partkey), count(DISTINCT l_suppkey),
        count(DISTINCT l_shipmode) FILTER (WHERE l_discount > 0.05), count(*) FROM lineitem GROUP BY 1 ORDER BY 1""",
    "texts, least and greatest": """SELECT l_returnflag, min(l_shipmode), max(l_shipinstruct), bool_or(l_discount > 0.09)
        FROM lineitem GROUP BY 1 ORDER BY 1""",
}
VISITS = {
    "texts, most visited": "SELECT url, count(*) AS n, sum(seconds) FROM visits GROUP BY url ORDER BY n DESC, url LIMIT 10",
    "texts, of some": """SELECT url, count(*) AS n FROM visits WHERE url LIKE '%/toys/%7' AND seconds > 300 GROUP BY url
        ORDER BY n DESC, url LIMIT 10""",
    "texts, distinct": "SELECT count(DISTINCT url) FROM visits",
    "texts, distinct of days": "SELECT day, count(DISTINCT url), count(*) FROM visits GROUP BY day ORDER BY day",
    "texts, two distinct of days": "SELECT day, count(DISTINCT url), count(DISTINCT seconds) FROM visits GROUP BY day ORDER BY day",
}
WINDOWS = {
    "windows, largest of each day": """SELECT l_shipdate, l_orderkey, l_linenumber, l_extendedprice FROM (
        SELECT *, row_number() OVER (PARTITION BY l_shipdate ORDER BY l_extendedprice DESC, l_orderkey, l_linenumber) AS n FROM lineitem) AS x
        WHERE n <= 3""",
    "windows, last of each supplier": """SELECT count(*), sum(l_quantity), max(l_shipdate) FROM (
        SELECT *, row_number() OVER (PARTITION BY l_suppkey ORDER BY l_shipdate DESC, l_orderkey, l_linenumber) AS n FROM lineitem) AS x
        WHERE n <= 5""",
    "windows, running totals": """SELECT count(*), sum(o_totalprice), max(total) FROM (
        SELECT *, sum(o_totalprice) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS total FROM orders) AS x
        WHERE total > 3000000""",
    "windows, shares of parts": """SELECT l_returnflag, count(*), sum(l_extendedprice) FROM (
        SELECT *, sum(l_extendedprice) OVER (PARTITION BY l_partkey) AS total FROM lineitem) AS x
        WHERE l_extendedprice * 10 > total GROUP BY 1 ORDER BY 1""",
    "windows, ranks": """SELECT r, count(*) FROM (
        SELECT dense_rank() OVER (PARTITION BY o_custkey ORDER BY o_orderdate) AS r FROM orders) AS x GROUP BY r ORDER BY r""",
    "sort, items of a day": """SELECT l_orderkey, l_linenumber, l_extendedprice FROM lineitem WHERE l_shipdate = DATE '1995-05-05'
        ORDER BY l_extendedprice DESC, l_orderkey, l_linenumber""",
}
TIMES = {
    "times, by hour": "SELECT date_trunc('hour', began) AS hour, count(*), sum(bytes) FROM requests GROUP BY 1 ORDER BY 1",
    "times, by hour of the week": """SELECT extract(dow FROM began)::int, extract(hour FROM began)::int, count(*), max(bytes) FROM requests
        GROUP BY 1, 2 ORDER BY 1, 2""",
    "times, slow by day": """SELECT began::date AS day, count(*) FROM requests WHERE ended - began > INTERVAL '9 seconds'
        GROUP BY 1 ORDER BY 1""",
    "times, by 15 minutes": """SELECT date_bin(INTERVAL '15 minutes', began) AS quarter, max(bytes), count(*) FROM requests
        GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10""",
    "times, by month": "SELECT date_trunc('month', ended) AS month, avg(bytes)::float8 FROM requests GROUP BY 1 ORDER BY 1",
}
# Each key twice, in no order, and the keys are far apart.
GROUPS = {"groups": "SELECT k, count(*), sum(v) FROM random_keys GROUP BY k ORDER BY 3 DESC, 1 LIMIT 10"}
GROUPS_COUNT = 100_000_000
# If it is not cancelled, its kernel ends because there are too many matches.
MANY_PAIRS = "SELECT count(*), sum(l_quantity) FROM lineitem JOIN supplier ON l_extendedprice < s_acctbal * 10 WHERE l_quantity > 0"
# Queries that are cancelled while they run on the GPU, with the settings of the server: the columns of the first have no
# room in device memory.
CANCELLED = {
    "scan of pinned memory": ("""SELECT sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), sum(l_quantity), max(l_orderkey),
        max(l_partkey), max(l_suppkey), max(l_linenumber), max(l_shipdate), max(l_commitdate), max(l_receiptdate)
        FROM lineitem""", ["--tables-gpu-bytes-max", "64MiB", "--tables-gpu-host-bytes-max", "64GiB"]),
    "sort in device memory": (WINDOWS["windows, last of each supplier"], []),
}
SETTINGS = ("gpu = on", "compile = wait", "strict = on")
SMALL = {"small": "SELECT count(*) FROM small WHERE l_quantity < 24"}
# These take the CPU long, and run once there.
LONG = {"by part", "large orders", "groups"}
# Numbers of sums of queries whose kernels are new.
FIRST_CALLS = range(1, 6)
SSB = {f"ssb {number}": query for number, query in ssb_queries.QUERIES.items()}
# What DuckDB keeps in memory.
COLUMNS = {
    "lineitem": """l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, l_linestatus, l_shipdate, l_shipmode,
        l_shipinstruct, l_suppkey, l_partkey, l_orderkey""",
    "lineorder": """lo_custkey, lo_partkey, lo_suppkey, lo_orderdate, lo_quantity, lo_extendedprice, lo_discount, lo_revenue,
        lo_supplycost""",
    "orders": "o_orderpriority, o_comment", "floats": "*", "visits": "*", "requests": "*", "random_keys": "*", "customer": "*", "supplier": "*", "part": "*", "date": "*",
}

# The targets, by what measures them: the benchmark, the case and the metric. Each has the case and the metric of a further line.
TARGETS = {
    ("sql-gpu", "q6", "device_ms"): ("q6-device", "device_ms"),
    ("sql-gpu", "q1", "device_ms"): ("q1-device", "device_ms"),
    ("sql-gpu", "ssb, 13 queries, total", "device_ms"): ("ssb-device", "device_ms"),
    ("sql-gpu", "ssb, 13 queries, total", "client_ms"): ("ssb-client", "client_ms"),
    ("sql-gpu", "scan-pinned, q6", "gb_s"): ("scan-pinned", "q6_gb_s"),
    ("sql-gpu", "scan-pinned, ssb 1.1", "gb_s"): ("scan-pinned", "ssb_1_1_gb_s"),
} | {
    (bench, f"{case}, 22 queries, {of}", "client_ms"): (case, metric)
    for bench, case in (("sql-gpu", "tpch-hot"), ("cold", "tpch-cold"))
    for of, metric in (("total", "client_ms"), ("geometric mean", "client_ms_geometric_mean"))
}


def rows(found):
    def value(it):
        return "" if it is None else it if isinstance(it, str | datetime.date) else float(it)
    return sorted(tuple(map(value, row)) for row in found)


def are_alike(one, other):
    def near(a, b):
        return a == b if isinstance(a, str | datetime.date) else abs(a - b) <= 2e-5 * max(abs(a), abs(b))
    return len(one) == len(other) and all(near(*pair) for a, b in zip(one, other) for pair in zip(a, b))


def line(case, engine, metric, values, rows_count, device):
    """Prints a result, and again under the name of the target that it measures."""
    bench = pathlib.Path(sys.argv[0]).stem.replace("_", "-")
    if target := TARGETS.get((bench, case, metric)):
        line(target[0], engine, target[1], values, rows_count, device)
    print(json.dumps({
        "bench": bench, "case": case, "engine": engine, "device": device, "driver": "none", "metric": metric,
        "median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values),
        "expect": rows_count, "commit": COMMIT, "date": datetime.datetime.now(datetime.UTC).strftime("%FT%TZ"),
        "command": " ".join([f"python3 bench/{pathlib.Path(sys.argv[0]).name} forebay FOLDER", *sys.argv[3:]]),
    }), flush=True)


def timed(run, rounds):
    times, answer = [], None
    for _ in range(rounds):
        began = time.perf_counter()
        answer = run()
        times.append((time.perf_counter() - began) * 1e3)
    return times, rows(answer)


def server_of(forebay, folder, data, *settings, with_documents=False, devices="cuda:0"):
    """Starts a server. Returns it, a client of its tables, and the address of its documents, if that is wanted."""
    command = [forebay, "serve", "--data", data, "--devices", devices, "--tables", folder, "--until-stdin-ends"]
    command += ["--mongodb-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0", *settings]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    addresses = {}
    for text in server.stdout:
        for found in re.finditer(r"(postgres|mongodb)\S*://\S+", text):
            addresses[found[1]] = found[0]
        if "postgres" in addresses and (not with_documents or "mongodb" in addresses):
            started = server, psycopg.connect(addresses["postgres"], autocommit=True)
            return (*started, addresses["mongodb"]) if with_documents else started
    sys.exit("the server did not start")


def stop(server, client):
    client.close()
    server.stdin.close()
    server.wait(60)


def set_all(client, *settings):
    for setting in settings:
        client.execute(f"SET forebay.{setting}")


def device_names():
    """Returns the names of all GPUs."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()


def device_times(client, query, rounds):
    """Returns the milliseconds of the kernels in each round."""
    times = []
    for _ in range(rounds):
        plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
        found = re.findall(r"(?:ran|stayed) there: .*? in ([\d.]+) ms", plan)
        if not found:
            sys.exit(plan)
        times.append(sum(map(float, found)))
    return times


def first_calls(client, measured):
    """Measures queries whose kernels were never compiled, on the CPU and then in the background, and the call behind."""
    on_cpu, first, second = [], [], []
    client.execute("SET forebay.strict = off")
    for sums in FIRST_CALLS:
        # Another number of sums is another kernel.
        more = "".join(f", sum(l_quantity * {factor})" for factor in range(2, 2 + sums))
        query = TPCH["q6"].replace(" AS revenue", more)
        for setting, times in (("gpu = off", on_cpu), ("gpu = on", first)):
            client.execute(f"SET forebay.{setting}")
            client.execute("SET forebay.compile = background")
            began = time.perf_counter()
            answer = client.execute(query).fetchall()
            times.append((time.perf_counter() - began) * 1e3)
            if setting == "gpu = off":
                on_cpu_answer = answer
        began = time.perf_counter()
        again = client.execute(query).fetchall()
        second.append((time.perf_counter() - began) * 1e3)
        if not answer == again == on_cpu_answer:
            sys.exit(f"first-call: answers differ: {answer} {again} {on_cpu_answer}")
    measured("first-call", "forebay, CPU", "client_ms", on_cpu)
    measured("first-call", "forebay, GPU, first call", "client_ms", first)
    measured("first-call", "forebay, GPU, second call", "client_ms", second)


def likes(client, duck, measured, rounds):
    """Measures searches of the comments of orders: each round for words that were not searched before. Returns whether
    all answers are the same."""
    value_bytes = duck.execute("SELECT sum(strlen(o_comment)) FROM orders").fetchone()[0]
    query = "SELECT o_orderpriority, count(*) FROM orders WHERE o_comment {} GROUP BY 1 ORDER BY 1"
    conditions = {
        "like": "LIKE '%{0}%{1}%'", "like, one word": "LIKE '%{0} {1}%'", "like, regex": "~ '{0} ([a-z]+ )?{1}s?$'",
    }
    words = [(one, other) for other in ("requests", "packages", "accounts", "deposits", "theodolites")
             for one in ("special", "pending", "unusual", "express", "furious", "final", "regular")]
    are_same = True
    client.execute("SET forebay.strict = on")
    # The dictionary is refused, and the texts are brought to the device.
    client.execute(query.format("LIKE '%so many%words%'")).fetchall()
    for case, condition in conditions.items():
        milliseconds, rates, again, in_duck = [], [], [], []
        for pair in words[:rounds]:
            new = query.format(condition.format(*pair))
            plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + new) for it in row)
            found = re.search(r"texts searched in ([\d.]+) ms", plan)
            if not found:
                sys.exit(plan)
            milliseconds.append(float(found[1]))
            rates.append(value_bytes / milliseconds[-1] / 1e6)
            times, answer = timed(lambda: client.execute(new).fetchall(), 1)
            again += times
            of_duck = new if "regex" not in case else query.format(
                f"IS NOT NULL AND regexp_matches(o_comment, {condition.format(*pair)[2:]})")
            times, wanted = timed(lambda: duck.execute(of_duck).fetchall(), 1)
            in_duck += times
            if answer != wanted:
                print(f"# {case}: answers differ\n{answer}\n{wanted}", file=sys.stderr)
                are_same = False
        clients = []
        for one, other in words[:rounds]:
            # Other patterns again, as a client sees them.
            new = query.format(condition.format(other, one))
            clients += timed(lambda: client.execute(new).fetchall(), 1)[0]
        client.execute("SET forebay.gpu = off")
        on_cpu, _ = timed(lambda: client.execute(query.format(condition.format(*words[0]))).fetchall(), 2)
        client.execute("SET forebay.gpu = on")
        measured(case, "forebay, GPU, search", "device_ms", milliseconds)
        measured(case, "forebay, GPU, search", "gb_s", rates)
        measured(case, "forebay, GPU, new pattern", "client_ms", clients)
        measured(case, "forebay, GPU, again", "client_ms", again)
        measured(case, "forebay, CPU", "client_ms", on_cpu)
        measured(case, "duckdb " + duckdb.__version__, "client_ms", in_duck)
    print(f"# like: {value_bytes} bytes of comments", file=sys.stderr)
    return are_same


def write_floats(duck, folder):
    numbers = ", ".join(f"{it}::DOUBLE AS {it}" for it in ("l_quantity", "l_extendedprice", "l_discount", "l_tax"))
    duck.execute(f"""COPY (SELECT {numbers}, l_quantity::DOUBLE / l_extendedprice::DOUBLE AS ratio, l_shipdate, l_returnflag,
        l_linestatus FROM '{folder}/lineitem.parquet') TO '{folder}/floats.parquet'""")


def write_visits(duck, folder):
    duck.execute(f"""COPY (SELECT 'https://shop.example.org/' || ['books', 'garden', 'music', 'toys'][1 + item % 4] || '/item-' || item
        || CASE WHEN item % 3 = 0 THEN '?from=mail' ELSE '' END AS url, seconds, DATE '2026-11-01' + day AS day
        FROM (SELECT CAST(6000000 * pow(random(), 2) AS BIGINT) AS item, CAST(600 * random() AS INTEGER) AS seconds,
        CAST(29 * random() AS INTEGER) AS day FROM range(50000000))) TO '{folder}/visits.parquet'""")


def write_requests(duck, folder):
    # 100 days in order, as a log has them, each request with a time that is a little late.
    duck.execute(f"""COPY (SELECT make_timestamp(began) AS began, make_timestamp(began + took) AS ended, bytes FROM (
        SELECT 1767225600000000 + row * 86400 + CAST(5000000 * random() AS BIGINT) AS began,
        CAST(10000000 * random() AS BIGINT) AS took, CAST(1000000 * random() AS INTEGER) AS bytes
        FROM range(100000000) AS rows(row))) TO '{folder}/requests.parquet'""")
    duck.execute("CREATE MACRO date_bin(step, time) AS time_bucket(step, time, TIMESTAMP '1970-01-01 00:00:00')")


def write_random_keys(duck, folder):
    # The hash has 64 bits: of the 61 that remain, no two keys are the same.
    duck.execute(f"""COPY (SELECT CAST(hash(r % {GROUPS_COUNT}) >> 3 AS BIGINT) AS k, CAST(1e9 * random() AS INTEGER) AS v
        FROM range({2 * GROUPS_COUNT}) AS n(r)) TO '{folder}/random_keys.parquet'""")
    found = duck.execute(f"SELECT count(DISTINCT k) FROM '{folder}/random_keys.parquet'").fetchone()[0]
    if found != GROUPS_COUNT:
        sys.exit(f"{found} different keys instead of {GROUPS_COUNT}")


def scan_pinned(client, query, measured, case, rounds):
    """Measures a scan of columns in memory of the host: kernels, and the bytes there for each second of them."""
    milliseconds, rates = [], []
    for _ in range(rounds):
        plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
        found = re.search(r"([\d.]+) MB on the device \(.*?\) and ([\d.]+) MB on the host, by .*? in ([\d.]+) ms", plan)
        if not found:
            sys.exit(plan)
        on_device, on_host, ms = map(float, found.groups())
        milliseconds.append(ms)
        rates.append(on_host / ms)
    print(f"# {case}: {on_device} MB on the device, {on_host} MB on the host", file=sys.stderr)
    measured(case, "forebay, GPU", "device_ms", milliseconds)
    measured(case, "forebay, GPU", "gb_s", rates)


def cancelled(client, measured, rounds):
    """Measures how long the next query of a client takes after one that the server ended: the GPU is free again."""
    small, milliseconds = TPCH["q6"].strip().rstrip(";"), []
    client.execute(small).fetchall()
    for timeout in (0, *[50] * rounds):
        client.execute(f"SET statement_timeout = {timeout}")
        try:
            client.execute(MANY_PAIRS).fetchall()
            sys.exit("a query with too many matches returned")
        except psycopg.errors.QueryCanceled:
            milliseconds += timed(lambda: client.execute(small).fetchall(), 1)[0]
        except psycopg.Error as error:
            # The first run, which nothing ends, compiles the kernels.
            if timeout or "too many matches" not in str(error):
                raise
    client.execute("SET statement_timeout = 0")
    measured("q6 after pairs that were cancelled", "forebay, GPU", "client_ms", milliseconds)


def idle_after_ms(client, query, how, seconds):
    """Ends a query of another client after some seconds. Returns the milliseconds from then until a short query, whose kernel
    runs behind those of the other on the GPU, has answered."""
    other, errors = psycopg.connect(client.info.dsn, autocommit=True), []
    for setting in SETTINGS:
        other.execute(f"SET forebay.{setting}")
    if how == "statement_timeout":
        other.execute(f"SET statement_timeout = {round(seconds * 1e3)}")

    def run():
        try:
            other.execute(query).fetchall()
        except psycopg.Error as error:
            errors.append(error)
    threads = [threading.Thread(target=run)]
    began = time.perf_counter()
    threads[0].start()
    time.sleep(seconds)
    ended = began + seconds
    if how == "cancel request":
        ended = time.perf_counter()
        threads.append(threading.Thread(target=other.cancel))
        threads[1].start()
    if how == "closed socket":
        ended = time.perf_counter()
        with socket.socket(fileno=os.dup(other.fileno())) as of_other:
            of_other.shutdown(socket.SHUT_RDWR)
    client.execute(SMALL["small"]).fetchall()
    milliseconds = (time.perf_counter() - ended) * 1e3
    for thread in threads:
        thread.join()
    other.close()
    if not errors:
        sys.exit(f"{query}: it ended before the {how}")
    return milliseconds


def cancels(forebay, folder, rounds, device):
    """Measures how long the GPU works on queries that are cancelled."""
    for case, (query, settings) in CANCELLED.items():
        query = query.strip()
        with tempfile.TemporaryDirectory() as data:
            server, client = server_of(forebay, folder, data, *settings, "--tables-gpu-disk-bytes-max", "0")
            set_all(client, *SETTINGS)
            for text in (query, SMALL["small"]):
                client.execute(text).fetchall()
            plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
            print(f"# {case}: {re.findall(r'ran there: .*?kernels? in [0-9.]+ ms', plan)}", file=sys.stderr)
            count = client.execute("SELECT count(*) FROM lineitem").fetchone()[0]

            def measured(what, metric, values):
                line(f"cancel, {case}, {what}", "forebay, GPU", metric, values, count, device)
            times = timed(lambda: client.execute(query).fetchall(), 3)[0]
            measured("not cancelled", "client_ms", times)
            measured("idle GPU", "client_ms", timed(lambda: client.execute(SMALL["small"]).fetchall(), rounds)[0])
            for how in ("cancel request", "statement_timeout", "closed socket"):
                seconds = max(round(statistics.median(times) / 3), 1) / 1e3
                measured(how, "idle_after_ms", [idle_after_ms(client, query, how, seconds) for _ in range(rounds)])
            stop(server, client)


def tpch_hot(client, duck, measured, rounds):
    """Measures the 22 queries of TPC-H. Returns whether all answers are the same."""
    are_same = True
    client.execute("SET forebay.strict = off")
    for number, query in tpch_queries.QUERIES.items():
        case, query = f"tpch-hot {number}", query.strip().rstrip(";")
        client.execute("SET forebay.gpu = on")
        client.execute(query).fetchall()
        times, on_gpu = timed(lambda: client.execute(query).fetchall(), rounds)
        measured(case, "forebay, GPU", "client_ms", times)
        client.execute("SET forebay.gpu = off")
        times, on_cpu = timed(lambda: client.execute(query).fetchall(), 2)
        measured(case, "forebay, CPU", "client_ms", times)
        times, in_duck = timed(lambda: duck.execute(query).fetchall(), rounds)
        measured(case, "duckdb " + duckdb.__version__, "client_ms", times)
        if on_gpu != on_cpu or not are_alike(on_gpu, in_duck):
            print(f"# {case}: answers differ\n{on_gpu}\n{on_cpu}\n{in_duck}"[:4000], file=sys.stderr)
            are_same = False
    return are_same


def main(forebay, folder, rounds="15", *cases):
    rounds = int(rounds)
    device = device_names()[0]
    is_ssb = (pathlib.Path(folder) / "lineorder.parquet").exists()
    fact, queries = ("lineorder", SSB) if is_ssb else ("lineitem", TPCH | SMALL)
    tables = [fact, "customer", "supplier", "part", "date"] if is_ssb else [fact]
    is_hot, is_pinned = cases == ("tpch-hot",), cases == ("scan-pinned",)
    # Room for totals, and none for columns of this size.
    settings = ["--tables-gpu-bytes-max", "64MiB", "--tables-gpu-host-bytes-max", "32GiB"] if is_pinned else []
    # Column files would be written while queries are measured.
    settings += ["--tables-gpu-disk-bytes-max", "0"]
    is_like = cases == ("like",)
    duck = duckdb.connect()
    if is_like:
        fact, tables = "orders", ["orders"]
    if cases == ("floats",):
        fact, tables, queries, cases = "floats", ["floats"], FLOATS, ()
        write_floats(duck, folder)
    if cases == ("texts",):
        fact, tables, queries, cases = "visits", ["visits"], VISITS, ()
        write_visits(duck, folder)
    if cases == ("times",):
        fact, tables, queries, cases = "requests", ["requests"], TIMES, ()
        write_requests(duck, folder)
    if cases == ("groups",):
        fact, tables, queries, cases = "random_keys", ["random_keys"], GROUPS, ()
        write_random_keys(duck, folder)
    if cases == ("rows",):
        queries, cases = ROWS, ()
    is_many, has_windows = cases == ("many",), cases == ("windows",)
    if is_many or has_windows:
        queries, cases = MANY if is_many else WINDOWS, ()
        tables = ["customer", "lineitem", "nation", "orders", "partsupp"] if is_many else ["lineitem", "orders"]
    if is_hot:
        tables = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
    cases = ("q6", "ssb 1.1") if is_pinned else cases
    sums, failed = {}, False
    small = f"{folder}/small.parquet"
    if not is_ssb:
        duck.execute(f"CREATE TABLE small AS SELECT l_quantity FROM '{folder}/lineitem.parquet' LIMIT 1000000")
        duck.execute(f"COPY small TO '{small}'")
    if cases == ("cancel",):
        cancels(forebay, folder, rounds, device)
        return 0
    with tempfile.TemporaryDirectory() as data:
        server, client = server_of(forebay, folder, data, *settings)
        began = time.perf_counter()
        for table in tables:
            columns = "*" if is_hot or is_many or has_windows else COLUMNS[table]
            duck.execute(f"CREATE TABLE {table} AS SELECT {columns} FROM '{folder}/{table}.parquet'")
        print(f"# DuckDB read its tables in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        count = duck.execute(f"SELECT count(*) FROM {fact}").fetchone()[0]
        set_all(client, *SETTINGS)

        def measured(case, engine, metric, values):
            line(case, engine, metric, values, 1_000_000 if case in SMALL else count, device)
            sums.setdefault((engine, metric), []).append((statistics.median(values), min(values), max(values)))

        for case, query in queries.items():
            if cases and case not in cases:
                continue
            query = query.strip().rstrip(";")
            began = time.perf_counter()
            client.execute(query).fetchall()
            print(f"# {case}: first run {time.perf_counter() - began:.2f} s", file=sys.stderr, flush=True)
            times, on_gpu = timed(lambda: client.execute(query).fetchall(), rounds)
            if is_pinned:
                case = f"scan-pinned, {case}"
                scan_pinned(client, query, measured, case, rounds)
            else:
                on_device = device_times(client, query, rounds)
                measured(case, "forebay, GPU", "device_ms", on_device)
                if queries is GROUPS:
                    measured(case, "forebay, GPU", "g_rows_s", [count / ms / 1e6 for ms in on_device])
            measured(case, "forebay, GPU", "client_ms", times)
            client.execute("SET forebay.gpu = off")
            of_cpu = 1 if case in LONG else 2 if is_ssb else 3
            times, on_cpu = timed(lambda: client.execute(query).fetchall(), of_cpu)
            measured(case, "forebay, CPU", "client_ms", times)
            client.execute("SET forebay.gpu = on")
            times, in_duck = timed(lambda: duck.execute(query).fetchall(), 3 if is_ssb else 5)
            measured(case, "duckdb " + duckdb.__version__, "client_ms", times)
            # The CPU rounds sums of floats after each row.
            is_same = are_alike(on_gpu, on_cpu) if queries is FLOATS else on_gpu == on_cpu
            if not is_same or not are_alike(on_gpu, in_duck):
                print(f"# {case}: answers differ\n{on_gpu}\n{on_cpu}\n{in_duck}"[:4000], file=sys.stderr)
                failed = True
        if queries not in (FLOATS, GROUPS, ROWS, MANY, TIMES, VISITS, WINDOWS) and not is_ssb and (not cases or "first-call" in cases):
            client.execute(TPCH["q6"]).fetchall()
            first_calls(client, measured)
        if is_many:
            cancelled(client, measured, rounds)
        if is_like:
            failed = not likes(client, duck, measured, rounds)
        if is_hot:
            failed = not tpch_hot(client, duck, measured, rounds)
        if is_hot or is_ssb and not cases:
            name = "tpch-hot, 22 queries" if is_hot else "ssb, 13 queries"
            for (engine, metric), of_queries in sums.items():
                totals = [sum(column) for column in zip(*of_queries)]
                line(f"{name}, total", engine, metric, totals, count, device)
                if is_hot:
                    means = [statistics.geometric_mean(column) for column in zip(*of_queries)]
                    line(f"{name}, geometric mean", engine, metric, means, count, device)
        stop(server, client)
    return int(failed)


COMMIT = (pathlib.Path(__file__).parent / "commit").read_text().strip() if (
    pathlib.Path(__file__).parent / "commit").exists() else subprocess.run(
    ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
