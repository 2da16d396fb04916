"""Searches of every kind on cached fields, compared with Python, also during writes and changes of devices."""

import random
import re
import time

import bson
import pymongo
import pytest
from pymongo.errors import ExecutionTimeout, OperationFailure

SEED = 7
WORDS = ["react", "vue", "babel", "plugin", "webpack", "Loader", "cli", "utils", "suárez", "ﬁn", "x", "", "2024-01"]
BUILD_SECONDS_MAX = 60


def declare(coll, *fields):
    """Declares caches and waits until searches use them."""
    for field in fields:
        coll.create_index([(field, "cache")])
    end = time.monotonic() + BUILD_SECONDS_MAX
    while "'state': 'building'" in str(list(coll.aggregate([{"$indexStats": {}}]))):
        assert time.monotonic() < end, "the cache is still being built"


def stages(explanation):
    """Returns the names of all stages in an explanation."""
    return set(re.findall(r"'stage': '(\w+)'", str(explanation)))


def random_value(draw):
    return "-".join(draw.choice(WORDS) for _ in range(draw.randrange(4)))


@pytest.fixture
def names(coll):
    draw = random.Random(SEED)
    coll.insert_many([{"_id": n, "name": random_value(draw), "n": n % 10} for n in range(3_000)])
    declare(coll, "name")
    return coll


def expected(coll, predicate):
    """Returns the expected result, from a scan of all documents."""
    return sorted(doc["_id"] for doc in coll.find(hint=[("$natural", 1)]) if predicate(doc))


