"""A starved process calls no worker lost; real deaths are still noticed in time."""

import textwrap
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from helpers import breaking
from helpers.scripts import forked
from helpers.stores import Function, each, until_whole

from d2lps import kvstore
from d2lps.kvstore import ServerLost, Timeout, WorkerLost, threads
from d2lps.kvstore.wire import Op
from d2lps.kvstore.worker.client import Request

nothing_left = breaking.nothing_left
pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.fault("F4", "all stopped for longer than a deadline"),
]
DEADLINE = 1.0


@pytest.fixture
def clock(monkeypatch):
    """The clock that a process looks at to know for how long it ran."""
    made = SimpleNamespace(ahead=0.0, sleep=time.sleep, monotonic=lambda: time.monotonic() + made.ahead)
    monkeypatch.setattr(threads, "time", made)
    yield made
    monkeypatch.undo()
    threads._read()  # the clock goes back


def full(value):
    return torch.full((3,), float(value))


def test_of_a_long_pause_little_counts(clock):
    before = threads.own_time()
    clock.ahead += 1000.0
    assert threads.own_time() - before <= 2 * threads.PAUSE
    time.sleep(3 * threads.PAUSE)
    assert 2 * threads.PAUSE < threads.own_time() - before < 100


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_no_member_is_lost_if_all_stood_still(lost, replicas, clock):
    """The clock jumps ahead twice as far as the deadline, again and again, while nobody is asked for anything."""
    with kvstore.cluster("dist_sync", 2, 2, lost=lost, deadline=DEADLINE, replicas=replicas) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        replicas and until_whole(stores)
        views = stores.views
        for _ in range(6):
            clock.ahead += 2 * DEADLINE
            time.sleep(0.3)  # in which those who live say so
        each(stores, lambda store: store.pushpull("w", full(1)))
        for store in stores:
            store.pull("w", out=(out := full(0)))
            assert out.tolist() == [2.0] * 3
        assert stores.views == views


@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_a_silent_worker_is_lost_in_time_and_the_deadline_is_named(lost):
    with kvstore.cluster("dist_sync", 2, 1, lost=lost, deadline=DEADLINE) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        (server,), begin = stores.servers, time.monotonic()
        with stores[1].clients[0]._sending:
            while 1 in server.store.live:
                assert time.monotonic() - begin < 3 * DEADLINE
                time.sleep(0.01)
        if lost == "fail":
            with pytest.raises(
                WorkerLost, match=r"it has sent nothing for 1\.\d s, with deadline=1: on a busy machine, set a longer"
            ):
                stores[0].push("w", full(1))


def test_a_silent_server_is_lost_in_time_and_the_deadline_is_named():
    with kvstore.cluster("dist_sync", 1, 1, deadline=DEADLINE) as stores:
        store, (server,) = stores[0], stores.servers
        store.init("w", full(0))
        begin = time.monotonic()
        with server._sessions[0]._sending, pytest.raises(ServerLost, match=r"deadline=1: on a busy machine") as error:
            while True:
                assert time.monotonic() - begin < 5 * DEADLINE
                try:
                    store.pull("w", out=full(0))
                except Timeout:
                    continue
        assert error.value.servers == (0,)


def test_a_call_of_a_stopped_process_gets_the_answers_of_meanwhile(monkeypatch):
    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as (store, other):
        (client,), request = store.clients, Request(Op.BARRIER, metadata={"name": "", "round": 1})
        client.ask(request)
        late = threading.Timer(1.0, other._calls.run, [Function(other._meet, "", 1)])
        late.start()
        stood = threads.own_time()
        monkeypatch.setattr("d2lps.kvstore.worker.client.own_time", lambda: stood)
        assert client.wait(request, time.monotonic() + 0.7).op == Op.OK
        late.join(10)


SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
import torch
from d2lps import kvstore

here = Path(sys.argv[0]).parent
with kvstore.create("dist_sync", servers=2, deadline={deadline}, joining=60.0, replicas={replicas}) as store:
    mine = [os.getpid()]
    for each in store.started:
        process = getattr(each, "process", None)
        mine += [getattr(process, "process", process).pid] if process else []
    (here / str(store.rank)).write_text(" ".join(map(str, mine)))
    store.init("w", torch.zeros(3))
    store.set_optimizer("sgd", lr=-1.0)
    if store.rank == 0:
        everyone = " ".join((here / str(rank)).read_text() for rank in range(2))
        act = "sleep 0.3; kill -STOP " + everyone + "; sleep {stopped}; kill -CONT " + everyone
        stopper = subprocess.Popen(["bash", "-c", act], start_new_session=True)
        print(len(everyone.split()), "processes")
    out, begun = torch.empty(3), time.time()
    try:
        for _ in range({rounds}):
            time.sleep(0.02)
            while True:
                try:
                    store.pushpull("w", torch.ones(3), out=out)
                    break
                except (kvstore.Timeout, kvstore.Unknown):
                    continue
        print(out.tolist(), time.time() - begun > {stopped})
    except kvstore.KVError as error:
        print(type(error).__name__, error)
    if store.rank == 0:
        stopper.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_processes_that_are_all_stopped_go_on(replicas, tmp_path):
    numbers = {"deadline": DEADLINE, "stopped": 2.5, "rounds": 60, "replicas": replicas}
    (tmp_path / "work.py").write_text(textwrap.dedent(SCRIPT).format(**numbers))
    one, other = forked(tmp_path / "work.py", 2)
    assert one == ["4 processes", *other] and other == [f"{[120.0] * 3} True"]
