"""Calls of all workers: others wait for their end, an open round refuses them, and one that did not end is repeated."""

import threading
import time

import pytest
import torch
from helpers.ctrl_c import pressed
from helpers.stores import (
    aside,
    dies,
    each,
    full,
    interrupt,
    interrupted_as_it_was_done,
    pulled,
    raised,
    soon,
    until_whole,
)
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, ServerLost, Timeout, WorkerLost, checkpoint, together
from d2lps.kvstore.store import Barrier
from d2lps.kvstore.together import Load, Save, Together
from d2lps.kvstore.wire import Op

SIZE = 4000
AGAIN = "the last load did not end on all workers: call load again, on all workers"


both = pytest.mark.parametrize("replicas", [0, 1])


def cluster(workers=2, replicas=0, kind="dist_async", **options):
    options = {"deadline": 5.0, "placement": {"large": 1000}, "replicas": replicas} | options
    return kvstore.cluster(kind, workers, 2, **options)


def begin(store, path):
    """The file has 1; the store has 1 more for each worker."""
    store.init(["w", "v"], [full(1, SIZE), full(1)])
    store.set_optimizer("sgd", lr=-1.0)
    store.save(path)
    store.push(["w", "v"], [full(1, SIZE), full(1)])
    store.barrier()


def value(store) -> list[float]:
    return pulled(store, "w", SIZE)


def asks(store, monkeypatch, op, act, server=1, **wanted):
    """Have ``act()`` done once, as the store is about to ask a server for ``op``."""
    client, done = store.clients[server], []

    def ask(request, real=store.clients[server].ask):
        if request.op == op and not done and wanted.items() <= (request.metadata or {}).items():
            done.append(act())
        return real(request)

    monkeypatch.setattr(client, "ask", ask)


def is_killed(store):
    dies(store)
    raise KVError("killed")


def fails(error):
    raise error


@pytest.mark.parametrize("what", ["save", "load", "set_optimizer"])
def test_other_threads_wait_for_its_end(what, tmp_path, monkeypatch):
    """Which cannot be seen in what they pull: they have not begun when it ends."""
    with cluster() as stores:
        each(stores, begin, tmp_path / "file")
        order, threads = [], []

        def push():
            stores[0].push("w", full(1, SIZE))
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
        threads[0].join(LIVE)
        assert order == [what, "push"]
        assert value(stores[0]) == [2.0 if what == "load" else 4.0]
        if what == "save":
            assert each(stores, lambda store: store.load(tmp_path / "new")) == [None, None]
            assert value(stores[1]) == [3.0]


@pytest.mark.parametrize("what", ["save", "load"])
def test_a_push_in_one_thread_is_over_before_another_saves_or_loads(what, tmp_path, monkeypatch):
    store, path = kvstore.create("local"), tmp_path / "store"
    store.init(["a", "b"], [full(0)] * 2)
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
    assert begun.wait(LIVE)
    getattr(store, what)(path)
    thread.join(LIVE)
    assert order == ["a", "b", what]


@both
@pytest.mark.parametrize("what", ["save", "load"])
def test_an_open_round_of_one_key_refuses_it_on_all_workers_and_changes_no_key(what, replicas, tmp_path):
    with cluster(replicas=replicas, kind="dist_sync") as stores:
        each(stores, begin, tmp_path / "file")
        stores[1].push("w", full(1, SIZE))
        errors = each(stores, lambda store: getattr(store, what)(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "in the midst of a round" in str(error) for error in errors)
        stores[0].push("w", full(1, SIZE))
        assert [(value(store), pulled(store, "v")) for store in stores] == [([5.0], [3.0])] * 2
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert [(value(store), pulled(store, "v")) for store in stores] == [([1.0], [1.0])] * 2


@both
def test_a_load_that_one_server_refuses_changes_nothing_on_any(replicas, tmp_path, monkeypatch):
    with cluster(replicas=replicas) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, Op.RESTORE, lambda: fails(Refused("by server 1")))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "by server 1" in str(error) for error in errors)
        assert each(stores, value) == [[3.0]] * 2
        each(stores, lambda store: store.push("w", full(1, SIZE)))
        assert value(stores[0]) == [5.0]