SEARCHES = {
    "exact": ({"name": "react"}, lambda d: d["name"] == "react"),
    "empty": ({"name": ""}, lambda d: d["name"] == ""),
    "in": ({"name": {"$in": ["vue", "cli-x", "absent"]}}, lambda d: d["name"] in ("vue", "cli-x")),
    "prefix": ({"name": re.compile("^react-")}, lambda d: d["name"].startswith("react-")),
    "suffix": ({"name": re.compile("-cli$")}, lambda d: d["name"].endswith("-cli")),
    "substring": ({"name": re.compile("pack-")}, lambda d: "pack-" in d["name"]),
    "any-case": ({"name": re.compile("LOADER", re.I)}, lambda d: "loader" in d["name"].lower()),
    "regex": (
        {"name": {"$regex": "^(vue|babel).*[0-9]{4}"}},
        lambda d: re.search("^(vue|babel).*[0-9]{4}", d["name"]),
    ),
    "alternatives": ({"name": {"$regex": "vue-x|x-vue"}}, lambda d: re.search("vue-x|x-vue", d["name"])),
    "unicode": ({"name": {"$regex": "su.rez"}}, lambda d: "suárez" in d["name"]),
    "ascii-word": ({"name": {"$regex": r"^\w+$"}}, lambda d: re.fullmatch(r"[A-Za-z0-9_]+", d["name"])),
    "look-ahead": (
        {"name": {"$regex": "^(?=.*vue)(?!.*cli)"}},
        lambda d: "vue" in d["name"] and "cli" not in d["name"],
    ),
    "look-behind": ({"name": {"$regex": "(?<=x-)babel"}}, lambda d: "x-babel" in d["name"]),
    "back-reference": (
        {"name": {"$regex": r"([a-z]+)-\1"}},
        lambda d: re.search(r"([a-z]+)-\1", d["name"]),
    ),
    "extended": ({"name": {"$regex": "vue  # the framework\n -cli", "$options": "x"}}, lambda d: "vue-cli" in d["name"]),
    "not": ({"name": {"$not": re.compile("[a-z]")}}, lambda d: not re.search("[a-z]", d["name"])),
    "not-in": ({"name": {"$nin": ["react", re.compile("vue")]}}, lambda d: d["name"] != "react" and "vue" not in d["name"]),
    "and": (
        {"$and": [{"name": re.compile("vue")}, {"name": re.compile("cli")}]},
        lambda d: "vue" in d["name"] and "cli" in d["name"],
    ),
    "or": (
        {"$or": [{"name": "vue"}, {"name": re.compile("^cli$")}]},
        lambda d: d["name"] in ("vue", "cli"),
    ),
    "mixed": ({"name": re.compile("vue"), "n": {"$lt": 3}}, lambda d: "vue" in d["name"] and d["n"] < 3),
    "mixed-or": ({"$or": [{"name": "vue"}, {"n": 4}]}, lambda d: d["name"] == "vue" or d["n"] == 4),
    "empty-pattern": ({"name": {"$regex": ""}}, lambda d: True),
    "null": ({"name": None}, lambda d: False),
    "never": ({"name": {"$regex": "a\\b\\Ba"}}, lambda d: False),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_equals_a_scan(names, search):
    query, predicate = SEARCHES[search]
    want = expected(names, predicate)
    assert sorted(doc["_id"] for doc in names.find(query)) == want
    assert names.count_documents(query) == len(want)
    assert sorted(names.distinct("_id", query)) == want


@pytest.mark.parametrize("search", ["exact", "prefix", "substring", "regex", "look-ahead", "not", "mixed"])
def test_the_cache_answers(names, search):
    explanation = names.find(SEARCHES[search][0]).explain()
    assert "COLLSCAN" not in stages(explanation)
    assert "tier" in str(explanation)


def test_sort_limit_and_projection_over_a_search(names):
    found = list(names.find({"name": re.compile("vue")}, {"name": 1, "_id": 0}).sort("name", 1).limit(20))
    values = sorted(doc["name"] for doc in names.find(hint=[("$natural", 1)]) if "vue" in doc["name"])
    assert found == [{"name": value} for value in values[:20]]


def test_distinct_and_group_over_a_search(names):
    values = [doc["name"] for doc in names.find(hint=[("$natural", 1)]) if "cli" in doc["name"]]
    query = {"name": re.compile("cli")}
    assert sorted(names.distinct("name", query)) == sorted(set(values))
    groups = names.aggregate([{"$match": query}, {"$group": {"_id": "$name", "count": {"$sum": 1}}}])
    assert {group["_id"]: group["count"] for group in groups} == {value: values.count(value) for value in values}
    assert list(names.aggregate([{"$match": query}, {"$count": "n"}])) == [{"n": len(values)}]


def test_a_writer_reads_its_own_writes(names):
    query = {"name": re.compile("quokka")}
    assert names.count_documents(query) == 0
    names.insert_one({"_id": "new", "name": "a quokka"})
    assert names.count_documents(query) == 1
    names.update_one({"_id": "new"}, {"$set": {"name": "a wombat"}})
    assert names.count_documents(query) == 0
    names.update_many({"n": 3}, {"$set": {"name": "quokkas"}})
    assert names.count_documents(query) == 300
    names.delete_many({"n": 3, "_id": {"$lt": 1_000}})
    assert names.count_documents(query) == 200
    names.update_many(query, {"$unset": {"name": ""}})
    assert names.count_documents(query) == 0
    assert names.count_documents({"name": None}) == 200


def test_documents_without_a_plain_string_are_found(coll):
    values = [
        "foo",
        ["foo", "bar"],
        [["foo"]],
        ["bar", None],
        [],
        None,
        1,
        {"foo": "foo"},
        bson.Regex("foo"),
        b"foo",
        ["x", 5, "foo"],
        "bar\nfoo",
        "nul\0foo",
    ]
    coll.insert_many([{"_id": n, "v": value} for n, value in enumerate(values)] + [{"_id": len(values)}])
    queries = [
        {"v": bson.Regex("foo")},
        {"v": {"$regex": "^foo"}},
        {"v": {"$not": bson.Regex("foo")}},
        {"v": "foo"},
        {"v": {"$ne": "foo"}},
        {"v": {"$in": ["foo", None]}},
        {"v": {"$nin": ["foo", None]}},
        {"v": None},
        {"v": {"$exists": True}},
        {"v": {"$exists": False}},
        {"$nor": [{"v": "foo"}, {"v": None}]},
    ]
    before = [sorted(doc["_id"] for doc in coll.find(query)) for query in queries]
    declare(coll, "v")
    assert [sorted(doc["_id"] for doc in coll.find(query)) for query in queries] == before
    assert before[0] == [0, 1, 8, 10, 11, 12]
    assert before[2] == [2, 3, 4, 5, 6, 7, 9, 13]


def test_dotted_paths_and_arrays_of_documents(coll):
    coll.insert_many(
        [
            {"_id": 1, "a": {"b": "foo"}},
            {"_id": 2, "a": [{"b": "foo"}, {"b": "bar"}]},
            {"_id": 3, "a": [{"c": "foo"}]},
            {"_id": 4, "a": "foo"},
            {"_id": 5},
        ]
    )
    declare(coll, "a.b")
    assert sorted(coll.distinct("_id", {"a.b": re.compile("^f")})) == [1, 2]
    assert sorted(coll.distinct("_id", {"a.b": {"$not": re.compile("^b")}})) == [1, 3, 4, 5]


def test_several_cached_fields(coll):
    draw = random.Random(SEED)
    coll.insert_many([{"_id": n, "a": random_value(draw), "b": random_value(draw)} for n in range(1_000)])
    declare(coll, "a", "b")
    both = {"a": re.compile("vue"), "b": re.compile("cli")}
    either = {"$or": [{"a": re.compile("vue")}, {"b": {"$not": re.compile("cli")}}]}
    want = expected(coll, lambda d: "vue" in d["a"] and "cli" in d["b"])
    assert sorted(coll.distinct("_id", both)) == want
    want = expected(coll, lambda d: "vue" in d["a"] or "cli" not in d["b"])
    assert sorted(coll.distinct("_id", either)) == want


def test_caches_are_listed_described_and_dropped(names):
    assert names.index_information()["name_cache"]["key"] == [("name", "cache")]
    (entry,) = [entry for entry in names.aggregate([{"$indexStats": {}}]) if entry["name"] == "name_cache"]
    assert entry["key"] == {"name": "cache"}
    names.drop_index("name_cache")
    assert "name_cache" not in names.index_information()
    assert names.count_documents({"name": re.compile("vue")}) > 0
    assert "COLLSCAN" in stages(names.find({"name": re.compile("vue")}).explain())


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"name": {"$regex": "(unclosed"}}, 51091),
        ({"name": {"$regex": "a", "$options": "q"}}, 51108),
        ({"name": {"$regex": 5}}, 2),
        ({"name": {"$options": "i"}}, 2),
        ({"name": {"$regex": "a\0b"}}, 2),
        ({"name": {"$ne": re.compile("a")}}, 2),
        ({"name": {"$in": [{"$regex": "a"}]}}, 2),
        ({"name": {"$florble": 1}}, 2),
        ({"$florble": 1}, 2),
        ({"name": {"$regex": "a" * 40_000}}, 51091),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_searches_are_refused_with_mongodbs_code(names, query, code):
    with pytest.raises(OperationFailure) as caught:
        names.count_documents(query)
    assert caught.value.code == code


