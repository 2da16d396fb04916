"""Forebay in front of a store that goes away, hangs, comes back or changes its rights."""

import os
import signal
import subprocess
import time

import pymongo
import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from servers import RefusingStore, open_connections, own_host, start_ferretdb, start_forebay
from test_upstream import cache, exclusive, found, is_cached, loaded, stores  # noqa: F401 (fixtures)
from waiting import until


def test_a_store_that_was_started_again_is_read_again(exclusive, tmp_path):
    store, _, names = exclusive
    assert found(names) == 10
    again = start_again(store, tmp_path)
    try:
        until(lambda: found(names) == 9)
        until(lambda: is_cached(names))
        assert found(names) == 9
    finally:
        again.stop()


def test_a_store_that_was_started_again_while_nobody_was_there_is_read_again(exclusive, tmp_path):
    store, front, names = exclusive
    assert found(names) == 10
    names.database.client.close()
    until(lambda: open_connections(front.address) == 0)
    again = start_again(store, tmp_path)
    try:
        with pymongo.MongoClient(front.uri) as client:
            names = client["exclusive"].names
            assert found(names) == 9
            until(lambda: is_cached(names))
            assert found(names) == 9
    finally:
        again.stop()


def test_a_store_that_does_not_tell_when_it_was_started_is_read_once(tmp_path):
    store = start_ferretdb(tmp_path)
    refusing = RefusingStore(store.address, "serverStatus")
    front = start_forebay("--memory", "--upstream", refusing.uri, "--upstream-writes", "exclusive")
    with pymongo.MongoClient(front.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        for _ in range(3):
            asked = refusing.asked["serverStatus"]
            refusing.close_connections()
            until(lambda: refusing.asked["serverStatus"] > asked)
            until(lambda: found(names) == 10)
    told = "\n".join(front.lines)
    assert told.count("the store does not tell when it was started") == 1
    assert told.count("a collection has been copied") == 1
    front.stop()
    store.stop()


def test_a_store_that_is_about_to_stop_is_away_for_clients_that_come(tmp_path):
    store = start_ferretdb(tmp_path)
    draining = RefusingStore(store.address)
    front = start_forebay("--memory", "--upstream", draining.uri, "--upstream-writes", "exclusive", "--upstream-serve-stale")
    with pymongo.MongoClient(front.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        assert found(names) == 10
        draining.drain()
        for _ in range(5):
            with pymongo.MongoClient(front.uri) as other:
                assert found(other["exclusive"].names) == 10
    front.stop()
    store.stop()


def test_a_store_that_hangs_is_away_for_old_clients_and_new_ones(tmp_path):
    store = start_ferretdb(tmp_path)
    front = start_forebay("--memory", "--upstream", store.uri, "--upstream-writes", "exclusive", "--upstream-serve-stale")
    # The driver itself gives a command up after that; the store's silence is noticed within six seconds.
    uri = f"{front.uri}?socketTimeoutMS=15000&serverSelectionTimeoutMS=12000&retryReads=false"
    with pymongo.MongoClient(uri, maxPoolSize=1) as client, pymongo.MongoClient(uri) as open_before:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        others = open_before["exclusive"].names
        assert found(others) == 10
        store.process.send_signal(signal.SIGSTOP)
        try:
            assert found(names) == 10, "its connection stays open, and nothing comes"
            assert found(others) == 10
            with pymongo.MongoClient(uri) as new:
                assert found(new["exclusive"].names) == 10
        finally:
            store.process.send_signal(signal.SIGCONT)
        until(lambda: is_back(names))
        names.insert_one({"_id": 10, "name": "name 10"})
        until(lambda: is_cached(names))
        assert found(names) == 11
    front.stop()
    store.stop()


def is_back(names):
    """Whether the store can be reached."""
    try:
        return names.estimated_document_count() >= 10
    except AutoReconnect:
        return False


def test_where_nothing_listens_is_told_at_the_start():
    store = f"mongodb://{own_host()}:27017/"
    front = start_forebay("--memory", "--upstream", store)
    until(lambda: "no store can be reached there" in "\n".join(front.lines))
    front.stop()


def test_devices_are_listed_while_the_store_is_away(tmp_path):
    store = start_ferretdb(tmp_path)
    front = start_forebay("--memory", "--upstream", store.uri, "--upstream-serve-stale", "--devices", "host:2")
    with pymongo.MongoClient(front.uri) as client:
        client.admin.command("ping")
    command = [os.environ["FOREBAY"], "devices", "list", "--json", "--uri", front.uri]
    for _ in range(2):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert listed.stdout.count('"host:') == 2, listed.stderr
        store.stop()
    front.stop()


def test_a_forebay_that_calls_itself_a_replica_set_can_be_written_through_one_front_alone(tmp_path):
    store = start_forebay("--data", str(tmp_path), "--mongodb-replica-set", "rs")
    front = start_forebay("--memory", "--upstream", f"{store.uri}?directConnection=true", "--upstream-writes", "exclusive")
    with pymongo.MongoClient(front.uri) as client:
        names = client["exclusive"].names
        names.insert_one({"_id": 0, "name": "x"})
        cache(names)
        names.insert_one({"_id": 1, "name": "x"})
        assert is_cached(names) and names.count_documents({"name": "x"}) == 2
    front.stop()
    store.stop()


def test_drivers_leave_a_hello_with_the_store(stores):
    store = stores["forebay"]
    front = start_forebay("--memory", "--upstream", store.uri)
    with pymongo.MongoClient(store.uri) as straight, pymongo.MongoClient(front.uri) as through:
        versions = [client.admin.command("hello")["topologyVersion"] for client in (straight, through)]
        assert versions[0] == versions[1]
        asked = {"hello": 1, "topologyVersion": versions[1], "maxAwaitTimeMS": 300}
        begun = time.monotonic()
        assert through.admin.command(asked)["topologyVersion"] == versions[1]
        assert time.monotonic() - begun >= 0.3, "it is answered when something changes, or the time is over"
    front.stop()


def test_a_store_that_goes_while_it_is_read_again_leaves_what_there_was(tmp_path):
    store = start_ferretdb(tmp_path)
    arguments = ["--upstream-writes", "exclusive", "--upstream-serve-stale", "--upstream-load-documents-per-second", "3000"]
    front = start_forebay("--memory", "--upstream", store.uri, *arguments)
    with pymongo.MongoClient(front.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10_000)])
        cache(names)
        for _ in range(2):
            # The second time, a load is going on that will not come to its end.
            assert found(names) == 10_000
            store.stop()
            assert found(names) == 10_000, "what there was is kept"
            store = start_ferretdb(tmp_path, store.address)
            until(lambda: is_loading(names))
        names.insert_one({"_id": -1, "name": "name written during the load"})
        until(lambda: is_cached(names))
        assert found(names) == 10_001
    front.stop()
    store.stop()


