"""A server is lost, stopped or cut off, and the next one takes over: the same bits, each push counted once."""

import os
import signal
import socket
import textwrap
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from helpers import breaking
from helpers.ranks import FORKED
from helpers.scripts import forked
from helpers.stores import aside, each, full, pulled, raised, soon, until_whole
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import DataLost, KVError, Refused, Timeout, Unknown, WorkerLost, checkpoint, cluster
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.replication import Replica, View
from d2lps.kvstore.replication.messages import Ack, Apply, Begin, Choose, Do, Load, Meet, Pull, Push
from d2lps.kvstore.server import peers, process
from d2lps.kvstore.server import store as server_store
from d2lps.kvstore.server.coding import StoredValue
from d2lps.kvstore.server.parts import Gradient
from d2lps.kvstore.server.process import kill
from d2lps.kvstore.server.register import Register, StoreRegister
from d2lps.kvstore.server.slot import Slot
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.frames import Broken
from d2lps.kvstore.worker.client import Counted

SIZE, SERVERS, ROUNDS = 4000, 3, 8
KEYS, SIZES = ["a", "b", "c"], (7, 300, 30_000)  # the last on all servers
OPTIMIZERS = {"sgd": {"lr": 0.1, "momentum": 0.9}, "adam": {"lr": 0.01}, "none": {}}
STILL = pytest.mark.fault("F4", "primary that stands still, and goes on")
PARTED = pytest.mark.fault("F5", "primary cut off from all but a worker")
RESETTLED = pytest.mark.fault("F2", "server killed between a push and a save")
nothing_left = breaking.nothing_left


