"""What workers push from other threads while a load is under way: it waits for the end, and keeps nothing back."""

import threading
import time
from contextlib import suppress

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import KVError, Refused, Timeout, checkpoint, cluster
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.wire import Op

SIZE = 4000


def beside(worker, work) -> tuple[threading.Thread, list]:
    """A thread of ``worker``, and what ``work`` raises there."""
    raised = []

    def one():
        try:
            work(worker)
        except KVError as error:
            raised.append(error)

    thread = threading.Thread(target=one, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("replicas", [0, 1])
def test_who_waits_for_one_key_keeps_no_other_back(replicas, monkeypatch, tmp_path):
    """Two workers push the same keys, of two servers, in other orders: each waits for what the other is to push."""
    with cluster(workers=3, servers=2, deadline=4.0, replicas=replicas) as workers:

        def begin(worker):
            worker.init(["a", "b", "c"], [torch.zeros(3)] * 3)
            worker.save(tmp_path / "file")

        each(workers, begin)
        servers = {key: spec.parts[0][0].server for key, spec in workers[0]._keys.items()}
        keys = [next(key for key in servers if servers[key] == server) for server in (0, 1)]

        def pushpull(worker):
            worker.pushpull(keys[:: -1 if worker.rank == 2 else 1], [torch.ones(3)] * 2, out=[torch.empty(3)] * 2)

        pushing = []

        def restore(*arguments, restore=workers[0]._restore):
            staged = restore(*arguments)
            pushing.extend(beside(worker, pushpull) for worker in (workers[1], workers[2]))
            time.sleep(0.2)
            return staged

        monkeypatch.setattr(workers[0], "_restore", restore)
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 3
        pushpull(workers[0])
        for thread, raised in pushing:
            thread.join(10)
            assert not thread.is_alive() and not raised


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_who_takes_over_counts_no_push_before_the_load_is_over(kind, monkeypatch, tmp_path):
    """A server is killed before the load counts: the next one knows of the load before worker 0 comes with it again."""
    with cluster(kind, 2, 2, replicas=1, deadline=4.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            if kind != "dist_sync":
                worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")
            worker.push("w", torch.full((SIZE,), 5.0))
            worker.barrier()

        each(workers, begin)
        until_whole(workers)
        pushing = []

        def restore(*arguments, restore=workers[0]._restore):
            staged = restore(*arguments)
            pushing.append(beside(workers[1], lambda worker: worker.push("w", torch.ones(SIZE))))
            time.sleep(0.2)
            comes = workers[0].clients[0]._connect
            # worker 0 comes to the next one later than worker 1
            monkeypatch.setattr(workers[0].clients[0], "_connect", lambda until: time.sleep(0.3) or comes(until))
            workers.kill(0)
            return staged

        monkeypatch.setattr(workers[0], "_restore", restore)
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 2
        ((thread, raised),) = pushing
        thread.join(10)
        assert not thread.is_alive() and not raised
        if kind == "dist_sync":
            workers[0].push("w", torch.ones(SIZE))
        pulled = torch.empty(SIZE)
        workers[0].pull("w", out=pulled)
        assert pulled.unique().tolist() == [2.0 if kind == "dist_sync" else 1.0]


@pytest.mark.slow
def test_a_push_of_an_open_round_comes_to_who_takes_over_also_while_it_loads(monkeypatch, tmp_path):
    """It had returned; worker 0 begins to load there before it comes once more."""
    with cluster("dist_sync", 2, 2, replicas=1, deadline=4.0) as workers:

        def begin(worker):
            worker.init([*range(8)], [torch.zeros(3)] * 8)
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        until_whole(workers)
        key = next(key for key, spec in workers[0]._keys.items() if spec.parts[0][0].server == 1)
        workers[1].push(key, torch.ones(3))
        comes = workers[1].clients[1]._connect
        monkeypatch.setattr(workers[1].clients[1], "_connect", lambda until: time.sleep(0.4) or comes(until))

        def restore(*arguments, restore=workers[0]._restore):
            staged = restore(*arguments)
            time.sleep(1.0)  # meanwhile it comes
            return staged

        monkeypatch.setattr(workers[0], "_restore", restore)
        workers.kill(1)
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 2
        workers[0].push(key, torch.ones(3))
        assert each(workers, lambda worker: worker.push(key, torch.ones(3))) == [None] * 2
        pulled = torch.empty(3)
        workers[1].pull(key, out=pulled)
        assert pulled.unique().tolist() == [4.0]


@pytest.mark.parametrize("replicas", [0, 1])
def test_another_thread_of_who_loads_waits_too(replicas, monkeypatch, tmp_path):
    with cluster("dist_async", 2, 2, replicas=replicas, deadline=4.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        pushing = []

        def restore(*arguments, restore=workers[0]._restore):
            staged = restore(*arguments)
            pushing.append(beside(workers[0], lambda worker: worker.push("w", torch.ones(SIZE))))
            time.sleep(0.2)
            return staged

        monkeypatch.setattr(workers[0], "_restore", restore)
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 2
        ((thread, raised),) = pushing
        thread.join(10)
        assert not thread.is_alive() and not raised
        pulled = torch.empty(SIZE)
        workers[1].pull("w", out=pulled)
        assert pulled.unique().tolist() == [1.0]


# ---------------------------------------------------------------- in the midst of a push


@pytest.fixture
def halves(monkeypatch):
    """``halves(worker, seconds)``: what it pushes from here on comes to server 0 at once, and later to server 1."""

    def make(worker, seconds: float) -> None:
        client = worker.clients[1]

        def late(channel, request, send=client._send):
            if request.op == Op.PUSH and request.done.wait(seconds):
                raise Interrupted("nobody waits for it any more")
            return send(channel, request)

        monkeypatch.setattr(client, "_send", late)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_is_before_a_load_on_all_servers_or_after_it(kind, replicas, halves, tmp_path):
    settings = {"replicas": replicas, "deadline": 4.0, "placement": {"large": 1000}}
    with cluster(kind, 2, 2, staleness=int(kind == "dist_ssp"), **settings) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        halves(workers[1], 0.3)
        thread, raised = beside(workers[1], lambda worker: worker.push("w", torch.ones(SIZE)))
        time.sleep(0.1)  # server 0 has it, and server 1 has not
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 2
        thread.join(10)
        assert not thread.is_alive() and not raised
        pulled = torch.empty(SIZE)
        workers[1].pull("w", out=pulled)
        assert pulled.unique().tolist() in ([0.0], [1.0])


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_is_in_what_is_saved_with_all_its_parts_or_not(background, replicas, halves, tmp_path):
    with cluster("dist_async", 3, 2, replicas=replicas, deadline=4.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)

        each(workers, begin)
        pushing = []
        for worker, seconds in zip(workers[1:], (0.3, 0.2), strict=True):
            halves(worker, seconds)
            pushing.append(beside(worker, lambda worker: worker.push("w", torch.ones(SIZE))))
        time.sleep(0.1)

        def save(worker):
            said = worker.save(tmp_path / "file", background)
            said and said.wait()

        assert each(workers, save) == [None] * 3
        for thread, raised in pushing:
            thread.join(10)
            assert not thread.is_alive() and not raised
        each(workers, lambda worker: worker.load(tmp_path / "file"))
        pulled = torch.empty(SIZE)
        workers[1].pull("w", out=pulled)
        assert pulled.unique().tolist() in ([0.0], [1.0], [2.0])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["save", "load"])
def test_who_pushes_all_the_time_is_named(what, monkeypatch, tmp_path):
    with cluster("dist_async", 2, 2, deadline=1.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")
            worker.push("w", torch.ones(SIZE))

        each(workers, begin)
        before = (tmp_path / "file").read_bytes()

        def do(worker):
            with pytest.raises(Refused, match=f"other threads keep pushing to key 'w': {what} at a barrier"):
                getattr(worker, what)(tmp_path / "file")

        with monkeypatch.context() as patched:  # as if some parts always had a push that others have not
            patched.setattr("d2lps.kvstore.worker.files.is_whole", lambda spec, pushes: False)
            assert each(workers, do) == [None] * 2
        assert (tmp_path / "file").read_bytes() == before
        each(workers, lambda worker: worker.push("w", torch.ones(SIZE)))  # nothing is kept back by what was refused
        each(workers, lambda worker: worker.barrier())
        workers[0].pull("w", out=(pulled := torch.empty(SIZE)))
        assert pulled.unique().tolist() == [4.0]
        assert each(workers, lambda worker: getattr(worker, what)(tmp_path / "file")) == [None] * 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
def test_what_came_to_some_servers_is_brought_to_its_end_once(kind, halves, tmp_path):
    """It is given again while another thread loads, which would bring it to its end, too."""
    with cluster(kind, 2, 2, deadline=5.0, staleness=2 * (kind == "dist_ssp"), placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        halves(workers[0], 2.0)
        thread, raised = beside(workers[0], lambda worker: worker.push("w", torch.ones(SIZE)))
        time.sleep(0.1)  # server 0 has it, and server 1 has not
        with workers[0]._calls._changed:
            ((call, _),) = workers[0]._calls._running
        call.interrupt()
        thread.join(10)
        assert raised[0].unknown == ("w",)
        loading, refused = beside(workers[1], lambda worker: worker.load(tmp_path / "file"))
        thread, raised = beside(workers[0], lambda worker: worker.push("w", torch.ones(SIZE)))
        workers[0].load(tmp_path / "file")
        for one in (thread, loading):
            one.join(10)
            assert not one.is_alive()
        assert not raised and not refused
        pulled = torch.empty(SIZE)
        workers[0].pull("w", out=pulled)
        assert pulled.unique().tolist() in ([0.0], [1.0])
        before = pulled[0].item()
        workers[0].pushpull("w", torch.ones(SIZE), out=pulled)
        assert pulled.unique().tolist() == [before + 1]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_another_thread_may_init_keys_meanwhile(replicas, monkeypatch, tmp_path):
    with cluster("dist_async", 2, 2, replicas=replicas, deadline=4.0, placement={"large": 10}) as workers:

        def begin(worker):
            worker.init([*range(100)], [torch.zeros(40)] * 100)
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        read, over = checkpoint.read, threading.Event()

        def init(worker):
            for number in range(400):
                with suppress(KVError):
                    not over.is_set() and worker.init(f"new {number}", torch.zeros(3))

        def begins(*arguments):
            saved = read(*arguments)
            initializing.extend(beside(worker, init)[0] for worker in workers)
            return saved

        initializing = []
        monkeypatch.setattr(checkpoint, "read", begins)
        said = each(workers, lambda worker: worker.load(tmp_path / "file"))
        over.set()
        for thread in initializing:
            thread.join(10)
        assert said == [None] * 2
        workers[0].push(7, torch.ones(40))  # no load is left that it would wait for


def test_whatever_a_load_ends_with_no_push_waits_for_it(monkeypatch, tmp_path):
    with cluster("dist_async", 2, 2, deadline=2.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        def load(worker):
            with pytest.raises(KVError):
                worker.load(tmp_path / "file")

        def full(*_):
            raise MemoryError

        each(workers, begin)
        monkeypatch.setattr("d2lps.kvstore.worker.files.is_whole", full)
        each(workers, load)
        workers[1].push("w", torch.ones(SIZE))


@pytest.mark.slow
def test_what_raised_while_a_load_ended_counts_once_when_given_again(halves, monkeypatch, tmp_path):
    """It is pushed when the load counts, and its worker has not heard of that yet."""
    with cluster("dist_async", 2, 2, deadline=4.0) as workers:

        def begin(worker):
            worker.init([*range(8)], [torch.zeros(3)] * 8)
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        keys = [next(key for key, spec in workers[0]._keys.items() if spec.parts[0][0].server == n) for n in (0, 1)]

        def push(worker):
            worker.push(keys, [torch.ones(3)] * 2)

        def together(what, work, together=workers[0]._together):
            said = together(what, work)
            loading.join(10)  # on all servers
            thread, found = beside(workers[0], push)
            time.sleep(0.5)  # server 0 has it, and server 1 has not
            with workers[0]._calls._changed:
                (call,) = [call for call, taken in workers[0]._calls._running if workers[0]._keys[keys[0]] in taken]
            call.interrupt()
            thread.join(10)
            raised.extend(found)
            return said

        raised = []
        halves(workers[0], 2.0)
        monkeypatch.setattr(workers[0], "_together", together)
        loading, refused = beside(workers[1], lambda worker: worker.load(tmp_path / "file"))
        workers[0].load(tmp_path / "file")
        assert not refused and raised[0].counted == (keys[0],)
        push(workers[0])
        pulled = [torch.empty(3), torch.empty(3)]
        workers[0].pull(keys, out=pulled)
        assert [one.unique().tolist() for one in pulled] == [[1.0], [1.0]]


@pytest.mark.parametrize("replicas", [0, 1])
def test_what_a_refused_load_could_not_drop_is_dropped_before_the_next_push(replicas, monkeypatch, tmp_path):
    """The parts of one key are ready, then another is refused, and a server does not answer to have them dropped."""
    with cluster("dist_sync", 2, 2, replicas=replicas, deadline=4.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init(["w", "x"], [torch.zeros(SIZE), torch.zeros(SIZE)])
            worker.save(tmp_path / "file")
            worker.barrier()

        each(workers, begin)
        workers[1].push("x", torch.ones(SIZE))  # its round is open
        silent = [True]

        def ask_all(op, metadata, *each, ask=workers[0]._ask_all):
            if metadata.get("drop") and silent:
                raise Timeout("a server is silent")
            return ask(op, metadata, *each)

        monkeypatch.setattr(workers[0], "_ask_all", ask_all)
        refused = each(workers, lambda worker: worker.load(tmp_path / "file"))
        assert ["midst of a round" in str(error) for error in refused] == [True, True]
        with pytest.raises(Timeout, match="a server is silent"):
            workers[0].push("w", torch.ones(SIZE))
        silent.clear()
        workers[0].push("x", torch.ones(SIZE))
        pulled = torch.empty(SIZE)
        each(workers, lambda worker: worker.pushpull("w", torch.ones(SIZE), out=torch.empty(SIZE)))
        for key in ("w", "x"):
            workers[1].pull(key, out=pulled)
            assert pulled.unique().tolist() == [2.0]
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None] * 2


@pytest.mark.parametrize("first", ["push", "pull", "save", "load"])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_load_that_some_servers_have_not_heard_of_is_ended_before_the_next_call(
    replicas, first, monkeypatch, tmp_path
):
    """All of it is ready, server 0 takes it, and server 1 is silent when it counts: every worker hears of a Timeout."""
    with cluster("dist_sync", 2, 2, replicas=replicas, deadline=4.0, placement={"large": 1000}) as workers:

        def begin(worker):
            worker.init("w", torch.zeros(SIZE))
            worker.save(tmp_path / "file")
            worker.pushpull("w", torch.ones(SIZE), out=torch.empty(SIZE))
            worker.barrier()

        def meets_silence(worker, silent):
            def ask_all(op, metadata, each=None, until=None, ask_all=worker._ask_all):
                if op == Op.COMMIT and silent:
                    worker._ask(worker.clients[:1], op, metadata | each[0])
                    raise Timeout("server 1 is silent")
                ask_all(op, metadata, each, until)

            monkeypatch.setattr(worker, "_ask_all", ask_all)

        each(workers, begin)
        silent = [True]
        for worker in workers:
            meets_silence(worker, silent)
        raised = each(workers, lambda worker: worker.load(tmp_path / "file"))
        assert [str(error) for error in raised] == ["server 1 is silent"] * 2
        with pytest.raises(Timeout, match="server 1 is silent"):
            workers[0].pull("w", out=torch.empty(SIZE))
        silent.clear()
        pulled = torch.full((SIZE,), -1.0)
        if first == "push":
            each(workers, lambda worker: worker.push("w", torch.ones(SIZE)))
        elif first != "pull":
            raised = each(workers, lambda worker: getattr(worker, first)(tmp_path / "other"))
            assert [isinstance(error, Refused) for error in raised] == [first == "load"] * 2  # no such file
            if first == "save":
                saved = checkpoint.read(tmp_path / "other", {"w": ((SIZE,), torch.float32)})
                assert saved.keys["w"][1]["value"].unique().tolist() == [0.0]
        workers[0].pull("w", out=pulled)
        assert pulled.unique().tolist() == [2.0 if first == "push" else 0.0]


def test_what_comes_late_of_a_load_that_was_given_up_is_refused_with_replicas():
    with cluster("dist_sync", 1, 2, replicas=1, deadline=4.0) as workers:
        workers[0].init("w", torch.zeros(3))
        slot = workers[0]._keys["w"].parts[0][0].server
        store = workers.servers[slot].replicas[slot].store
        store.drop(0, 5)
        with pytest.raises(Refused, match="load 5 is over"):
            store.stage(0, 5, 0, {"value": torch.ones(3)}, None)
        store.stage(0, 6, 0, {"value": torch.ones(3)}, None)
        store.drop(0, 5)  # which comes late, too
        store.commit(0, 6, 1, None)
        assert store.slot.core.loaded == 6
