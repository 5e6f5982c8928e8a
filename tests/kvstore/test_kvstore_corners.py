"""What was found by attacking the store, each by the smallest program that shows it."""

import enum
import os
import signal
import stat
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.stores import Function, each, interrupted_as_it_was_done

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, Timeout, Unknown
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.store import Barrier
from d2lps.kvstore.together import Load, Save, Together
from d2lps.kvstore.wire import Op
from d2lps.kvstore.worker import dist
from d2lps.kvstore.worker.client import ServerClient


def full(value, size=3):
    return torch.full((size,), float(value))


def pulled(store, key="w", size=3):
    store.pull(key, out=(out := torch.empty(size)))
    return out.unique().tolist()


def counting(store, *keys, size=3):
    """The store, whose values are the sums of what is pushed to them."""
    store.init(list(keys), [torch.zeros(size)] * len(keys))
    store.set_optimizer("sgd", lr=-1.0)
    return store


def interrupt(store):
    """Within a call of it, whose caller no longer waits."""
    store._calls.current.interrupted = True
    store._calls.current.stop()


def in_a_child(work):
    """The exit status of a forked child that does it."""
    if not (child := os.fork()):
        try:
            os._exit(work() or 0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- places


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("size", [20, 20_000])
def test_a_negated_view_beside_one_with_gaps_gets_what_is_its_own(transport, size):
    with kvstore.cluster("dist_sync", 1, 2, transport=transport) as (store,):
        store.init(["a", "b"], [full(1, size), full(2, size)])
        gaps, negated = torch.zeros(2 * size)[::2], torch._neg_view(torch.zeros(size))
        store.pull(["a", "b"], out=[gaps, negated])
        assert (gaps.unique().tolist(), negated.unique().tolist()) == ([1.0], [2.0])


def test_what_has_one_element_may_have_any_stride():
    with kvstore.cluster("dist_sync", 1, 1) as (other,):
        for store in (kvstore.create("local"), other):
            store.init("w", torch.zeros(1))
            store.pushpull("w", torch.arange(4.0)[1::2][:1], out=(out := torch.zeros(4)[::2][:1]))
            assert out.tolist() == [1.0]


def test_rows_without_elements_and_rows_that_are_named_where_others_go():
    with kvstore.cluster("dist_sync", 1, 2) as (other,):
        for store in (kvstore.create("local"), other):
            store.init(["empty", "a", "b"], [torch.zeros(5, 0), *[torch.arange(8, 12).reshape(4, 1)] * 2])
            store.row_sparse_pull("empty", out=torch.empty(2, 0), row_ids=torch.tensor([0, 1]))
            rows, out = torch.tensor([1, 3]), torch.empty(2, 1, dtype=torch.int64)
            store.row_sparse_pull(["a", "b"], out=[rows.view(2, 1), out], row_ids=[torch.tensor([0, 2]), rows])
            assert (rows.tolist(), out.flatten().tolist()) == ([8, 10], [9, 11])


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize("key", [Number.ONE, np.str_("w")])
def test_an_object_that_only_equals_a_key_is_refused(key):
    with pytest.raises(Refused, match="a key must be a short string or a whole number"):
        kvstore.create("local").init(key, torch.zeros(1))


# ---- what counts


def test_a_failure_between_two_keys_names_the_counted_ones(monkeypatch):
    store = counting(kvstore.create("local"), "a", "b")
    real = type(store)._added

    def fail(self, spec, given):
        if spec.key == "b":
            raise MemoryError("no more")
        return real(self, spec, given)

    values = [full(1), full(1)]
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "_added", fail)
        with pytest.raises(KVError, match="no more") as error:
            store.push(["a", "b"], values)
    assert (error.value.counted, error.value.unknown) == (("a",), ())
    store.push(["a", "b"], values)
    assert pulled(store, "a") == pulled(store, "b") == [1.0]


