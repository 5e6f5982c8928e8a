"""The order of the tests, from the durations of an earlier run, and a line per minute and per failure.

Several processes run the tests (``make test``, ``pytest -n 3``). Each takes the longest unit that is left: a file,
whose tests share what they make, or one long test. ``make durations`` runs all tests and writes ``durations.json``.
"""

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

FILE = Path(__file__).parents[1] / "durations.json"
SLOW = 0.2  # seconds, with its part of what its file prepares, from which `make quick` leaves a test out
LONG = 10.0  # seconds from which a test is a unit of its own, unless it shares a fixture with its file
# Tests that look at the run of a chapter are slow if they come first, and quick afterwards.
LOOKS = {"executed", "seen", "site"}


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


class Durations:
    """The durations that an earlier run recorded, in seconds.

    Args:
        slow: Test → the seconds of its call, for tests that take ``SLOW`` or more.
        units: The tests among them that are units of their own.
        rest: File → the sum of its other tests and of its fixtures.
    """

    def __init__(self, slow: dict[str, float], units: list[str], rest: dict[str, float]):
        self.slow, self.units, self.rest = slow, set(units), rest

    @classmethod
    def read(cls) -> "Durations":
        """Return the recorded durations; without a record no test is slow."""
        return cls(**json.loads(FILE.read_text("utf-8"))) if FILE.exists() else cls({}, [], {})

    def unit(self, nodeid: str) -> str:
        """Return the name of the unit to which a test belongs: its file, or itself if it is long."""
        return nodeid if nodeid in self.units else file_of(nodeid)

    def of(self, nodeids: list[str]) -> dict[str, float]:
        """Return the expected seconds of each of these tests: the rest of a file is divided among its other tests."""
        others = Counter(file_of(nodeid) for nodeid in nodeids if nodeid not in self.slow)
        return {
            nodeid: self.slow.get(nodeid) or self.rest.get(file, 0.05 * others[file]) / (others[file] or 1)
            for nodeid in nodeids
            for file in [file_of(nodeid)]
        }

    def arrange(self, items: list[pytest.Item], seed: str, longest_first: bool) -> None:
        """Mark slow tests, and sort the tests by the seconds of their units or, with a seed, the units at random."""
        seconds, last, looks = Counter(), set(), set()
        expected = self.of([item.nodeid for item in items])
        for item in items:
            unit = self.unit(item.nodeid)
            seconds[unit] += expected[item.nodeid]
            if expected[item.nodeid] >= SLOW or LOOKS.intersection(item.fixturenames):
                item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("alone"):
                last.add(unit)
            if "site" in item.fixturenames:  # the site shows the runs of all chapters
                looks.add(unit)
        if seed:
            drawn = {unit: random.Random(f"{seed} {unit}").random() for unit in seconds}
            items.sort(key=lambda item: ((unit := self.unit(item.nodeid)) in last, drawn[unit]))
        elif longest_first:
            items.sort(key=lambda item: ((unit := self.unit(item.nodeid)) in last, unit in looks, -seconds[unit], unit))

    def scheduler(self, config, log) -> LoadScopeScheduling:
        """Return a scheduler that gives each process the next unit in the order of the tests."""
        durations = self

        class ByUnit(LoadScopeScheduling):
            def _split_scope(self, nodeid):
                return durations.unit(nodeid)

            def remove_node(self, node):
                """Let a test whose process has died fail: pytest-xdist would kill the next process with it."""
                for unit in self.assigned_work[node].values():
                    for nodeid, done in unit.items():
                        if not done:
                            unit[nodeid] = True
                            super().remove_node(node)
                            return nodeid
                return super().remove_node(node)

        config.option.loadscopereorder = False
        return ByUnit(config, log)


class Progress:
    """Print each failure at once, and a line per minute: how much is done, how long the rest takes, what is running.

    Args:
        record: Whether to write the durations of this run to ``durations.json`` at its end.
    """

    def __init__(self, durations: Durations, record: bool = False):
        self.durations, self.record = durations, record
        self.start, self.expected, self.done, self.running = time.monotonic(), {}, set(), {}
        self.calls, self.others, self.shared = {}, Counter(), set()
        self.ended = threading.Event()

    def pytest_sessionstart(self, session):
        self.terminal = session.config.pluginmanager.getplugin("terminalreporter")
        threading.Thread(target=self._tell, daemon=True).start()

    def pytest_xdist_node_collection_finished(self, ids):
        self.expected = self.expected or self.durations.of(ids)

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)
        self.done.add(nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:  # its report comes at the end of the run, its name now
            self.terminal.write_line(f"\nfailed: {report.nodeid}")
        if report.when == "call":
            self.calls[report.nodeid] = report.duration
            self.shared.update([report.nodeid] if dict(report.user_properties).get("shares") else [])
        self.others[file_of(report.nodeid), report.nodeid, report.when] += report.duration

    def pytest_sessionfinish(self, exitstatus):
        self.ended.set()
        if not self.record:
            return
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return self.terminal.write_line("\nThe durations of a run that was cut off are not recorded.")
        slow = {name: round(seconds, 1) for name, seconds in sorted(self.calls.items()) if seconds >= SLOW}
        rest = Counter()
        for (file, name, when), seconds in sorted(self.others.items()):
            rest[file] += seconds if when != "call" or name not in slow else 0.0
        data = {
            "slow": slow,
            "units": [name for name in slow if slow[name] >= LONG and name not in self.shared],
            "rest": {file: round(seconds, 1) for file, seconds in rest.items()},
        }
        FILE.write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n", "utf-8")

    def line(self, now: float) -> str:
        """Return the line of this moment."""
        total, left = sum(self.expected.values()), sum(self.expected[name] for name in {*self.expected} - self.done)
        passed = (now - self.start) / 60
        about = f"about {passed * left / (total - left):.0f} min left" if total > left else "the rest is unknown"
        tests = ", ".join(f"{name.rpartition('/')[2]} ({now - since:.0f} s)" for name, since in [*self.running.items()])
        return f"{passed:.0f} min: {len(self.done)} of {len(self.expected)} tests done, {about}; running: {tests}"

    def _tell(self):
        while not self.ended.wait(60):
            self.terminal.write_line("\n" + self.line(time.monotonic()))
