"""Each push counts once: a push that raises names the counted keys, and the same call again counts each of them once.

The machine pushes and pulls at real servers, is interrupted at moments that no test chooses, and compares with sums.
"""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import torch
from helpers import breaking
from helpers.breaking import DEADLINE, SECRET, Frames, Proxy, closing, store, tables
from helpers.stores import each, full, interrupt, pulled, refuse_first_push
from helpers.waits import LIVE
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from d2lps import kvstore
from d2lps.kvstore import KVError, Placement, Refused, Timeout, Unknown
from d2lps.kvstore.calls import Call, Calls, Once
from d2lps.kvstore.wire import PUSHES, Op
from d2lps.kvstore.worker import dist
from d2lps.kvstore.worker.client import Counted

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
NOTHING_LEFT = pytest.mark.usefixtures("nothing_left")


SIZES = {"small": 7, "cut": 2_000, "large": 40_000, "other": 3}  # of cut and large each server has a part
EXAMPLES = int(os.environ.get("D2LPS_EXAMPLES", "32"))  # of 50 steps each
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


@pytest.mark.fault("F15", "interrupted at any moment, then the same call or another, against a model")
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(Promises, marks=pytest.mark.alone),
        SynchronousPromises,  # which waits
    ],
)
def test_every_push_counts_once_whatever_interrupts_it(machine):
    # Nothing is shrunk: the moments are not the same again.
    examples = EXAMPLES * 7 // 8 if machine is Promises else EXAMPLES // 8
    steps = settings(max_examples=examples, stateful_step_count=50, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=steps)


# ---------------------------------------------------------------- one after the other, by name


PLACE = Placement(2)
A, B = (next(f"k{i}" for i in range(99) if PLACE.owner(f"k{i}") == server) for server in (0, 1))


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


def test_push_that_was_counted_for_some_keys_differs_from_another_by_the_others(late):
    with pytest.raises(Timeout) as error:  # of B the same bits as before, in another call: it waits for round 1
        late[0].push([A, B], [full(11), full(20)])
    assert error.value.counted == (A,)


def test_push_that_is_refused_between_changes_nothing(late):
    with pytest.raises(Refused, match="has shape"):
        late[0].push(B, torch.ones(9, 9))
    late[0].push([A, B], [full(10), full(20)])
    late[1].push([A, B], [full(40), full(80)])
    assert [pulled(late[0], key) for key in (A, B)] == [[50.0], [100.0]]


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


@pytest.mark.parametrize(
    "pushed, transport",
    [
        (lambda x: x.t(), "tcp"),
        (lambda x: [x.t()], "unix"),
        (lambda x: x.numpy().T, "tcp"),
        (lambda x: x[:, ::2], "unix"),
    ],
)
def test_value_that_is_pushed_in_place_stays_until_all_has_come(pushed, transport):
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


def test_pushes_that_fail_give_their_memory_back():
    with kvstore.cluster("dist_sync", 2, 1, deadline=0.1) as stores:
        store, value = begun(stores, "w", size=100_000)[0], torch.ones(100_000)
        store.push("w", value)
        for turn in range(6):
            with pytest.raises((Timeout, Unknown)):
                store.push("w", value)
            if turn == 1:
                taken = store._shared_buffer._next
        assert store._shared_buffer._next == taken


def test_push_that_ctrl_c_ends_as_it_waits_keeps_back_no_other():
    with kvstore.cluster("dist_sync", 2, 1, deadline=5.0) as stores:
        store = begun(stores, "w", "v")[0]
        store.push("w", full(1))
        with alarm(0.2, every=0.001) as interruption:
            store.push("w", full(100))  # waits for round 1
        assert (interruption.value.counted, interruption.value.unknown) == ((), ("w",))
        store.push("v", full(3))  # at once: nothing is kept back
        stores[1].push(["w", "v"], [full(4), full(4)])
        store.push("w", full(100))  # the same again
        stores[1].push("w", full(400))
        assert [pulled(store, key) for key in ("w", "v")] == [[500.0], [7.0]]