def test_time_is_limited(names):
    names.insert_many([{"_id": f"long{n}", "name": "a" * 5_000} for n in range(200)])
    with pytest.raises(ExecutionTimeout) as caught:
        list(names.find({"name": {"$regex": r"(a*)*(a*)*\1\2b"}}).max_time_ms(1))
    assert caught.value.code == 50


def test_devices_join_and_leave_under_searches(client, names):
    query = {"name": re.compile("vue.*cli")}
    want = names.count_documents(query)
    before = client.admin.command("forebayDevices")["devices"]
    for _ in range(3):
        client.admin.command({"forebayDevices": 1, "add": "host:1"})
        assert names.count_documents(query) == want
        devices = client.admin.command("forebayDevices")["devices"]
        assert len(devices) == len(before) + 1
        client.admin.command({"forebayDevices": 1, "remove": devices[-1]["id"]})
        assert names.count_documents(query) == want
    assert len(client.admin.command("forebayDevices")["devices"]) == len(before)


def test_a_cache_declared_on_an_empty_collection_fills_with_inserts(db):
    db.create_collection("later")
    declare(db.later, "name")
    db.later.insert_many([{"_id": n, "name": f"value {n}"} for n in range(500)])
    assert sorted(db.later.distinct("_id", {"name": {"$regex": "^value 49.$"}})) == list(range(490, 500))
    assert "COLLSCAN" not in stages(db.later.find({"name": {"$regex": "9"}}).explain())


def test_a_renamed_collection_keeps_its_cache(names, db):
    want = names.count_documents({"name": re.compile("vue")})
    names.rename("moved")
    assert db.moved.count_documents({"name": re.compile("vue")}) == want
    assert "COLLSCAN" not in stages(db.moved.find({"name": re.compile("vue")}).explain())


def test_replacement_through_bulk_writes(names):
    names.bulk_write([pymongo.ReplaceOne({"_id": n}, {"name": "replaced"}) for n in range(100)])
    assert names.count_documents({"name": "replaced"}) == 100