def test_in_place_nothing_is_written_once_it_is_interrupted(monkeypatch):
    store, value = counting(kvstore.create("local"), "w"), full(1)
    store.push("w", full(10))
    real = type(store)._pull_after_push

    def pull(self, *arguments):
        interrupt(self)
        real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "_pull_after_push", pull)
        with pytest.raises(KVError) as error:
            store.pushpull("w", value)
    assert (error.value.counted, value.tolist()) == (("w",), [1.0] * 3)
    store.pushpull("w", value)
    assert value.tolist() == [11.0] * 3


def test_what_is_unknown_ends_before_a_load_and_not_after_it(tmp_path, monkeypatch):
    def fail(client, requests):
        for request in requests:
            request.counted = None
            request.fail(Unknown("it was sent, or was it not?"))

    with kvstore.cluster("dist_async", 1, 2) as (store,):
        counting(store, "w").save(tmp_path / "store")
        with monkeypatch.context() as patch:
            patch.setattr(dist, "ask_in_turn", fail)
            with pytest.raises(Unknown) as error:
                store.push("w", full(100))
        assert error.value.unknown == ("w",)
        store.load(tmp_path / "store")
        store.push("w", full(1))
        assert pulled(store) == [1.0]


# ---- what all do together


def test_a_save_or_load_that_was_interrupted_is_done_again(tmp_path):
    store, path = counting(kvstore.create("local"), "w"), str(tmp_path / "store")
    for value in (1.0, 2.0):
        store.push("w", full(1))
        interrupted_as_it_was_done(store, Save(store, path, False, bool))
        with pytest.raises(Refused, match="the last save did not end on all workers"):
            store.push("w", full(1))
        store.save(path)
        store.push("w", full(10))
        interrupted_as_it_was_done(store, Load(store, path))
        for call in (lambda: store.push("w", full(1)), lambda: store.save(path), lambda: pulled(store)):
            with pytest.raises(Refused, match="the last load did not end on all workers"):
                call()
        store.load(path)
        assert pulled(store) == [value]


@pytest.mark.slow
def test_what_was_done_is_done_anew_when_there_was_another_call_since():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        interrupted_as_it_was_done(stores[0], Barrier(stores[0]))
        stores[0].push("w", full(1))
        with pytest.raises(Timeout, match="worker 1 missing"):
            stores[0].barrier()


def test_what_was_done_is_not_done_anew_where_another_thread_has_pushed_since():
    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        interrupted_as_it_was_done(stores[0], Barrier(stores[0]))
        other = threading.Thread(target=stores[0].push, args=("w", full(1)))
        other.start()
        other.join()
        stores[0].barrier()


@pytest.mark.parametrize("what", ["save", "load"])
def test_a_push_in_one_thread_is_over_before_another_saves_or_loads(what, tmp_path, monkeypatch):
    store, path = counting(kvstore.create("local"), "a", "b"), tmp_path / "store"
    store.save(path)
    begun, inside, order = threading.Event(), threading.Event(), []
    added, together = type(store)._added, Together.work

    def slowly(self, spec, given):
        begun.set()
        inside.wait(0.1)  # which does not come
        order.append(spec.key)
        return added(self, spec, given)

    def at_work(self, *arguments):
        order.append(what)
        inside.set()
        return together(self, *arguments)

    monkeypatch.setattr(type(store), "_added", slowly)
    monkeypatch.setattr(Together, "work", at_work)
    thread = threading.Thread(target=store.push, args=(["a", "b"], [full(1), full(1)]))
    thread.start()
    assert begun.wait(10)
    getattr(store, what)(path)
    thread.join(10)
    assert order == ["a", "b", what]


