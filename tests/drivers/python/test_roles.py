"""Users with roles, through pymongo: their rights, and changes of rights on open connections."""

import pymongo
import pytest
from pymongo.errors import OperationFailure
from servers import start_forebay

PASSWORD = "correct horse"
UNAUTHORIZED = 13


@pytest.fixture(scope="module")
def secured():
    """A server that requires authentication, with the user `root`."""
    server = start_forebay("--memory", "--auth")
    with pymongo.MongoClient(server.uri) as stranger:
        stranger.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
    yield server
    server.stop()


@pytest.fixture
def root(secured):
    with login(secured, "root") as client:
        client.shop.names.insert_many([{"_id": number, "name": f"item-{number}"} for number in range(300)])
        yield client
        client.drop_database("shop")


def login(server, user, **options):
    return pymongo.MongoClient(server.uri, username=user, password=PASSWORD, **options)


@pytest.fixture
def user(secured, root):
    """Creates a user with a role on `shop`, and connects as that user."""
    clients = []

    def make(role):
        root.admin.command("createUser", role, pwd=PASSWORD, roles=[{"role": role, "db": "shop"}])
        clients.append(login(secured, role))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    for found in root.admin.command("usersInfo", 1)["users"]:
        if found["user"] != "root":
            root.admin.command("dropUser", found["user"])


def refused(action):
    with pytest.raises(OperationFailure) as caught:
        action()
    assert caught.value.code == UNAUTHORIZED, caught.value
    return str(caught.value)


def test_a_reader_reads_its_database_and_nothing_else(user, root):
    reader = user("read")
    names = reader.shop.names
    assert names.count_documents({"name": {"$regex": "item-1"}}) == 111
    assert len(list(names.find(batch_size=10))) == 300
    assert names.distinct("_id", {"_id": {"$lt": 2}}) == [0, 1]
    assert reader.list_database_names() == ["shop"]
    assert reader.shop.list_collection_names() == ["names"]
    for action in [
        lambda: names.insert_one({}),
        lambda: names.update_many({}, {"$set": {"a": 1}}),
        lambda: names.delete_many({}),
        lambda: names.find_one_and_delete({}),
        lambda: names.bulk_write([pymongo.InsertOne({})]),
        lambda: names.create_index([("name", "cache")]),
        lambda: names.drop(),
        lambda: names.rename("others"),
        lambda: list(names.aggregate([{"$out": "copy"}])),
        lambda: list(names.aggregate([{"$merge": {"into": {"db": "bank", "coll": "copy"}}}])),
        lambda: reader.bank.names.find_one(),
        lambda: reader.bank.list_collections(),
        lambda: reader.drop_database("shop"),
        lambda: reader.admin.command("serverStatus"),
        lambda: reader.admin.command("currentOp"),
        lambda: reader.admin.command("createUser", "eve", pwd="x", roles=["root"]),
    ]:
        assert "not authorized on " in refused(action)
    assert root.shop.names.count_documents({}) == 300


def test_a_writer_writes_its_database(user):
    shop = user("readWrite").shop
    shop.more.insert_one({"_id": 1})
    shop.more.create_index([("name", "cache")])
    shop.more.rename("others")
    assert shop.others.find_one() == {"_id": 1}
    list(shop.names.aggregate([{"$match": {"_id": 1}}, {"$out": "others"}]))
    assert shop.others.find_one() == {"_id": 1, "name": "item-1"}
    refused(lambda: list(shop.names.aggregate([{"$out": {"db": "bank", "coll": "copy"}}])))
    refused(lambda: shop.command("dropDatabase"))


def test_a_dropped_user_loses_access_at_once(user, root):
    reader = user("read")
    cursor = reader.shop.names.find(batch_size=10)
    next(cursor)
    root.admin.command("dropUser", "read")
    refused(lambda: reader.shop.names.find_one())
    with pytest.raises(OperationFailure):
        list(cursor)
