"""The catalogue queries of graphical clients, and pgcli itself."""

import pathlib
import re

import psycopg
import pytest
from pgcli.pgexecute import PGExecute
from servers import start_tables

TEXT = pathlib.Path(__file__).with_name("sql").joinpath("catalogue.sql").read_text(encoding="utf-8")
# By the comment before them.
QUERIES = {
    head: [query for query in body.split(";\n") if query.strip()]
    for head, body in re.findall(r"^-- (\w+: [^\n]*)\n(.*?)(?=^-- |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,age\nAda,36\nAlan,41\nGrace,\n")
    server = start_tables("--tables", str(folder), "--data", str(tmp_path_factory.mktemp("data")))
    with psycopg.connect(server.sql, autocommit=True) as connection:
        connection.execute("CREATE VIEW adults AS SELECT name, age FROM people WHERE age > 40")
    yield server
    server.stop()


@pytest.mark.parametrize("head", QUERIES)
def test_queries_of_clients_are_answered(server, head):
    with psycopg.connect(server.sql, autocommit=True) as sql:
        for query in QUERIES[head]:
            sql.execute(query.encode())
            sql.cursor(binary=True).execute(query.encode())


def rows(server, part):
    """Returns the rows of the one query that contains a part."""
    (query,) = [query for queries in QUERIES.values() for query in queries if part in query]
    with psycopg.connect(server.sql, autocommit=True) as sql:
        return sql.execute(query.encode()).fetchall()


def test_the_answers_name_the_tables(server):
    assert [row[:3] for row in rows(server, "estimated_row_count")] == [
        ("public", "people", "TABLE"),
        ("public", "adults", "VIEW"),
    ]
    assert {row[0] for row in rows(server, 'AS "table"')} == {"people", "adults"}
    assert [row[0] for row in rows(server, "parse_ident")] == ["name", "age"]
    assert [row[:4] for row in rows(server, "AS cltype")] == [("name", 1, 25, "text"), ("age", 2, 20, "bigint")]
    assert [row[1] for row in rows(server, "def_value")] and len(rows(server, "def_value")) == 2
    assert {row[0] for row in rows(server, "TABLE_SCHEM")} >= {"public", "pg_catalog", "information_schema"}
    assert rows(server, "server_version_num")[0][0] >= 1500
    assert [row[2] for row in rows(server, "t.oid = 1034")] == ["_aclitem"]


def test_columns_and_views_are_described_as_postgresql_describes_them(server):
    names = "data_type, udt_name, numeric_precision, numeric_scale, datetime_precision, is_nullable, ordinal_position"
    with psycopg.connect(server.sql, autocommit=True) as sql:
        kinds = "1::int2 AS a, 1.5::numeric(10, 2) AS b, timestamp '2020-01-01' AS c, ARRAY[1::int4] AS d, 'x' AS e"
        sql.execute(f"CREATE VIEW kinds AS SELECT {kinds}")
        query = f"SELECT {names} FROM information_schema.columns WHERE table_name = 'kinds' ORDER BY ordinal_position"
        assert [row[:5] for row in sql.execute(query)] == [
            ("smallint", "int2", 16, 0, None),
            ("numeric", "numeric", 10, 2, None),
            ("timestamp without time zone", "timestamp", None, None, 6),
            ("ARRAY", "_int4", None, None, None),
            ("text", "text", None, None, None),
        ]
        assert [row[6] for row in sql.execute(query)] == [1, 2, 3, 4, 5]
        sql.execute("DROP VIEW kinds")
        query = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        assert sql.execute(query).fetchall() == [("adults", "VIEW"), ("people", "BASE TABLE")]
        definition = "SELECT name, age FROM people WHERE age > 40;"
        for query in [
            "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
            "SELECT table_name, view_definition FROM information_schema.views WHERE table_schema = 'public'",
            "SELECT relname, pg_get_viewdef(oid, true) FROM pg_class WHERE relname = 'adults'",
            "SELECT 'adults', pg_get_viewdef('adults'::regclass)",
        ]:
            assert sql.execute(query).fetchall() == [("adults", definition)], query
        assert sql.execute("SELECT tablename, tableowner FROM pg_tables WHERE schemaname = 'public'").fetchall() == [
            ("people", "ada")
        ]


def test_the_catalogue_knows_the_user(server):
    with psycopg.connect(server.sql, autocommit=True) as sql:
        owner = "SELECT rolname, pg_get_userbyid(relowner), relacl FROM pg_class c JOIN pg_roles r ON r.oid = relowner"
        assert sql.execute(f"{owner} WHERE relname = 'people'").fetchall() == [("ada", "ada", ["ada=r/ada"])]
        assert sql.execute("SELECT usename FROM pg_user").fetchall() == [("ada",)]
        sql.execute("SET application_name = 'one'")
        query = "SELECT setting FROM pg_settings WHERE name IN ('application_name', 'max_index_keys') ORDER BY name"
        assert sql.execute(query).fetchall() == [("one",), ("32",)]
        query = "SELECT privilege_type FROM information_schema.table_privileges WHERE table_name = 'people'"
        assert sql.execute(query).fetchall() == [("SELECT",)]


def test_correlated_subqueries_over_the_catalogue_have_values(server):
    query = "SELECT c.relname, (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace) FROM pg_class c"
    with psycopg.connect(server.sql, autocommit=True) as sql:
        assert sql.execute(f"{query} WHERE c.relname = 'people'").fetchall() == [("people", "public")]


def test_pgcli(server):
    execute = PGExecute(database="forebay", user="ada", host="127.0.0.1", port=str(server.port))
    assert ("public", "people") in list(execute.tables())
    assert ("public", "adults") in list(execute.views())
    columns = [column for column in execute.table_columns() if column[1] == "people"]
    assert [column[2:4] for column in columns] == [("name", "text"), ("age", "bigint")]
    assert [column[2] for column in execute.view_columns() if column[1] == "adults"] == ["name", "age"]
    assert "forebay" in execute.databases()
    assert {"public", "pg_catalog"} <= set(execute.schemata())
    assert "public" in execute.search_path()
    assert list(execute.foreignkeys()) == []
    list(execute.datatypes())
    absolute = [function for function in execute.functions() if function.func_name == "abs"]
    assert ("bigint",) in [function.arg_types for function in absolute]
    results = list(execute.run("SELECT name FROM people ORDER BY 1; SELECT 1"))
    assert [result[3] for result in results] == ["SELECT 3", "SELECT 1"]
