"""Managed tables: CREATE TABLE, INSERT, UPDATE, DELETE, TRUNCATE, COPY FROM STDIN, and what other tools read of them."""

import asyncio
import contextlib
import datetime
import decimal
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import threading

import asyncpg
import deltalake
import duckdb
import pandas
import psycopg
import pytest
import sqlalchemy
from psycopg import errors
from servers import PASSWORD, add_user, create_data, start_tables
from waiting import until

FULL = os.environ.get("FOREBAY_TEST_FULL") == "1"
KILLS = 40 if FULL else 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(data):
    server = start_tables("--data", str(data), "--memory-bytes-max", "1GiB")
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection
        for (name,) in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE is_insertable_into = 'YES'"
        ).fetchall():
            connection.execute(f'DROP TABLE IF EXISTS "{name}"')


def rows(sql, query, parameters=None):
    return sql.execute(query, parameters).fetchall()


def tag(sql, statement, parameters=None):
    return sql.execute(statement, parameters).statusmessage


def test_statements_have_postgresqls_tags(sql):
    assert tag(sql, "CREATE TABLE t (a int, b text DEFAULT 'none', c numeric(6, 2))") == "CREATE TABLE"
    assert tag(sql, "INSERT INTO t VALUES (1, 'one', 1.005), (2, DEFAULT, -2.5)") == "INSERT 0 2"
    assert tag(sql, "INSERT INTO t (a) SELECT value FROM generate_series(3, 5)") == "INSERT 0 3"
    assert tag(sql, "INSERT INTO t (c, a) VALUES (%s, %s)", (decimal.Decimal("7.125"), 6)) == "INSERT 0 1"
    assert tag(sql, "INSERT INTO t DEFAULT VALUES") == "INSERT 0 1"
    one = decimal.Decimal
    assert rows(sql, "SELECT * FROM t ORDER BY a NULLS FIRST") == [
        (None, "none", None), (1, "one", one("1.01")), (2, "none", one("-2.50")), (3, "none", None),
        (4, "none", None), (5, "none", None), (6, "none", one("7.13")),
    ]
    assert tag(sql, "UPDATE t SET b = 'many', c = a * 10 WHERE a > 4") == "UPDATE 2"
    assert tag(sql, "UPDATE t AS x SET b = DEFAULT WHERE x.a = 6") == "UPDATE 1"
    assert rows(sql, "SELECT a, b, c FROM t WHERE a > 4 ORDER BY a") == [(5, "many", 50), (6, "none", 60)]
    assert tag(sql, "UPDATE t SET a = a + 1") == "UPDATE 7"
    assert tag(sql, "UPDATE t SET a = 0 WHERE a = 1000") == "UPDATE 0"
    assert tag(sql, "DELETE FROM t WHERE a = 2 OR a IS NULL") == "DELETE 2"
    assert tag(sql, "CREATE TABLE u AS SELECT a, b FROM t WHERE a < 5") == "SELECT 2"
    assert tag(sql, "CREATE TABLE v AS SELECT a AS x, b FROM t WITH NO DATA") == "SELECT 0"
    assert rows(sql, "SELECT count(*) FROM v") == [(0,)]
    assert tag(sql, "TRUNCATE t, v") == "TRUNCATE TABLE"
    assert rows(sql, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)") == [(0, 2)]
    assert tag(sql, "DELETE FROM u") == "DELETE 2"
    assert tag(sql, "DROP TABLE u") == "DROP TABLE"
    with pytest.raises(errors.UndefinedTable):
        sql.execute("SELECT * FROM u")
    assert tag(sql, "DROP TABLE IF EXISTS u") == "DROP TABLE"
    assert tag(sql, "CREATE TABLE IF NOT EXISTS t (z int)") == "CREATE TABLE"


