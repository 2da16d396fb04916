"""The tables door over Flight SQL, with ADBC and with pyarrow's client."""

import base64
import concurrent.futures
import datetime
import decimal
import os
import signal
import socket
import subprocess
import sys

import adbc_driver_manager
import pandas
import psycopg
import pyarrow
import pyarrow.parquet
import pymongo
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_flightsql import dbapi as adbc
from pyarrow import flight
from servers import PASSWORD, add_user, create_data, start_tables
from waiting import pace, until

VALUES = [
    "true", "NULL::bool", "-3::int2", "7::int4", "1099511627776::int8", "1.5::float4", "0.1::float8", "'NaN'::float8",
    "-12.3400::numeric(10, 4)", "12345678901234567890.5::numeric", "'é'::text", "''::text", "NULL::text", "'x'::varchar",
    "decode('00ff', 'hex')", "date '1999-12-31'", "time '01:02:03.000004'", "timestamp '2020-01-01 01:02:03.000001'",
    "timestamptz '2020-01-01 01:02:03+02'", "ARRAY[1, NULL, 3]::int4[]", "ARRAY['a', NULL]", "count(*)",
    "sum(1.25::numeric(10, 2))", "avg(2::int4)", "array_agg('x'::text)", "1 = 2", "NULL",
]  # fmt: skip
ENDLESS = "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,team,age\nAda,a,36\nAlan,b,41\nGrace,a,\n")
    texts = [f"a text that is too long for a view, {number}" if number % 7 else None for number in range(20_000)]
    table = pyarrow.table({"number": range(20_000), "words": texts})
    table = table.append_column("team", pyarrow.array(["red", "blue"] * 10_000).dictionary_encode())
    pyarrow.parquet.write_table(table, folder / "words.parquet")
    return folder


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    server = start_tables("--tables", str(files), "--data", str(tmp_path_factory.mktemp("data")))
    with psycopg.connect(server.sql, autocommit=True) as connection:
        connection.execute("CREATE VIEW adults AS SELECT name, age FROM people WHERE age > 40")
    yield server
    server.stop()


