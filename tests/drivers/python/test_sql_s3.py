"""Files in S3: by path, pattern and folder, as external tables, and what a client is told if they cannot be read."""

import contextlib
import gzip
import io
import json
import logging
import os
import pathlib
import socket
import subprocess

import boto3
import psycopg
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from moto.server import ThreadedMotoServer
from psycopg import errors
from servers import start_tables

SECRET = "not-to-be-kept"
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
ALLOWED = "s3://lake/files,s3://lake/table/,s3://absent"


@pytest.fixture(scope="module")
def endpoint():
    """The URL of an S3 server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def bucket(endpoint):
    """The bucket `lake`."""
    keys = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": SECRET}
    s3 = boto3.resource("s3", endpoint_url=endpoint, region_name=KEYS["AWS_REGION"], **keys)
    s3.create_bucket(Bucket="other").put_object(Key="files/n.csv", Body=b"n\n1\n")
    return s3.create_bucket(Bucket="lake")


@contextlib.contextmanager
def environment(endpoint, **more):
    """Sets where S3 is, for processes that are started in it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint, **more}.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def served(endpoint, *arguments, **more):
    """A connection to a server of its own."""
    with environment(endpoint, **more):
        server = start_tables("--tables-paths", ALLOWED, *(arguments or ["--memory"]))
    try:
        with psycopg.connect(server.sql, autocommit=True) as connection:
            yield connection
    finally:
        server.stop()


@pytest.fixture(scope="module")
def sql(endpoint, bucket):
    with served(endpoint) as connection:
        yield connection


def rows(sql, query):
    return sql.execute(query).fetchall()


def table(*numbers):
    return pyarrow.table({"n": pyarrow.array(numbers, pyarrow.int64())})


def parquet(content, **options):
    file = io.BytesIO()
    pyarrow.parquet.write_table(content, file, **options)
    return file.getvalue()


def arrow(content):
    file = io.BytesIO()
    pyarrow.feather.write_feather(content, file, compression="uncompressed")
    return file.getvalue()


@pytest.mark.parametrize(
    "name,content",
    [
        ("n.parquet", parquet(table(1, 2, 39))),
        ("n.arrow", arrow(table(1, 2, 39))),
        ("n.csv", b"n\n1\n2\n39\n"),
        ("n.csv.gz", gzip.compress(b"n\n1\n2\n39\n")),
        ("n.jsonl", b'{"n": 1}\n{"n": 2}\n{"n": 39}\n'),
        ("a b+ü%41#.csv", b"n\n1\n2\n39\n"),
    ],
)
def test_a_file_is_read_by_its_path(sql, bucket, name, content):
    bucket.put_object(Key=f"files/one/{name}", Body=content)
    assert rows(sql, f"SELECT count(*), sum(n) FROM 's3://lake/files/one/{name}' WHERE n > 1") == [(2, 41)]


def test_a_pattern_and_a_folder_are_read_as_one_table(sql, bucket):
    for key, number in (("a1.parquet", 1), ("a2.parquet", 20), ("b1.parquet", 300), ("deep/a3.parquet", 4000)):
        bucket.put_object(Key=f"files/many/{key}", Body=parquet(table(number)))
    bucket.put_object(Key="files/many/note.txt", Body=b"no table")
    for name, total in (("a*.parquet", 21), ("*.parquet", 321), ("", 321), ("*/a?.parquet", 4000), ("[b-c]1.parquet", 300)):
        assert rows(sql, f"SELECT sum(n) FROM 's3://lake/files/many/{name}'") == [(total,)], name
    assert rows(sql, "SELECT sum(n) FROM 's3://lake/files/many'") == [(321,)]


def test_folders_of_a_folder_are_columns(sql, bucket):
    for year, number in ((2025, 1), (2026, 20), (2026, 300)):
        bucket.put_object(Key=f"table/year={year}/{number}.parquet", Body=parquet(table(number)))
    for name in ("", "*.parquet"):
        by_year = rows(sql, f"SELECT year, sum(n) FROM 's3://lake/table/{name}' GROUP BY year ORDER BY year")
        assert by_year == [("2025", 1), ("2026", 320)], name
        assert rows(sql, f"SELECT sum(n) FROM 's3://lake/table/{name}' WHERE year = '2025'") == [(1,)]


