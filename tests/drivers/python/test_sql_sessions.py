"""Sessions of the tables door: cursors, pipelines, notices, many clients, and files that change under a query."""

import asyncio
import concurrent.futures
import os

import asyncpg
import psycopg
import pyarrow
import pyarrow.parquet
import pytest
from psycopg import errors
from servers import start_tables

MANY = "SELECT value FROM generate_series(1, 100000)"
GONE = {"58P01", "58030", "42P01", "XX001"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,age\nAda,36\nAlan,41\nGrace,\n")
    return folder


@pytest.fixture(scope="module")
def server(files):
    server = start_tables("--tables", str(files), "--memory", "--memory-bytes-max", "512MiB")
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


def test_cursors_move_and_outlive_their_transaction(sql):
    with sql.transaction():
        sql.execute("DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT value FROM generate_series(1, 100)")
        sql.execute("DECLARE plain CURSOR FOR SELECT 1")
        assert sql.execute("MOVE 10 IN held").statusmessage == "MOVE 10"
    assert sql.execute("FETCH NEXT FROM held").fetchall() == [(11,)]
    assert sql.execute("MOVE LAST FROM held").statusmessage == "MOVE 1"
    assert sql.execute("FETCH BACKWARD 2 FROM held").fetchall() == [(99,), (98,)]
    assert sql.execute("MOVE BACKWARD ALL IN held").statusmessage == "MOVE 97"
    assert sql.execute("FETCH ABSOLUTE 50 FROM held").fetchall() == [(50,)]
    assert sql.execute("FETCH RELATIVE -5 FROM held").fetchall() == [(45,)]
    assert sql.execute("FETCH FORWARD ALL FROM held").rowcount == 55
    with pytest.raises(errors.InvalidCursorName):
        sql.execute("FETCH 1 FROM plain")
    sql.execute("CLOSE held")
    with pytest.raises(errors.InvalidCursorName):
        sql.execute("FETCH 1 FROM held")
    with sql.transaction(), sql.cursor("forward", scrollable=False) as cursor:
        cursor.execute("SELECT value FROM generate_series(1, 10)")
        assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
        with pytest.raises(errors.ObjectNotInPrerequisiteState), sql.transaction():
            sql.execute("FETCH BACKWARD 1 FROM forward")


def test_two_cursors_and_other_statements_take_turns(sql):
    with sql.transaction(), sql.cursor("one", binary=True) as one, sql.cursor("other") as other:
        one.itersize = other.itersize = 10
        one.execute("SELECT value FROM generate_series(1, 95)")
        other.execute("SELECT value * 2 FROM generate_series(1, 95)")
        pairs = [(a, b, sql.execute("SELECT %s::int", (a,)).fetchone()[0]) for (a,), (b,) in zip(one, other)]
    assert pairs == [(n, 2 * n, n) for n in range(1, 96)]


def test_pipelines_go_on_after_an_error_and_a_sync(sql):
    with sql.pipeline() as pipeline:
        good = sql.execute("SELECT 1")
        bad, skipped = sql.cursor(), sql.cursor()
        with pytest.raises(errors.DivisionByZero):
            bad.execute("SELECT 1 / 0")
            # Reads what has arrived, which may be the error.
            skipped.execute("SELECT 2")
            pipeline.sync()
        pipeline.sync()
        after = sql.execute("SELECT 3")
        assert (good.fetchone(), after.fetchone()) == ((1,), (3,))
        for failed in (bad, skipped):
            with pytest.raises(psycopg.ProgrammingError):
                failed.fetchone()
    cursor = sql.cursor()
    cursor.executemany("SELECT %s::int * 2", [(n,) for n in range(50)], returning=True)
    doubled = [cursor.fetchone()[0]]
    while cursor.nextset():
        doubled.append(cursor.fetchone()[0])
    assert doubled == [2 * n for n in range(50)]


def test_prepared_statements_are_reused_and_forgotten(sql):
    sql.prepare_threshold = 2
    for number in range(10):
        assert sql.execute("SELECT %s::int + 1", (number,)).fetchone() == (number + 1,)
    sql.prepared_max = 3
    for number in range(20):
        for _ in range(4):
            assert sql.execute(f"SELECT {number} + %s::int", (1,)).fetchone() == (number + 1,)
    sql.execute("PREPARE mine (int) AS SELECT $1 * 3")
    assert sql.execute("EXECUTE mine (14)").fetchone() == (42,)
    sql.execute("DEALLOCATE ALL")
    with pytest.raises(errors.InvalidSqlStatementName):
        sql.execute("EXECUTE mine (14)")


def test_prepared_statements_do_not_execute_each_other_without_end(sql):
    for statement in ("PREPARE a AS SELECT 1", "PREPARE b AS EXECUTE a", "DEALLOCATE a", "PREPARE a AS EXECUTE b"):
        sql.execute(statement)
    with pytest.raises(errors.FeatureNotSupported):
        sql.execute("EXECUTE a")
    assert sql.execute("SELECT 1").fetchone() == (1,)


def test_statements_that_are_not_utf8_are_refused(server):
    with psycopg.connect(server.sql, autocommit=True) as sql, pytest.raises(psycopg.OperationalError, match="UTF-8"):
        sql.execute(b"SELECT '\xff'")
    with psycopg.connect(server.sql, autocommit=True) as sql:
        assert sql.execute("SELECT 'é'").fetchone() == ("é",)


def test_notices_and_reported_settings_arrive(sql):
    notices = []
    sql.add_notice_handler(lambda notice: notices.append((notice.sqlstate, notice.message_primary)))
    sql.execute("ROLLBACK")
    sql.execute("BEGIN; BEGIN; COMMIT")
    assert [state for state, _ in notices] == ["25P01", "25001"]
    sql.execute("SET TimeZone = 'Asia/Tokyo'")
    assert sql.info.parameter_status("TimeZone") == "Asia/Tokyo"
    (moment,) = sql.execute("SELECT timestamptz '2026-01-01 00:00:00Z'").fetchone()
    assert moment.utcoffset().total_seconds() == 9 * 3600 and moment.hour == 9


def test_asyncpg_prepares_and_fetches_many_rows(server):
    async def run():
        connection = await asyncpg.connect(server.sql)
        rows = await connection.fetch(MANY)
        assert len(rows) == 100_000 and rows[-1][0] == 100_000
        statement = await connection.prepare("SELECT name, age FROM people WHERE age >= $1::bigint ORDER BY name")
        assert [each.name for each in statement.get_attributes()] == ["name", "age"]
        assert [each.name for each in statement.get_parameters()] == ["int8"]
        for age, count in [(0, 2), (40, 1), (50, 0)] * 4:
            assert len(await statement.fetch(age)) == count
        async with connection.transaction(readonly=True, isolation="repeatable_read"):
            cursor = await connection.cursor(MANY)
            assert [row[0] for row in await cursor.fetch(3)] == [1, 2, 3]
            assert (await cursor.fetchrow())[0] == 4
        async with asyncpg.create_pool(server.sql, min_size=4, max_size=4) as pool:
            sums = await asyncio.gather(*(pool.fetchval("SELECT $1::int + 1", number) for number in range(100)))
            assert sums == list(range(1, 101))
        await connection.close()

    asyncio.run(run())


def test_five_hundred_clients_at_once(server, sql):
    def ask(number):
        with psycopg.connect(server.sql, autocommit=True) as connection:
            return connection.execute("SELECT count(*) + %s FROM people", (number,)).fetchone()[0]

    with concurrent.futures.ThreadPoolExecutor(500) as pool:
        answers = list(pool.map(ask, range(500)))
    assert answers == [number + 3 for number in range(500)]
    assert sql.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("lenght", "length"), ("date_trnc", "date_trunc")],
)
def test_unknown_functions_name_the_nearest(sql, name, nearest):
    with pytest.raises(errors.UndefinedFunction) as caught:
        sql.execute(f"SELECT {name}(name) FROM people")
    assert nearest in str(caught.value), caught.value


