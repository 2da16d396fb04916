"""Fixtures: a Forebay server, FerretDB to compare with, and a database of its own for every test."""

import itertools
import os
import re
import subprocess
import tempfile
import threading

import pymongo
import pytest

NUMBERS = itertools.count()
READY_SECONDS_MAX = 60


class Server:
    """A server process that says where it listens; killed at the end."""

    def __init__(self, command, ready):
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.address = None
        self.listening = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        self.listening.wait(READY_SECONDS_MAX)
        if self.address is None:
            self.process.kill()
            raise RuntimeError(f"{command} did not listen:\n" + "\n".join(self.lines))
        self.uri = f"mongodb://{self.address}/"

    def _read(self, ready):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = re.search(ready, line)
            if found and self.address is None:
                self.address = found[1]
                self.listening.set()
        self.listening.set()

    def stop(self):
        self.process.kill()
        self.process.wait()


def start_forebay(*arguments):
    """Starts Forebay on a free port; the environment names the binary."""
    command = [os.environ["FOREBAY"], "serve", "--listen", "127.0.0.1:0", *arguments]
    return Server(command, r"mongodb://([0-9.]+:[0-9]+)")


def start_ferretdb(folder):
    """Starts FerretDB on SQLite in `folder`."""
    command = [
        os.environ["FERRETDB"],
        "--handler=sqlite",
        f"--sqlite-url=file:{folder}/",
        f"--state-dir={folder}",
        "--listen-addr=127.0.0.1:0",
        "--telemetry=disable",
        "--debug-addr=-",
    ]
    return Server(command, r"Listening on TCP ([0-9.]+:[0-9]+)")


@pytest.fixture(scope="session")
def server():
    """One Forebay for all tests that do not need their own."""
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
    """A database of the test's own."""
    database = client[f"test_{next(NUMBERS)}"]
    yield database
    client.drop_database(database.name)


@pytest.fixture
def coll(db):
    """A collection of the test's own."""
    return db.things