def test_an_external_table_outlasts_the_server(endpoint, bucket, tmp_path):
    bucket.put_object(Key="files/kept/n.parquet", Body=parquet(table(1, 2)))
    bucket.put_object(Key="files/kept/other.csv", Body=b"x\n")
    with served(endpoint, "--data", str(tmp_path)) as sql:
        sql.execute("CREATE EXTERNAL TABLE kept STORED AS PARQUET LOCATION 's3://lake/files/kept/'")
        sql.execute("CREATE EXTERNAL TABLE one STORED AS CSV LOCATION 's3://lake/files/kept/other.csv' OPTIONS ('has_header' 'true')")
        with pytest.raises(errors.Error):
            sql.execute(
                "CREATE EXTERNAL TABLE told STORED AS PARQUET LOCATION 's3://lake/files/kept/' "
                f"OPTIONS ('aws.secret_access_key' '{SECRET}')"
            )
    with served(endpoint, "--data", str(tmp_path)) as sql:
        assert rows(sql, "SELECT sum(n) FROM kept") == [(3,)]
        listed = rows(sql, "SELECT column_name FROM information_schema.columns WHERE table_name IN ('kept', 'one') ORDER BY 1")
        assert listed == [("n",), ("x",)]
    for file in pathlib.Path(tmp_path).rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file


def test_a_file_that_changed_is_seen_by_the_next_statement(sql, bucket):
    # A statement that psycopg prepares would be refused when the columns change.
    sql.prepare_threshold = None
    query = "SELECT min(n), max(n), count(*) FROM 's3://lake/files/new/'"
    # Files of one size, written within a second.
    for number in range(1, 6):
        bucket.put_object(Key="files/new/n.parquet", Body=parquet(table(number)))
        assert rows(sql, query) == [(number, number, 1)]
    bucket.put_object(Key="files/new/more.parquet", Body=parquet(table(7)))
    assert rows(sql, query) == [(5, 7, 2)]
    bucket.Object("files/new/n.parquet").delete()
    assert rows(sql, query) == [(7, 7, 1)]
    bucket.put_object(Key="files/new/more.parquet", Body=parquet(pyarrow.table({"n": ["x"]})))
    assert rows(sql, query) == [("x", "x", 1)]


@pytest.mark.parametrize("change,error", [("replaced", errors.SerializationFailure), ("deleted", errors.UndefinedFile)])
def test_a_file_that_changes_while_it_is_read_fails_the_statement(sql, bucket, change, error):
    numbers = pyarrow.table({"n": pyarrow.array(range(400_000), pyarrow.int64())})
    content = parquet(numbers, row_group_size=10_000, use_dictionary=False, compression="none")
    file = bucket.put_object(Key=f"files/{change}.parquet", Body=content)
    with sql.transaction(force_rollback=True), sql.cursor(name="slow") as cursor:
        cursor.execute(f"SELECT n FROM 's3://lake/files/{change}.parquet'")
        assert cursor.fetchone() is not None
        if change == "replaced":
            file.put(Body=content)  # the same content has the same ETag
            assert len(cursor.fetchmany(50_000)) == 50_000
            other = pyarrow.table({"n": pyarrow.array(range(1, 400_001), pyarrow.int64())})
            file.put(Body=parquet(other, row_group_size=10_000, use_dictionary=False, compression="none"))
        else:
            file.delete()
        with pytest.raises(error, match=f"files/{change}.parquet"):
            cursor.fetchall()


