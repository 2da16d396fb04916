"""Statements that would end or freeze the server: values that fill the memory, and work that goes on for hours."""

import asyncio
import re

import asyncpg
import psycopg
import pytest
from psycopg import errors
from servers import start_tables
from waiting import pace, until

MEMORY_BYTES = 512 << 20
TEXTS = "(SELECT repeat('x', 1000000) || value::text AS text FROM generate_series(1, {}))"


@pytest.fixture(scope="module")
def server():
    server = start_tables("--memory", "--memory-bytes-max", str(MEMORY_BYTES))
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


def peak_bytes(server):
    """Returns the maximum resident bytes since the last call of `forget_peak`."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) * 1024


def forget_peak(server):
    with open(f"/proc/{server.process.pid}/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")


def doubled(levels):
    """Returns a query of the length of a text that doubles at each level."""
    query = "(SELECT repeat('x', 1000000) || random()::text AS t)"
    for level in range(levels):
        query = f"(SELECT t || t AS t FROM {query} AS q{level})"
    return f"SELECT length(t) FROM {query} AS q"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT length(repeat('x', 1500000000))",
        "SELECT length(lpad('x', 1500000000))",
        "SELECT length(regexp_replace(repeat('a', 20000), 'a', repeat('b', 100000), 'g'))",
        "SELECT length(regexp_replace(repeat('a', 20000), '(a+)', repeat('\\1', 100000)))",
        "SELECT length(replace(repeat('a', 20000), 'a', repeat('b', 100000)))",
        "SELECT length(array_to_string(array_repeat(''::text, 100000), repeat('b', 100000)))",
        "SELECT array_length(array_replace_all(array_repeat('a'::text, 100000), 'a', repeat('b', 30000)), 1)",
        "SELECT array_length(array_repeat(array_repeat(1, 1000000), 8000), 1)",
        "SELECT array_length(array_resize(array_repeat('a'::text, 1), 2000000, repeat('b', 10000)), 1)",
        "SELECT array_length(generate_series(timestamp '2000-01-01', timestamp '2020-01-01', interval '1 us'), 1)",
        "SELECT length(concat_ws(repeat('x', 1000000), " + ", ".join(["value::text"] * 3000) + ")) FROM generate_series(1, 2)",
        "SELECT " + ", ".join(f"repeat('x', {60_000_000 + column})" for column in range(60)),
        doubled(12),
        "SELECT length(string_agg(text, ',')) FROM " + TEXTS.format(2000),
        "SELECT array_length(array_agg(text), 1) FROM " + TEXTS.format(2000),
        "SELECT max(length(text || text)) FROM " + TEXTS.format(1000) + " WHERE length(text || text || text) > 1",
        "SELECT arrow_cast(NULL, 'FixedSizeBinary(2000000000)') FROM generate_series(1, 100)",
    ],
    ids=lambda statement: statement[:60],
)
def test_values_that_fill_the_memory_are_refused(server, sql, statement):
    forget_peak(server)
    sql.execute("SET statement_timeout = '60s'")
    try:
        sql.execute(statement).fetchall()
    except psycopg.Error as error:
        assert error.sqlstate in {"54000", "53200", "0A000"}, error
    assert server.process.poll() is None
    assert peak_bytes(server) < 2 * MEMORY_BYTES
    # What the statement took is free once it is measured.
    until(lambda: _answers(server))


def _answers(server):
    try:
        with psycopg.connect(server.sql, autocommit=True) as connection:
            return connection.execute("SELECT length(repeat('x', 1000000))").fetchone() == (1_000_000,)
    except errors.OutOfMemory:
        return False


@pytest.fixture
def quiet():
    """A server whose memory was not full lately."""
    server = start_tables("--memory", "--memory-bytes-max", str(MEMORY_BYTES))
    yield server
    server.stop()


@pytest.fixture
def quiet_sql(quiet):
    with psycopg.connect(quiet.sql, autocommit=True) as connection:
        yield connection


def test_long_texts_stream(quiet, quiet_sql):
    forget_peak(quiet)
    with quiet_sql.cursor() as cursor:
        rows = cursor.stream("SELECT length(t), t FROM (SELECT repeat('x', 1000000) || value::text AS t FROM generate_series(1, 2000))")
        assert sum(length == len(text) for length, text in rows) == 2_000
    quiet_sql.execute("CREATE TABLE long AS SELECT value, repeat('x', 1000000) || value::text AS t FROM generate_series(1, 600)")
    assert quiet_sql.execute("SELECT count(*), sum(length(t)) FROM long").fetchone() == (600, 600_000_000 + 1_692)
    quiet_sql.execute("DROP TABLE long")
    assert peak_bytes(quiet) < 2 * MEMORY_BYTES


def test_functions_of_many_short_texts_return_the_same(quiet_sql):
    text = "SELECT count(*), sum(length({})) FROM (SELECT lpad(value::text, 5000, 'ab') AS t FROM generate_series(1, 20000))"
    for function, length in [
        ("t || t", 10_000),
        ("regexp_replace(t, 'b', 'ccc', 'g')", None),
        ("replace(t, 'a', 'aa')", None),
        ("upper(t) || lower(t)", 10_000),
        ("array_to_string(string_to_array(t, 'a'), 'a')", 5_000),
        ("concat_ws('-', t, t)", 10_001),
        ("reverse(t)", 5_000),
    ]:
        count, total = quiet_sql.execute(text.format(function)).fetchone()
        assert count == 20_000
        if length:
            assert total == length * 20_000, function
        else:
            assert total > 7_000 * 20_000, function


TOO_COMPLEX = [
    "SELECT 1" + " NOTNULL" * 5_000,
    "SELECT true" + " XOR true" * 5_000,
    "SELECT 'a'" + " REGEXP 'a'" * 5_000,
    "SELECT 1" + " OVERLAPS 1" * 5_000,
    "SELECT 1" + " MEMBER OF (1)" * 5_000,
    "VALUES (1)" + " UNION ALL VALUES (1)" * 5_000,
    "VALUES (1)" + " EXCEPT VALUES (1)" * 5_000,
    "SELECT NULL::int" + "[]" * 20_000,
    "SELECT arrow_cast(NULL, '" + "List(" * 5_000 + "Int64" + ")" * 5_000 + "')",
    "SELECT 1 FROM " + ", ".join(["generate_series(1, 1)"] * 1_000),
    "SELECT count(*) FROM t GROUP BY CUBE (" + ", ".join(f"c{n}" for n in range(30)) + ")",
    "SELECT " + ", ".join(["abs(" * 190 + "1" + ")" * 190] * 40),
    "SELECT " + " + ".join(["1"] * 990),
]


@pytest.mark.parametrize("statement", TOO_COMPLEX, ids=lambda statement: statement[:40])
def test_texts_that_are_too_complex_are_refused(server, statement):
    with psycopg.connect(server.sql, autocommit=True) as sql, pytest.raises(errors.StatementTooComplex):
        sql.execute(statement)
    assert server.process.poll() is None


def test_views_that_name_each_other_often_are_refused(sql):
    sql.execute("CREATE SCHEMA doubled")
    sql.execute("CREATE VIEW doubled.v0 AS SELECT 1 AS x")
    with pytest.raises(errors.StatementTooComplex, match="more than 2000 tables"):
        for n in range(16):
            sql.execute(f"CREATE VIEW doubled.v{n + 1} AS SELECT a.x FROM doubled.v{n} a, doubled.v{n} b")
    (count,) = sql.execute("SELECT count(*) FROM doubled.v5").fetchone()
    assert count == 1
    sql.execute("DROP SCHEMA doubled CASCADE")


async def _open_portals(server, count):
    """Opens portals of a long query in a transaction, and takes a row of each."""
    client = await asyncpg.connect(host="127.0.0.1", port=server.port, user="ada", database="forebay")
    try:
        async with client.transaction():
            query = "SELECT value, repeat('x', 1000) FROM generate_series(1, 10000000) t (value)"
            for _ in range(count):
                portal = await client.cursor(query)
                await portal.fetchrow()
    finally:
        await client.close()


def test_rows_of_portals_that_wait_take_memory(quiet):
    forget_peak(quiet)
    with pytest.raises(asyncpg.exceptions.OutOfMemoryError):
        asyncio.run(_open_portals(quiet, 200))
    assert peak_bytes(quiet) < 2 * MEMORY_BYTES


# One batch of a side takes long with all rows of the other.
LEFT, RIGHT = "generate_series(1, 5000000) a(x)", "generate_series(1, 5000000) b(y)"
ENDLESS = [
    f"SELECT count(*) FROM {LEFT}, {RIGHT} WHERE x + y = -1",
    f"SELECT count(*) FROM {LEFT} WHERE NOT EXISTS (SELECT 1 FROM {RIGHT} WHERE x + y = -1)",
    "SELECT count(*) FROM generate_series(1, 5000000) a(x) JOIN generate_series(1, 5000000) b(y) "
    "ON x / 5000001 = y / 5000001 AND x + y = -1",
    "SELECT count(*) FROM generate_series(1, 100000) WHERE repeat('a', 1000000) || value::text ~ '(a|b|ab)*(a*)*c'",
    "SELECT count(*) FROM generate_series(1, 100000) WHERE repeat('ab', 500000) || value::text LIKE '%a%b%a%a%c%'",
]


@pytest.mark.parametrize("statement", ENDLESS, ids=lambda statement: statement[22:90])
def test_work_without_an_end_is_stopped(server, sql, statement):
    sql.execute("SET statement_timeout = '3s'")
    with pytest.raises(errors.QueryCanceled):
        sql.execute(statement)
    until(lambda: _is_idle(server), seconds=3)


def _ticks(server):
    """Returns the processor time that the server used so far, in hundredths of a second."""
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def _is_idle(server):
    before = _ticks(server)
    pace(0.2)
    return _ticks(server) - before <= 4


def test_the_arguments_of_slow_functions_are_limited(sql):
    assert sql.execute("SELECT levenshtein(repeat('a', 255), 'ab')").fetchone() == (254,)
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute("SELECT levenshtein(repeat('a', 256), 'ab')")
    found = sql.execute("SELECT position(repeat('a', 500000) || 'b' IN repeat('é', 9) || repeat('a', 1000000) || 'bc')")
    assert found.fetchone() == (500_010,)


def test_a_session_knows_its_process(sql):
    assert sql.execute("SELECT pg_backend_pid()").fetchone() == (sql.info.backend_pid,)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[z-a]"])
@pytest.mark.parametrize("call", ["name ~ %s", "regexp_replace(name, %s, 'x')", "regexp_match(name, %s) IS NULL"])
def test_malformed_patterns_are_errors_of_the_client(sql, pattern, call):
    with pytest.raises(psycopg.Error) as caught:
        sql.execute(f"SELECT {call} FROM (VALUES ('a')) AS t (name)", (pattern,))
    assert caught.value.sqlstate == "2201B"


def test_lengths_and_limits_of_types(sql):
    assert sql.execute("SELECT length(%s)", (b"\xff\x00a",)).fetchone() == (3,)
    assert sql.execute("SELECT '1e38'::real > 0, 'Infinity'::real > 0, NULL::float8::real").fetchone() == (True, True, None)
    for value in ("'1e39'::real", "1e39::float8::real", "(x * 10)::real"):
        with pytest.raises(errors.NumericValueOutOfRange):
            sql.execute(f"SELECT {value} FROM (VALUES (1e38::float8)) AS t (x)")
    with pytest.raises(errors.InvalidTextRepresentation):
        sql.execute("SELECT 'abc'::real")
