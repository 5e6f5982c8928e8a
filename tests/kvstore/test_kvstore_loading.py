"""Calls of all workers: others wait for their end, an open round refuses them, and one that did not end is repeated."""

import threading
import time

import pytest
import torch
from helpers.ctrl_c import pressed
from helpers.stores import Function, each, until_whole

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, ServerLost, Timeout, WorkerLost, together
from d2lps.kvstore.wire import Op
from d2lps.messages import speak

SIZE = 4000
AGAIN = "the last load did not end on all workers: call load again, on all workers"


def cluster(workers=2, replicas=0, kind="dist_async", **options):
    options = {"deadline": 5.0, "placement": {"large": 1000}, "replicas": replicas} | options
    return kvstore.cluster(kind, workers, 2, **options)


def begin(store, path, pushes=1):
    """The file has 1; the store has 1 more for each push of a worker."""
    store.init("w", torch.ones(SIZE))
    store.set_optimizer("sgd", lr=-1.0)
    store.save(path)
    for _ in range(pushes):
        store.push("w", torch.ones(SIZE))
    store.barrier()


def pulled(store) -> list[float]:
    store.pull("w", out=(out := torch.empty(SIZE)))
    return out.unique().tolist()


def asks(store, monkeypatch, op, act, server=1, **wanted):
    """Have ``act()`` done once, as the store is about to ask a server for ``op``."""
    client, done = store.clients[server], []

    def ask(request, real=store.clients[server].ask):
        if request.op == op and not done and wanted.items() <= (request.metadata or {}).items():
            done.append(act())
        return real(request)

    monkeypatch.setattr(client, "ask", ask)


def interrupt(store):
    store._calls.current.interrupted = True
    store._calls.current.stop()


def dies(store):
    """It says nothing more, as a process that is killed."""
    for client in store.clients:
        client._open = False
        client._channel.close()
    raise KVError("killed")


@pytest.mark.parametrize("what", ["save", "load", "set_optimizer"])
def test_other_threads_wait_for_its_end(what, tmp_path, monkeypatch):
    """Which cannot be seen in what they pull: they have not begun when it ends."""
    with cluster() as stores:
        each(stores, begin, tmp_path / "file")
        order, threads = [], []

        def push():
            stores[0].push("w", torch.ones(SIZE))
            order.append("push")

        def at_work():
            threads.append(threading.Thread(target=push))
            threads[0].start()
            time.sleep(0.3)
            order.append(what)

        op = {"save": Op.STATE, "load": Op.COMMIT, "set_optimizer": Op.OPTIMIZER}[what]
        asks(stores[0], monkeypatch, op, at_work)
        calls = {"save": ("new",), "load": ("file",), "set_optimizer": ()}[what]

        def call(store):
            if what == "set_optimizer":
                return store.set_optimizer("sgd", lr=-1.0)
            return getattr(store, what)(tmp_path / calls[0])

        assert each(stores, call) == [None, None]
        threads[0].join(10)
        assert order == [what, "push"]
        assert pulled(stores[0]) == [2.0 if what == "load" else 4.0]
        if what == "save":
            assert each(stores, lambda store: store.load(tmp_path / "new")) == [None, None]
            assert pulled(stores[1]) == [3.0]


