"""Stopped workers, workers that have left, and abandoned waits: the messages to the others, and skipped work."""

import signal
import threading
import time

import pytest
import torch
from helpers.stores import Function, each

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, Timeout, Unknown, WorkerLost
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import Op
from d2lps.kvstore.worker import client as client_module
from d2lps.kvstore.worker import dist
from d2lps.kvstore.worker.client import Request, ServerClient


def full(value, size=3):
    return torch.full((size,), float(value))


def pulled(store, key="w", size=3):
    store.pull(key, out=(out := torch.empty(size)))
    return out.unique().tolist()


def soon(true):
    """Whether it becomes so within 10 s."""
    until = time.monotonic() + 10
    while not true() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(true())


# ---- who has left


@pytest.mark.parametrize("lost", ["fail", "drop"])
@pytest.mark.parametrize("what", ["save", "load", "set_optimizer"])
def test_calls_of_worker_0_for_all_fail_without_it(what, lost, tmp_path):
    with kvstore.cluster("dist_sync", 2, 1, lost=lost, deadline=5.0) as stores:
        each(stores, lambda store: store.init("w", full(1)))
        each(stores, lambda store: store.save(tmp_path / "there"))
        each(stores, lambda store: store.pushpull("w", full(3)))
        stores[0].close()
        argument = {"save": tmp_path / "new", "load": tmp_path / "there", "set_optimizer": "adagrad"}[what]
        with pytest.raises(WorkerLost, match="worker 0") as error:
            getattr(stores[1], what)(argument, **({"lr": 1.0} if what == "set_optimizer" else {}))
        assert error.value.ranks == (0,) and stores[1].optimizer is None
        assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_who_has_left_has_not_come_to_the_barriers_after_that():
    held, others = SlotStore("dist_sync", 3, deadline=5.0), []
    for rank in (1, 2):
        others.append(threading.Thread(target=held.barrier, args=(rank, 1)))
        others[-1].start()
    held.barrier(0, 1)
    [thread.join(10) for thread in others]
    for rank in (1, 2):
        held.lose(rank, "it said goodbye", left=True)
    held.barrier(0, 1)  # to which all have come
    with pytest.raises(WorkerLost, match="worker [12] has left"):
        held.barrier(0, 2)


# ---- who does not wait any more


def test_what_is_ended_for_a_push_that_fails_is_not_counted_again(monkeypatch):
    def fail(client, requests):
        for request in requests:
            request.counted = None
            request.fail(Unknown("it was sent, or was it not?"))

    with kvstore.cluster("dist_sync", 2, 1, deadline=0.3) as (store, other):
        each((store, other), lambda store: (store.init("w", full(0)), store.set_optimizer("sgd", lr=-1.0)))
        with monkeypatch.context() as patch, pytest.raises(Unknown):
            patch.setattr(dist, "ask_in_turn", fail)
            store.push("w", full(10))
        with pytest.raises(Timeout) as error:  # before it comes what is unknown, which takes the place in this round
            store.push("w", full(100))
        assert (error.value.counted, error.value.unknown) == ((), ())
        store.push("w", full(10))
        other.push("w", full(0))
        assert pulled(store) == [10.0]


def test_an_abandoned_request_is_not_sent():
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        (client,), request = store.clients, Request(Op.STATUS, metadata={})
        client.forget(request)
        with pytest.raises(Interrupted):
            client.ask(request)
        client_module.ask_in_turn(client, [request])
        assert not client._pending and request.error is None


def test_ctrl_c_ends_a_call_whose_turn_to_send_does_not_come():
    def ring(*_):
        raise KeyboardInterrupt

    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", full(0))
        before = signal.signal(signal.SIGALRM, ring)
        try:
            with store.clients[0]._sending, pytest.raises(KeyboardInterrupt) as error:  # as one that sends much has it
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                store.pull("w", full(0))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert not store._calls._running and error.value.counted == ()
        assert pulled(store) == [0.0]


@pytest.mark.slow
def test_what_is_pulled_and_not_waited_for_is_not_kept():
    size = 40_000
    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as cluster:
        store, other = cluster
        each(cluster, lambda store: store.init("w", full(0, size)))
        (server,) = cluster.servers
        (shard,) = server.store.shards
        for _ in range(5):
            store.push("w", full(1, size))
            pull = threading.Thread(target=lambda: pytest.raises(Interrupted, pulled, store, "w", size))
            pull.start()
            assert soon(lambda: shard.waiting)
            assert store._calls._running[0].interrupt()
            pull.join(10)
            other.push("w", full(1, size))
        assert pulled(store, "w", size) == [2.0]
        assert soon(lambda: not server._sessions[0]._unread)  # at the latest with the next sign of life


def test_close_says_goodbye_to_all_servers_before_it_waits(monkeypatch):
    said = []

    def noted(name, real):
        return lambda client: (said.append(name), real(client))

    for name in ("leave", "close"):
        monkeypatch.setattr(ServerClient, name, noted(name, getattr(ServerClient, name)))
    with kvstore.cluster("dist_async", 1, 3) as (store,):
        store.close()
        assert said[:4] == ["leave"] * 3 + ["close"]


def test_a_push_to_a_store_that_another_thread_closes_says_so():
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", full(0, 40_000))
        store.set_optimizer("sgd", lr=-1.0)
        store.push("w", full(1, 40_000))  # now it has a place in shared memory
        store._arena.close()
        with pytest.raises(Refused, match="closed"):
            store.push("w", full(1, 40_000))


@pytest.mark.parametrize("struck", [SystemExit, KeyboardInterrupt])
def test_an_exception_in_the_thread_of_a_call_is_its_error(struck, monkeypatch):
    def strike(*_):
        raise struck

    store = kvstore.create("local")
    store.init("w", full(0))
    with monkeypatch.context() as patch, pytest.raises(KVError, match=struck.__name__):
        patch.setattr(type(store), "_added", strike)
        store.push("w", full(1))
    assert pulled(store) == [0.0]


# ---- who is stopped


def test_a_worker_that_was_stopped_looks_at_what_came_before_it_calls_a_server_lost():
    with kvstore.cluster("dist_sync", 2, 1, deadline=8.0) as (store, other):
        (client,), request = store.clients, Request(Op.BARRIER, metadata={"name": "", "round": 1})
        client.ask(request)
        client._heard -= 100
        late = threading.Timer(0.1, other._calls.run, [Function(other._meet, "", 1)])
        late.start()
        assert client.wait(request, time.monotonic()).op == Op.OK
        late.join(10)
