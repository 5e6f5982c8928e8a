"""Servers: a sum is made in one place, or every shard of it in a place of its own.

>>> from d2lps import sharded
>>> print(sharded(["gpu0", "gpu1"], servers=["cpu"]))
3 nodes: gpu0 gpu1 cpu
shares: g1 = 1
step 1   gpu0,gpu1→cpu +g1
step 2   cpu→gpu0,gpu1 =g1
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from d2lps.plan.acts import PlanError, Send, Update
from d2lps.plan.parse import fraction, names
from d2lps.plan.plan import Plan

Rule = tuple[str, Mapping[str, float]]


def aggregate_at(
    workers: Iterable[str], root: str, chunks: int = 1, update: Rule | None = None, key: str = "g"
) -> Plan:
    """Everyone sends its gradient to ``root``, which adds them up and sends the sum back.

    ``root`` is one of the workers (GPU 0), or a node of its own that has no gradient (the CPU, a server).

    1. The workers send; ``root`` then holds the complete sum (own gradient first, then by worker).
    2. ``root`` sends the sum; everyone holds it.

    Steps: 2. A worker ``root`` receives and sends (n−1)·S, the others S; a ``root`` of its own n·S. Step by step:
    2α + 2(n−1)·S/b, with a ``root`` of its own 2α + 2n·S/b.

    With ``chunks=c`` the gradient is cut into c parts, and while part i is collected, part i−1 is
    already sent back, so that both directions of the links are busy. Steps: c + 1; the same bytes; step by
    step (c + 1)·α + (c + 1)/c·(n−1)·S/b, with a ``root`` of its own (c + 1)·α + (c + 1)/c·n·S/b.

    With ``update=("sgd", {"lr": 0.1})`` the root turns each complete sum into new weights and sends those.

    >>> print(aggregate_at(["gpu0", "gpu1", "gpu2"], "gpu0"))
    3 nodes: gpu0 gpu1 gpu2
    shares: g = 1
    step 1   gpu1,gpu2→gpu0 +g
    step 2   gpu0→gpu1,gpu2 =g
    """
    workers, (root,) = names(workers), names([root])
    keys = [key] if chunk_count(chunks) == 1 else [f"{key}{c}" for c in range(1, chunks + 1)]
    return _served(workers, dict.fromkeys(keys, Fraction(1, chunks)), [{name: root} for name in keys], update)


def sharded(
    workers: Iterable[str],
    servers: "Sequence[str] | Mapping[str, Fraction | str] | None" = None,
    chunks: int = 1,
    update: Rule | None = None,
    key: str = "g",
) -> Plan:
    """The gradient is cut into one shard per server; everyone sends every shard to its server and gets its sum back.

    ``servers`` are the workers themselves (if left out), any nodes by name with equal shards, or a mapping
    from name to exact share, such as ``{"cpu0": "2/3", "cpu1": "1/3"}``.

    1. Everyone sends shard j to server j, which then holds the complete sum of shard j.
    2. Server j sends that sum; everyone holds all shards.

    Steps: 2. With n workers as their own servers everyone sends and receives 2(n−1)/n·S, which no
    algorithm between the workers alone can beat; each of k servers of their own receives and sends n/k·S, a worker S.
    Step by step: 2α + 2(n−1)/n·S/b, with k servers of their own 2α + 2·max(1, n/k)·S/b.

    ``chunks=c`` cuts every shard into c parts and overlaps the two phases in c + 1 steps; ``update`` as in
    :func:`aggregate_at`.

    >>> print(sharded(["gpu0", "gpu1"]))
    2 nodes: gpu0 gpu1
    shares: g1 = g2 = 1/2
    step 1   gpu1→gpu0 +g1   gpu0→gpu1 +g2
    step 2   gpu0→gpu1 =g1   gpu1→gpu0 =g2
    """
    workers = names(workers)
    if isinstance(servers, Mapping):
        parts = {server: fraction(server, servers[server]) for server in names(servers)}
    else:
        servers = workers if servers is None else names(servers)
        parts = dict.fromkeys(servers, Fraction(1, len(servers)))
    share, stages = {}, [{} for _ in range(chunk_count(chunks))]
    for j, server in enumerate(parts, 1):
        for c, stage in enumerate(stages, 1):
            name = f"{key}{j}" if chunks == 1 else f"{key}{j}.{c}"
            share[name] = parts[server] / chunks
            stage[name] = server
    return _served(workers, share, stages, update)


def _served(
    workers: tuple[str, ...], share: Mapping[str, Fraction], stages: Sequence[Mapping[str, str]], update: Rule | None
) -> Plan:
    """Collect the keys of each stage (key → server) and, one step later, send their sums back."""
    servers = dict.fromkeys(server for stage in stages for server in stage.values())
    steps = [[] for _ in range(len(stages) + 1)]
    for i, stage in enumerate(stages):
        for key, server in stage.items():
            others = [worker for worker in workers if worker != server]
            steps[i] += [Send(worker, server, key, "add") for worker in others]
            steps[i + 1] += [Send(server, worker, key, "copy") for worker in others]
    if update is not None:
        if not isinstance(update, tuple | list) or len(update) != 2:
            raise PlanError("bad-update", update=repr(update))
        for i, stage in enumerate(stages):
            steps[i] += [Update(server, key, *update) for key, server in stage.items()]
    nodes = [*workers, *(server for server in servers if server not in workers)]
    return Plan(nodes, share, filter(None, steps), holds=workers, wants=workers)


def chunk_count(chunks: int) -> int:
    """``chunks``, if it is a whole number of 1 or more."""
    if isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1:
        raise PlanError("bad-chunks", chunks=repr(chunks))
    return chunks
