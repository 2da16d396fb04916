"""Forebay as a proxy: pymongo must get the same results through the proxy as from the upstream."""

import contextlib
import re
import tempfile
import threading

import pymongo
import pytest
from bson import Int64, encode
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.cursor import CursorType
from pymongo.errors import AutoReconnect, BulkWriteError, CursorNotFound, ExecutionTimeout, NetworkTimeout, OperationFailure

from conftest import NUMBERS
from servers import slow_store, start_ferretdb, start_forebay
from waiting import until


@pytest.fixture(scope="module")
def upstreams():
    """FerretDB, and a Forebay with its own documents."""
    with tempfile.TemporaryDirectory() as folder:
        processes = {"ferretdb": start_ferretdb(folder), "forebay": start_forebay("--memory")}
        yield processes
        for process in processes.values():
            process.stop()


@pytest.fixture(params=["ferretdb", "forebay"])
def pair(request, upstreams):
    """One database through two clients with default settings: direct and proxied."""
    upstream = upstreams[request.param]
    proxy = start_forebay("--memory", "--upstream", upstream.uri)
    name = f"upstream_{next(NUMBERS)}"
    with pymongo.MongoClient(upstream.uri) as direct, pymongo.MongoClient(proxy.uri) as proxied:
        yield direct[name], proxied[name]
        direct.drop_database(name)
    proxy.stop()


def test_documents_and_batches_are_the_same(pair):
    direct, proxied = pair
    proxied.things.insert_many([{"_id": number, "text": f"héllo {number}" * 50} for number in range(1_000)])
    for size in (1, 100, 999, 1_000):
        cursor = proxied.things.find(batch_size=size).sort("_id", 1)
        assert list(cursor) == list(direct.things.find().sort("_id", 1))


def test_a_bulk_that_fails_in_part_reports_the_same(pair):
    reported = []
    for database in pair:
        database.things.drop()
        database.things.insert_one({"_id": 3})
        for ordered in (True, False):
            with pytest.raises(BulkWriteError) as caught:
                database.things.insert_many([{"_id": number} for number in range(6)], ordered=ordered)
            reported.append((caught.value.details["nInserted"], len(caught.value.details["writeErrors"])))
    assert reported[:2] == reported[2:]


def test_exhaust_cursors_stream(pair):
    direct, proxied = pair
    direct.things.insert_many([{"_id": number} for number in range(5_000)])
    found = proxied.things.find(cursor_type=CursorType.EXHAUST, batch_size=100)
    assert sorted(document["_id"] for document in found) == list(range(5_000))
    assert proxied.things.count_documents({}) == 5_000


def test_cursors_end_for_both(pair):
    direct, proxied = pair
    direct.things.insert_many([{"_id": number} for number in range(500)])
    cursor = proxied.command("find", "things")["cursor"]["id"]
    proxied.command("killCursors", "things", cursors=[cursor])
    with pytest.raises(CursorNotFound):
        proxied.command("getMore", cursor, collection="things")


def test_sessions_and_raw_documents(pair):
    direct, proxied = pair
    raw = RawBSONDocument(encode({"_id": 1, "nested": {"list": [1, "two", None]}}))
    with proxied.client.start_session() as session:
        proxied.things.insert_one(raw, session=session)
        assert proxied.things.find_one({"_id": 1}, session=session) == direct.things.find_one({"_id": 1})


def test_writes_without_a_reply_arrive(pair):
    direct, proxied = pair
    things = proxied.get_collection("things", write_concern=pymongo.WriteConcern(w=0))
    for number in range(100):
        things.insert_one({"_id": number})
    # The count uses the same connection, so the upstream runs it after the inserts.
    assert proxied.things.count_documents({}) == direct.things.count_documents({}) == 100


def cache(collection):
    """Declares a cache of `name`, and waits until searches use it."""
    collection.create_index({"name": "cache"})
    until(lambda: is_cached(collection))


def is_cached(collection):
    explain = {"count": collection.name, "query": {"name": "x"}}
    return "forebay" not in collection.database.command("explain", explain)


@pytest.fixture
def exclusive(tmp_path):
    """A FerretDB, a proxy of it that receives all writes, and a collection with a cached field."""
    upstream = start_ferretdb(tmp_path)
    proxy = start_forebay("--memory", "--upstream", upstream.uri, "--upstream-writes", "exclusive")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        yield upstream, proxy, names
    proxy.stop()
    upstream.stop()


