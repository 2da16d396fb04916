"""Servers for tests: Forebay and FerretDB, each a process on a free loopback port."""

import atexit
import collections
import contextlib
import itertools
import os
import re
import socket
import struct
import subprocess
import threading

import bson

from waiting import pace

READY_SECONDS_MAX = 60


class Server:
    """A server process that prints its address; killed when the tests end."""

    def __init__(self, command, ready, folder=None):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, text=True, cwd=folder, **pipes)
        # Also kills the server after a failed test.
        atexit.register(self.process.kill)
        self.lines = []
        self.address = None
        self.listening = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        self.listening.wait(READY_SECONDS_MAX)
        if self.address is None:
            self.process.kill()
            raise RuntimeError(f"{command} did not listen:\n" + "\n".join(self.lines))
        self.uri = f"mongodb://{self.address}/"

    def _read(self, ready):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = re.search(ready, line)
            if found and self.address is None:
                self.address = found[1]
                self.listening.set()
        self.listening.set()

    def stop(self):
        self.process.kill()
        self.process.wait()


def start_forebay(*arguments, address="127.0.0.1:0", folder=None):
    """Starts Forebay, on a free port if no address is given, in a folder. An environment variable names the binary."""
    command = [os.environ["FOREBAY"], "serve", "--mongodb-listen", address, *arguments]
    return Server(command, r"mongodb://([0-9.]+:[0-9]+)", folder)


def start_tables(*arguments, folder=None):
    """Starts Forebay with the tables door. Its `sql` is the connection string, `port` the port, and `flight` the address
    of Flight SQL."""
    listen = ["--postgres-listen", "127.0.0.1:0", "--flight-listen", "127.0.0.1:0"]
    server = start_forebay(*listen, *arguments, folder=folder)
    line = next(line for line in server.lines if "postgresql://" in line)
    server.port = int(line.split(":")[-1].split("/")[0])
    server.sql = f"postgresql://ada@127.0.0.1:{server.port}/forebay"
    server.flight = next(line for line in server.lines if "Flight SQL is at" in line).split()[-1]
    return server


PASSWORD = "correct horse"


def create_data(folder):
    """Creates a data directory, to which users can be added while no server runs."""
    subprocess.run(
        [os.environ["FOREBAY"], "serve", "--data", folder, "--mongodb-listen", "127.0.0.1:0", "--until-stdin-ends"],
        stdin=subprocess.DEVNULL, check=True, capture_output=True,
    )


def add_user(folder, name, *arguments):
    """Adds a user with PASSWORD to a data directory."""
    command = [os.environ["FOREBAY"], "user", "add", name, "--data", folder, *arguments]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)


TCP_ESTABLISHED, TCP_CLOSE_WAIT = "01", "08"


def open_connections(address):
    """Returns the number of open connections of a local server at `address`."""
    port = int(address.split(":")[1])
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    here = [row for row in rows if int(row[1].split(":")[1], 16) == port]
    return sum(row[3] in (TCP_ESTABLISHED, TCP_CLOSE_WAIT) for row in here)


OWN_HOSTS = itertools.count(2)


def own_host():
    """Returns a loopback host that no other process uses, so that a server can listen on the same port again after
    it stopped.

    All of 127.0.0.0/8 is this machine. A port of 127.0.0.1 may meanwhile be taken by another server, or by an
    outgoing connection as its own port.
    """
    high, low = divmod(os.getpid() & 0xFFFF, 256)
    return f"127.{high}.{low}.{next(OWN_HOSTS) % 256}"


def start_ferretdb(folder, address=None):
    """Starts FerretDB on SQLite in `folder`, on a free port of its own host if no address is given."""
    address = address or f"{own_host()}:0"
    command = [
        os.environ["FERRETDB"],
        "--handler=sqlite",
        f"--sqlite-url=file:{folder}/",
        f"--state-dir={folder}",
        f"--listen-addr={address}",
        "--telemetry=disable",
        "--debug-addr=-",
    ]
    return Server(command, r"Listening on TCP ([0-9.]+:[0-9]+)")


class RefusingStore:
    """A proxy of the store at `address` that refuses some commands, as if the user lacked the privilege.

    `refused` is the name of a command, or a function that returns whether to refuse a command.
    """

    HEADER = struct.Struct("<iiii")
    OP_MSG = 2013

    def __init__(self, address, refused="", code=13):
        self.store = address.split(":")
        self.code = code
        self.refuses = refused if callable(refused) else lambda command: next(iter(command)) == refused
        self.commands = []
        self.asked = collections.Counter()
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"mongodb://127.0.0.1:{self.listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def close_connections(self):
        """Closes all connections, as a restarting store does."""
        open_now, self.connections = self.connections, []
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def drain(self):
        """Accepts no new connections but serves the open ones, as a stopping store does."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            store = socket.create_connection(self.store)
            self.connections.append(client)
            threading.Thread(target=self._pass_replies, args=(store, client), daemon=True).start()
            threading.Thread(target=self._pass_commands, args=(client, store), daemon=True).start()

    def _pass_replies(self, store, client):
        with contextlib.suppress(OSError), client:
            while data := store.recv(65_536):
                client.sendall(data)

    def _pass_commands(self, client, store):
        with contextlib.suppress(OSError), store, client.makefile("rb") as stream:
            while header := stream.read(self.HEADER.size):
                length, number, _, code = self.HEADER.unpack(header)
                body = stream.read(length - self.HEADER.size)
                if code == self.OP_MSG and self._refused(body):
                    client.sendall(self._refusal(number))
                else:
                    store.sendall(header + body)

    def _refused(self, body):
        """Returns whether to refuse a message. The flags and the section's kind precede the document."""
        (length,) = struct.unpack_from("<i", body, 5)
        command = bson.decode(body[5 : 5 + length])
        self.commands.append(command)
        self.asked[next(iter(command))] += 1
        return self.refuses(command)

    def _refusal(self, number):
        refusal = {"ok": 0.0, "code": self.code, "codeName": "Refused", "errmsg": "not authorized to run that"}
        body = bytes(5) + bson.encode(refusal)
        return self.HEADER.pack(self.HEADER.size + len(body), 0, number, self.OP_MSG) + body


def slow_store(address, seconds, is_slow):
    """A proxy of the store at `address` that delays some commands by `seconds`."""

    def delay(command):
        if is_slow(command):
            pace(seconds)
        return False

    return RefusingStore(address, delay)
