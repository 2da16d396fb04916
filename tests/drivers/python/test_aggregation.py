"""Pipelines as drivers send them."""

import pytest
from pymongo.errors import OperationFailure

SALES = [
    {"_id": 1, "item": "abc", "price": 10, "quantity": 2, "tags": ["a", "b"]},
    {"_id": 2, "item": "jkl", "price": 20, "quantity": 1, "tags": ["b"]},
    {"_id": 3, "item": "xyz", "price": 5, "quantity": 5, "tags": []},
    {"_id": 4, "item": "abc", "price": 10, "quantity": 10, "tags": ["c", "a"]},
    {"_id": 5, "item": "xyz", "price": 5, "quantity": 10},
]


@pytest.fixture
def sales(coll):
    coll.insert_many(SALES)
    return coll


def test_group_with_every_accumulator(sales):
    pipeline = [
        {"$match": {"quantity": {"$gte": 2}}},
        {"$sort": {"_id": 1}},
        {
            "$group": {
                "_id": "$item",
                "sum": {"$sum": "$quantity"},
                "average": {"$avg": "$quantity"},
                "least": {"$min": "$quantity"},
                "most": {"$max": "$quantity"},
                "first": {"$first": "$_id"},
                "last": {"$last": "$_id"},
                "all": {"$push": "$quantity"},
                "prices": {"$addToSet": "$price"},
                "count": {"$count": {}},
            }
        },
        {"$sort": {"_id": 1}},
    ]
    assert list(sales.aggregate(pipeline)) == [
        {"_id": "abc", "sum": 12, "average": 6.0, "least": 2, "most": 10, "first": 1, "last": 4,
         "all": [2, 10], "prices": [10], "count": 2},
        {"_id": "xyz", "sum": 15, "average": 7.5, "least": 5, "most": 10, "first": 3, "last": 5,
         "all": [5, 10], "prices": [5], "count": 2},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ([{"$count": "n"}], [{"n": 5}]),
        ([{"$match": {"item": "nothing"}}, {"$count": "n"}], []),
        ([{"$unwind": "$tags"}, {"$group": {"_id": None, "n": {"$sum": 1}}}], [{"_id": None, "n": 5}]),
        (
            [{"$unwind": "$tags"}, {"$sortByCount": "$tags"}, {"$match": {"count": 2}}, {"$sort": {"_id": 1}}],
            [{"_id": "a", "count": 2}, {"_id": "b", "count": 2}],
        ),
        (
            [{"$sort": {"price": -1, "_id": 1}}, {"$skip": 1}, {"$limit": 1}, {"$project": {"item": 1}}],
            [{"_id": 1, "item": "abc"}],
        ),
        (
            [{"$match": {"_id": 2}}, {"$set": {"total": {"$multiply": ["$price", "$quantity"]}}}, {"$unset": "tags"}],
            [{"_id": 2, "item": "jkl", "price": 20, "quantity": 1, "total": 20}],
        ),
        (
            [
                {"$unwind": {"path": "$tags", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "i"}},
                {"$match": {"_id": {"$gte": 3}}},
                {"$project": {"tags": 1, "i": 1}},
            ],
            [
                {"_id": 3, "i": None},
                {"_id": 4, "tags": "c", "i": 0},
                {"_id": 4, "tags": "a", "i": 1},
                {"_id": 5, "i": None},
            ],
        ),
    ],
    ids=["count", "count-nothing", "unwind", "sort-by-count", "sort-skip-limit", "set-unset", "unwind-keeping"],
)
def test_pipelines(sales, pipeline, expected):
    assert list(sales.aggregate(pipeline)) == expected


def test_count_documents_uses_a_group(sales):
    assert sales.count_documents({"item": "abc"}) == 2


def test_an_unknown_stage_is_refused(sales):
    with pytest.raises(OperationFailure) as caught:
        list(sales.aggregate([{"$florble": {}}]))
    assert caught.value.code == 40324


def test_an_unknown_operator_in_a_stage_is_refused(sales):
    with pytest.raises(OperationFailure):
        list(sales.aggregate([{"$project": {"a": {"$florble": 1}}}]))
