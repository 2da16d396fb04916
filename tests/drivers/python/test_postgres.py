"""The tables door: PostgreSQL's protocol with psycopg, asyncpg and psql, and without a driver."""

import asyncio
import datetime
import decimal
import shutil
import socket
import struct
import subprocess
import threading

import asyncpg
import psycopg
import pymongo
import pytest
from psycopg import errors
from servers import PASSWORD, add_user, create_data
from servers import start_tables as start
from waiting import pace, until

ENDLESS = "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b"


DOUBLED = "".join(f", c{n} AS (SELECT a.x FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 30))
DOUBLING = f"WITH c0 AS (SELECT 1 AS x){DOUBLED} SELECT * FROM c29"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,age\nAda,36\nAlan,41\nGrace,\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (folder / "broken.parquet").write_bytes(b"PAR1 without a footer")
    for year in (2024, 2025):
        (folder / f"sales/year={year}").mkdir(parents=True)
        (folder / f"sales/year={year}/a.jsonl").write_text(f'{{"amount": {year}.5}}\n')
    return folder


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    server = start("--data", str(tmp_path_factory.mktemp("data")), "--tables", str(files), "--memory-bytes-max", "512MiB")
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


def test_values_of_all_types_arrive_in_text_and_binary(sql):
    query = """SELECT true, 1::smallint, 2::int, 3::bigint, 1.5::real, 2.5::float8, 1.50::numeric(10,2), 'é'::text,
        'x'::bytea, date '2020-02-29', time '01:02:03.5', timestamp '2020-01-01 01:02:03.000001',
        timestamptz '2020-01-01 01:02:03+02', interval '1 day 2 hours', array[1, 2, NULL], NULL"""
    expected = (
        True, 1, 2, 3, 1.5, 2.5, decimal.Decimal("1.50"), "é", b"x", datetime.date(2020, 2, 29),
        datetime.time(1, 2, 3, 500000), datetime.datetime(2020, 1, 1, 1, 2, 3, 1),
        datetime.datetime(2019, 12, 31, 23, 2, 3, tzinfo=datetime.timezone.utc), datetime.timedelta(days=1, hours=2),
        [1, 2, None], None,
    )  # fmt: skip
    for binary in (False, True):
        row = sql.cursor(binary=binary).execute(query).fetchone()
        assert row == expected, f"binary {binary}"


def test_parameters_of_all_types_return_as_they_were_sent(sql):
    values = (True, 7, 2**40, 1.25, decimal.Decimal("12345678901234567890.0100"), "it's", b"\x00\xff",
              datetime.date(1999, 12, 31), datetime.datetime(2020, 1, 1, 1, 2, 3), datetime.timedelta(days=3),
              [1, 2, 3], None)  # fmt: skip
    for marker in ("%s", "%b", "%t"):
        for value in values:
            assert sql.execute(f"SELECT {marker}", (value,)).fetchone() == (value,), f"{marker} {value!r}"
    rows = sql.execute("SELECT name FROM people WHERE age > %s AND name LIKE %s", (40, "A%")).fetchall()
    assert rows == [("Alan",)]


def test_prepared_statements_see_changed_files(sql, files):
    path = files / "changing.csv"
    path.write_text("a\n1\n")
    for total, text in [(1, "a\n1\n"), (5, "a\n2\n3\n"), (6, "b,a\n7,6\n")] * 3:
        path.write_text(text)
        assert sql.execute("SELECT sum(a) FROM changing WHERE a > %s", (0,), prepare=True).fetchone() == (total,)
    path.unlink()
    with pytest.raises(psycopg.Error) as caught:
        sql.execute("SELECT sum(a) FROM changing WHERE a > %s", (0,), prepare=True)
    assert caught.value.sqlstate == "42P01"


def test_server_side_cursors_stream_and_scroll(sql):
    with sql.transaction(), sql.cursor("few") as cursor:
        cursor.itersize = 700
        cursor.execute("SELECT value FROM generate_series(1, 10000) WHERE value > %s ORDER BY 1", (5,))
        assert [row[0] for row in cursor] == list(range(6, 10001))
    with sql.transaction(), sql.cursor("back", scrollable=True) as cursor:
        cursor.execute("SELECT value FROM generate_series(1, 10)")
        cursor.scroll(9)
        assert cursor.fetchone() == (10,)
        cursor.scroll(-3)
        assert cursor.fetchone() == (8,)
        cursor.scroll(0, mode="absolute")
        assert cursor.fetchmany(2) == [(1,), (2,)]
    with sql.cursor("held", withhold=True) as cursor:
        cursor.execute("SELECT value FROM generate_series(1, 3)")
        assert cursor.fetchall() == [(1,), (2,), (3,)]


def test_pipelines_and_several_statements(sql):
    with sql.pipeline():
        cursors = [sql.execute("SELECT %s::int + 1", (number,)) for number in range(100)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(1, 101))
    cursor = sql.execute("SELECT 1; SELECT 2; SHOW application_name")
    assert cursor.fetchone() == (1,)
    assert cursor.nextset() and cursor.fetchone() == (2,)
    with pytest.raises(errors.DivisionByZero):
        sql.execute("SELECT 1; SELECT 1/0; SELECT 3")
    assert sql.execute("").rowcount == -1


def test_transactions_savepoints_and_settings(server):
    with psycopg.connect(server.sql, options="-c statement_timeout=5s", application_name="test") as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("5s",)
        assert connection.info.parameter_status("application_name") == "test"
        with pytest.raises(errors.UndefinedTable), connection.transaction():
            connection.execute("SELECT * FROM missing")
        assert connection.execute("SELECT 1").fetchone() == (1,), "the savepoint was rolled back"
        with pytest.raises(errors.UndefinedTable):
            connection.execute("SELECT * FROM missing")
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        with pytest.raises(errors.ReadOnlySqlTransaction):
            connection.execute("CREATE VIEW v AS SELECT 1")
        connection.rollback()
        connection.execute("SET statement_timeout = 100")
        connection.commit()
        with pytest.raises(errors.QueryCanceled):
            connection.execute(ENDLESS)


def test_declarations_are_for_all_clients(server, sql, files):
    path = files / "sales/year=2025/a.jsonl"
    sql.execute(f"CREATE EXTERNAL TABLE declared STORED AS JSON LOCATION '{path}'")
    sql.execute("CREATE VIEW doubled AS SELECT amount * 2 AS amount FROM declared")
    with psycopg.connect(server.sql, autocommit=True) as other:
        assert other.execute("SELECT amount FROM doubled").fetchone() == (4051.0,)
        with pytest.raises(errors.DuplicateTable):
            other.execute("CREATE VIEW doubled AS SELECT 1")
        other.execute("DROP VIEW doubled")
        other.execute("DROP TABLE declared")
    notices = []
    sql.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    sql.execute("DROP VIEW IF EXISTS doubled")
    assert notices == ['view "doubled" does not exist, skipping']


def test_external_tables_keep_their_columns_and_options(tmp_path):
    (tmp_path / "codes.csv").write_text("01;x\n02;it''s\n")
    for statement in (f"""CREATE EXTERNAL TABLE codes (code text, "a name" text) STORED AS CSV
                          LOCATION '{tmp_path}/codes.csv' OPTIONS ('format.has_header' 'false', 'format.delimiter' ';')""", None):
        server = start("--data", str(tmp_path / "data"), "--tables-paths", str(tmp_path))
        with psycopg.connect(server.sql, autocommit=True) as sql:
            if statement:
                sql.execute(statement)
            assert sql.execute('SELECT code, "a name" FROM codes ORDER BY 1').fetchall() == [("01", "x"), ("02", "it''s")]
        server.stop()


def test_csv_files_of_a_table_have_one_header(sql, files):
    for name, text in [("1", "a,b\n1,2\n"), ("2", "a,b\r\n3,4\r\n"), ("3", "b,a\n6,5\n")]:
        (files / f"header{name}.csv").write_text(text)
    assert sql.execute(f"SELECT a, b FROM '{files}/header[12].csv' ORDER BY a").fetchall() == [(1, 2), (3, 4)]
    with pytest.raises(errors.DatatypeMismatch, match=r"header3\.csv is b,a, and that of .*header1\.csv is a,b"):
        sql.execute(f"SELECT a, b FROM '{files}/header[13].csv'")
    (files / "nothing.parquet").write_bytes(b"")
    with pytest.raises(psycopg.Error, match="nothing.parquet is empty"):
        sql.execute(f"SELECT * FROM '{files}/nothing.parquet'")
    for name in ("header1.csv", "header2.csv", "header3.csv", "nothing.parquet"):
        (files / name).unlink()


def test_a_folder_of_tables_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="there is no folder"):
        start("--memory", "--tables", str(tmp_path / "missing"))


