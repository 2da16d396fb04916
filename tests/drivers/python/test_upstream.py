"""Forebay in front of a store: what pymongo sees through it is what it sees straight."""

import tempfile

import pymongo
import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo.cursor import CursorType
from pymongo.errors import BulkWriteError, CursorNotFound

from conftest import NUMBERS
from servers import start_ferretdb, start_forebay


@pytest.fixture(scope="module")
def stores():
    """FerretDB, and a Forebay that keeps documents itself."""
    with tempfile.TemporaryDirectory() as folder:
        processes = {"ferretdb": start_ferretdb(folder), "forebay": start_forebay("--memory")}
        yield processes
        for process in processes.values():
            process.stop()


@pytest.fixture(params=["ferretdb", "forebay"])
def pair(request, stores):
    """A database straight and through, by clients with default settings."""
    store = stores[request.param]
    front = start_forebay("--memory", "--upstream", store.uri)
    name = f"upstream_{next(NUMBERS)}"
    with pymongo.MongoClient(store.uri) as straight, pymongo.MongoClient(front.uri) as through:
        yield straight[name], through[name]
        straight.drop_database(name)
    front.stop()


def test_documents_and_batches_are_the_same(pair):
    straight, through = pair
    through.things.insert_many([{"_id": number, "text": f"héllo {number}" * 50} for number in range(1_000)])
    for size in (1, 100, 999, 1_000):
        cursor = through.things.find(batch_size=size).sort("_id", 1)
        assert list(cursor) == list(straight.things.find().sort("_id", 1))


def test_a_bulk_that_fails_in_part_says_the_same(pair):
    told = []
    for database in pair:
        database.things.drop()
        database.things.insert_one({"_id": 3})
        for ordered in (True, False):
            with pytest.raises(BulkWriteError) as caught:
                database.things.insert_many([{"_id": number} for number in range(6)], ordered=ordered)
            told.append((caught.value.details["nInserted"], len(caught.value.details["writeErrors"])))
    assert told[:2] == told[2:]


def test_exhaust_cursors_stream(pair):
    straight, through = pair
    straight.things.insert_many([{"_id": number} for number in range(5_000)])
    found = through.things.find(cursor_type=CursorType.EXHAUST, batch_size=100)
    assert sorted(document["_id"] for document in found) == list(range(5_000))
    assert through.things.count_documents({}) == 5_000


def test_cursors_end_for_both(pair):
    straight, through = pair
    straight.things.insert_many([{"_id": number} for number in range(500)])
    cursor = through.command("find", "things")["cursor"]["id"]
    through.command("killCursors", "things", cursors=[cursor])
    with pytest.raises(CursorNotFound):
        through.command("getMore", cursor, collection="things")


def test_sessions_and_raw_documents(pair):
    straight, through = pair
    raw = RawBSONDocument(encode({"_id": 1, "nested": {"list": [1, "two", None]}}))
    with through.client.start_session() as session:
        through.things.insert_one(raw, session=session)
        assert through.things.find_one({"_id": 1}, session=session) == straight.things.find_one({"_id": 1})


def test_writes_without_a_reply_arrive(pair):
    straight, through = pair
    things = through.get_collection("things", write_concern=pymongo.WriteConcern(w=0))
    for number in range(100):
        things.insert_one({"_id": number})
    # On the same connection: the store runs them in order.
    assert through.things.count_documents({}) == straight.things.count_documents({}) == 100
