"""COPY ... TO STDOUT with psycopg, asyncpg and psql."""

import asyncio
import csv
import datetime
import decimal
import io
import shutil
import subprocess
import threading

import asyncpg
import psycopg
import pytest
from psycopg import errors
from servers import start_tables
from waiting import pace

ENDLESS = "SELECT value FROM generate_series(1, 100000000000)"
HARD = [("a\tb", "x,y"), ('"quoted"', "line\nbreak\r"), ("\\N", ""), ("\\.", None), (None, "é\x01")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,age\nAda,36\nAlan,41\nGrace,\n")
    server = start_tables("--tables", str(folder), "--memory", "--memory-bytes-max", "512MiB")
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


def copied(sql, statement, parameters=None):
    """Returns the bytes of a COPY, and the number of its rows."""
    cursor = sql.cursor()
    with cursor.copy(statement, parameters) as copy:
        data = b"".join(bytes(part) for part in copy)
    return data, cursor.rowcount


def test_tables_and_queries_are_copied(sql):
    assert copied(sql, "COPY people TO STDOUT") == (b"Ada\t36\nAlan\t41\nGrace\t\\N\n", 3)
    assert copied(sql, "COPY public.people (age) TO STDOUT WITH NULL 'none'")[0] == b"36\n41\nnone\n"
    assert copied(sql, "COPY (SELECT 1 WHERE false) TO STDOUT") == (b"", 0)
    query = "COPY (SELECT name FROM people WHERE age > 40) TO STDOUT CSV HEADER FORCE QUOTE *"
    assert copied(sql, query)[0] == b'name\n"Alan"\n'
    query = "COPY (SELECT true, 1.50::numeric(5, 2), date '2020-02-29') TO STDOUT (DELIMITER '|', HEADER false)"
    assert copied(sql, query)[0] == b"t|1.50|2020-02-29\n"
    assert copied(sql, "COPY (SELECT %s::int + 1) TO STDOUT", (41,))[0] == b"42\n"
    query = "COPY (SELECT relname FROM pg_catalog.pg_class WHERE relname = 'people') TO STDOUT"
    assert copied(sql, query)[0] == b"people\n"


def test_hard_values_are_read_back_from_every_format(sql):
    rows = ", ".join(literal(row) for row in HARD)
    query = f"COPY (SELECT * FROM (VALUES {rows}) t (a, b)) TO STDOUT"
    for options in ("", "(FORMAT binary)"):
        with sql.cursor().copy(f"{query} {options}") as copy:
            copy.set_types(["text", "text"])
            assert list(copy.rows()) == HARD, options
    data, _ = copied(sql, f"{query} (FORMAT csv, NULL 'NIL')")
    read = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert [tuple(None if value == "NIL" else value for value in row) for row in read] == HARD


def literal(row):
    values = ("NULL" if value is None else "'" + value.replace("'", "''") + "'" for value in row)
    return f"({', '.join(values)})"


def test_values_of_all_types_are_copied_in_text_and_binary(sql):
    types = {
        "bool": True, "int2": -3, "int4": 1 << 20, "int8": 1 << 40, "float4": 1.5, "float8": 0.1,
        "numeric": decimal.Decimal("-12.3400"), "text": "é", "bytea": b"\0\xff", "date": datetime.date(1999, 12, 31),
        "time": datetime.time(1, 2, 3, 4), "timestamp": datetime.datetime(2020, 1, 1, 1, 2, 3, 1),
        "timestamptz": datetime.datetime(2019, 12, 31, 23, 2, 3, tzinfo=datetime.timezone.utc),
        "interval": datetime.timedelta(days=1, hours=2), "int4[]": [1, 2, None],
    }  # fmt: skip
    query = """SELECT true, -3::int2, 1048576::int4, 1099511627776::int8, 1.5::float4, 0.1::float8,
        -12.3400::numeric(10, 4), 'é'::text, decode('00ff', 'hex'), date '1999-12-31', time '01:02:03.000004',
        timestamp '2020-01-01 01:02:03.000001', timestamptz '2020-01-01 01:02:03+02', interval '1 day 2 hours',
        ARRAY[1, 2, NULL]::int4[]"""
    for options in ("", "(FORMAT binary)", "BINARY"):
        with sql.cursor().copy(f"COPY ({query}) TO STDOUT {options}") as copy:
            copy.set_types(list(types))
            assert list(copy.rows()) == [tuple(types.values())], options


@pytest.mark.parametrize(
    "statement, state, part",
    [
        ("COPY missing TO STDOUT", "42P01", "missing"),
        ("COPY people (nme) TO STDOUT", "42703", "nme"),
        ("COPY (SELECT nme FROM people) TO STDOUT", "42703", "nme"),
        ("COPY people TO STDOUT (FORMAT parquet)", "22023", "parquet"),
        ("COPY people TO STDOUT (FREEZE)", "0A000", "freeze"),
        ("COPY people TO STDOUT (NOTHING)", "42601", "nothing"),
        ("COPY people TO STDOUT (FORMAT csv, FORCE_QUOTE (nme))", "42703", "nme"),
        ("COPY people TO STDOUT (ENCODING 'latin1')", "0A000", "latin1"),
        ("COPY people TO STDOUT (FORMAT binary, DELIMITER ',')", "42601", "DELIMITER"),
        ("COPY people TO PROGRAM 'cat'", "0A000", "PROGRAM"),
        ("COPY people TO 'people.csv'", "0A000", "a file"),
        ("COPY people FROM 'people.csv'", "0A000", "COPY FROM"),
        ("COPY people FROM STDIN", "42809", "no managed table"),
        ("COPY people FROM STDIN (FORMAT csv, FORCE_NULL (a))", "0A000", "FORCE_NULL"),
        ("COPY (DELETE FROM people) TO STDOUT", "0A000", ""),
    ],
)
def test_what_cannot_be_copied_is_refused(sql, statement, state, part):
    with pytest.raises(psycopg.Error) as caught:
        sql.execute(statement)
    assert caught.value.sqlstate == state, caught.value
    assert part in caught.value.diag.message_primary, caught.value
    assert sql.execute("SELECT 1").fetchone() == (1,)


def test_errors_and_cancellations_end_a_copy_and_not_the_session(server, sql):
    with pytest.raises(errors.DivisionByZero), sql.cursor().copy(
        "COPY (SELECT 1 / (90000 - value) FROM generate_series(1, 100000)) TO STDOUT"
    ) as copy:
        assert sum(len(part) for part in copy) > 0
    timer = threading.Timer(0.3, sql.cancel)
    timer.start()
    with pytest.raises(errors.QueryCanceled), sql.cursor().copy(f"COPY ({ENDLESS}) TO STDOUT (FORMAT binary)") as copy:
        for _ in copy:
            pass
    timer.join()
    sql.execute("SET statement_timeout = 100")
    with pytest.raises(errors.QueryCanceled), sql.cursor().copy(f"COPY ({ENDLESS}) TO STDOUT") as copy:
        for _ in copy:
            pass
    sql.execute("RESET statement_timeout")
    # psycopg cancels a COPY that ends by an exception.
    with pytest.raises(KeyError), sql.cursor().copy(f"COPY ({ENDLESS}) TO STDOUT") as copy:
        assert bytes(copy.read()) == b"1\n"
        raise KeyError
    assert sql.execute("SELECT 1").fetchone() == (1,)
    with sql.transaction():
        assert copied(sql, "COPY (SELECT 1) TO STDOUT")[0] == b"1\n"
        assert sql.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_a_copy_whose_client_does_not_read_does_not_fill_the_memory(server, sql):
    connection = psycopg.connect(server.sql, autocommit=True)
    connection.pgconn.send_query(b"COPY (SELECT repeat('x', 1000) FROM generate_series(1, 10000000)) TO STDOUT")
    pace(1)
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert resident < 512 * 1024, "of 10 GB"
    assert sql.execute("SELECT 1").fetchone() == (1,)
    connection.pgconn.finish()


def test_other_statements_surround_a_copy(sql):
    results = []
    sql.pgconn.send_query(b"SELECT 1; COPY (SELECT 2) TO STDOUT; SELECT 3; COPY (SELECT 4) TO STDOUT CSV")
    while result := sql.pgconn.get_result():
        if result.status == psycopg.pq.ExecStatus.COPY_OUT:
            size, data = sql.pgconn.get_copy_data(0)
            results.append(bytes(data[:size]))
            assert sql.pgconn.get_copy_data(0)[0] == -1
        elif result.ntuples:
            results.append(result.get_value(0, 0))
    assert results == [b"1", b"2\n", b"3", b"4\n"]


def test_asyncpg_copies(server):
    async def run():
        connection = await asyncpg.connect(server.sql)
        data = io.BytesIO()
        query = "SELECT value, value * 2 FROM generate_series(1, 100000) WHERE value <= $1::int"
        assert await connection.copy_from_query(query, 20000, output=data, format="csv") == "COPY 20000"
        assert sorted(map(int, data.getvalue().replace(b",", b" ").split()))[-1] == 40_000
        data = io.BytesIO()
        status = await connection.copy_from_table("people", columns=["name", "age"], output=data, null="-", header=True,
                                                  format="csv", force_quote=["name"])  # fmt: skip
        assert (status, data.getvalue()) == ("COPY 3", b'name,age\n"Ada",36\n"Alan",41\n"Grace",-\n')
        with pytest.raises(asyncpg.WrongObjectTypeError):
            await connection.copy_to_table("people", source=io.BytesIO(b"x\t1\n"))
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql_copies(server, tmp_path):
    def psql(command):
        return subprocess.run(
            ["psql", "-X", "-d", server.sql, "-c", command], text=True, capture_output=True, check=False
        )

    done = psql(f"\\copy people to '{tmp_path}/people.csv' csv header")
    assert done.stdout == "COPY 3\n", done
    assert (tmp_path / "people.csv").read_text() == "name,age\nAda,36\nAlan,41\nGrace,\n"
    done = psql(f"\\copy (select value from generate_series(1, 100000)) to '{tmp_path}/numbers' with (format binary)")
    assert done.stdout == "COPY 100000\n", done
    assert (tmp_path / "numbers").stat().st_size == 19 + 100_000 * (2 + 4 + 8) + 2
    assert psql("COPY people TO STDOUT").stdout == "Ada\t36\nAlan\t41\nGrace\t\\N\n"
    refused = psql(f"\\copy people from '{tmp_path}/people.csv' csv")
    assert "it is no managed table" in refused.stderr and refused.returncode == 1
