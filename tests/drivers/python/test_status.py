"""The status listener: the metrics for Prometheus, and the page in a browser."""

import html
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pymongo
import pytest
from conftest import start_forebay
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

# Users choose names. Without escaping, these would end a label, a tag and a string.
COLLECTION = 'things"<img src=x onerror=alert(1)>'
FIELD = 'na"me\\<script>alert(2)</script>'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROWS = 3_000


@pytest.fixture(scope="module")
def watched():
    """The address of a server with a status listener and a cached field with a hostile name."""
    server = start_forebay(
        "--memory", "--devices", "host:3", "--documents-bucket-values-max", "100", "--status-listen", "127.0.0.1:0"
    )
    address = next(found[1] for line in server.lines if (found := re.search(r"status page is at (http://\S+)", line)))
    with pymongo.MongoClient(server.uri) as client:
        things = client.shop[COLLECTION]
        things.insert_many({FIELD: f"item-{n}"} for n in range(ROWS))
        things.create_index([(FIELD, "cache")])
        while is_building(things):
            pass
        assert things.count_documents({FIELD: {"$regex": "7.*9"}}) > 0
        assert things.count_documents({"other": 5}) == 0
        yield address, things
    server.stop()


def is_building(things):
    stats = things.aggregate([{"$indexStats": {}}])
    return any(index.get("cache", {}).get("state") == "building" for index in stats)


def get(address, path):
    with urllib.request.urlopen(address + path, timeout=60) as reply:
        return reply.headers, reply.read().decode()


def families(address):
    """Returns the metrics by name, parsed with Prometheus' own parser."""
    headers, text = get(address, "metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family):
    return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}


def test_every_metric_has_a_type_a_help_and_a_conventional_name(watched):
    found = families(watched[0])
    assert len(found) > 30
    for family in found.values():
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert family.documentation.endswith("."), family.name
        assert re.match(r"forebay_|process_", family.name)
        # Counters end in _total, which the parser removes. Units are base units.
        assert not re.search(r"_(ms|millis|micros|us|kib|mib|mb|kb)\b", family.name)
        labels = [(sample.name, tuple(sample.labels.items())) for sample in family.samples]
        assert len(labels) == len(set(labels)), f"a sample twice: {family.name}"


def buckets_by_device(found):
    return {dict(labels)["device"]: count for labels, count in values(found["forebay_documents_cache_buckets"]).items()}


def test_metrics_agree_with_the_server(watched):
    address, things = watched
    found = families(address)
    # Inserted values move to devices in the background.
    while "host" in buckets_by_device(found):
        found = families(address)
    field = (("field", FIELD), ("namespace", f"shop.{COLLECTION}"))
    assert values(found["forebay_documents_cache_values"])[field] == ROWS
    assert values(found["forebay_documents_cache_delta_values"])[field] == 0
    by_device = buckets_by_device(found)
    listed = things.database.client.admin.command("forebayBuckets", f"shop.{COLLECTION}.{FIELD}")["buckets"]
    assert sum(by_device.values()) == len(listed)
    for device, count in by_device.items():
        assert count == sum(bucket["device"] == device for bucket in listed)
    assert values(found["forebay_documents_search_cache_not_used"])[(("reason", "no-cached-field"),)] >= 1
    assert values(found["forebay_device_events"])[(("event", "joined"),)] == 3


def test_histograms_add_up(watched):
    family = families(watched[0])["forebay_documents_search_duration_seconds"]
    series = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", sample.name)
        series.setdefault(tuple(sorted(labels.items())), {})[bound] = sample.value
    assert len(series) == 12
    for figures in series.values():
        counts = [value for bound, value in figures.items() if not bound.startswith("forebay")]
        assert counts == sorted(counts)
        assert figures["+Inf"] == figures["forebay_documents_search_duration_seconds_count"]
    searched = [figures for figures in series.values() if figures["+Inf"] > 0]
    assert searched and all(figures["forebay_documents_search_duration_seconds_sum"] > 0 for figures in searched)