def test_writes_of_a_failed_bulk_are_found(exclusive):
    _, _, names = exclusive
    verbose = {"$regex": "n", "$options": "x"}
    bulks = [
        # The first update upserts; the second fails, because `name` is not a number.
        ("x", [({"name": "x"}, {"$set": {"n": 1}}, True), ({"_id": 2}, {"$inc": {"name": 1}}, False)]),
        # The first update writes; the second has an unknown operator.
        ("y", [({"_id": 1}, {"$set": {"name": "y"}}, False), ({"name": {"$foo": 1}}, {"$set": {"n": 1}}, False)]),
        # The same, with an option that FerretDB 1 does not support.
        ("z", [({"_id": 3}, {"$set": {"name": "z"}}, False), ({"name": verbose}, {"$set": {"n": 1}}, False)]),
    ]
    for written, bulk in bulks:
        updates = [{"q": query, "u": update, "upsert": upsert} for query, update, upsert in bulk]
        reply = names.database.command("update", names.name, updates=updates, check=False)
        assert reply.get("writeErrors") or not reply["ok"]
        until(lambda: is_cached(names))
        assert names.count_documents({"name": written}) == 1


NAMES = {"name": {"$regex": "name"}}


def counters(names):
    return names.database.client.admin.command("serverStatus")["forebayUpstream"]


def explained(names, command):
    return names.database.command("explain", command).get("forebay", {}).get("reason")


def fill(names, count):
    names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10, count)])
    until(lambda: is_cached(names))


def test_finds_of_cached_fields_are_answered_at_any_size(exclusive):
    upstream, _, names = exclusive
    fill(names, 3_439)
    with pymongo.MongoClient(upstream.uri) as direct:
        for shown in ({"_id": 0, "name": 1}, {"name": 1}):
            for size in (0, 100, 1_000):
                cached = names.find(NAMES, shown, batch_size=size).sort("name", 1)
                assert list(cached) == list(direct["exclusive"].names.find(NAMES, shown).sort("name", 1))
    reads = counters(names)
    assert reads["forwarded"] == reads["narrowed"] == 0 and reads["answered"] == 6
    assert explained(names, {"find": "names", "filter": NAMES, "projection": {"name": 1}}) is None


def test_cursors_of_caches_and_of_the_upstream_are_distinguished(exclusive):
    _, _, names = exclusive
    fill(names, 300)
    db = names.database
    with names.database.client.start_session() as session:
        find = lambda **other: db.command("find", "names", session=session, **other)["cursor"]["id"]
        cached, stored = find(filter=NAMES, projection={"name": 1}), find()
        assert cached < 0 < stored
        more = db.command("getMore", cached, collection="names", batchSize=50, session=session)["cursor"]
        assert more["id"] == cached and len(more["nextBatch"]) == 50
        killed = db.command("killCursors", "names", cursors=[cached, stored], session=session)
        assert sorted(killed["cursorsKilled"]) == [cached, stored]
        for cursor in (cached, stored, Int64(-5)):
            with pytest.raises(CursorNotFound):
                db.command("getMore", cursor, collection="names", session=session)
        # The end of a session closes its cursors.
        cached = find(filter=NAMES, projection={"name": 1})
        with contextlib.suppress(OperationFailure):
            # FerretDB 1 does not support `endSessions`.
            db.client.admin.command("endSessions", [session.session_id])
        with pytest.raises(CursorNotFound):
            db.command("getMore", cached, collection="names", session=session)


def test_sessions_of_other_clients_are_not_stopped(exclusive):
    _, proxy, names = exclusive
    fill(names, 300)
    found = names.find(NAMES, {"name": 1}, batch_size=10)
    next(found)
    # An empty list means all sessions of the client. The proxy does not know which sessions these are, and must not
    # stop the sessions of other clients.
    with pymongo.MongoClient(proxy.uri) as other, contextlib.suppress(OperationFailure):
        other.admin.command("killSessions", [])
    assert len(list(found)) == 299


def test_a_loaded_cache_closes_its_cursors(exclusive):
    _, _, names = exclusive
    fill(names, 300)
    found = names.find(NAMES, {"name": 1}, batch_size=10)
    next(found)
    names.drop_index("name_cache")
    cache(names)
    with pytest.raises(CursorNotFound):
        list(found)


