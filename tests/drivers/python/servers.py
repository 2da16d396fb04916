"""The servers that tests talk to: Forebay and FerretDB, each a process on a free port of loopback."""

import os
import re
import subprocess
import threading

READY_SECONDS_MAX = 60


class Server:
    """A server process that says where it listens; killed at the end."""

    def __init__(self, command, ready):
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
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


def start_forebay(*arguments):
    """Starts Forebay on a free port; the environment names the binary."""
    command = [os.environ["FOREBAY"], "serve", "--listen", "127.0.0.1:0", *arguments]
    return Server(command, r"mongodb://([0-9.]+:[0-9]+)")


def start_ferretdb(folder, address="127.0.0.1:0"):
    """Starts FerretDB on SQLite in `folder`, on a free port if none is given."""
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
