"""A rank that dies, stops or is interrupted: all others say which, in which step, in time; nothing is left behind."""

import gc
import os
import re
import signal
import socket
import time
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import DEADLINE, Ranks, left_behind, outcome, ranks, settled, tell
from helpers.waits import LIVE

from d2lps import Processes, RankLost, Reduction, SharedMemory, ring, run
from d2lps.carriers import ranks as ranks_module
from d2lps.carriers.execute import compile
from d2lps.carriers.rendezvous import Rendezvous

CARRIERS = [Processes, SharedMemory]
each_carrier = pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.__name__)


# ---------------------------------------------------------------- ranks that are lost


def runs_for_ever(rank, kind, elements):
    """Run until a rank is lost: what is said, what the next time, and whether nothing of the others is kept."""
    before = held()
    outcomes = _runs_for_ever(rank.carrier(kind, deadline=DEADLINE), elements)
    return *outcomes, settled(held, before) == before


def runs_for_ever_without_torchrun(rank, kind, port):
    """The same where rank 0 holds the store."""
    return *_runs_for_ever(meets_at(rank, kind, port), 100), True


def _runs_for_ever(carrier, elements):
    tensor = SharedMemory.tensor(elements) if carrier.rank % 2 else torch.zeros(elements)
    program = compile(ring(carrier.names), tensor, carrier)
    program.execute()
    tell("at it")
    while not isinstance(lost := outcome(program.execute), RankLost):
        pass
    return RankLost(str(lost), lost.ranks, lost.step), str(outcome(program.execute))


