"""Runs pymongo's own tests in three modes and records the outcomes.

The modes are: directly on FerretDB, on Forebay as a proxy of FerretDB, and on Forebay's own store. Directly and
proxied, a test must have the same outcome. `reasons.toml` must explain each difference between the two, and each
failure on Forebay's own store. Environment variables name the servers' binaries: FOREBAY and FERRETDB.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import pymongo
from servers import start_ferretdb, start_forebay

HERE = Path(__file__).parent
RECORD = HERE.parents[1] / "docs/conformance/pymongo.json"
MODES = ["direct", "proxied", "embedded"]
TEST_SECONDS_MAX = 60
FILE_SECONDS_MAX = 1_200

# The files whose outcomes are counted, and further files that use a server, most of them from the drivers'
# specifications.
COUNTED = ["collection", "cursor", "crud_unified", "collation"]
FURTHER = [
    "bulk", "change_stream", "collection_management", "command_monitoring", "comment", "custom_types", "database",
    "gridfs", "gridfs_bucket", "gridfs_spec", "raw_bson", "retryable_reads_unified", "retryable_writes_unified",
    "run_command", "session", "sessions_unified", "transactions_unified", "unified_format", "versioned_api_integration",
]  # fmt: skip

# These tests check all listeners of a client, so the listener that declares caches would disturb them.
WITHOUT_CACHES = ["session"]

# Forebay's own store runs as a replica set of one member, with a history of changes and fail points, as most tests
# need.
EMBEDDED = ["--memory", "--mongodb-replica-set", "forebay", "--documents-change-history-bytes-max", "256MiB", "--mongodb-test-commands"]

# The tests cannot start without this server parameter, which FerretDB lacks. The patch lets it be absent.
PATCH = ('server_parameters["enableTestCommands"]', 'server_parameters.get("enableTestCommands")')


def unpack(source, folder):
    """Unpacks the tests of the source distribution; the tests use the installed driver."""
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name == "pyproject.toml" or member.name.startswith("test/"):
                archive.extract(member, folder, filter="data")
    start = folder / "test/__init__.py"
    text = start.read_text()
    if text.count(PATCH[0]) != 1:
        raise RuntimeError(f"{start} has changed: see PATCH")
    start.write_text(text.replace(*PATCH))


@contextlib.contextmanager
def server(mode, proxied):
    """Starts an empty server of this mode and yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            if mode == "embedded":
                started.append(start_forebay(*EMBEDDED))
            else:
                started.append(start_ferretdb(folder))
            if mode == "proxied":
                started.append(start_forebay("--memory", "--upstream", started[0].uri, "--upstream-writes", "exclusive", *proxied))
            yield started[-1].address
        finally:
            for process in started:
                process.stop()


