"""Forebay in front of an upstream that goes away, hangs, comes back, or takes rights away from clients."""

import os
import signal
import socket
import subprocess
import threading
import time

import bson
import pymongo
import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from servers import RefusingStore, open_connections, own_host, start_ferretdb, start_forebay
from test_upstream import cache, exclusive, found, is_cached, loaded, upstreams  # noqa: F401 (fixtures)
from waiting import until


def test_an_upstream_that_was_restarted_is_loaded_again(exclusive, tmp_path):
    upstream, _, names = exclusive
    assert found(names) == 10
    again = start_again(upstream, tmp_path)
    try:
        until(lambda: found(names) == 9)
        until(lambda: is_cached(names))
        assert found(names) == 9
    finally:
        again.stop()


def test_an_upstream_that_was_restarted_while_no_client_was_connected_is_loaded_again(exclusive, tmp_path):
    upstream, proxy, names = exclusive
    assert found(names) == 10
    names.database.client.close()
    until(lambda: open_connections(proxy.address) == 0)
    again = start_again(upstream, tmp_path)
    try:
        with pymongo.MongoClient(proxy.uri) as client:
            names = client["exclusive"].names
            assert found(names) == 9
            until(lambda: is_cached(names))
            assert found(names) == 9
    finally:
        again.stop()


def test_an_upstream_that_does_not_report_its_start_is_loaded_once(tmp_path):
    upstream = start_ferretdb(tmp_path)
    refusing = RefusingStore(upstream.address, "serverStatus")
    proxy = start_forebay("--memory", "--upstream", refusing.uri, "--upstream-writes", "exclusive")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        for _ in range(3):
            asked = refusing.asked["serverStatus"]
            refusing.close_connections()
            until(lambda: refusing.asked["serverStatus"] > asked)
            until(lambda: found(names) == 10)
    log = "\n".join(proxy.lines)
    assert log.count("the upstream does not report its start time") == 1
    assert log.count("the documents of a collection have been loaded") == 1
    proxy.stop()
    upstream.stop()


def test_an_upstream_that_is_about_to_stop_is_away_for_new_clients(tmp_path):
    upstream = start_ferretdb(tmp_path)
    draining = RefusingStore(upstream.address)
    proxy = start_forebay("--memory", "--upstream", draining.uri, "--upstream-writes", "exclusive", "--upstream-serve-stale")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        assert found(names) == 10
        draining.drain()
        for _ in range(5):
            with pymongo.MongoClient(proxy.uri) as other:
                assert found(other["exclusive"].names) == 10
    proxy.stop()
    upstream.stop()


def test_a_hello_is_answered_although_the_upstream_goes_away_meanwhile(tmp_path):
    upstream = start_ferretdb(tmp_path)

    def goes_away(command):
        if "hello" in command and is_last.is_set():
            between.drain()
            between.close_connections()
        return False

    is_last = threading.Event()
    between = RefusingStore(upstream.address, goes_away)
    proxy = start_forebay("--memory", "--upstream", between.uri, "--upstream-serve-stale")
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        assert hello(client)["ok"] == 1
        is_last.set()
        # A driver that loses a connection during a hello drops its other connections, and the permissions with them.
        assert hello(client)["ok"] == 1
    proxy.stop()
    upstream.stop()


def hello(client):
    """Sends a hello on a socket and returns the reply."""
    header = RefusingStore.HEADER
    body = bytes(5) + bson.encode({"hello": 1, "$db": "admin"})
    client.sendall(header.pack(header.size + len(body), 1, 0, RefusingStore.OP_MSG) + body)
    with client.makefile("rb") as replies:
        length, *_ = header.unpack(replies.read(header.size))
        return bson.decode(replies.read(length - header.size)[5:])


