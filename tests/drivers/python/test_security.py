"""Users with SCRAM-SHA-256, TLS, and the refusal to listen on public addresses without authentication."""

import os
import subprocess

import pymongo
import pytest
from servers import PASSWORD, add_user, create_data, start_forebay
from pymongo.errors import OperationFailure

@pytest.fixture(scope="module")
def secured(certificate, tmp_path_factory):
    """A server that requires authentication and TLS."""
    folder = str(tmp_path_factory.mktemp("secured"))
    create_data(folder)
    add_user(folder, "ada")
    cert, key = certificate
    server = start_forebay("--data", folder, "--auth", "--tls-cert", str(cert), "--tls-key", str(key))
    yield server
    server.stop()


def test_a_user_signs_in_over_tls(secured, certificate):
    options = {"tls": True, "tlsCAFile": str(certificate[0]), "username": "ada", "password": PASSWORD}
    with pymongo.MongoClient(secured.uri, **options) as client:
        client.test.things.insert_one({"_id": 1})
        assert client.test.things.find_one() == {"_id": 1}
        users = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        assert [user["user"] for user in users] == ["ada"]


def test_a_wrong_password_is_refused(secured, certificate):
    options = {"tls": True, "tlsCAFile": str(certificate[0]), "username": "ada", "password": "wrong"}
    with pymongo.MongoClient(secured.uri, **options) as client, pytest.raises(OperationFailure) as caught:
        client.test.things.find_one()
    assert caught.value.code == 18


def test_without_signing_in_nothing_is_read(secured, certificate):
    with pymongo.MongoClient(secured.uri, tls=True, tlsCAFile=str(certificate[0])) as client:
        assert client.admin.command("hello")["ok"] == 1.0
        with pytest.raises(OperationFailure) as caught:
            client.test.things.find_one()
    assert caught.value.code == 13


def test_without_tls_no_client_connects(secured):
    with pymongo.MongoClient(secured.uri, serverSelectionTimeoutMS=500) as client:
        with pytest.raises(pymongo.errors.ConnectionFailure):
            client.admin.command("ping")


def test_public_addresses_need_authentication(tmp_path):
    command = [os.environ["FOREBAY"], "serve", "--mongodb-listen", "0.0.0.0:0", "--data", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    assert result.returncode != 0
    assert "auth" in (result.stdout + result.stderr).lower()