def gradients(rank: int, round_: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(100 * rank + round_)
    return [torch.randn(size, generator=drawn) for size in SIZES]


def trained(kind="dist_sync", rule="sgd", troubles=(), replicas=1, workers=2, **options) -> list[torch.Tensor]:
    """Return the values of all workers in the end; ``troubles``: (before which round, fault, server, seconds later)."""
    turn = threading.Barrier(workers + 1)

    def work(store):
        store.init(KEYS, [torch.ones(size) for size in SIZES])
        if rule != "none":
            store.set_optimizer(rule, **OPTIMIZERS[rule])
        pulled = [torch.empty(size) for size in SIZES]
        for round_ in range(ROUNDS):
            turn.wait(LIVE)
            pushed = gradients(store.rank, round_)
            if round_ % 2:
                store.pushpull(KEYS, pushed, out=pulled)
            else:
                store.push(KEYS, pushed)
                for one in pushed:  # it is the caller's again
                    one.fill_(float("nan"))
                store.pull(KEYS, out=pulled)
        store.barrier()
        store.pull(KEYS, out=pulled)
        return pulled

    with cluster(
        kind, workers, SERVERS, deadline=10, placement={"large": 20_000}, replicas=replicas, **options
    ) as all_:

        def trouble():
            for round_ in range(ROUNDS):
                turn.wait(LIVE)
                for when, what, server, later in troubles:
                    if when == round_:
                        if what == "kill":  # a newcomer may take long to learn what the other one alone has
                            until_whole(all_)
                        time.sleep(later)
                        getattr(all_, what)(server)

        threading.Thread(target=trouble, daemon=True).start()
        ends = each(all_, work)
    for end in ends:
        if isinstance(end, Exception):
            raise end
        assert all(map(torch.equal, end, ends[0]))
    return ends[0]


# ---------------------------------------------------------------- a server is killed


@cache
def undisturbed(rule="sgd"):
    """Return what ``trained`` returns without replicas and without trouble."""
    return trained(rule=rule, replicas=0)


@pytest.mark.fault("F14", "a newcomer takes the place of a server that was killed")
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_a_server_is_killed_and_the_bits_are_the_same(rule):
    troubles = [(2, "kill", 1, 0.0), (4, "restart", 1, 0.0), (6, "kill", 2, 0.4)]
    assert all(map(torch.equal, trained(rule=rule, troubles=troubles), undisturbed(rule)))


def test_pull_is_no_staler_than_allowed_whatever_is_killed():
    """Each worker pushes into a row of its own, which thus counts its pushes; worker 2 is killed after 25."""
    workers, pushes, staleness = 3, 60, 2

    def work(store):
        store.init("w", torch.zeros(workers, 500, dtype=torch.float64))
        store.set_optimizer("sgd", lr=-1.0)
        pushed, out = torch.zeros(workers, 500, dtype=torch.float64), torch.empty(workers, 500, dtype=torch.float64)
        pushed[store.rank] = 1.0
        for number in range(1, pushes + 1):
            if store.rank == 0 and number == 30:
                servers.restart(0)
                until_whole(servers)
            if store.rank == 0 and number in (20, 40):
                servers.kill(number // 20 - 1)
            if store.rank == 2 and number == 26:
                servers.kill_worker(2)
                return out
            store.push("w", pushed)
            store.pull("w", out=out)
            seen = out.min(1).values.tolist()
            assert seen[store.rank] == number and min(seen[:2]) >= number - staleness, (number, seen)
        store.barrier()
        store.pull("w", out=out)
        assert [row.unique().tolist() for row in out] == [[60.0], [60.0], [25.0]]
        return out

    options = {"staleness": staleness, "lost": "drop", "placement": {"large": 1000}}
    with cluster("dist_ssp", workers, 2, deadline=10, replicas=1, **options) as servers:
        for end in each(servers, work):
            assert isinstance(end, torch.Tensor), end


@pytest.mark.fault("F3", "both servers of a pair killed")
def test_both_members_are_lost_and_the_keys_are_named():
    def work(store):
        store.init(KEYS, [torch.ones(size) for size in SIZES])
        store.barrier()
        servers.kill(0), servers.kill(1)
        with pytest.raises(DataLost) as lost:
            for _ in range(3):
                store.pushpull(KEYS, [torch.ones(size) for size in SIZES])
        return lost.value

    with cluster(workers=2, servers=3, deadline=2, replicas=1, placement={"large": 20_000}) as servers:
        held = [servers.placement.parts(key, size, 1) for key, size in zip(KEYS, SIZES, strict=True)]
        there = tuple(key for key, parts in zip(KEYS, held, strict=True) if 0 in [part.server for part in parts])
        for error in each(servers, work):
            assert isinstance(error, DataLost) and (error.servers, error.keys) == ((0,), there), error
            assert all(repr(key) in str(error) for key in there)


def test_kill_server_ends_a_server():
    with cluster(workers=1, servers=2, replicas=1) as (store,):
        store.init("w", torch.zeros(1))
        store.kill_server(0)
        store.pushpull("w", torch.ones(1), out=(out := torch.empty(1)))
        assert out.item() == 1.0
        with pytest.raises(Refused, match="the servers are 0 to 1"):
            store.kill_server(7)
    with pytest.raises(Refused, match="worker 1"):  # each worker those that it has started
        kill([], [0, 1], 0, 1)


def test_pushes_of_a_worker_that_leaves_stay():
    """The others' round closes with it, also at another server."""

    def work(store):
        store.init("w", torch.zeros(1))
        store.barrier()
        store.push("w", torch.tensor([4.0**store.rank]))
        if store.rank == 1:
            store.close()
            left.set()
            return 5.0
        assert left.wait(LIVE)
        servers.kill(0)
        store.pull("w", out=(out := torch.empty(1)))
        return out.item()

    left = threading.Event()
    with cluster(workers=2, servers=2, deadline=5, replicas=1) as servers:
        assert each(servers, work) == [5.0, 5.0]


@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_a_worker_that_does_not_come_to_the_new_primary_is_lost(lost):
    def work(store):
        store.init("w", torch.zeros(1))
        store.pushpull("w", torch.ones(1), out=torch.empty(1))
        store.barrier()
        if store.rank == 1:
            servers.kill_worker(1)  # it is gone, with its server
            return 1.0
        servers.kill(0)
        out = torch.empty(1)
        store.pushpull("w", torch.ones(1), out=out)
        return out.item()

    with cluster(workers=2, servers=2, deadline=2, replicas=1, lost=lost) as servers:
        first, _ = each(servers, work)
        assert first == 1.0 if lost == "drop" else isinstance(first, WorkerLost) and first.ranks == (1,)


def test_unsent_values_are_not_changed_by_later_calls():
    """An optimizer changes its memory in place: not that of a command in the log, nor that of a snapshot."""
    store = SlotStore("dist_sync", 1)
    replica = store._rules("a", View(1, ("a", "b")))
    store.slot = SimpleNamespace(core=replica)
    optimizer, one = Optimizer.read("sgd", {"lr": 0.1, "momentum": 0.9}), torch.ones(3)
    commands = [Begin("w", (3, one.dtype), StoredValue(one, {})), Choose(1, optimizer)]
    commands += [Load(1, ((0, StoredValue(one, {"sgd": {"velocity": one.clone()}})),), optimizer)]
    for number, command in enumerate(commands):
        replica.receive(("worker", 0), Do(1, number, 0, command), 0.0)
    parts, _ = replica._snapshot()
    replica.receive(("worker", 0), Push(1, 9, 0, 0, 1, Gradient(one.clone(), True)), 0.0)
    assert replica.parts[0].value.memory["sgd"]["velocity"].tolist() == pytest.approx([1.9] * 3)
    begun, *_, loaded, _ = replica.log.values()
    assert begun.value.memory == {}
    for held in (loaded.values[0][1], parts[0].value):
        assert held.memory["sgd"]["velocity"].tolist() == [1.0] * 3


def test_a_slot_of_very_many_keys_is_learnt_in_pieces():
    """No message is longer than a frame may be."""
    keys = [f"layer.{number}.{'weight' * 20}" for number in range(1500)]
    with cluster(workers=1, servers=2, deadline=20, replicas=1) as servers:
        store = servers[0]
        store.init(keys, [torch.full((3,), float(number)) for number in range(len(keys))])
        for number in (0, 1):
            before = [view.number for view in servers.views]
            servers.kill(number)
            while any(view.number == old for view, old in zip(servers.views, before, strict=True)):
                time.sleep(0.005)  # until the other one goes on alone
            servers.restart(number)
            until_whole(servers)
        outs = [torch.empty(3) for _ in keys]
        store.pull(keys, out=outs)
        assert [out[0].item() for out in outs] == [*map(float, range(len(keys)))]


# ---------------------------------------------------------------- between any two messages, or between two servers


def work(store, rounds=3):
    """Return the values after some rounds from the first one on; asynchronously, all that was counted."""
    synchronous = store.type == "dist_sync"
    store.init("w", torch.zeros(SIZE, dtype=torch.float64))
    store.set_optimizer("sgd", **({"lr": 0.1, "momentum": 0.9} if synchronous else {"lr": -1.0}))
    out = torch.empty(SIZE, dtype=torch.float64)
    for round_ in range(rounds):
        drawn = torch.Generator().manual_seed(10 * round_ + store.rank)
        pushed = torch.randn(SIZE, generator=drawn, dtype=torch.float64)
        store.push("w", pushed if synchronous else torch.full((SIZE,), 1000.0**store.rank, dtype=torch.float64))
        if round_ != 1:
            store.pull("w", out=out)
    store.barrier()
    store.pull("w", out=out)
    return out


def made(kind="dist_sync", replicas=1, **options):
    return cluster(kind, 2, 2, replicas=replicas, placement={"large": 1000}, **{"deadline": 10} | options)


@cache
def wanted(kind: str) -> torch.Tensor:
    with made(kind, 0) as servers:
        return each(servers, work)[0]


class Killed:
    """Server 0 is killed at its ``at``-th message: before it does anything about it, or after, and nobody hears."""

    def __init__(self, monkeypatch, at: int, when: str):
        self.count, self.servers, lock = 0, None, threading.Lock()
        receive = Replica.receive

        def counting(replica, src, message, now):
            number = 0
            if replica.name[0] == 0 and isinstance(message, (Push, Pull, Do, Meet, Apply, Ack)) and self.servers:
                with lock:
                    self.count += 1
                    number = self.count
            if number == at and not self._whole():
                number = 0  # on a machine that stood still for a second, the other one was put out just before
            if number == at and when == "before":
                self.servers.kill(0)
                raise Broken("killed")
            receive(replica, src, message, now)
            if number == at:
                self.servers.kill(0)
                raise Broken("killed")

        monkeypatch.setattr(Replica, "receive", counting)

    def _whole(self) -> bool:
        return all(len(view.members) == 2 for view in self.servers.views)


@pytest.mark.fault("F2", "server killed between any two messages")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_server_is_killed_at_every_message(kind, when, monkeypatch):
    right, at, step = wanted(kind), 1, 5
    while True:
        with monkeypatch.context() as patched, made(kind) as servers:
            killed = Killed(patched, at, when)
            killed.servers = servers
            for end in each(servers, work):
                assert isinstance(end, torch.Tensor) and torch.equal(end, right), (at, end)
            if killed.count < at:
                break  # it lived to the end
        at += step
    assert at > 20, "there were many moments to be killed at"


@pytest.mark.fault("F5", "servers cut off from one another, and healed")
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_of_two_that_are_cut_off_one_goes_on(kind, monkeypatch):
    """Both live, and workers reach both: each thinks that the other is dead, and the register takes one's word."""
    right, healed, send = wanted(kind), threading.Event(), peers.PeerConnection._send
    with made(kind) as servers:
        until_whole(servers)
        monkeypatch.setattr(peers.PeerConnection, "_send", lambda peer, said: healed.is_set() and send(peer, said))
        threading.Timer(1.6, healed.set).start()
        for end in each(servers, work):
            assert torch.equal(end, right)
        until_whole(servers)  # who was put out has come back as a backup
        assert all(view.number > 2 for view in servers.views)
        for slot in range(2):
            leading = [host for host in servers.servers if host.replicas[slot].store.slot.leads]
            assert [host.number for host in leading] == [servers.views[slot].members[0]]


def test_backup_that_learns_late_that_it_is_one_has_missed_nothing(monkeypatch):
    """What came before the register answered was let go, and counted as sent: the first call waited in vain."""
    look, until = Slot.look, time.monotonic() + 0.3
    monkeypatch.setattr(
        Slot, "look", lambda slot: slot.name[0] == 1 and slot.number == 0 and time.monotonic() < until or look(slot)
    )
    with cluster(workers=1, servers=2, replicas=1, deadline=5) as (store,):
        for key in range(8):  # some of which lie on each
            store.init(key, torch.ones(3))
        store.pushpull(0, torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3


@pytest.mark.fault("F4", "backup that lags")
def test_a_backup_that_lags_costs_time_and_nothing_else(monkeypatch):
    right, hear = wanted("dist_sync"), Slot.hear

    def lagging(slot, other, messages):
        if slot.name[0] == 1 and any(isinstance(message, Apply) for message in messages):
            time.sleep(0.1)
        hear(slot, other, messages)

    monkeypatch.setattr(Slot, "hear", lagging)
    monkeypatch.setattr(server_store, "PATIENCE", LIVE)  # of the others, which the lag must not use up
    with made() as servers:
        for end in each(servers, work):
            assert torch.equal(end, right)
        assert {view.number for view in servers.views} == {1}, "it was never taken for dead"


def test_members_have_the_same_bits_in_the_end():
    with made() as servers:
        each(servers, work)
        for slot in range(2):
            one, other = (host.replicas[slot].store.slot.core for host in servers.servers)
            soon(lambda one=one, other=other: one.seq == other.seq == max(one.commit, other.commit) > 3)
            for mine, theirs in zip(one.parts, other.parts, strict=True):
                assert mine[:2] == theirs[:2] and torch.equal(mine.value.value, theirs.value.value)
                assert mine.value.memory.keys() == theirs.value.memory.keys() == {"sgd"}
                velocity = [held.memory["sgd"]["velocity"] for held in (mine.value, theirs.value)]
                assert torch.equal(*velocity)


# ---------------------------------------------------------------- any moment: what the servers of a slot do


@contextmanager
def begun(kind="dist_async", deadline=10.0, replicas=1, **options):
    """Give a cluster with a backup of each slot, in which both workers have pushed 1 to "w"."""
    options = {"deadline": deadline, "placement": {"large": 1000}, "replicas": replicas} | options
    with cluster(kind, 2, 2, **options) as servers:
        each(servers, beginning)
        until_whole(servers)
        yield servers


def beginning(store):
    store.init("w", torch.zeros(SIZE))
    if store.type != "dist_sync":
        store.set_optimizer("sgd", lr=-1.0)
    store.pushpull("w", full(1, SIZE), out=torch.empty(SIZE))
    store.barrier()


def primary(servers, slot: int):
    """Return the server that leads a slot, as far as it has to do with this slot."""
    return servers.servers[servers.views[slot].members[0]].replicas[slot]


@contextmanager
def mute(replica):
    """No other server hears this one."""
    with ExitStack() as held:
        for connection in replica.store.slot._connections.values():
            held.enter_context(connection._sending)
        yield


@contextmanager
def still(servers, slot: int, begin=bool):
    """The primary of a slot does and says nothing; ``begin()`` is called, and another server has taken over.

    When the primary goes on, it receives what workers ask before it receives what servers say.
    """
    replica, before = primary(servers, slot), servers.views[slot].number
    with ExitStack() as held:
        with ExitStack() as first:
            for session in replica._sessions.values():
                first.enter_context(session._sending)
            first.enter_context(replica.store.slot.lock)
            held.enter_context(mute(replica))
            begin()
            soon(lambda: servers.views[slot].number > before)
            yield
        time.sleep(0.3)


class Away:
    """A register that cannot be reached."""

    def ask(self, slot, tell):
        pass

    def propose(self, slot, view, tell):
        pass


@contextmanager
def unheard(servers, slot: int):
    """No server hears the primary of a slot, which hears nothing of new views; gives the register."""
    at = primary(servers, slot).store.slot
    register, at._register = at._register, Away()
    with mute(primary(servers, slot)):
        yield register
    at._register = register


def taken_over(servers, slot: int, worker: int, register) -> None:
    """Wait until another server leads a slot, and tell a worker so."""
    soon(lambda: servers.views[slot].number > 1)
    servers[worker].clients[slot]._take_view(register.view(slot))


def test_pull_that_waits_for_the_backup_does_not_wait_for_a_worker_that_leaves():
    with begun() as servers:
        store = primary(servers, 1).store
        with mute(primary(servers, 1)):
            pulling, found = aside(pulled, servers[0], "w", SIZE)
            soon(lambda: store._pulls)
            for slot in range(2):
                primary(servers, slot).store.lose(1, "it said goodbye", left=True)
        pulling.join(LIVE)
        servers[0].push("w", full(1, SIZE))
        assert (found, pulled(servers[0], "w", SIZE)) == ([[2.0]], [3.0])


# ---------------------------------------------------------------- a primary that stands still


@STILL
def test_pull_after_a_barrier_is_no_older_than_it():
    with begun() as servers:
        with still(servers, 1):
            servers[0].push("w", full(100, SIZE))
            each(servers, lambda store: store.barrier())
            thread, found = aside(pulled, servers[1], "w", SIZE)
            time.sleep(0.05)  # it has asked the server that stands still
        thread.join(LIVE)
        assert found == [[102.0]]


@STILL
def test_no_pull_after_a_load_is_older_than_it(tmp_path):
    with begun("dist_sync") as servers:
        each(servers, lambda store: store.save(tmp_path / "saved"))
        each(servers, lambda store: store.pushpull("w", full(50, SIZE)))
        with still(servers, 1):
            each(servers, lambda store: store.load(tmp_path / "saved"))
            thread, found = aside(pulled, servers[1], "w", SIZE)
            time.sleep(0.05)
        thread.join(LIVE)
        assert found == [[2.0]]


@STILL
@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_that_computes_or_leaves_meanwhile_is_not_lost(leaves):
    """It asks for nothing for longer than the deadline; asynchronously, others go on without a worker that leaves."""
    with begun(deadline=2.0) as servers:
        closing = []
        with still(servers, 1, lambda: leaves and closing.append(aside(servers[0].close)[0])):
            for thread in closing:
                thread.join(LIVE)
                assert not thread.is_alive()
            time.sleep(2.5)
            staying = [servers[1]] if leaves else [*servers]
            for store in staying:
                store.push("w", full(1, SIZE))
            assert [pulled(store, "w", SIZE) for store in staying] == [[2.0 + len(staying)]] * len(staying)


@STILL
def test_a_deadline_that_is_shorter_than_a_takeover_loses_nothing():
    """Calls raise meanwhile and say what is not known; the same call repeated counts once."""

    def push(store):
        errors = []
        until = time.monotonic() + LIVE
        while time.monotonic() < until:
            try:
                store.push("w", full(1, SIZE))
                return errors
            except (Timeout, Unknown) as error:
                errors.append(error)

    with begun(deadline=0.6) as servers:  # a worker that is silent for so long is lost
        ran = []
        with still(servers, 1, lambda: ran.append(aside(push, servers[0]))):
            ((thread, found),) = ran
            thread.join(LIVE)
        assert found and found[0], "no call raised, or none ended"
        assert pulled(servers[0], "w", SIZE) == [3.0]


@pytest.mark.fault("F2", "server killed while a push that counts is interrupted")
def test_a_push_that_is_interrupted_as_it_is_sent_again_still_counts():
    with begun("dist_sync", deadline=4.0) as servers:
        store, client = servers[0], servers[0].clients[0]
        thread, _ = aside(pytest.raises, KVError, store.pushpull, "w", full(10, SIZE))
        soon(lambda: any(request.counted is Counted.YES for request in [*client._pending.values()]))
        (request,) = client._pending.values()
        client._leaving, before = request, client._view
        forgetting, _ = aside(client.forget, request)
        time.sleep(0.05)
        servers.kill(servers.views[0].members[0])
        soon(lambda: client._view != before and client._channel.roomy)
        time.sleep(0.2)
        client._leaving = None
        forgetting.join(LIVE), thread.join(LIVE)
        servers[1].push("w", full(20, SIZE))
        assert pulled(store, "w", SIZE) == [30.0]


# ---------------------------------------------------------------- a primary that no other server hears


@PARTED
def test_a_push_that_may_not_be_committed_does_not_count_as_counted():
    """Also if the pull of a pushpull is late: another primary would not know of the push."""

    def again(call, *arguments) -> None:
        def is_done():
            with suppress(Timeout, Unknown):
                call(*arguments)
                return True

        soon(is_done)

    with begun(deadline=0.6) as servers:
        with unheard(servers, 1), pytest.raises((Timeout, Unknown)) as error:
            servers[0].pushpull("w", full(100, SIZE), out=torch.empty(SIZE))
        assert error.value.counted == () and error.value.unknown == ("w",)
        until_whole(servers)
        again(servers[0].pushpull, "w", full(100, SIZE), torch.empty(SIZE))
        again(servers[1].pull, "w", out := torch.empty(SIZE))
        assert out.unique().tolist() == [102.0]


@PARTED
@pytest.mark.parametrize(
    "kind, ways, opens",
    [
        ("dist_sync", {"up"}, True),
        ("dist_async", {"down"}, True),
        ("dist_async", {"up", "down"}, True),
        ("dist_sync", {"up", "down"}, False),
    ],
)
def test_push_to_a_primary_whose_bytes_are_held_back_counts_once(kind, ways, opens, monkeypatch):
    """Those that come to server 0, those that it answers, or both; for a second, or until the error is typed."""
    gates, lock, right = {}, threading.Lock(), wanted(kind)

    def gate(address):
        with lock:
            return gates.get(address) or gates.setdefault(address, breaking.Gate(address))

    class Through(socket.socket):
        def connect(self, address):
            super().connect(gate(address).here)

    monkeypatch.setattr(handshake, "new_socket", lambda address: Through(socket.AF_UNIX))
    with ExitStack() as undo, made(kind, deadline=10 if opens else 1) as servers:
        undo.callback(lambda: [each.close() for each in gates.values()])
        until_whole(servers)
        shut = [gate(replica.address).shut for replica in servers.servers[0].replicas.values()]
        for directions in shut:
            directions |= ways
            if opens:
                threading.Timer(1.0, directions.clear).start()
        ends = each(servers, work)
        for directions in shut:
            directions.clear()
        for end in ends:
            assert not opens and isinstance(end, KVError) or torch.equal(end, right), end


@PARTED
def test_key_that_another_primary_has_may_be_pushed():
    """Worker 1 begins it at the first primary, worker 0 gives its value to the next one."""
    with begun() as servers:
        core = primary(servers, 1).store.slot.core
        before = len(core.names)
        beginning, _ = aside(servers[1].init, "v", full(0, SIZE))
        soon(lambda: len(core.names) > before and core.commit == core.seq)
        with unheard(servers, 1) as register:
            taken_over(servers, 1, 0, register)
            servers[0].init("v", full(0, SIZE))
            beginning.join(LIVE)
            assert each(servers, lambda store: store.push("v", full(1, SIZE))) == [None, None]
        assert pulled(servers[1], "v", SIZE) == [2.0]


def test_a_primary_refuses_without_waiting_for_its_backup():
    with cluster("dist_async", 1, 2, replicas=1, deadline=10 * LIVE) as servers:
        servers[0].init("w", torch.zeros(3))
        refused, found = aside(raised, servers[0].push, "w", torch.ones(3))
        refused.join(LIVE)
        assert isinstance(found[0], Refused) and "set_optimizer before the first push" in str(found[0])


# ---------------------------------------------------------------- a save or load just after a takeover


@RESETTLED
@pytest.mark.parametrize("what, value", [("save", 20.0), ("load", 2.0)])
def test_a_save_or_load_waits_for_a_worker_that_comes_late_to_the_new_primary(what, value, monkeypatch, tmp_path):
    """The open round begins anew there: no worker is in the midst of it."""
    with begun("dist_sync") as servers:
        each(servers, lambda store: store.save(tmp_path / "file"))
        late, connect = servers[1].clients[1], servers[1].clients[1]._connect
        monkeypatch.setattr(late, "_connect", lambda until: (time.sleep(1.0), connect(until))[1])
        with mute(servers.servers[1].replicas[1]):  # its backup does not hear of the round
            each(servers, lambda store: store.push("w", full(10, SIZE)))
            servers.kill(1)
        assert each(servers, lambda store: getattr(store, what)(tmp_path / "file")) == [None, None]
        monkeypatch.undo()
        assert pulled(servers[0], "w", SIZE) == [value]


@RESETTLED
def test_a_save_in_the_midst_of_a_round_is_refused_after_a_takeover(tmp_path):
    with begun("dist_sync", deadline=2.0) as servers:
        servers.kill(0)
        servers[0].push("w", full(1, SIZE))
        found = each(servers, lambda store: store.save(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "in the midst of a round" in str(error) for error in found)


# ---------------------------------------------------------------- who leads a slot: the register


A, B = (0, "a", "/a"), (1, "b", ("127.0.0.1", 7))


def hold(line) -> None:
    """Be the process that holds the store."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    line.send(store.port)
    line.recv()


@pytest.fixture
def held():
    """A store in a process of its own, which can be stopped: that process, and how to connect."""
    mine, theirs = FORKED.Pipe()
    process = FORKED.Process(target=hold, args=(theirs,), daemon=True)
    process.start()
    port = mine.recv()
    yield process, partial(dist.TCPStore, "127.0.0.1", port, None, False, wait_for_workers=False)
    process.kill()
    process.join(LIVE)


def answered(ask) -> View:
    """Return its messages within a while."""
    heard, came = [], threading.Event()
    ask(lambda view: (heard.append(view), came.set()))
    assert came.wait(LIVE)
    return heard[0]


@pytest.mark.parametrize("kind", ["process", "store"])
def test_one_of_two_proposals_is_taken(kind, held):
    ends = [StoreRegister(held[1], "run") for _ in range(2)] if kind == "store" else [Register()] * 2
    one, other = ends
    one.begin(0, (A, B))
    assert other.view(0) == View(1, (A, B)), "addresses are what they were"
    first = answered(partial(one.propose, 0, View(2, (A,))))
    second = answered(partial(other.propose, 0, View(2, (B,))))
    assert first == second == View(2, (A,))
    assert answered(partial(other.propose, 0, View(4, (B,)))) == View(2, (A,)), "none is left out"
    assert answered(partial(other.ask, 0)) == View(2, (A,)) and other.view(1) is None
    for end in ends if kind == "store" else ():
        end.close()


@pytest.mark.fault("F5", "process of the rendezvous stopped")
def test_no_worker_waits_for_a_stopped_process(held):
    process, connect = held
    register = StoreRegister(connect, "run")
    register.begin(0, (A, B))
    assert register.view(0) == View(1, (A, B))
    os.kill(process.pid, signal.SIGSTOP)
    soon(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    try:
        heard = []
        register.propose(0, View(2, (B,)), heard.append)
        assert register.view(0) == View(1, (A, B)) and not heard  # while that process still stands
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert answered(partial(register.propose, 0, View(2, (B,)))) == View(2, (B,))
    register.close()


# ---------------------------------------------------------------- servers in processes of their own


NOTHING_LEFT = pytest.mark.usefixtures("nothing_left")


SCRIPT = """
import os, signal, threading, time
import torch
from d2lps import kvstore

SIZE, ROUNDS = 30_000, 30

def whole():
    until = time.monotonic() + 60
    while any(len(view.members) < 2 for view in store.views):
        assert time.monotonic() < until, store.views
        time.sleep(0.05)

def pid(number):
    (keeper,) = [each for each in store.started if getattr(each, "number", None) == number]
    return keeper.process.process.pid

options = {{"servers": 2, "deadline": 8.0, "joining": 60.0, "placement": {{"large": 20_000}}}} | {options}
with kvstore.create("dist_sync", **options) as store:
    store.init("w", torch.ones(SIZE, dtype=torch.float64))
    store.set_optimizer("adam", lr=0.01)
    out = torch.empty(SIZE, dtype=torch.float64)
    try:
        for round_ in range(ROUNDS):
            drawn = torch.Generator().manual_seed(2 * round_ + store.rank)
            pushed = torch.randn(SIZE, generator=drawn, dtype=torch.float64)
            store.push("w", pushed)
            {trouble}
            store.pull("w", out=out)
        store.barrier()
        store.pull("w", out=out)
        print(out.sum().item(), out[0].item(), out[-1].item())
    except kvstore.KVError as error:
        print(type(error).__name__, getattr(error, "servers", ()), getattr(error, "keys", ()))
"""


def ran(folder, trouble, options=None, **environment):
    """Return the lines that each of two workers prints."""
    script = folder / "work.py"
    script.write_text(textwrap.dedent(SCRIPT).format(trouble=trouble, options={"replicas": 1} | (options or {})))
    return forked(script, 2, **environment)


KILLED_TWICE = """
            if round_ == 5:
                store.pull("w", out=out)
                if store.rank == 0:
                    threading.Thread(target=store.kill_server, args=(0,)).start()
                store.save({path!r})
            if round_ == 20:
                whole()
                store.barrier()  # both have seen it
                if store.rank == 1:
                    store.kill_server(1)
"""


ENDED = """
            if round_ == 5 and store.rank == 0:
                os.kill(pid(0), signal.SIGTERM)
            if round_ == 20:
                whole()
                store.barrier()  # both have seen it
                if store.rank == 1:
                    os.kill(pid(1), signal.SIGINT)
            if round_ == 29:
                whole()
"""


STOPPED = """
            if round_ == 5 and store.rank == 0:
                os.kill(stopped := pid(0), signal.SIGSTOP)
            if round_ == 15 and store.rank == 0:
                os.kill(stopped, signal.SIGCONT)
"""


@pytest.fixture(scope="module")
def of_one_process():
    """Return what the workers print of the same training in one process, without servers and without trouble."""
    with kvstore.create("local") as store:
        store.init("w", torch.ones(30_000, dtype=torch.float64))
        store.set_optimizer("adam", lr=0.01)
        for round_ in range(30):
            draws = [torch.Generator().manual_seed(2 * round_ + rank) for rank in range(2)]
            store.push("w", [torch.randn(30_000, generator=drawn, dtype=torch.float64) for drawn in draws])
        store.pull("w", out=(out := torch.empty(30_000, dtype=torch.float64)))
    return [f"{out.sum().item()} {out[0].item()} {out[-1].item()}"]


@NOTHING_LEFT
@pytest.mark.fault("F2", "server process killed while its store is saved, then the other one")
@pytest.mark.fault("F2", "server process killed, over TCP")
def test_saves_stay_complete_while_servers_are_killed_in_turn(tmp_path, of_one_process):
    path, secret = tmp_path / "saved", "0123456789abcdef" * 4
    trouble = KILLED_TWICE.strip().format(path=str(path))
    assert ran(tmp_path, trouble, {"transport": "tcp"}, D2LPS_SECRET=secret) == [of_one_process] * 2
    (_, state) = checkpoint.read(path).keys["w"]
    assert state["steps"] == 6 and state["value"].numel() == 30_000


@NOTHING_LEFT
@pytest.mark.fault("F2", "server process ended by SIGTERM, then the other one by SIGINT")
@pytest.mark.fault("F14", "a newcomer takes the place of a server process that was ended by SIGTERM or SIGINT")
def test_server_that_is_ended_politely_is_replaced_again_and_again(tmp_path, of_one_process):
    assert ran(tmp_path, ENDED.strip()) == [of_one_process] * 2


class NeverStarts:
    """A server process that has ended; the first one began."""

    made = 0

    def __init__(self, *_):
        NeverStarts.made += 1
        self.process = SimpleNamespace(poll=lambda: 0)

    def names(self):
        if NeverStarts.made > 1:
            raise Refused("no room")

    def tidy(self):
        pass

    leave = close = stop = tidy


def test_server_that_cannot_be_replaced_is_reported_once(monkeypatch, caplog):
    monkeypatch.setattr(process, "ServerProcess", NeverStarts)
    monkeypatch.setattr(process, "MOST", 0.01)
    monkeypatch.setattr(NeverStarts, "made", 0)
    keeper = process.Keeper({"number": 7}, 1.0)
    keeper.names()
    soon(lambda: NeverStarts.made > 6)
    keeper.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "server 7" in record.message and "(no room)" in record.message


@NOTHING_LEFT
@pytest.mark.fault("F4", "server process stopped, and revived when another has taken over")
def test_a_server_that_is_stopped_is_put_out_and_counts_no_more(tmp_path, of_one_process):
    assert ran(tmp_path, STOPPED.strip()) == [of_one_process] * 2
