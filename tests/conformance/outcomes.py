"""A pytest plugin that writes the outcome of each test as a JSON line, so that a crash of the process loses none."""

import json
import os

SEVERITY = ["passed", "skipped", "failed", "error", "timeout"]


class Outcomes:
    """Outcome of the current test, and the file of all outcomes."""

    def __init__(self, path):
        self.lines = open(path, "w")
        self.outcome = self.reason = None

    def pytest_collection_finish(self, session):
        self._write({"collected": [item.nodeid for item in session.items]})

    def pytest_runtest_logstart(self, nodeid):
        self.outcome, self.reason = "passed", ""
        self._write({"started": nodeid})

    def pytest_runtest_logreport(self, report):
        outcome, reason = outcome_of(report)
        if SEVERITY.index(outcome) > SEVERITY.index(self.outcome):
            self.outcome, self.reason = outcome, reason

    def pytest_runtest_logfinish(self, nodeid):
        self._write({"test": nodeid, "outcome": self.outcome, "reason": self.reason})

    def _write(self, entry):
        print(json.dumps(entry), file=self.lines, flush=True)


def outcome_of(report):
    """Returns the outcome of a phase of a test, and the reason if it did not pass."""
    if report.passed:
        return "passed", ""
    reason = reason_of(report)
    if report.skipped:
        return "skipped", reason
    if "from pytest-timeout" in reason:
        return "timeout", reason
    return ("failed" if report.when == "call" else "error"), reason


def reason_of(report):
    """Returns the message of the exception as one line."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr)).split())


def pytest_configure(config):
    config.pluginmanager.register(Outcomes(os.environ["OUTCOMES"]))