@pytest.mark.parametrize("after", [0.001, 0.004, 0.016])
def test_local_store_is_interrupted_in_order_too(after):
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


def counting(store, *keys, size=3):
    """The store, whose values are the sums of what is pushed to them."""
    store.init(list(keys), [torch.zeros(size)] * len(keys))
    store.set_optimizer("sgd", lr=-1.0)
    return store


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


def is_unknown(client, requests):
    for request in requests:
        request.counted = Counted.UNKNOWN
        request.fail(Unknown("it was sent, or was it not?"))


def test_an_unknown_push_ends_before_a_load_and_not_after_it(tmp_path, monkeypatch):
    with kvstore.cluster("dist_async", 1, 2) as (store,):
        counting(store, "w").save(tmp_path / "store")
        with monkeypatch.context() as patch, pytest.raises(Unknown) as error:
            patch.setattr(dist, "ask_in_turn", is_unknown)
            store.push("w", full(100))
        assert error.value.unknown == ("w",)
        store.load(tmp_path / "store")
        store.push("w", full(1))
        assert pulled(store) == [1.0]


def test_an_unknown_push_that_ends_for_a_push_that_fails_is_not_counted_again(monkeypatch):
    with kvstore.cluster("dist_sync", 2, 1, deadline=0.3) as (store, other):
        each((store, other), counting, "w")
        with monkeypatch.context() as patch, pytest.raises(Unknown):
            patch.setattr(dist, "ask_in_turn", is_unknown)
            store.push("w", full(10))
        with pytest.raises(Timeout) as error:  # before it comes what is unknown, which takes the place in this round
            store.push("w", full(100))
        assert (error.value.counted, error.value.unknown) == ((), ())
        store.push("w", full(10))
        other.push("w", full(0))
        assert pulled(store) == [10.0]


# ---------------------------------------------------------------- lines that break, and messages lost, twice, late


@NOTHING_LEFT
@pytest.mark.fault("F6", "connections cut and stalled in the middle of a frame")
@pytest.mark.fault("F7", "bits flipped on the way, with a secret")
@pytest.mark.parametrize(
    "kind, how, seed",
    [
        *((kind, "plain", seed) for kind in ("dist_sync", "dist_async") for seed in range(4)),
        *(("dist_sync", "secret", seed) for seed in range(2)),
    ],
)
def test_lines_that_break_count_every_push_once(kind, how, seed):
    servers = tables(kind, servers=2, secret=SECRET if how == "secret" else b"")
    kinds = ("flip",) if how == "secret" else ("cut", "flip", "stall")  # each flip must be noticed by a code
    between = [[Proxy(each.address, 10 * seed + rank, 3, 200, kinds) for each in servers] for rank in range(2)]
    stores = [
        store(servers, rank, addresses={i: p.here for i, p in enumerate(between[rank])}, kind=kind) for rank in range(2)
    ]

    def work(mine):
        mine.init("w", torch.zeros(5000, dtype=torch.float64))
        if kind != "dist_sync":
            mine.set_optimizer("sgd", lr=-1.0)
        seen = torch.empty(5000, dtype=torch.float64)
        for _ in range(10):
            mine.push("w", torch.full((5000,), 64.0**mine.rank, dtype=torch.float64))
            mine.pull("w", out=seen)
            if kind == "dist_sync":
                assert seen.unique().tolist() == [65.0]
        mine.barrier()
        mine.pull("w", out=seen)
        return seen.unique().tolist()

    with closing(*stores, *servers, *between[0], *between[1]):
        assert each(stores, work) == [[65.0 if kind == "dist_sync" else 650.0]] * 2
        assert any(proxy.done for proxy in [*between[0], *between[1]])


def rounds(mine, many=5, elements=5000):
    """Return the values that a worker sees in so many rounds."""
    mine.init("w", torch.zeros(elements, dtype=torch.float64))
    out, seen = torch.empty(elements, dtype=torch.float64), []
    for _ in range(many):
        mine.pushpull("w", torch.full((elements,), 4.0 ** (mine.rank + 1), dtype=torch.float64), out=out)
        seen.append(out.unique().tolist())
    return seen


