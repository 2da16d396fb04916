"""A session of pymongo, with Forebay's own store and as a proxy of FerretDB, with each compressor."""

import collections
import tempfile

import pymongo
import pytest
from pymongo.errors import DuplicateKeyError, OperationFailure
from pymongo.monitoring import CommandListener

from servers import start_ferretdb, start_forebay


class Sent(CommandListener):
    """Counts the commands that the driver sends."""

    def __init__(self):
        self.count = collections.Counter()

    def started(self, event):
        self.count[event.command_name] += 1

    def succeeded(self, event):
        pass

    failed = succeeded


@pytest.fixture(scope="module", params=["embedded", "upstream"])
def uri(request):
    """Forebay as a store and as a proxy."""
    with tempfile.TemporaryDirectory() as folder:
        store = start_ferretdb(folder) if request.param == "upstream" else None
        front = start_forebay("--memory", "--upstream", store.uri) if store else start_forebay("--memory")
        yield front.uri
        front.stop()
        if store:
            store.stop()


@pytest.mark.parametrize("compressor", ["none", "zlib", "snappy", "zstd"])
def test_a_session(uri, compressor):
    sent = Sent()
    options = {} if compressor == "none" else {"compressors": compressor}
    with pymongo.MongoClient(uri, event_listeners=[sent], **options) as client:
        database = client[f"session_{compressor}"]
        crud(database.crud)
        cursor(database.cursor)
        assert sent.count["getMore"] == 12
        aggregation(database.aggregation)
        indexes(database.indexes)
        bulk(database.bulk)
        errors(database)
        with client.start_session() as session:
            database.sessions.insert_one({"_id": 1}, session=session)
            assert database.sessions.find_one({}, session=session) == {"_id": 1}
    assert sent.count["endSessions"] == 1


def crud(things):
    documents = [{"_id": 1, "n": 1, "text": "héllo"}, {"_id": 2, "n": 2}, {"_id": 3, "n": 3}]
    assert things.insert_many(documents).inserted_ids == [1, 2, 3]
    updated = things.update_many({"n": {"$gt": 1}}, {"$inc": {"n": 10}})
    assert (updated.matched_count, updated.modified_count) == (2, 2)
    assert things.delete_one({"_id": 2}).deleted_count == 1
    assert things.replace_one({"_id": 9}, {"n": 9}, upsert=True).upserted_id == 9
    assert things.find_one_and_update({"_id": 3}, {"$set": {"n": 0}}) == {"_id": 3, "n": 13}
    assert list(things.find({"text": {"$regex": "^h.*o$"}})) == documents[:1]


def cursor(things):
    documents = [{"_id": number, "text": f"text {number}"} for number in range(1_234)]
    things.insert_many(documents)
    assert list(things.find(batch_size=100).sort("_id", 1)) == documents
    assert things.count_documents({"text": {"$regex": "99$"}}) == 12


def aggregation(things):
    things.insert_many([{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}])
    groups = things.aggregate([{"$group": {"_id": "$k", "sum": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}])
    assert list(groups) == [{"_id": "a", "sum": 4}, {"_id": "b", "sum": 2}]
    assert things.distinct("k") == ["a", "b"]


def indexes(things):
    assert things.create_index("name", unique=True) == "name_1"
    things.insert_one({"name": "x"})
    with pytest.raises(DuplicateKeyError):
        things.insert_one({"name": "x"})
    assert list(things.index_information()) == ["_id_", "name_1"]
    things.drop_index("name_1")


def bulk(things):
    result = things.bulk_write(
        [
            pymongo.InsertOne({"_id": 1}),
            pymongo.UpdateOne({"_id": 2}, {"$set": {"n": 2}}, upsert=True),
            pymongo.DeleteOne({"_id": 1}),
            pymongo.ReplaceOne({"_id": 2}, {"n": 3}),
        ]
    )
    assert (result.inserted_count, result.deleted_count, result.matched_count) == (1, 1, 1)
    assert result.upserted_ids == {1: 2}


def errors(database):
    with pytest.raises(OperationFailure) as caught:
        database.command("florble")
    assert caught.value.code == 59
    with pytest.raises(DuplicateKeyError):
        database.crud.insert_one({"_id": 1})
    with pytest.raises(OperationFailure) as caught:
        database.crud.update_one({}, {"$florble": {"a": 1}})
    assert caught.value.code == 9
