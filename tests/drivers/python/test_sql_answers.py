"""Right answers of the tables door. Benchmarks are compared with DuckDB on the same files, and NULL cases and
expressions with PostgreSQL itself.

Known differences are pinned in `sql/known_*.sql`: a pinned case fails when the two servers agree.
"""

import decimal
import math
import os

import duckdb
import psycopg
import pytest
import slt_files
import slt_values
import sqllogictest
import ssb
import ssb_queries
import tpch
import tpch_queries
from postgres_cluster import Cluster
from sql_answers import ask, difference, is_number, is_ordered, known, lines, sort_key, statements, strict_difference
from servers import start_tables

IS_FULL = os.environ.get("FOREBAY_TEST_FULL", "0") != "0"
TIMEOUT = "SET statement_timeout = '20s'"
TABLES = ("n", "m", "e", "g", "tri", "v", "wide")
WIDE = [f"c{number}" for number in range(106)]


@pytest.fixture(scope="module")
def postgres():
    """PostgreSQL with the texts' order of bytes, and with letters of all languages in `upper` and the like."""
    cluster = Cluster()
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        sql.execute("CREATE DATABASE answers TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'")
    with psycopg.connect(cluster.sql, dbname="answers", autocommit=True) as sql:
        sql.execute("SET timezone = 'UTC'")
        sql.execute(TIMEOUT)
        for statement in [*statements("null_tables.sql"), *wide_table()]:
            sql.execute(statement)
        yield sql
    cluster.stop()


def wide_table():
    """Returns the statements that make a table of 106 columns with a null in each, at other rows."""
    columns = ", ".join(f"{name} int" for name in WIDE)
    rows = [", ".join("NULL" if (row + n) % 7 == 0 else str(row * n) for n in range(len(WIDE))) for row in range(20)]
    values = ", ".join(f"({row})" for row in rows)
    return f"CREATE TABLE wide ({columns})", f"INSERT INTO wide VALUES {values}"


@pytest.fixture(scope="module")
def forebay(tmp_path_factory):
    """Forebay with the tables of the NULL cases, each a Parquet file."""
    folder = tmp_path_factory.mktemp("answers")
    with duckdb.connect() as duck:
        for statement in [*statements("null_tables.sql"), *wide_table()]:
            duck.execute(statement)
        for table in TABLES:
            duck.execute(f"COPY {table} TO '{folder}/{table}.parquet' (FORMAT parquet)")
        (folder / "parts").mkdir()
        for number in range(1, 8):
            path = folder / "parts" / f"{number}.parquet"
            duck.execute(f"COPY (SELECT * FROM parts WHERE id = {number}) TO '{path}' (FORMAT parquet)")
    server = start_tables("--data", str(tmp_path_factory.mktemp("data")), "--tables", str(folder))
    with psycopg.connect(server.sql, autocommit=True) as sql:
        sql.execute("SET timezone = 'UTC'")
        sql.execute(TIMEOUT)
        yield sql
    server.stop()


def check(statement, found, differences, ours, theirs):
    """Fails if two answers differ and this is not known, or if they agree and a difference is known."""
    if statement in differences:
        assert found, f"the servers agree, so remove this from the known differences: {statement}"
    else:
        assert not found, f"{found} of {statement}\nForebay: {ours}\nPostgreSQL: {theirs}"


KNOWN = known("known_statements.sql")


def check_statement(forebay, postgres, statement, values=()):
    ours, theirs = (ask(server, statement, values) for server in (forebay, postgres))
    check(statement, difference(statement, ours, theirs), KNOWN, ours, theirs)
    # The plan of the first run.
    again = ask(forebay, statement, values)
    assert not difference(statement, again, ours), f"{again} after {ours} of {statement}"


NULL_CASES = statements("null_cases.sql")


@pytest.mark.parametrize("statement", NULL_CASES)
def test_null_cases(forebay, postgres, statement):
    check_statement(forebay, postgres, statement)


COLUMN_CASES = statements("column_cases.sql")


