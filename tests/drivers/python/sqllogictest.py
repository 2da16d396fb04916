"""Runs the files of the crate `datafusion-sqllogictest` through Forebay's door for PostgreSQL's clients.

`python sqllogictest.py [--write] [PATTERN...]` runs the files whose name contains a pattern, all by default, and prints
the records that fail with the reasons of `slt_reasons.toml`. `--write` writes `docs/conformance/sqllogictest.json` again.
`--gpu` runs them on the first GPU, too, where every query waits for its columns and kernels, and exits with 1 if a record
gives another answer there. Statements run with `forebay.strict = on`; those that it refuses run again without, and are
counted by the reason. It does not need PostgreSQL.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request

import psycopg
import slt_files
import slt_values
from psycopg.pq import DiagnosticField, ExecStatus
from postgres_cluster import Cluster
from servers import start_tables

CRATES = ("datafusion-sqllogictest", "datafusion-datasource-arrow")
VERSION = "55.2.0"
FOLDER = pathlib.Path(__file__).parent
OUTCOMES = FOLDER.parents[2] / "docs/conformance/sqllogictest.json"
REASONS = FOLDER / "slt_reasons.toml"
# Limits of a statement, and of the memory of a server.
STATEMENT_TIMEOUT = "30s"
MEMORY = "1GiB"
# Cores of a server, and processes that run files.
CORES = 2
SETUP = ("SET timezone = 'UTC'", f"SET statement_timeout = '{STATEMENT_TIMEOUT}'")
ON_CPU = ("--devices", "host:1")
ON_GPU = ("--devices", "cuda:0", "--device-memory-bytes", "1GiB", "--status-listen", "127.0.0.1:0")
SETUP_OF_GPU = ("SET forebay.gpu = on", "SET forebay.compile = wait")
STRICT = "SET forebay.strict = {}"
REFUSED = "the GPU does not compute a part of the plan: "
LOST = "lost"
UNKNOWN = "no reason is known"
INTERNAL = "XX"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A record that did not give what it should.

    `kind` is `error` (an error in place of an answer), `answer` (an answer in place of an error), `rows`, `order`,
    `types`, `count`, or `lost` (the server closed the connection, or had an internal error). `is_as_postgres` is whether
    PostgreSQL was asked, and gave the same rows or an error of the same class.
    """

    record: slt_files.Record
    kind: str
    code: str = ""
    message: str = ""
    found: tuple = ()
    is_as_postgres: bool = False

    def place(self):
        return f"{self.record.file}:{self.record.line}"


@dataclasses.dataclass
class Outcome:
    """What a file gave: the number of its records, those that fail, of the aggregates over files those that a GPU and
    the CPU computed, and the reasons of statements that ran on the CPU alone."""

    file: str
    records: int
    failures: list
    aggregates: collections.Counter
    refused: collections.Counter


def fetch(crate):
    """Returns the folder of a crate's source in Cargo's cache, to which Cargo downloads it if necessary."""
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    pattern = f"registry/src/*/{crate}-{VERSION}"
    if not any(home.glob(pattern)):
        # It unpacks the crate to read its manifest.
        subprocess.run(["cargo", "info", "--quiet", f"{crate}@{VERSION}"], check=True, capture_output=True, cwd="/")
    return next(home.glob(pattern))


def lay_out(folder):
    """Copies the crates to where their files expect each other. Returns the folder in which the server runs."""
    for crate in CRATES:
        source, target = fetch(crate), folder / "datafusion" / crate.removeprefix("datafusion-")
        for part in ("data", "test_files", "tests/data"):
            if (source / part).exists():
                shutil.copytree(source / part, target / part)
    return folder / "datafusion" / CRATES[0].removeprefix("datafusion-")