@pytest.mark.parametrize(
    "name,error,message",
    [
        ("s3://lake/files/none.parquet", errors.UndefinedFile, "there is no file s3://lake/files/none.parquet"),
        ("s3://lake/files/none/", errors.UndefinedFile, "there is no file s3://lake/files/none/"),
        ("s3://lake/files/none*.csv", errors.UndefinedFile, "there is no file"),
        ("s3://absent/none.parquet", errors.UndefinedFile, "there is no bucket s3://absent"),
        ("s3://absent/none/", errors.UndefinedFile, "there is no bucket s3://absent"),
        ("s3://lake/files/a[.csv", errors.InvalidParameterValue, "pattern"),
        ("s3://key:secret@lake/files/n.csv", errors.InvalidParameterValue, "malformed"),
        ("s3://lake/files/../secret/n.csv", errors.InvalidParameterValue, "malformed"),
        ("s3://other/files/n.csv", errors.InsufficientPrivilege, "does not let statements read"),
        ("s3://lake/filesystem/n.csv", errors.InsufficientPrivilege, "does not let statements read"),
        ("s3://lake/files*/n.csv", errors.InsufficientPrivilege, "does not let statements read"),
        ("s3://lake/", errors.InsufficientPrivilege, "does not let statements read"),
        ("http://127.0.0.1/n.csv", errors.InsufficientPrivilege, "does not let statements read"),
    ],
)
def test_a_name_that_cannot_be_read_is_refused(sql, name, error, message):
    with pytest.raises(error, match=message):
        sql.execute(f"SELECT * FROM '{name}'")
    with pytest.raises(error, match=message):
        sql.execute(f"CREATE EXTERNAL TABLE no STORED AS CSV LOCATION '{name}'")


def test_access_that_is_denied_is_told(endpoint, bucket):
    bucket.put_object(Key="files/denied.csv", Body=b"n\n1\n")
    with served(endpoint, AWS_SKIP_SIGNATURE="true") as sql:
        for name in ("denied.csv", "*.csv"):
            with pytest.raises(errors.InsufficientPrivilege, match="S3 does not let this process read") as denied:
                sql.execute(f"SELECT * FROM 's3://lake/files/{name}'")
            assert "AWS_ACCESS_KEY_ID" in denied.value.diag.message_hint


def test_a_server_that_cannot_be_reached_is_told():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with served(f"http://127.0.0.1:{port}") as sql:
        with pytest.raises(errors.IoError, match="s3://lake/files/n.csv cannot be read") as away:
            sql.execute("SELECT * FROM 's3://lake/files/n.csv'")
        assert "AWS_ENDPOINT_URL" in away.value.diag.message_hint
        assert rows(sql, "SELECT 1") == [(1,)]


def test_a_server_that_does_not_answer_is_given_up():
    # The system accepts connections to it, and nothing answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with served(f"http://127.0.0.1:{silent.getsockname()[1]}") as sql:
            sql.execute("SET statement_timeout = '200ms'")
            with pytest.raises(errors.QueryCanceled):
                sql.execute("SELECT * FROM 's3://lake/files/n.csv'")
            sql.execute("SET statement_timeout = 0")
            with pytest.raises(errors.IoError, match="S3 did not answer within 15 s"):
                sql.execute("SELECT * FROM 's3://lake/files/n.csv'")


def shell(*arguments):
    command = [os.environ["FOREBAY"], "sql", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_shell_reads_all_that_its_user_may_read(endpoint, bucket, tmp_path):
    with environment(endpoint):
        found = shell("--json", "SELECT sum(n) AS n FROM 's3://other/files/n.csv'")
        assert json.loads(found.stdout) == {"n": 1}, found.stderr
        create = "CREATE EXTERNAL TABLE one STORED AS CSV LOCATION 's3://other/files/' OPTIONS ('has_header' 'true')"
        assert shell("--data", str(tmp_path), create).returncode == 0
        assert shell("--data", str(tmp_path), "--csv", "SELECT * FROM one").stdout == "n\n1\n"
        refused = shell("COPY (SELECT 1 AS n) TO 's3://other/files/new.csv'")
        assert refused.returncode != 0 and "COPY TO a file in S3 is not supported" in refused.stderr
        refused = shell("SELECT * FROM 'http://127.0.0.1/n.csv'")
        assert refused.returncode != 0 and "reading http:// is not supported" in refused.stderr
