"""Slow, cut or corrupted links, and workers whose calls differ: the errors of the others."""

import ctypes
import errno
import os
import threading
import time

import pytest
import torch
from helpers.breaking import closing, store, tables
from helpers.stores import Function, each

from d2lps import kvstore
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.kvstore import KVError, Refused, Timeout, Unknown, WorkerLost
from d2lps.kvstore.calls import Calls
from d2lps.kvstore.launch import Meeting
from d2lps.kvstore.wire import handshake


def soon(happens, seconds=30):
    """Wait until it does."""
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)


# ---------------------------------------------------------------- lines


@pytest.mark.slow
def test_a_connection_cut_under_full_load_is_made_again():
    """Who asked again did not hear, and a server that cannot get rid of its answers takes nothing: both waited."""
    keys, size = [*range(800)], 15_000  # 48 MB, in frames of up to 1 MiB
    with kvstore.cluster(workers=1, deadline=10.0) as whole:
        (only,) = whole
        only.init(keys, [torch.zeros(size)] * len(keys))
        (line,) = only.clients
        finish, answered = line._finish, []

        def cut(request, frame):
            finish(request, frame)
            answered.append(request)
            if len(answered) == 3:
                line._channel.close()

        line._finish = cut
        outs = [torch.empty(size) for _ in keys]
        only.pushpull(keys, [torch.full((size,), float(key)) for key in keys], out=outs)
        assert all((out == key).all() for key, out in zip(keys, outs, strict=True))
        assert {shard.version for shard in whole.servers[0].store.shards} == {1}, "each counts once"


@pytest.mark.slow
def test_an_answer_that_takes_longer_than_the_deadline_is_late_and_its_server_is_not_lost():
    with kvstore.cluster(workers=1, deadline=0.5, transport="tcp") as (only,):
        only.init("w", torch.arange(3.0))
        (line,) = only.clients
        receive, out = line._receive, torch.empty(3)

        def slowly(channel, frame, request):
            soon(lambda: channel.sock.fileno() < 0)  # whoever waited has given up
            receive(channel, frame, request)

        line._receive = slowly
        for _ in range(2):
            with pytest.raises(Timeout, match="has not answered pull within 0.5 s"):
                only.pull("w", out=out)
        line._receive = receive
        only.pull("w", out=out)
        assert out.tolist() == [0.0, 1.0, 2.0]


def test_a_worker_that_one_server_goes_on_without_leaves_the_others():
    """They would wait for it in every round, though who is left was to go on."""
    servers = tables(servers=2, lost="drop")
    with closing(store(servers, 0), store(servers, 1), *servers) as (one, other, first, second):
        each([one, other], lambda worker: worker.init("w", torch.zeros(5000)))
        first.store.lose(1, "its line is cut")
        with pytest.raises(WorkerLost, match="worker 1 counts as lost"):
            other.push("w", torch.ones(5000))
        soon(lambda: second.store.live == {0})
        with pytest.raises(WorkerLost):
            other.pull("w", out=torch.empty(5000))
        for value in (2.0, 3.0):
            one.pushpull("w", torch.full((5000,), value), out=(out := torch.empty(5000)))
        assert out.unique().tolist() == [3.0]


@pytest.mark.slow
@pytest.mark.parametrize("value, both", [(2.0, 1), (3.0, 2)])
def test_an_unknown_key_may_be_given_alone(value, both):
    servers = tables("dist_async", workers=1, servers=2)
    with closing(store(servers, 0, 1, kind="dist_async"), *servers) as (only, *_):
        only.init(["x", "y"], [torch.zeros(3)] * 2)
        only.set_optimizer("sgd", lr=-1.0)
        server = only._keys["y"].parts[0][0].server
        assert server != only._keys["x"].parts[0][0].server
        session = servers[server]._sessions[0]
        session._ok = lambda *_: None  # it counts what it is pushed, and says nothing
        with pytest.raises(Unknown) as caught:
            only.push(["x", "y"], [torch.ones(3), torch.full((3,), 2.0)])
        assert (caught.value.counted, caught.value.unknown) == (("x",), ("y",))
        del session._ok  # of that session: by now another may stand in its place
        only.pushpull("y", torch.full((3,), value), out=(out := torch.empty(3)))
        assert out.tolist() == [2.0 + value * (both - 1)] * 3


