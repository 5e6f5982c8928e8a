"""A primary stands still and another one takes over: workers find it, and no pull returns an older value."""

import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import KVError, Timeout, Unknown, cluster

SIZE = 4000
pytestmark = pytest.mark.fault("F4", "primary that stands still, and goes on")


@contextmanager
def still(servers, slot: int, begin=bool, speaks: bool = False):
    """The primary of a slot does and says nothing, ``begin()`` is done, and within it another one has taken over.

    ``speaks``: when it goes on, it has all to say still.
    """
    host = servers.servers[servers.views[slot].members[0]]
    replica = host.replicas[slot]
    before = servers.views[slot].number
    with ExitStack() as held:
        with ExitStack() as first:
            for session in replica._sessions.values():
                first.enter_context(session._sending)
            first.enter_context(replica.store.slot.lock)
            for line in replica.store.slot._lines.values():
                held.enter_context(line._sending)
            begin()
            until = time.monotonic() + 20
            while servers.views[slot].number == before:
                assert time.monotonic() < until, "nobody takes over"
                time.sleep(0.01)
            yield
        if speaks:
            time.sleep(0.3)  # what is asked of it comes before what it is told


def beginning(store):
    store.init("w", torch.zeros(SIZE))
    if store.type != "dist_sync":
        store.set_optimizer("sgd", lr=-1.0)
    store.pushpull("w", torch.ones(SIZE), out=torch.empty(SIZE))
    store.barrier()


def made(kind="dist_sync", deadline=10.0, **options):
    return cluster(kind, 2, 2, replicas=1, deadline=deadline, placement={"large": 1000}, **options)


def aside(work, *arguments) -> tuple[threading.Thread, list]:
    """It, at work in a thread, and what will be there of it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work(*arguments)), daemon=True)
    thread.start()
    return thread, found


def pulled(store) -> torch.Tensor:
    store.pull("w", out=(out := torch.empty(SIZE)))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
def test_no_pull_after_a_barrier_is_older_than_it(kind):
    options = {"staleness": 1} if kind == "dist_ssp" else {}
    with made(kind, **options) as servers:
        each(servers, beginning)
        until_whole(servers)
        with still(servers, 1, speaks=True):
            servers[0].push("w", torch.full((SIZE,), 100.0))
            each(servers, lambda store: store.barrier())
            thread, found = aside(pulled, servers[1])
            time.sleep(0.05)  # it has asked who stands still
        thread.join(20)
        assert found[0].unique().tolist() == [102.0]


@pytest.mark.slow
def test_no_pull_after_a_load_is_older_than_it(tmp_path):
    with made() as servers:
        each(servers, beginning)
        each(servers, lambda store: store.save(tmp_path / "saved"))
        each(servers, lambda store: store.pushpull("w", torch.full((SIZE,), 50.0)))
        until_whole(servers)
        with still(servers, 1, speaks=True):
            each(servers, lambda store: store.load(tmp_path / "saved"))
            thread, found = aside(pulled, servers[1])
            time.sleep(0.05)
        thread.join(20)
        assert found[0].unique().tolist() == [2.0]


@pytest.mark.slow
def test_a_worker_that_computes_meanwhile_is_not_lost():
    """It asks for nothing for longer than the deadline, while another server takes over."""
    with made("dist_async", deadline=2.0) as servers:
        each(servers, beginning)
        until_whole(servers)
        with still(servers, 1):
            time.sleep(2.5)
            each(servers, lambda store: store.push("w", torch.ones(SIZE)))
            each(servers, lambda store: store.barrier())
            for end in each(servers, pulled):
                assert isinstance(end, torch.Tensor) and end.unique().tolist() == [4.0], end


@pytest.mark.slow
def test_a_worker_that_says_goodbye_meanwhile_is_not_lost():
    """Asynchronously, the others go on without who has left."""
    with made("dist_async", deadline=2.0) as servers:
        each(servers, beginning)
        until_whole(servers)
        threads = []
        with still(servers, 1, lambda: threads.append(aside(servers[0].close)[0])):
            threads[0].join(10)
            assert not threads[0].is_alive()
            time.sleep(2.5)  # more than the deadline
            servers[1].push("w", torch.ones(SIZE))
            assert pulled(servers[1]).unique().tolist() == [3.0]


@pytest.mark.slow
def test_a_deadline_that_is_shorter_than_a_takeover_loses_nothing():
    """Calls raise meanwhile, and say what is not known; the same again counts once."""

    def push(store):
        until, seen = time.monotonic() + 20, []
        while time.monotonic() < until:
            try:
                store.push("w", torch.ones(SIZE))
                return seen
            except (Timeout, Unknown) as error:
                seen.append(error)
        return "never"

    with made("dist_async", deadline=0.4) as servers:
        each(servers, beginning)
        until_whole(servers)
        ran = []
        with still(servers, 1, lambda: ran.append(aside(push, servers[0]))):
            ((thread, found),) = ran
            thread.join(25)
        assert isinstance(found[0], list) and found[0], found
        assert pulled(servers[0]).unique().tolist() == [3.0]


@pytest.mark.slow
@pytest.mark.fault("F2", "server killed while a push that counts is interrupted")
def test_a_push_that_is_interrupted_as_it_is_sent_again_still_counts():
    with made() as servers:
        each(servers, beginning)
        store, client = servers[0], servers[0].clients[0]
        thread, _ = aside(pytest.raises, KVError, store.pushpull, "w", torch.full((SIZE,), 10.0))
        until = time.monotonic() + 10
        while not any(request.counted for request in client._pending.values()):
            assert time.monotonic() < until
            time.sleep(0.01)
        (request,) = client._pending.values()
        client._leaving, before = request, client._view
        forgetting, _ = aside(client.forget, request)
        time.sleep(0.05)
        servers.kill(servers.views[0].members[0])
        while client._view == before or not client._channel.roomy:
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.2)
        client._leaving = None
        forgetting.join(10), thread.join(10)
        servers[1].push("w", torch.full((SIZE,), 20.0))
        assert pulled(store).unique().tolist() == [30.0]