def test_it_waits_for_the_calls_of_other_threads_and_others_come_after_it(tmp_path):
    with cluster() as stores:
        each(stores, begin, tmp_path / "file")
        begun, ends, order = threading.Event(), threading.Event(), []

        def long():
            begun.set()
            assert ends.wait(10)
            order.append("long")

        first = Function(long)
        first.keys = frozenset("k")
        threads = [threading.Thread(target=stores[0]._calls.run, args=(first,))]
        threads[0].start()
        assert begun.wait(10)

        def load(store):
            store.load(tmp_path / "file")
            order.append("load")

        threads += [threading.Thread(target=load, args=(store,)) for store in stores]
        [thread.start() for thread in threads[1:]]
        time.sleep(0.2)
        threads.append(threading.Thread(target=lambda: (pulled(stores[0]), order.append("pull"))))
        threads[-1].start()
        time.sleep(0.2)
        assert order == []
        ends.set()
        [thread.join(10) for thread in threads]
        assert order[0] == "long" and [*order].index("pull") > 1


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("what", ["save", "load"])
def test_in_an_open_round_it_is_refused_on_all_workers(what, replicas, tmp_path):
    with cluster(replicas=replicas, kind="dist_sync") as stores:
        each(stores, begin, tmp_path / "file")
        stores[1].push("w", torch.ones(SIZE))
        errors = each(stores, lambda store: getattr(store, what)(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "in the midst of a round" in str(error) for error in errors)
        stores[0].push("w", torch.ones(SIZE))
        assert each(stores, pulled) == [[5.0]] * 2
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_load_that_one_server_refuses_changes_nothing_on_any(replicas, tmp_path, monkeypatch):
    with cluster(replicas=replicas) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, Op.RESTORE, lambda: (_ for _ in ()).throw(Refused("by server 1")))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "by server 1" in str(error) for error in errors)
        assert each(stores, pulled) == [[3.0]] * 2
        each(stores, lambda store: store.push("w", torch.ones(SIZE)))
        assert pulled(stores[0]) == [5.0]


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("op", [Op.RESTORE, Op.COMMIT])
@pytest.mark.parametrize("error", ["interrupted", "Timeout"])
def test_calls_are_refused_after_an_unfinished_load_until_one_ends(error, op, replicas, tmp_path, monkeypatch):
    """Also where only one server has taken what it was to take."""
    with cluster(replicas=replicas, deadline=1.0) as stores:
        each(stores, begin, tmp_path / "file")
        with monkeypatch.context() as patch:
            act = {
                "interrupted": lambda: interrupt(stores[0]),
                "Timeout": lambda: (_ for _ in ()).throw(Timeout("it is silent")),
            }[error]
            asks(stores[0], patch, op, act)
            errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert all(isinstance(raised, KVError) and not isinstance(raised, Refused) for raised in errors)
        calls = [
            lambda store: store.push("w", torch.ones(SIZE)),
            pulled,
            lambda store: store.barrier(),
            lambda store: store.save(tmp_path / "new"),
            lambda store: store.init("v", torch.ones(1)),
            lambda store: store.set_optimizer("sgd", lr=1.0),
        ]
        for call in calls:
            assert [str(raised) for raised in each(stores, call)] == [AGAIN] * 2
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2
        each(stores, lambda store: store.push("w", torch.ones(SIZE)))
        assert pulled(stores[1]) == [3.0]


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_worker_whose_load_alone_was_interrupted_loads_again_with_all(kind, tmp_path, monkeypatch):
    """The others have loaded, and have pushed since; with rounds, the one closes the round before it loads."""
    with cluster(kind=kind) as stores:
        each(stores, begin, tmp_path / "file")
        wait = together.wait_for_first

        def interrupted(store, *arguments):
            note = wait(store, *arguments)
            if store.rank:
                interrupt(store)
                store._calls.current.require_wanted()
            return note

        with monkeypatch.context() as patch:
            patch.setattr(together, "wait_for_first", interrupted)
            first, second = each(stores, lambda store: store.load(tmp_path / "file"))
        assert first is None and isinstance(second, KVError)
        stores[0].push("w", torch.ones(SIZE))
        with pytest.raises(Refused, match=AGAIN):
            stores[1].push("w", torch.ones(SIZE))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))
        if kind == "dist_sync":
            assert all("in the midst of a round" in str(error) for error in errors)
            stores[1].push("w", torch.ones(SIZE))
            errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert errors == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2


def test_ctrl_c_in_a_call_that_the_others_do_not_make(tmp_path):
    """It may come again at once, or later with the others, however often it has been tried alone."""
    with cluster() as stores:
        each(stores, begin, tmp_path / "file")
        for _ in range(3):
            with pressed(), pytest.raises(KeyboardInterrupt):
                stores[1].load(tmp_path / "file")
            with pytest.raises(Refused, match=AGAIN):
                pulled(stores[1])
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2