# ---------------------------------------------------------------- workers who do not do the same, or not at once


def test_an_optimizer_is_set_after_all_earlier_pushes():
    """A round that was open was stepped by the new one, or not, or on some of the servers, as it happened."""
    with kvstore.cluster(workers=2, servers=2) as workers:
        came = threading.Event()
        barrier, chosen = workers.servers[0].store.come, workers.servers[0].store.set_optimizer
        each(workers, lambda worker: worker.init("w", torch.zeros(1 << 18)))
        each(workers, lambda worker: worker.set_optimizer("sgd", lr=1.0))
        workers.servers[0].store.come = lambda *asked: (came.set(), barrier(*asked))[1]
        workers.servers[0].store.set_optimizer = lambda *asked: (came.set(), chosen(*asked))[1]

        def work(worker):
            if worker.rank == 1:
                assert came.wait(20)  # worker 0 has pushed, and sets the optimizer
            worker.push("w", torch.ones(1 << 18))
            worker.set_optimizer("sgd", lr=100.0)
            worker.pull("w", out=(out := torch.empty(1 << 18)))
            return out.unique().tolist()

        assert each(workers, work) == [[-2.0], [-2.0]]


@pytest.mark.parametrize("theirs", [torch.zeros(3, 2), torch.zeros(6)])
def test_a_key_of_another_shape_is_refused_also_where_it_has_as_many_elements(theirs):
    with kvstore.cluster(workers=2) as workers:
        ours = torch.zeros(2, 3)
        first, second = each(workers, lambda worker: worker.init("w", theirs if worker.rank else ours))
        assert first is None
        assert isinstance(second, Refused) and "'w'" in str(second) and "another shape" in str(second)
        workers[1].init("w", ours)  # which is right


# ---------------------------------------------------------------- what the system does


def test_an_exception_in_a_waiting_thread_loses_no_call():
    """As ctypes can: the thread ended, and with it whatever was asked next."""
    with kvstore.create("local") as only:
        only.init("w", torch.zeros(3))
        for _ in range(3):
            for thread in threading.enumerate():
                if thread.name == "d2lps store":
                    struck = ctypes.py_object(RuntimeError)
                    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), struck) == 1
            only.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
            assert out.tolist() == [1.0] * 3


def test_a_call_that_was_asked_without_a_sign_keeps_back_no_other():
    """As Ctrl-C may have it, between the two."""
    calls, done = Calls("of a test", 10.0), []
    sign = calls._signs

    class Mute:
        put = staticmethod(lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        get = sign.get

    calls._signs = Mute
    with pytest.raises(KeyboardInterrupt):
        calls.run(Function(done.append, 1))
    calls._signs = sign
    calls.run(Function(done.append, 2))
    assert done[-1] == 2
    calls.close()


def test_without_shared_memory_all_bytes_take_the_socket(monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    with kvstore.cluster(workers=1) as (only,):
        only.init("w", torch.zeros(100_000))
        only.pushpull("w", torch.ones(100_000), out=(out := torch.empty(100_000)))
        assert (out == 1).all() and not only.clients[0].shares


def test_a_secret_may_have_any_bytes(monkeypatch):
    secret = bytes(range(200, 240))
    monkeypatch.setitem(os.environb, handshake.VARIABLE.encode(), secret)
    assert handshake.read_secret() == secret


def test_a_lost_rendezvous_is_an_error_of_the_store(monkeypatch):
    class Gone:
        """A store of torch whose process ends after the first question."""

        def add(self, *_):
            return 0

        def set(self, *_):
            raise RuntimeError("connection reset")

        check = compare_set = set

    meeting = Meeting(Gone(), "test", 1, 2, 1.0, 0)
    with pytest.raises(KVError, match="rank 0, and with it the store"):
        meeting.join({})
    monkeypatch.setattr(Rendezvous, "close", lambda self: self._thread.end())
    meeting.close()
