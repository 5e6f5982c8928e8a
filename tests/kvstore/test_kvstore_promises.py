"""Promises of a push that raises: it names the counted keys, and the same call again counts each of them once.

The machine pushes and pulls at real servers, is interrupted at moments that nobody chose, and compares with sums.
"""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from helpers.stores import each, interrupted_as_it_was_done
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from d2lps import kvstore
from d2lps.kvstore import KVError, Placement, Refused, Timeout, Unknown
from d2lps.kvstore.calls import Call, Calls, Once
from d2lps.kvstore.store import Barrier

SIZES = {"small": 7, "cut": 2_000, "large": 40_000, "other": 3}  # of cut and large each server has a part
EXAMPLES = int(os.environ.get("D2LPS_EXAMPLES", "40"))  # of 50 steps each, 2,000
UNTOUCHED = -7.0
USUALLY = st.sampled_from([True] * 7 + [False])


class Model:
    """What is known of a key: the sum of worker 0's counted pushes, how many those are, and what may be counted."""

    def __init__(self):
        self.total, self.pushes, self.partner, self.open = 0.0, 0, 0, None

    def count(self, value):
        self.total, self.pushes = self.total + value, self.pushes + 1


class Promises(RuleBasedStateMachine):
    """One worker that is interrupted now and then, and one, where ``kind`` has rounds, that closes them with zeros."""

    kind = "dist_async"

    @initialize(transport=st.sampled_from(["unix", "tcp"]))
    def begin(self, transport):
        synchronous = self.kind == "dist_sync"
        self.cluster = kvstore.cluster(
            self.kind,
            1 + synchronous,
            2,
            transport=transport,
            deadline=0.6 if synchronous else 5.0,
            placement=Placement(2, large=1000),
        )
        names = list(SIZES)
        firsts = [torch.zeros(size) for size in SIZES.values()]
        each(self.cluster, lambda store: (store.init(names, firsts), store.set_optimizer("sgd", lr=-1.0)))
        self.store, self.models = self.cluster[0], {name: Model() for name in names}
        self.next, self.failed, self.left_alone = 1.0, None, []

    def teardown(self):
        if hasattr(self, "cluster"):
            self.require_untouched()
            self.cluster.close()

    # ---- actions

    @rule(
        keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True),
        how=st.sampled_from(["push", "out", "in"]),
        first=USUALLY,
    )
    def push(self, keys, how, first):
        if first:
            self.close_rounds()
        self.run(*self.another(keys, how))

    @rule(
        keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True),
        how=st.sampled_from(["push", "out", "in"]),
        after=st.floats(1e-5, 4e-3),
        first=USUALLY,
    )
    def push_interrupted(self, keys, how, after, first):
        if first:
            self.close_rounds()
        self.run(*self.another(keys, how), after=after)

    @rule(after=st.none() | st.floats(1e-5, 4e-3), first=USUALLY)
    def the_same_again(self, after, first):
        if first:
            self.close_rounds()
        if self.failed is not None:
            self.run(*self.failed, after=after)

    @rule(keys=st.lists(st.sampled_from(list(SIZES)), min_size=1, unique=True), bad=st.integers(0, 3))
    def push_values_of_other_shapes(self, keys, bad):
        values = [torch.full((SIZES[key],), 1.0) for key in keys]
        values[bad % len(keys)] = torch.ones(1)
        with pytest.raises(Refused) as refused:
            self.store.push(keys, values)
        assert (refused.value.counted, refused.value.unknown) == ((), ())
        self.failed = None

    @rule()
    def close_rounds(self):
        for key, model in self.models.items():
            while self.waits(model):
                with suppress(Timeout, Unknown):  # where others compute, too; the same again counts once
                    self.cluster[1].push(key, torch.zeros(SIZES[key]))
                    model.partner += 1

    @rule(key=st.sampled_from(list(SIZES)), after=st.none() | st.floats(1e-5, 2e-3))
    def pull(self, key, after):
        model = self.models[key]
        if model.open is not None or self.waits(model):
            return
        out = torch.full((SIZES[key],), UNTOUCHED)
        self.forget_failed([key])
        try:
            self.interrupt(after, lambda: self.store.pull(key, out=out))
        except KeyboardInterrupt:
            self.leave_alone([out])
        except Timeout as error:  # where others compute, too: it comes when it is asked for again
            assert self.kind == "dist_sync", error
            self.leave_alone([out])
            self.pull(key=key, after=None)
        else:
            assert out.unique().tolist() == [model.total]

    # ---- how it is done, and what must hold

    def another(self, keys, how):
        """A push of values that no other push has."""
        values = []
        for key in keys:
            values.append(torch.full((SIZES[key],), self.next))
            self.next += 1
        outs = {"push": None, "in": values, "out": [torch.full((SIZES[key],), UNTOUCHED) for key in keys]}[how]
        return keys, values, outs, {}

    def run(self, keys, values, outs, done, after=None):
        """Push ``values``, of which those of the keys in ``done`` count already."""
        pushed = [value[0].item() for value in values]
        call = (
            (lambda: self.store.push(keys, values)) if outs is None else lambda: self.store.pushpull(keys, values, outs)
        )
        if not done:
            self.forget_failed(keys)
        error = None
        try:
            self.interrupt(after, call)
        except (KeyboardInterrupt, Timeout, Unknown) as raised:
            error = raised
            assert isinstance(raised, KeyboardInterrupt) or self.kind == "dist_sync", raised
        counted = {*getattr(error, "counted", done)} if error else {*keys}
        unknown = {*getattr(error, "unknown", ())} if error else set()
        assert not counted & unknown and done.keys() <= counted | unknown
        for key, value in zip(keys, pushed, strict=True):
            model = self.models[key]
            if key in counted | unknown:
                if model.open not in (None, value):  # another push first brings it to its end
                    model.count(model.open)
                if key in counted and key not in done:
                    model.count(value)
                model.open = value if key in unknown else None
            elif model.open == value and isinstance(error, Timeout):
                model.open = None  # all servers say that it is not counted
        if error is None:
            self.failed = None
            for key, out in zip(keys, outs or (), strict=bool(outs)):
                assert out.unique().tolist() == [self.models[key].total]
            return
        overwritten = any(value[0].item() != before for value, before in zip(values, pushed, strict=True))
        if counted and not overwritten:
            self.failed = keys, values, outs, dict.fromkeys(counted)
        else:
            self.failed = None
        if outs is not None and outs is not values:
            self.leave_alone(outs)
            if self.failed:
                self.failed = keys, values, [torch.empty_like(out) for out in outs], dict.fromkeys(counted)

    def interrupt(self, after, call):
        """``call()``, which Ctrl-C ends after so many seconds, unless it has returned before."""
        if after is None:
            call()
            return
        armed = [True]

        def ring(*_):
            if armed:
                armed.clear()
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            call()
            armed.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def waits(self, model):
        return self.kind == "dist_sync" and model.partner < model.pushes

    def forget_failed(self, keys):
        if self.failed and {*keys} & {*self.failed[0]}:
            self.failed = None

    def leave_alone(self, outs):
        """Whoever was interrupted goes on with its tensors: nobody else writes there any more."""
        self.require_untouched()
        for out in outs:
            out.fill_(UNTOUCHED)
        self.left_alone = outs

    def require_untouched(self):
        for out in self.left_alone:
            assert (out == UNTOUCHED).all(), "written after the call was interrupted"