class Twice:
    """Every frame goes on twice; with a secret three of them do, since each costs a connection."""

    def __init__(self, coded):
        self.left, self.kept = 3 if coded else 10_000, None

    def __call__(self, op, frame):
        if op in (Op.HELLO, Op.PROOF, Op.ALIVE) or not self.left:
            return [frame]
        self.left -= 1
        return [frame, frame]


class Again(Twice):
    """A push of a round before comes again, before each frame."""

    def __call__(self, op, frame):
        found = [self.kept, frame] if self.kept and self.left else [frame]
        self.left -= len(found) - 1
        self.kept = frame if op in PUSHES else self.kept
        return found


class Late(Twice):
    """Each frame takes its time, by chance up to 20 ms."""

    chance = random.Random(1)

    def __call__(self, op, frame):
        self.left -= 1
        time.sleep(self.chance.random() / 50)
        return [frame]


class Turned(Twice):
    """A request after a push comes before it."""

    def __call__(self, op, frame):
        if op in PUSHES and self.left and not self.kept:
            self.left -= 1
            self.kept = frame
            return []
        found, self.kept = [frame, self.kept] if self.kept else [frame], None
        return found


@NOTHING_LEFT
@pytest.mark.fault("F6", "messages twice, again later, delayed, out of order; with and without a secret")
@pytest.mark.parametrize(
    "change, coded", [(Twice, False), (Twice, True), (Again, True), (Late, False), (Turned, False), (Turned, True)]
)
def test_repeated_late_and_reordered_pushes_count_once(change, coded):
    secret = SECRET if coded else b""
    (server,) = tables(secret=secret)
    changes = [change(coded), change(coded)]
    between = [Frames(server.address, each, coded=coded) for each in changes]
    stores = [store([server], rank, addresses={0: between[rank].here}, secret=secret) for rank in range(2)]
    with closing(*stores, server, *between):
        assert each(stores, rounds) == [[[20.0]] * 5] * 2
        assert all(one.left < change(coded).left for one in changes), "the fault was not there"


@NOTHING_LEFT
@pytest.mark.fault("F6", "a frame cut at each byte, and then the one that is sent again")
@pytest.mark.parametrize(
    "way, op, coded",
    [
        ("up", Op.PUSH, False),
        ("up", Op.PULL, True),
        ("up", Op.PUSHPULL, True),
        ("down", Op.OK, True),
        ("down", Op.DATA, False),
    ],
)
def test_a_push_counts_once_although_its_frames_are_cut_at_each_byte(way, op, coded, monkeypatch):
    ended, cut, armed, secret = [], [], [], SECRET if coded else b""
    monkeypatch.setattr(threading, "excepthook", ended.append)

    def change(of, frame):
        if not armed or of != op or len(cut) >= len(frame):
            return [frame]
        cut.append(len(frame))
        return [frame[: len(cut) - 1], None]

    (server,) = tables("dist_async", workers=1, secret=secret)
    between = Frames(server.address, change, way, coded)
    mine = store([server], 0, 1, {0: between.here}, "dist_async", deadline=LIVE, secret=secret)
    with closing(mine, server, between):
        mine.init("w", full(0))
        mine.set_optimizer("sgd", lr=-1.0)
        armed.append(True)
        if op in (Op.PUSHPULL, Op.DATA):
            mine.pushpull("w", full(1), out=torch.empty(3))
        else:
            mine.push("w", full(1))
        assert pulled(mine) == [1.0]
    assert len(cut) == cut[-1] > 30 and not ended


