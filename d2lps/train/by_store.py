"""Data-parallel training through a key–value store, and the one device it is compared with.

:func:`work` is one worker, through a store of any kind; :func:`each` runs the workers of a cluster in threads;
:func:`curves` compares stores with one another; :func:`in_turn` is the reference, on one device.

Every parameter of the network is a key. A worker pushes the gradients of its part of every minibatch, one per device,
and pulls the weights that the store has updated. Gradients have the same bits everywhere only on a single thread: enter
:func:`d2lps.train.deterministic` once, around all workers of a process (:func:`each` and :func:`curves` do so).
"""

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import kvstore
from d2lps.algorithms.placement import require_count
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.in_process import Cluster
from d2lps.kvstore.store import KVStore
from d2lps.messages import text
from d2lps.messages.counted import counted
from d2lps.plan.optimizers import RULES
from d2lps.train.by_plan import (
    Batch,
    TrainingResult,
    batches,
    deterministic,
    gradients_of,
    loss,
    loss_and_gradient,
    split,
    trained,
)
from d2lps.train.checkpoints import Checkpoints

Rule = tuple[str, Mapping[str, float]]
T = TypeVar("T")
CPU = torch.device("cpu")
STORES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "sync": {"kind": "dist_sync"},
        "async": {"kind": "dist_async"},
        "staleness 0": {"kind": "dist_ssp", "staleness": 0},
        "staleness 1": {"kind": "dist_ssp", "staleness": 1},
        "staleness 4": {"kind": "dist_ssp", "staleness": 4},
    }
)


class Worked(NamedTuple):
    """The result of one worker's training.

    ``losses``: of its part of each minibatch, scaled so that the losses of all workers add up to the minibatch's;
    ``seconds``: from the start to the end of each step; ``weights``: flat, with the pushes of all workers.
    """

    losses: list[float]
    seconds: list[float]
    weights: Tensor


class Curve(NamedTuple):
    """The state of worker 0 after each of its steps.

    ``losses``: of its weights, over all of the data; ``seconds``: since the start; ``staleness``: the number of steps
    by which the slowest worker's pushes were behind.
    """

    losses: list[float]
    seconds: list[float]
    staleness: list[int]


