"""Fixtures: a Forebay server, FerretDB for comparison, and a new database for each test."""

import itertools
import subprocess
import tempfile

import pymongo
import pytest

from servers import start_ferretdb, start_forebay

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    """A Forebay server shared by all tests that do not need their own."""
    with tempfile.TemporaryDirectory() as folder:
        process = start_forebay("--data", folder, "--devices", "host:2")
        yield process
        process.stop()


@pytest.fixture(scope="session")
def client(server):
    """A client with default settings."""
    with pymongo.MongoClient(server.uri) as client:
        yield client


@pytest.fixture(scope="session")
def ferretdb():
    """A client of FerretDB."""
    with tempfile.TemporaryDirectory() as folder:
        process = start_ferretdb(folder)
        with pymongo.MongoClient(process.uri) as client:
            yield client
        process.stop()


@pytest.fixture
def db(client):
    """A new database for the test."""
    database = client[f"test_{next(NUMBERS)}"]
    yield database
    client.drop_database(database.name)


@pytest.fixture
def coll(db):
    """A new collection for the test."""
    return db.things


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for the loopback address: the paths of certificate and key."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key
