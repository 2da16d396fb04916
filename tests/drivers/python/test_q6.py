"""Query 6 of TPC-H: the benchmark's answer is DuckDB's over the same rows, and the specification's."""

import json
import os
import subprocess
from decimal import Decimal

import duckdb

# The specification's answer at scale factor 1 is 123141078.23.
ANSWER = Decimal("123141078.2283")

COLUMNS = {
    "l_orderkey": "BIGINT",
    "l_partkey": "BIGINT",
    "l_suppkey": "BIGINT",
    "l_linenumber": "INTEGER",
    "l_quantity": "DECIMAL(15, 2)",
    "l_extendedprice": "DECIMAL(15, 2)",
    "l_discount": "DECIMAL(15, 2)",
    "l_tax": "DECIMAL(15, 2)",
    "l_returnflag": "VARCHAR",
    "l_linestatus": "VARCHAR",
    "l_shipdate": "DATE",
    "l_commitdate": "DATE",
    "l_receiptdate": "DATE",
    "l_shipinstruct": "VARCHAR",
    "l_shipmode": "VARCHAR",
    "l_comment": "VARCHAR",
}

QUERY = """
    select sum(l_extendedprice * l_discount), count(*)
    from read_csv(?, delim = '|', header = false, columns = ?, null_padding = true)
    where l_shipdate >= date '1994-01-01'
      and l_shipdate < date '1994-01-01' + interval '1' year
      and l_discount between .06 - 0.01 and .06 + 0.01
      and l_quantity < 24
"""


def bench(*arguments):
    command = [os.environ["FOREBAY"], "bench", "q6", "--scale-factor", "1", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_answer_at_scale_factor_1_is_that_of_duckdb(tmp_path):
    table = tmp_path / "lineitem.tbl"
    bench("--export", str(table))
    # Each line ends with the separator, so there is an empty column at its end.
    columns = {**COLUMNS, "nothing": "VARCHAR"}
    [(revenue, rows)] = duckdb.execute(QUERY, [str(table), columns]).fetchall()
    table.unlink()
    assert revenue == ANSWER and rows > 100_000
    lines = bench("--folder", str(tmp_path), "--only", "cpu", "--rounds", "1", "--json").splitlines()
    answers = {record["expect"] for record in map(json.loads, lines) if record["expect"] is not None}
    assert answers == {int(revenue * 10_000)}
