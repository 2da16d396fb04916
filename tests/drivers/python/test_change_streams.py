"""Change streams on the embedded store: events, resumption, ends, and waiting."""

import random
import tempfile
import threading
import time

import pymongo
import pytest
from bson import Timestamp
from conftest import start_forebay
from pymongo.errors import OperationFailure

# Longer than any test waits for a change.
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def server():
    """A Forebay server with a history of changes."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--data", folder, "--devices", "host:2", "--documents-change-history-bytes-max", "64MiB"]
        process = start_forebay(*arguments)
        yield process
        process.stop()


@pytest.fixture(scope="module")
def client(server):
    with pymongo.MongoClient(server.uri) as client:
        yield client


def take(stream, count):
    """Returns the next `count` events of a stream."""
    return [stream.next() for _ in range(count)]


def rest(stream):
    """Returns all events that are available now."""
    events = []
    while (event := stream.try_next()) is not None:
        events.append(event)
    return events


def kinds(events):
    return [event["operationType"] for event in events]


def watch(target, pipeline=None, **options):
    return target.watch(pipeline, **{"max_await_time_ms": PATIENCE_MS, **options})


def watch_briefly(target, pipeline=None, **options):
    return target.watch(pipeline, **{"max_await_time_ms": 1, **options})


def test_every_kind_of_write_is_an_event(coll):
    with watch(coll) as stream:
        coll.insert_one({"_id": 1, "a": 1, "b": {"c": [1, 2, 3], "d": "a text of some length"}})
        change = {"$set": {"a": 2, "b.c.1": 5}, "$push": {"b.c": 4}}
        with pytest.raises(OperationFailure):
            coll.update_one({"_id": 1}, change)  # conflicting paths: not an event
        coll.update_one({"_id": 1}, {"$set": {"b.c.1": 5}, "$unset": {"a": 1}})
        coll.update_one({"_id": 1}, {"$pop": {"b.c": 1}})
        coll.update_one({"_id": 1}, {"$set": {"b.c.1": 5}})  # changes nothing: not an event
        coll.replace_one({"_id": 1}, {"z": 1})
        coll.delete_one({"_id": 1})
        inserted, updated, popped, replaced, deleted = take(stream, 5)
    assert kinds([inserted, updated, popped, replaced, deleted]) == ["insert", "update", "update", "replace", "delete"]
    assert inserted["fullDocument"] == {"_id": 1, "a": 1, "b": {"c": [1, 2, 3], "d": "a text of some length"}}
    assert inserted["ns"] == {"db": coll.database.name, "coll": coll.name}
    assert updated["updateDescription"] == {
        "updatedFields": {"b.c.1": 5},
        "removedFields": ["a"],
        "truncatedArrays": [],
    }
    assert popped["updateDescription"]["truncatedArrays"] == [{"field": "b.c", "newSize": 2}]
    assert "fullDocument" not in updated
    assert replaced["fullDocument"] == {"_id": 1, "z": 1}
    assert "fullDocument" not in deleted
    events = [inserted, updated, popped, replaced, deleted]
    assert all(event["documentKey"] == {"_id": 1} for event in events)
    times = [event["clusterTime"] for event in events]
    assert times == sorted(set(times)) and isinstance(times[0], Timestamp)
    assert all("wallTime" in event for event in events)


def test_statements_on_many_documents_give_an_event_each(coll):
    with watch(coll) as stream:
        coll.insert_many([{"_id": number} for number in range(300)])
        coll.update_many({}, {"$set": {"a": 1}})
        coll.update_many({}, [{"$set": {"b": "$_id"}}])
        coll.find_one_and_update({"_id": "new"}, {"$set": {"a": 1}}, upsert=True)
        coll.delete_many({})
        events = take(stream, 300 * 3 + 1 + 301)
    assert kinds(events) == ["insert"] * 300 + ["update"] * 600 + ["insert"] + ["delete"] * 301
    assert [event["documentKey"]["_id"] for event in events[:300]] == list(range(300))
    assert events[600]["updateDescription"]["updatedFields"] == {"b": events[600]["documentKey"]["_id"]}


def test_update_lookup_returns_the_current_document(coll):
    coll.insert_many([{"_id": 1}, {"_id": 2}])
    with watch(coll, full_document="updateLookup") as stream:
        coll.update_one({"_id": 1}, {"$set": {"a": 1}})
        coll.update_one({"_id": 1}, {"$set": {"b": 1}})
        coll.update_one({"_id": 2}, {"$set": {"a": 1}})
        coll.delete_one({"_id": 2})
        events = take(stream, 4)
    documents = [event.get("fullDocument") for event in events]
    assert documents == [{"_id": 1, "a": 1, "b": 1}, {"_id": 1, "a": 1, "b": 1}, None, None]
    assert "fullDocument" in events[2] and "fullDocument" not in events[3]


def test_streams_show_their_collection_database_or_all(client, db):
    other = client[f"{db.name}_other"]
    with watch_briefly(db.a) as of_a, watch_briefly(db) as of_db, watch_briefly(client) as of_all:
        db.a.insert_one({})
        db.b.insert_one({})
        other.c.insert_one({})
        client.drop_database(other.name)
        assert [event["ns"].get("coll") for event in rest(of_a)] == ["a"]
        assert [event["ns"].get("coll") for event in rest(of_db)] == ["a", "b"]
        events = rest(of_all)
    assert kinds(events) == ["insert", "insert", "insert", "drop", "dropDatabase"]
    assert events[-1]["ns"] == {"db": other.name}


@pytest.mark.parametrize("end", ["drop", "rename", "rename_onto"])
def test_a_collection_stream_ends_with_its_collection(db, coll, end):
    coll.insert_one({"_id": 0})
    with watch(coll) as stream:
        coll.insert_one({"_id": 1})
        if end == "drop":
            coll.drop()
        elif end == "rename":
            coll.rename("moved")
        else:
            db.other.insert_one({})
            db.other.rename(coll.name, dropTarget=True)
        events = list(stream)
        assert not stream.alive
    kind = "drop" if end == "drop" else "rename"
    assert kinds(events) == ["insert", kind, "invalidate"]
    if end == "rename":
        assert events[1]["to"] == {"db": db.name, "coll": "moved"}
    assert "ns" not in events[2]
    coll.insert_one({"_id": 2})
    # A stream that resumes before the invalidate event returns that event again. After it, only startAfter works.
    for index, option in [(0, "resume_after"), (1, "resume_after"), (1, "start_after")]:
        with watch(coll, **{option: events[index]["_id"]}) as stream:
            assert kinds(stream) == kinds(events[index + 1 :])
    with pytest.raises(OperationFailure) as caught:
        coll.watch(resume_after=events[2]["_id"])
    assert caught.value.code == 260
    with watch(coll, start_after=events[2]["_id"]) as stream:
        assert stream.next()["documentKey"] == {"_id": 2}


def test_a_database_stream_ends_with_its_database(client, db):
    with watch(db) as stream:
        db.a.insert_one({})
        db.a.drop()
        db.b.insert_one({})
        client.drop_database(db.name)
        assert kinds(stream) == ["insert", "drop", "insert", "drop", "dropDatabase", "invalidate"]


def test_a_stream_resumes_after_any_event(coll):
    with watch(coll) as stream:
        coll.insert_many([{"_id": number} for number in range(20)])
        events = take(stream, 20)
    for index in range(20):
        for option in ["resume_after", "start_after"]:
            with watch_briefly(coll, **{option: events[index]["_id"]}) as stream:
                assert rest(stream) == events[index + 1 :]
        with watch_briefly(coll, start_at_operation_time=events[index]["clusterTime"]) as stream:
            assert rest(stream) == events[index:]


def test_tokens_of_batches_resume_after_the_batch(db, coll):
    with watch_briefly(coll) as stream:
        first = stream.resume_token
        db.other.insert_many([{} for _ in range(10)])
        assert stream.try_next() is None
        second = stream.resume_token
        coll.insert_one({"_id": 1})
    assert first is not None and second["_data"] > first["_data"]
    for token in [first, second]:
        with watch_briefly(coll, resume_after=token) as stream:
            assert [event["documentKey"]["_id"] for event in rest(stream)] == [1]


def test_batches_are_bounded_by_count_and_bytes(db, coll):
    reply = db.command("aggregate", coll.name, pipeline=[{"$changeStream": {}}], cursor={"batchSize": 0})["cursor"]
    assert reply["firstBatch"] == [] and "_data" in reply["postBatchResumeToken"]
    for number in range(9):
        coll.insert_one({"_id": number, "text": "x" * 5_000_000})
    seen = []
    for size in [1, 0, 0, 0, 0]:
        more = db.command("getMore", reply["id"], collection=coll.name, batchSize=size, maxTimeMS=PATIENCE_MS)["cursor"]
        batch = more["nextBatch"]
        assert len(batch) == 1 if size else 1 < len(batch) <= 3
        assert more["postBatchResumeToken"] == batch[-1]["_id"] or len(seen) + len(batch) == 9
        seen += [event["documentKey"]["_id"] for event in batch]
        if len(seen) == 9:
            break
    assert seen == list(range(9))


def test_later_stages_filter_and_shape_events(coll):
    pipeline = [{"$match": {"operationType": "insert", "fullDocument.a": {"$gt": 3}}}, {"$project": {"fullDocument.a": 1}}]
    with watch(coll, pipeline) as stream:
        coll.insert_many([{"a": number} for number in range(6)])
        coll.delete_many({})
        assert [event["fullDocument"] for event in take(stream, 2)] == [{"a": 4}, {"a": 5}]
    with pytest.raises(OperationFailure) as caught:
        coll.watch([{"$group": {"_id": 1}}])
    assert caught.value.code == 20
    with watch(coll, [{"$project": {"_id": 0}}]) as stream:
        coll.insert_one({})
        with pytest.raises(OperationFailure) as caught:
            stream.next()
    assert caught.value.code == 280


@pytest.mark.parametrize(
    "options, code",
    [
        ({"resume_after": {"_data": "no token"}}, 260),
        ({"resume_after": {"_data": "82000000050000000101"}}, 286),
        ({"start_at_operation_time": Timestamp(5, 1)}, 286),
        ({"full_document": "required"}, 238),
        ({"full_document": "whenAvailable"}, 238),
        ({"full_document": "sometimes"}, 2),
        ({"full_document_before_change": "required"}, 238),
        ({"show_expanded_events": True}, 238),
    ],
)
def test_unsupported_options_are_refused(coll, options, code):
    with pytest.raises(OperationFailure) as caught:
        coll.watch(**options)
    assert caught.value.code == code


def test_internal_databases_cannot_be_watched(client):
    for target in [client.admin, client.config.a, client.local]:
        with pytest.raises(OperationFailure) as caught:
            target.watch()
        assert caught.value.code == 73


@pytest.fixture
def opened(client, db, coll):
    """Returns the session and the cursor of a stream over `coll`. A cursor belongs to the session that opened it."""
    with client.start_session() as session:
        reply = db.command("aggregate", coll.name, pipeline=[{"$changeStream": {}}], cursor={}, session=session)
        yield session, reply["cursor"]["id"]


def test_a_get_more_waits_and_ends_in_time(db, coll, opened):
    session, cursor = opened
    begun = time.monotonic()
    more = db.command("getMore", cursor, collection=coll.name, maxTimeMS=200, session=session)["cursor"]
    assert more["nextBatch"] == [] and more["id"] == cursor
    assert time.monotonic() - begun >= 0.2
    writer = threading.Thread(target=lambda: coll.insert_one({"_id": 1}))
    writer.start()
    more = db.command("getMore", cursor, collection=coll.name, maxTimeMS=PATIENCE_MS, session=session)["cursor"]
    writer.join()
    assert [event["documentKey"]["_id"] for event in more["nextBatch"]] == [1]


def test_a_waiting_get_more_ends_when_its_cursor_is_killed(client, db, coll, opened):
    session, cursor = opened
    outcome = []

    def wait():
        try:
            outcome.append(
                db.command("getMore", cursor, collection=coll.name, maxTimeMS=PATIENCE_MS, session=session)
            )
        except OperationFailure as error:
            outcome.append(error.code)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not any("getMore" in op.get("command", {}) for op in client.admin.command("currentOp")["inprog"]):
        assert waiter.is_alive(), outcome
    db.command("killCursors", coll.name, cursors=[cursor])
    waiter.join(PATIENCE_MS / 1000)
    assert outcome == [237]


def test_the_server_reports_the_range_of_its_history(client, coll):
    coll.insert_one({})
    history = client.admin.command("serverStatus")["forebay"]["changeHistory"]
    assert history["first"] < history["last"] and history["bytes"] > 0
    with watch_briefly(coll, start_at_operation_time=history["last"]) as stream:
        assert kinds(rest(stream)) == ["insert"]


def test_without_a_history_streams_are_refused():
    process = start_forebay("--memory", "--devices", "host:1")
    with pymongo.MongoClient(process.uri) as client, pytest.raises(OperationFailure) as caught:
        client.db.coll.watch()
    process.stop()
    assert caught.value.code == 40573
    assert "--documents-change-history-bytes-max" in str(caught.value)


def test_a_history_in_memory_resumes_while_the_server_lives():
    process = start_forebay("--memory", "--devices", "host:1", "--documents-change-history-bytes-max", "1MiB")
    with pymongo.MongoClient(process.uri) as client:
        coll = client.db.coll
        with watch(coll) as stream:
            coll.insert_many([{"_id": 1}, {"_id": 2}])
            token = stream.next()["_id"]
        with watch(coll, resume_after=token) as stream:
            assert stream.next()["documentKey"] == {"_id": 2}
        coll.insert_many([{"text": "x" * 10_000} for _ in range(400)])
        with pytest.raises(OperationFailure) as caught:
            while True:
                coll.insert_one({"text": "x" * 10_000})
                coll.watch(resume_after=token).close()
        assert caught.value.code == 286
    process.stop()


def set_path(document, path, value):
    """Sets a dotted path, in documents and arrays."""
    *parents, last = path.split(".")
    for name in parents:
        document = document[int(name) if isinstance(document, list) else name]
    if isinstance(document, list):
        index = int(last)
        document[index : index + 1] = [value]
    else:
        document[last] = value


def get_path(document, path):
    for name in path.split("."):
        document = document[int(name) if isinstance(document, list) else name]
    return document


def apply(model, event):
    """Applies an event to `model`, a dict of documents by `_id`. Uses only what the event contains."""
    key = event["documentKey"]["_id"]
    if event["operationType"] == "insert":
        assert key not in model
        model[key] = event["fullDocument"]
    elif event["operationType"] == "replace":
        assert key in model
        model[key] = event["fullDocument"]
    elif event["operationType"] == "delete":
        del model[key]
    else:
        description = event["updateDescription"]
        for cut in description["truncatedArrays"]:
            del get_path(model[key], cut["field"])[cut["newSize"] :]
        for path in description["removedFields"]:
            *parents, last = path.split(".")
            holder = get_path(model[key], ".".join(parents)) if parents else model[key]
            del holder[last]
        for path, value in description["updatedFields"].items():
            set_path(model[key], path, value)


def random_value(choice):
    kind = choice.randrange(4)
    if kind == 0:
        return choice.randrange(100)
    if kind == 1:
        return "text " * choice.randrange(10)
    if kind == 2:
        return [choice.randrange(5) for _ in range(choice.randrange(8))]
    return {"x": choice.randrange(3), "y": [{"z": choice.randrange(3), "long": "a text that stays"}]}


def write_at_random(coll, choice, count):
    for _ in range(count):
        key = {"_id": choice.randrange(40)}
        field = choice.choice(["a", "b", "c.d", "c.e"])
        action = choice.randrange(8)
        if action == 0:
            coll.replace_one(key, {"a": random_value(choice)}, upsert=True)
        elif action == 1:
            coll.delete_one(key)
        elif action == 2:
            coll.update_many({"_id": {"$mod": [7, 0]}}, [{"$set": {"f": {"$add": ["$_id", choice.randrange(5)]}}}])
        elif action == 3:
            coll.update_one(key, {"$unset": {field: 1}})
        elif action == 4:
            coll.update_one({**key, "b": {"$type": "array"}}, {"$push": {"b": {"$each": [1, 2], "$slice": 6}}})
        elif action == 5:
            coll.update_one({**key, "b": {"$type": "array"}}, {"$pop": {"b": 1}})
        elif action == 6:
            coll.update_one({**key, "c.e": {"$exists": False}}, {"$rename": {"c.d": "c.e"}})
        else:
            filter = {**key, "c": {"$not": {"$type": "array"}}} if "." in field else key
            coll.update_one(filter, {"$set": {field: random_value(choice)}}, upsert=False)
            coll.update_one(key, {"$setOnInsert": {"b": [0]}}, upsert=True)


def test_random_writes_replay_to_the_contents(coll):
    with watch(coll) as stream:
        writers = [
            threading.Thread(target=write_at_random, args=(coll, random.Random(seed), 300)) for seed in range(3)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        coll.insert_one({"_id": "end"})
        model, tokens = {}, []
        while "end" not in model:
            event = stream.next()
            tokens.append(event["_id"]["_data"])
            apply(model, event)
    assert tokens == sorted(set(tokens))
    assert model == {document["_id"]: document for document in coll.find()}
