"""Waits in tests: for a condition, with a timeout. The `tidy` test refuses every other way of waiting."""

import time


def until(is_true, seconds=30, check_seconds=0.02):
    """Waits until `is_true`, called repeatedly, returns true. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(check_seconds)


def pace(seconds):
    """Pauses, to set the pace of a simulated slow peer. Must not be used to wait for an event."""
    time.sleep(seconds)
