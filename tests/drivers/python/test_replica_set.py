"""A replica set of one member, through pymongo: discovery by name, and retried writes."""

import pymongo
import pytest
from pymongo.errors import OperationFailure, WriteConcernError

from servers import start_forebay


@pytest.fixture(scope="module")
def client():
    server = start_forebay("--memory", "--mongodb-replica-set", "rs0", "--mongodb-test-commands", "--documents-change-history-bytes-max", "64MiB")
    with pymongo.MongoClient(server.uri, replicaSet="rs0") as client:
        yield client
    server.stop()


def fail(client, name, mode, **data):
    client.admin.command("configureFailPoint", name, mode=mode, data=data)


def test_writes_whose_replies_are_lost_are_applied_once(client):
    things = client.retry.things
    fail(client, "onPrimaryTransactionalWrite", {"times": 3})
    things.bulk_write([pymongo.InsertOne({"_id": 1, "n": 0}), pymongo.UpdateOne({"_id": 1}, {"$inc": {"n": 1}})])
    assert things.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}) == {"_id": 1, "n": 1}
    assert list(things.find()) == [{"_id": 1, "n": 2}]
    fail(client, "failCommand", {"times": 1}, failCommands=["delete"], errorCode=91)
    assert things.delete_one({"_id": 1}).deleted_count == 1


def test_a_transaction_is_refused_and_not_retried(client):
    with client.start_session() as session, pytest.raises(OperationFailure) as caught:
        session.with_transaction(lambda session: client.retry.things.insert_one({}, session=session))
    assert caught.value.code == 263


def test_a_change_stream_follows_in_a_session(client):
    with client.start_session() as session, client.retry.followed.watch(session=session) as stream:
        client.retry.followed.insert_one({"_id": 1}, session=session)
        assert next(stream)["documentKey"] == {"_id": 1}
        assert session.cluster_time is not None


def test_a_write_concern_of_more_members_is_reported_as_failed(client):
    things = client.retry.get_collection("alone", write_concern=pymongo.WriteConcern(w=2))
    with pytest.raises(WriteConcernError):
        things.insert_one({"_id": 1})
    assert things.count_documents({}) == 1


def test_sessions_are_killed_with_their_cursors(client):
    things = client.retry.many
    things.insert_many([{} for _ in range(300)])
    cursor = things.find(batch_size=10)
    next(cursor)
    client.admin.command("killAllSessions", [])
    with pytest.raises(OperationFailure) as caught:
        list(cursor)
    assert caught.value.code == 43