def test_conditions_may_have_subqueries(sql):
    sql.execute("CREATE TABLE t AS SELECT value AS a, value % 3 AS b FROM generate_series(1, 30) AS s (value)")
    sql.execute("CREATE TABLE few AS SELECT a FROM t WHERE a <= 3")
    sql.execute("INSERT INTO few VALUES (NULL)")
    assert tag(sql, "DELETE FROM t WHERE a IN (SELECT a FROM few)") == "DELETE 3"
    assert tag(sql, "DELETE FROM t WHERE EXISTS (SELECT 1 FROM few WHERE few.a + 3 = t.a)") == "DELETE 3"
    assert tag(sql, "DELETE FROM t WHERE a > (SELECT avg(a) FROM t) + 10") == "DELETE 2"
    assert tag(sql, "DELETE FROM t WHERE a NOT IN (SELECT a FROM few)") == "DELETE 0"
    assert tag(sql, "UPDATE t SET b = (SELECT max(a) FROM few) WHERE a IN (SELECT a + 6 FROM few)") == "UPDATE 3"
    assert rows(sql, "SELECT a, b FROM t WHERE b = 3 ORDER BY a") == [(7, 3), (8, 3), (9, 3)]
    assert rows(sql, "SELECT count(*), sum(a) FROM t") == [(22, sum(range(7, 29)))]


@pytest.mark.parametrize("statement, error", [
    ("INSERT INTO t (a, c) VALUES (NULL, 1)", errors.NotNullViolation),
    ("INSERT INTO t (c) VALUES (1)", errors.NotNullViolation),
    ("UPDATE t SET a = NULL", errors.NotNullViolation),
    ("INSERT INTO t VALUES (1, 'abcdef')", errors.StringDataRightTruncation),
    ("INSERT INTO t (a, c) VALUES (1, 12345.6)", errors.NumericValueOutOfRange),
    ("INSERT INTO t (a) VALUES (3000000000)", errors.NumericValueOutOfRange),
    ("INSERT INTO t (a) VALUES ('x')", errors.InvalidTextRepresentation),
    ("INSERT INTO t (z) VALUES (1)", errors.UndefinedColumn),
    ("INSERT INTO t (a, a) VALUES (1, 2)", errors.DuplicateColumn),
    ("INSERT INTO t VALUES (1) RETURNING a", errors.FeatureNotSupported),
    ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", errors.FeatureNotSupported),
    ("UPDATE t SET b = 'x' FROM t u WHERE u.a = t.a", errors.FeatureNotSupported),
    ("UPDATE t SET b = 'x' WHERE random() < 0.5", errors.FeatureNotSupported),
    ("DELETE FROM t AS x WHERE x.a = 7", errors.FeatureNotSupported),
    ("INSERT INTO t VALUES (1, 'x', 2, 3)", errors.SyntaxError),
    ("CREATE TABLE t (a int)", errors.DuplicateTable),
    ("CREATE TABLE u (a int PRIMARY KEY)", errors.FeatureNotSupported),
    ("CREATE TABLE u (a int, UNIQUE (a))", errors.FeatureNotSupported),
    ("CREATE TABLE u (a serial)", errors.FeatureNotSupported),
    ("CREATE TABLE u (a int, a text)", errors.DuplicateColumn),
    ("CREATE TABLE u (a int DEFAULT b)", errors.UndefinedColumn),
    ("CREATE TABLE nowhere.u (a int)", errors.InvalidSchemaName),
    ("CREATE TEMPORARY TABLE u (a int)", errors.FeatureNotSupported),
    ("CREATE TABLE u AS SELECT 1 / 0 AS a", errors.DivisionByZero),
    ("INSERT INTO a_view VALUES (1)", errors.WrongObjectType),
    ("TRUNCATE a_view", errors.WrongObjectType),
    ("DROP VIEW t", errors.WrongObjectType),
    ("BEGIN; DELETE FROM t", errors.ReadOnlySqlTransaction),
    ("INSERT INTO t VALUES (true)", errors.DatatypeMismatch),
    ("UPDATE t SET c = false", errors.DatatypeMismatch),
    ("DROP TABLE t, nothing", errors.UndefinedTable),
    ("DROP TABLE t, a_view", errors.WrongObjectType),
])
def test_statements_that_fail_change_nothing(sql, statement, error):
    sql.execute("CREATE TABLE t (a int NOT NULL, b varchar(5), c numeric(6, 2))")
    sql.execute("CREATE OR REPLACE VIEW a_view AS SELECT 1 AS a")
    sql.execute("INSERT INTO t VALUES (7, 'seven', 7)")
    with pytest.raises(error):
        sql.execute(statement)
    sql.execute("ROLLBACK")
    assert rows(sql, "SELECT * FROM t") == [(7, "seven", 7)]
    assert rows(sql, "SELECT count(*) FROM information_schema.tables WHERE table_name = 'u'") == [(0,)]


