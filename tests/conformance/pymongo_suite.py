"""Runs pymongo's own tests three ways and keeps what came out of it.

Straight to FerretDB, through Forebay to FerretDB, and against Forebay's own store. A test must come out of Forebay as
it comes out of FerretDB; where it does not, and where our own store fails it, `reasons.toml` must say why. The
environment names the servers' binaries: FOREBAY and FERRETDB.
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
KEPT = HERE.parents[1] / "docs/conformance/pymongo.json"
MODES = ["straight", "through", "embedded"]
TEST_SECONDS_MAX = 60
FILE_SECONDS_MAX = 1_200

# The files by which servers are compared; and more that speak to the server, most from the drivers' specifications.
COUNTED = ["collection", "cursor", "crud_unified", "collation"]
FURTHER = [
    "bulk", "change_stream", "collection_management", "command_monitoring", "comment", "custom_types", "database",
    "gridfs", "gridfs_bucket", "gridfs_spec", "raw_bson", "retryable_reads_unified", "retryable_writes_unified",
    "run_command", "session", "sessions_unified", "transactions_unified", "unified_format", "versioned_api_integration",
]  # fmt: skip

# Its tests look through all listeners of a client, of which the one that declares caches is none of theirs.
WITHOUT_CACHES = ["session"]

# Most tests run against our own store as a member of a replica set with a history of changes and fail points.
EMBEDDED = ["--memory", "--mongodb-replica-set", "forebay", "--documents-change-history-bytes-max", "256MiB", "--mongodb-test-commands"]

# FerretDB does not have this parameter, and without it every test ends before it begins.
PATCH = ('server_parameters["enableTestCommands"]', 'server_parameters.get("enableTestCommands")')


def unpack(source, folder):
    """Takes the tests out of the source distribution; the driver itself is the installed one."""
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name == "pyproject.toml" or member.name.startswith("test/"):
                archive.extract(member, folder, filter="data")
    start = folder / "test/__init__.py"
    text = start.read_text()
    if text.count(PATCH[0]) != 1:
        raise RuntimeError(f"{start} is not the one that is known: look at PATCH")
    start.write_text(text.replace(*PATCH))


@contextlib.contextmanager
def server(mode, through):
    """The address of a server of this mode with nothing in it."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            if mode == "embedded":
                started.append(start_forebay(*EMBEDDED))
            else:
                started.append(start_ferretdb(folder))
            if mode == "through":
                started.append(start_forebay("--memory", "--upstream", started[0].uri, "--upstream-writes", "exclusive", *through))
            yield started[-1].address
        finally:
            for process in started:
                process.stop()


def run(folder, name, mode, address, only=()):
    """The outcomes of one file, or only of some of its tests: test -> (outcome, reason)."""
    tests = [f"test/{test}" for test in only] or [f"test/test_{name}.py"]
    caches = ["-p", "caches"] if mode == "through" and name not in WITHOUT_CACHES else []
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
    """What the plugin wrote; a test that never ended, or never began, has an outcome too."""
    found = {}
    for entry in entries:
        found |= {test: ("error", "the process ended before it") for test in entry.get("collected", [])}
        if "started" in entry:
            found[entry["started"]] = ("timeout", "the process ended in it")
        if "test" in entry:
            found[entry["test"]] = (entry["outcome"], entry["reason"])
    return {test.removeprefix("test/"): outcome for test, outcome in found.items()}


def second_chance(folder, name, straight, through, reasons):
    """What comes out of tests that FerretDB failed, Forebay passed and no entry of `reasons` explains, when FerretDB has them
    again by themselves: it may have failed by chance."""
    tests = [
        test
        for test, (outcome, error) in straight.items()
        if outcome not in ("passed", "skipped")
        and through.get(test, ("absent",))[0] == "passed"
        and reason_for(test, error, reasons["through"]) is None
    ]
    if not tests:
        return {}
    print(f"{name:28} straight   again:", *tests, flush=True)
    with server("straight", ()) as address:
        return run(folder, name, "straight", address, tests)


