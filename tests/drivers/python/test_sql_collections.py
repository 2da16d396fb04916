"""The tables door: collections of the documents door as tables."""

import datetime

import bson
import bson.json_util
import psycopg
import pymongo
import pytest
from psycopg import errors, pq
from servers import PASSWORD, add_user, create_data, start_tables
from test_search import declare
from waiting import until

NAMES = ["webpack", "webpack-cli", "React", "react-dom", "a_b", "a%b", "", "Straße", "line\nbreak", "pack\n", None]
CONDITIONS = [
    "name = 'webpack'", "name <> 'webpack'", "NOT name = 'webpack'", "name IN ('webpack', 'React')",
    "name NOT IN ('webpack', 'React')", "name IS NULL", "name IS NOT NULL", "name LIKE '%webpack%'", "name LIKE 'web%'",
    "name NOT LIKE 'web%'", "name LIKE '%pack'", "name LIKE 'a_b'", r"name LIKE 'a\_b'", r"name LIKE 'a\%b'",
    "name LIKE '%'", "name NOT LIKE '%'", "name LIKE ''", "name ILIKE 'react%'", "name NOT ILIKE '%REACT%'",
    "name ILIKE '%STRA_E'", "name LIKE 'line%break'", "name ~ '^web'", "name ~ 'pack$'", "name !~ 'pack$'",
    "name ~* 'REACT'", "name !~* '^react'", "name ~ 'line.break'", "name ~ '[[:upper:]]'", "name ~ 'a|b'",
    "name LIKE 'w%' OR name LIKE 'r%'", "NOT (name LIKE 'w%' AND name LIKE '%i')", "name LIKE 'w%' AND _id > 1",
    "NOT (name LIKE 'w%' OR name IS NULL)", "name > 'r'", "name = NULL", "name NOT IN ('webpack', NULL)",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    files = tmp_path_factory.mktemp("files")
    (files / "licences.csv").write_text("package,licence\nwebpack,MIT\nReact,MIT\nother,ISC\n")
    server = start_tables("--data", str(tmp_path_factory.mktemp("data")), "--tables", str(files), "--devices", "host:2")
    with pymongo.MongoClient(server.uri) as client:
        documents = [{"_id": n, "name": name} for n, name in enumerate(NAMES) if name is not None]
        documents += [{"_id": 100, "name": None}, {"_id": 101}]
        for collection in ("cached", "plain"):
            client.shop[collection].insert_many(documents)
        declare(client.shop.cached, "name")
    yield server
    server.stop()


@pytest.fixture
def sql(server):
    with psycopg.connect(server.sql, autocommit=True) as connection:
        yield connection


@pytest.fixture
def shop(server):
    with pymongo.MongoClient(server.uri) as client:
        yield client.shop


def rows(sql, query, *parameters):
    return sql.execute(query, parameters or None).fetchall()


def explained(sql, query):
    return "\n".join(row[-1] for row in rows(sql, "EXPLAIN " + query))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_mean_the_same_with_and_without_a_cache(sql, condition):
    found = {}
    for table in ("shop.cached", "documents.shop.plain"):
        found[table] = rows(sql, f"SELECT _id FROM {table} WHERE {condition} ORDER BY _id")
        count = rows(sql, f"SELECT count(*) FROM {table} WHERE {condition}")
        assert count == [(len(found[table]),)], table
    # A condition on a computed value is never answered by the documents door.
    computed = condition.replace("name", "concat(name, '')") if "NULL" not in condition.upper() else None
    assert found["shop.cached"] == found["documents.shop.plain"]
    if computed:
        expected = rows(sql, f"SELECT _id FROM shop.plain WHERE name IS NOT NULL AND ({computed}) ORDER BY _id")
        assert found["shop.cached"] == expected


def test_a_cached_field_answers_and_explain_says_so(sql):
    plan = explained(sql, "SELECT count(*) FROM shop.cached WHERE name LIKE '%webpack%'")
    assert "command=count" in plan and "CACHE_SEARCH" in plan and '"exact":true' in plan
    assert "FilterExec" not in plan
    plan = explained(sql, "SELECT count(*) FROM shop.plain WHERE name LIKE '%webpack%'")
    assert "COLLSCAN" in plan and "FilterExec" in plan


def test_values_have_the_types_of_the_documents(sql, shop):
    identifier = bson.ObjectId()
    moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 250000, tzinfo=datetime.timezone.utc)
    shop.types.drop()
    shop.types.insert_one({"_id": identifier, "whole": 7, "part": 1.5, "yes": True, "at": moment, "bytes": b"\x00\xff",
                           "deep": {"a": [1, "x"]}, "price": bson.Decimal128("1.50"), "text": "é"})  # fmt: skip
    names = '_id, whole, part, yes, at, bytes, deep, price, text'
    expected = (str(identifier), 7, 1.5, True, moment, b"\x00\xff", '{"a":[1,"x"]}', "1.50", "é")
    assert rows(sql, f"SELECT {names} FROM shop.types") == [expected]
    assert rows(sql, "SELECT whole FROM shop.types WHERE _id = %s", str(identifier)) == [(7,)]
    assert rows(sql, "SELECT whole FROM shop.types WHERE at >= %s", moment) == [(7,)]
    document = rows(sql, "SELECT document FROM shop.types")[0][0]
    assert bson.json_util.loads(document)["_id"] == identifier