class Door:
    """A connection to a server, on which records run. `refused` counts the reasons why a GPU did not compute a statement
    that had to run there."""

    def __init__(self, uri, setup, refused=None):
        self.sql = psycopg.connect(uri, autocommit=True)
        self.refused = refused
        for statement in setup:
            self.sql.execute(statement)

    def run(self, statement):
        """Returns rows as texts, the types of columns, the count of written rows, and the code and message of an error."""
        if self.refused is None:
            return self._run(statement)
        self._run(STRICT.format("on"))
        answer = self._run(statement)
        if REFUSED not in answer[4]:
            return answer
        self.refused[answer[4].split(REFUSED)[1]] += 1
        self._run(STRICT.format("off"))
        return self._run(statement)

    def _run(self, statement):
        result = self.sql.pgconn.exec_params(statement.encode(), [])
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            columns = range(result.nfields)
            cells = ([result.get_value(row, column) for column in columns] for row in range(result.ntuples))
            rows = [[None if cell is None else cell.decode() for cell in row] for row in cells]
            is_written = (result.command_status or b"").split()[0] in (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY")
            count = result.command_tuples if is_written else None
            return rows, [result.ftype(column) for column in columns], count, "", ""
        if self.sql.pgconn.status != psycopg.pq.ConnStatus.OK:
            return [], [], None, LOST, "the connection was lost"
        if result.status != ExecStatus.FATAL_ERROR:
            self.sql.pgconn.put_copy_end(b"tests do not copy")
            while self.sql.pgconn.get_result():
                pass
            return [], [], None, "0A000", f"the statement copies: {result.status}"
        code = result.error_field(DiagnosticField.SQLSTATE) or LOST.encode()
        message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        return [], [], None, code.decode(), message.decode()


def written(record, rows, types, count, places=None):
    """Returns an answer as the lines of the files. A statement that writes has the number of its rows as an answer."""
    if not types:
        return [] if count is None else [str(count)]
    return slt_values.written(rows, types, record.sort, record.hash_threshold, places)


def is_same(record, lines):
    """Returns whether lines are those that a record expects. `<slt:ignore>` stands for any text."""
    expected = [line.rstrip() for line in record.lines]
    if any("<slt:ignore>" in line for line in expected):
        pattern = ".*".join(map(re.escape, "\n".join(expected).split("<slt:ignore>")))
        return re.match(pattern, "\n".join(lines), re.DOTALL) is not None
    if record.sort != "nosort":
        return sorted(expected) == sorted(lines)
    return expected == lines


def has_types(record, types):
    """Returns whether columns have the types that a record expects. Other types of DataFusion are any of the door."""
    letters = slt_values.letters(types)
    same = (expected in ("?", letter) for expected, letter in zip(record.types, letters))
    return not types or (len(letters) == len(record.types) and all(same))


def judge(record, answer):
    """Returns how an answer fails, or `None`."""
    rows, types, count, code, message = answer
    if code == LOST or code.startswith(INTERNAL):
        return Failure(record, "lost", code, message)
    if record.expects == "error":
        lines = tuple(written(record, rows, types, count))
        return None if code else Failure(record, "answer", found=lines)
    if code:
        return Failure(record, "error", code, message)
    if record.expects == "count" and (count or 0) != record.count:
        return Failure(record, "count", found=(str(count),))
    if record.expects != "rows":
        return None
    places = slt_values.PLACES_OF_SPARK if record.file.startswith("spark/") else slt_values.PLACES
    lines = written(record, rows, types, count)
    if not is_same(record, lines) and not is_same(record, written(record, rows, types, count, places)):
        kind = "order" if sorted(lines) == sorted(record.lines) else "rows"
        return Failure(record, kind, found=tuple(lines))
    if not has_types(record, types):
        return Failure(record, "types", found=(slt_values.letters(types),))
    return None


class Postgres:
    """PostgreSQL, which runs a file beside the door, in its own schema. Does nothing without a connection string."""

    # Statements that only DataFusion has, or that reach for files.
    OTHERS = re.compile(r"\s*(create\s+external|(re)?set\s+datafusion|explain|copy)\b", re.IGNORECASE)

    def __init__(self, uri, name):
        schema = re.sub(r"\W", "_", f"of_{name}")
        setup = (f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}", f"SET search_path = {schema}")
        self.door = Door(uri, (*SETUP, *setup)) if uri else None

    def run(self, record):
        """Returns the answer to a record, or `None`."""
        if self.door is None or self.OTHERS.match(record.sql):
            return None
        return self.door.run(record.sql)


def is_same_answer(record, ours, theirs):
    """Returns whether two answers have the same rows, or errors of the same class."""
    if ours[3] or theirs[3]:
        return ours[3][:2] == theirs[3][:2]
    lines, others = (written(record, *answer[:3], slt_values.PLACES) for answer in (ours, theirs))
    return lines == others or (record.sort != "nosort" and sorted(lines) == sorted(others))


def run_file(name, folder, postgres_uri=None, settings=ON_CPU):
    """Runs a file on its own server with settings, in a folder that `lay_out` made, and on PostgreSQL if there is an
    address."""
    (folder / "test_files/scratch" / pathlib.Path(name).stem).mkdir(parents=True, exist_ok=True)
    records = slt_files.records(folder / "test_files", name)
    postgres = Postgres(postgres_uri, name)
    setup = SETUP + SETUP_OF_GPU * (settings == ON_GPU)
    server, door, failures, refused = None, None, [], collections.Counter()
    for record in records:
        if server is None or server.process.poll() is not None:
            server, door = start(folder, settings), None
        door = door or Door(server.sql, setup, refused if settings == ON_GPU else None)
        ours, theirs = door.run(record.sql), postgres.run(record)
        failure = judge(record, ours)
        if failure and theirs and is_same_answer(record, ours, theirs):
            failure = dataclasses.replace(failure, is_as_postgres=True)
        if failure:
            failures.append(failure)
            door = None if failure.code == LOST else door
    aggregates = collections.Counter()
    if server:
        aggregates = counted_aggregates(server) if settings == ON_GPU else aggregates
        server.stop()
    return Outcome(name, len(records), failures, aggregates, refused)


def start(folder, settings):
    settings = ("--memory", "--memory-bytes-max", MEMORY, *settings)
    return start_tables(*settings, "--tables-paths", str(folder.parents[1]), folder=folder)


def counted_aggregates(server):
    """Returns the numbers of aggregates that devices of a server have computed."""
    page = next(found[1] for line in server.lines if (found := re.search(r"status page is at (http://\S+)", line)))
    with urllib.request.urlopen(page + "metrics") as metrics:
        found = re.findall(r'forebay_tables_aggregates_total\{device="(\S+)"\} (\d+)', metrics.read().decode())
    return collections.Counter({device: int(count) for device, count in found})


def limit_cores():
    """Limits this process and its servers to two cores, because plans, and the order of rows, depend on their number."""
    cores = sorted(os.sched_getaffinity(0))
    first = os.getpid() % max(1, len(cores) // CORES) * CORES
    os.sched_setaffinity(0, cores[first : first + CORES])


def run_files(names, workers=CORES, postgres_uri=None, settings=ON_CPU):
    """Yields the outcomes of files, in their order, which processes run in parallel."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        place = lay_out(pathlib.Path(folder))
        run = functools.partial(run_file, folder=place, postgres_uri=postgres_uri, settings=settings)
        with concurrent.futures.ProcessPoolExecutor(workers, spawn, limit_cores) as pool:
            yield from pool.map(run, names)


def names():
    """Returns the names of all files."""
    return slt_files.names(fetch(CRATES[0]) / "test_files")


class Reasons:
    """Why records fail: the first rule whose patterns are found in the file, the statement, the error and the kind."""

    def __init__(self):
        self.rules = tomllib.loads(REASONS.read_text(encoding="utf-8"))["rule"]

    def reason(self, failure):
        """Returns the reason of a failure, or `None`."""
        record = failure.record
        texts = {"file": record.file, "sql": record.sql, "kind": failure.kind}
        texts |= {"error": f"{failure.code} {failure.message}"}
        texts |= {"expected": "\n".join(record.lines), "found": "\n".join(failure.found)}
        for rule in self.rules:
            patterns = {name: pattern for name, pattern in rule.items() if name in texts}
            if rule.get("is_as_postgres", failure.is_as_postgres) != failure.is_as_postgres:
                continue
            if all(re.search(pattern, texts[name], re.IGNORECASE) for name, pattern in patterns.items()):
                return rule["reason"]
        return None

    def of_file(self, outcome):
        """Returns the reasons of a file's failures, the most frequent first, each with the number of its records."""
        counted = collections.Counter(self.reason(failure) or UNKNOWN for failure in outcome.failures)
        return "; ".join(f"{reason} ({count} of {outcome.records})" for reason, count in counted.most_common())


def recorded():
    """Returns what is recorded: the files that pass, and the reason of each that fails."""
    return json.loads(OUTCOMES.read_text(encoding="utf-8"))


def write(outcomes, reasons):
    """Records the outcomes. Files without records are not among those that pass."""
    passed = [outcome.file for outcome in outcomes if outcome.records and not outcome.failures]
    empty = [outcome.file for outcome in outcomes if not outcome.records]
    failed = {outcome.file: reasons.of_file(outcome) for outcome in outcomes if outcome.failures}
    counts = {"records": sum(outcome.records for outcome in outcomes)}
    counts["records_passed"] = counts["records"] - sum(len(outcome.failures) for outcome in outcomes)
    content = {"source": f"{CRATES[0]}-{VERSION}", **counts, "passed": passed, "failed": failed, "empty": empty}
    OUTCOMES.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe(failure, reason):
    """Returns a failure for people."""
    record = failure.record
    lines = [f"--- {failure.place()} {failure.kind}{' as PostgreSQL' * failure.is_as_postgres}: {reason}", record.sql]
    if failure.code:
        lines += [f"error {failure.code} {failure.message}"]
    else:
        lines += ["expected:", *record.lines[:20], f"found, of types {record.types}:", *failure.found[:20]]
    return "\n".join(lines)


def compare_with_gpu(asked, workers):
    """Runs files on the CPU and on a GPU. Prints the records that fail on one alone, or in another way, and returns their
    number. Plans, settings, and the order of rows that have none differ."""
    others = re.compile(r"\s*(explain|show all)\b", re.IGNORECASE)

    def failures(outcome):
        found = ((failure.place(), failure.kind, failure.code, failure.found, failure.record) for failure in outcome.failures)
        return {place: (how, record) for place, *how, record in found
                if how[0] != "order" and not others.match(record.sql)}

    different, records, aggregates, refused = 0, 0, collections.Counter(), collections.Counter()
    on_cpu = list(run_files(asked, workers))
    for of_cpu, of_gpu in zip(on_cpu, run_files(asked, workers, settings=ON_GPU)):
        one, other = failures(of_cpu), failures(of_gpu)
        places = [place for place in sorted({*one, *other}) if one.get(place) != other.get(place)]
        for place in places:
            sql = (one.get(place) or other.get(place))[1].sql
            print(f"--- {place}\n{sql}\nCPU: {one.get(place, ['passes'])[0]}\nGPU: {other.get(place, ['passes'])[0]}", flush=True)
        different, records = different + len(places), records + of_gpu.records
        aggregates += of_gpu.aggregates
        refused += of_gpu.refused
    for reason, count in refused.most_common():
        print(f"{count:6} refused: {reason}")
    print(f"{refused.total()} statements are refused in strict mode")
    print(f"{different} of {records} records of {len(asked)} files differ; aggregates over files: {dict(aggregates)}")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the outcomes of all files")
    parser.add_argument("--workers", type=int, default=CORES)
    parser.add_argument("--gpu", action="store_true", help="compare the answers of a GPU with those of the CPU")
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    asked = [name for name in names() if not arguments.patterns or any(part in name for part in arguments.patterns)]
    if arguments.gpu:
        sys.exit(compare_with_gpu(asked, arguments.workers) > 0)
    reasons, outcomes, cluster = Reasons(), [], Cluster()
    for outcome in run_files(asked, arguments.workers, cluster.sql):
        outcomes.append(outcome)
        print(f"{outcome.file}: {len(outcome.failures)} of {outcome.records} fail", flush=True)
        for failure in outcome.failures:
            print(describe(failure, reasons.reason(failure)))
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    counted = collections.Counter(reasons.reason(failure) for failure in failures)
    for reason, count in counted.most_common():
        print(f"{count:6} {reason}")
    print(f"{sum(not outcome.failures for outcome in outcomes)} of {len(outcomes)} files pass")
    if arguments.write:
        assert not arguments.patterns, "only a run of all files is recorded"
        write(outcomes, reasons)


if __name__ == "__main__":
    main()