def write_numbers(path, first, columns=1):
    """Writes 200,000 rows in 100 row groups."""
    numbers = pyarrow.array(range(first, first + 200_000))
    table = pyarrow.table({f"n{column}": numbers for column in range(columns)})
    pyarrow.parquet.write_table(table, f"{path}.new", row_group_size=2000)
    os.replace(f"{path}.new", path)


@pytest.mark.parametrize("change", ["deleted", "truncated", "replaced", "widened"])
def test_a_file_that_changes_under_a_query_harms_only_the_query(server, sql, files, change):
    path = files / f"{change}.parquet"
    write_numbers(path, 0)
    with psycopg.connect(server.sql) as connection:
        connection.execute(f"DECLARE c CURSOR FOR SELECT n0 FROM {change}")
        (first,) = connection.execute("FETCH 1 FROM c").fetchone()
        if change == "deleted":
            path.unlink()
        elif change == "truncated":
            os.truncate(path, 1000)
        else:
            write_numbers(path, 1_000_000, columns=2 if change == "widened" else 1)
        try:
            numbers = [number for (number,) in connection.execute("FETCH ALL FROM c")]
        except psycopg.Error as error:
            assert error.sqlstate in GONE, error
        else:
            assert sorted([first, *numbers]) == list(range(200_000)), "all rows, of one version"
    assert sql.execute("SELECT 1").fetchone() == (1,)
    path.unlink(missing_ok=True)


