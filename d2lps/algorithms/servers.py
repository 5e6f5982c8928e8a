"""Servers: one node adds up the whole gradient, or each server one shard of it."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from d2lps.plan.acts import PlanError, Send, Update
from d2lps.plan.parse import fraction, names
from d2lps.plan.plan import Plan
from d2lps.units import is_count

Rule = tuple[str, Mapping[str, float]]


def aggregate_at(
    workers: Iterable[str], root: str, chunks: int = 1, update: Rule | None = None, key: str = "g"
) -> Plan:
    """Every worker sends its gradient to ``root``, which adds them up and sends the sum back.

    1. The workers send; ``root`` then holds the complete sum (its own gradient first, then by worker).
    2. ``root`` sends the sum; every worker then holds it.

    Steps: 2. A ``root`` among the workers receives and sends (n−1)·S, the others S; a separate ``root`` n·S. Step by
    step: 2α + 2(n−1)·S/b, with a separate ``root`` 2α + 2n·S/b.

    With ``chunks=c`` the gradient is cut into c parts, and ``root`` sends part i−1 back while it collects part i, so
    that both directions of the links are busy. Steps: c + 1; the same bytes; step by step
    (c + 1)·α + (c + 1)/c·(n−1)·S/b, with a separate ``root`` (c + 1)·α + (c + 1)/c·n·S/b.

    Args:
        workers: The nodes that have a gradient.
        root: The node that adds: one of the workers (GPU 0), or a separate node without a gradient (the CPU, a server).
        chunks: The number of parts into which the gradient is cut, 1 or more.
        update: A rule and its numbers, such as ``("sgd", {"lr": 0.1})``, by which ``root`` turns each complete sum into
            new weights, which it then sends back.
        key: The first part of the keys' names.

    Returns:
        A plan with one key, or one for each chunk.

    Raises:
        PlanError: For invalid node names, chunks or updates.

    Example:
        >>> print(aggregate_at(["gpu0", "gpu1", "gpu2"], "gpu0"))
        3 nodes: gpu0 gpu1 gpu2
        shares: g = 1
        step 1   gpu1,gpu2→gpu0 +g
        step 2   gpu0→gpu1,gpu2 =g
    """
    workers, (root,) = names(workers), names([root])
    keys = [key] if require_chunks(chunks) == 1 else [f"{key}{c}" for c in range(1, chunks + 1)]
    return _served(workers, dict.fromkeys(keys, Fraction(1, chunks)), [{name: root} for name in keys], update)


def sharded(
    workers: Iterable[str],
    servers: "Sequence[str] | Mapping[str, Fraction | str] | None" = None,
    chunks: int = 1,
    update: Rule | None = None,
    key: str = "g",
) -> Plan:
    """Every worker sends each shard of its gradient to the shard's server and gets the sum back.

    1. Every worker sends shard j to server j, which then holds the complete sum of shard j.
    2. Server j sends that sum; every worker then holds all shards.

    Steps: 2. If the n workers are the servers, each sends and receives 2(n−1)/n·S, which no algorithm between the
    workers alone can beat; of k separate servers each receives and sends n/k·S, and a worker S. Step by step:
    2α + 2(n−1)/n·S/b, with k separate servers 2α + 2·max(1, n/k)·S/b.

    Args:
        workers: The nodes that have a gradient.
        servers: The workers themselves (if left out), any nodes by name with equal shards, or a mapping from name to
            exact share, such as ``{"cpu0": "2/3", "cpu1": "1/3"}``.
        chunks: The number of parts c into which every shard is cut, which overlaps the two phases in c + 1 steps.
        update: A rule and its numbers, such as ``("sgd", {"lr": 0.1})``, by which a server turns each complete sum into
            new weights, which it then sends back.
        key: The first part of the keys' names.

    Returns:
        A plan with a key for each server and chunk.

    Raises:
        PlanError: For invalid node names, chunks or updates, and for shares that do not add up to 1.

    Example:
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
    share: dict[str, Fraction] = {}
    stages: list[dict[str, str]] = [{} for _ in range(require_chunks(chunks))]
    for j, server in enumerate(parts, 1):
        for c, stage in enumerate(stages, 1):
            name = f"{key}{j}" if chunks == 1 else f"{key}{j}.{c}"
            share[name] = parts[server] / chunks
            stage[name] = server
    return _served(workers, share, stages, update)