class SynchronousPromises(Promises):
    kind = "dist_sync"


@pytest.mark.fault("F15", "interrupted at any moment, then the same call or another: 2,000 steps against a model")
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(Promises, marks=[pytest.mark.alone, pytest.mark.slow(5)]),
        pytest.param(SynchronousPromises, marks=pytest.mark.slow(45)),  # which waits
    ],
)
def test_every_push_counts_once_whatever_interrupts_it(machine):
    # Nothing is shrunk: the moments are not the same again.
    examples = EXAMPLES * 7 // 8 if machine is Promises else EXAMPLES // 8
    steps = settings(max_examples=examples, stateful_step_count=50, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=steps)


# ---- one after the other, by name

PLACE = Placement(2)
A, B = (next(f"k{i}" for i in range(99) if PLACE.owner(f"k{i}") == server) for server in (0, 1))


def full(value, size=3):
    return torch.full((size,), float(value))


def pulled(store, key, size=3):
    store.pull(key, out=(out := torch.empty(size)))
    return out.unique().tolist()


def begun(stores, *keys, size=3):
    """Both workers' stores, with ``keys`` at zero."""
    each(stores, lambda store: store.init(list(keys), [torch.zeros(size)] * len(keys)))
    return stores


WAITING = {function.__code__ for function in (Once.wait, Call.interrupt, Calls._settle)}