def run_all(source, files, through, reasons):
    """The outcomes of all files: mode -> test -> (outcome, reason); and how many reads the caches answered. Every file has
    servers of its own."""
    found = {mode: {} for mode in MODES}
    answered = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        unpack(source, Path(folder))
        for name in files:
            of_file = {}
            for mode in MODES:
                with server(mode, through) as address:
                    of_file[mode] = run(Path(folder), name, mode, address)
                    if mode == "through":
                        answered += counters(address)
                counts = collections.Counter(outcome for outcome, _ in of_file[mode].values())
                print(f"{name:28} {mode:10}", dict(counts), flush=True)
            of_file["straight"] |= second_chance(Path(folder), name, of_file["straight"], of_file["through"], reasons)
            for mode in MODES:
                found[mode] |= of_file[mode]
    return found, dict(answered)


def counters(address):
    """What became of reads on collections with caches."""
    with pymongo.MongoClient(f"mongodb://{address}") as client:
        return collections.Counter(client.admin.command("serverStatus")["forebayUpstream"])


def reason_for(test, error, reasons):
    """Why a test fails: the first entry whose patterns are found in its name and its error."""
    for entry in reasons:
        if re.search(entry.get("test", ""), test) and re.search(entry.get("error", ""), error):
            return entry["reason"]
    return None


def summary(found, files, reasons):
    """What is kept of these files."""
    straight, through, embedded = (
        {test: outcome for test, outcome in found[mode].items() if file_of(test) in files} for mode in MODES
    )
    failed = {test: error for test, (outcome, error) in embedded.items() if outcome not in ("passed", "skipped")}
    reason = {test: reason_for(test, error, reasons["embedded"]) for test, error in sorted(failed.items())}
    return {
        "tests": len(straight),
        "straight_passed": passed(straight),
        "through_differs": sorted(test for test in straight | through if not same(straight, through, test)),
        "embedded_passed": passed(embedded),
        "embedded_failed": reason,
    }


def file_of(test):
    return re.match(r"test_(\w+)\.py", test)[1]


def passed(of_mode):
    return sum(outcome == "passed" for outcome, _ in of_mode.values())


def same(straight, through, test):
    """Did a test come out the same way? Errors may differ in words: a port, an address, a time."""
    return straight.get(test, ("absent",))[0] == through.get(test, ("absent",))[0]


def complaints(found, kept, reasons):
    """What must not be: differences through Forebay and failures of our store that nobody has explained."""
    if not kept["through_reads"].get("answered"):
        yield "through: no cache has answered anything"
    for part in (kept, kept["further"]):
        for test in part["through_differs"]:
            straight, through = (found[mode].get(test, ("absent", "")) for mode in ("straight", "through"))
            if through[0] != "passed" or reason_for(test, straight[1], reasons["through"]) is None:
                yield f"{test}: straight {straight}, through {through}"
        for test, reason in part["embedded_failed"].items():
            if reason is None:
                yield f"{test}: no entry of reasons.toml explains {found['embedded'][test]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="pymongo's source distribution")
    parser.add_argument("--through", default="", help="further arguments of `forebay serve --upstream`, such as caches")
    parser.add_argument("--files", nargs="*", help="only these (`collection` is test_collection.py); nothing is kept")
    parser.add_argument("--all-outcomes", type=Path, help="write every test's outcome and error in every mode here")
    options = parser.parse_args()
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())
    found, answered = run_all(options.source, options.files or COUNTED + FURTHER, options.through.split(), reasons)
    kept = {"source": options.source.name, "through": options.through, "through_reads": answered}
    kept |= summary(found, COUNTED, reasons) | {"further": summary(found, FURTHER, reasons)}
    if options.all_outcomes:
        options.all_outcomes.write_text(json.dumps(found, indent=1))
    if not options.files:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    wrong = list(complaints(found, kept, reasons))
    print(*wrong, f"{kept['embedded_passed']} of {kept['tests']} passed on our own store", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