def test_other_sites_cannot_read(watched):
    request = urllib.request.Request(watched[0] + "status.json", headers={"Host": "rebound.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 403
    headers, _ = get(watched[0], "status.json")
    assert "Access-Control-Allow-Origin" not in headers


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    """The addresses of the status page and of SQL, of a server with two tables that logs every statement."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "people.csv").write_text("name,age\nAda,36\nAlan,41\n")
    (folder / "things.csv").write_text("thing\n1\n")
    server = start_forebay(
        "--memory", "--status-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0",
        "--tables", str(folder), "--tables-slow-statement-ms", "0",
    )  # fmt: skip
    page = next(found[1] for line in server.lines if (found := re.search(r"status page is at (http://\S+)", line)))
    database = next(found[1] for line in server.lines if (found := re.search(r"(postgresql://\S+)", line)))
    yield page, database
    server.stop()


def tables_of(page):
    return json.loads(get(page, "status.json")[1])["tables"]


def cancel(page, number, headers):
    request = urllib.request.Request(f"{page}cancel?statement={number}", headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_a_running_statement_is_shown_and_cancelled(sql):
    page, database = sql
    text = "SELECT count(*) FROM generate_series(1, 1000000000000)"
    failed = []

    def run():
        with psycopg.connect(database, user="ada") as connection:
            try:
                connection.execute(text)
            except psycopg.errors.QueryCanceled as error:
                failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: any(one["rowsRead"] > 0 for one in tables_of(page)["running"]))
    (running,) = tables_of(page)["running"]
    assert (running["text"], running["user"]) == (text, "ada")
    assert running["rowsToRead"] is None, "a function's rows are not known"
    # Pages of other sites cannot send the header.
    for number, headers, code in [
        (running["number"], {}, 400),
        (running["number"], {"X-Forebay": "cancel", "Host": "rebound.example"}, 403),
        (running["number"] + 1, {"X-Forebay": "cancel"}, 404),
        ("x", {"X-Forebay": "cancel"}, 400),
    ]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            cancel(page, number, headers)
        assert refused.value.code == code
    assert thread.is_alive()
    assert cancel(page, running["number"], {"X-Forebay": "cancel"}) == {"cancelled": True}
    thread.join()
    assert failed == ["canceling statement due to an administrator's request"]
    after = tables_of(page)
    assert after["running"] == []
    assert (text, "stopped") in [(one["text"], one["ending"]) for one in after["slowStatements"]]


def test_tables_and_statements_are_counted(sql):
    page, database = sql
    before = families(page)
    with psycopg.connect(database, user="ada", autocommit=True) as connection:
        for _ in range(3):
            connection.execute("SELECT name FROM people").fetchall()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / (thing - 1) FROM things")
        assert values(families(page)["forebay_tables_sessions"])[()] == 1
    after = families(page)

    def more(name, *labels):
        return values(after[name])[labels] - values(before[name])[labels]

    assert more("forebay_tables_statements", ("ending", "done")) == 3
    assert more("forebay_tables_statements", ("ending", "failed")) == 1
    assert more("forebay_tables_plans", ("plan", "found")) == 2
    assert more("forebay_tables_rows") == 6
    assert more("forebay_tables_statement_seconds") > 0
    listed = {table["name"]: table["bytes"] for table in tables_of(page)["tables"]}
    assert listed == {"people": 24, "things": 8}
    assert tables_of(page)["gpus"] == []


def test_the_memory_of_a_device_is_that_of_its_tenants(watched):
    page, _ = watched
    found = families(page)
    # Inserted values move to devices in the background.
    while "host" in buckets_by_device(found):
        found = families(page)
    used = values(found["forebay_device_pool_used_bytes"])
    for (labels, all_bytes) in values(found["forebay_device_memory_used_bytes"]).items():
        device = dict(labels)["device"]
        parts = {dict(labels)["tenant"]: count for labels, count in used.items() if dict(labels)["device"] == device}
        assert set(parts) == {"documents", "other"}
        assert parts["documents"] > 0 and sum(parts.values()) == all_bytes


NODE = shutil.which("node")


def drawn(page, sample):
    """Draws a sample with the script of the page. Returns the texts of the elements by their ids."""
    harness = Path(__file__).with_name("page.mjs")
    given = json.dumps({"script": get(page, "status.js")[1], "sample": sample})
    done = subprocess.run([NODE, harness], input=given, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="skipped: no node")
def test_the_page_shows_the_memory_and_the_columns_of_a_gpu(sql):
    page, _ = sql
    sample = json.loads(get(page, "status.json")[1])
    shown = drawn(page, sample)
    assert shown["sql-columns"]["hidden"] and "free" in shown["devices"]["text"]
    gib = 1 << 30
    tenants = [("documents", 2 * gib, 64 * gib), ("tables", 5 * gib, 32 * gib), ("other", 0, 64 * gib)]
    sample["devices"][0] |= {
        "memoryBudgetBytes": 64 * gib,
        "memoryUsedBytes": 7 * gib,
        "tenants": [{"name": name, "usedBytes": used, "maxBytes": limit} for name, used, limit in tenants],
    }
    hostile = "<img src=x onerror=alert(1)>"
    column = {"rows": 6_000_000, "hostBytes": 0, "diskBytes": 0, "unusedSeconds": 3.2}
    declared = {"name": "price", "table": "public.sales", "file": "/d/sales-x/1.parquet", "isDeclared": True}
    largest = [
        column | declared | {"deviceBytes": 4 * gib},
        column | {"name": hostile, "table": None, "file": "/files/a.parquet", "deviceBytes": 0, "hostBytes": gib},
    ]
    figures = {"aggregates": 3, "onCpu": 1, "reasons": {"a reason": 1}, "diskBytes": 9 * gib}
    gpu = figures | {"device": "cuda:0", "columns": 12, "columnBytes": 5 * gib, "hostBytes": gib}
    sample["tables"]["gpus"] = [gpu]
    sample["tables"]["gpuColumns"] = [
        {"device": "cuda:0", "largest": largest, "leftOut": 10, "leftOutBytes": 3 << 20}
    ]
    shown = drawn(page, sample)
    devices = shown["devices"]["text"]
    for expected in ["documents 2.0 GiB", "tables 5.0 GiB of 32.0 GiB", "57.0 GiB free"]:
        assert expected in devices, devices
    assert "other" not in devices, "it uses nothing"
    assert not shown["sql-columns"]["hidden"]
    about, columns = shown["sql-columns-about"]["text"], shown["gpu-columns"]["text"]
    assert about == "cuda:0: 12 columns, 5.0 GiB on the GPU, 1.0 GiB on the host; 9.0 GiB of column files"
    for expected in [
        "price sales · declared 6M 4.0 GiB – – 3 s ago",
        f"{hostile} /files/a.parquet 6M – 1.0 GiB – 3 s ago",
        "10 more columns on cuda:0, 3.0 MiB.",
    ]:
        assert expected in columns, columns
    # A page that other machines can reach has no names.
    sample["tables"]["gpuColumns"] = []
    shown = drawn(page, sample)
    assert shown["gpu-columns"]["text"] == "Columns are shown to clients of the server's machine."


def browse(*arguments):
    """Runs Chromium. Returns its output, and the console output of the page."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--virtual-time-budget=7000",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="skipped: no chromium")
def test_a_browser_shows_the_page(watched, tmp_path):
    address, _ = watched
    page, complaints = browse("--window-size=1180,1500", "--dump-dom", f"--user-data-dir={tmp_path}", address)
    assert not complaints, complaints
    assert int(re.search(r'data-samples="(\d+)"', page)[1]) >= 2, "the page asks again"
    text = html.unescape(re.sub(r"<script[^>]*></script>|<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))
    status = json.loads(get(address, "status.json")[1])
    for expected in ["serving", "host:0", "host:1", "host:2", "cache, ", "scan of the store", "joined"]:
        assert expected in text, f"{expected} in {text}"
    for device in status["devices"]:
        assert f"{device['buckets']} buckets" in text
    # Hostile names are text: they add no elements.
    assert "<img" not in page and "alert(2)</script>" not in page
    assert html.escape(COLLECTION, quote=False) in page and html.escape(FIELD, quote=False) in page


@pytest.mark.skipif(CHROMIUM is None, reason="skipped: no chromium")
def test_a_browser_shows_tables_and_statements(sql, tmp_path):
    page, database = sql
    hostile = "SELECT '<img src=x onerror=alert(1)>' FROM people"
    with psycopg.connect(database, user="ada") as connection:
        connection.execute(hostile)
    shown, complaints = browse("--window-size=1180,1500", "--dump-dom", f"--user-data-dir={tmp_path}", page)
    assert not complaints, complaints
    assert "<img" not in shown and html.escape(hostile, quote=False) in shown
    for expected in ["people", "24 B", "No statement runs."]:
        assert expected in shown