def test_an_upstream_that_hangs_is_away_for_old_clients_and_new_ones(tmp_path):
    upstream = start_ferretdb(tmp_path)
    proxy = start_forebay("--memory", "--upstream", upstream.uri, "--upstream-writes", "exclusive", "--upstream-serve-stale")
    # The driver gives up on a command after these times. The proxy notices within six seconds that the upstream is
    # silent.
    uri = f"{proxy.uri}?socketTimeoutMS=15000&serverSelectionTimeoutMS=12000&retryReads=false"
    with pymongo.MongoClient(uri, maxPoolSize=1) as client, pymongo.MongoClient(uri) as open_before:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10)])
        cache(names)
        others = open_before["exclusive"].names
        assert found(others) == 10
        upstream.process.send_signal(signal.SIGSTOP)
        try:
            assert found(names) == 10, "its connection stays open, without a reply"
            assert found(others) == 10
            with pymongo.MongoClient(uri) as new:
                assert found(new["exclusive"].names) == 10
        finally:
            upstream.process.send_signal(signal.SIGCONT)
        until(lambda: is_back(names))
        names.insert_one({"_id": 10, "name": "name 10"})
        until(lambda: is_cached(names))
        assert found(names) == 11
    proxy.stop()
    upstream.stop()


def is_back(names):
    """Returns whether the upstream can be reached."""
    try:
        return names.estimated_document_count() >= 10
    except AutoReconnect:
        return False


def test_an_upstream_that_cannot_be_reached_is_reported_at_the_start():
    upstream = f"mongodb://{own_host()}:27017/"
    proxy = start_forebay("--memory", "--upstream", upstream)
    until(lambda: "the upstream cannot be reached" in "\n".join(proxy.lines))
    proxy.stop()


def test_devices_are_listed_while_the_upstream_is_away(tmp_path):
    upstream = start_ferretdb(tmp_path)
    proxy = start_forebay("--memory", "--upstream", upstream.uri, "--upstream-serve-stale", "--devices", "host:2")
    with pymongo.MongoClient(proxy.uri) as client:
        client.admin.command("ping")
    command = [os.environ["FOREBAY"], "devices", "list", "--json", "--uri", proxy.uri]
    for _ in range(2):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert listed.stdout.count('"host:') == 2, listed.stderr
        upstream.stop()
    proxy.stop()


def test_a_forebay_with_a_replica_set_may_have_exclusive_writes(tmp_path):
    upstream = start_forebay("--data", str(tmp_path), "--mongodb-replica-set", "rs")
    proxy = start_forebay("--memory", "--upstream", f"{upstream.uri}?directConnection=true", "--upstream-writes", "exclusive")
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["exclusive"].names
        names.insert_one({"_id": 0, "name": "x"})
        cache(names)
        names.insert_one({"_id": 1, "name": "x"})
        assert is_cached(names) and names.count_documents({"name": "x"}) == 2
    proxy.stop()
    upstream.stop()


def test_drivers_leave_a_hello_with_the_upstream(upstreams):
    upstream = upstreams["forebay"]
    proxy = start_forebay("--memory", "--upstream", upstream.uri)
    with pymongo.MongoClient(upstream.uri) as direct, pymongo.MongoClient(proxy.uri) as proxied:
        versions = [client.admin.command("hello")["topologyVersion"] for client in (direct, proxied)]
        assert versions[0] == versions[1]
        asked = {"hello": 1, "topologyVersion": versions[1], "maxAwaitTimeMS": 300}
        begun = time.monotonic()
        assert proxied.admin.command(asked)["topologyVersion"] == versions[1]
        assert time.monotonic() - begun >= 0.3, "it is answered when something changes, or at the time limit"
    proxy.stop()


def test_a_whole_copy_is_kept_when_the_upstream_goes_during_a_load(tmp_path):
    upstream = start_ferretdb(tmp_path)
    arguments = ["--upstream-writes", "exclusive", "--upstream-serve-stale", "--upstream-load-documents-per-second", "3000"]
    proxy = start_forebay("--memory", "--upstream", upstream.uri, *arguments)
    with pymongo.MongoClient(proxy.uri) as client:
        names = client["exclusive"].names
        names.insert_many([{"_id": number, "name": f"name {number}"} for number in range(10_000)])
        cache(names)
        for _ in range(2):
            # In the second round, the upstream stops during a load.
            assert found(names) == 10_000
            upstream.stop()
            assert found(names) == 10_000, "the whole copy is kept"
            upstream = start_ferretdb(tmp_path, upstream.address)
            until(lambda: is_loading(names))
        names.insert_one({"_id": -1, "name": "name written during the load"})
        until(lambda: is_cached(names))
        assert found(names) == 10_001
    proxy.stop()
    upstream.stop()


