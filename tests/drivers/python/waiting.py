"""Waiting in tests: for a condition, with a timeout. The `tidy` test refuses every other way to wait."""

import time


def until(is_true, seconds=30, check_seconds=0.02):
    """Waits until something is true, and checks that often; fails if it takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(check_seconds)


def pace(seconds):
    """Lets time pass at the pace of a slow peer that a test plays. Not for waiting until something has happened."""
    time.sleep(seconds)