def in_switch(gpus: Iterable[str], switch: str = "switch", chunks: int = 16, key: str = "g") -> Plan:
    """All-reduce by a switch that adds, as NVLink SHARP does it: each GPU gets its shard of the sum, and hands it on.

    Chunk after chunk, one step behind the other:

    1. All GPUs send the chunk; the switch then holds the sum of each shard of it.
    2. The switch sends shard j to GPU j.
    3. GPU j sends it back, to be copied.
    4. The switch sends the shards to all other GPUs.

    Steps: c + 3 for c chunks. A GPU sends (n+1)/n·S and receives S, instead of 2(n−1)/n·S of each. Step by step:
    (c + 3)·α and at least (n+1)/n·S/b, which is less than 2(n−1)/n·S/b if n is 4 or more.

    Args:
        gpus: The nodes that have a gradient, each with a link to the switch.
        switch: The node that adds and copies.
        chunks: The number of parts into which each shard is cut.
        key: The first part of the keys' names.

    Returns:
        A plan with a key for each shard and chunk.

    Raises:
        PlanError: For invalid node names or chunks.

    Source: NVIDIA, "NVLink SHARP" (NVLS) in NCCL: multimem.ld_reduce and multimem.st.

    Example:
        >>> print(in_switch(["a", "b"], chunks=1))
        3 nodes: a b switch
        shares: g1.1 = g2.1 = 1/2
        step 1   a,b→switch +g1.1   a,b→switch +g2.1
        step 2   switch→a =g1.1   switch→b =g2.1
        step 3   a→switch =g1.1   b→switch =g2.1
        step 4   switch→b =g1.1   switch→a =g2.1
    """
    gpus, (switch,) = names(gpus), names([switch])
    n = len(gpus)
    steps: list[list[Send]] = [[] for _ in range(require_chunks(chunks) + 3)]
    share = {f"{key}{j}.{c}": Fraction(1, n * chunks) for j in range(1, n + 1) for c in range(1, chunks + 1)}
    for c in range(1, chunks + 1):
        for owner, name in zip(gpus, [f"{key}{j}.{c}" for j in range(1, n + 1)], strict=True):
            steps[c - 1] += [Send(gpu, switch, name, "add") for gpu in gpus]
            steps[c].append(Send(switch, owner, name, "copy"))
            steps[c + 1].append(Send(owner, switch, name, "copy"))
            steps[c + 2] += [Send(switch, gpu, name, "copy") for gpu in gpus if gpu != owner]
    return Plan([*gpus, switch], share, filter(None, steps), holds=gpus, wants=gpus)


def _served(
    workers: tuple[str, ...], share: Mapping[str, Fraction], stages: Sequence[Mapping[str, str]], update: Rule | None
) -> Plan:
    """Collect the keys of each stage (key → server) and, one step later, send their sums back."""
    servers = dict.fromkeys(server for stage in stages for server in stage.values())
    steps: list[list[Send | Update]] = [[] for _ in range(len(stages) + 1)]
    for i, stage in enumerate(stages):
        for key, server in stage.items():
            others = [worker for worker in workers if worker != server]
            steps[i] += [Send(worker, server, key, "add") for worker in others]
            steps[i + 1] += [Send(server, worker, key, "copy") for worker in others]
    if update is not None:
        if not isinstance(update, tuple | list) or len(update) != 2:
            raise PlanError("bad-update", update=repr(update))
        for i, stage in enumerate(stages):
            rule, numbers = update  # numbers are a mapping or pairs, which Plan reads
            steps[i] += [Update(server, key, rule, numbers) for key, server in stage.items()]  # type: ignore[arg-type]
    nodes = [*workers, *(server for server in servers if server not in workers)]
    return Plan(nodes, share, filter(None, steps), holds=workers, wants=workers)


def require_chunks(chunks: int) -> int:
    """Return ``chunks``, or raise PlanError unless it is a whole number of 1 or more."""
    if not is_count(chunks, least=1):
        raise PlanError("bad-chunks", chunks=repr(chunks))
    return chunks