def test_subqueries_name_the_table_that_changes(sql):
    sql.execute("CREATE TABLE t (id int, v int)")
    sql.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 5) AS s(i)")
    assert tag(sql, "UPDATE t SET v = 0 WHERE id IN (SELECT id FROM t WHERE v >= 4)") == "UPDATE 2"
    assert tag(sql, "DELETE FROM t WHERE id IN (SELECT id FROM t WHERE v = 1)") == "DELETE 1"
    assert tag(sql, "DELETE FROM t WHERE id < ANY (SELECT id FROM t WHERE v = 3)") == "DELETE 1"
    assert tag(sql, "DELETE FROM t WHERE EXISTS (SELECT 1 FROM t WHERE v = 9)") == "DELETE 0"
    assert rows(sql, "SELECT id, v FROM t ORDER BY id") == [(3, 3), (4, 0), (5, 0)]


def test_subqueries_of_a_change_are_computed_once(sql):
    sql.execute("CREATE TABLE t (id int, done bool)")
    for start in range(4):
        sql.execute("INSERT INTO t SELECT i * 4 + %s, false FROM generate_series(1, 5000) AS s(i)", (start,))
    for _ in range(5):
        one = "UPDATE t SET done = true WHERE id = (SELECT x.id FROM t x WHERE NOT x.done LIMIT 1)"
        assert tag(sql, one) == "UPDATE 1"
        many = "UPDATE t SET done = true WHERE id IN (SELECT x.id FROM t x WHERE NOT x.done LIMIT 100)"
        assert tag(sql, many) == "UPDATE 100"
    assert tag(sql, "DELETE FROM t WHERE id IN (SELECT x.id FROM t x WHERE x.done LIMIT 5)") == "DELETE 5"
    assert rows(sql, "SELECT count(*), count(DISTINCT id), sum(done::int) FROM t") == [(19_995, 19_995, 500)]
    with pytest.raises(errors.FeatureNotSupported, match="correlated subquery"):
        sql.execute("DELETE FROM t WHERE id = (SELECT x.id FROM t x WHERE x.done = t.done LIMIT 1)")


def test_texts_are_read_as_the_type_of_their_column(sql):
    sql.execute("CREATE TABLE t (b bytea, i int[], s text[], n numeric(38, 0))")
    sql.execute(r"""INSERT INTO t VALUES ('\x00ff', '{1,2}', '{a,"b,c",NULL}', 1)""")
    sql.execute(r"""INSERT INTO t SELECT '\x00ff', '{1,2}', '{a,"b,c",NULL}', 1""")
    sql.execute(r"UPDATE t SET b = '\x00ff', i = '{1,2}'")
    assert rows(sql, "SELECT * FROM t") == [(b"\x00\xff", [1, 2], ["a", "b,c", None], 1)] * 2
    with pytest.raises(errors.InvalidTextRepresentation):
        sql.execute(r"INSERT INTO t (b) VALUES ('\xzz')")
    sql.execute("UPDATE t SET n = 99999999999999999999999999999999999999")
    with pytest.raises(errors.NumericValueOutOfRange):
        sql.execute("UPDATE t SET n = n + 1")


def test_timestamps_are_read_as_in_postgresql(sql):
    sql.execute("CREATE TABLE t (a timestamp, b timestamptz)")
    utc = datetime.timezone.utc
    for text, local, moment in [
        ("2024-01-02 3:04", datetime.datetime(2024, 1, 2, 3, 4), datetime.datetime(2024, 1, 2, 3, 4, tzinfo=utc)),
        ("2024-01-02 03", datetime.datetime(2024, 1, 2, 3), datetime.datetime(2024, 1, 2, 3, tzinfo=utc)),
        ("2024-01-02 03:04+02", datetime.datetime(2024, 1, 2, 3, 4), datetime.datetime(2024, 1, 2, 1, 4, tzinfo=utc)),
    ]:
        sql.execute(f"INSERT INTO t VALUES ('{text}', '{text}')")
        sql.execute(f"INSERT INTO t SELECT '{text}', '{text}'")
        assert rows(sql, f"SELECT a, b FROM t WHERE a = '{text}'") == [(local, moment)] * 2
        assert rows(sql, f"SELECT '{text}'::timestamp, timestamptz '{text}'") == [(local, moment)]
        sql.execute("TRUNCATE t")
    with pytest.raises(errors.InvalidDatetimeFormat, match='invalid input syntax for type timestamp: "noon"'):
        sql.execute("INSERT INTO t (a) VALUES ('noon')")