@contextmanager
def alarm(first, every=0.0):
    """Ctrl-C after ``first`` seconds; or while a call waits, and again ``every`` so many."""

    def again(number, frame):
        while frame and frame.f_code not in WAITING:
            frame = frame.f_back
        if frame:  # a second one elsewhere would hide the first, of which the test asks
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, again if every else signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as interruption:
            signal.setitimer(signal.ITIMER_REAL, first, every)
            try:
                yield interruption
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def late():
    """Worker 0 has pushed to A and is a round ahead; what it pushes to both now counts for B alone."""
    with kvstore.cluster("dist_sync", 2, 2, deadline=1.0) as stores:
        begun(stores, A, B)[0].push(A, full(1))
        with pytest.raises(Timeout, match="waits for round 1 to close") as error:
            stores[0].push([A, B], [full(10), full(20)])
        assert (error.value.counted, error.value.unknown) == ((B,), ())
        stores[1].push(A, full(4))
        yield stores


@pytest.mark.slow
def test_the_same_push_again_counts_each_key_once(late):
    late[0].push([A, B], [full(10), full(20)])
    late[1].push([A, B], [full(40), full(80)])
    assert [pulled(store, key) for store in late for key in (A, B)] == [[50.0], [100.0]] * 2


@pytest.mark.slow
def test_another_push_is_another(late):
    late[0].push(A, full(10))
    late[1].push([A, B], [full(40), full(80)])
    late[0].push([A, B], [full(0), full(20)])  # of B the same bits as before, in another call
    late[1].push([A, B], [full(0), full(0)])
    assert [pulled(late[0], A), pulled(late[0], B)] == [[0.0], [20.0]]


@pytest.mark.slow
def test_where_only_the_pull_fails_the_same_again_pulls():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        store, value, out = begun(stores, "w")[0], full(1), full(UNTOUCHED)
        with pytest.raises(Timeout) as error:
            store.pushpull("w", value, out=out)
        assert error.value.counted == ("w",)
        stores[1].push("w", full(4))
        store.pushpull("w", value, out=out)
        assert out.tolist() == [5.0] * 3
        with pytest.raises(Timeout):
            store.pushpull("w", value)
        assert value.tolist() == [1.0] * 3, "in place, and nothing had come"


@pytest.mark.slow
def test_a_key_that_was_not_counted_tells_one_push_from_another(late):
    with pytest.raises(Timeout) as error:  # of B the same bits as before, in another call: it waits for round 1
        late[0].push([A, B], [full(11), full(20)])
    assert error.value.counted == (A,)