@pytest.mark.parametrize(
    "error, op, replicas",
    [
        ("interrupted", Op.RESTORE, 1),
        ("interrupted", Op.COMMIT, 0),
        ("Timeout", Op.RESTORE, 0),
        ("Timeout", Op.COMMIT, 1),
    ],
)
def test_calls_are_refused_after_an_unfinished_load_until_one_ends(error, op, replicas, tmp_path, monkeypatch):
    """Also if only one server has taken what it was to take."""
    with cluster(replicas=replicas, deadline=1.0) as stores:
        each(stores, begin, tmp_path / "file")
        with monkeypatch.context() as patch:
            act = {"interrupted": lambda: interrupt(stores[0]), "Timeout": lambda: fails(Timeout("it is silent"))}[
                error
            ]
            asks(stores[0], patch, op, act)
            errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert all(isinstance(raised, KVError) and not isinstance(raised, Refused) for raised in errors)
        calls = [
            lambda store: store.push("w", full(1, SIZE)),
            value,
            lambda store: store.barrier(),
            lambda store: store.save(tmp_path / "new"),
            lambda store: store.init("v", torch.ones(1)),
            lambda store: store.set_optimizer("sgd", lr=1.0),
        ]
        for call in calls:
            assert [str(raised) for raised in each(stores, call)] == [AGAIN] * 2
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, value) == [[1.0]] * 2
        each(stores, lambda store: store.push("w", full(1, SIZE)))
        assert value(stores[1]) == [3.0]


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
        stores[0].push("w", full(1, SIZE))
        with pytest.raises(Refused, match=AGAIN):
            stores[1].push("w", full(1, SIZE))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))
        if kind == "dist_sync":
            assert all("in the midst of a round" in str(error) for error in errors)
            stores[1].push("w", full(1, SIZE))
            errors = each(stores, lambda store: store.load(tmp_path / "file"))
        assert errors == [None, None]
        assert each(stores, value) == [[1.0]] * 2


def test_ctrl_c_in_a_call_that_the_others_do_not_make(tmp_path):
    """It may come again at once, or later with the others, however often it has been tried alone."""
    with cluster() as stores:
        each(stores, begin, tmp_path / "file")
        for _ in range(3):
            with pressed(), pytest.raises(KeyboardInterrupt):
                stores[1].load(tmp_path / "file")
            with pytest.raises(Refused, match=AGAIN):
                value(stores[1])
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, value) == [[1.0]] * 2


@pytest.mark.parametrize("what", ["barrier", "init", "save", "load", "set_optimizer"])
def test_collective_calls_may_be_interrupted_and_repeated(what, tmp_path):
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        path = tmp_path / "store"
        each(stores, lambda store: store.save(path))
        does = {
            "barrier": lambda store: store.barrier(),
            "init": lambda store: store.init("v", torch.ones(2)),
            "save": lambda store: store.save(path),
            "load": lambda store: store.load(path),
            "set_optimizer": lambda store: store.set_optimizer("sgd", lr=1.0),
        }[what]
        with pressed(), pytest.raises(KeyboardInterrupt):
            does(stores[0])  # the other one is not there yet
        for _ in range(2 if what != "init" else 1):
            assert each(stores, does) == [None, None]
        each(stores, lambda store: store.push("w", full(1)))
        assert pulled(stores[1], "w") == ([-2.0] if what == "set_optimizer" else [2.0])


def test_a_save_or_load_that_was_interrupted_is_done_again(tmp_path):
    store, path = kvstore.create("local"), str(tmp_path / "store")
    store.init("w", full(0))
    store.set_optimizer("sgd", lr=-1.0)
    for value in (1.0, 2.0):
        store.push("w", full(1))
        interrupted_as_it_was_done(store, Save(store, path, None))
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


def test_a_barrier_that_was_interrupted_as_it_was_done_is_done_once():
    """It is a new one if its worker has called something else since, but not if another thread of it has pushed."""
    with cluster(kind="dist_sync", deadline=1.0) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        first = stores[0]
        interrupted_as_it_was_done(first, Barrier(first))
        first.barrier()
        interrupted_as_it_was_done(first, Barrier(first))
        aside(first.push, "w", full(1))[0].join()
        first.barrier()
        interrupted_as_it_was_done(first, Barrier(first))
        stores[1].push("w", full(1))
        first.push("w", full(1))
        with pytest.raises(Timeout, match="worker 1 missing"):
            first.barrier()