def is_loading(names):
    """Whether a load has begun and is not over."""
    try:
        return loaded(names) > 0
    except AutoReconnect:
        return False


def test_a_store_that_asks_for_passwords_now_shows_strangers_nothing_when_it_is_away(tmp_path):
    arguments = ["--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB"]
    store = start_forebay(*arguments, address=f"{own_host()}:0")
    with pymongo.MongoClient(store.uri) as straight:
        straight.admin.command("createUser", "root", pwd="secret", roles=["root"])
    upstream = f"mongodb://root:secret@{store.address}/"
    front = start_forebay("--memory", "--upstream", upstream, "--upstream-serve-stale")
    with pymongo.MongoClient(front.uri) as stranger:
        names = stranger["open"].names
        names.insert_one({"name": "name"})
        cache(names)
        assert found(names) == 1
    store.stop()
    store = start_forebay(*arguments, "--auth", address=store.address)
    with pymongo.MongoClient(front.uri, username="root", password="secret") as somebody:
        names = somebody["open"].names
        until(lambda: found(names) == 1 and is_cached(names))
        store.stop()
        assert found(names) == 1, "it goes on for those who may read"
        with pymongo.MongoClient(front.uri) as stranger:
            assert found(stranger["open"].names) is None
    front.stop()


def test_a_right_that_is_taken_back_is_gone_with_the_first_refusal(tmp_path):
    store = start_forebay("--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB", "--auth")
    with pymongo.MongoClient(store.uri) as first:
        first.admin.command("createUser", "root", pwd="secret", roles=["root"])
    upstream = f"mongodb://root:secret@{store.address}/"
    front = start_forebay("--memory", "--upstream", upstream)
    with pymongo.MongoClient(upstream) as root:
        root.admin.command("createUser", "ada", pwd="secret", roles=[{"role": "readWrite", "db": "shop"}])
        with pymongo.MongoClient(front.uri, username="ada", password="secret", maxPoolSize=1) as ada:
            names = ada["shop"].names
            names.insert_one({"name": "name"})
            cache(names)
            assert found(names) == 1
            root.admin.command("updateUser", "ada", roles=[{"role": "read", "db": "other"}])
            with pytest.raises(OperationFailure, match="not authorized"):
                names.find_one({"other": 1})
            with pytest.raises(OperationFailure, match="not authorized"):
                found(names)
    front.stop()
    store.stop()


def has_concern(command):
    return "find" in command and "afterClusterTime" in command.get("readConcern", {})


def test_a_load_reads_what_a_majority_has_and_not_less_than_the_stream(tmp_path):
    store = start_forebay("--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB")
    # One that does not know the read concern: ReadConcernMajorityNotEnabled.
    for knows, refused in [(True, ""), (False, has_concern)]:
        between = RefusingStore(store.address, refused, 148)
        front = start_forebay("--memory", "--upstream", between.uri)
        with pymongo.MongoClient(front.uri) as client:
            names = client["read"].names
            names.insert_one({"name": "name"})
            written = client.admin.command("ping")["operationTime"]
            cache(names)
            assert found(names) == 1 + (not knows)
        loads = [command for command in between.commands if command.get("batchSize") == 1000]
        concerns = [load.get("readConcern") for load in loads]
        assert concerns[0]["level"] == "majority"
        assert concerns[0]["afterClusterTime"] >= written
        assert concerns[1:] == ([] if knows else [None])
        front.stop()
    store.stop()


# Two starts of a store that are less than a tenth of a second apart are taken for one.
STARTS_APART_MS = 200


def uptime_ms(store):
    with pymongo.MongoClient(store.uri) as straight:
        return straight.admin.command("serverStatus")["uptimeMillis"]


def start_again(store, folder):
    """The store again, without a document that it had acknowledged."""
    until(lambda: uptime_ms(store) > STARTS_APART_MS)
    store.stop()
    elsewhere = start_ferretdb(folder)
    with pymongo.MongoClient(elsewhere.uri) as straight:
        straight["exclusive"].names.delete_one({"_id": 3})
    elsewhere.stop()
    return start_ferretdb(folder, store.address)