def test_a_field_that_is_new_is_a_column_of_the_next_query(sql, shop):
    shop.growing.drop()
    shop.growing.insert_one({"a": 1})
    with pytest.raises(errors.UndefinedColumn):
        rows(sql, "SELECT b FROM shop.growing")
    shop.growing.insert_one({"b": "new"})
    assert rows(sql, "SELECT a, b FROM shop.growing ORDER BY a") == [(1, None), (None, "new")]


def test_each_statement_sees_the_writes_before_it(sql, shop):
    shop.written.drop()
    shop.written.insert_many([{"_id": n, "kind": "ab"[n % 2], "n": n} for n in range(1000)])
    query = "SELECT kind, count(*), sum(n) FROM shop.written WHERE n >= 0 GROUP BY kind ORDER BY kind"
    assert "DocumentsExec: collection=shop.written" in explained(sql, query)

    def assert_found(*expected):
        # The columns come to a GPU, if there is one, when they are read the second time.
        for _ in range(3):
            assert rows(sql, query) == list(expected)

    assert_found(("a", 500, 249_500), ("b", 500, 250_000))
    shop.written.insert_one({"_id": 1000, "kind": "c", "n": 7})
    assert_found(("a", 500, 249_500), ("b", 500, 250_000), ("c", 1, 7))
    shop.written.update_many({"kind": "a"}, {"$inc": {"n": 1}})
    assert_found(("a", 500, 250_000), ("b", 500, 250_000), ("c", 1, 7))
    shop.written.delete_many({"kind": "b"})
    assert_found(("a", 500, 250_000), ("c", 1, 7))
    shop.written.drop()
    shop.written.insert_one({"_id": 1, "kind": "a", "n": 1})
    assert_found(("a", 1, 1))


def test_a_value_of_another_type_than_its_column_names_the_document(sql, shop):
    shop.mixed.drop()
    # The sample is of both ends of the collection.
    shop.mixed.insert_many([{"_id": n, "age": "old" if n == 1000 else n} for n in range(2000)])
    with pytest.raises(errors.DatatypeMismatch, match='"age" of the document with _id 1000 has a value of type string.*bigint'):
        rows(sql, "SELECT sum(age) FROM shop.mixed")
    shop.mixed.insert_one({"_id": 5000, "age": "older"})
    assert rows(sql, "SELECT age FROM shop.mixed WHERE _id IN (3, 1000)") == [("3",), ("old",)]


def test_an_array_in_a_field_of_strings_is_not_answered_by_the_cache(sql, shop):
    shop.arrays.drop()
    shop.arrays.insert_many([{"_id": 1, "tag": "web"}, {"_id": 2, "tag": ["web", "x"]}])
    declare(shop.arrays, "tag")
    assert rows(sql, "SELECT count(*) FROM shop.arrays WHERE tag = 'web'") == [(1,)]
    assert rows(sql, "SELECT tag FROM shop.arrays ORDER BY _id") == [("web",), ('["web","x"]',)]