def test_values_may_have_subqueries(sql):
    sql.execute("CREATE TABLE t (a int, b text)")
    sql.execute("INSERT INTO t VALUES (1, 'one')")
    assert tag(sql, "INSERT INTO t VALUES ((SELECT max(a) + 1 FROM t), 'two'), (7, (SELECT min(b) FROM t))") == "INSERT 0 2"
    assert rows(sql, "SELECT * FROM t ORDER BY a") == [(1, "one"), (2, "two"), (7, "one")]
    assert sorted(rows(sql, "VALUES ((SELECT count(*) FROM t), 'x'), (0, NULL)")) == [(0, None), (3, "x")]


def test_several_tables_are_dropped_at_once(sql):
    for name in ("a", "b", "c"):
        sql.execute(f"CREATE TABLE {name} (i int)")
    notices = []
    sql.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    assert tag(sql, "DROP TABLE IF EXISTS a, b, nothing, a") == "DROP TABLE"
    assert notices == ['table "nothing" does not exist, skipping']
    assert rows(sql, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name <> 'a_view'") == [("c",)]


def test_a_prepared_statement_follows_its_table(server, sql):
    sql.execute("CREATE TABLE t (a int)")
    sql.execute("INSERT INTO t VALUES (1)")
    with psycopg.connect(server.sql, autocommit=True) as other:
        def prepared():
            return other.execute("SELECT * FROM t", prepare=True).fetchall()

        assert prepared() == prepared() == [(1,)]
        sql.execute("DROP TABLE t")
        with pytest.raises(errors.UndefinedTable):
            prepared()
        sql.execute("CREATE TABLE t (a int)")
        assert prepared() == []
        sql.execute("DROP TABLE t")
        sql.execute("CREATE TABLE t (a float8)")
        sql.execute("INSERT INTO t VALUES (1.5)")
        with pytest.raises(errors.FeatureNotSupported, match="cached plan must not change result type"):
            prepared()


def test_files_of_dropped_tables_are_deleted_at_once(server, data, sql):
    sql.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 1000) AS s (value)")
    (folder,) = {file.parent for file in (data / "sql" / "tables").glob("t-*/*.parquet")}
    with psycopg.connect(server.sql, autocommit=True) as idle:
        for _ in range(3):
            assert idle.execute("SELECT count(*) FROM t", prepare=True).fetchall() == [(1000,)]
        sql.execute("DROP TABLE t")
        until(lambda: not list(folder.glob("*.parquet")))
    sql.execute("CREATE TABLE lost (a int)")
    (folder,) = (data / "sql" / "tables").glob("lost-*")
    shutil.rmtree(folder)
    assert tag(sql, "DROP TABLE lost") == "DROP TABLE"


def test_the_data_directory_may_be_a_relative_path(tmp_path):
    for expected in ([(1,)], [(1,), (2,)]):
        server = start_tables("--data", "relative", folder=tmp_path)
        with psycopg.connect(server.sql, autocommit=True) as sql:
            sql.execute("CREATE TABLE IF NOT EXISTS t (a int)")
            sql.execute("INSERT INTO t VALUES (%s)", (len(expected),))
            assert rows(sql, "SELECT a FROM t ORDER BY a") == expected
        server.stop()


def test_tables_are_declared_for_gpus(tmp_path):
    options = "SELECT reloptions FROM pg_class WHERE relname = 'sales'"
    told = []
    server = start_tables("--data", str(tmp_path))
    with psycopg.connect(server.sql, autocommit=True) as sql:
        sql.add_notice_handler(lambda it: told.append((it.severity, it.sqlstate, it.message_primary)))
        sql.execute("CREATE TABLE sales (id int, price numeric(10, 2), \"Note\" text)")
        sql.execute("CREATE TABLE others (id int)")
        assert rows(sql, options) == [(None,)]
        assert tag(sql, "ALTER TABLE sales SET (gpu = 'price, \"Note\"')") == "ALTER TABLE"
        assert rows(sql, options) == [(['gpu=price, "Note"'],)]
        assert rows(sql, options.replace("sales", "others")) == [(None,)]
        ((severity, code, message),) = told
        assert (severity, code) == ("WARNING", "01000") and message.startswith("this server has no GPU")
        for statement, error in [
            ("ALTER TABLE sales SET (gpu = note)", errors.UndefinedColumn),
            ("ALTER TABLE sales SET (fillfactor = 70)", errors.InvalidParameterValue),
            ("ALTER TABLE sales ADD COLUMN a int", errors.FeatureNotSupported),
            ("ALTER TABLE nothing RESET (gpu)", errors.UndefinedTable),
        ]:
            with pytest.raises(error):
                sql.execute(statement)
        assert tag(sql, "ALTER TABLE IF EXISTS nothing SET (gpu = off)") == "ALTER TABLE"
        assert told[1:] == [("NOTICE", "42P01", 'relation "nothing" does not exist, skipping')]
        # `off` is done without a GPU, too.
        sql.execute("ALTER TABLE others SET (gpu = off)")
        assert len(told) == 2
    server.stop()
    server = start_tables("--data", str(tmp_path))
    with psycopg.connect(server.sql, autocommit=True) as sql:
        assert rows(sql, options) == [(['gpu=price, "Note"'],)]
        assert rows(sql, options.replace("sales", "others")) == [(["gpu=off"],)]
        sql.execute("ALTER TABLE others RESET (gpu)")
        sql.execute("DROP TABLE sales")
        sql.execute("CREATE TABLE sales (id int)")
        assert rows(sql, options) == [(None,)]
        assert rows(sql, options.replace("sales", "others")) == [(None,)]
    server.stop()


