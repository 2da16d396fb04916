"""Inserts, finds, updates, deletes and bulk writes, as in applications."""

import datetime

import bson
import pymongo
import pytest
from pymongo.errors import BulkWriteError, DuplicateKeyError, WriteError


def test_every_type_round_trips(coll):
    document = {
        "_id": bson.ObjectId(),
        "double": 1.5,
        "string": "héllo\0world",
        "document": {"a": {"b": 1}},
        "array": [1, "two", [3, [4]]],
        "binary": b"\x00\x01\xff",
        "uuid": bson.Binary(bytes(range(16)), 4),
        "bool": True,
        "date": datetime.datetime(2020, 1, 2, 3, 4, 5, 678000),
        "null": None,
        "regex": bson.Regex("^a.*b$", "im"),
        "code": bson.Code("function() {}"),
        "int32": 7,
        "timestamp": bson.Timestamp(5, 6),
        "int64": bson.Int64(2**60),
        "decimal": bson.Decimal128("1.25"),
        "min": bson.MinKey(),
        "max": bson.MaxKey(),
    }
    coll.insert_one(document)
    assert coll.find_one() == document
    assert list(coll.find_one()) == list(document)


def test_insert_makes_an_id_and_reports_duplicates(coll):
    made = coll.insert_one({"a": 1}).inserted_id
    assert isinstance(made, bson.ObjectId)
    with pytest.raises(DuplicateKeyError) as caught:
        coll.insert_one({"_id": made})
    assert caught.value.code == 11000
    assert caught.value.details["keyPattern"] == {"_id": 1}
    assert caught.value.details["keyValue"] == {"_id": made}


def test_an_ordered_insert_stops_at_the_first_error(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.insert_many([{"_id": 1}, {"_id": 1}, {"_id": 2}])
    assert caught.value.details["nInserted"] == 1
    assert [error["index"] for error in caught.value.details["writeErrors"]] == [1]
    assert coll.distinct("_id") == [1]


def test_an_unordered_insert_continues_after_an_error(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.insert_many([{"_id": 1}, {"_id": 1}, {"_id": 2}, {"_id": 2}], ordered=False)
    assert [error["index"] for error in caught.value.details["writeErrors"]] == [1, 3]
    assert sorted(coll.distinct("_id")) == [1, 2]


def test_numbers_that_are_equal_are_the_same_id(coll):
    coll.insert_one({"_id": 1})
    with pytest.raises(DuplicateKeyError):
        coll.insert_one({"_id": 1.0})
    assert coll.find_one({"_id": bson.Int64(1)}) == {"_id": 1}


def test_sort_skip_limit_projection(coll):
    coll.insert_many([{"_id": n, "a": n % 3, "b": {"c": n, "d": -n}} for n in range(10)])
    found = coll.find({"_id": {"$gte": 2}}, {"b.c": 1, "_id": 0}).sort([("a", 1), ("_id", -1)]).skip(1).limit(4)
    assert list(found) == [{"b": {"c": 6}}, {"b": {"c": 3}}, {"b": {"c": 7}}, {"b": {"c": 4}}]


def test_update_one_many_replace_upsert(coll):
    coll.insert_many([{"_id": n, "n": n} for n in range(5)])
    result = coll.update_many({"n": {"$lt": 3}}, {"$inc": {"n": 10}, "$set": {"seen": True}})
    assert (result.matched_count, result.modified_count) == (3, 3)
    result = coll.update_one({"_id": 0}, {"$set": {"seen": True}})
    assert (result.matched_count, result.modified_count) == (1, 0)
    assert coll.replace_one({"_id": 4}, {"other": 1}).modified_count == 1
    assert coll.find_one({"_id": 4}) == {"_id": 4, "other": 1}
    result = coll.update_one({"_id": 9, "k": "v"}, {"$setOnInsert": {"new": 1}, "$push": {"l": 2}}, upsert=True)
    assert result.upserted_id == 9
    assert coll.find_one({"_id": 9}) == {"_id": 9, "k": "v", "l": [2], "new": 1}


def test_the_id_cannot_change(coll):
    coll.insert_one({"_id": 1})
    with pytest.raises(WriteError) as caught:
        coll.update_one({"_id": 1}, {"$set": {"_id": 2}})
    assert caught.value.code == 66


def test_find_and_modify_in_its_three_forms(coll):
    coll.insert_many([{"_id": 1, "n": 5}, {"_id": 2, "n": 7}])
    assert coll.find_one_and_update({}, {"$inc": {"n": 1}}, sort=[("n", -1)]) == {"_id": 2, "n": 7}
    after = pymongo.ReturnDocument.AFTER
    assert coll.find_one_and_replace({"_id": 1}, {"x": 1}, return_document=after) == {"_id": 1, "x": 1}
    assert coll.find_one_and_delete({"_id": 2}) == {"_id": 2, "n": 8}
    assert coll.find_one_and_update({"_id": 3}, {"$set": {"a": 1}}, upsert=True) is None
    assert coll.count_documents({}) == 2


def test_delete_one_and_many(coll):
    coll.insert_many([{"_id": n, "a": n % 2} for n in range(6)])
    assert coll.delete_one({"a": 0}).deleted_count == 1
    assert coll.delete_many({"a": 1}).deleted_count == 3
    assert sorted(coll.distinct("_id")) == [2, 4]


def test_bulk_write_mixes_operations(coll):
    result = coll.bulk_write(
        [
            pymongo.InsertOne({"_id": 1}),
            pymongo.UpdateOne({"_id": 1}, {"$set": {"a": 1}}),
            pymongo.UpdateOne({"_id": 2}, {"$set": {"a": 2}}, upsert=True),
            pymongo.ReplaceOne({"_id": 2}, {"b": 3}),
            pymongo.DeleteOne({"_id": 1}),
        ]
    )
    assert (result.inserted_count, result.modified_count, result.deleted_count) == (1, 2, 1)
    assert result.upserted_ids == {2: 2}
    assert list(coll.find()) == [{"_id": 2, "b": 3}]


def test_distinct_and_counts(coll):
    coll.insert_many([{"a": [1, 2]}, {"a": 2}, {"a": "x"}, {}])
    assert coll.distinct("a") == [1, 2, "x"]
    assert coll.count_documents({"a": 2}) == 2
    assert coll.count_documents({}, skip=1, limit=2) == 2
    assert coll.estimated_document_count() == 4


def test_a_document_of_nearly_sixteen_megabytes(coll):
    text = "x" * (16 * 1024 * 1024 - 100)
    coll.insert_one({"_id": 1, "text": text})
    assert coll.find_one()["text"] == text


def test_a_durable_write_is_acknowledged(db):
    durable = db.get_collection("things", write_concern=pymongo.WriteConcern(w=1, j=True))
    assert durable.insert_one({"_id": 1}).acknowledged
