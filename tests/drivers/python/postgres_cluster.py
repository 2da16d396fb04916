"""A temporary PostgreSQL cluster, which listens on a Unix socket in its own folder."""

import atexit
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile

import psycopg
from waiting import until

DEBIAN_FOLDER = pathlib.Path("/usr/lib/postgresql")
# The cluster does not outlive the tests, so nothing is synced to disk.
SETTINGS = ("listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off", "jit=off",
            "shared_buffers=64MB", "max_parallel_workers_per_gather=0", "autovacuum=off")  # fmt: skip


def programs():
    """Returns the folder of `initdb` and `postgres`: that in PATH, or of Debian's newest release, or None."""
    found = shutil.which("initdb")
    folders = [pathlib.Path(found).parent] if found else []
    releases = sorted(DEBIAN_FOLDER.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    both = (folder for folder in folders + releases if (folder / "postgres").exists() and (folder / "initdb").exists())
    return next(both, None)


def account():
    """Returns the account that runs the server, because PostgreSQL refuses to run as root. None if not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


class Cluster:
    """A running cluster with a superuser `ada`. `sql` is its connection string."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="pg")
        self.owner = account()
        if self.owner:
            os.chown(self.folder, self.owner.pw_uid, self.owner.pw_gid)
        data = f"{self.folder}/data"
        initdb = [programs() / "initdb", "--username=ada", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
        subprocess.run([*initdb, "-D", data], check=True, capture_output=True, **self._options())
        command = [programs() / "postgres", "-D", data, "-k", self.folder]
        for setting in SETTINGS:
            command += ["-c", setting]
        with open(f"{self.folder}/log", "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, **self._options()
            )
        # Also stops the server after a failed test.
        atexit.register(self.stop)
        self.sql = f"host={self.folder} user=ada dbname=postgres"
        until(self._answers)

    def _options(self):
        """Returns the options that start a process as the owner."""
        options = {"cwd": "/", "env": {**os.environ, "LC_ALL": "C", "HOME": self.folder}}
        if self.owner:
            options |= {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}
        return options

    def _answers(self):
        assert self.process.poll() is None, self.log()
        try:
            with psycopg.connect(self.sql):
                return True
        except psycopg.OperationalError:
            return False

    def log(self):
        """Returns the server's log."""
        return pathlib.Path(f"{self.folder}/log").read_text(encoding="utf-8", errors="replace")

    def stop(self):
        """Stops the server at once, and removes its folder."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
