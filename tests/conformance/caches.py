"""A pytest plugin that makes a proxying Forebay cache every string field that a test writes.

After each command that inserts or changes documents, the plugin declares a cache for every new string field of the
collection, and waits until the cache is loaded. So caches answer the test's next searches if they can.
"""

import os
import sys
from pathlib import Path

import pymongo
from pymongo import monitoring

sys.path.append(str(Path(__file__).parents[1] / "drivers" / "python"))
from waiting import until  # noqa: E402

WRITES = {"insert": "documents", "update": "updates", "findAndModify": None}
LOAD_SECONDS_MAX = 20


class Caches(monitoring.CommandListener):
    """Declares caches over a separate connection."""

    def __init__(self, address):
        self.address, self.client = address, None
        self.declared, self.written = set(), {}

    def started(self, event):
        if event.command_name in WRITES:
            collection = event.command[event.command_name]
            found = set(fields(event.command, WRITES[event.command_name]))
            self.written[event.request_id] = {(event.database_name, collection, field) for field in found}
        elif event.command_name in ("drop", "dropDatabase", "renameCollection", "dropIndexes"):
            self.declared.clear()

    def succeeded(self, event):
        for name in self.written.pop(event.request_id, set()) - self.declared:
            self.declared.add(name)
            self.declare(*name)

    def failed(self, event):
        self.written.pop(event.request_id, None)

    def declare(self, database, collection, field):
        """Declares a cache. Ignores collections that cannot be cached, for instance views."""
        self.client = self.client or pymongo.MongoClient(self.address, event_listeners=[])
        index = {"key": {field: "cache"}, "name": f"{field}_cache"}
        commands = self.client[database]
        reply = commands.command("createIndexes", collection, indexes=[index], check=False)
        if reply["ok"] == 1:
            until(lambda: "load" not in self.reason(commands, collection, field), LOAD_SECONDS_MAX, 0.002)

    def reason(self, commands, collection, field):
        count = {"count": collection, "query": {field: "x"}}
        return commands.command("explain", count, check=False).get("forebay", {}).get("reason", "")


def fields(command, argument):
    """Yields the names of top-level string fields that a command writes."""
    if argument == "documents":
        written = command[argument]
    else:
        statements = command[argument] if argument else [{"u": command.get("update", {})}]
        changes = [statement["u"] for statement in statements if isinstance(statement["u"], dict)]
        written = changes + [change.get(operator, {}) for change in changes for operator in ("$set", "$setOnInsert")]
    for document in map(dict, written):
        for name, value in document.items():
            if isinstance(value, str) and not name.startswith(("$", "_id")) and "." not in name and name:
                yield name


def pytest_configure(config):
    """Registers the listener for all clients created later, except those with their own listeners."""
    monitoring.register(Caches(f"mongodb://{os.environ['DB_IP']}:{os.environ['DB_PORT']}"))