def work(
    store: KVStore,
    net: nn.Module,
    data: Batch,
    size: int,
    steps: int,
    update: Rule,
    devices: Sequence["str | torch.device"] = ("cpu",),
    pause: float = 0.0,
    after: Callable[[int], object] | None = None,
    checkpoints: Checkpoints | None = None,
    every: int = 100,
) -> Worked:
    """Train ``net``, in place, as the worker ``store.rank``, together with the other workers.

    The loss is the mean cross-entropy over all labels of a minibatch of all workers; frozen parameters are no keys.
    At the end the workers wait for each other: the slowest may be behind by less than the store's deadline.

    Args:
        store: a new store of any kind. With ``local`` and ``device`` this worker is the only one.
        net: the network, the same on all workers; the weights of worker 0 count. After an error it has the weights of
            the last complete step.
        data, size, steps: images and labels, examples per minibatch (of all workers together), and the number of
            minibatches.
        update: the optimizer and its hyperparameters, such as ``("sgd", {"lr": 0.1})``.
        devices: the devices of this worker. Its part of the minibatch is split over them, and the store adds their
            gradients first.
        pause: seconds that this worker sleeps in every step, to make it slow.
        after: called with the number of steps done, after each step.
        checkpoints: continue from the newest of these, if there is one, and save new ones; given on all workers or
            none.
        every: steps from one checkpoint to the next.

    Raises:
        KVError: an error of the store.

    Example:
        >>> from d2lps import kvstore, train
        >>> net, data = train.small_cnn(), train.digits().train
        >>> worked = work(kvstore.create("local"), net, data, size=64, steps=24, update=("adam", {"lr": 0.01}))
        >>> worked.losses[0] > 2, worked.losses[-1] < 0.5
        (True, True)
    """
    require_count("size", size, error=Refused)
    devices = [torch.device(device) for device in devices]
    if not devices:
        raise Refused(text("store.no-devices"))
    copies = [copy.deepcopy(net).to(device) for device in devices]
    names = [*trained(net)]
    fresh = [torch.empty_like(weight, device=CPU) for weight in trained(net).values()]

    def renew() -> None:
        with torch.no_grad():
            for replica in (net, *copies):
                for weight, new in zip(trained(replica).values(), fresh, strict=True):
                    weight.copy_(new)

    rule, numbers = update
    store.init(names, [*trained(net).values()])
    store.set_optimizer(rule, **numbers)
    resumed = checkpoints and checkpoints.resume()
    before = resumed.steps if resumed else 0
    store.pull(names, out=fresh)
    renew()
    worked, start = Worked([], [], torch.empty(0)), time.perf_counter()
    for done, (X, y) in enumerate(batches(data, size, steps, before), before + 1):
        part = split(X, y, [CPU] * store.num_workers)[store.rank]
        losses = [
            loss_and_gradient(replica, *piece, count=size)[0]
            for replica, piece in zip(copies, split(*part, devices), strict=True)
        ]
        time.sleep(pause)
        store.pushpull(names, [*map(list, zip(*map(gradients_of, copies), strict=True))], out=fresh)
        renew()  # only now, because a pull that fails may have brought some keys and not the others
        worked.losses.append(sum(losses))
        worked.seconds.append(time.perf_counter() - start)
        if after is not None:
            after(done)
        if checkpoints and done % every == 0:
            checkpoints.save(done)
    store.barrier()
    store.pull(names, out=fresh)
    renew()
    return worked._replace(weights=parameters_to_vector(fresh))


def each(stores: Iterable[KVStore], work: Callable[[KVStore], T]) -> list[T]:
    """Call ``work(store)`` for every worker of this process, each in its own thread, and return the results.

    All workers compute within :func:`d2lps.train.deterministic`. The first error is raised; a worker that fails closes
    its store, and the others do not wait for it.

    Args:
        stores: the stores of the workers, such as a :func:`d2lps.kvstore.cluster`.
        work: the function of a worker.

    Example:
        >>> from d2lps import kvstore
        >>> def count(store):
        ...     store.init("count", torch.zeros(1))
        ...     store.pushpull("count", torch.ones(1), out=(out := torch.empty(1)))
        ...     return out.item()
        >>> with kvstore.cluster("dist_sync", workers=3) as stores:
        ...     each(stores, count)
        [3.0, 3.0, 3.0]
    """
    stores, errors = list(stores), []

    def one(store: KVStore) -> T | None:
        try:
            return work(store)
        except BaseException as error:
            errors.append(error)
            store.close()
            return None

    with deterministic(), ThreadPoolExecutor(len(stores)) as threads:
        results: list[Any] = list(threads.map(one, stores))
    if errors:
        raise errors[0]
    return results


def curves(
    net: nn.Module,
    data: Batch,
    size: int,
    steps: int,
    update: Rule,
    pauses: Sequence[float],
    servers: int = 1,
    stores: Mapping[str, Mapping[str, Any]] = STORES,
) -> dict[str, Curve]:
    """Train ``net`` through each of ``stores`` in this process, and record the loss by step and by second.

    Args:
        net: the network to begin with; it is not changed.
        data, size, steps, update: as for :func:`work`.
        pauses: seconds that each worker sleeps in every step, worker 0 first, one number per worker. All workers share
            this machine, so a worker is slow only if its pause is longer than the others' computing.
        servers: the number of servers of each store.
        stores: options of :func:`d2lps.kvstore.cluster`, by name.

    Example:
        >>> from d2lps import train
        >>> net, data = train.small_cnn(), train.digits().train
        >>> curve = curves(net, data, size=96, steps=8, update=("sgd", {"lr": 0.1}), pauses=[0, 0, 0.03])
        >>> list(curve)
        ['sync', 'async', 'staleness 0', 'staleness 1', 'staleness 4']
        >>> [max(curve[f"staleness {s}"].staleness) <= s for s in (0, 1, 4)]
        [True, True, True]
    """
    trained = {}
    for name, options in counted(stores.items(), of=len(stores)):
        with kvstore.cluster(workers=len(pauses), servers=servers, **options) as cluster:
            trained[name] = _curve(cluster, net, data, size, steps, update, pauses)
    return trained