@pytest.mark.slow
def test_what_is_refused_between_changes_nothing():
    with kvstore.cluster("dist_sync", 2, 2, deadline=1.0) as stores:
        begun(stores, A, B)[0].push(A, full(1))
        with pytest.raises(Timeout):
            stores[0].push([A, B], [full(10), full(20)])
        with pytest.raises(Refused, match="has shape"):
            stores[0].push(B, torch.ones(9, 9))
        stores[1].push(A, full(4))
        stores[0].push([A, B], [full(10), full(20)])
        stores[1].push([A, B], [full(40), full(80)])
        assert [pulled(stores[0], key) for key in (A, B)] == [[50.0], [100.0]]


@pytest.mark.slow
def test_a_repeated_push_keeps_the_pushes_of_others():
    with kvstore.cluster("dist_sync", 3, 1, deadline=1.0) as stores:
        begun(stores, "w", size=40_000)[1].push("w", full(10, 40_000))
        value, out = full(1, 40_000), full(0, 40_000)
        for _ in range(2):
            with pytest.raises(Timeout):
                stores[0].pushpull("w", value, out=out)
        stores[2].push("w", full(100, 40_000))
        stores[0].pushpull("w", value, out=out)
        assert out.unique().tolist() == [111.0]


@pytest.mark.slow
def test_after_a_load_a_push_is_a_new_one(tmp_path):
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        begun(stores, "w")
        each(stores, lambda store: store.save(tmp_path / "store"))
        with pytest.raises(Timeout):
            stores[0].pushpull("w", full(1), out=full(0))
        stores[1].push("w", full(4))
        assert each(stores, lambda store: store.load(tmp_path / "store")) == [None, None]
        stores[0].push("w", full(1))
        stores[1].push("w", full(7))
        assert pulled(stores[0], "w") == [8.0]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("pushed", [lambda x: x.t(), lambda x: [x.t()], lambda x: x.numpy().T, lambda x: x[:, ::2]])
def test_what_is_pushed_in_place_stays_until_all_has_come(pushed, transport):
    with kvstore.cluster("dist_sync", 2, 2, transport=transport, deadline=1.0, placement=PLACE) as stores:
        x = torch.arange(40_000.0).reshape(200, 200)
        given = pushed(x)
        like = torch.as_tensor(given[0] if isinstance(given, list) else given)
        out = x if like.shape == x.shape else x[:, 1::2]
        each(stores, lambda store: store.init([A, B], [torch.zeros(like.shape)] * 2))
        stores[1].push(A, torch.zeros(like.shape))
        before = x.clone()
        with pytest.raises(Timeout):  # of A all has come
            stores[0].pushpull([A, B], [given, torch.ones(like.shape)], out=[out, torch.empty(like.shape)])
        assert torch.equal(x, before)


def test_several_outs_may_lie_in_one_place_and_odd_ones_are_refused():
    with kvstore.cluster("dist_sync", 1, 1) as (other,):
        for store in (kvstore.create("local"), other):
            store.init("w", torch.ones(3, 3))
            store.pull("w", out=[x := torch.zeros(3, 3), x.t()])
            assert x.unique().tolist() == [1.0]
            for odd in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn()):
                with pytest.raises(Refused):
                    store.pushpull("w", torch.ones(3, 3), out=odd)
            assert pulled(store, "w", (3, 3)) == [1.0]


@pytest.mark.slow
def test_what_was_done_when_its_caller_was_interrupted_is_not_done_again():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        each(stores, lambda store: store.barrier())
        interrupted_as_it_was_done(stores[0], Barrier(stores[0]))
        stores[0].barrier()
        with pytest.raises(Timeout, match="worker 1 missing"):
            stores[0].barrier()