@NOTHING_LEFT
@pytest.mark.fault("F6", "messages twice, where each push is applied at once")
def test_a_push_that_comes_twice_counts_once_where_it_is_applied_at_once():
    """Asynchronously, so that a push that counts twice is seen."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.set_optimizer("sgd", lr=-1.0)
        for _ in range(3):
            mine.push("w", torch.full((3,), 4.0**mine.rank))
        mine.barrier()
        mine.pull("w", out=(out := torch.empty(3)))
        return out.tolist()

    (server,) = tables("dist_async")
    between = [Frames(server.address, lambda op, frame: [frame] * (2 if op == Op.PUSH else 1)) for _ in range(2)]
    stores = [store([server], rank, addresses={0: between[rank].here}, kind="dist_async") for rank in range(2)]
    with closing(*stores, server, *between):
        assert each(stores, work) == [[15.0] * 3] * 2


class Lossy(Frames):
    """Loses the first frame of ``op`` after ``armed`` is set."""

    def __init__(self, address, way, op):
        self.armed, self.lost, self.op = False, [], op
        super().__init__(address, self._change, way)

    def _change(self, op, frame):
        if not self.armed or op != self.op or self.lost:
            return [frame]
        return self.lost.append(op) or []


@NOTHING_LEFT
@pytest.mark.fault("F6", "a push lost, its answer lost")
@pytest.mark.parametrize("way, lost", [("up", Op.PUSH), ("down", Op.OK)])
def test_a_push_that_is_lost_is_unknown_and_counts_once_when_it_is_pushed_again(way, lost, recovery):
    (server,) = tables(workers=1)
    between = Lossy(server.address, way, lost)
    with closing(store([server], 0, 1, {0: between.here}), server, between) as (mine, *_):
        mine.init("w", full(0))
        between.armed = True
        with recovery(), pytest.raises(Unknown, match="push the same again, and it counts once"):
            mine.push("w", full(1))
        mine.push("w", full(1))
        assert pulled(mine) == [1.0] and server.store.shards[0].rounds == [1] and between.lost


@NOTHING_LEFT
@pytest.mark.fault("F6", "a push and pull in one lost, its answer lost")
@pytest.mark.parametrize(
    "way, lost, waits", [("up", Op.PUSHPULL, False), ("down", Op.DATA, False), ("down", Op.DATA, True)]
)
def test_a_confirmed_push_stays_known_after_later_losses(way, lost, waits, recovery):
    """``waits``: the other worker pushes later, so that this one first hears that its push is counted."""
    (server,) = tables()
    known = waits and way == "down"

    def work(mine):
        out = torch.empty(3)
        mine.init("w", full(0))
        if mine.rank:
            time.sleep(0.5 * waits)
            mine.push("w", full(4))
            return [5.0]
        time.sleep(0.5 * (not waits))
        between.armed = True
        with recovery(), pytest.raises(Timeout if known else Unknown) as error:
            mine.pushpull("w", full(1), out=out)
        assert type(error.value) is (Timeout if known else Unknown) and between.lost
        if known:
            mine.pull("w", out=out)
        else:
            mine.pushpull("w", full(1), out=out)
        return out.unique().tolist()

    between = Lossy(server.address, way, lost)
    stores = [store([server], 0, addresses={0: between.here}), store([server], 1)]
    with closing(*stores, server, between):
        assert each(stores, work) == [[5.0]] * 2
        assert server.store.shards[0].rounds == [1, 1]


@NOTHING_LEFT
@pytest.mark.fault("F10", "a push and pull in one that is refused")
@pytest.mark.parametrize("elements, replicas", [(3, 1), (400_003, 0)])
def test_a_refused_push_fails_at_once_and_may_be_repeated(elements, replicas, recovery, monkeypatch):
    refuse_first_push(monkeypatch, rank=1)

    def work(mine):
        out = torch.empty(elements)
        mine.init("w", torch.zeros(elements))
        if mine.rank:
            with recovery(), pytest.raises(Refused, match="the first push of worker 1"):
                mine.pushpull("w", torch.full((elements,), 4.0), out=out)
        mine.pushpull("w", torch.full((elements,), 4.0**mine.rank), out=out)
        return out.unique().tolist()

    with kvstore.cluster("dist_sync", 2, 2, replicas=replicas, deadline=DEADLINE) as stores:
        assert each(stores, work) == [[5.0]] * 2  # the others have not waited in vain


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


def test_a_connection_cut_under_full_load_is_made_again():
    """A worker that asks again must read, too: a server that cannot send its answers takes nothing."""
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