def test_a_worker_that_has_given_up_a_barrier_is_not_there():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        for store, other in ((stores[1], 0), (stores[0], 1)):
            with pytest.raises(Timeout, match=f"worker {other} missing"):
                store.barrier()
        assert each(stores, lambda store: store.barrier()) == [None, None]


def test_after_a_load_a_push_is_a_new_one(tmp_path):
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        each(stores, lambda store: store.save(tmp_path / "store"))
        with pytest.raises(Timeout):
            stores[0].pushpull("w", full(1), out=full(0))
        stores[1].push("w", full(4))
        assert each(stores, lambda store: store.load(tmp_path / "store")) == [None, None]
        stores[0].push("w", full(1))
        stores[1].push("w", full(7))
        assert pulled(stores[0], "w") == [8.0]


# ---------------------------------------------------------------- a worker or a server is lost


@pytest.mark.parametrize(
    "what, lost, replicas", [("save", "fail", 0), ("load", "drop", 1), ("set_optimizer", "fail", 1)]
)
def test_call_of_all_workers_fails_without_worker_0(what, lost, replicas, tmp_path):
    with cluster(kind="dist_sync", replicas=replicas, lost=lost) as stores:
        each(stores, lambda store: store.init("w", full(1)))
        each(stores, lambda store: store.save(tmp_path / "there"))
        stores[0].close()
        argument = {"save": tmp_path / "new", "load": tmp_path / "there", "set_optimizer": "adagrad"}[what]
        with pytest.raises(WorkerLost, match="worker 0") as error:
            getattr(stores[1], what)(argument, **({"lr": 1.0} if what == "set_optimizer" else {}))
        assert error.value.ranks == (0,) and stores[1].optimizer is None
        assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.fault("F1", "worker 0 killed in the midst of a load")
@pytest.mark.parametrize("op, replicas", [(Op.RESTORE, 1), (Op.COMMIT, 0)])
def test_worker_0_is_killed_in_a_load_and_a_new_store_loads(op, replicas, tmp_path, monkeypatch):
    with cluster(3, replicas, lost="drop", deadline=1.0) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, op, lambda: is_killed(stores[0]))
        errors = each(stores, lambda store: store.load(tmp_path / "file"))[1:]
        assert all(isinstance(error, WorkerLost | Timeout) for error in errors), errors
        for store in (stores[1], stores[2]):
            with pytest.raises(Refused, match=AGAIN):
                value(store)
    with cluster(2, replicas) as stores:
        each(stores, lambda store: store.init(["w", "v"], [full(0, SIZE), full(0)]))
        assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, value) == [[1.0]] * 2


@pytest.mark.parametrize("left, replicas", [(False, 0), (True, 1)])
def test_a_save_without_worker_0_keeps_the_others_from_nothing(left, replicas, tmp_path, monkeypatch):
    with cluster(3, replicas, lost="drop", deadline=2.0) as stores:
        each(stores, begin, tmp_path / "file")
        others = [stores[1], stores[2]]
        if left:
            stores[0].close()
        else:
            asks(stores[0], monkeypatch, Op.STATE, lambda: is_killed(stores[0]), server=0)
        saving = [aside(raised, store.save, tmp_path / "new") for store in (others if left else stores)]
        for thread, _ in saving:
            thread.join(LIVE)
        assert all(isinstance(found[0], WorkerLost) for _, found in saving[-2:]), saving
        for store in others:
            store.push("w", full(1, SIZE))
        assert value(others[0]) == value(others[1]) == [6.0]


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
            assert [str(error) for error in each(stores, value)] == [AGAIN] * 2
            assert each(stores, lambda store: store.load(tmp_path / "file")) == [None, None]
        assert each(stores, value) == [[1.0]] * 2
        each(stores, lambda store: store.push("w", full(1, SIZE)))
        assert each(stores, value) == [[3.0]] * 2