def test_catalogues_list_managed_tables(sql):
    sql.execute("CREATE TABLE t (a int NOT NULL, b varchar(5) DEFAULT 'x', c numeric(6, 2), d timestamptz, e text[])")
    query = "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
    assert rows(sql, f"{query} WHERE table_name = 't' ORDER BY ordinal_position") == [
        ("a", "integer", "NO", None), ("b", "text", "YES", "'x'"), ("c", "numeric", "YES", None),
        ("d", "timestamp with time zone", "YES", None), ("e", "ARRAY", "YES", None),
    ]
    query = """SELECT relkind, attname, attnotnull FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
               WHERE relname = 't' AND attnum = 1"""
    assert rows(sql, query) == [("r", "a", True)]


def values_of_all_types():
    types = {
        "bool": True, "int2": -3, "int4": 1 << 20, "int8": 1 << 40, "float4": 1.5, "float8": 0.1,
        "numeric(20, 4)": decimal.Decimal("-12.3400"), "text": "é\t\"\\N", "varchar(9)": "x", "bytea": b"\0\xff",
        "date": datetime.date(1999, 12, 31), "timestamp": datetime.datetime(2020, 1, 1, 1, 2, 3, 1),
        "timestamptz": datetime.datetime(2020, 1, 1, 1, 2, 3, 1, datetime.timezone.utc),
        "int4[]": [1, None, 3], "text[]": ["a", "b,c"],
    }
    columns = ", ".join(f"c{index} {name}" for index, name in enumerate(types))
    return columns, list(types), list(types.values())


def test_values_of_all_types_come_back(sql):
    columns, types, values = values_of_all_types()
    sql.execute(f"CREATE TABLE t ({columns})")
    places = ", ".join(f"%s::{name}" for name in types)
    sql.execute(f"INSERT INTO t VALUES ({places})", values)
    for options in ("", "(FORMAT csv)", "(FORMAT binary)"):
        with sql.cursor().copy(f"COPY t FROM STDIN {options}") as copy:
            if "csv" in options:
                with sql.cursor() as other, psycopg.connect(sql.info.dsn, autocommit=True) as reader:
                    with reader.cursor().copy("COPY (SELECT * FROM t LIMIT 1) TO STDOUT (FORMAT csv)") as out:
                        for part in out:
                            copy.write(part)
                    del other
            else:
                if "binary" in options:
                    copy.set_types([name.split("(")[0] for name in types])
                copy.write_row(values)
                copy.write_row([None] * len(values))
    found = rows(sql, "SELECT * FROM t WHERE c0")
    assert found == [tuple(values)] * 4
    assert rows(sql, "SELECT count(*) FROM t") == [(6,)]


def copy_in(sql, statement, text):
    cursor = sql.cursor()
    with cursor.copy(statement) as copy:
        for start in range(0, len(text), 7):
            copy.write(text[start:start + 7])
    return cursor.statusmessage


