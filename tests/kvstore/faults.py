"""The table of faults: what is done to a store, what must hold, and that it held.

    python tests/kvstore/faults.py [--cases] [what pytest takes]

Runs the tests that are marked ``fault(row, what)`` and prints a line for each row: the faults as injected, what must
hold, the cases passed, the time from the fault until the typed error or until all was well again (median and largest
of the cases that measure it), and how many processes, files, threads and sockets the cases left behind. ``--cases``:
a line for each fault, too. It fails if a test fails, or a row that is to be covered has none.
"""

import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from d2lps.messages import allow_any_letter

HOLDS = {
    "F1": "the round fails or closes over the others, as asked; half a push counts for nothing",
    "F2": "with replicas=1 the same bits, every push counted once; without, ServerLost",
    "F3": "DataLost names the slots and the keys; nothing is invented",
    "F4": "others wait at most the deadline; who comes back late is sent away",
    "F5": "one side goes on, the other counts nothing; after the cut it is the backup",
    "F6": "every push counts exactly once",
    "F7": "the frame is refused and its connection made again; the sums are right",
    "F8": "the newest whole checkpoint is found; the one before stays until then",
    "F9": "refused, and the one before is taken; nothing is ever loaded silently",
    "F10": "an error to that worker alone; the server and its values stay as they are",
    "F11": "refused before any tensor is made; memory bounded; legal workers unaffected",
    "F12": "nothing of it is ever executed",
    "F13": "refused by name; an optimizer must be given as a name and numbers",
    "F14": "a newcomer learns all while the others train, and is the backup",
    "F15": "deadlines on the monotonic clock; typed errors; the store can be used again, or says what to do",
    "M": "3 times the bytes stored, one push per worker and key, 64 MiB: never more",
    "O": "each mutant makes a check fail",
}


class Case(NamedTuple):
    """One test that ran: the fault's name, whether it held, the seconds it measured, what it left behind."""

    fault: str
    passed: bool
    seconds: list[float]
    left: int


class Table:
    """The plugin of pytest that collects the cases of each row."""

    def __init__(self):
        self.rows: dict[str, list[Case]] = defaultdict(list)
        self._marks, self._found = {}, {}

    def pytest_collection_modifyitems(self, config, items) -> None:
        for item in items:
            self._marks[item.nodeid] = [mark.args for mark in item.iter_markers("fault")]
        unmarked = [item for item in items if not self._marks[item.nodeid]]
        config.hook.pytest_deselected(items=unmarked)
        items[:] = [item for item in items if self._marks[item.nodeid]]

    def pytest_runtest_logreport(self, report) -> None:
        passed = self._found.get(report.nodeid, True) and report.outcome == "passed"
        self._found[report.nodeid] = passed
        if report.when != "teardown":
            return
        seconds = [value for name, value in report.user_properties if name == "seconds"]
        left = sum(value for name, value in report.user_properties if name == "left")
        for row, fault in self._marks[report.nodeid]:
            self.rows[row].append(Case(fault, passed, seconds, left))

    def lines(self, cases: bool = False) -> list[str]:
        """The table."""
        found = []
        for row, holds in HOLDS.items():
            mine = self.rows.get(row, [])
            faults = list(dict.fromkeys(case.fault for case in mine))
            found.append(f"{row:4}{'; '.join(faults)} | {holds} | {summary(mine)}")
            if cases:
                found += [
                    f"      {fault} | {summary([case for case in mine if case.fault == fault])}" for fault in faults
                ]
        return found


def summary(cases: list[Case]) -> str:
    passed, seconds = sum(case.passed for case in cases), [each for case in cases for each in case.seconds]
    took = f"{statistics.median(seconds):.3f} s, at most {max(seconds):.3f} s" if seconds else "no time to measure"
    return f"{passed} of {len(cases)} passed | {took} | {sum(case.left for case in cases)} left behind"


def main(arguments: list[str]) -> int:
    """The exit status."""
    allow_any_letter()
    table, cases = Table(), "--cases" in arguments
    here = Path(__file__).parent
    files = sorted(
        str(path) for path in [*here.glob("test_kvstore*.py"), *here.parent.glob("train/test_checkpoints.py")]
    )
    given = [argument for argument in arguments if argument != "--cases"]
    os.chdir(here.parents[1])
    os.environ.setdefault("D2LPS_EXAMPLES", "400")  # ten times as many as in the suite
    status = pytest.main([*files, "-p", "no:cacheprovider", *given], plugins=[table])
    print("\nrow fault as injected | what must hold | cases | until the error or recovery, median | left behind")
    print("\n".join(table.lines(cases)))
    missing = [row for row in HOLDS if not table.rows.get(row)]
    if missing:
        print(f"no case ran for {', '.join(missing)}")
    failed = any(not case.passed for found in table.rows.values() for case in found)
    return int(status) or int(failed or bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