@pytest.mark.parametrize("statement", COLUMN_CASES)
def test_expressions_of_columns(forebay, postgres, statement):
    check_statement(forebay, postgres, statement)


QUERY_CASES = statements("query_cases.sql")


@pytest.mark.parametrize("statement", QUERY_CASES)
def test_forms_of_queries(forebay, postgres, statement):
    check_statement(forebay, postgres, statement)


FOUND_CASES = statements("found_cases.sql")


@pytest.mark.parametrize("statement", FOUND_CASES)
def test_statements_that_random_queries_found(forebay, postgres, statement):
    check_statement(forebay, postgres, statement)


EXPRESSIONS = lines("expressions.sql")
KNOWN_EXPRESSIONS = known("known_expressions.sql")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(forebay, postgres, expression):
    ours, theirs = (ask(server, f"SELECT {expression}") for server in (forebay, postgres))
    check(expression, strict_difference(ours, theirs), KNOWN_EXPRESSIONS, ours, theirs)


def test_known_differences_are_of_cases():
    assert set(KNOWN) <= {*NULL_CASES, *COLUMN_CASES, *QUERY_CASES, *FOUND_CASES, *PARAMETERS, *WIDE_CASES}
    assert set(KNOWN_EXPRESSIONS) <= set(EXPRESSIONS)


# Statements and the texts of their parameters.
PARAMETERS = {
    "SELECT id FROM n WHERE a = $1::int": [None],
    "SELECT id FROM n WHERE a <> $1::int": [None],
    "SELECT id FROM n WHERE a = $1": [None],
    "SELECT id FROM n WHERE NOT (a = $1)": [None],
    "SELECT id FROM n WHERE (a = $1) IS NULL": [None],
    "SELECT id FROM n WHERE (a = $1) IS NULL OR a = 1": ["1"],
    "SELECT id FROM n WHERE a IS DISTINCT FROM $1": [None],
    "SELECT id FROM n WHERE a IS NOT DISTINCT FROM $1": [None],
    "SELECT id FROM n WHERE a IS NOT DISTINCT FROM $1::int": ["2"],
    "SELECT id FROM n WHERE a IN ($1, $2)": ["1", None],
    "SELECT id FROM n WHERE a NOT IN ($1, $2)": ["1", None],
    "SELECT id FROM n WHERE a NOT IN ($1, $2, $3, $4, $5)": ["1", None, "7", "8", "9"],
    "SELECT id FROM n WHERE a = ANY ($1::int[])": ["{1,NULL}"],
    "SELECT id FROM n WHERE a <> ALL ($1::int[])": ["{1,NULL}"],
    "SELECT id FROM n WHERE a <> ALL ($1::int[]) OR id = 5": ["{1,3}"],
    "SELECT id FROM n WHERE a = ANY ($1::int[]) OR id = 5": [None],
    "SELECT id FROM n WHERE a BETWEEN $1 AND $2": [None, "2"],
    "SELECT id FROM n WHERE a NOT BETWEEN $1 AND $2": [None, "2"],
    "SELECT id FROM n WHERE s LIKE $1": [None],
    "SELECT id FROM n WHERE s NOT LIKE $1": ["x%"],
    "SELECT id FROM n WHERE coalesce($1, a) = 2": [None],
    "SELECT id, coalesce($1::int, a), nullif(a, $2::int) FROM n ORDER BY id": [None, "1"],
    "SELECT id FROM n WHERE $1::int IS NULL": [None],
    "SELECT id FROM n WHERE $1::boolean": [None],
    "SELECT id FROM n WHERE $1::boolean OR a = 1": [None],
    "SELECT id FROM n WHERE NOT $1::boolean AND a = 1": [None],
    "SELECT id FROM n WHERE $1::int IN (SELECT a FROM m)": ["9"],
    "SELECT id FROM n WHERE $1::int NOT IN (SELECT a FROM m)": ["7"],
    "SELECT id FROM n WHERE $1::int NOT IN (SELECT a FROM m WHERE a IS NOT NULL)": [None],
    "SELECT id FROM n WHERE $1::int NOT IN (SELECT a FROM e)": [None],
    "SELECT id FROM n WHERE day = $1": [None],
    "SELECT id FROM n WHERE day > $1": ["2020-01-01"],
    "SELECT id FROM n WHERE d = $1": ["1.5"],
    "SELECT id FROM n WHERE ok = $1": ["f"],
    "SELECT id FROM n ORDER BY id LIMIT $1": ["2"],
    "SELECT id FROM n ORDER BY id LIMIT $1 OFFSET $2": ["2", "3"],
    "SELECT id FROM n ORDER BY id LIMIT $1::bigint": [None],
    "SELECT sum(a) + $1::int, count($1::int) FROM n": [None],
    "SELECT k, count(*) FILTER (WHERE x > $1) FROM g GROUP BY k": [None],
    "SELECT n.id, m.c FROM n LEFT JOIN m ON n.a = m.a AND m.c > $1 ORDER BY n.id, m.c": [None],
    "SELECT n.id, m.c FROM n LEFT JOIN m ON n.a = m.a AND $1::boolean ORDER BY n.id, m.c": [None],
    "SELECT CASE WHEN $1::int = 1 THEN 'one' WHEN $1::int IS NULL THEN 'null' END": [None],
    "SELECT $1::text || 'a', $1::int + 1, $1::boolean AND false, $1::boolean OR true": [None],
    "SELECT $1": [None],
}


