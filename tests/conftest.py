"""What every test begins with: English sentences, and random examples that are the same on every machine.

Several processes take the tests (``make test``), each of them the next one that is left, the longest first. Tests that
are not slow stay together with those of their file, which share what they make; ``slow(seconds)`` ones go one by one.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections import Counter

import pytest
from hypothesis import settings

from d2lps.messages import speak

settings.register_profile("d2lps", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)  # pytest --hypothesis-profile=explore
settings.load_profile("d2lps")

sys.modules["rfc3987_syntax"] = None  # nbformat imports it for nothing, and it takes 3 s to make a grammar

# Whoever uses one of these starts processes, or waits for deadlines.
SLOW = {"nothing_left", "executed"}
USUAL = 3.0  # seconds of a slow test that does not say how many
QUICK = 0.05  # of one that is not


@pytest.fixture(autouse=True)
def english():
    speak("en")
    yield
    speak("en")


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # one of several processes: who looks for files left behind finds its own only
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="d2-")


def pytest_unconfigure(config):
    if hasattr(config, "workerinput"):
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    groups, seconds = {}, Counter()
    for item in items:
        if SLOW.intersection(item.fixturenames) and not item.get_closest_marker("slow"):
            item.add_marker("slow")
        slow, group = item.get_closest_marker("slow"), item.get_closest_marker("xdist_group")
        if group is None and not slow:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        groups[item] = group.args[0] if group else item.nodeid if slow else item.path.stem
        seconds[groups[item]] += (slow.args or (USUAL,))[0] if slow else QUICK
    if hasattr(config, "workerinput"):  # of several processes; alone, files come in their order
        alone = {groups[item] for item in items if item.get_closest_marker("alone")}
        items.sort(key=lambda item: (groups[item] in alone, -seconds[groups[item]], groups[item]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """A test that is marked ``alone`` runs while no other process runs one."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    """Without the @group that pytest-xdist appends: so what is printed can be given to pytest again."""
    if "@" in report.nodeid and not report.nodeid.endswith("]"):
        report.nodeid = report.nodeid.rpartition("@")[0]