def test_rows_are_copied_in_text_and_csv(sql):
    sql.execute("CREATE TABLE t (a int, b text, c int DEFAULT 9, d timestamptz DEFAULT now())")
    text = "1\tone\\ttab\\\\\n2\t\\N\n\\.\nignored"
    assert copy_in(sql, "COPY t (a, b) FROM STDIN", text) == "COPY 2"
    csv = 'b,a\r\n"x ""y"",\nz",3\r\n,4\r\n"",5'
    assert copy_in(sql, "COPY t (b, a) FROM STDIN (FORMAT csv, HEADER)", csv) == "COPY 3"
    assert rows(sql, "SELECT count(*) FROM t WHERE d BETWEEN now() - interval '1 hour' AND now()") == [(5,)]
    assert copy_in(sql, "COPY t (a, b, c) FROM STDIN CSV DELIMITER ';' NULL '-' QUOTE '''' ESCAPE '\\'", "6;'it\\'s';-\n") == "COPY 1"
    assert rows(sql, "SELECT a, b, c FROM t ORDER BY a") == [
        (1, "one\ttab\\", 9), (2, None, 9), (3, 'x "y",\nz', 9), (4, None, 9), (5, "", 9), (6, "it's", None),
    ]


@pytest.mark.parametrize("text, error, context", [
    ("1\tx\n2\n", errors.BadCopyFileFormat, "COPY t, line 2"),
    ("1\tx\ty\n", errors.BadCopyFileFormat, "COPY t, line 1"),
    ("1\tx\nx\ty\n", errors.InvalidTextRepresentation, 'COPY t, line 2, column a: "x"'),
    ("99999999999\tx\n", errors.NumericValueOutOfRange, 'COPY t, line 1, column a: "99999999999"'),
    ("\\N\tx\n", errors.NotNullViolation, None),
])
def test_rows_that_are_malformed_are_told_by_line_and_column(sql, text, error, context):
    sql.execute("CREATE TABLE t (a int NOT NULL, b text)")
    with pytest.raises(error) as caught:
        copy_in(sql, "COPY t FROM STDIN", text)
    assert caught.value.diag.context == context
    assert rows(sql, "SELECT count(*) FROM t") == [(0,)]


def test_a_copy_that_breaks_off_leaves_nothing(server, data, sql):
    sql.execute("CREATE TABLE t (a int, b text)")
    with contextlib.suppress(errors.QueryCanceled), sql.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write("1\tx\n" * 20_000)
        raise errors.QueryCanceled("the client changes its mind")
    with psycopg.connect(server.sql, autocommit=True) as leaving:
        copy = leaving.cursor().copy("COPY t FROM STDIN")
        copy.__enter__().write("1\tx\n" * 20_000)
        leaving.pgconn.finish()
    with psycopg.connect(server.sql, autocommit=True) as cancelled:
        with pytest.raises(errors.QueryCanceled), cancelled.cursor().copy("COPY t FROM STDIN") as copy:
            copy.write("1\tx\n" * 20_000)
            cancelled.cancel_safe()
    sql.execute("SET statement_timeout = '1ms'")
    with pytest.raises(errors.QueryCanceled), sql.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write("1\tx\n" * 200_000)
    sql.execute("SET statement_timeout = '50ms'")
    with pytest.raises(errors.QueryCanceled):
        sql.execute("INSERT INTO t SELECT value, 'x' FROM generate_series(1, 100000000000)")
    sql.execute("RESET statement_timeout")
    until(lambda: not list((data / "sql" / "tables").glob("*/*.parquet")))
    assert rows(sql, "SELECT count(*) FROM t") == [(0,)]
    assert copy_in(sql, "COPY t FROM STDIN", "1\tx\n") == "COPY 1"


def test_drivers_and_tools_write(server, sql, tmp_path):
    async def with_asyncpg():
        connection = await asyncpg.connect(server.sql)
        await connection.execute("CREATE TABLE t (a int, b text, c timestamptz)")
        now = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)
        result = await connection.copy_records_to_table("t", records=[(index, f"t{index}", now) for index in range(100)])
        assert result == "COPY 100"
        await connection.executemany("INSERT INTO t VALUES ($1, $2, $3)", [(100, "x", now), (101, None, None)])
        assert await connection.fetchval("SELECT count(*) FROM t") == 102
        await connection.close()

    asyncio.run(with_asyncpg())
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd_times()})
    url = server.sql.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    frame.to_sql("frame", engine, index=False)
    frame.to_sql("frame", engine, index=False, if_exists="append", method="multi")
    assert len(pandas.read_sql("SELECT * FROM frame WHERE c > '2020-01-01'", engine)) == 4
    engine.dispose()
    psql = shutil.which("psql")
    if psql:
        (tmp_path / "rows.csv").write_text("a,b\n1,x\n")
        script = f"\\copy t (a, b) FROM '{tmp_path}/rows.csv' CSV HEADER\nCOPY t FROM STDIN;\n2\ty\t\\N\n\\.\nSELECT 'after';"
        done = subprocess.run([psql, "-XAtq", server.sql], input=script, text=True, check=True, capture_output=True)
        assert (done.stdout, done.stderr) == ("after\n", "")
        described = subprocess.run([psql, "-XAt", server.sql, "-c", "\\d t"], text=True, check=True, capture_output=True)
        assert "a|integer" in described.stdout