@pytest.mark.parametrize("statement", PARAMETERS)
def test_parameters(forebay, postgres, statement):
    check_statement(forebay, postgres, statement, PARAMETERS[statement])


ALL, TOTAL = ", ".join(WIDE), ", ".join(f"sum({name})" for name in WIDE)
WIDE_CASES = (
    f"SELECT * FROM wide ORDER BY {ALL}",
    f"SELECT {TOTAL} FROM wide",
    f"SELECT {TOTAL} FROM wide WHERE c1 IS NULL",
    f"SELECT {TOTAL} FROM wide WHERE false",
    f"SELECT {ALL}, count(*) FROM wide GROUP BY {ALL} ORDER BY {ALL}",
    f"SELECT c0, {TOTAL} FROM wide GROUP BY c0 ORDER BY c0",
    f"SELECT DISTINCT {ALL} FROM wide ORDER BY {ALL}",
    f"SELECT * FROM wide UNION SELECT * FROM wide ORDER BY {ALL}",
    f"SELECT x.*, y.* FROM wide x LEFT JOIN wide y ON x.c1 = y.c2 ORDER BY {', '.join(f'x.{name}' for name in WIDE)}",
    f"SELECT count(*) FROM wide WHERE {' AND '.join(f'{name} IS NOT NULL' for name in WIDE[:6])}",
    f"SELECT count(*) FROM wide WHERE {' OR '.join(f'{name} IS NULL' for name in WIDE[:3])}",
    f"SELECT count(*) FROM wide WHERE {' OR '.join(f'{name} > 50' for name in WIDE)}",
    f"SELECT coalesce({ALL}), greatest({ALL}), least({ALL}) FROM wide ORDER BY c1, c2",
)


@pytest.mark.parametrize("statement", WIDE_CASES)
def test_rows_of_106_columns(forebay, postgres, statement):
    check_statement(forebay, postgres, statement)


def benchmark(tmp_path_factory, module, **options):
    """Returns Forebay and DuckDB with the Parquet files that a module writes."""
    folder, data = tmp_path_factory.mktemp("tables"), tmp_path_factory.mktemp("data")
    module.write(folder, **options)
    for path in folder.glob("*.csv"):
        path.unlink()
    duck = duckdb.connect()
    for path in folder.glob("*.parquet"):
        duck.execute(f"""CREATE VIEW "{path.stem}" AS SELECT * FROM '{path}'""")
    return start_tables("--data", str(data), "--tables", str(folder)), duck


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """TPC-H on both, at scale factor 1 in the full tests."""
    scale = 1 if IS_FULL else tpch.SCALE
    server, duck = benchmark(tmp_path_factory, tpch, scale=scale)
    with psycopg.connect(server.sql, autocommit=True) as sql:
        yield sql, duck
    server.stop()