@pytest.mark.fault("F1", "worker 0 killed in the midst of a load")
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("op", [Op.RESTORE, Op.COMMIT])
def test_worker_0_is_killed_in_a_load_and_a_new_store_loads(op, replicas, tmp_path, monkeypatch):
    with cluster(3, replicas, lost="drop", deadline=2.0) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, op, lambda: dies(stores[0]))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))[1:]
        assert all(isinstance(error, WorkerLost | Timeout) for error in errors), errors
        for store in (stores[1], stores[2]):
            with pytest.raises(Refused, match=AGAIN):
                pulled(store)
    with cluster(2, replicas) as stores:
        each(stores, lambda store: store.init("w", torch.zeros(SIZE)))
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_a_save_without_worker_0_keeps_the_others_from_nothing(left, replicas, tmp_path, monkeypatch):
    with cluster(3, replicas, lost="drop", deadline=2.0) as stores:
        each(stores, begin, tmp_path / "file")
        others = [stores[1], stores[2]]
        if left:
            stores[0].close()
        else:
            asks(stores[0], monkeypatch, Op.STATE, lambda: dies(stores[0]), server=0)
        saving = [stores[1], stores[2]] if left else [*stores]
        errors = [None] * 3

        def save(store):
            try:
                store.save(tmp_path / "new")
            except KVError as error:
                errors[store.rank] = error

        threads = [threading.Thread(target=save, args=(store,)) for store in saving]
        [thread.start() for thread in threads], [thread.join(30) for thread in threads]
        assert all(isinstance(error, WorkerLost) for error in errors[1:]), errors
        for store in others:
            store.push("w", torch.ones(SIZE))
        assert pulled(others[0]) == pulled(others[1]) == [6.0]


@pytest.mark.fault("F2", "server killed in the midst of a load")
@pytest.mark.parametrize("op", [Op.RESTORE, Op.COMMIT])
def test_a_server_is_killed_in_a_load_and_the_next_load_repairs_it(op, tmp_path, monkeypatch):
    with cluster(replicas=1, kind="dist_sync") as stores:
        each(stores, begin, tmp_path / "file")
        until_whole(stores)
        with monkeypatch.context() as patch:
            asks(stores[0], patch, op, lambda: stores.kill(1))
            errors = each(stores, lambda store: store.load(tmp_path / "file"))
        if errors != [None, None]:  # what was ready on that server is lost with it
            assert all(isinstance(error, KVError) for error in errors)
            assert [str(error) for error in each(stores, pulled)] == [AGAIN] * 2
            assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, pulled) == [[1.0]] * 2
        each(stores, lambda store: store.push("w", torch.ones(SIZE)))
        assert each(stores, pulled) == [[3.0]] * 2


@pytest.mark.fault("F2", "server without replicas killed in the midst of a load")
def test_without_replicas_a_server_that_is_killed_in_a_load_is_lost(tmp_path, monkeypatch):
    with cluster(deadline=2.0) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, Op.COMMIT, lambda: stores.kill(1))
        first, second = each(stores, lambda store: store.load(tmp_path / "file"))
        assert isinstance(first, ServerLost) and isinstance(second, KVError)
        assert [str(error) for error in each(stores, pulled)] == [AGAIN] * 2


def test_unfinished_calls_are_named_in_the_readers_language(tmp_path):
    store = kvstore.create("local")
    store.init("w", torch.ones(3))
    store.save(tmp_path / "file")
    store._calls.unended = "load"
    try:
        for language, words in (("vi", "hãy gọi lại load"), ("zh", "重新调用 load")):
            speak(language)
            with pytest.raises(Refused, match=words):
                store.push("w", torch.ones(3))
    finally:
        speak("en")
    store.load(tmp_path / "file")
    store.push("w", torch.ones(3))
