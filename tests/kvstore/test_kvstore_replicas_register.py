"""One register decides the members of a slot: of several proposals it takes one, and no caller hangs on it."""

import os
import signal
import threading
import time
from functools import partial

import psutil
import pytest
import torch.distributed as dist
from helpers.ranks import FORKED

from d2lps.kvstore.replication import View
from d2lps.kvstore.server.register import Register, StoreRegister

A, B = (0, "a", "/a"), (1, "b", ("127.0.0.1", 7))


def hold(line) -> None:
    """Be the process that holds the store."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    line.send(store.port)
    line.recv()


@pytest.fixture
def held():
    """A store in a process of its own, which can be stopped: that process, and how to connect."""
    mine, theirs = FORKED.Pipe()
    process = FORKED.Process(target=hold, args=(theirs,), daemon=True)
    process.start()
    port = mine.recv()
    yield process, partial(dist.TCPStore, "127.0.0.1", port, None, False, wait_for_workers=False)
    process.kill()
    process.join(10)


def answered(ask) -> View:
    """Return its messages within a while."""
    heard, came = [], threading.Event()
    ask(lambda view: (heard.append(view), came.set()))
    assert came.wait(10)
    return heard[0]


def of_kind(kind, held) -> list:
    """Two ends of one register."""
    if kind == "store":
        return [StoreRegister(held[1], "run") for _ in range(2)]
    return [Register()] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "store"])
def test_one_of_two_proposals_is_taken(kind, held):
    one, other = of_kind(kind, held)
    one.begin(0, (A, B))
    assert other.view(0) == View(1, (A, B)), "addresses are what they were"
    first = answered(partial(one.propose, 0, View(2, (A,))))
    second = answered(partial(other.propose, 0, View(2, (B,))))
    assert first == second == View(2, (A,))
    assert answered(partial(other.propose, 0, View(4, (B,)))) == View(2, (A,)), "none is left out"
    assert answered(partial(other.ask, 0)) == View(2, (A,)) and other.view(1) is None
    for each in (one, other):
        each.close()


@pytest.mark.slow(3)
@pytest.mark.fault("F5", "process of the rendezvous stopped")
def test_no_worker_waits_for_a_stopped_process(held):
    process, connect = held
    register = StoreRegister(connect, "run")
    register.begin(0, (A, B))
    assert register.view(0) == View(1, (A, B))
    os.kill(process.pid, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    try:
        begun, heard = time.monotonic(), []
        register.propose(0, View(2, (B,)), heard.append)
        assert register.view(0) == View(1, (A, B)) and time.monotonic() - begun < 5 and not heard
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert answered(partial(register.propose, 0, View(2, (B,)))) == View(2, (B,))
    register.close()