def test_reasons_have_figures(exclusive):
    _, _, names = exclusive
    fill(names, 3_439)
    count = "3,439 documents match; the upstream searches if more than 1,000 match"
    part = "3,439 documents match the conditions on cached fields; the upstream searches if more than 1,000 match"
    find = {"find": "names", "filter": NAMES}
    assert explained(names, find) == count
    assert explained(names, {"find": "names", "filter": NAMES | {"n": 1}}) == part
    assert explained(names, find | {"hint": "_id_"}) == "only the upstream supports hint"
    assert explained(names, {"find": "names", "filter": {"n": 1}}) == "there is no condition on a cached field"
    with pytest.raises(OperationFailure, match=f"it would fall back to the upstream: {count}"):
        names.database.command(find | {"comment": {"forebay": "strict"}})


def test_commands_that_cannot_be_parsed_do_not_invalidate_caches(exclusive):
    _, _, names = exclusive
    for command in (
        {"create": "names", "capped": "x"},
        {"create": "names", "noSuchOption": 1},
        {"collMod": "names", "index": 5},
        {"renameCollection": "exclusive.names", "to": 5},
    ):
        db = names.database.client["admin" if "to" in command else "exclusive"]
        with pytest.raises(OperationFailure):
            db.command(command)
        assert is_cached(names), command


def test_a_malformed_stage_is_the_same_error_as_at_the_upstream(exclusive):
    upstream, _, names = exclusive
    match = {"$match": NAMES}
    with pymongo.MongoClient(upstream.uri) as direct:
        for pipeline in ([match, 5], [match | {"$limit": 1}], [match, {"$group": {"_id": "$n"}, "$limit": 1}]):
            errors = []
            for db in (direct["exclusive"], names.database):
                with pytest.raises(OperationFailure) as caught:
                    db.command("aggregate", "names", pipeline=pipeline, cursor={})
                errors.append(caught.value.code)
            assert errors[0] == errors[1]


def settled(names, find):
    """Waits until the proxy has measured how fast the upstream answers a find. Returns the reason why the upstream
    answers it and not the proxy, or `None`."""
    until(lambda: "being measured" not in (explained(names, find) or ""))
    return explained(names, find)


def test_finds_of_whole_documents_return_what_the_upstream_does(exclusive):
    upstream, _, names = exclusive
    names.insert_many({"name": f"many {n % 7}", "n": n % 5, "tags": [n, {"a": n}], "text": "x" * n} for n in range(200))
    with pymongo.MongoClient(upstream.uri) as client:
        direct = client["exclusive"].names
        for query in ({"name": "name 3"}, {"name": {"$regex": "^name [4-9]$"}}, {"name": "many 3"}, {"name": "none"}):
            for other in ({}, {"n": {"$gte": 3}}, {"_id": {"$ne": 5}}, {"$or": [{"n": 1}, {"n": 4}]}):
                settled(names, {"find": "names", "filter": query | other})
                shown = (None, {"n": 1, "_id": 0}, {"text": 0}, {"tags.a": 1})
                arguments = ({"limit": 3}, {}, {"batch_size": 2}, {"skip": 1, "limit": 2})
                for form in zip(shown, arguments):
                    found, expected = (
                        list(it.find(query | other, form[0], sort=[("text", -1), ("_id", 1)], **form[1]))
                        for it in (names, direct)
                    )
                    assert found == expected, (query, other, form)
    assert counters(names)["narrowed"] > 0


def test_a_few_documents_are_asked_for_by_their_id_alone(upstreams):
    slow = slow_store(upstreams["forebay"].address, 1, lambda asked: "$in" in str(asked) or "query" in asked)
    proxy = start_forebay("--memory", "--upstream", slow.uri, "--upstream-writes", "exclusive")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client[f"alone_{next(NUMBERS)}"].names
        names.insert_many([{"_id": number, "name": f"name {number}", "n": number} for number in range(10)])
        cache(names)
        find = {"find": "names", "filter": {"name": "name 3", "n": 3}}
        assert "by their _id, one by one" in settled(names, find)
        slow.commands.clear()
        assert [document["_id"] for document in names.find(find["filter"])] == [3]
        filters = [asked.get("filter") for asked in slow.commands]
        assert {"_id": 3} in filters and find["filter"] not in filters
    proxy.stop()


