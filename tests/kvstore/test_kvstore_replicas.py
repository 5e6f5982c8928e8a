"""A server is lost, and training goes on: the same bits, and no push lost or counted twice."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import DataLost, Refused, WorkerLost, cluster
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.replication import View
from d2lps.kvstore.replication.messages import Begin, Choose, Do, Load, Push
from d2lps.kvstore.server.coding import Held
from d2lps.kvstore.server.parts import Gradient
from d2lps.kvstore.server.process import kill
from d2lps.kvstore.server.store import SlotStore

SERVERS, ROUNDS = 3, 8
KEYS, SIZES = ["a", "b", "c"], (7, 300, 30_000)  # the last on all servers
OPTIMIZERS = {"sgd": {"lr": 0.1, "momentum": 0.9}, "adam": {"lr": 0.01}, "none": {}}


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
            turn.wait(20)
            pushed = gradients(store.rank, round_)
            if round_ % 2:
                store.pushpull(KEYS, pushed, out=pulled)
            else:
                store.push(KEYS, pushed)
                [one.fill_(float("nan")) for one in pushed]  # it is the caller's again
                store.pull(KEYS, out=pulled)
        store.barrier()
        store.pull(KEYS, out=pulled)
        return pulled

    with cluster(
        kind, workers, SERVERS, deadline=10, placement={"large": 20_000}, replicas=replicas, **options
    ) as all_:

        def trouble():
            for round_ in range(ROUNDS):
                turn.wait(20)
                for when, what, server, later in troubles:
                    if when == round_:
                        time.sleep(later)
                        getattr(all_, what)(server)

        threading.Thread(target=trouble, daemon=True).start()
        ends = each(all_, work)
    for end in ends:
        if isinstance(end, Exception):
            raise end
        assert all(map(torch.equal, end, ends[0]))
    return ends[0]


@pytest.mark.slow
@pytest.mark.fault("F14", "a newcomer takes the place of a server that was killed")
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_a_server_is_killed_and_the_bits_are_the_same(rule):
    wanted = trained(rule=rule, replicas=0)
    troubles = [(2, "kill", 1, 0.0), (4, "restart", 1, 0.0), (6, "kill", 2, 0.4)]
    assert all(map(torch.equal, trained(rule=rule, troubles=troubles), wanted))


@pytest.mark.slow
@pytest.mark.parametrize("later", [0.0, 0.001, 0.002, 0.004, 0.008])
@pytest.mark.parametrize("server", range(SERVERS))
def test_whenever_it_is_killed(server, later):
    wanted = trained(replicas=0)
    assert all(map(torch.equal, trained(troubles=[(3, "kill", server, later)]), wanted))


def test_over_tcp_with_a_secret():
    wanted = trained(replicas=0)
    assert all(map(torch.equal, trained(troubles=[(3, "kill", 0, 0.0)], transport="tcp"), wanted))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
def test_no_push_is_lost_or_counted_twice(kind):
    """Worker i pushes 1000^i: the digits of the sum say how often each was counted."""
    pushes, workers = 3 * 60, 3

    def work(store, killing):
        store.init("w", torch.zeros(2, dtype=torch.float64))
        store.set_optimizer("sgd", lr=-1.0)
        for number in range(pushes):
            if store.rank == 0 and number == 120:
                until_whole(servers)
            store.push("w", torch.full((2,), 1000.0**store.rank, dtype=torch.float64))
            if store.rank == 0 and number in killing:
                getattr(servers, killing[number])(number % 2)
            if number % 10 == 0:
                store.pull("w", out=(out := torch.empty(2, dtype=torch.float64)))
        store.barrier()
        store.pull("w", out=(out := torch.empty(2, dtype=torch.float64)))
        return out

    with cluster(kind, workers, 2, deadline=10, replicas=1, staleness=3) as servers:
        for end in each(servers, work, {40: "kill", 60: "restart", 121: "kill"}):
            assert end.tolist() == [float(sum(pushes * 1000**rank for rank in range(workers)))] * 2


@pytest.mark.slow
@pytest.mark.fault("F3", "both servers of a pair killed")
def test_both_members_are_lost_and_the_keys_are_named():
    def work(store):
        store.init(KEYS, [torch.ones(size) for size in SIZES])
        store.barrier()
        servers.kill(0), servers.kill(1)
        begun = time.monotonic()
        with pytest.raises(DataLost) as lost:
            for _ in range(3):
                store.pushpull(KEYS, [torch.ones(size) for size in SIZES])
        assert time.monotonic() - begun < 5
        return lost.value

    with cluster(workers=2, servers=3, deadline=2, replicas=1, placement={"large": 20_000}) as servers:
        held = [servers.placement.parts(key, size, 1) for key, size in zip(KEYS, SIZES, strict=True)]
        there = tuple(key for key, parts in zip(KEYS, held, strict=True) if 0 in [part.server for part in parts])
        for error in each(servers, work):
            assert isinstance(error, DataLost) and (error.servers, error.keys) == ((0,), there), error
            assert all(repr(key) in str(error) for key in there)


def test_what_was_saved_is_loaded_and_a_server_is_killed(tmp_path):
    """What is loaded, and the optimizer that comes with it, is on both."""

    def work(store):
        store.init(KEYS, [torch.ones(size) for size in SIZES])
        store.set_optimizer("adam", lr=0.01)
        out = [torch.empty(size) for size in SIZES]
        for round_ in range(6):
            if round_ == 3:
                store.save(tmp_path / "saved")
            if round_ == 5:
                store.load(tmp_path / "saved")
                if store.rank == 0:
                    servers.kill(1)
            if round_ in (0, 1, 2, 5):
                store.pushpull(KEYS, gradients(store.rank, round_), out=out)
            else:
                store.pushpull(KEYS, [torch.ones(size) for size in SIZES], out=out)
        return out

    ends = {}
    for replicas in (0, 1):
        with cluster(workers=2, servers=3, deadline=10, replicas=replicas, placement={"large": 20_000}) as servers:
            if not replicas:
                servers.kill = lambda number: None
            ends[replicas], other = each(servers, work)
        assert all(map(torch.equal, ends[replicas], other))
    assert all(map(torch.equal, ends[0], ends[1]))


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
            return 5.0
        time.sleep(0.3)
        servers.kill(0)
        store.pull("w", out=(out := torch.empty(1)))
        return out.item()

    with cluster(workers=2, servers=2, deadline=5, replicas=1) as servers:
        assert each(servers, work) == [5.0, 5.0]


@pytest.mark.slow
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
    commands = [Begin("w", (3, one.dtype), Held(one, {})), Choose(1, optimizer)]
    commands += [Load(1, ((0, Held(one, {"sgd": {"velocity": one.clone()}})),), optimizer)]
    for number, command in enumerate(commands):
        replica.receive(("worker", 0), Do(1, number, 0, command), 0.0)
    parts, _ = replica._snapshot()
    replica.receive(("worker", 0), Push(1, 9, 0, 0, 1, Gradient(one.clone(), True)), 0.0)
    assert replica.parts[0].value.memory["sgd"]["velocity"].tolist() == pytest.approx([1.9] * 3)
    begun, *_, loaded, _ = replica.log.values()
    assert begun.value.memory == {}
    for held in (loaded.values[0][1], parts[0].value):
        assert held.memory["sgd"]["velocity"].tolist() == [1.0] * 3


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "options, why",
    [({"servers": 1}, "servers=2"), ({"replicas": 2}, "replicas=2"), ({"replicas": True}, "replicas=True")],
)
def test_what_does_not_go_with_replicas_is_refused(options, why):
    with pytest.raises(Refused, match=why):
        cluster(**({"workers": 1, "servers": 2, "replicas": 1} | options))
