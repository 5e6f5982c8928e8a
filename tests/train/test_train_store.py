"""Training through a store: one device in turn is the reference; slow workers, dead workers, and who waits for whom."""

import copy
import hashlib

import pytest
import torch
from helpers.nets import net
from helpers.scripts import torchrun
from helpers.stores import each as each_worker
from helpers.tensors import close
from helpers.waits import soon
from torch import nn
from torch.nn.utils import parameters_to_vector

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.kvstore import Refused, Timeout, WorkerLost
from d2lps.train import by_plan, by_store
from d2lps.train.by_store import STORES, curves, each, in_turn, work

UPDATES = {
    "sgd": ("sgd", {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-3}),
    "adagrad": ("adagrad", {"lr": 0.03}),
    "adam": ("adam", {"lr": 0.003}),
}
SGD = ("sgd", {"lr": 0.1})


def data():
    return by_plan.digits().train


def through(stores, size, steps, update, devices):
    """Return the values of all workers, with so many ``devices`` by rank."""
    nets = [net() for _ in devices]  # not by the threads: they would share one random generator
    return each(
        stores, lambda store: work(store, nets[store.rank], data(), size, steps, update, ["cpu"] * devices[store.rank])
    )


def same(workers, reference):
    """Whether all have the reference's weights, and the losses of their parts add up to its losses."""
    losses = [sum(parts) for parts in zip(*(worked.losses for worked in workers), strict=True)]
    return losses == reference.losses and all(worked.weights.equal(reference.weights) for worked in workers)


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name, workers, devices", [("sgd", 1, 2), ("adagrad", 2, 1), ("adam", 3, 2), ("sgd", 5, 1)])
def test_synchronous_store_is_one_device_in_turn_bit_for_bit(name, workers, devices):
    reference = in_turn(net(), data(), 17, 4, UPDATES[name], [devices] * workers)
    for servers in 1, 3:
        place = Placement(servers, large=100)  # so that arrays are cut
        with kvstore.cluster("dist_sync", workers, servers, placement=place) as stores:
            results = through(stores, 17, 4, UPDATES[name], [devices] * workers)
        assert same(results, reference), f"{servers} servers"


@pytest.mark.parametrize("size, devices", [(3, [1] * 5), (3, [2, 2]), (1, [2, 1, 3]), (64, [3, 1, 2])])
def test_workers_may_have_empty_parts_and_different_devices(size, devices):
    with kvstore.cluster("dist_sync", len(devices), 2) as stores:
        results = through(stores, size, 3, UPDATES["adam"], devices)
    assert same(results, in_turn(net(), data(), size, 3, UPDATES["adam"], devices))


def test_the_order_of_additions_is_what_makes_the_bits():
    by_device = in_turn(net(), data(), 60, 6, SGD, [1] * 6)
    by_worker = in_turn(net(), data(), 60, 6, SGD, [3, 3])
    close(by_device.weights, by_worker.weights, 6 * 60)
    assert not by_device.weights.equal(by_worker.weights)


def test_a_worker_alone_is_sgd_of_torch():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), **UPDATES["sgd"][1])
    with by_plan.deterministic():
        for X, y in by_plan.batches(data(), 32, 5):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(X), y, reduction="sum") / len(y)).backward()
            optimizer.step()
    one = in_turn(net(), data(), 32, 5, UPDATES["sgd"], [1])
    assert one.weights.equal(parameters_to_vector(model.parameters()))


@pytest.mark.parametrize("kind, name, devices", [("local", "sgd", 2), ("device", "adagrad", 2), ("local", "adam", 1)])
def test_store_of_one_process_is_one_device_in_turn_bit_for_bit(kind, name, devices):
    results = through([kvstore.create(kind)], 17, 4, UPDATES[name], [devices])
    assert same(results, in_turn(net(), data(), 17, 4, UPDATES[name], [devices]))


def test_the_weights_of_worker_0_are_those_to_begin_with():
    nets = [net() for _ in range(3)]
    with torch.no_grad():
        for rank, mine in enumerate(nets):
            for weight in mine.parameters():
                weight.mul_(1 + rank)
    with kvstore.cluster("dist_sync", 3, 2) as stores:
        results = each(stores, lambda store: work(store, nets[store.rank], data(), 16, 2, SGD))
    assert same(results, in_turn(net(), data(), 16, 2, SGD, [1] * 3))
    assert all(parameters_to_vector(mine.parameters()).equal(results[0].weights) for mine in nets)