def test_a_find_whose_limit_the_first_documents_fill_is_passed_on(exclusive):
    _, _, names = exclusive
    names.insert_many([{"_id": number, "name": f"name {number}", "n": number % 10} for number in range(10, 5_000)])
    until(lambda: is_cached(names))
    first = "the upstream finds enough documents for limit {} among its first {} documents"
    find = {"find": "names", "filter": NAMES}
    for limit in (1, 20, 500):
        # The search stops at the limit; all 5,000 documents would be too many to fetch by `_id`.
        assert explained(names, find | {"limit": limit}) == first.format(limit, limit)
        assert len(list(names.find(NAMES, limit=limit))) == limit
    other = {"find": "names", "filter": NAMES | {"n": 3}, "limit": 2}
    assert explained(names, other) == first.format(2, 18)
    assert [document["_id"] for document in names.find(other["filter"], limit=2)] == [13, 23]
    late = {"find": "names", "filter": {"name": {"$regex": "name 4[0-9]{3}$"}}, "limit": 1}
    assert "among its first" not in settled(names, late)
    assert explained(names, find).startswith("5,000 documents match; the upstream searches if more than 1,000")


def test_an_upstream_that_is_slow_by_id_is_left_to_search(tmp_path):
    upstream = start_ferretdb(tmp_path)
    slow = slow_store(upstream.address, 1, lambda asked: "_id" in str(asked.get("filter")))
    proxy = start_forebay("--memory", "--upstream", slow.uri, "--upstream-writes", "exclusive")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["slow"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        find = {"find": "names", "filter": NAMES}
        # The upstream's own search has no `_id` in its filter, so `slow` does not delay it.
        took = "the upstream takes [0-9.]+ ms to search, and about [0-9,]+ ms to return 10 documents by their _id"
        assert re.fullmatch(took, settled(names, find))
        assert len(list(names.find(NAMES))) == 10
        reads = counters(names)
        assert reads["slower"] == 1 and reads["narrowed"] == 0
        with pytest.raises(OperationFailure, match=f"it would fall back to the upstream: {took}"):
            names.database.command(find | {"comment": {"forebay": "strict"}})
    proxy.stop()
    upstream.stop()


SLOW = {"name": {"$regex": r"^(a+)+\1$"}}


@pytest.fixture
def slow(exclusive):
    """A collection on which a search takes minutes."""
    _, proxy, names = exclusive
    names.insert_many([{"name": "a" * 30 + f"b{number}"} for number in range(2_000)])
    until(lambda: is_cached(names))
    return proxy, names


def searches(names):
    operations = names.database.client.admin.command("currentOp")["inprog"]
    return [operation for operation in operations if "count" in operation.get("command", {})]


def test_a_search_of_a_cache_is_listed_and_can_be_stopped(slow):
    _, names = slow
    caught = []

    def search():
        with pytest.raises(OperationFailure) as error:
            names.database.command("count", "names", query=SLOW)
        caught.append(error.value.code)

    searcher = threading.Thread(target=search)
    searcher.start()
    until(lambda: searches(names))
    (operation,) = searches(names)
    assert operation["ns"] == "exclusive.names" and operation["opid"].startswith("forebay:")
    names.database.client.admin.command("killOp", op=operation["opid"])
    searcher.join()
    assert caught == [11601]
    with pytest.raises(ExecutionTimeout):
        names.database.command("count", "names", query=SLOW, maxTimeMS=100)
    assert not searches(names)


def test_searches_of_caches_are_in_session_kills_and_aggregations_of_operations(streamed):
    direct, names = streamed
    direct.insert_many([{"name": "a" * 30 + f"b{number}"} for number in range(2_000)])
    cache(names)
    admin = pymongo.MongoClient(names.database.client.address[0], names.database.client.address[1]).admin
    match = {"$match": {"command.count": "names"}}

    def listed(last):
        return list(admin.aggregate([{"$currentOp": {"allUsers": True}}, last]))

    caught = []

    def search():
        with pytest.raises(OperationFailure) as error:
            names.database.command("count", "names", query=SLOW)
        caught.append(error.value.code)

    def start_search_of_cache():
        """Starts a search that the cache answers. One that is passed on, since the cache just ended, is killed."""
        while True:
            until(lambda: is_cached(names))
            searcher = threading.Thread(target=search)
            searcher.start()
            until(lambda: listed(match))
            (operation,) = listed(match)
            assert operation["ns"] == "streamed.names"
            if str(operation["opid"]).startswith("forebay:"):
                return searcher
            admin.command("killOp", op=operation["opid"])
            searcher.join()
            caught.clear()

    for kill in ({"killAllSessions": []}, {"killAllSessionsByPattern": []}):
        # All sessions of the upstream are stopped, including the session of the change stream that the cache follows.
        searcher = start_search_of_cache()
        assert listed({"$count": "n"}), "a pipeline that counts operations is passed on unchanged"
        admin.command(kill)
        searcher.join()
        assert caught == [11601]
        caught.clear()
    assert not listed(match)
    admin.client.close()


def test_a_search_of_a_cache_ends_with_its_client(slow):
    proxy, names = slow
    with pymongo.MongoClient(proxy.uri, socketTimeoutMS=1_000, retryReads=False) as leaving:
        with pytest.raises(NetworkTimeout):
            leaving["exclusive"].command("count", "names", query=SLOW)
    until(lambda: not searches(names))


def found(names):
    try:
        return names.count_documents({"name": {"$regex": "name"}})
    except AutoReconnect:
        return None


def test_strict_refuses_what_the_cache_does_not_answer(upstreams):
    # FerretDB has no change streams, so caches are disabled.
    proxy = start_forebay("--memory", "--documents-strict", "--upstream", upstreams["ferretdb"].uri)
    with pymongo.MongoClient(proxy.uri) as client:
        names = client[f"strict_{next(NUMBERS)}"].names
        names.insert_one({"name": "x", "n": 1})
        names.create_index({"name": "cache"})
        with pytest.raises(OperationFailure, match="it would fall back to the upstream"):
            names.count_documents({"name": {"$regex": "x"}})
        assert names.count_documents({"n": 1}) == 1
    proxy.stop()


def loaded(collection):
    """Returns how many documents of a collection the load in progress has read; 0 if no load is in progress."""
    operations = collection.database.client.admin.command("currentOp")["inprog"]
    loads = [operation["progress"]["done"] for operation in operations if operation.get("desc") == "cache load"]
    return max(loads, default=0)


@pytest.fixture
def streamed(tmp_path):
    """A collection of a Forebay with change streams, direct and proxied."""
    upstream = start_forebay("--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB")
    proxy = start_forebay("--memory", "--upstream", upstream.uri, "--upstream-load-documents-per-second", "2000")
    with pymongo.MongoClient(upstream.uri) as direct, pymongo.MongoClient(proxy.uri, maxPoolSize=1) as proxied:
        yield direct["streamed"].names, proxied["streamed"].names
    proxy.stop()
    upstream.stop()


def test_a_write_without_a_reply_is_searched_after_it(streamed):
    _, names = streamed
    names.insert_one({"_id": 0, "name": "x"})
    cache(names)
    silent = names.with_options(write_concern=pymongo.WriteConcern(w=0))
    for number in range(1, 200):
        silent.insert_one({"_id": number, "name": "x"})
        assert names.count_documents({"name": "x"}) == number + 1


def test_a_write_that_changes_nothing_is_searched_after_it(streamed):
    direct, names = streamed
    names.insert_one({"_id": 0, "name": "0"})
    cache(names)
    for number in range(1, 200):
        name = {"name": str(number)}
        direct.update_one({"_id": 0}, {"$set": name})
        assert names.update_one({"_id": 0}, {"$set": name}).modified_count == 0
        assert names.count_documents(name) == 1


def test_a_cache_begins_to_answer_during_writes_and_has_them(streamed):
    direct, names = streamed
    direct.insert_many([{"_id": number, "name": "x"} for number in range(10_000)])
    done = threading.Event()

    def write(first):
        number = 0
        while not done.is_set():
            number += 1
            updates = [UpdateOne({"_id": first + i}, {"$set": {"name": f"y {number}"}}) for i in range(100)]
            direct.bulk_write(updates)
            # The proxy does not read the stream during the load, so a pause keeps the history from overflowing.
            done.wait(0.01)

    writers = [threading.Thread(target=write, args=(first,)) for first in (1_000, 2_000)]
    for writer in writers:
        writer.start()
    try:
        names.create_index({"name": "cache"})
        # The load takes five seconds; it has read this document before the document is updated.
        until(lambda: loaded(names) >= 1_000)
        direct.update_one({"_id": 0}, {"$set": {"name": "written during the load"}})
        until(lambda: is_cached(names))
        assert names.count_documents({"name": "written during the load"}) == 1
    finally:
        done.set()
        for writer in writers:
            writer.join()
    names.update_one({"_id": 0}, {"$set": {"name": "last"}})
    assert names.count_documents({"name": {"$regex": "^[xyl]"}}) == 10_000