@pytest.fixture(scope="module")
def star(tmp_path_factory):
    """The Star Schema Benchmark on both."""
    server, duck = benchmark(tmp_path_factory, ssb)
    with psycopg.connect(server.sql, autocommit=True) as sql:
        yield sql, duck
    server.stop()


def same_value(ours, theirs):
    """Returns whether values are equal: decimals exactly, floats to nine digits, and a decimal to its last digit if
    DuckDB has a float, as for averages."""
    if isinstance(ours, decimal.Decimal) and isinstance(theirs, float):
        unit = 10.0 ** ours.as_tuple().exponent
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=unit)
    if isinstance(ours, float) and isinstance(theirs, float | decimal.Decimal):
        return math.isclose(ours, theirs, rel_tol=1e-9)
    return ours == theirs


def check_benchmark(pair, query):
    """Fails if the two servers do not give the same rows, in the same order if the query has one."""
    ours, theirs = ([tuple(row) for row in server.execute(query).fetchall()] for server in pair)
    assert theirs, "the query should have rows"
    if not is_ordered(query):
        ours, theirs = (sorted(rows, key=lambda row: sort_key([*map(str, row)])) for rows in (ours, theirs))
    assert len(ours) == len(theirs)
    for our_row, their_row in zip(ours, theirs, strict=True):
        assert all(map(same_value, our_row, their_row)) and len(our_row) == len(their_row)


@pytest.mark.parametrize("number", tpch_queries.QUERIES)
def test_tpch(orders, number):
    check_benchmark(orders, tpch_queries.QUERIES[number])


@pytest.fixture(scope="module")
def tenth(tmp_path_factory):
    """Forebay with TPC-H at scale factor 0.1, for which DataFusion's test files have answers."""
    folder, data = tmp_path_factory.mktemp("tables"), tmp_path_factory.mktemp("data")
    tpch.write(folder, scale=0.1)
    server = start_tables("--data", str(data), "--tables", str(folder))
    yield sqllogictest.Door(server.sql, ())
    server.stop()


@pytest.mark.parametrize("number", tpch_queries.QUERIES)
def test_tpch_answers_of_datafusion(tenth, number):
    files = sqllogictest.fetch(sqllogictest.CRATES[0]) / "test_files/tpch/answers"
    for record in slt_files.records(files, f"q{number}.slt.part"):
        rows, types, _, _, message = tenth.run(record.sql)
        lines = slt_values.written(rows, types, record.sort, record.hash_threshold, None)
        assert len(lines) == len(record.lines), message
        for ours, theirs in zip(lines, record.lines, strict=True):
            assert all(map(is_rounded, ours.split(), theirs.split())), f"{ours}\n{theirs}"


def test_plans_of_tpch(tenth):
    """What plans have beyond DataFusion's own. Without it the answers are the same, but take longer."""
    query = tpch_queries.QUERIES[21].strip().removesuffix(";")
    plan = "\n".join(row[-1] for row in tenth.sql.execute(f"EXPLAIN {query}").fetchall())
    # The build side is not `lineitem`.
    assert "join_type=LeftAnti" in plan and "join_type=RightAnti" not in plan, plan


def is_rounded(ours, theirs):
    """Returns whether two texts are equal, or numbers of which the second is rounded, to six places if an average."""
    if not (is_number(ours) and is_number(theirs)):
        return ours == theirs
    unit = 10.0 ** decimal.Decimal(theirs).as_tuple().exponent
    return math.isclose(float(ours), float(theirs), rel_tol=1e-9, abs_tol=unit)


@pytest.mark.parametrize("number", ssb_queries.QUERIES)
def test_star_schema_benchmark(star, number):
    check_benchmark(star, ssb_queries.QUERIES[number])