@pytest.mark.fault("F2", "server without replicas killed in the midst of a load")
def test_without_replicas_a_server_that_is_killed_in_a_load_is_lost(tmp_path, monkeypatch):
    with cluster(deadline=2.0) as stores:
        each(stores, begin, tmp_path / "file")
        asks(stores[0], monkeypatch, Op.COMMIT, lambda: stores.kill(1))
        first, second = each(stores, lambda store: store.load(tmp_path / "file"))
        assert isinstance(first, ServerLost) and isinstance(second, KVError)
        assert [str(error) for error in each(stores, value)] == [AGAIN] * 2


# ---------------------------------------------------------------- how long others wait, and optimizers


def late_barriers(server):
    """How often a worker's deadline is over at a barrier of ``server``: a list that grows."""
    wait, late = server.store.wait_at, []

    def asked(*arguments, **options):
        try:
            return wait(*arguments, **options)
        except Timeout as error:
            late.append(error)
            raise

    server.store.wait_at = asked
    return late


def test_a_file_that_takes_longer_than_the_deadline_is_waited_for(monkeypatch, tmp_path):
    with kvstore.cluster(workers=2, deadline=0.5) as workers:
        each(workers, lambda worker: worker.init("w", torch.ones(3)))
        write, late = checkpoint.write, late_barriers(workers.servers[0])

        def slowly(*arguments):
            soon(lambda: len(late) == 3, 60)
            write(*arguments)

        monkeypatch.setattr(checkpoint, "write", slowly)
        assert each(workers, lambda worker: worker.save(tmp_path / "file")) == [None, None]
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None, None]


def test_a_worker_waits_for_a_worker_0_that_does_nothing_no_longer_than_the_deadline():
    with kvstore.cluster(workers=2, deadline=0.5) as workers:
        each(workers, lambda worker: worker.init("w", torch.ones(3)))
        late = late_barriers(workers.servers[0])
        with pytest.raises(Timeout, match="worker 0 missing"):
            workers[1].save("nowhere")
        assert len(late) == 1


def test_an_optimizer_that_worker_0_does_not_tell_all_servers_is_to_be_set_again(monkeypatch):
    """One server has it and one has not: no call goes on with that, until it is set on all."""
    with cluster(3, kind="dist_sync", lost="drop") as workers:
        each(workers, lambda worker: worker.init("w", full(0, SIZE)))
        with monkeypatch.context() as patch:
            asks(workers[0], patch, Op.OPTIMIZER, lambda: fails(ServerLost("worker 0 is no more", (1,))))
            errors = each(workers, lambda worker: worker.set_optimizer("sgd", lr=-1.0))
        assert isinstance(errors[0], ServerLost) and all(isinstance(error, KVError) for error in errors)
        errors = each(workers, lambda worker: worker.push("w", full(1, SIZE)))
        assert all("the last set_optimizer did not end on all workers" in str(error) for error in errors)
        assert each(workers, lambda worker: worker.set_optimizer("sgd", lr=-1.0)) == [None] * 3
        assert [server.store.updates.rule for server in workers.servers] == ["sgd", "sgd"]
        each(workers, lambda worker: worker.push("w", full(1, SIZE)))
        assert each(workers, value) == [[3.0]] * 3


def test_an_optimizer_is_set_after_all_earlier_pushes():
    """On all servers, an open round is stepped by the optimizer of its pushes."""
    with cluster(kind="dist_sync") as workers:
        came, store = threading.Event(), workers.servers[0].store
        come, choose = store.come, store.set_optimizer
        each(workers, lambda worker: worker.init("w", full(0, SIZE)))
        each(workers, lambda worker: worker.set_optimizer("sgd", lr=1.0))
        store.come = lambda *asked: (came.set(), come(*asked))[1]
        store.set_optimizer = lambda *asked: (came.set(), choose(*asked))[1]

        def work(worker):
            if worker.rank == 1:
                assert came.wait(LIVE)  # worker 0 has pushed, and sets the optimizer
            worker.push("w", full(1, SIZE))
            worker.set_optimizer("sgd", lr=100.0)
            return value(worker)

        assert each(workers, work) == [[-2.0], [-2.0]]