def test_folders_are_tables_with_their_partitions(sql):
    rows = sql.execute("SELECT year, amount FROM sales ORDER BY 1").fetchall()
    assert [(int(year), amount) for year, amount in rows] == [(2024, 2024.5), (2025, 2025.5)]


@pytest.mark.parametrize(
    ("statement", "state", "part"),
    [
        ("SELEC 1", "42601", "SELEC"),
        ("SELECT nme FROM people", "42703", "nme"),
        ("SELECT lenght(name) FROM people", "42883", "lenght"),
        ("SELECT * FROM missing", "42P01", "missing"),
        ("SELECT 1 / 0", "22012", "zero"),
        ("SELECT 'x'::int", "22P02", "x"),
        ("SELECT * FROM ragged", "22P04", "3"),
        ("SELECT * FROM broken", "XX001", "Parquet"),
        ("SELECT * FROM '/etc/passwd.csv'", "42501", "/etc/passwd.csv"),
        ("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'", "42501", "/etc/passwd"),
        ("COPY people TO '/tmp/x.csv'", "0A000", "COPY"),
        ("INSERT INTO people VALUES ('x', 1)", "42809", "people"),
        ("CREATE TABLE x (a int PRIMARY KEY)", "0A000", "PRIMARY KEY"),
        ("SELECT * INTO x FROM people", "0A000", ""),
        ("SET datafusion.execution.batch_size = 1", "42501", "batch_size"),
        ("SELECT " + "(" * 10_000 + "1" + ")" * 10_000, "54001", "parentheses"),
        ("SELECT " + "abs((" * 300 + "1" + "))" * 300, "54001", "in each other"),
        ("SELECT " + "+".join(["1"] * 100_000), "54001", "operators"),
        (" UNION ALL ".join(["SELECT 1"] * 5_000), "54001", "queries"),
        ("SELECT " + ", ".join(f"{n} AS c{n}" for n in range(20_000)), "54001", "columns"),
        ("SELECT " + "row(" * 40 + "1" + ")" * 40, "54001", "structures"),
        ("SELECT a" + ".b" * 100_000, "54001", "parts"),
        (DOUBLING, "54001", "name each other"),
        ("SELECT length(repeat('x', 2000000000))", "54000", "repeat"),
        ("SELECT array_length(range(1, 1000000000))", "54000", "range"),
        ("SELECT '" + "x" * (17 << 20) + "'", "54001", "longer"),
        ("SELECT $1", "42P02", "$1"),
        ("FETCH 1 FROM nothing", "34000", "nothing"),
        ("EXECUTE nothing", "26000", "nothing"),
    ],
)
def test_errors_have_their_codes(sql, statement, state, part):
    with pytest.raises(psycopg.Error) as caught:
        sql.execute(statement)
    assert caught.value.sqlstate == state, caught.value
    assert part in str(caught.value)
    assert sql.execute("SELECT 1").fetchone() == (1,), "the session goes on"


