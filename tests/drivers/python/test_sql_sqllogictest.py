"""The files of DataFusion's sqllogictest through the tables door: those recorded as passed pass, and the others fail.

`sqllogictest.py --write` records them again, with the reasons.
"""

import pytest
import slt_files
import slt_values
import sqllogictest

RECORDED = sqllogictest.recorded()
AGAIN = "run `python tests/drivers/python/sqllogictest.py --write`, and look at what changes"


@pytest.fixture(scope="module")
def outcomes():
    """The outcomes of all files, by their names."""
    return {outcome.file: outcome for outcome in sqllogictest.run_files(sqllogictest.names())}


def test_files_that_passed_pass(outcomes):
    failures = [failure for name in RECORDED["passed"] for failure in outcomes[name].failures]
    assert not failures, "\n".join(sqllogictest.describe(failure, AGAIN) for failure in failures[:10])


def test_files_that_failed_fail(outcomes):
    passed = [name for name in RECORDED["failed"] if not outcomes[name].failures]
    assert not passed, f"{passed} pass now: {AGAIN}"


def test_all_files_are_recorded(outcomes):
    recorded = {*RECORDED["passed"], *RECORDED["failed"], *RECORDED["empty"]}
    assert recorded == set(outcomes), AGAIN


def test_every_failure_has_a_reason():
    unknown = [name for name, reason in RECORDED["failed"].items() if sqllogictest.UNKNOWN in reason]
    assert not unknown, f"add reasons to {sqllogictest.REASONS.name}"


VALUES = [
    ("1.50", 1700, "1.5"),
    ("-0", 701, "0"),
    ("1e+20", 701, "100000000000000000000"),
    ("0.1234567890125", 701, "0.123456789012"),
    ("", 25, "(empty)"),
    (None, 25, "NULL"),
    ("t", 16, "true"),
    ("2020-01-02 03:04:05.5", 1114, "2020-01-02T03:04:05.500"),
    ("2020-01-02 03:04:05+00", 1184, "2020-01-02T03:04:05Z"),
    ("2020-01-02 03:04:05+05:30", 1184, "2020-01-02T03:04:05+05:30"),
    ("1 year 2 mons 3 days 04:05:06.7", 1186, "14 mons 3 days 4 hours 5 mins 6.700000000 secs"),
    ("-00:00:01", 1186, "-1.000000000 secs"),
    ('{1,NULL,"a, b",{2}}', 1009, "[1, NULL, a, b, [2]]"),
    ("{1,2.5}", 1022, "[1.0, 2.5]"),
    ("[0:1]={t,f}", 1000, "[true, false]"),
    ('{"a":1.50,"b":[null,true]}', 114, "{a: 1.50, b: [NULL, true]}"),
    ("\\x00ff", 17, "00ff"),
]


@pytest.mark.parametrize("text, kind, expected", VALUES)
def test_values_are_written_as_datafusion_writes_them(text, kind, expected):
    assert slt_values.cell(text, kind, slt_values.PLACES) == expected


def test_records_of_a_file(tmp_path):
    (tmp_path / "part").write_text("query I nosort\nSELECT 2\n----\n2\n")
    file = tmp_path / "a.slt"
    file.write_text(
        "# a comment\nstatement ok\nSELECT 1;\n\nonlyif postgres\nstatement error\nSELECT x\n\n"
        "query error no\nSELECT y\n----\na message\n\nof lines\n\n\ninclude ./part\n\nhalt\nnonsense\n"
    )
    records = slt_files.records(tmp_path, "a.slt")
    assert [(record.sql, record.expects) for record in records] == [
        ("SELECT 1;", "ok"), ("SELECT y", "error"), ("SELECT 2", "rows"),
    ]  # fmt: skip
    assert (records[2].types, records[2].lines) == ("I", ("2",))
