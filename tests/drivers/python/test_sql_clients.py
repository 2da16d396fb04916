"""The tables door with SQLAlchemy, pandas and ADBC."""

import datetime
import decimal
import math

import adbc_driver_manager
import pandas
import psycopg
import pyarrow
import pytest
import sqlalchemy
from adbc_driver_postgresql import StatementOptions
from adbc_driver_postgresql import dbapi as adbc
from servers import start_tables
from sqlalchemy import func, select

TYPES = """SELECT true AS truth, -3::int2 AS small, 7::int4 AS middle, 1099511627776::int8 AS large,
    1.5::float4 AS single, 0.1::float8 AS double, -12.3400::numeric(10, 4) AS exact, 'é'::text AS words,
    decode('00ff', 'hex') AS bytes, date '1999-12-31' AS day, time '01:02:03.000004' AS clock,
    timestamp '2020-01-01 01:02:03.000001' AS local, timestamptz '2020-01-01 01:02:03+02' AS moment,
    NULL::text AS nothing, ARRAY[1, NULL, 3]::int4[] AS list"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "people.csv").write_text("name,team,age\nAda,a,36\nAlan,b,41\nGrace,a,\n")
    server = start_tables("--tables", str(folder), "--data", str(tmp_path_factory.mktemp("data")))
    with psycopg.connect(server.sql, autocommit=True) as connection:
        connection.execute("CREATE VIEW adults AS SELECT name, age FROM people WHERE age > 40")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def engine(server):
    engine = sqlalchemy.create_engine(server.sql.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def test_pandas_reads_queries_and_tables(engine):
    frame = pandas.read_sql("SELECT name, age FROM people ORDER BY name", engine)
    assert list(frame["name"]) == ["Ada", "Alan", "Grace"]
    assert frame["age"].sum() == 77 and math.isnan(frame["age"][2])
    query = sqlalchemy.text("SELECT name FROM people WHERE age > :age AND team = :team")
    assert list(pandas.read_sql(query, engine, params={"age": 30, "team": "a"})["name"]) == ["Ada"]
    assert pandas.read_sql_table("people", engine, index_col="name").loc["Alan", "age"] == 41
    moments = pandas.read_sql("SELECT timestamptz '2026-07-01 12:00:00Z' AS at", engine)
    assert moments["at"][0] == pandas.Timestamp("2026-07-01 12:00:00Z")


def test_pandas_reads_in_chunks_from_a_cursor_of_the_server(engine):
    with engine.connect().execution_options(stream_results=True, max_row_buffer=1000) as connection:
        query = "SELECT value FROM generate_series(1, 25000)"
        sizes = [len(chunk) for chunk in pandas.read_sql(query, connection, chunksize=10_000)]
        assert sizes == [10_000, 10_000, 5_000]
        rows = connection.execute(sqlalchemy.text("SELECT value FROM generate_series(1, 5000)")).yield_per(512)
        assert sum(len(part) for part in rows.partitions()) == 5000


def test_the_inspector_sees_tables_and_views(engine):
    inspector = sqlalchemy.inspect(engine)
    assert inspector.get_table_names() == ["people"]
    assert inspector.get_view_names() == ["adults"]
    assert {"public", "information_schema"} <= set(inspector.get_schema_names())
    columns = inspector.get_columns("people")
    assert [column["name"] for column in columns] == ["name", "team", "age"]
    assert isinstance(columns[0]["type"], sqlalchemy.TEXT) and isinstance(columns[2]["type"], sqlalchemy.BIGINT)
    assert all(column["nullable"] for column in columns)
    assert inspector.get_pk_constraint("people")["constrained_columns"] == []
    assert inspector.get_foreign_keys("people") == []
    assert inspector.get_indexes("people") == []
    assert inspector.get_table_options("people") == {}
    assert inspector.get_view_definition("adults") == "SELECT name, age FROM people WHERE age > 40;"
    assert inspector.get_unique_constraints("people") == []
    assert inspector.get_check_constraints("people") == []
    assert inspector.get_table_comment("people") == {"text": None}
    assert inspector.has_table("people") and not inspector.has_table("missing")
    with pytest.raises(sqlalchemy.exc.NoSuchTableError):
        inspector.get_columns("missing")


def test_reflected_tables_are_queried(engine):
    people = sqlalchemy.Table("people", sqlalchemy.MetaData(), autoload_with=engine)
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine, views=True)
    assert set(metadata.tables) == {"people", "adults"}
    with engine.connect() as connection:
        teams = select(people.c.team, func.count(), func.avg(people.c.age)).group_by(people.c.team)
        teams = teams.order_by(people.c.team)
        assert connection.execute(teams).all() == [("a", 2, 36), ("b", 1, 41)]
        listed = select(people.c.name).where(people.c.name.in_(["Ada", "Grace"])).order_by(people.c.name.desc())
        assert connection.scalars(listed).all() == ["Grace", "Ada"]
        page = select(people).order_by(people.c.age.desc().nulls_last()).limit(1).offset(1)
        assert connection.execute(page).one().name == "Ada"
        other = people.alias()
        joined = select(people.c.name, other.c.name).join(other, people.c.team == other.c.team)
        assert len(connection.execute(joined).all()) == 5
        older = people.c.age > select(func.avg(people.c.age)).scalar_subquery()
        assert connection.scalars(select(people.c.name).where(older)).all() == ["Alan"]
        with pytest.raises(sqlalchemy.exc.ProgrammingError) as caught:
            connection.execute(select(sqlalchemy.column("nme")).select_from(people))
        assert caught.value.orig.sqlstate == "42703"
        connection.rollback()
        assert connection.scalar(select(func.count()).select_from(people)) == 3


def test_sessions_are_read_only_where_asked(engine):
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True, "postgresql_deferrable": True}
    with engine.connect().execution_options(**options) as connection:
        assert connection.scalar(sqlalchemy.text("SELECT count(*) FROM people")) == 3
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.scalar(sqlalchemy.text("SELECT 1")) == 1


@pytest.fixture
def arrow(server):
    with adbc.connect(server.sql, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("copies", [True, False])
def test_adbc_reads_all_types(arrow, copies):
    with arrow.cursor() as cursor:
        cursor.adbc_statement.set_options(**{StatementOptions.USE_COPY.value: str(copies).lower()})
        cursor.execute(TYPES)
        table = cursor.fetch_arrow_table()
    row = table.to_pylist()[0]
    assert decimal.Decimal(row.pop("exact")) == decimal.Decimal("-12.34")
    assert row == {
        "truth": True, "small": -3, "middle": 7, "large": 1 << 40, "single": 1.5, "double": 0.1, "words": "é",
        "bytes": b"\0\xff", "day": datetime.date(1999, 12, 31), "clock": datetime.time(1, 2, 3, 4),
        "local": datetime.datetime(2020, 1, 1, 1, 2, 3, 1),
        "moment": datetime.datetime(2019, 12, 31, 23, 2, 3, tzinfo=datetime.timezone.utc), "nothing": None,
        "list": [1, None, 3],
    }  # fmt: skip
    assert table.schema.field("moment").type == pyarrow.timestamp("us", tz="UTC")


def test_adbc_streams_many_rows(arrow):
    with arrow.cursor() as cursor:
        columns = "value, value::float8 / 2 AS half, 'row ' || value AS words"
        cursor.execute(f"SELECT {columns} FROM generate_series(1, 200000)")
        batches = list(cursor.fetch_record_batch())
        table = pyarrow.Table.from_batches(batches)
        assert table.num_rows == 200_000 and sum(table["value"].to_pylist()) == 20_000_100_000
        cursor.execute("SELECT * FROM people WHERE false")
        assert cursor.fetch_arrow_table().schema.names == ["name", "team", "age"]


def test_adbc_binds_parameters(arrow):
    with arrow.cursor() as cursor:
        cursor.execute("SELECT name FROM people WHERE age > $1 AND team = $2", (30, "b"))
        assert cursor.fetchall() == [("Alan",)]
        cursor.execute("SELECT $1::int8 + 1, $2::text, $3::float8, $4::bool", (41, "é", 0.5, True))
        assert cursor.fetchall() == [(42, "é", 0.5, True)]


def test_adbc_describes_tables(arrow):
    info = arrow.adbc_get_info()
    assert info["vendor_name"] == "PostgreSQL"
    assert arrow.adbc_get_table_schema("people").names == ["name", "team", "age"]
    assert arrow.adbc_get_table_schema("people").field("age").type == pyarrow.int64()
    assert "table" in arrow.adbc_get_table_types()
    objects = arrow.adbc_get_objects(depth="tables", table_name_filter="people").read_all().to_pylist()
    schemas = [schema for catalog in objects for schema in catalog["catalog_db_schemas"] or []]
    public = next(schema for schema in schemas if schema["db_schema_name"] == "public")
    assert [table["table_name"] for table in public["db_schema_tables"]] == ["people"]
    objects = arrow.adbc_get_objects(depth="all", db_schema_filter="public").read_all().to_pylist()
    (public,) = [schema for catalog in objects for schema in catalog["catalog_db_schemas"] or []]
    tables = {table["table_name"]: table for table in public["db_schema_tables"]}
    columns = [(column["column_name"], column["xdbc_type_name"]) for column in tables["people"]["table_columns"]]
    assert columns == [("name", "text"), ("team", "text"), ("age", "int8")]
    assert set(tables) == {"people", "adults"} and tables["people"]["table_constraints"] == []
    assert arrow.adbc_current_db_schema == "public" and arrow.adbc_current_catalog == "forebay"


def test_adbc_tells_errors(arrow):
    with arrow.cursor() as cursor:
        for statement, state in [
            ("SELECT * FROM missing", "42P01"), ("SELECT nme FROM people", "42703"), ("SELEC", "42601"),
            ("SELECT 1 / (5000 - value) FROM generate_series(1, 10000)", "22012"),
        ]:  # fmt: skip
            with pytest.raises(adbc_driver_manager.Error) as caught:
                cursor.execute(statement)
                cursor.fetch_arrow_table()
            assert caught.value.sqlstate == state, caught.value
        cursor.execute("SELECT 1 AS one")
        assert cursor.fetch_arrow_table().to_pylist() == [{"one": 1}]


def test_adbc_and_pandas(server):
    with adbc.connect(server.sql) as connection:
        frame = pandas.read_sql("SELECT name, age FROM people ORDER BY age", connection)
        assert list(frame["name"]) == ["Ada", "Alan", "Grace"]
        connection.commit()