def test_no_thread_to_be_had_is_no_end_of_the_store(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    store = kvstore.create("local")
    with monkeypatch.context() as patch:
        patch.setattr("threading._start_new_thread", fail)
        store.init("w", torch.ones(3))
        assert pulled(store, "w") == [1.0]
    assert pulled(store, "w") == [1.0]


@pytest.mark.parametrize("size", [3, 40_000])
def test_ctrl_c_while_a_push_waits_and_then_another_call(size):
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        store = begun(stores, "w", "v", size=size)[0]
        store.push("w", full(1, size))
        with alarm(0.2, every=0.001) as interruption:
            store.push("w", full(100, size))  # waits for round 1
        assert (interruption.value.counted, interruption.value.unknown) == ((), ("w",))
        store.push("v", full(3, size))  # at once: nothing is kept back
        stores[1].push(["w", "v"], [full(4, size), full(4, size)])
        store.push("w", full(100, size))  # the same again
        stores[1].push("w", full(400, size))
        assert [pulled(store, key, size) for key in ("w", "v")] == [[500.0], [7.0]]


@pytest.mark.parametrize("what", ["barrier", "init", "save", "load", "set_optimizer"])
def test_collective_calls_may_be_interrupted_and_repeated(what, tmp_path):
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        begun(stores, "w")
        path = tmp_path / "store"
        each(stores, lambda store: store.save(path))
        does = {
            "barrier": lambda store: store.barrier(),
            "init": lambda store: store.init("v", torch.ones(2)),
            "save": lambda store: store.save(path),
            "load": lambda store: store.load(path),
            "set_optimizer": lambda store: store.set_optimizer("sgd", lr=1.0),
        }[what]
        with alarm(0.2):
            does(stores[0])  # the other one is not there yet
        for _ in range(2 if what != "init" else 1):
            assert each(stores, does) == [None, None]
        each(stores, lambda store: store.push("w", full(1)))
        assert pulled(stores[1], "w") == ([-2.0] if what == "set_optimizer" else [2.0])


@pytest.mark.slow
def test_threads_push_to_one_key_one_after_the_other_and_to_several_side_by_side():
    with kvstore.cluster("dist_async", 1, 2) as (store,):
        keys = ["a", "b"]
        store.init(keys, [torch.zeros(4), torch.zeros(40_000)])
        store.set_optimizer("sgd", lr=-1.0)
        found = []

        def push(key, size):
            for _ in range(100):
                store.push(key, torch.ones(size))
                found.append(pulled(store, key, size)[0])

        pairs = [("a", 4), ("a", 4), ("b", 40_000), ("b", 40_000)]
        threads = [threading.Thread(target=push, args=pair) for pair in pairs]
        [thread.start() for thread in threads], [thread.join(60) for thread in threads]
        assert len(found) == 400 and [pulled(store, "a", 4), pulled(store, "b", 40_000)] == [[200.0], [200.0]]


def test_two_threads_of_each_worker_come_to_two_barriers():
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        threads = [threading.Thread(target=store.barrier, daemon=True) for store in [*stores, *stores]]
        [thread.start() for thread in threads], [thread.join(10) for thread in threads]
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.slow(4)
def test_a_forked_child_is_refused_whatever_another_thread_was_at():
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", torch.zeros(50_000))
        store.set_optimizer("sgd", lr=1.0)
        stop = threading.Event()

        def push():
            while not stop.is_set():
                store.push("w", torch.ones(50_000))

        thread = threading.Thread(target=push)
        thread.start()
        try:
            for call in [
                store.barrier,
                lambda: store.set_optimizer("sgd", lr=1.0),
                lambda: pulled(store, "w", 50_000),
            ] * 5:
                if not (child := os.fork()):
                    with suppress(BaseException):
                        try:
                            call()
                        except Refused:
                            os._exit(0)
                    os._exit(1)
                until = time.monotonic() + 10
                while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
                    time.sleep(0.005)
                if not ended[0]:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                assert ended == (child, 0), "a call hangs in a forked child, or is not refused there"
        finally:
            stop.set()
            thread.join()


def inference(size):
    with torch.inference_mode():
        return torch.zeros(size)


def only_read(size):
    array = np.zeros(size, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("size", [3, 40_000])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (inference, "inference_mode"),
        (only_read, "read-only array"),
        (lambda size: torch.zeros(1).expand(size), "share one place"),
    ],
)
def test_out_is_looked_at_before_anything_is_counted(made, why, size):
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", torch.zeros(size))
        store.set_optimizer("sgd", lr=-1.0)
        with pytest.raises(Refused, match=f"key 'w': .*{why}"):
            store.pushpull("w", torch.ones(size), out=made(size))
        assert pulled(store, "w", size) == [0.0]
        with torch.inference_mode():
            assert pulled(store, "w", size) == [0.0]


