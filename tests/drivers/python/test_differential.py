"""Compares Forebay and FerretDB on the same cases. Where FerretDB breaks MongoDB's rules, Forebay's answer is
pinned: a pinned case fails if the two agree, or if Forebay's answer changes."""

import pytest
from differential_cases import (
    DOCUMENT_PROJECTED,
    DOCUMENTS,
    FILTERS,
    PIPELINES,
    PROJECTIONS,
    SORTS,
    UPDATES,
)
from differential_known import KNOWN
from pymongo.errors import OperationFailure


@pytest.fixture(scope="module")
def pair(client, ferretdb):
    """The two databases with the same documents. Forebay also caches them."""
    databases = (client.differential, ferretdb.differential)
    for database in databases:
        database.things.drop()
        database.things.insert_many(DOCUMENTS)
    yield databases
    client.drop_database("differential")


def outcome(ask):
    """Returns the answer, or the error code."""
    try:
        return ask()
    except OperationFailure as error:
        return {"code": error.code}


def compare(case, ours, theirs):
    if case in KNOWN:
        assert ours != theirs, f"{case}: the servers agree now; unpin it"
        assert ours == KNOWN[case], f"{case}: not what was pinned (FerretDB: {theirs!r})"
    else:
        assert ours == theirs, case


def on_both(pair, ask):
    return [outcome(lambda: ask(database)) for database in pair]


@pytest.mark.parametrize("name", FILTERS)
def test_filters(pair, name):
    ask = lambda database: sorted(doc["_id"] for doc in database.things.find(FILTERS[name]))  # noqa: E731
    compare(f"filter {name}", *on_both(pair, ask))


@pytest.mark.parametrize("name", FILTERS)
def test_counts(pair, name):
    ask = lambda database: database.command("count", "things", query=FILTERS[name])["n"]  # noqa: E731
    compare(f"count {name}", *on_both(pair, ask))


@pytest.mark.parametrize("name", UPDATES)
def test_updates(pair, name):
    document, update = UPDATES[name]

    def ask(database):
        database.updated.drop()
        database.updated.insert_one({"_id": 1, **document})
        result = database.updated.update_one({"_id": 1}, update)
        found = database.updated.find_one()
        return [list(found.items()), result.matched_count, result.modified_count]

    compare(f"update {name}", *on_both(pair, ask))


@pytest.mark.parametrize("name", PROJECTIONS)
def test_projections(pair, name):
    def ask(database):
        database.projected.drop()
        database.projected.insert_one(DOCUMENT_PROJECTED)
        return [list(document.items()) for document in database.projected.find({}, PROJECTIONS[name])]

    compare(f"projection {name}", *on_both(pair, ask))


@pytest.mark.parametrize("name", SORTS)
def test_sorts(pair, name):
    ask = lambda database: [doc["_id"] for doc in database.things.find().sort(SORTS[name])]  # noqa: E731
    compare(f"sort {name}", *on_both(pair, ask))


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(pair, name):
    ask = lambda database: [list(doc.items()) for doc in database.things.aggregate(PIPELINES[name])]  # noqa: E731
    compare(f"pipeline {name}", *on_both(pair, ask))


@pytest.mark.parametrize("path", ["v", "v.a", "_id", "absent"])
def test_distinct(pair, path):
    ask = lambda database: sorted(map(repr, database.things.distinct(path)))  # noqa: E731
    compare(f"distinct {path}", *on_both(pair, ask))


def test_every_pin_names_a_case():
    groups = {
        "filter": FILTERS, "count": FILTERS, "update": UPDATES, "projection": PROJECTIONS, "sort": SORTS,
        "pipeline": PIPELINES, "distinct": ["v", "v.a", "_id", "absent"],
    }  # fmt: skip
    for case in KNOWN:
        group, name = case.split(" ", 1)
        assert name in groups[group], case