def _curve(
    cluster: Cluster, net: nn.Module, data: Batch, size: int, steps: int, update: Rule, pauses: Sequence[float]
) -> Curve:
    weights, staleness = [], []

    def one(store: KVStore) -> Worked:
        mine = copy.deepcopy(net)

        def after(step: int) -> None:
            weights.append(parameters_to_vector(trained(mine).values()).detach())
            staleness.append(step - _slowest(cluster))

        return work(
            store, mine, data, size, steps, update, pause=pauses[store.rank], after=None if store.rank else after
        )

    first, *_ = each(cluster, one)
    with deterministic():
        return Curve([loss(net, flat, data) for flat in weights], first.seconds, staleness)


def _slowest(cluster: Cluster) -> int:
    """Return the number of steps of the slowest worker, as counted by the servers."""
    servers: Iterable[Any] = cluster.servers  # here in this process
    return min(min(shard.rounds) for server in servers for shard in server.store.shards)


def in_turn(
    net: nn.Module,
    data: Batch,
    size: int,
    steps: int,
    update: Rule,
    workers: Sequence[int],
    device: "str | torch.device" = "cpu",
) -> TrainingResult:
    """Train ``net`` on one ``device`` that does the work of all devices of all workers in turn: the reference.

    The gradients of each worker's devices are added first, then those of the workers by rank: bit for bit the result
    of :func:`work` through a synchronous store with any number of servers, on devices of the same kind.

    Args:
        net: the network to begin with; it is not changed.
        data, size, steps, update: as for :func:`work`.
        workers: the number of devices of each worker, in the order of ranks.
        device: the device to train on; the weights returned are in main memory.

    Example:
        >>> from d2lps import kvstore, train
        >>> net, data, update = train.small_cnn(), train.digits().train, ("sgd", {"lr": 0.1, "momentum": 0.9})
        >>> with kvstore.cluster("dist_sync", workers=2, servers=2) as stores:
        ...     first, second = each(stores, lambda store: work(store, copy.deepcopy(net), data, 32, 4, update))
        >>> one = in_turn(net, data, 32, 4, update, workers=[1, 1])
        >>> torch.equal(first.weights, one.weights), torch.equal(second.weights, one.weights)
        (True, True)
    """
    net, (rule, numbers) = copy.deepcopy(net).to(device), update
    weights = parameters_to_vector(trained(net).values()).detach().cpu().clone()
    sizes = [weight.numel() for weight in trained(net).values()]
    losses, memory = [], [dict[str, Any]() for _ in sizes]
    with deterministic():
        for X, y in counted(batches(data, require_count("size", size, error=Refused), steps), of=steps):
            parts = split(X, y, [CPU] * len(workers))
            done = [
                [loss_and_gradient(net, *piece, count=size) for piece in split(*part, [torch.device(device)] * n)]
                for part, n in zip(parts, workers, strict=True)
            ]
            total = reduce(add, [reduce(add, [gradient for _, gradient in mine]) for mine in done]).cpu()
            for key in zip(weights.split(sizes), total.split(sizes), memory, strict=True):
                RULES[rule](*key, **numbers)
            vector_to_parameters(weights.to(device, copy=True), trained(net).values())
            losses.append(sum(sum(loss for loss, _ in mine) for mine in done))
    return TrainingResult(losses, weights, [])