@pytest.fixture
def arrow(server):
    with adbc.connect(server.flight, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


@pytest.fixture
def client(server):
    with flight.connect(server.flight) as client:
        yield client


def bytes_field(number, data):
    """Encodes a field of a message of protocol buffers."""
    length, digits = len(data), b""
    while length > 127:
        digits += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + digits + bytes([length]) + data


def command(name, data=b""):
    url = f"type.googleapis.com/arrow.flight.protocol.sql.{name}"
    return bytes_field(1, url.encode()) + bytes_field(2, data)


def described(query):
    return flight.FlightDescriptor.for_command(command("CommandStatementQuery", bytes_field(1, query.encode())))


def reader(client, query, options=None):
    info = client.get_flight_info(described(query), options)
    return client.do_get(info.endpoints[0].ticket, options)


def basic(client, user, password=PASSWORD):
    """Returns options of calls with the token of a user."""
    return flight.FlightCallOptions(headers=[client.authenticate_basic_token(user, password)])


def all_rows(connection, query, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(query, *parameters)
        return cursor.fetchall()


@pytest.mark.parametrize("value", VALUES)
def test_values_are_those_of_psycopg(arrow, sql, value):
    (expected,) = sql.execute(f"SELECT {value}", binary=True).fetchone()
    ((found,),) = all_rows(arrow, f"SELECT {value}")
    assert found == expected or (found != found and expected != expected)


def test_intervals_and_structures_are_arrow_s(arrow):
    ((interval, structure),) = all_rows(arrow, "SELECT interval '1 year 2 days 3 s', named_struct('a', 1, 'b', 'x')")
    assert tuple(interval) == (12, 2, 3_000_000_000) and structure == {"a": 1, "b": "x"}


def test_files_are_those_of_psycopg(arrow, sql):
    for query in [
        "SELECT * FROM people ORDER BY name", "SELECT * FROM words ORDER BY number", "SELECT * FROM people WHERE false",
        "SELECT team, count(*), min(words) FROM words GROUP BY team ORDER BY team", "SELECT * FROM adults", "VALUES (1, 'a'), (2, NULL)",
        "EXPLAIN SELECT 1", "SHOW TimeZone", "WITH n AS (SELECT 1 AS one) SELECT one, one FROM n",
    ]:  # fmt: skip
        assert all_rows(arrow, query) == sql.execute(query).fetchall(), query
    with arrow.cursor() as cursor:
        cursor.execute("SELECT * FROM words")
        types = cursor.fetch_arrow_table().schema.types
        assert types == [pyarrow.int64(), pyarrow.string(), pyarrow.string()]
        cursor.execute("SELECT * FROM people WHERE false")
        assert cursor.fetch_arrow_table().schema.names == ["name", "team", "age"]


def test_parameters_are_bound(arrow):
    assert all_rows(arrow, "SELECT name FROM people WHERE age > $1 AND team = $2", (30, "b")) == [("Alan",)]
    query = "SELECT $1::int8 + 1, $2::text, $3::float8, $4::bool, $5::date, $6::numeric, $7::bytea, $8::timestamp, $9::text"
    values = (
        41, "é", 0.5, True, datetime.date(2020, 1, 2), decimal.Decimal("1.005"), b"\0\xff",
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6), None,
    )  # fmt: skip
    assert all_rows(arrow, query, values) == [(42, *values[1:])]
    assert all_rows(arrow, "SELECT $1, $2", (1, "x")) == [(1, "x")]
    assert all_rows(arrow, "SELECT $1::date", ("1999-12-31",)) == [(datetime.date(1999, 12, 31),)]
    assert all_rows(arrow, "SELECT count(*) FROM people WHERE age = ANY($1)", ([36, 41],)) == [(2,)]
    assert all_rows(arrow, "SELECT value FROM generate_series(1, 9) WHERE value > $1 LIMIT $2", (2.5, 2)) == [(3,), (4,)]
    for query, values, said in [
        ("SELECT $1", (1, 2), "2 parameters are bound, but the statement requires 1"),
        ("SELECT $1 + 1", ("x",), "22P02"), ("SELECT $1", ({"a": 1},), "parameter of type"),
        ("SELECT $1", None, "requires 1"),
    ]:  # fmt: skip
        with pytest.raises(adbc_driver_manager.Error, match=said):
            all_rows(arrow, query, values)


def test_statements_are_prepared_once_and_run_often(arrow):
    with arrow.cursor() as cursor:
        cursor.adbc_prepare("SELECT $1::int8 * 2 AS doubled")
        for number in range(50):
            cursor.execute("SELECT $1::int8 * 2 AS doubled", (number,))
            assert cursor.fetchall() == [(2 * number,)]
        schema = cursor.adbc_prepare("SELECT name FROM people WHERE age > $1")
        assert schema.types == [pyarrow.int64()]
        with pytest.raises(adbc_driver_manager.Error, match="run it as a query"):
            cursor.executemany("SELECT $1::int8", [(1,), (2,)])


def test_statements_without_rows_are_done_when_they_return(arrow, sql):
    with arrow.cursor() as cursor:
        for _ in range(20):
            cursor.execute("CREATE VIEW made AS SELECT 1 AS one")
            assert cursor.description in (None, [])
            cursor.execute("SELECT * FROM made")
            assert cursor.fetchall() == [(1,)]
            cursor.execute("DROP VIEW made")
            cursor.fetchall()
        cursor.executescript("CREATE VIEW one AS SELECT 1; CREATE VIEW two AS SELECT 2;")
        assert sql.execute("SELECT * FROM one, two").fetchall() == [(1, 2)]
        cursor.executescript("DROP VIEW one; DROP VIEW two")
        with pytest.raises(adbc_driver_manager.Error, match="returns rows"):
            cursor.executescript("SELECT 1")
        cursor.execute("-- nothing")
        assert cursor.fetchall() == []
        for statement in ("SELECT 1; SELECT 2", "COPY people TO STDOUT"):
            with pytest.raises(adbc_driver_manager.Error):
                cursor.execute(statement)
                cursor.fetchall()


def test_settings_last_as_long_as_the_connection(arrow, server):
    with arrow.cursor() as cursor:
        cursor.execute("SET TimeZone = 'Asia/Tokyo'")
        cursor.execute("SELECT now()")
        assert cursor.fetch_arrow_table().schema.types[0].tz == "Asia/Tokyo"
    assert all_rows(arrow, "SHOW TimeZone") == [("Asia/Tokyo",)]
    with adbc.connect(server.flight, autocommit=True) as other:
        assert all_rows(other, "SHOW TimeZone") == [("UTC",)]


def test_tables_are_listed(arrow):
    info = arrow.adbc_get_info()
    assert info["vendor_name"] == "Forebay" and info["vendor_arrow_version"]
    assert arrow.adbc_get_table_types() == ["SYSTEM TABLE", "TABLE", "VIEW"]
    assert arrow.adbc_get_table_schema("people").names == ["name", "team", "age"]
    assert arrow.adbc_get_table_schema("words", db_schema_filter="public").field("words").type == pyarrow.string()
    with pytest.raises(adbc_driver_manager.Error):
        arrow.adbc_get_table_schema("missing")
    objects = arrow.adbc_get_objects(depth="all", db_schema_filter="public").read_all().to_pylist()
    (public,) = [schema for catalog in objects for schema in catalog["catalog_db_schemas"] or []]
    tables = {table["table_name"]: table for table in public["db_schema_tables"]}
    assert {name: table["table_type"] for name, table in tables.items()} == {
        "people": "TABLE", "words": "TABLE", "adults": "VIEW",
    }  # fmt: skip
    assert [column["column_name"] for column in tables["people"]["table_columns"]] == ["name", "team", "age"]
    filtered = arrow.adbc_get_objects(depth="tables", table_name_filter="w%", table_types_filter=["TABLE"]).read_all().to_pylist()
    schemas = [schema for catalog in filtered for schema in catalog["catalog_db_schemas"] or []]
    assert [table["table_name"] for schema in schemas for table in schema["db_schema_tables"] or []] == ["words"]
    catalogs = arrow.adbc_get_objects(depth="catalogs").read_all().to_pylist()
    assert "forebay" in [catalog["catalog_name"] for catalog in catalogs]


def test_every_listing_has_the_columns_that_it_announces(client):
    table = bytes_field(3, b"people")
    for name, data in [
        ("CommandGetCatalogs", b""), ("CommandGetDbSchemas", b""), ("CommandGetTables", b""), ("CommandGetTableTypes", b""),
        ("CommandGetSqlInfo", b""), ("CommandGetXdbcTypeInfo", b""), ("CommandGetPrimaryKeys", table),
        ("CommandGetExportedKeys", table), ("CommandGetImportedKeys", table), ("CommandGetCrossReference", b""),
    ]:  # fmt: skip
        descriptor = flight.FlightDescriptor.for_command(command(name, data))
        info = client.get_flight_info(descriptor)
        rows = client.do_get(info.endpoints[0].ticket).read_all()
        assert rows.schema == info.schema == client.get_schema(descriptor).schema, name
        assert (rows.num_rows > 0) == ("Key" not in name and "Cross" not in name), name


def test_errors_tell_code_state_and_place(arrow):
    for statement, kind, said in [
        ("SELECT * FROM missing", adbc_driver_manager.ProgrammingError, ["42P01", "NotFound"]),
        ("SELECT nme FROM people", adbc_driver_manager.ProgrammingError, ["42703", "at character 8", "name"]),
        ("SELEC", adbc_driver_manager.ProgrammingError, ["42601", "at character 1"]),
        ("SELECT 1 / (5000 - value) FROM generate_series(1, 10000)", adbc_driver_manager.ProgrammingError, ["22012"]),
        ("CREATE VIEW adults AS SELECT 1", adbc_driver_manager.ProgrammingError, ["42P07", "AlreadyExists"]),
        ("SELECT sin()", adbc_driver_manager.ProgrammingError, ["42883"]),
        ("LISTEN x", adbc_driver_manager.NotSupportedError, ["0A000"]),
    ]:  # fmt: skip
        with pytest.raises(kind) as caught:
            all_rows(arrow, statement)
        assert all(part in str(caught.value) for part in said), caught.value
        details = dict(caught.value.details)
        assert details.get("sqlstate", b"").decode() in said[0], details
    assert all_rows(arrow, "SELECT 1") == [(1,)]


def test_what_is_missing_is_refused_by_name(arrow, client, server):
    with pytest.warns(Warning, match="Cannot disable autocommit"), adbc.connect(server.flight):
        pass
    with arrow.cursor() as cursor, pytest.raises(adbc_driver_manager.NotSupportedError):
        cursor.adbc_ingest("new", pyarrow.table({"a": [1]}))
    for action in ("BeginTransaction", "BeginSavepoint", "CreatePreparedSubstraitPlan", "SetSessionOptions", "Dance"):
        with pytest.raises(pyarrow.ArrowNotImplementedError, match=action):
            list(client.do_action((action, b"")))
    with pytest.raises(pyarrow.ArrowNotImplementedError, match="ListFlights"):
        list(client.list_flights())
    substrait = flight.FlightDescriptor.for_command(command("CommandStatementSubstraitPlan"))
    with pytest.raises(pyarrow.ArrowNotImplementedError, match="CommandStatementSubstraitPlan"):
        client.get_flight_info(substrait)
    assert "CancelFlightInfo" in [action.type for action in client.list_actions()]


def test_malformed_calls_are_refused(client):
    for descriptor in (flight.FlightDescriptor.for_command(b"garbage"), flight.FlightDescriptor.for_path("a", "b")):
        with pytest.raises((pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError)):
            client.get_flight_info(descriptor)
    handle = bytes_field(1, b"0123456789abcdef?")
    for ticket in (b"", b"garbage", command("TicketStatementQuery"), command("TicketStatementQuery", handle)):
        with pytest.raises((pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError)):
            client.do_get(flight.Ticket(ticket)).read_all()
    prepared = command("CommandPreparedStatementQuery", bytes_field(1, b"flight 1"))
    with pytest.raises(KeyError, match="no prepared statement"):
        client.do_get(flight.Ticket(prepared)).read_all()
    transaction = bytes_field(1, b"SELECT 1") + bytes_field(2, b"7")
    descriptor = flight.FlightDescriptor.for_command(command("CommandStatementQuery", transaction))
    with pytest.raises(pyarrow.ArrowNotImplementedError, match="transaction"):
        client.get_flight_info(descriptor)


def test_a_ticket_works_on_each_connection(client, server):
    info = client.get_flight_info(described("SELECT 7 AS seven"))
    ticket = info.endpoints[0].ticket
    with flight.connect(server.flight) as other:
        assert other.do_get(ticket).read_all() == client.do_get(ticket).read_all() == pyarrow.table({"seven": [7]})


def test_pandas_reads_frames(arrow):
    frame = pandas.read_sql("SELECT name, age FROM people ORDER BY age", arrow)
    assert list(frame["name"]) == ["Ada", "Alan", "Grace"]
    with arrow.cursor() as cursor:
        cursor.execute("SELECT * FROM words WHERE number % 2 = 0")
        assert len(cursor.fetch_df()) == 10_000


def busy(server):
    """Returns the processor time of the server so far, in ticks."""
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def is_idle(server, seconds=0.3):
    """Returns whether the server computes nothing for a while."""
    before = busy(server)
    pace(seconds)
    return busy(server) - before <= 5


def cancelled(server, start, cancel):
    """Starts an endless query in a thread, cancels it, and returns its error."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = busy(server)
        result = pool.submit(start)
        until(lambda: busy(server) - before > 20)
        cancel()
        error = result.exception(30)
    until(lambda: is_idle(server))
    return error


def test_cursors_are_cancelled(arrow, server):
    with arrow.cursor() as cursor:
        def start():
            cursor.execute(ENDLESS)
            cursor.fetchall()

        error = cancelled(server, start, cursor.adbc_cancel)
    assert isinstance(error, adbc_driver_manager.Error) and "cancel" in str(error).lower()


def test_flights_are_cancelled_by_their_user_alone(client, server):
    info = client.get_flight_info(described(ENDLESS))
    body = bytes_field(1, info.serialize())
    act = lambda: next(client.do_action(("CancelFlightInfo", body))).body.to_pybytes()
    assert act() == b"\x08\x03", "it is not in progress"
    told = []
    # `read_all` of a cancelled query interrupts the main thread.
    start = lambda: client.do_get(info.endpoints[0].ticket).read_chunk()
    error = cancelled(server, start, lambda: told.append(act()))
    assert isinstance(error, flight.FlightCancelledError) and "user request" in str(error)
    assert told == [b"\x08\x01"]


def test_a_client_that_leaves_cancels_its_query(server):
    script = "import sys; from adbc_driver_flightsql import dbapi; c = dbapi.connect(sys.argv[1], autocommit=True).cursor(); "
    script += "c.execute(sys.argv[2]); c.fetchall()"
    before = busy(server)
    child = subprocess.Popen([sys.executable, "-c", script, server.flight, ENDLESS])
    until(lambda: busy(server) - before > 20)
    child.kill()
    child.wait()
    until(lambda: is_idle(server))


def test_statements_time_out(arrow):
    with arrow.cursor() as cursor:
        cursor.execute("SET statement_timeout = 200")
        with pytest.raises(adbc_driver_manager.OperationalError, match="57014"):
            cursor.execute(ENDLESS)
            cursor.fetchall()
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def memory_bytes(server, name):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def test_large_results_stream(arrow, server):
    rows = 300_000_000 if "FOREBAY_TEST_FULL" in os.environ else 10_000_000
    with arrow.cursor() as cursor:
        columns = "value, value * 2 AS double, value::float8 / 3 AS third, -value AS negative"
        read = lambda count: cursor.execute(f"SELECT {columns} FROM generate_series(1, {count})")
        read(100_000)
        assert sum(batch.num_rows for batch in cursor.fetch_record_batch()) == 100_000
        before = memory_bytes(server, "VmHWM")
        read(rows)
        assert sum(batch.num_rows for batch in cursor.fetch_record_batch()) == rows
    assert memory_bytes(server, "VmHWM") - before < 100 << 20


def test_long_values_are_sent_in_small_messages(client):
    query = "SELECT value, repeat('x', 200000) AS long FROM generate_series(1, 300)"
    batches = list(reader(client, query))
    assert sum(batch.data.num_rows for batch in batches) == 300 and len(batches) >= 30
    assert max(batch.data.nbytes for batch in batches) <= 3 << 20


def test_a_client_that_stops_reading_loses_its_query_alone(files):
    server = start_tables("--tables", str(files), "--memory", "--message-timeout-ms", "500")
    try:
        with flight.connect(server.flight) as slow, adbc.connect(server.flight, autocommit=True) as other:
            stalled = reader(slow, "SELECT value, repeat('x', 1000) AS long FROM generate_series(1, 10000000)")
            assert stalled.read_chunk().data.num_rows > 0
            pace(2)
            assert all_rows(other, "SELECT count(*) FROM people") == [(3,)]
            with pytest.raises(flight.FlightError, match="did not take the rows in time"):
                stalled.read_all()
            assert reader(slow, "SELECT 1 AS one").read_all() == pyarrow.table({"one": [1]})
    finally:
        server.stop()


def test_five_hundred_connections(server, arrow):
    clients = [flight.connect(server.flight) for _ in range(500)]

    def ask(number):
        return reader(clients[number], f"SELECT count(*) + {number} AS n FROM people").read_all()["n"].to_pylist()

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(500)))
    assert answers == [[number + 3] for number in range(500)]
    assert all_rows(arrow, "SELECT 1") == [(1,)]
    for client in clients:
        client.close()


def test_long_statements_are_refused(arrow, server):
    for megabytes, said in [(10, "54001"), (40, "larger|too large|limit")]:
        with pytest.raises(adbc_driver_manager.Error, match=said):
            all_rows(arrow, f"SELECT '{'x' * (megabytes << 20)}'")
    assert all_rows(arrow, f"SELECT length('{'x' * (3 << 20)}')") == [(3 << 20,)]
    with pytest.raises(adbc_driver_manager.Error, match="54001"):
        all_rows(arrow, "SELECT " + "(" * 10_000 + "1" + ")" * 10_000)
    assert all_rows(arrow, "SELECT 1") == [(1,)]


def test_other_protocols_are_refused(server, arrow):
    address = server.flight.split("//")[1].split(":")
    for sent in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4000), b"\0" * 100, b"\x16\x03\x01\x02\x00\x01" * 50):
        with socket.create_connection(address) as stream:
            stream.sendall(sent)
            stream.settimeout(30)
            received = b""
            try:
                while part := stream.recv(4096):
                    received += part
            except ConnectionResetError:
                pass
            assert len(received) < 1000
    assert all_rows(arrow, "SELECT 1") == [(1,)]


def test_the_server_stops_with_idle_clients(files):
    server = start_tables("--tables", str(files), "--memory")
    with adbc.connect(server.flight, autocommit=True) as connection:
        assert all_rows(connection, "SELECT 1") == [(1,)]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


@pytest.fixture(scope="module")
def guarded(files, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("users"))
    create_data(folder)
    for name, role in [("ada", "root"), ("alan", "readAnyDatabase"), ("grace", "read@shop"), ("linus", "root")]:
        add_user(folder, name, "--role", role)
    server = start_tables("--tables", str(files), "--data", folder, "--auth")
    yield server
    server.stop()


def test_users_log_in(guarded):
    connect = lambda user, password=PASSWORD: adbc.connect(
        guarded.flight, db_kwargs={"username": user, "password": password}, autocommit=True
    )
    with connect("ada") as connection:
        assert all_rows(connection, "SELECT count(*), current_user FROM people") == [(3, "ada")]
        all_rows(connection, "CREATE VIEW mine AS SELECT 1 AS one")
    with connect("alan") as connection:
        assert all_rows(connection, "SELECT * FROM mine") == [(1,)]
        with pytest.raises(adbc_driver_manager.Error, match="42501"):
            all_rows(connection, "DROP VIEW mine")
        with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="42501"):
            cursor.executescript("DROP VIEW mine")
    for user, password, said in [
        ("ada", "wrong", "password authentication failed"), ("nemo", PASSWORD, "password authentication failed"),
        ("grace", PASSWORD, "no role for tables"), ("ada", "", "password authentication failed"),
    ]:  # fmt: skip
        with pytest.raises(adbc_driver_manager.Error, match=said):
            connect(user, password)
    with adbc.connect(guarded.flight, autocommit=True) as connection:
        with pytest.raises(adbc_driver_manager.Error, match="log in"):
            all_rows(connection, "SELECT 1")


def test_calls_have_passwords_or_tokens(guarded):
    with flight.connect(guarded.flight) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="log in"):
            reader(client, "SELECT 1")
        for value in (b"Bearer abc", b"Basic abc", b"Digest abc", b""):
            options = flight.FlightCallOptions(headers=[(b"authorization", value)])
            with pytest.raises(flight.FlightUnauthenticatedError):
                reader(client, "SELECT 1", options)
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.do_action(("ListActions", b""), options))
        token = basic(client, "ada")
        assert reader(client, "SELECT current_user AS name", token).read_all()["name"].to_pylist() == ["ada"]
        with pytest.raises(flight.FlightUnauthenticatedError, match="belongs to the user"):
            reader(client, "SELECT 1", basic(client, "alan"))
        one = lambda client: reader(client, "SELECT 1 AS one", token).read_all()
        with flight.connect(guarded.flight) as other:
            assert one(other) == pyarrow.table({"one": [1]})
            assert list(other.do_action(("CloseSession", b""), token))
            assert one(other) == pyarrow.table({"one": [1]}), "the token is of the other connection"
        token = basic(client, "ada")
        assert list(client.do_action(("CloseSession", b""), token))
        with pytest.raises(flight.FlightUnauthenticatedError, match="no longer"):
            one(client)
    header = (b"authorization", b"Basic " + base64.b64encode(f"linus:{PASSWORD}".encode()))
    with flight.connect(guarded.flight) as client:
        each = flight.FlightCallOptions(headers=[header])
        for _ in range(20):
            assert reader(client, "SELECT current_user AS name", each).read_all()["name"].to_pylist() == ["linus"]


def test_removed_users_are_out(guarded):
    with flight.connect(guarded.flight) as client:
        with pymongo.MongoClient(guarded.uri, username="ada", password=PASSWORD) as admin:
            admin.admin.command("createUser", "brief", pwd=PASSWORD, roles=["root"])
            token = basic(client, "brief")
            assert reader(client, "SELECT 1 AS one", token).read_all().num_rows == 1
            admin.admin.command("dropUser", "brief")
        with pytest.raises(flight.FlightUnauthenticatedError, match="removed"):
            reader(client, "SELECT 1 AS one", token)


def test_each_run_of_a_statement_needs_the_role(guarded):
    query, roles = "SELECT name FROM shop.names", [{"role": "read", "db": db} for db in ("forebay", "shop")]
    login = {"username": "mary", "password": PASSWORD}
    with pymongo.MongoClient(guarded.uri, username="ada", password=PASSWORD) as admin:
        admin.shop.names.insert_one({"name": "x"})
        admin.admin.command("createUser", "mary", pwd=PASSWORD, roles=roles)
        with (
            flight.connect(guarded.flight) as client,
            adbc.connect(guarded.flight, db_kwargs=login, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.adbc_prepare(query)
            token = basic(client, "mary")
            info = client.get_flight_info(described(query), token)
            admin.admin.command("updateUser", "mary", roles=roles[:1])
            with pytest.raises(adbc_driver_manager.Error, match="not authorized on shop"):
                cursor.execute(query)
                cursor.fetchall()
            with pytest.raises((flight.FlightError, pyarrow.ArrowException), match="not authorized on shop"):
                client.do_get(info.endpoints[0].ticket, token).read_all()
            admin.admin.command("updateUser", "mary", roles=roles)
            assert client.do_get(info.endpoints[0].ticket, token).read_all()["name"].to_pylist() == ["x"]


def test_strangers_are_disconnected(files, tmp_path):
    create_data(str(tmp_path))
    server = start_tables("--data", str(tmp_path), "--auth", "--handshake-timeout-ms", "300")
    try:
        address = server.flight.split("//")[1].split(":")
        with socket.create_connection(address) as stream:
            stream.settimeout(30)
            while stream.recv(4096):
                pass
    finally:
        server.stop()


def test_tls_is_required(files, certificate, tmp_path):
    cert, key = certificate
    server = start_tables("--tables", str(files), "--memory", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        assert server.flight.startswith("grpc+tls://")
        roots = {DatabaseOptions.TLS_ROOT_CERTS.value: cert.read_text()}
        with adbc.connect(server.flight, db_kwargs=roots, autocommit=True) as connection:
            assert all_rows(connection, "SELECT count(*) FROM people") == [(3,)]
        with flight.connect(server.flight, tls_root_certs=cert.read_bytes()) as client:
            assert reader(client, "SELECT 1 AS one").read_all() == pyarrow.table({"one": [1]})
        with flight.connect(server.flight.replace("grpc+tls", "grpc")) as client, pytest.raises(pyarrow.ArrowException):
            reader(client, "SELECT 1")
    finally:
        server.stop()
