"""Connecting, the first commands of drivers and tools, compression, unknown commands."""

import pymongo
import pytest
from pymongo.errors import OperationFailure


def test_hello_offers_what_drivers_need(client):
    hello = client.admin.command("hello")
    assert hello["isWritablePrimary"] is True
    assert hello["maxWireVersion"] >= 9
    assert hello["maxBsonObjectSize"] == 16 * 1024 * 1024


@pytest.mark.parametrize("name", ["hello", "isMaster", "ismaster"])
def test_every_form_of_hello_answers(client, name):
    assert client.admin.command(name)["ok"] == 1.0


@pytest.mark.parametrize(
    "command",
    [
        "ping",
        "buildInfo",
        "serverStatus",
        "hostInfo",
        "connectionStatus",
        "listDatabases",
        "currentOp",
        "getCmdLineOpts",
        {"getLog": "startupWarnings"},
        {"getLog": "*"},
        {"getParameter": "*"},
        {"getParameter": 1, "featureCompatibilityVersion": 1},
    ],
    ids=str,
)
def test_administrative_commands_answer(client, command):
    assert client.admin.command(command)["ok"] == 1.0


def test_the_version_is_well_formed(client):
    version = client.server_info()["version"]
    assert [int(part) for part in version.split(".")] >= [5, 0, 0]


@pytest.mark.parametrize("compressor", ["snappy", "zlib", "zstd"])
def test_compressed_messages(server, db, compressor):
    with pymongo.MongoClient(server.uri, compressors=compressor) as client:
        coll = client[db.name].things
        text = "forebay " * 5_000
        coll.insert_many([{"_id": number, "text": text} for number in range(20)])
        assert [document["text"] for document in coll.find()] == [text] * 20


def test_an_unknown_command_is_named(client):
    with pytest.raises(OperationFailure) as caught:
        client.admin.command("florble")
    assert caught.value.code == 59
    assert caught.value.details["codeName"] == "CommandNotFound"
    assert caught.value.details["errmsg"] == "no such command: 'florble'"


def test_unacknowledged_writes_arrive(db):
    unacknowledged = db.get_collection("things", write_concern=pymongo.WriteConcern(w=0))
    unacknowledged.insert_one({"_id": 1})
    # A later command on the same connection runs after the write; this client has only one connection.
    for _ in range(1_000):
        if db.things.count_documents({}) == 1:
            return
    pytest.fail("the document never arrived")


def test_sessions_are_implicit_and_explicit(client, db):
    with client.start_session() as session:
        db.things.insert_one({"_id": 1}, session=session)
        assert db.things.find_one({"_id": 1}, session=session) == {"_id": 1}


def test_databases_and_collections_are_listed(client, db):
    db.create_collection("first")
    db.second.insert_one({})
    assert sorted(db.list_collection_names()) == ["first", "second"]
    assert db.name in client.list_database_names()
    db.second.rename("third")
    assert sorted(db.list_collection_names()) == ["first", "third"]
    client.drop_database(db.name)
    assert db.name not in client.list_database_names()