def pd_times():
    return pandas.to_datetime(["2024-01-01 10:00", "2024-01-02 11:30"])


def test_readers_keep_their_version(server, sql):
    sql.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000) AS s (value)")
    with psycopg.connect(server.sql) as reader:
        reader.execute("SET TRANSACTION READ ONLY")
        assert rows(reader, "SELECT count(*) FROM t") == [(300_000,)]
        with reader.cursor("rows") as cursor:
            cursor.execute("SELECT a FROM t")
            first = sum(row[0] for row in cursor.fetchmany(10))
            sql.execute("DELETE FROM t WHERE a % 2 = 0")
            sql.execute("UPDATE t SET a = 0")
            sql.execute("TRUNCATE t")
            assert rows(sql, "SELECT count(*) FROM t") == [(0,)]
            assert first + sum(row[0] for row in cursor) == sum(range(1, 300_001))
        assert rows(reader, "SELECT count(*) FROM t") == [(300_000,)]
        sql.execute("DROP TABLE t")
    with psycopg.connect(server.sql) as reader, pytest.raises(errors.UndefinedTable):
        reader.execute("SELECT count(*) FROM t")


def test_writers_at_the_same_time_lose_nothing(server, sql):
    sql.execute("CREATE TABLE t (a int, n int)")
    sql.execute("INSERT INTO t VALUES (0, 0)")

    def write(number):
        with psycopg.connect(server.sql, autocommit=True) as connection:
            for step in range(15):
                connection.execute("INSERT INTO t VALUES (%s, 1)", (number * 100 + step,))
                connection.execute("UPDATE t SET n = n + 1 WHERE a = 0")

    threads = [threading.Thread(target=write, args=(number + 1,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(sql, "SELECT count(*), max(n) FROM t") == [(61, 60)]


def test_other_tools_read_the_tables(data, sql):
    columns, types, values = values_of_all_types()
    sql.execute(f"CREATE TABLE all_types ({columns})")
    places = ", ".join(f"%s::{name}" for name in types)
    for _ in range(3):
        sql.execute(f"INSERT INTO all_types VALUES ({places})", values)
    sql.execute("CREATE TABLE numbers (a int NOT NULL, b varchar(9))")
    for number in range(110):
        sql.execute("INSERT INTO numbers (a) VALUES (%s)", (number,))
    sql.execute("DELETE FROM numbers WHERE a % 2 = 1")
    [all_types] = (data / "sql" / "tables").glob("alltypes-*")
    [numbers] = (data / "sql" / "tables").glob("numbers-*")
    table = deltalake.DeltaTable(str(all_types)).to_pyarrow_table()
    read = [column[0].as_py() for column in table.columns]
    expected = [value if kind != "float4" else pytest.approx(value) for kind, value in zip(types, values)]
    assert read == expected
    assert table.num_rows == 3
    table = deltalake.DeltaTable(str(numbers))
    assert sorted(table.to_pyarrow_table()["a"].to_pylist()) == list(range(0, 110, 2))
    deltalake.write_deltalake(str(numbers), table.to_pyarrow_table().slice(0, 1), mode="append")
    assert rows(sql, "SELECT count(*) FROM numbers") == [(56,)]
    sql.execute("CREATE TABLE defaults (a int DEFAULT 1)")
    sql.execute("INSERT INTO defaults DEFAULT VALUES")
    [defaults] = (data / "sql" / "tables").glob("defaults-*")
    assert deltalake.DeltaTable(str(defaults)).to_pyarrow_table().to_pylist() == [{"a": 1}]
    assert tag(sql, "DELETE FROM numbers WHERE a >= 0") == "DELETE 56"
    # Other tests may have left a result open on the connection that DuckDB shares.
    with contextlib.suppress(duckdb.IOException, duckdb.HTTPException), duckdb.connect() as duck:
        # The extension is not everywhere to be had.
        duck.execute("LOAD delta")
        assert duck.execute(f"SELECT count(*) FROM delta_scan('{all_types}')").fetchall() == [(3,)]


def test_readers_may_not_write(tmp_path):
    create_data(str(tmp_path))
    add_user(str(tmp_path), "reader", "--role", "readAnyDatabase")
    add_user(str(tmp_path), "writer", "--role", "readWrite@forebay")
    server = start_tables("--data", str(tmp_path), "--auth")
    try:
        url = f"postgresql://{{}}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{server.port}/forebay"
        with psycopg.connect(url.format("writer"), autocommit=True) as writer:
            writer.execute("CREATE TABLE t (a int)")
            writer.execute("INSERT INTO t VALUES (1)")
        with psycopg.connect(url.format("reader"), autocommit=True) as reader:
            assert rows(reader, "SELECT a FROM t") == [(1,)]
            statements = ["INSERT INTO t VALUES (2)", "DELETE FROM t", "UPDATE t SET a = 2", "TRUNCATE t", "DROP TABLE t"]
            for statement in [*statements, "CREATE TABLE u (a int)", "COPY t FROM STDIN"]:
                with pytest.raises(errors.InsufficientPrivilege):
                    reader.execute(statement)
    finally:
        server.stop()


def test_tables_in_memory_end_with_the_server():
    server = start_tables("--memory")
    try:
        with psycopg.connect(server.sql, autocommit=True) as sql:
            sql.execute("CREATE TABLE t AS SELECT 1 AS a")
            assert rows(sql, "SELECT a FROM t") == [(1,)]
            sql.execute("DROP TABLE t")
    finally:
        server.stop()


def test_what_was_acknowledged_survives_kills(tmp_path):
    """Kills the server at random moments. Each statement inserts ten rows of a number, or moves them to another table."""
    chance = random.Random(int(os.environ.get("FOREBAY_SEED", "16")))
    acknowledged, attempted, updates = set(), set(), [0]

    def write(url, number):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
            for step in range(100_000):
                mark = number * 1_000_000 + step
                attempted.add(mark)
                connection.execute("INSERT INTO t SELECT %s, value FROM generate_series(1, 10) AS s (value)", (mark,))
                acknowledged.add(mark)
                if step % 5 == 4:
                    connection.execute("UPDATE t SET n = n + 10 WHERE a = %s", (mark,))
                    updates[0] += 1

    for life in range(KILLS):
        server = start_tables("--data", str(tmp_path))
        if life == 0:
            with psycopg.connect(server.sql, autocommit=True) as sql:
                sql.execute("CREATE TABLE t (a int, n bigint)")
        writers = [threading.Thread(target=write, args=(server.sql, life * 10 + number)) for number in range(2)]
        for writer in writers:
            writer.start()
        count = len(acknowledged) + chance.randrange(1, 60)
        until(lambda count=count: len(acknowledged) >= count)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        for writer in writers:
            writer.join()
    server = start_tables("--data", str(tmp_path))
    try:
        with psycopg.connect(server.sql, autocommit=True) as sql:
            found = dict(rows(sql, "SELECT a, count(*) FROM t GROUP BY a"))
            whole = rows(sql, "SELECT count(*) FROM (SELECT a FROM t GROUP BY a HAVING max(n) - min(n) <> 9)")
    finally:
        server.stop()
    assert set(found.values()) == {10}
    assert acknowledged <= set(found) <= attempted
    assert whole == [(0,)]
    assert updates[0] > 0


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path):
    """A limit on the size of files stands for a full disk: writes fail in the same way."""
    server = start_tables("--data", str(tmp_path))
    try:
        with psycopg.connect(server.sql, autocommit=True) as sql:
            sql.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 1000) AS s (value)")
            before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
            for statement in ("INSERT INTO t", "CREATE TABLE u AS"):
                with pytest.raises(errors.DiskFull):
                    sql.execute(f"{statement} SELECT random() * 1e9 AS a FROM generate_series(1, 2000000)")
            assert rows(sql, "SELECT count(*), sum(a) FROM t") == [(1000, 500_500)]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
            assert tag(sql, "INSERT INTO t VALUES (1)") == "INSERT 0 1"
            assert len(list((pathlib.Path(tmp_path) / "sql" / "tables").glob("*/*.parquet"))) == 2
    finally:
        server.stop()