def test_groups_of_a_cached_field_are_counted_by_its_cache(sql):
    query = "SELECT name, count(*) FROM shop.{} GROUP BY name ORDER BY name NULLS FIRST"
    assert rows(sql, query.format("cached")) == rows(sql, query.format("plain"))
    assert "CACHE_DISTINCT" in explained(sql, query.format("cached"))
    assert "CACHE_DISTINCT" not in explained(sql, query.format("plain"))


def test_a_join_of_a_collection_and_a_file(sql):
    query = "SELECT licence, count(*) FROM shop.cached JOIN licences ON name = package GROUP BY licence"
    assert rows(sql, query) == [("MIT", 2)]


def test_many_documents_arrive_in_batches_and_a_limit_reads_few(sql, shop):
    shop.many.drop()
    shop.many.insert_many([{"_id": n, "n": n, "text": f"{n:06}"} for n in range(50_000)])
    assert rows(sql, "SELECT count(*), sum(n), max(text) FROM shop.many") == [(50_000, 1_249_975_000, "049999")]
    assert rows(sql, "SELECT count(*) FROM shop.many WHERE n >= 49990") == [(10,)]
    # Counts of different collections, conditions and fields in one statement.
    few, cached = "SELECT count(*) FROM shop.many WHERE n < 5", "SELECT count(*) FROM shop.cached"
    counts = f"SELECT (SELECT count(*) FROM shop.many), ({few}), ({cached})"
    assert rows(sql, counts) == [(50_000, 5, *rows(sql, cached)[0])]
    assert len(rows(sql, "SELECT n FROM shop.many LIMIT 3")) == 3
    assert "limit=3" in explained(sql, "SELECT n FROM shop.many LIMIT 3")
    with sql.transaction(), sql.cursor("some") as cursor:
        cursor.itersize = 10
        cursor.execute("SELECT n FROM shop.many")
        assert len(cursor.fetchmany(25)) == 25
    open_cursors = lambda: shop.client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    until(lambda: open_cursors() == 0)


def test_collections_are_listed_in_the_catalogues(sql):
    listed = rows(sql, "SELECT table_schema FROM information_schema.tables WHERE table_name = 'cached'")
    assert listed == [("shop",)]
    columns = rows(sql, """SELECT column_name, data_type FROM information_schema.columns
        WHERE table_schema = 'shop' AND table_name = 'cached' ORDER BY ordinal_position""")  # fmt: skip
    assert [name for name, _ in columns] == ["_id", "name", "document"]
    found = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'shop' AND relname = 'cached'"
    assert rows(sql, found) == [(1,)]
    with pytest.raises(errors.UndefinedTable):
        rows(sql, "SELECT * FROM shop.missing")
    with pytest.raises(psycopg.Error):
        rows(sql, "DROP TABLE shop.cached")
    assert rows(sql, "SELECT count(*) FROM shop.cached") == [(len(NAMES) + 1,)]


def test_a_view_joins_collections_and_lasts(sql):
    sql.execute("CREATE OR REPLACE VIEW web AS SELECT name FROM shop.cached WHERE name LIKE 'web%'")
    assert rows(sql, "SELECT count(*) FROM web") == [(2,)]


def test_a_user_sees_only_the_collections_that_roles_allow(tmp_path):
    data = str(tmp_path)
    create_data(data)
    add_user(data, "ada", "--role", "read@forebay", "--role", "read@shop")
    add_user(data, "eve", "--role", "read@forebay")
    add_user(data, "root", "--role", "root")
    server = start_tables("--data", data, "--auth")
    with pymongo.MongoClient(server.uri, username="root", password=PASSWORD) as client:
        client.shop.names.insert_one({"name": "x"})
    try:
        login = f"host=127.0.0.1 port={server.port} dbname=forebay password='{PASSWORD}' user="
        lists = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'",
            "SELECT table_name FROM information_schema.columns WHERE table_schema = 'shop' AND column_name = 'name'",
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'shop'",
        )
        with psycopg.connect(login + "ada", autocommit=True) as sql:
            assert rows(sql, "SELECT name FROM shop.names") == [("x",)]
            for listed in lists:
                assert rows(sql, listed) == [("names",)], listed
        with psycopg.connect(login + "eve", autocommit=True) as sql:
            with pytest.raises(errors.InsufficientPrivilege, match="not authorized on shop"):
                rows(sql, "SELECT name FROM shop.names")
            for listed in lists:
                assert rows(sql, listed) == [], listed
    finally:
        server.stop()


