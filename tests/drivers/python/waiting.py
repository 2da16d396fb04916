"""Waiting in tests: for a condition, with a timeout. The `tidy` test refuses every other way to wait."""

import time


def until(is_true, seconds=30, check_seconds=0.02):
    """Waits until `is_true` returns true, and checks it repeatedly. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(check_seconds)


def pace(seconds):
    """Pauses, to set the pace of a simulated slow peer. Not for waiting until something has happened."""
    time.sleep(seconds)