SCRIPT = """
import hashlib, os
from d2lps import kvstore
from d2lps.train import by_plan
from d2lps.train.by_store import work

with by_plan.deterministic(), kvstore.create("dist_sync", servers=1) as store:
    worked = work(store, by_plan.small_cnn(), by_plan.digits().train, 50, 5, ("adam", {"lr": 0.003}), ["cpu"] * 2)
said = hashlib.sha256(worked.weights.numpy().tobytes()).hexdigest()
os.write(1, f"{store.rank} {said}\\n".encode())
"""


def test_processes_under_torchrun_are_one_device_in_turn_bit_for_bit(tmp_path):
    (tmp_path / "work.py").write_text(SCRIPT)
    done = torchrun(tmp_path / "work.py", 2)
    reference = in_turn(by_plan.small_cnn(), data(), 50, 5, ("adam", {"lr": 0.003}), [2, 2])
    digest = hashlib.sha256(reference.weights.numpy().tobytes()).hexdigest()
    assert sorted(done.stdout.splitlines()) == [f"{rank} {digest}" for rank in range(2)], done.stderr


# ---------------------------------------------------------------- who waits for whom


class Slow:
    """A worker's store that pushes only when ``settled()`` has returned."""

    def __init__(self, store, settled):
        self._store, self._settled = store, settled

    def __getattr__(self, name):
        return getattr(self._store, name)

    def pushpull(self, *arguments, **more):
        self._settled()
        self._store.pushpull(*arguments, **more)


class Watched:
    """A cluster whose last worker is as slow as can be: it pushes when all others wait for it, or have done all."""

    def __init__(self, cluster, steps):
        self.cluster, self.steps = cluster, steps
        self.slow = len(cluster.stores) - 1
        self.nets = [net() for _ in cluster.stores]
        self.done = [0] * self.slow  # steps of each of the others
        self.progress, self.waits = [], 0  # the same before each push of the slow one; pulls that it kept waiting
        self.lags = []  # of each value that was given out
        for server in cluster.servers:
            core = server.store.slot.core
            core._is_readable = self._watched(core, core._is_readable)

    def _watched(self, core, is_readable):
        def watched(rank, part, need):  # within the lock of the slot: this is what the value has
            if readable := is_readable(rank, part, need):
                self.lags.append(need - min(core.committed[part].rounds))
            return readable

        return watched

    @property
    def parts(self):
        return [held for server in self.cluster.servers for held in server.store.shards]

    @property
    def waiting(self):
        """How many pulls wait for each part."""
        cores = [server.store.slot.core for server in self.cluster.servers]
        return [len(core._pulls.get(part, ())) for core in cores for part in range(len(core.parts))]

    @property
    def still(self):
        """Whether nothing moves before the slow one does."""
        undone = sum(done < self.steps for done in self.done)
        return all(waiting == undone for waiting in self.waiting)

    def settled(self):
        soon(lambda: self.still)
        self.progress.append(list(self.done))
        self.waits += sum(self.waiting)

    def work(self, store):
        def after(step):
            self.done[store.rank] = step

        slow = store.rank == self.slow
        mine = Slow(store, self.settled) if slow else store
        return work(mine, self.nets[store.rank], data(), 24, self.steps, SGD, after=None if slow else after)


AHEAD = {"sync": 0, "async": 99, "staleness 0": 0, "staleness 1": 1, "staleness 4": 4}  # steps, at most


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("servers", [1, 2])
def test_how_far_the_fast_come_and_how_often_they_wait(name, servers):
    steps, ahead = 6, AHEAD[name]
    with kvstore.cluster(workers=3, servers=servers, **STORES[name]) as cluster:
        watched = Watched(cluster, steps)
        each(cluster, watched.work)
        assert watched.progress == [[min(steps, k + ahead)] * 2 for k in range(steps)]
        assert watched.waits == 2 * len(watched.parts) * max(0, steps - ahead)
        assert max(watched.lags) == min(steps, ahead)


def test_at_the_end_all_have_the_same_weights_asynchronously_too():
    with kvstore.cluster("dist_async", 3, 2) as stores:
        first, *others = through(stores, 24, 6, SGD, [1, 2, 1])
    assert all(worked.weights.equal(first.weights) for worked in others)
    with kvstore.cluster("dist_async", 1, 2) as stores:  # alone, to be asynchronous is to be synchronous
        assert same(through(stores, 24, 6, SGD, [1]), in_turn(net(), data(), 24, 6, SGD, [1]))


# ---------------------------------------------------------------- curves