def dies_before(rank, kind, phase):
    """Run while rank 1 dies before ``phase``, which is outside of the steps."""
    carrier = rank.carrier(kind, deadline=DEADLINE)
    if rank.number == 1:
        setattr(carrier, phase, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    tell("at it")
    lost = outcome(run, ring(carrier.names), torch.ones(100), carrier)
    return lost, str(outcome(run, ring(carrier.names), torch.ones(100), carrier)), True


def meets_at(rank, kind, port, deadline=DEADLINE):
    os.environ |= {
        "RANK": f"{rank.number}",
        "WORLD_SIZE": f"{rank.size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    return kind(deadline=deadline)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def held():
    """Return the shared resources of this process: connections and shared memory."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len(psutil.Process().net_connections()), sum("d2lps" in line for line in maps)


SILENT = rf"gave no sign of life for {DEADLINE:g} s \(dead, stopped or busy\)"
FIRST = "before the first step"
WHERE = rf"(in step \d|{FIRST})"
GONE = "and with it the store in which the 3 processes meet, is gone.*: start them with torchrun or d2lps.ranks"
FAULTS = {  # the lost rank, the number of ranks, the cause, the act meanwhile, and the message
    "killed among large tensors": (2, 4, signal.SIGKILL, runs_for_ever, 3_000_000, rf"(died .*|{SILENT}) {WHERE}"),
    "stopped among large tensors": (2, 4, signal.SIGSTOP, runs_for_ever, 3_000_000, rf"{SILENT} {WHERE}"),
    "rank 0 killed": (0, 4, signal.SIGKILL, runs_for_ever, 100, rf"(died .*|{SILENT}) {WHERE}"),
    "rank 0 stopped": (0, 4, signal.SIGSTOP, runs_for_ever, 100, rf"{SILENT} {WHERE}"),
    "with the store killed": (0, 3, signal.SIGKILL, runs_for_ever_without_torchrun, None, GONE),
    "with the store stopped": (0, 3, signal.SIGSTOP, runs_for_ever_without_torchrun, None, GONE),
    "dead before the agreement": (1, 3, None, dies_before, "verify_same_run", rf"{SILENT} {FIRST}"),
    "dead before the beginning": (1, 3, None, dies_before, "barrier", rf"(died .*|{SILENT}) {FIRST}"),
    "dead before the gathering": (1, 3, None, dies_before, "gather_times", rf"{SILENT} {FIRST}"),
}


@cache
def befallen():
    """Every fault to ranks of its own, the next while the last ones still wait: what they said, and what is left."""
    ranks()  # with the processes that all tests share
    before, cases, outcomes = left_behind(), {}, {}
    for kind in CARRIERS:
        for fault, (victim, n, number, function, argument, _) in FAULTS.items():
            fleet = Ranks(n)
            fleet.start(function, kind, free_port() if argument is None else argument)
            assert [fleet.said(rank) for rank in range(n)] == ["at it"] * n
            if number is not None:
                time.sleep(0.1)
                fleet.signal(victim, number)
            cases[kind, fault] = fleet
    for (kind, fault), fleet in cases.items():
        victim, n, number, function, *_ = FAULTS[fault]
        reports, woken = fleet.results(set(range(n)) - {victim}), None
        if number == signal.SIGSTOP and function is runs_for_ever:
            fleet.signal(victim, signal.SIGCONT)
            ((woken, *_),) = fleet.results([victim])
        fleet.end()
        outcomes[kind, fault] = reports, woken
    return outcomes, before, left_behind()


@each_carrier
@pytest.mark.parametrize("fault", FAULTS)
def test_every_other_rank_names_the_one_that_is_lost(kind, fault):
    (reports, woken), (victim, _, number, *_, sentence) = befallen()[0][kind, fault], FAULTS[fault]
    for lost, again, nothing_kept in reports:
        assert re.fullmatch(rf"rank {victim},? {sentence}\.", str(lost))
        assert lost.ranks == (victim,) and nothing_kept
        if lost.step is not None:
            assert f"in step {lost.step}" in str(lost)
        else:  # in shared memory all wait for each other before the first step, too
            assert kind is SharedMemory or WHERE not in sentence
        assert again == f"{lost} To go on, make a new carrier in all processes."
    assert len({str(lost) for lost, *_ in reports}) == 1 or sentence == GONE
    if kind is Processes and number == signal.SIGKILL:  # its connections close, and no rank waits for its deadline
        assert not any("no sign of life" in str(lost) for lost, *_ in reports)
    if woken is not None:  # it receives the decision of the others
        assert str(woken) == str(reports[0][0])


def test_nothing_is_left_of_ranks_that_are_lost():
    _, before, after = befallen()
    assert after - before == set()


def without_torchrun(rank, port):
    for kind in (Processes, SharedMemory, Processes):
        carrier, tensor = meets_at(rank, kind, port), torch.ones(100)
        run(ring(carrier.names), tensor, carrier)
    return tensor[0].item()


def test_one_environment_serves_any_number_of_carriers():
    assert ranks()(without_torchrun, free_port(), n=3) == [3.0] * 3


def leaves(rank, kind):
    carrier, tensor = rank.carrier(kind), torch.ones(100)
    run(ring(carrier.names), tensor, carrier)
    if rank.number == 1:
        carrier.close()  # as every carrier does when its interpreter ends
    return outcome(run, ring(carrier.names), tensor, carrier)


@each_carrier
def test_a_rank_that_leaves_is_not_waited_for(kind):
    for rank, error in enumerate(ranks()(leaves, kind, n=3)):
        if rank != 1:
            assert isinstance(error, RankLost) and error.ranks == (1,)
            assert str(error) == "rank 1 ended the run (it has left)."


class Between:
    """A store in which, just before it answers whether rank 1 has failed, ``then`` happens."""

    def __init__(self, then):
        self.store, self.then, self.happened = dist.HashStore(), then, False

    def __getattr__(self, name):
        return getattr(self.store, name)

    def check(self, keys):
        if keys[0].endswith("failed/1") and not self.happened:
            self.happened = True
            self.then()
        return self.store.check(keys)


@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_that_comes_and_then_leaves_while_it_is_looked_for_is_not_lost(comes):
    def then():
        if comes:
            other._post("1/here/1", "I was here")
        other.close()

    store = Between(then)
    here, other = (Rendezvous(store, "test", rank, 2, deadline=DEADLINE) for rank in range(2))
    found = outcome(here.all_gather, "here", "and so was I")
    assert store.happened
    assert found == ["and so was I", "I was here"] if comes else str(found) == "rank 1 ended the run (it has left)."


# ---------------------------------------------------------------- Ctrl-C


def is_interrupted(rank, kind, phase):
    """Rank 2 keeps the others waiting until the test lets it go on."""
    late, waits = rank.number == 2 and phase == "in a run", []

    def adds(own, arrived):
        if late and waits:
            rank.store.wait(["go on"])
        return own + arrived

    carrier, tensor, reduce = rank.carrier(kind), torch.ones(100), Reduction("slow", adds, 0)
    program = compile(ring(carrier.names), tensor, carrier, reduce=reduce) if phase == "in a run" else None
    watch = carrier.rendezvous.watch

    def tells(*arguments):
        if not waits:
            waits.append(tell("waiting"))
        watch(*arguments)

    if rank.number == 1:
        carrier.rendezvous.watch = tells  # which it calls again and again while it waits
    elif late:
        waits.append("the reduction is not just tried")
    elif rank.number == 2:
        rank.store.wait(["go on"])
    try:
        if program:
            program.execute()
        else:
            run(ring(carrier.names), tensor, carrier)
        error = None
    except BaseException as raised:
        error = raised.with_traceback(None)
    if rank.number == 1:
        tell("interrupted")
    carrier, tensor = rank.carrier(kind), torch.ones(100)
    run(ring(carrier.names), tensor, carrier)
    return error, tensor[0].item()


@each_carrier
@pytest.mark.parametrize("phase", ["before a run", "in a run"])
def test_ctrl_c_ends_a_wait_and_names_the_rank_to_the_others(kind, phase):
    fleet = ranks()
    n = fleet.start(is_interrupted, kind, phase, n=3)
    assert fleet.said(1) == "waiting"
    fleet.signal(1, signal.SIGINT)
    assert fleet.said(1) == "interrupted"  # while rank 2 still keeps it waiting
    fleet.let("go on")
    found = fleet.results(range(n))
    assert isinstance(found[1][0], KeyboardInterrupt)
    for lost, _ in (found[0], found[2]):
        assert isinstance(lost, RankLost) and lost.ranks == (1,)
        where = "" if lost.step is None else f" in step {lost.step}"
        assert str(lost) == f"rank 1 ended the run{where} (interrupted)."
        assert (lost.step is None) == (phase == "before a run")
    assert [value for *_, value in found] == [3.0] * 3


def is_interrupted_while_joining(rank):
    wait = ranks_module.BackgroundThread.do

    def tells(thread, work):
        if getattr(work, "func", None) is dist.TCPStore:
            tell("waiting")
        return wait(thread, work)

    ranks_module.BackgroundThread.do = tells
    try:
        meets_at(rank._replace(number=1, size=2), Processes, free_port(), deadline=3 * LIVE)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        ranks_module.BackgroundThread.do = wait


def test_ctrl_c_ends_the_wait_for_the_store_as_well():
    fleet = ranks()
    fleet.start(is_interrupted_while_joining, n=1)
    assert fleet.said(0) == "waiting"
    fleet.signal(0, signal.SIGINT)
    assert fleet.results([0]) == ["interrupted"]  # long before the deadline