def run(folder, name, mode, address, only=()):
    """Runs a file, or only some of its tests. Returns the outcomes: test -> (outcome, reason)."""
    tests = [f"test/{test}" for test in only] or [f"test/test_{name}.py"]
    caches = ["-p", "caches"] if mode == "proxied" and name not in WITHOUT_CACHES else []
    host, port = address.split(":")
    lines = folder / "outcomes.jsonl"
    lines.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", *tests, "-q", "-o", "addopts=", "-m", "default",
        "-p", "no:cacheprovider", "-p", "outcomes", *caches, "--timeout", str(TEST_SECONDS_MAX),
    ]  # fmt: skip
    environment = os.environ | {"DB_IP": host, "DB_PORT": port, "OUTCOMES": str(lines), "PYTHONPATH": str(HERE)}
    with open(folder / "pytest.log", "w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=FILE_SECONDS_MAX)
    found = outcomes(map(json.loads, lines.read_text().splitlines())) if lines.exists() else {}
    if not found:
        raise RuntimeError(f"no test of {name} began:\n{(folder / 'pytest.log').read_text()}")
    return found


def outcomes(entries):
    """Reads the entries of the plugin. Returns an outcome also for tests that did not start or did not end."""
    found = {}
    for entry in entries:
        found |= {test: ("error", "the process ended before it") for test in entry.get("collected", [])}
        if "started" in entry:
            found[entry["started"]] = ("timeout", "the process ended in it")
        if "test" in entry:
            found[entry["test"]] = (entry["outcome"], entry["reason"])
    return {test.removeprefix("test/"): outcome for test, outcome in found.items()}


def second_chance(folder, name, direct, proxied, reasons):
    """Reruns some tests directly on FerretDB: those that failed there but passed proxied, if no entry of `reasons`
    explains the failure. They may have failed by chance. Returns the new outcomes."""
    tests = [
        test
        for test, (outcome, error) in direct.items()
        if outcome not in ("passed", "skipped")
        and proxied.get(test, ("absent",))[0] == "passed"
        and reason_for(test, error, reasons["proxied"]) is None
    ]
    if not tests:
        return {}
    print(f"{name:28} direct     again:", *tests, flush=True)
    with server("direct", ()) as address:
        return run(folder, name, "direct", address, tests)


def run_all(source, files, proxied, reasons):
    """Runs all files, each with new servers. Returns the outcomes (mode -> test -> (outcome, reason)), and the
    number of reads for each way in which the proxy answered them."""
    found = {mode: {} for mode in MODES}
    answered = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        unpack(source, Path(folder))
        for name in files:
            of_file = {}
            for mode in MODES:
                with server(mode, proxied) as address:
                    of_file[mode] = run(Path(folder), name, mode, address)
                    if mode == "proxied":
                        answered += counters(address)
                counts = collections.Counter(outcome for outcome, _ in of_file[mode].values())
                print(f"{name:28} {mode:10}", dict(counts), flush=True)
            of_file["direct"] |= second_chance(Path(folder), name, of_file["direct"], of_file["proxied"], reasons)
            for mode in MODES:
                found[mode] |= of_file[mode]
    return found, dict(answered)


def counters(address):
    """Returns the number of reads on cached collections, for each way in which the proxy answered them."""
    with pymongo.MongoClient(f"mongodb://{address}") as client:
        return collections.Counter(client.admin.command("serverStatus")["forebayUpstream"])


def reason_for(test, error, reasons):
    """Returns the reason of the first entry whose patterns match the name and the error of a test."""
    for entry in reasons:
        if re.search(entry.get("test", ""), test) and re.search(entry.get("error", ""), error):
            return entry["reason"]
    return None


def summary(found, files, reasons):
    """Returns the summary of the outcomes of these files, for the record."""
    direct, proxied, embedded = (
        {test: outcome for test, outcome in found[mode].items() if file_of(test) in files} for mode in MODES
    )
    failed = {test: error for test, (outcome, error) in embedded.items() if outcome not in ("passed", "skipped")}
    reason = {test: reason_for(test, error, reasons["embedded"]) for test, error in sorted(failed.items())}
    return {
        "tests": len(direct),
        "direct_passed": passed(direct),
        "proxied_differs": sorted(test for test in direct | proxied if not same(direct, proxied, test)),
        "embedded_passed": passed(embedded),
        "embedded_failed": reason,
    }


def file_of(test):
    return re.match(r"test_(\w+)\.py", test)[1]


def passed(of_mode):
    return sum(outcome == "passed" for outcome, _ in of_mode.values())


def same(direct, proxied, test):
    """Returns whether the outcomes of a test are equal. The errors need not be, because they contain ports,
    addresses and times."""
    return direct.get(test, ("absent",))[0] == proxied.get(test, ("absent",))[0]


def complaints(found, record, reasons):
    """Yields unexplained differences between proxied and direct, and unexplained failures on Forebay's own store."""
    if not record["proxied_reads"].get("answered"):
        yield "proxied: no cache has answered a read"
    for part in (record, record["further"]):
        for test in part["proxied_differs"]:
            direct, proxied = (found[mode].get(test, ("absent", "")) for mode in ("direct", "proxied"))
            if proxied[0] != "passed" or reason_for(test, direct[1], reasons["proxied"]) is None:
                yield f"{test}: direct {direct}, proxied {proxied}"
        for test, reason in part["embedded_failed"].items():
            if reason is None:
                yield f"{test}: no entry of reasons.toml explains {found['embedded'][test]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="pymongo's source distribution")
    parser.add_argument("--proxied", default="", help="further arguments of `forebay serve --upstream`, such as caches")
    parser.add_argument("--files", nargs="*", help="only these (`collection` is test_collection.py); nothing is recorded")
    parser.add_argument("--all-outcomes", type=Path, help="write the outcome and error of each test in each mode to this file")
    options = parser.parse_args()
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())
    found, answered = run_all(options.source, options.files or COUNTED + FURTHER, options.proxied.split(), reasons)
    record = {"source": options.source.name, "proxied": options.proxied, "proxied_reads": answered}
    record |= summary(found, COUNTED, reasons) | {"further": summary(found, FURTHER, reasons)}
    if options.all_outcomes:
        options.all_outcomes.write_text(json.dumps(found, indent=1))
    if not options.files:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    wrong = list(complaints(found, record, reasons))
    print(*wrong, f"{record['embedded_passed']} of {record['tests']} passed on our own store", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