def test_each_run_of_a_prepared_statement_needs_the_role(tmp_path):
    data = str(tmp_path)
    create_data(data)
    add_user(data, "ada", "--role", "read@forebay", "--role", "read@shop")
    add_user(data, "root", "--role", "root")
    server = start_tables("--data", data, "--auth")
    login = f"host=127.0.0.1 port={server.port} dbname=forebay password='{PASSWORD}' user=ada"
    roles = [{"role": "read", "db": db} for db in ("forebay", "shop")]
    query = b"SELECT name FROM shop.names"
    try:
        with (
            pymongo.MongoClient(server.uri, username="root", password=PASSWORD) as client,
            psycopg.connect(login, autocommit=True) as sql,
        ):
            client.shop.names.insert_one({"name": "x"})
            # Parse and Describe. Execute follows when the role is gone, and when it is back.
            assert sql.pgconn.prepare(b"parsed", query).status == pq.ExecStatus.COMMAND_OK
            assert sql.pgconn.describe_prepared(b"parsed").nfields == 1
            sql.execute("PREPARE named AS " + query.decode())
            client.admin.command("updateUser", "ada", roles=roles[:1])
            refused = sql.pgconn.exec_prepared(b"parsed", [])
            assert refused.error_field(pq.DiagnosticField.SQLSTATE) == b"42501", refused.error_message
            with pytest.raises(errors.InsufficientPrivilege, match="not authorized on shop"):
                rows(sql, "EXECUTE named")
            client.admin.command("updateUser", "ada", roles=roles)
            assert sql.pgconn.exec_prepared(b"parsed", []).get_value(0, 0) == b"x"
            assert rows(sql, "EXECUTE named") == [("x",)]
    finally:
        server.stop()


def test_collections_are_declared_for_gpus(tmp_path):
    options = """SELECT reloptions FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE nspname = 'shop' AND relname = 'items'"""
    told = []
    server = start_tables("--data", str(tmp_path))
    with pymongo.MongoClient(server.uri) as client, psycopg.connect(server.sql, autocommit=True) as sql:
        sql.add_notice_handler(lambda it: told.append((it.severity, it.message_primary)))
        client.shop.items.insert_many([{"_id": n, "n": n, "Kind": "ab"[n % 2]} for n in range(10)])
        assert rows(sql, options) == [(None,)]
        sql.execute("ALTER TABLE shop.items SET (gpu = 'n, \"Kind\"')")
        ((severity, message),) = told
        assert severity == "WARNING" and message.startswith("this server has no GPU")
        assert rows(sql, options) == [(['gpu=n, "Kind"'],)]
        for statement, error in [
            ("ALTER TABLE shop.items SET (gpu = kind)", errors.UndefinedColumn),
            ("ALTER TABLE shop.missing SET (gpu = on)", errors.UndefinedTable),
        ]:
            with pytest.raises(error):
                sql.execute(statement)
    server.stop()
    server = start_tables("--data", str(tmp_path))
    with pymongo.MongoClient(server.uri) as client, psycopg.connect(server.sql, autocommit=True) as sql:
        assert rows(sql, options) == [(['gpu=n, "Kind"'],)]
        sql.execute("ALTER TABLE documents.shop.items SET (gpu = off)")
        assert rows(sql, options) == [(["gpu=off"],)]
        sql.execute("ALTER TABLE shop.items RESET (gpu)")
        assert rows(sql, options) == [(None,)]
        sql.execute("ALTER TABLE shop.items SET (gpu)")
        # Another collection with this name declares nothing, as the server finds when it looks.
        client.shop.items.drop()
        client.shop.items.insert_one({"_id": 1})
    server.stop()
    server = start_tables("--data", str(tmp_path))
    with psycopg.connect(server.sql, autocommit=True) as sql:
        until(lambda: rows(sql, options) == [(None,)])
        assert rows(sql, "SELECT count(*) FROM shop.items") == [(1,)]
    server.stop()