def test_the_loss_falls_through_every_store():
    model, before = net(), parameters_to_vector(net().parameters())
    untrained = by_store.loss(model, before, data())
    results = curves(model, data(), 96, 20, ("sgd", {"lr": 0.3}), pauses=[0, 0, 0.01])
    assert list(results) == list(STORES)
    for name, curve in results.items():
        assert len(curve.losses) == len(curve.seconds) == len(curve.staleness) == 20
        assert curve.losses[-1] < 1.2 < 2 < untrained, name  # 1.03, should all the others come later
        assert curve.seconds == sorted(curve.seconds)
        assert min(curve.staleness) >= 0 and max(curve.staleness) <= min(20, AHEAD[name])
    assert parameters_to_vector(model.parameters()).equal(before)


def test_the_curve_of_a_synchronous_store_is_that_of_one_device():
    results = curves(net(), data(), 24, 3, SGD, pauses=[0.0, 0.0], servers=2, stores={"sync": STORES["sync"]})
    want = [by_store.loss(net(), in_turn(net(), data(), 24, steps, SGD, [1, 1]).weights, data()) for steps in (1, 2, 3)]
    assert results["sync"].losses == pytest.approx(want, rel=1e-5)
    assert results["sync"].staleness == [0, 0, 0]


def test_a_slow_worker_sleeps_in_every_step():
    results = work(kvstore.create("local"), net(), data(), 8, 3, SGD, pause=0.02)
    assert all(seconds >= 0.02 * step for step, seconds in enumerate(results.seconds, 1))


# ---------------------------------------------------------------- what goes wrong


def bare():
    """A network of two keys, one on each of two servers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10, bias=False))


@pytest.mark.parametrize("pushed", [(), ("0.weight",), ("3.weight",)])
def test_a_dead_worker_ends_training_everywhere_and_keeps_the_last_step(pushed):
    """It dies when some servers have its push and others do not: what is at hand is a whole step nevertheless."""
    nets = [bare() for _ in range(3)]

    def one(store):
        def after(step):
            if store.rank == 1 and step == 3:
                for key in pushed:
                    store.push(key, nets[1].get_parameter(key))
                for line in store.clients:  # as if it were killed: no goodbye, and it does not come back
                    line._open = False
                    line._channel.close()
                raise WorkerLost("dead", (1,))

        work(store, nets[store.rank], data(), 24, 6, SGD, after=after)

    with by_plan.deterministic(), kvstore.cluster("dist_sync", 3, 2, deadline=2.0) as stores:
        assert {stores.placement.owner(key) for key in ("0.weight", "3.weight")} == {0, 1}
        results = each_worker(stores, one)
    assert [type(error) for error in results] == [WorkerLost] * 3 and [error.ranks for error in results] == [(1,)] * 3
    reference = in_turn(bare(), data(), 24, 3, SGD, [1] * 3)
    assert all(parameters_to_vector(one.parameters()).equal(reference.weights) for one in nets)


def test_an_error_of_a_worker_is_raised_and_no_worker_waits():
    threads, ended, nets = torch.get_num_threads(), [], [net() for _ in range(3)]

    def one(store):
        def after(step):
            if store.rank == 1 and step == 2:
                raise ZeroDivisionError("mine")

        try:
            work(store, nets[store.rank], data(), 24, 6, SGD, after=after)
        except Exception as error:
            ended.append(type(error))
            raise

    with kvstore.cluster("dist_sync", 3, 2) as stores, pytest.raises(ZeroDivisionError, match="mine"):
        each(stores, one)
    assert ended == [ZeroDivisionError, WorkerLost, WorkerLost] and Timeout not in ended
    assert torch.get_num_threads() == threads and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    "more, sentence",
    [
        ({"devices": []}, "devices is empty: name the devices of this worker"),
        ({"size": 0}, "size = 0: it must be a whole number, 1 or more"),
        ({"update": ("lion", {"lr": 1})}, "there is no optimizer 'lion'"),
        ({"update": ("sgd", {})}, "sgd needs lr"),
    ],
)
def test_an_invalid_training_is_refused(more, sentence):
    usual = {"store": kvstore.create("local"), "net": net(), "data": data(), "size": 8, "steps": 1, "update": SGD}
    with pytest.raises(Refused) as caught:
        work(**usual | more)
    assert sentence in str(caught.value)


def test_a_store_trains_once():
    store = kvstore.create("local")
    work(store, net(), data(), 8, 1, SGD)
    with pytest.raises(Refused, match="key '0.weight' is initialized already"):
        work(store, copy.deepcopy(net()), data(), 8, 1, SGD)
