"""Cursors: batches, limits, exhausted and closed cursors."""

import pymongo
import pytest
from pymongo.errors import CursorNotFound, OperationFailure


@pytest.fixture
def thousand(coll):
    coll.insert_many([{"_id": number} for number in range(1_000)])
    return coll


def test_the_first_batch_holds_101_documents(db, thousand):
    reply = db.command("find", thousand.name)
    assert len(reply["cursor"]["firstBatch"]) == 101
    assert reply["cursor"]["id"] != 0
    assert reply["cursor"]["ns"] == thousand.full_name


@pytest.mark.parametrize("size", [1, 2, 100, 999, 1_000, 1_001])
def test_any_batch_size_gives_every_document_once(thousand, size):
    expected = list(range(1_000))
    assert [document["_id"] for document in thousand.find(batch_size=size).sort("_id", 1)] == expected
    assert [document["_id"] for document in thousand.aggregate([{"$sort": {"_id": 1}}], batchSize=size)] == expected


def test_a_batch_of_zero_opens_a_cursor_without_documents(db, thousand):
    reply = db.command("find", thousand.name, batchSize=0)
    assert reply["cursor"]["firstBatch"] == []
    more = db.command("getMore", reply["cursor"]["id"], collection=thousand.name, batchSize=3)
    assert len(more["cursor"]["nextBatch"]) == 3


def test_single_batch_and_limit_close_the_cursor(db, thousand):
    assert db.command("find", thousand.name, batchSize=5, singleBatch=True)["cursor"]["id"] == 0
    assert len(list(thousand.find(limit=150))) == 150
    assert len(list(thousand.find(limit=-5))) == 5


def test_large_replies_stay_under_the_limit(db, coll):
    coll.insert_many([{"_id": number, "text": "x" * 1_000_000} for number in range(40)])
    reply = db.command("find", coll.name, batchSize=40)
    assert len(reply["cursor"]["firstBatch"]) < 20
    assert len(list(coll.find())) == 40


def test_a_killed_cursor_is_gone(db, thousand):
    cursor = db.command("find", thousand.name)["cursor"]["id"]
    reply = db.command("killCursors", thousand.name, cursors=[cursor, 12345])
    assert (reply["cursorsKilled"], reply["cursorsNotFound"]) == ([cursor], [12345])
    with pytest.raises(CursorNotFound) as caught:
        db.command("getMore", cursor, collection=thousand.name)
    assert caught.value.code == 43


def test_a_negative_skip_is_refused(db, thousand):
    with pytest.raises(OperationFailure):
        db.command("find", thousand.name, skip=-1)


def test_inserts_do_not_break_an_open_cursor(thousand):
    cursor = thousand.find(batch_size=10)
    seen = {next(cursor)["_id"] for _ in range(10)}
    thousand.insert_many([{"_id": number} for number in range(1_000, 1_100)])
    thousand.delete_many({"_id": {"$gte": 900, "$lt": 1_000}})
    seen |= {document["_id"] for document in cursor}
    assert set(range(900)) <= seen


def test_a_cursor_without_results_is_closed_at_once(db):
    reply = db.command("find", "nothing_here")
    assert reply["cursor"]["id"] == 0
    assert reply["cursor"]["firstBatch"] == []


def test_tailable_cursors_are_refused(coll):
    coll.insert_one({})
    with pytest.raises(OperationFailure):
        list(coll.find(cursor_type=pymongo.CursorType.TAILABLE))