def test_a_value_that_is_negated_when_it_is_read_is_pushed_so():
    with kvstore.cluster("dist_sync", 1, 1) as (store,):
        store.init("other", torch.zeros(1))
        for size in (3, 40_000):
            store.init(size, torch.zeros(size))
            store.push(size, torch._neg_view(torch.ones(size)))
            out = torch._neg_view(torch.empty(size))
            store.pull([size, "other"], out=[out, torch.empty(1)])
            assert pulled(store, size, size) == out.unique().tolist() == [-1.0]


@pytest.mark.slow
def test_pushes_that_fail_give_their_memory_back():
    with kvstore.cluster("dist_sync", 2, 1, deadline=0.1) as stores:
        store, value = begun(stores, "w", size=100_000)[0], torch.ones(100_000)
        store.push("w", value)
        for turn in range(6):
            with pytest.raises((Timeout, Unknown)):
                store.push("w", value)
            if turn == 1:
                taken = store._arena._next
        assert store._arena._next == taken


def test_an_answer_that_cannot_be_put_in_its_place_is_an_error_of_that_call_alone(monkeypatch):
    def fail(*_):
        raise RuntimeError("no such place")

    with kvstore.cluster("dist_sync", 1, 1, deadline=3.0) as (store,):
        store.init("w", torch.ones(40_000))
        with monkeypatch.context() as patch, pytest.raises(KVError, match="no such place"):
            patch.setattr(type(store.clients[0]), "_put", fail)
            pulled(store, "w", 40_000)
        assert pulled(store, "w", 40_000) == [1.0]


@pytest.mark.slow(4)
def test_names_longer_than_a_frame_travel_in_several():
    names = ["\U0001f600" * 253 + chr(0x20000 + i) for i in range(4200)]
    with kvstore.cluster("dist_sync", 1, 1) as (store,):
        store.init(names, [torch.ones(1)] * len(names))
        assert pulled(store, names[-1], 1) == [1.0]


@pytest.mark.parametrize("key", [10**5000, "x" * 1_000_000, 1.5, None, {"a"}, True], ids=range(6))
def test_odd_keys_are_refused(key):
    store = kvstore.create("local")
    for call in (store.init, store.push):
        with pytest.raises(Refused, match="key"):
            call(key, torch.ones(1))
        with pytest.raises(Refused, match="key"):
            call([key], [torch.ones(1)])


def test_a_forked_child_is_refused_by_a_local_store():
    store = kvstore.create("local")
    store.init("w", torch.zeros(3))
    if not (child := os.fork()):
        with suppress(BaseException):
            with pytest.raises(Refused, match="forked"):
                store.push("w", torch.ones(3))
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and pulled(store, "w") == [0.0]


@pytest.mark.parametrize("after", [0.001, 0.002, 0.004, 0.008, 0.016])
def test_a_local_store_is_interrupted_in_order_too(after):
    store, size, pushes = kvstore.create("local"), 1_000_000, 0
    store.init(["a", "b"], [torch.zeros(size)] * 2)
    store.set_optimizer("sgd", lr=-1.0)
    values = [torch.ones(size)] * 2
    with alarm(after):
        while True:
            store.push(["a", "b"], values)
            pushes += 1
    store.push(["a", "b"], values)  # again, if it was one that was interrupted
    assert pulled(store, "a", size) == pulled(store, "b", size)
    assert pulled(store, "a", size)[0] - pushes in (1, 2)  # 2: it had returned, and was not yet added up here
