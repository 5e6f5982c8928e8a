"""Settings of all tests: English sentences, and random examples that are the same on every machine."""

import fcntl
import gc
import os
import shutil
import sys
import tempfile
from multiprocessing.util import Finalize

import pytest
from helpers.order import Durations, Progress
from hypothesis import settings

from d2lps.messages import speak

settings.register_profile("d2lps", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)  # pytest --hypothesis-profile=explore
settings.load_profile("d2lps")

# Threads of torch, also in ranks and kernels, would wait for each other while others compute; and a sum has the same
# bits in two processes only if both divide it among as many threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["D2LPS_PROGRESS"] = "0"  # the progress of a cell depends on how long it takes
sys.modules["rfc3987_syntax"] = None  # nbformat imports it for nothing, and it takes 3 s to make a grammar

SEED = os.environ.get("D2LPS_ORDER", "")
DURATIONS = Durations.read()


@pytest.fixture(autouse=True)
def english():
    speak("en")
    yield
    speak("en")


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # one of several processes: a test that looks for leftovers finds its own only
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="d2-")
        # It is removed after what multiprocessing keeps in it and removes by itself at priority -100.
        Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)
    elif config.getoption("dist", "no") != "no":
        record = bool(os.environ.get("D2LPS_RECORD"))
        if record and SEED:  # which test runs a chapter first would be recorded as drawn
            raise pytest.UsageError("Durations are recorded in their own order: run make durations without ORDER.")
        config.pluginmanager.register(Progress(DURATIONS, record))


def pytest_collection_finish(session):
    if hasattr(session.config, "workerinput"):
        gc.freeze()  # what exists now stays until the end, so the garbage collector need not look at it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return DURATIONS.scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        scopes = {each[-1].scope for each in item._fixtureinfo.name2fixturedefs.values()}
        item.user_properties.append(("shares", bool(scopes & {"module", "class"})))
        if "site" in item.fixturenames and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3000))  # the first to ask waits for the runs of all chapters
    DURATIONS.arrange(items, SEED, longest_first=hasattr(config, "workerinput"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Run a test that is marked ``alone`` while no other process runs one."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
