"""Invalid input: the server returns a clear error with MongoDB's code, and keeps working."""

import socket
import struct

import bson
import pymongo
import pytest
from pymongo.errors import OperationFailure, WriteError


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": 5}, 73),
        ({"find": ""}, 73),
        ({"find": "things", "filter": 5}, 14),
        ({"find": "things", "florble": 5}, 40415),
        ({"find": "things", "limit": -1}, 51024),
        ({"aggregate": "things", "pipeline": []}, 9),
        ({"aggregate": "things", "pipeline": 5, "cursor": {}}, 14),
        ({"insert": "things"}, 40414),
        ({"insert": "things", "documents": []}, 16),
        ({"update": "things", "updates": [{"u": {"$set": {"a": 1}}}]}, 40414),
        ({"update": "things", "updates": [{"q": {}}]}, 40414),
        ({"update": "things", "updates": [{"q": {}, "u": {}, "florble": 1}]}, 40415),
        ({"update": "things", "updates": [{"q": 5, "u": {}}]}, 14),
        ({"delete": "things", "deletes": [{"limit": 1}]}, 40414),
        ({"delete": "things", "deletes": [{"q": {}}]}, 40414),
        ({"delete": "things", "deletes": [{"q": {}, "limit": 2}]}, 9),
        ({"getMore": "x", "collection": "things"}, 14),
        ({"getMore": bson.Int64(999), "collection": "things"}, 43),
        ({"drop": "absent", "florble": 1}, 40415),
        ({"createIndexes": "things", "indexes": []}, 2),
        ({"dropIndexes": "absent", "index": "*"}, 26),
    ],
    ids=str,
)
def test_wrong_commands(db, command, code):
    with pytest.raises(OperationFailure) as caught:
        db.command(command)
    assert caught.value.code == code
    assert db.command("ping")["ok"] == 1.0


@pytest.mark.parametrize(
    ("update", "code"),
    [
        ({"$florble": {"a": 1}}, 9),
        ({"$inc": {"s": 1}}, 14),
        ({"$inc": {"a": "x"}}, 14),
        ({"$push": {"a": 1}}, 2),
        ({"$set": {"a": 1}, "$inc": {"a": 1}}, 40),
        ({"$set": {"a.b": 1}}, 28),
        ({"$pop": {"s": 1}}, 14),
        ({"$set": 5}, 9),
    ],
    ids=str,
)
def test_wrong_updates(coll, update, code):
    coll.insert_one({"_id": 1, "a": 5, "s": "text"})
    with pytest.raises(WriteError) as caught:
        coll.update_one({"_id": 1}, update)
    assert caught.value.code == code
    assert coll.find_one() == {"_id": 1, "a": 5, "s": "text"}


def test_deep_nesting_is_refused(coll):
    document = {}
    for _ in range(300):
        document = {"a": document}
    with pytest.raises((OperationFailure, pymongo.errors.AutoReconnect)):
        coll.insert_one(document)
    assert coll.count_documents({}) == 0


def raw_exchange(server, data):
    """Sends bytes on a new connection. Returns the bytes received until the server closes the connection, or until it
    has sent nothing for a second."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass
        return received


def op_msg(body, flags=0):
    payload = struct.pack("<I", flags) + b"\0" + body
    return struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload


PING = bson.encode({"ping": 1, "$db": "admin"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        struct.pack("<iiii", 2**31 - 1, 1, 0, 2013),
        struct.pack("<iiii", -5, 1, 0, 2013),
        struct.pack("<iiii", 16, 1, 0, 2013),
        op_msg(PING)[:-3],
        op_msg(PING[:-1] + b"\x01"),
        op_msg(PING, flags=1 << 9),
        op_msg(struct.pack("<i", 2**30) + PING[4:]),
        struct.pack("<iiii", 16, 1, 0, 9999),
        struct.pack("<iiiiiiB", 25, 1, 0, 2012, 2013, 2**30, 2),
    ],
    ids=range(12),
)
def test_malformed_messages_end_only_their_own_connection(server, client, data):
    raw_exchange(server, data)
    assert client.admin.command("ping")["ok"] == 1.0


def test_a_well_formed_message_by_hand_is_answered(server):
    reply = raw_exchange(server, op_msg(PING))
    assert bson.decode(reply[21:])["ok"] == 1.0


DEEP = {"$reduce": {"input": {"$range": [0, 5000]}, "initialValue": [], "in": ["$$value"]}}


@pytest.mark.parametrize(
    "stages",
    [
        [{"$set": {"x": DEEP}}, {"$out": "deep"}],
        [{"$project": {"x": {"$eq": [DEEP, DEEP]}}}],
        [{"$group": {"_id": DEEP}}],
        [{"$set": {"x": DEEP}}, {"$sort": {"x": 1}}],
    ],
    ids=["out", "eq", "group", "sort"],
)
def test_too_deep_nesting_is_an_error_not_a_crash(coll, stages):
    coll.insert_one({"_id": 1})
    with pytest.raises(OperationFailure) as failure:
        coll.aggregate(stages)
    assert failure.value.code == 15
    assert coll.count_documents({}) == 1


def test_two_positional_operators_change_nothing(coll):
    coll.insert_one({"_id": 1, "x": [{"test": [1, 2, 3, 4]}]})
    for update in ({"$set": {"x.$.test.$": 3}}, {"$unset": {"x.$.test.$": 1}}):
        with pytest.raises(WriteError) as failure:
            coll.update_one({"x.test": 2}, update)
        assert failure.value.code == 2
    assert coll.find_one() == {"_id": 1, "x": [{"test": [1, 2, 3, 4]}]}