def test_calls_in_each_other_do_not_hold_up_others(server, sql):
    """sqlparser alone takes hours for the first, and DataFusion cannot stop the second."""
    assert sql.execute("SELECT " + "abs(" * 60 + "1" + ")" * 60).fetchone() == (1,)
    busy = [psycopg.connect(server.sql, autocommit=True) for _ in range(4)]
    for connection in busy:
        connection.execute("SET statement_timeout = 200")
        connection.pgconn.send_query(b"SELECT levenshtein(repeat('x', 30000), repeat('y', 30000))")
    assert sql.execute("SELECT %s::int", (1,)).fetchone() == (1,)
    for connection in busy:
        connection.pgconn.finish()


def test_types_of_a_union_fit(sql):
    rows = sql.execute("SELECT 1 AS a UNION ALL SELECT 2.5 ORDER BY a").fetchall()
    assert rows == [(decimal.Decimal("1.0"),), (decimal.Decimal("2.5"),)]


def test_links_to_other_files_are_not_read(sql, files, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    (files / "link.csv").symlink_to(secret)
    (files / "linked").symlink_to(tmp_path)
    for table in ("link", "linked", f"'{files}/lin*.csv'", f"'{files}/linked/*.csv'", f"'{files}/*/secret.csv'"):
        with pytest.raises(errors.InsufficientPrivilege):
            sql.execute(f"SELECT * FROM {table}")
    (files / "link.csv").unlink()
    (files / "linked").unlink()


def test_errors_have_their_position(sql):
    with pytest.raises(errors.UndefinedColumn) as caught:
        sql.execute("SELECT 'é',\n  nme FROM people")
    assert caught.value.diag.statement_position == "15"


def test_a_statement_is_cancelled_and_the_others_are_not(server, sql):
    with psycopg.connect(server.sql, autocommit=True) as other:
        timer = threading.Timer(0.3, sql.cancel)
        timer.start()
        with pytest.raises(errors.QueryCanceled):
            sql.execute(ENDLESS)
        timer.join()
        assert other.execute("SELECT 1").fetchone() == (1,)
    assert sql.execute("SELECT 1").fetchone() == (1,)


def busy_threads(server):
    """Returns the processor time that the server used so far, in ticks."""
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_the_statement_of_a_client_that_leaves_ends(server):
    connection = psycopg.connect(server.sql, autocommit=True)
    connection.pgconn.send_query(ENDLESS.encode())
    pace(0.3)
    connection.pgconn.finish()

    def is_idle():
        before = busy_threads(server)
        pace(0.2)
        return busy_threads(server) - before <= 4

    until(is_idle)


def test_a_client_that_does_not_read_does_not_fill_the_memory(server, sql):
    connection = psycopg.connect(server.sql, autocommit=True)
    connection.pgconn.send_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 10000000)")
    pace(1)
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert resident < 512 * 1024, "of 10 GB"
    assert sql.execute("SELECT 1").fetchone() == (1,)
    connection.pgconn.finish()


