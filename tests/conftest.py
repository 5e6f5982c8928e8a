"""Settings of all tests: English sentences, random examples that are the same on every machine, and the order.

Several processes run the tests (``make test``, ``pytest -n 3``). Each takes the longest unit that is left: a file,
whose tests share what they make, or one of the long tests below.
"""

import fcntl
import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from multiprocessing.util import Finalize

import pytest
from hypothesis import settings

from d2lps.messages import speak

settings.register_profile("d2lps", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)  # pytest --hypothesis-profile=explore
settings.load_profile("d2lps")

os.environ["D2LPS_PROGRESS"] = "0"  # the progress of a cell depends on how long it takes
sys.modules["rfc3987_syntax"] = None  # nbformat imports it for nothing, and it takes 3 s to make a grammar

# A test is slow if it uses one of these fixtures, which start processes or wait for deadlines; if it is marked slow,
# which means about a second unless the mark gives another number; or if it is one of the longest, which are listed
# here with their seconds (pytest --durations=50 shows them).
LOOKS = {"executed", "seen", "site"}  # the outputs of a chapter's run: these tests come late, and need not wait for it
FIXTURES = {"nothing_left", *LOOKS}
SECONDS = {
    "test_a_reader_runs_the_chapter_and_plays_the_run_just_made": 60,
    "test_it_runs_from_top_to_bottom_and_shows_something": 50,
    "test_ten_thousand_strangers_do_not_disturb_those_who_belong_here": 25,
    "test_nothing_that_a_peer_sends_is_executed": 15,
    "test_ten_thousand_frames_of_nonsense_are_all_broken_or_harmless": 15,
    "test_processes_under_torchrun_are_one_device_in_turn_bit_for_bit": 10,
    "test_two_processes_are_one_device_within_rounding": 10,
    "test_workers_under_torchrun_find_their_servers": 10,
    "test_the_same_program_runs_under_torchrun": 10,
    "test_workers_that_disagree_or_do_not_come_are_named": 12,
    "test_a_store_that_is_never_closed_leaves_nothing": 12,
    "test_a_server_that_is_busy_ends_in_order": 15,
    "test_a_worker_that_is_killed_leaves_nothing": 8,
    "test_sums_are_those_of_our_servers_and_a_server_that_is_killed_is_named": 12,
    "test_a_script_of_mxnet_runs_if_another_store_is_made_and_optimizers_have_names": 8,
    "test_optimizers_take_the_same_steps_and_a_worker_that_is_killed_is_named": 10,
    "test_the_book_passes_every_check": 8,
    "test_public_names_keep_their_kinds_after_all_imports": 8,
    "test_a_server_that_is_lost_is_named_by_every_worker": 6,
    "test_a_worker_that_is_killed": 6,
    "test_all_workers_fail_if_one_cannot_reach_the_servers": 6,
    "test_workers_speak_it_between_hosts": 6,
    "test_dist_async_counts_every_push_once_and_an_error_of_the_program_ends_its_store": 6,
    "test_a_right_answer_unlike_the_solution_passes": 1,
    "test_every_push_counts_once_whatever_interrupts_it": 5,
    "test_a_connection_that_ends_is_made_again": 5,
    "test_a_test_fails_without_a_guard": 3,
    "test_strangers_are_sent_away_and_the_others_are_served": 5,
    "test_the_same_bits_from_every_algorithm": 4,
    "test_a_forged_frame_changes_nothing": 3,
    "test_a_lazy_plan_is_the_plan_that_is_written_out": 3,
    "test_a_synchronous_store_is_one_device_in_turn_bit_for_bit": 3,
    "test_any_json_that_is_not_a_plan_is_refused_with_a_plan_error": 3,
    "test_what_is_asked_too_early_stays_in_the_socket": 3,
}
USUAL, QUICK = 1.0, 0.05  # seconds of another slow one, and of one that is not
SITE = 30.0  # tests of the site begin after the longer ones, whose runs of chapters it shows


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
        # Threads of torch, also in the kernels of notebooks, would wait for each other where others compute.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish(session):
    if hasattr(session.config, "workerinput"):
        gc.freeze()  # what exists now stays until the end, so the garbage collector need not look at it


def group(nodeid: str) -> str:
    """Return the name of the unit to which a test belongs: its file, or itself if it is long."""
    file, _, name = nodeid.partition("::")
    return nodeid if name.partition("[")[0] in SECONDS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        _split_scope = staticmethod(group)

        def remove_node(self, node):
            """Let a test whose process has died fail: pytest-xdist would kill the next process with it."""
            for unit in self.assigned_work[node].values():
                for nodeid, done in unit.items():
                    if not done:
                        unit[nodeid] = True
                        super().remove_node(node)
                        return nodeid
            return super().remove_node(node)

    config.option.loadscopereorder = False  # the order is that of the tests
    return Grouped(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    seconds, alone, late = Counter(), set(), set()
    for item in items:
        takes = SECONDS.get(getattr(item, "originalname", None), USUAL)
        if takes > USUAL or FIXTURES.intersection(item.fixturenames):
            looks = takes == USUAL and LOOKS.intersection(item.fixturenames)
            item.add_marker(pytest.mark.slow(QUICK if looks else takes))
        slow = item.get_closest_marker("slow")
        seconds[group(item.nodeid)] += QUICK if not slow else slow.args[0] if slow.args else takes
        if item.get_closest_marker("alone"):
            alone.add(group(item.nodeid))
        if "site" in item.fixturenames:
            late.add(group(item.nodeid))
    for unit in late:
        seconds[unit] = min(seconds[unit], SITE)
    if hasattr(config, "workerinput"):  # a single process takes the files in their order
        items.sort(key=lambda item: ((unit := group(item.nodeid)) in alone, -seconds[unit], unit))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Run a test that is marked ``alone`` while no other process runs one."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
