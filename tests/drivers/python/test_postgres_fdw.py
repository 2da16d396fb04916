"""Forebay's tables inside PostgreSQL: a real cluster with postgres_fdw, and the same rows in its own tables."""

import decimal
import math
import pathlib
import re

import duckdb
import psycopg
import pytest
import ssb
import ssb_queries
import tpch
import tpch_queries
from psycopg import errors
from postgres_cluster import Cluster, programs
from servers import PASSWORD, add_user, create_data, start_tables

# Makes PostgreSQL prefer one remote statement to several whose rows it would join itself.
STARTUP_COST = 1_000_000
MANUAL = pathlib.Path(__file__).parents[3] / "docs/postgres.md"
OPTIONS = f"dbname 'forebay', fetch_size '10000', fdw_startup_cost '{STARTUP_COST}'"


@pytest.fixture(scope="module")
def cluster():
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    cluster = Cluster()
    with psycopg.connect(cluster.sql, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION postgres_fdw")
    yield cluster
    cluster.stop()


def add_server(cluster, name, port, user="user 'ada'", imports=True):
    """Declares a Forebay server in PostgreSQL, and imports its tables into the schema `NAME_far`."""
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        address = f"host '127.0.0.1', port '{port}', {OPTIONS}"
        sql.execute(f"CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({address})")
        sql.execute(f"CREATE USER MAPPING FOR ada SERVER {name} OPTIONS ({user})")
        if not imports:
            return
        sql.execute(f"CREATE SCHEMA {name}_far")
        sql.execute(f"IMPORT FOREIGN SCHEMA public FROM SERVER {name} INTO {name}_far")


INDEXES = ("lineitem (l_orderkey)", "lineitem (l_partkey, l_suppkey)", "partsupp (ps_partkey)", "orders (o_custkey)")


def add_tables(cluster, name, schemas, folder):
    """Creates PostgreSQL's own tables in the schema `NAME_near`, from CSV files."""
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        sql.execute(f"CREATE SCHEMA {name}_near")
        for table, columns in schemas.items():
            sql.execute(f'CREATE TABLE {name}_near."{table}" ({columns})')
            with sql.cursor().copy(f'COPY {name}_near."{table}" FROM STDIN (FORMAT csv, HEADER)') as copy:
                copy.write((folder / f"{table}.csv").read_bytes())
        for index in INDEXES if name == "tpch" else ():
            sql.execute(f"CREATE INDEX ON {name}_near.{index}")
        sql.execute("ANALYZE")


def serve(cluster, name, schemas, folder):
    """Serves the Parquet files of a folder, and puts the same rows into PostgreSQL."""
    files = folder / "files"
    files.mkdir()
    for table in schemas:
        (folder / f"{table}.parquet").rename(files / f"{table}.parquet")
    server = start_tables("--data", str(folder / "data"), "--tables", str(files))
    add_server(cluster, name, server.port)
    add_tables(cluster, name, schemas, folder)
    return server


@pytest.fixture(scope="module")
def star(cluster, tmp_path_factory):
    """The schemas `ssb_far` and `ssb_near`."""
    folder = tmp_path_factory.mktemp("ssb")
    ssb.write(folder)
    server = serve(cluster, "ssb", ssb.SCHEMAS, folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def orders(cluster, tmp_path_factory):
    """The schemas `tpch_far` and `tpch_near`."""
    folder = tmp_path_factory.mktemp("tpch")
    tpch.write(folder, ("parquet", "csv"))
    server = serve(cluster, "tpch", tpch.SCHEMAS, folder)
    yield server
    server.stop()


@pytest.fixture
def sql(cluster):
    with psycopg.connect(cluster.sql, autocommit=True) as connection:
        yield connection


def both(sql, name, query):
    """Returns the rows of a query on Forebay's tables, and on PostgreSQL's own."""
    answers = []
    for place in ("far", "near"):
        sql.execute(f"SET search_path = {name}_{place}")
        answers.append(sql.execute(query).fetchall())
    return answers


def remote(sql, query, parameters=None):
    """Returns all nodes of a query's plan, and the statements that it sends to Forebay."""
    (plans,) = sql.execute(f"EXPLAIN (VERBOSE, FORMAT JSON) {query}", parameters).fetchone()
    nodes = [plans[0]["Plan"]]
    for node in nodes:
        nodes.extend(node.get("Plans", ()))
    return [node["Node Type"] for node in nodes], [node["Remote SQL"] for node in nodes if "Remote SQL" in node]


def same(far, near):
    """Returns whether two values are equal. Quotients of decimals may have other numbers of digits."""
    if isinstance(near, str):
        return far is not None and far.rstrip() == near.rstrip()
    if isinstance(near, decimal.Decimal) and isinstance(far, decimal.Decimal):
        digits = min(-far.as_tuple().exponent, -near.as_tuple().exponent)
        return far == near or (digits >= 6 and abs(far - near) <= decimal.Decimal(10) ** -(digits - 1))
    if isinstance(near, float) and isinstance(far, float):
        return far == near or math.isclose(far, near, rel_tol=1e-12)
    return far == near


def check(far, near):
    assert len(far) == len(near)
    for ours, theirs in zip(far, near, strict=True):
        assert len(ours) == len(theirs) and all(map(same, ours, theirs)), f"{ours} {theirs}"


@pytest.mark.parametrize("number", ssb_queries.QUERIES)
def test_a_star_query_is_one_remote_statement(star, sql, number):
    query = ssb_queries.QUERIES[number]
    far, near = both(sql, "ssb", query)
    assert near and far == near
    sql.execute("SET search_path = ssb_far")
    nodes, statements = remote(sql, query)
    assert nodes == ["Foreign Scan"], nodes
    tables = len(re.search(r"from ([^\n]*)", query)[1].split(","))
    assert statements[0].count(" INNER JOIN ") == tables - 1
    assert "sum(" in statements[0]
    assert ("GROUP BY" in statements[0]) == ("group by" in query)


@pytest.mark.parametrize("number", sorted(set(tpch_queries.QUERIES) - {20}))
def test_the_queries_of_tpch_run(orders, sql, number):
    far, near = both(sql, "tpch", tpch_queries.QUERIES[number])
    check(far, near)


def test_query_20_of_tpch_runs(orders, sql):
    """PostgreSQL asks for the sum of each row of partsupp, so there are fewer here."""
    few = "SELECT * FROM partsupp WHERE ps_suppkey % 20 = 13"
    with direct(orders) as connection:
        connection.execute(f"CREATE VIEW partsupp_few AS {few}")
    sql.execute("IMPORT FOREIGN SCHEMA public LIMIT TO (partsupp_few) FROM SERVER tpch INTO tpch_far")
    sql.execute(f"SET search_path = tpch_near; CREATE VIEW partsupp_few AS {few}")
    query = tpch_queries.QUERIES[20].replace("from partsupp", "from partsupp_few")
    far, near = both(sql, "tpch", query)
    assert near and far == [tuple(value.rstrip() for value in row) for row in near]


SHIPPED = [
    "SELECT count(*), count(o_orderkey) FROM customer LEFT JOIN orders ON c_custkey = o_custkey AND o_orderkey < 100",
    "SELECT count(*), count(c_custkey) FROM orders RIGHT JOIN customer ON c_custkey = o_custkey WHERE c_acctbal > 0",
    "SELECT count(*), sum(n_nationkey) FROM nation FULL JOIN region ON n_nationkey = r_regionkey",
    "SELECT count(DISTINCT l_suppkey), count(*) FILTER (WHERE l_tax > 0.05), max(l_shipdate) FROM lineitem",
    "SELECT o_custkey, sum(o_totalprice) FROM orders GROUP BY 1 HAVING count(*) > 20 ORDER BY 2 DESC, 1 LIMIT 5",
    "SELECT min(o_orderdate), bool_and(o_totalprice > 0), sum(o_orderkey) FROM orders WHERE o_orderstatus IS NOT NULL",
    "SELECT sum(CASE WHEN p_size BETWEEN 1 AND 9 THEN p_retailprice END) FROM part WHERE p_name NOT LIKE '%a%b%'",
    "SELECT count(*) FROM supplier WHERE upper(s_name) || s_phone <> lower(s_address) AND length(s_comment) % 3 = 1",
    "SELECT count(*) FROM orders WHERE NOT (o_orderdate < date '1995-01-01' OR abs(-o_custkey) > 700)",
    "SELECT avg(l_quantity), sum(l_discount * l_tax), sum(l_linenumber)::bigint FROM lineitem WHERE l_tax <> 0",
    "SELECT l_orderkey, l_linenumber FROM lineitem ORDER BY l_extendedprice DESC, 1, 2 LIMIT 3 OFFSET 2",
    "SELECT count(*) FROM part WHERE p_name ~ '^[a-f].*green' OR p_name ILIKE '%BLUE%'",
]

KEPT = [
    "SELECT extract(year FROM o_orderdate), count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT count(*) FROM orders WHERE o_orderdate < now()",
    "SELECT DISTINCT o_orderpriority FROM orders ORDER BY 1",
    "SELECT r_name, rank() OVER (ORDER BY r_name DESC) FROM region ORDER BY 1",
    "SELECT n_name FROM nation UNION SELECT r_name FROM region ORDER BY 1",
    "SELECT count(*) FROM customer WHERE EXISTS (SELECT FROM orders WHERE o_custkey = c_custkey)",
    "SELECT o_orderstatus, count(*) FROM orders GROUP BY ROLLUP (o_orderstatus) ORDER BY 1",
    "SELECT count(*) FROM customer WHERE c_name > 'Customer#000001000' COLLATE \"POSIX\"",
]


@pytest.mark.parametrize("query", SHIPPED + KEPT)
def test_what_the_manual_says_is_sent(orders, sql, query):
    far, near = both(sql, "tpch", query)
    check(far, near)
    sql.execute("SET search_path = tpch_far")
    nodes, _ = remote(sql, query)
    assert (nodes == ["Foreign Scan"]) == (query in SHIPPED), nodes


GROUPED = [
    "SELECT o_custkey, sum(o_totalprice) FROM orders WHERE o_orderkey > 100 GROUP BY 1{}",
    "SELECT max(s) FROM (SELECT o_custkey, sum(o_totalprice) s FROM orders GROUP BY 1{}) sums",
]


@pytest.mark.parametrize("query", GROUPED)
def test_groups_are_made_there_if_they_are_ordered(orders, sql, query):
    sql.execute("SET search_path = tpch_far")
    _, (statement,) = remote(sql, query.format(""))
    assert "GROUP BY" not in statement
    _, (statement,) = remote(sql, query.format(" ORDER BY 2"))
    assert "GROUP BY 1 ORDER BY sum" in statement
    far, near = both(sql, "tpch", query.format(" ORDER BY 1"))
    check(far, near)


def test_the_lines_of_the_manual_run(cluster, star):
    (lines,) = re.findall(r"```sql\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        sql.execute("CREATE DATABASE manual")
    with psycopg.connect(cluster.sql, dbname="manual", autocommit=True) as sql:
        for statement in lines.replace("5433", str(star.port)).split(";\n")[:-1]:
            cursor = sql.execute(statement)
        assert cursor.rowcount > 0
        nodes, _ = remote(sql, statement)
        assert nodes == ["Foreign Scan"]
        with pytest.raises(errors.ObjectNotInPrerequisiteState):
            sql.execute("DELETE FROM star.part")


def columns(sql, schema):
    query = """SELECT relname, attname, format_type(atttypid, atttypmod)
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = %s AND relkind IN ('r', 'f') AND attnum > 0 AND relname <> 'partsupp_few'
        ORDER BY relname, attnum"""
    return sql.execute(query, (schema,)).fetchall()


def test_imported_columns_have_their_types(star, orders, sql):
    assert columns(sql, "ssb_far") == columns(sql, "ssb_near")
    text = re.compile(r"character( varying)?\(\d+\)")
    near = [(table, column, text.sub("text", name)) for table, column, name in columns(sql, "tpch_near")]
    assert columns(sql, "tpch_far") == near


def test_import_takes_some_tables(orders, sql):
    sql.execute("CREATE SCHEMA chosen")
    sql.execute("IMPORT FOREIGN SCHEMA public LIMIT TO (nation, region) FROM SERVER tpch INTO chosen")
    assert {table for table, *_ in columns(sql, "chosen")} == {"nation", "region"}
    sql.execute("DROP SCHEMA chosen CASCADE")
    with pytest.raises(errors.FdwSchemaNotFound):
        sql.execute("IMPORT FOREIGN SCHEMA missing FROM SERVER tpch INTO tpch_far")


PREPARED = [
    ("int", "SELECT count(*) FROM {}.part WHERE p_size = $1", [1, 50, None]),
    ("bigint", "SELECT o_orderstatus, o_totalprice FROM {}.orders WHERE o_orderkey = $1", [1, 7, 5]),
    ("text", "SELECT count(*) FROM {}.customer WHERE c_mktsegment = $1", ["BUILDING", "it's", None]),
    ("text", "SELECT count(*) FROM {}.part WHERE p_name LIKE $1", ["%green%", "forest%", "%\\%%"]),
    ("numeric", "SELECT count(*) FROM {}.lineitem WHERE l_discount < $1", ["0.05", "0.050000000001", "100"]),
    ("date", "SELECT sum(l_quantity) FROM {}.lineitem WHERE l_shipdate < $1", ["1992-02-01", "1995-06-17"]),
    ("timestamp", "SELECT count(*) FROM {}.orders WHERE o_orderdate < $1", ["1995-06-17 12:00:00", "1992-01-02"]),
    ("float8", "SELECT count(*) FROM {}.part WHERE p_size < $1", [10.5, 0.0]),
    ("boolean", "SELECT count(*) FROM {}.part WHERE (p_size > 10) = $1", [True, False]),
    ("text[]", "SELECT count(*) FROM {}.orders WHERE o_orderpriority = ANY($1)", [["1-URGENT", "5-LOW"], [], [None]]),
    ("bigint[]", "SELECT o_custkey FROM {}.orders WHERE o_orderkey = ANY($1) ORDER BY 1", [[1, 2, 3], [7, None]]),
    ("int[]", "SELECT count(*) FROM {}.part WHERE p_size <> ALL($1)", [[1, 2], [], [1, None]]),
]


@pytest.mark.parametrize(("type_", "query", "values"), PREPARED, ids=[f"{t} {q[7:15]}" for t, q, _ in PREPARED])
def test_parameters_are_sent(orders, sql, type_, query, values):
    """A generic plan has its parameters in the remote statement."""
    sql.execute("SET plan_cache_mode = force_generic_plan")
    for place in ("far", "near"):
        sql.execute(f"PREPARE {place} ({type_}) AS {query.format(f'tpch_{place}')}")
    name = f"EXECUTE far ({literal(values[0])})"
    _, (statement,) = remote(sql, name)
    assert "$1::" in statement
    for value in values:
        far, near = (sql.execute(f"EXECUTE {place} ({literal(value)})").fetchall() for place in ("far", "near"))
        assert far == near, value


def literal(value):
    return psycopg.sql.Literal(value).as_string()


def test_a_join_of_both_sides_sends_its_keys(orders, sql):
    sql.execute("SET search_path = tpch_far")
    query = """SELECT k, (SELECT sum(l_quantity) FROM lineitem WHERE l_orderkey = k) FROM generate_series(1, {}) k
        ORDER BY 1"""
    nodes, (statement,) = remote(sql, query.format(40))
    assert "$1::bigint" in statement or "$1::integer" in statement
    far, near = both(sql, "tpch", query.format(40))
    check(far, near)
    near = "SELECT n.n_name, count(*) FROM tpch_near.nation n JOIN tpch_{}.supplier ON s_nationkey = n_nationkey"
    far, near = (sql.execute(f"{near.format(place)} GROUP BY 1 ORDER BY 1").fetchall() for place in ("far", "near"))
    assert far == near


IN_SUBTRANSACTIONS = """
CREATE FUNCTION pg_temp.each() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    found record;
    divisor int;
    total numeric;
BEGIN
    FOR found IN SELECT n_nationkey, n_name FROM tpch_far.nation WHERE n_nationkey < 6 ORDER BY 1 LOOP
        BEGIN
            divisor := found.n_nationkey % 2;
            SELECT sum(r_regionkey) INTO total FROM tpch_far.region WHERE r_regionkey / divisor >= 0;
            BEGIN
                PERFORM 1 FROM tpch_far.absent;
            EXCEPTION WHEN undefined_table THEN
                total := total + 100;
            END;
            RETURN NEXT found.n_name || ' ' || total;
        EXCEPTION WHEN division_by_zero THEN
            RETURN NEXT found.n_name || ' failed';
        END;
    END LOOP;
    RETURN NEXT (SELECT count(*) FROM tpch_far.region)::text;
END $$
"""


def test_failures_in_subtransactions_end_only_these(orders, sql):
    sql.execute("""CREATE FOREIGN TABLE tpch_far.absent (a int) SERVER tpch
        OPTIONS (schema_name 'public', table_name 'absent')""")
    sql.execute(IN_SUBTRANSACTIONS)
    rows = [row[0] for row in sql.execute("SELECT * FROM pg_temp.each()")]
    assert rows == [
        "ALGERIA failed", "ARGENTINA 110", "BRAZIL failed", "CANADA 110", "EGYPT failed", "ETHIOPIA 110", "5",
    ]  # fmt: skip
    sql.execute("DROP FOREIGN TABLE tpch_far.absent")


def test_savepoints_keep_the_cursors_before_them(orders, sql):
    count = "SELECT count(*) FROM tpch_far.region"
    sql.execute("SET plan_cache_mode = force_generic_plan")
    with sql.transaction():
        sql.execute("DECLARE before CURSOR FOR SELECT n_nationkey FROM tpch_far.nation ORDER BY 1")
        assert sql.execute("FETCH 2 FROM before").fetchall() == [(0,), (1,)]
        sql.execute("SAVEPOINT a")
        sql.execute("DECLARE inside CURSOR FOR SELECT n_nationkey FROM tpch_far.nation ORDER BY 1")
        assert sql.execute("FETCH 1 FROM inside").fetchall() == [(0,)]
        with pytest.raises(errors.DivisionByZero):
            sql.execute("SELECT sum(1 / (r_regionkey - 1)) FROM tpch_far.region")
        sql.execute("ROLLBACK TO SAVEPOINT a")
        assert sql.execute("FETCH 2 FROM before").fetchall() == [(2,), (3,)]
        sql.execute("SAVEPOINT b")
        assert sql.execute(count).fetchone() == (5,)
        sql.execute("RELEASE SAVEPOINT b")
        sql.execute("RELEASE SAVEPOINT a")
        assert sql.execute(count).fetchone() == (5,)
        assert sql.execute("FETCH 1 FROM before").fetchall() == [(4,)]
    with pytest.raises(errors.DivisionByZero):
        sql.execute("SELECT sum(1 / (r_regionkey - 1)) FROM tpch_far.region")
    assert sql.execute(count).fetchone() == (5,)


def direct(server):
    """Connects to Forebay itself."""
    return psycopg.connect(f"host=127.0.0.1 port={server.port} user=ada dbname=forebay", autocommit=True)


def test_a_rollback_ends_the_cursors_since_its_savepoint(orders):
    """Statements as postgres_fdw sends them."""
    with direct(orders) as sql:
        sql.execute("START TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        sql.execute("DECLARE c1 CURSOR FOR SELECT r_regionkey FROM region ORDER BY 1")
        sql.execute("SAVEPOINT s2")
        sql.execute("DECLARE c2 CURSOR FOR SELECT r_regionkey FROM region ORDER BY 1")
        sql.execute("ROLLBACK TO SAVEPOINT s2; RELEASE SAVEPOINT s2")
        sql.execute("SAVEPOINT s2; SAVEPOINT s3")
        sql.execute("DECLARE c2 CURSOR FOR SELECT r_regionkey FROM region ORDER BY 1")
        sql.execute("RELEASE SAVEPOINT s3")
        assert sql.execute("FETCH 1 FROM c2").fetchall() == [(0,)]
        sql.execute("ROLLBACK TO SAVEPOINT s2")
        assert sql.execute("FETCH 2 FROM c1").fetchall() == [(0,), (1,)]
        with pytest.raises(errors.InvalidCursorName):
            sql.execute("FETCH 1 FROM c2")
        assert sql.execute("ABORT TRANSACTION").statusmessage == "ROLLBACK"
        assert sql.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_isolation_levels_pass(orders, sql):
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        with sql.transaction():
            sql.execute(f"SET TRANSACTION ISOLATION LEVEL {level}, READ ONLY")
            assert sql.execute("SELECT count(*) FROM tpch_far.region").fetchone() == (5,)


def test_a_timeout_cancels_the_remote_statement(orders, sql):
    sql.execute("SELECT count(*) FROM tpch_far.region")
    sql.execute("SET statement_timeout = 300")
    with pytest.raises(errors.QueryCanceled):
        sql.execute("""SELECT count(*) FROM tpch_far.lineitem a, tpch_far.lineitem b, tpch_far.lineitem c
            WHERE a.l_quantity + b.l_quantity <> c.l_quantity""")
    sql.execute("SET statement_timeout = 0")
    assert sql.execute("SELECT count(*) FROM tpch_far.region").fetchone() == (5,)


ARRAYS = [
    "SELECT count(*) FROM {}.lineitem WHERE l_shipmode IN ('MAIL', 'SHIP')",
    "SELECT count(*) FROM {}.lineitem WHERE l_shipmode NOT IN ('MAIL', 'SHIP')",
    "SELECT count(*) FROM {}.lineitem WHERE l_shipmode IN ('MAIL', NULL)",
    "SELECT count(*) FROM {}.lineitem WHERE l_shipmode NOT IN ('MAIL', NULL)",
    "SELECT count(*) FROM {}.part WHERE p_size IN (1, 2, 49)",
    "SELECT count(*) FROM {}.part WHERE p_size > ANY (ARRAY[10, 20])",
    "SELECT count(*) FROM {}.part WHERE p_size > ALL (ARRAY[10, 20])",
    "SELECT count(*) FROM {}.part WHERE p_size = ANY ('{{}}'::int[])",
    "SELECT count(*) FROM {}.part WHERE p_size <> ALL ('{{}}'::int[])",
    "SELECT count(*) FROM {}.lineitem WHERE l_discount IN (0.01, 0.10)",
    "SELECT count(*) FROM {}.lineitem WHERE l_shipdate IN (date '1994-01-01', date '1995-06-17')",
    "SELECT count(*) FROM {}.orders WHERE o_orderkey = ANY ('{{1,2,3,4,NULL}}'::bigint[])",
    "SELECT count(*) FROM {}.part WHERE p_name LIKE ANY (ARRAY['%green%', '%blue%'])",
    "SELECT count(*) FROM {}.part WHERE p_type NOT LIKE ALL (ARRAY['%BRASS', 'PROMO%'])",
    "SELECT count(*) FROM {}.part WHERE p_container = ANY (ARRAY['SM \"CASE', 'a,b', 'LG\\BOX', 'it''s', 'MED BOX'])",
]


@pytest.mark.parametrize("query", ARRAYS)
def test_a_value_is_compared_with_an_array(orders, sql, query):
    _, (statement,) = remote(sql, query.format("tpch_far"))
    assert " ANY (" in statement or " ALL (" in statement
    far, near = (sql.execute(query.format(f"tpch_{place}")).fetchall() for place in ("far", "near"))
    assert far == near


TYPES = """id int, small smallint, large bigint, amount numeric(20,5), whole numeric(38,0), single real, double float8,
    flag boolean, label text, day date, moment timestamp, zoned timestamptz, clock time, bytes bytea, numbers int[],
    labels text[]"""

VALUES = [
    "1, 1, 1, 1.50000, 1, 1.5, 1.5, true, 'a', '2020-02-29', '2020-01-01 01:02:03', '2020-01-01 01:02:03+02', "
    "'01:02:03', '\\x00ff', '{1,2,NULL}', '{a,\"b,c\"}'",
    "2, -32768, -9223372036854775808, -123456789012345.00001, 99999999999999999999999999999999999999, 3.4028235e38, "
    "1.7976931348623157e308, false, 'é€𝄞', '0001-01-01', '0001-01-01 00:00:00', '1000-01-01 00:00:00+00', '00:00:00', "
    "'\\x', '{}', '{}'",
    "3, 32767, 9223372036854775807, 0.00001, -1, 1.1754944e-38, 5e-324, true, 'it''s \"q\" \\ back', '9999-12-31', "
    "'9999-12-31 23:59:59.999999', '2020-06-01 12:00:00.000001+00', '23:59:59.999999', '\\x27', '{-5}', '{\"\"}'",
    "4, 0, 0, 0, 0, 'NaN', 'Infinity', false, '', '1969-12-31', '1969-12-31 23:59:59.999999', "
    "'1969-12-31 23:59:59.5+00', '12:00:00', '\\x5c', '{2147483647}', '{\"a\\\\\\\\b\"}'",
    "5, 7, 7, 0.1, 7, 0.1, 0.1, true, 'a ', '2000-01-01', '2000-01-01 00:00:00.1', '2000-01-01 00:00:00.1+00', "
    "'00:00:00.1', '\\x00', '{7,7}', '{x,NULL}'",
    "6" + ", NULL" * 15,
]


def names():
    return [column.split()[0] for column in re.sub(r"\(.*?\)", "", TYPES).split(",")]


@pytest.fixture(scope="module")
def typed(cluster, tmp_path_factory):
    """The schemas `types_far` and `types_near`, with a table of all types."""
    folder = tmp_path_factory.mktemp("types")
    files = folder / "files"
    files.mkdir()
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA types_near")
        sql.execute(f"CREATE TABLE types_near.things ({TYPES})")
        for values in VALUES:
            sql.execute(f"INSERT INTO types_near.things VALUES ({values})")
        rows = sql.execute("SELECT * FROM types_near.things ORDER BY id").fetchall()
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        declared = re.sub(r"float8", "double", TYPES).replace("bytea", "blob")
        duck.execute(f"CREATE TABLE things ({declared})")
        marks = ", ".join("?" * len(rows[0]))
        duck.executemany(f"INSERT INTO things VALUES ({marks})", rows)
        duck.execute(f"COPY things TO '{files}/things.parquet' (FORMAT parquet)")
    server = start_tables("--data", str(folder / "data"), "--tables", str(files))
    add_server(cluster, "types", server.port)
    yield server
    server.stop()


def test_values_of_all_types_are_the_same(typed, sql):
    assert columns(sql, "types_far") == columns(sql, "types_near")
    texts = ", ".join(f"{name}::text" for name in names())
    far, near = both(sql, "types", "SELECT * FROM things ORDER BY id")
    assert repr(far) == repr(near)
    far, near = both(sql, "types", f"SELECT {texts} FROM things ORDER BY id")
    assert far == near


@pytest.mark.parametrize("column", names())
def test_constants_of_all_types_are_sent(typed, sql, column):
    values = sql.execute(f"SELECT DISTINCT {column}::text FROM types_near.things WHERE {column} IS NOT NULL").fetchall()
    (type_,) = sql.execute(f"SELECT pg_typeof({column})::text FROM types_near.things LIMIT 1").fetchone()
    for (value,) in values:
        constant = f"{literal(value)}::{type_}"
        for operator in ("=", "<>", "<", ">=", "IS DISTINCT FROM"):
            query = f"SELECT id FROM things WHERE {column} {operator} {constant} ORDER BY id"
            far, near = both(sql, "types", query)
            assert far == near, query


ORDERED = """SELECT id FROM things ORDER BY {} {}, id LIMIT 10"""


@pytest.mark.parametrize("column", names())
def test_order_is_that_of_postgresql(typed, sql, column):
    for direction in ("ASC", "DESC", "ASC NULLS FIRST", "DESC NULLS LAST"):
        far, near = both(sql, "types", ORDERED.format(column, direction))
        assert far == near, f"{column} {direction}"


def test_texts_have_the_order_of_bytes(orders, typed, sql):
    query = 'SELECT DISTINCT c_address COLLATE "C" FROM customer ORDER BY 1'
    far, near = both(sql, "tpch", query)
    assert far == near
    query = """SELECT count(*) FROM customer WHERE c_address > 'Z' AND c_address < 'zz' COLLATE "C" """
    far, near = both(sql, "tpch", query)
    assert far == near


def test_texts_have_one_order_in_a_database_with_another(cluster, orders):
    """Texts of the collation C are sorted and compared by PostgreSQL as they are by Forebay."""
    with psycopg.connect(cluster.sql, autocommit=True) as sql:
        sql.execute("CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
    with psycopg.connect(cluster.sql, dbname="english", autocommit=True) as sql:
        sql.execute("CREATE EXTENSION postgres_fdw")
        address = f"host '127.0.0.1', port '{orders.port}', {OPTIONS}"
        sql.execute(f"CREATE SERVER tpch FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({address})")
        sql.execute("CREATE USER MAPPING FOR ada SERVER tpch OPTIONS (user 'ada')")
        sql.execute("IMPORT FOREIGN SCHEMA public LIMIT TO (customer) FROM SERVER tpch INTO public")
        sql.execute('ALTER FOREIGN TABLE customer ALTER c_address TYPE text COLLATE "C"')
        query = "WITH t AS {} (SELECT * FROM customer) SELECT c_address FROM t WHERE c_address < 'a' ORDER BY 1"
        for kind, sorts in (("NOT MATERIALIZED", False), ("MATERIALIZED", True)):
            nodes, _ = remote(sql, query.format(kind))
            assert ("Sort" in nodes) == sorts
            rows = [row[0] for row in sql.execute(query.format(kind))]
            assert rows and rows == sorted(rows) and max(rows) < "a", kind


def test_fixed_length_texts_are_padded_here(orders, sql):
    """Forebay has the texts without blanks, and postgres_fdw sends none that the query does not have."""
    sql.execute("""CREATE FOREIGN TABLE tpch_far.fixed (c_custkey bigint, c_mktsegment char(10), c_phone varchar(15))
        SERVER tpch OPTIONS (schema_name 'public', table_name 'customer')""")
    for condition in ("c_mktsegment = 'BUILDING'", "c_mktsegment IN ('BUILDING', 'x')", "c_mktsegment > 'BUILDING'",
                      "c_mktsegment <> 'BUILDING'", "c_mktsegment < 'C'::bpchar", "c_phone LIKE '1%'"):  # fmt: skip
        query = f"SELECT count(*), min(c_mktsegment), sum(c_custkey) FROM {{}} WHERE {condition}"
        nodes, (statement,) = remote(sql, query.format("tpch_far.fixed"))
        assert " WHERE " in statement
        far = sql.execute(query.format("tpch_far.fixed")).fetchall()
        check(far, sql.execute(query.format("tpch_near.customer")).fetchall())
    sql.execute("DROP FOREIGN TABLE tpch_far.fixed")


STEPS = [
    "FETCH 3", "FETCH BACKWARD 2", "FETCH NEXT", "FETCH PRIOR", "FETCH LAST", "FETCH NEXT", "FETCH PRIOR",
    "FETCH BACKWARD ALL", "FETCH PRIOR", "FETCH 0", "FETCH ABSOLUTE 7", "FETCH 0", "FETCH RELATIVE -3", "FETCH FIRST",
    "FETCH ABSOLUTE -2", "FETCH RELATIVE 5", "FETCH RELATIVE -1", "MOVE 2", "FETCH BACKWARD 3", "MOVE ABSOLUTE 10",
    "FETCH 2", "MOVE BACKWARD ALL", "FETCH ALL", "FETCH FORWARD ALL", "FETCH ABSOLUTE 0", "FETCH 1", "MOVE LAST",
    "FETCH -4", "FETCH ABSOLUTE 100", "FETCH BACKWARD 1", "FETCH ABSOLUTE -100", "FETCH FORWARD 2", "MOVE PRIOR",
    "FETCH RELATIVE 0",
]  # fmt: skip


def steps(connection, query, declared):
    """Returns the rows and tags of each step of a cursor."""
    results = []
    with connection.transaction():
        connection.execute(f"DECLARE c {declared} CURSOR FOR {query}")
        for step in STEPS:
            cursor = connection.execute(f"{step} FROM c")
            rows = cursor.fetchall() if cursor.description else None
            results.append((step, cursor.statusmessage, rows))
    return results


def test_cursors_go_forward_and_back(orders, sql):
    query = "SELECT n_nationkey, n_name FROM {}nation ORDER BY n_name"
    far, near = (steps(sql, query.format(f"tpch_{place}."), "SCROLL") for place in ("far", "near"))
    near = [(step, tag, [(key, name.strip()) for key, name in rows] if rows else rows) for step, tag, rows in near]
    assert far == near
    with direct(orders) as connection:
        assert steps(connection, query.format(""), "SCROLL") == near
        assert steps(connection, query.format(""), "") == near
        with pytest.raises(errors.ObjectNotInPrerequisiteState):
            steps(connection, query.format(""), "NO SCROLL")


def test_a_scan_begins_again(orders, sql):
    """The inner side of a nested loop reads its cursor again, which `MOVE BACKWARD ALL` does for more than a fetch."""
    sql.execute("SET enable_material = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
    for size in (3, 100):
        sql.execute(f"""CREATE FOREIGN TABLE tpch_far.some (s_suppkey bigint, s_nationkey bigint) SERVER tpch
            OPTIONS (schema_name 'public', table_name 'supplier', fetch_size '{size}')""")
        query = """SELECT n.n_nationkey, count(*), sum(s_suppkey) FROM tpch_near.nation n JOIN {} s
            ON s.s_nationkey + n.n_nationkey = 24 AND random() < 2 GROUP BY 1 ORDER BY 1"""
        nodes, _ = remote(sql, query.format("tpch_far.some"))
        assert "Nested Loop" in nodes and "Materialize" not in nodes
        far, near = (sql.execute(query.format(table)).fetchall() for table in ("tpch_far.some", "tpch_near.supplier"))
        assert far == near
        sql.execute("DROP FOREIGN TABLE tpch_far.some")


def test_all_rows_of_a_table_arrive(star, sql):
    """More rows than one fetch has."""
    for table in ssb.SCHEMAS:
        far, near = both(sql, "ssb", f'SELECT count(*), sum(hashtextextended(t::text, 0)) FROM "{table}" t')
        assert far == near, table


def test_times_follow_the_zone_of_the_session(typed, sql):
    sql.execute("SET timezone = 'Asia/Kolkata'")
    for query in ("SELECT id, zoned::text, moment::timestamptz::text FROM things ORDER BY id",
                  "SELECT id FROM things WHERE zoned = '2020-01-01 04:32:03'",
                  "SELECT max(zoned)::text, count(*) FROM things WHERE zoned < timestamptz '2000-01-01 05:30:00.2'"):
        far, near = both(sql, "types", query)
        assert far == near, query


def test_users_log_in_with_their_passwords(cluster, certificate, tmp_path, sql):
    create_data(tmp_path)
    add_user(tmp_path, "reader", "--role", "readAnyDatabase")
    cert, key = certificate
    server = start_tables("--data", str(tmp_path), "--auth", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        add_server(cluster, "users", server.port, "user 'reader', password 'wrong'", imports=False)
        sql.execute("ALTER SERVER users OPTIONS (ADD sslmode 'require')")
        sql.execute("CREATE FOREIGN TABLE public.schemas (nspname text) SERVER users "
                    "OPTIONS (schema_name 'pg_catalog', table_name 'pg_namespace')")
        query = "SELECT count(*) FROM schemas WHERE nspname = 'public'"
        with pytest.raises(errors.SqlclientUnableToEstablishSqlconnection):
            sql.execute(query)
        sql.execute(f"ALTER USER MAPPING FOR ada SERVER users OPTIONS (SET password '{PASSWORD}')")
        assert sql.execute(query).fetchone() == (1,)
    finally:
        server.stop()


def test_several_servers_answer_at_once(star, orders, sql):
    """`async_capable` scans wait for their rows together."""
    sql.execute("SET search_path = tpch_far")
    for server in ("ssb", "tpch"):
        sql.execute(f"ALTER SERVER {server} OPTIONS (ADD async_capable 'true')")
    query = "SELECT lo_quantity FROM ssb_{0}.lineorder UNION ALL SELECT l_linenumber FROM tpch_{0}.lineitem"
    query = f"SELECT count(*), sum(lo_quantity) FROM ({query}) both_servers"
    assert "Async Foreign Scan" in str(sql.execute(f"EXPLAIN {query.format('far')}").fetchall())
    assert sql.execute(query.format("far")).fetchall() == sql.execute(query.format("near")).fetchall()
    for server in ("ssb", "tpch"):
        sql.execute(f"ALTER SERVER {server} OPTIONS (DROP async_capable)")


def test_statistics_are_gathered(star, sql):
    sql.execute("ANALYZE ssb_far.supplier")
    (rows,) = sql.execute("SELECT reltuples FROM pg_class WHERE oid = 'ssb_far.supplier'::regclass").fetchone()
    assert rows == ssb.SUPPLIERS
    sql.execute("DELETE FROM pg_statistic WHERE starelid = 'ssb_far.supplier'::regclass")
    sql.execute("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = 'ssb_far.supplier'::regclass")


def test_changes_are_refused(orders, sql):
    for statement in ("INSERT INTO tpch_far.region VALUES (9, 'x', 'y')", "DELETE FROM tpch_far.region",
                      "UPDATE tpch_far.region SET r_name = 'x'", "TRUNCATE tpch_far.region"):  # fmt: skip
        with pytest.raises(psycopg.Error) as caught:
            sql.execute(statement)
        assert caught.value.sqlstate in ("0A000", "25006", "42809"), statement
    assert sql.execute("SELECT count(*) FROM tpch_far.region").fetchone() == (5,)