def test_the_schema_of_a_file_changes_between_queries(sql, files):
    path = files / "moving.csv"
    seen = []
    for text in ("a\n1\n", "a\nx\n", "a,b\n1,2\n", "b\n2.5\n"):
        path.write_text(text)
        cursor = sql.execute("SELECT * FROM moving", prepare=False)
        seen.append(([column.name for column in cursor.description], cursor.fetchall()))
    assert [names for names, _ in seen] == [["a"], ["a"], ["a", "b"], ["b"]]
    assert [rows[0][0] for _, rows in seen] == [1, "x", 1, 2.5]
    # The columns of a statement that was prepared stay as they were described, or it fails as in PostgreSQL.
    path.write_text("a\n1\n")
    for text in ("a\n1\n", "a\nx\n", "a,b\n1,2\n"):
        path.write_text(text)
        try:
            sql.execute("SELECT * FROM moving", prepare=True).fetchall()
        except psycopg.Error as error:
            assert error.sqlstate in ("0A000", "22P02", "42703"), error
    path.unlink()
    with pytest.raises(errors.UndefinedTable):
        sql.execute("SELECT * FROM moving", prepare=False)
    assert sql.execute("SELECT 1").fetchone() == (1,)


def test_settings_that_ask_for_a_gpu_are_refused_without_one(sql):
    for name, default, other in [("gpu", "auto", "off"), ("compile", "background", "wait"), ("strict", "off", "off")]:
        assert sql.execute(f"SHOW forebay.{name}").fetchone() == (default,)
        sql.execute(f"SET forebay.{name} = {other}")
        assert sql.execute(f"SHOW forebay.{name}").fetchone() == (other,)
    for name, value in [("gpu", "on"), ("strict", "on"), ("STRICT", "true")]:
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has no GPU"):
            sql.execute(f"SET forebay.{name} = {value}")
    with pytest.raises(errors.InvalidParameterValue, match="forebay.gpu"):
        sql.execute("SET forebay.gpu = fast")
    sql.execute("RESET ALL")
    assert sql.execute("SHOW forebay.gpu").fetchone() == ("auto",)