def is_loading(names):
    """Returns whether a load is in progress."""
    try:
        return loaded(names) > 0
    except AutoReconnect:
        return False


def test_unauthenticated_clients_lose_stale_answers_when_the_upstream_requires_passwords(tmp_path):
    arguments = ["--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB"]
    upstream = start_forebay(*arguments, address=f"{own_host()}:0")
    with pymongo.MongoClient(upstream.uri) as direct:
        direct.admin.command("createUser", "root", pwd="secret", roles=["root"])
    uri = f"mongodb://root:secret@{upstream.address}/"
    proxy = start_forebay("--memory", "--upstream", uri, "--upstream-serve-stale")
    with pymongo.MongoClient(proxy.uri) as stranger:
        names = stranger["open"].names
        names.insert_one({"name": "name"})
        cache(names)
        assert found(names) == 1
    upstream.stop()
    upstream = start_forebay(*arguments, "--auth", address=upstream.address)
    with pymongo.MongoClient(proxy.uri, username="root", password="secret") as root:
        names = root["open"].names
        until(lambda: found(names) == 1 and is_cached(names))
        upstream.stop()
        assert found(names) == 1, "clients that may read are still answered"
        with pymongo.MongoClient(proxy.uri) as stranger:
            assert found(stranger["open"].names) is None
    proxy.stop()


def test_a_revoked_right_ends_with_the_first_refusal(tmp_path):
    upstream = start_forebay("--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB", "--auth")
    with pymongo.MongoClient(upstream.uri) as first:
        first.admin.command("createUser", "root", pwd="secret", roles=["root"])
    uri = f"mongodb://root:secret@{upstream.address}/"
    proxy = start_forebay("--memory", "--upstream", uri)
    with pymongo.MongoClient(uri) as root:
        root.admin.command("createUser", "ada", pwd="secret", roles=[{"role": "readWrite", "db": "shop"}])
        with pymongo.MongoClient(proxy.uri, username="ada", password="secret", maxPoolSize=1) as ada:
            names = ada["shop"].names
            names.insert_one({"name": "name"})
            cache(names)
            assert found(names) == 1
            root.admin.command("updateUser", "ada", roles=[{"role": "read", "db": "other"}])
            with pytest.raises(OperationFailure, match="not authorized"):
                names.find_one({"other": 1})
            with pytest.raises(OperationFailure, match="not authorized"):
                found(names)
    proxy.stop()
    upstream.stop()


def has_concern(command):
    return "find" in command and "afterClusterTime" in command.get("readConcern", {})


def test_a_load_reads_with_a_majority_after_the_stream_was_opened(tmp_path):
    upstream = start_forebay("--data", str(tmp_path), "--documents-change-history-bytes-max", "64MiB")
    # In the second round, the upstream refuses the read concern: ReadConcernMajorityNotEnabled.
    for knows, refused in [(True, ""), (False, has_concern)]:
        between = RefusingStore(upstream.address, refused, 148)
        proxy = start_forebay("--memory", "--upstream", between.uri)
        with pymongo.MongoClient(proxy.uri) as client:
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
        proxy.stop()
    upstream.stop()


# Minimum uptime before a restart; the proxy takes two starts less than 100 ms apart for one.
STARTS_APART_MS = 200


def uptime_ms(upstream):
    with pymongo.MongoClient(upstream.uri) as direct:
        return direct.admin.command("serverStatus")["uptimeMillis"]


def start_again(upstream, folder):
    """Starts the upstream again, without a document whose insert it had acknowledged."""
    until(lambda: uptime_ms(upstream) > STARTS_APART_MS)
    upstream.stop()
    elsewhere = start_ferretdb(folder)
    with pymongo.MongoClient(elsewhere.uri) as direct:
        direct["exclusive"].names.delete_one({"_id": 3})
    elsewhere.stop()
    return start_ferretdb(folder, upstream.address)
