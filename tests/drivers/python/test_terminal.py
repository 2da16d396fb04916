"""The first lines of output at a terminal."""

import os
import pty
import subprocess
import threading


def test_the_first_lines_at_a_terminal_are_the_servers_own():
    primary, secondary = pty.openpty()
    command = [os.environ["FOREBAY"], "serve", "--memory", "--mongodb-listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, close_fds=True)
    os.close(secondary)
    stuck = threading.Timer(60, server.kill)
    stuck.start()
    seen = b""
    while b"Forebay listens on" not in seen:
        seen += os.read(primary, 4096)
    server.kill()
    server.wait()
    stuck.cancel()
    os.close(primary)
    lines = seen.decode().splitlines()
    assert all("tracing-subscriber" not in line for line in lines), lines
    assert "\x1b" not in seen.decode(), lines
    assert any("device joined" in line for line in lines), lines