@pytest.mark.parametrize("at", [Op.RESTORE, Op.COMMIT])
def test_after_a_load_that_is_interrupted_nothing_is_pulled_until_another_has_succeeded(at, tmp_path, monkeypatch):
    with kvstore.cluster("dist_async", 1, 2) as (store,):
        keys = [f"k{i}" for i in range(6)]
        counting(store, *keys).save(tmp_path / "store")
        store.push(keys, [full(1)] * 6)
        real = ServerClient.ask

        def ask(self, request):
            if request.op == at:
                interrupt(store)
            return real(self, request)

        with monkeypatch.context() as patch:
            patch.setattr(ServerClient, "ask", ask)
            with pytest.raises(Interrupted):
                store.load(tmp_path / "store")
        for call in (lambda: pulled(store, keys[0]), lambda: store.push(keys, [full(1)] * 6), store.barrier):
            with pytest.raises(Refused, match="call load again"):
                call()
        store.load(tmp_path / "store")
        assert [pulled(store, key) for key in keys] == [[0.0]] * 6
        store.push(keys, [full(1)] * 6)
        assert [pulled(store, key) for key in keys] == [[1.0]] * 6


@pytest.mark.slow
def test_who_has_given_up_a_barrier_is_not_there():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        for store, other in ((stores[1], 0), (stores[0], 1)):
            with pytest.raises(Timeout, match=f"worker {other} missing"):
                store.barrier()
        assert each(stores, lambda store: store.barrier()) == [None, None]


# ---- what interrupts, and what ends


def test_interrupts_need_no_attributes():
    class Stop(Exception):
        def __setattr__(self, *_):
            raise AttributeError("as it is")

    def ring(*_):
        raise Stop

    store, waiting = kvstore.create("local"), threading.Event()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            store._calls.run(Function(waiting.wait, 0.3))
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_a_close_that_is_interrupted_leaves_no_line_open(monkeypatch):
    with kvstore.cluster("dist_async", 1, 3) as (store,):

        def ask(self, request):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ServerClient, "ask", ask)
            with pytest.raises(KeyboardInterrupt):
                store.close()
        assert not any(client._open for client in store.clients)
        store.close()
        with pytest.raises(Refused, match="closed"):
            store.barrier()


def test_a_forked_child_closes_nothing_of_its_parent():
    with kvstore.cluster("dist_async", 1, 1) as cluster:
        assert in_a_child(cluster.close) == 0
        cluster[0].init("w", full(2))
        assert pulled(cluster[0]) == [2.0]


# ---- refusals


@pytest.mark.parametrize("staleness", [-1, 1.5, "2", None, True, float("nan"), 10**400, [1]], ids=range(8))
def test_staleness_is_a_number_of_pushes(staleness):
    with pytest.raises(Refused, match="staleness = .*a whole number, 0 or more"):
        kvstore.cluster("dist_ssp", 1, 1, staleness=staleness)


@pytest.mark.parametrize("beta", [1 - Fraction(1, 10**30), np.longdouble(1) - np.finfo(np.longdouble).eps])
def test_a_number_that_becomes_1_as_a_float_is_1(beta):
    with pytest.raises(Refused, match="adam takes 0 or more, and less than 1"):
        kvstore.create("local").set_optimizer("adam", lr=0.1, beta1=beta)


# ---- files


def test_other_files_beside_a_saved_store_stay(tmp_path):
    store, path, mine = counting(kvstore.create("local"), "w"), tmp_path / "store", tmp_path / ".store.20240101"
    mine.write_text("a copy of mine")
    store.save(path)
    store.load(path)
    assert {*os.listdir(tmp_path)} == {path.name, mine.name}
    (usual := tmp_path / "usual").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_store_takes_the_place_of_no_pipe_and_may_have_a_long_name(tmp_path):
    store = counting(kvstore.create("local"), "w")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="it is there, and no file"):
        store.save(tmp_path / "pipe")
    store.save(tmp_path / ("x" * 255))
    assert {*os.listdir(tmp_path)} == {"pipe", "x" * 255}


def test_threads_that_save_to_one_path_do_not_disturb_each_other(tmp_path):
    stores, path, found = [counting(kvstore.create("local"), "w", size=10_000) for _ in range(3)], tmp_path / "s", []

    def save(store):
        for _ in range(50):
            try:
                store.save(path)
            except KVError as error:
                found.append(error)

    threads = [threading.Thread(target=save, args=(store,)) for store in stores]
    [thread.start() for thread in threads], [thread.join(60) for thread in threads]
    stores[0].load(path)
    assert not found and os.listdir(tmp_path) == ["s"]