def raw(server, data):
    """Sends bytes on a new connection, and returns what comes back until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


def startup(**parameters):
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", len(body) + 8, 3 << 16) + body


def test_malformed_messages_end_only_their_connection(server, sql):
    hello = startup(user="ada", database="forebay")
    for data in (
        b"", b"\0", b"\0\0\0\4", b"GET / HTTP/1.1\r\n\r\n", struct.pack("!ii", 8, 80877102),
        struct.pack("!ii", -1, 3 << 16), struct.pack("!ii", 1 << 30, 3 << 16), struct.pack("!ii", 9, 2 << 16) + b"\0",
        struct.pack("!ii", 12, 3 << 16) + b"\xff\xff\xff\xff",
        hello + b"Q\0\0\0\0", hello + b"Q\0\0\0\3", hello + b"Q\xff\xff\xff\xff", hello + b"Q\0\0\0\5x",
        hello + b"B\0\0\0\x0c\0\0\xff\xff\xff\xff\xff\xff", hello + b"!\0\0\0\4", hello + b"P\0\0\0\4",
        hello + b"D\0\0\0\6X\0", hello + b"E\0\0\0\4", hello + b"C\0\0\0\5S", hello + b"p\0\0\0\4",
    ):  # fmt: skip
        raw(server, data)
        assert sql.execute("SELECT 1").fetchone() == (1,), data
    for parameters, state in [
        ({"database": "forebay"}, b"28000"),
        ({"user": "ada", "database": "other"}, b"3D000"),
        ({"user": "ada", "database": "forebay", "nothing": "1"}, b"42704"),
        ({"user": "ada", "database": "forebay", "client_encoding": "latin1"}, b"22023"),
        ({"user": "ada", "database": "forebay", "replication": "true"}, b"0A000"),
    ]:
        answer = raw(server, startup(**parameters))
        assert b"FATAL" in answer and state in answer, answer


def test_five_hundred_connections(server):
    connections = [psycopg.connect(server.sql, autocommit=True) for _ in range(500)]
    assert {connection.execute("SELECT 1").fetchone() for connection in connections} == {(1,)}
    for connection in connections:
        connection.close()


def test_a_query_without_memory_fails_alone(files, tmp_path):
    server = start("--data", str(tmp_path), "--tables-memory-bytes-max", "16MiB", "--tables-spill-bytes-max", "1MiB")
    with psycopg.connect(server.sql, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT count(DISTINCT value * 7919 % 20000003) FROM generate_series(1, 20000000)")
        assert caught.value.sqlstate in ("53100", "53200")
        assert "--tables-" in caught.value.diag.message_hint
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()


def test_asyncpg(server):
    async def run():
        connection = await asyncpg.connect(server.sql)
        rows = await connection.fetch("SELECT name, age FROM people WHERE age > $1 ORDER BY 1", 10)
        assert [tuple(row) for row in rows] == [("Ada", 36), ("Alan", 41)]
        async with connection.transaction():
            cursor = connection.cursor("SELECT value FROM generate_series(1, 500)", prefetch=50)
            assert [row[0] async for row in cursor] == list(range(1, 501))
            cursor = await connection.cursor("SELECT value FROM generate_series(1, 20000)")
            assert (await cursor.fetchrow())[0] == 1
            assert await cursor.forward(9998) == 9998
            assert [row[0] for row in await cursor.fetch(2)] == [10000, 10001]
            assert await cursor.forward(1_000_000) == 9999
            assert await cursor.fetchrow() is None
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.fetch("SELECT * FROM missing")
        with pytest.raises(asyncio.TimeoutError):
            await connection.fetch(ENDLESS, timeout=0.3)
        await connection.reset()
        assert await connection.fetchval("SELECT $1::int + 1", 41) == 42
        await connection.close()

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql(server):
    def psql(*commands):
        arguments = [argument for command in commands for argument in ("-c", command)]
        command = ["psql", "-X", "-A", "-t", "-d", server.sql, *arguments]
        return subprocess.run(command, text=True, capture_output=True, check=False)

    assert psql("SELECT name FROM people WHERE age > 40").stdout == "Alan\n"
    assert "people" in psql("\\d").stdout
    described = psql("\\d people")
    assert "name|text" in described.stdout and not described.stderr, described
    assert "forebay" in psql("\\l").stdout
    lists = "d+ people|dt+|dv+|l+|dn+|du|dD|db|ddp|drds|dE+|dm|df abs|dT|dx"
    for listed in lists.split("|"):
        shown = psql(f"\\{listed}")
        assert shown.returncode == 0 and "ERROR" not in shown.stderr, shown
    failed = psql("SELECT nme FROM people")
    assert "LINE 1: SELECT nme FROM people" in failed.stderr and failed.returncode == 1


@pytest.fixture(scope="module")
def secured(certificate, files, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("secured"))
    create_data(folder)
    for name, role in [("root", "root"), ("reader", "readAnyDatabase"), ("limited", "read@forebay"), ("other", "read@shop")]:
        add_user(folder, name, "--role", role)
    cert, key = certificate
    server = start("--data", folder, "--auth", "--tables", str(files), "--tls-cert", str(cert), "--tls-key", str(key))
    yield server
    server.stop()


def log_in(secured, user, password=PASSWORD, **options):
    settings = {"sslmode": "require", "autocommit": True, "connect_timeout": 20} | options
    return psycopg.connect(host="127.0.0.1", port=secured.port, dbname="forebay", user=user, password=password, **settings)


def test_users_log_in_and_have_their_roles(secured, certificate):
    with log_in(secured, "root", sslmode="verify-full", sslrootcert=str(certificate[0])) as root:
        assert root.execute("SELECT session_user").fetchone() == ("root",)
        root.execute("CREATE VIEW of_root AS SELECT 1 AS a")
    for reader in ("reader", "limited"):
        with log_in(secured, reader) as connection:
            assert connection.execute("SELECT a FROM of_root").fetchone() == (1,)
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute("DROP VIEW of_root")
    for user, password, options, part in [
        ("other", PASSWORD, {}, "no role for tables"),
        ("root", "wrong", {}, "password authentication failed"),
        ("missing", PASSWORD, {}, "password authentication failed"),
        ("root", PASSWORD, {"sslmode": "disable"}, "sslmode=require"),
    ]:
        with pytest.raises(psycopg.OperationalError, match=part):
            log_in(secured, user, password, **options)


def test_a_removed_user_ends_at_once(secured, certificate):
    options = {"tls": True, "tlsCAFile": str(certificate[0]), "username": "root", "password": PASSWORD}
    with pymongo.MongoClient(secured.uri, **options) as client:
        client.admin.command("createUser", "brief", pwd=PASSWORD, roles=[{"role": "read", "db": "forebay"}])
        with log_in(secured, "brief") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            client.admin.command("dropUser", "brief")
            with pytest.raises(psycopg.OperationalError, match="removed or changed"):
                connection.execute("SELECT 1")


def test_the_server_stops_while_a_statement_runs(files, tmp_path):
    server = start("--data", str(tmp_path), "--shutdown-timeout-ms", "300")
    connection = psycopg.connect(server.sql, autocommit=True)
    connection.pgconn.send_query(ENDLESS.encode())
    idle = psycopg.connect(server.sql, autocommit=True)
    pace(0.3)
    server.process.terminate()
    assert server.process.wait(20) == 0
    with pytest.raises(errors.AdminShutdown):
        idle.execute("SELECT 1")
