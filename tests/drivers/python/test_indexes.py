"""Ordinary, unique, compound and sparse indexes."""

import pymongo
import pytest
from pymongo.errors import DuplicateKeyError, OperationFailure


def test_indexes_are_listed_and_dropped(coll):
    coll.insert_one({"a": 1})
    assert coll.create_index("a") == "a_1"
    assert coll.create_index([("a", 1), ("b", -1)], name="both") == "both"
    assert set(coll.index_information()) == {"_id_", "a_1", "both"}
    assert coll.index_information()["both"]["key"] == [("a", 1), ("b", -1)]
    coll.drop_index("a_1")
    assert set(coll.index_information()) == {"_id_", "both"}
    coll.drop_indexes()
    assert set(coll.index_information()) == {"_id_"}


def test_a_unique_index_refuses_the_second_value(coll):
    coll.create_index("a", unique=True)
    coll.insert_one({"_id": 1, "a": "x"})
    with pytest.raises(DuplicateKeyError) as caught:
        coll.insert_one({"_id": 2, "a": "x"})
    assert caught.value.details["keyValue"] == {"a": "x"}
    coll.insert_one({"_id": 3, "a": "y"})
    with pytest.raises(DuplicateKeyError):
        coll.update_one({"_id": 3}, {"$set": {"a": "x"}})
    assert coll.find_one({"_id": 3})["a"] == "y"


def test_a_unique_index_over_duplicates_is_refused(coll):
    coll.insert_many([{"a": 1}, {"a": 1}])
    with pytest.raises(DuplicateKeyError):
        coll.create_index("a", unique=True)
    assert set(coll.index_information()) == {"_id_"}


def test_an_index_answers_equality_and_ranges(coll):
    coll.insert_many([{"_id": n, "a": n % 50, "b": [n, -n]} for n in range(500)])
    queries = [
        {"a": 7},
        {"a": {"$gt": 10, "$lte": 20}},
        {"a": {"$in": [1, 2, 99]}},
        {"b": -30},
        {"b": {"$lt": -490}},
        {"a": None},
    ]
    before = [sorted(doc["_id"] for doc in coll.find(query)) for query in queries]
    coll.create_index("a")
    coll.create_index([("b", pymongo.DESCENDING)])
    assert [sorted(doc["_id"] for doc in coll.find(query)) for query in queries] == before
    assert "IXSCAN" in str(coll.find({"a": 7}).explain())


def test_a_hint_names_an_index(coll):
    coll.insert_many([{"_id": n, "a": n} for n in range(10)])
    coll.create_index("a")
    assert [doc["_id"] for doc in coll.find({"a": {"$gte": 8}}).hint("a_1")] == [8, 9]
    with pytest.raises(OperationFailure) as caught:
        list(coll.find({"a": 1}).hint("nothing"))
    assert caught.value.code == 2


def test_the_same_name_for_another_index_is_refused(coll):
    coll.create_index("a", name="index")
    with pytest.raises(OperationFailure) as caught:
        coll.create_index("b", name="index")
    assert caught.value.code == 86


def test_unknown_kinds_of_index_are_refused(coll):
    with pytest.raises(OperationFailure):
        coll.create_index([("a", "florble")])
