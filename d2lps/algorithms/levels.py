"""Two levels: sums inside every machine, then between machines, then the total back inside."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction

from d2lps.algorithms.compose import side_by_side, steps_side_by_side
from d2lps.algorithms.rings import ring
from d2lps.plan.acts import PlanError, Send
from d2lps.plan.lazy import Lazy
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan, require_plan


def rail_wise(hosts: Iterable[Iterable[str]], across: Callable[..., Plan] = ring, key: str = "g") -> Plan:
    """Add inside every host so that each GPU has a part of the sum, then rail by rail, then give all parts back inside.

    Part i of the buffer belongs to rail i: the i-th GPUs of all hosts, whose network cards are on one switch.

    1. Reduce-scatter inside each host: GPU i then holds the host's sum of part i.
    2. All-reduce of part i between the GPUs of rail i, by ``across``, on all rails at the same time.
    3. All-gather inside each host; every GPU then holds all parts.

    Steps: those of ``across``, and 2. Of g GPUs in each of n hosts, each sends (g−1)/g·S inside its host, twice, and
    1/g of the bytes of ``across`` by its own card: 2(n−1)/(n·g)·S for a ring.

    Args:
        hosts: The GPUs of each host, equally many; the i-th of each form rail i.
        across: An all-reduce such as :func:`ring` or :func:`halving_doubling`: called with the nodes of a rail and
            ``key``.
        key: The first part of the keys' names.

    Returns:
        A plan with the keys of ``across`` for each rail.

    Raises:
        PlanError: If hosts have different numbers of GPUs, or for invalid names.

    Example:
        >>> print(rail_wise([["a0", "a1"]]), len(rail_wise([["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]).steps))
        2 nodes: a0 a1
        shares: g1.1 = g2.1 = 1/2
        step 1   a0→a1 +g2.1   a1→a0 +g1.1
        step 2   a1→a0 =g2.1   a0→a1 =g1.1 6
    """
    members, nodes = _equal(hosts)
    lanes = [across(rail, key=f"{key}{i}.") for i, rail in enumerate(zip(*members, strict=True), 1)]
    share, middle = steps_side_by_side(lanes, [Fraction(1, len(lanes))] * len(lanes))
    # (a GPU, another of its host, the keys of the other)
    pairs = [(a, b, lanes[i].share) for gpus in members for a in gpus for i, b in enumerate(gpus) if a != b]
    inside = [(a, b, "add", keys) for a, b, keys in pairs]
    back = [(b, a, "copy", keys) for a, b, keys in pairs]
    return Plan(nodes, share, _framed(inside, middle, back, share, (rail_wise, members, across, key)))


def _equal(hosts: Iterable[Iterable[str]]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return the GPUs of each host and of all; raise PlanError unless the hosts have equally many."""
    members = [tuple(gpus) for gpus in hosts]
    nodes = names(gpu for gpus in members for gpu in gpus)
    if len({len(gpus) for gpus in members}) != 1:
        raise PlanError("unequal-hosts", counts=" ".join(str(len(gpus)) for gpus in members))
    return members, nodes


def rail_rings(hosts: Iterable[Iterable[str]], key: str = "g") -> Plan:
    """A :func:`ring` for each network card, all at the same time, each with an equal part of the buffer.

    As in NCCL, ring i leaves the first host by card i, the second by card i+1, the third by card i again, and enters
    each host on the same rail, so that each card sends for one ring and receives for one. The last of an odd number of
    hosts takes a third rail; if there is none, one hop of each ring changes the rail.

    1. Reduce-scatter on each ring: each of its keys is then complete on one GPU.
    2. All-gather on each ring; every GPU then holds all keys.

    Steps: 2(ng−1) for g GPUs in each of n hosts. Each GPU sends 2(ng−1)/(ng)·S, 1/g of it by its own card and the rest
    inside its host. Step by step, for cards of b bytes/s, GPUs of c bytes/s inside, and α seconds for a message by a
    card: 2(ng−1)·(α + S/(n·g²)·max(1/b, (g−1)/c)).

    Args:
        hosts: The GPUs of each host, equally many; the i-th of each are on rail i.
        key: The first part of the keys' names.

    Returns:
        A plan with ng keys for each of g rings: ``g1.1`` …; lazy beyond 64 nodes.

    Raises:
        PlanError: If hosts have different numbers of GPUs, or for invalid names.

    Example:
        >>> print(rail_rings([["a", "b"], ["c", "d"]]))
        4 nodes: a b c d
        shares: g1.1 = g1.2 = g1.3 = g1.4 = g2.1 = g2.2 = g2.3 = g2.4 = 1/8
        step 1   b→a +g1.1   a→c +g1.2   c→d +g1.3   d→b +g1.4   a→b +g2.1   b→d +g2.2   d→c +g2.3   c→a +g2.4
        step 2   b→a +g1.4   a→c +g1.1   c→d +g1.2   d→b +g1.3   a→b +g2.4   b→d +g2.1   d→c +g2.2   c→a +g2.3
        step 3   b→a +g1.3   a→c +g1.4   c→d +g1.1   d→b +g1.2   a→b +g2.3   b→d +g2.4   d→c +g2.1   c→a +g2.2
        step 4   b→a =g1.2   a→c =g1.3   c→d =g1.4   d→b =g1.1   a→b =g2.2   b→d =g2.3   d→c =g2.4   c→a =g2.1
        step 5   b→a =g1.1   a→c =g1.2   c→d =g1.3   d→b =g1.4   a→b =g2.1   b→d =g2.2   d→c =g2.3   c→a =g2.4
        step 6   b→a =g1.4   a→c =g1.1   c→d =g1.2   d→b =g1.3   a→b =g2.4   b→d =g2.1   d→c =g2.2   c→a =g2.3
    """
    members, nodes = _equal(hosts)
    n, g = len(members), len(members[0])
    leave = [host % 2 for host in range(n)]  # the rail by which ring 0 leaves each host; ring i takes the i-th after it
    if n > 1 and n % 2 and g > 2:
        leave[-1] = 2
    enter = [leave[-1] or n % 2, *leave[:-1]]  # a ring cannot enter a host by the GPU by which it leaves

    def way(i: int) -> list[str]:
        found = []
        for gpus, first, last in zip(members, enter, leave, strict=True):
            start, end = (i + first) % g, (i + last) % g
            found += [gpu for gpu in gpus[start:] + gpus[:start] if gpu != gpus[end]] + [gpus[end]]
        return found

    return side_by_side(nodes, [ring(way(i), f"{key}{i + 1}.") for i in range(g)], [Fraction(1, g)] * g)


Carried = tuple[str, str, str, Collection[str]]  # sender, receiver, op, keys


def _framed(
    first: Sequence[Carried], middle: Iterable, last: Sequence[Carried], share: Mapping, call: tuple
) -> Iterable:
    """Return the steps of ``middle`` with one before and one after them; lazy steps if those of ``middle`` are."""

    def written(parts: Sequence[Carried]) -> list[Send]:
        return [Send(src, dst, key, op) for src, dst, op, keys in parts for key in keys]

    if not isinstance(middle, Lazy):
        return filter(None, [written(first), *middle, written(last)])
    frame, end = {0: first, len(middle) + 1: last}, len(middle) + 2

    def step(t: int) -> Sequence[Send]:
        return written(frame[t]) if t in frame else middle[t - 1]

    def alike(t: int) -> Hashable:
        return t if t in frame else (middle.kind(t - 1),)

    def joined(t: int) -> Sequence[tuple[str, str, str, int]]:
        if t in frame:
            return [(src, dst, op, len(keys)) for src, dst, op, keys in frame[t]]
        return middle.groups(t - 1) or [(send.src, send.dst, send.op, 1) for send in middle[t - 1]]

    one_size = len({*share.values()}) == 1 and len({len(keys) for _, _, _, keys in first}) < 2
    return Lazy(step, range(end), alike, call, joined if one_size else None)


def hierarchical(inside: Mapping[str, Iterable[str]], across: Plan) -> Plan:
    """Add inside every machine first, so that one sum per machine crosses its network card, however many GPUs it has.

    1. In every machine the devices send their gradients to its leader, which then holds the machine's sum.
    2. The leaders add up their sums by ``across``, which may use servers.
    3. The leaders send the total to their devices.

    Steps: those of ``across``, and 2. In a machine of g devices a separate leader receives and sends g·S, a leader that
    is one of them (g−1)·S; between machines the nodes move the bytes of ``across``, instead of g times as many.

    Args:
        inside: Leader → the devices of its machine that have a gradient. A leader may be one of them (GPU 0), or a
            separate node (the CPU).
        across: A plan between the leaders, each of which holds a gradient and wants the sum: ``ring(leaders)``,
            ``sharded(leaders, servers=["server0"])``, …

    Returns:
        A plan with the keys of ``across``. The devices receive updated weights for the keys that ``across`` updates.

    Raises:
        PlanError: If leaders and plan do not fit together, or a device is in two machines.

    Example:
        >>> from d2lps import aggregate_at
        >>> print(hierarchical({"a0": ["a0", "a1"], "b0": ["b0", "b1"]}, aggregate_at(["a0", "b0"], "server")))
        5 nodes: a0 a1 b0 b1 server
        shares: g = 1
        step 1   a1→a0 +g   b1→b0 +g
        step 2   a0,b0→server +g
        step 3   server→a0,b0 =g
        step 4   a0→a1 =g   b0→b1 =g

    Source: The seven steps of *Dive into Deep Learning*, 12.7.3; Horovod's and NCCL's hierarchical all-reduce do the
    same.
    """
    require_plan("hierarchical", across)
    if not isinstance(inside, Mapping) or not inside:
        raise PlanError("inside-wanted", given=repr(inside))
    machines = {leader: names(devices) for leader, devices in inside.items()}
    devices = names(device for members in machines.values() for device in members)
    held, wanted = Counter(node for node, _ in across.holds), Counter(node for node, *_ in across.wants)
    for leader in machines:
        if not held[leader] == wanted[leader] == len(across.share):
            raise PlanError("leader-without", leader=leader)
    members = {*devices}
    for node in across.nodes:
        if node not in machines and (node in members or held[node]):
            raise PlanError("no-leader", node=node)
    pairs = [(leader, device) for leader, members in machines.items() for device in members if device != leader]
    nodes = dict.fromkeys(node for leader, members in machines.items() for node in (*members, leader))
    nodes |= dict.fromkeys(across.nodes)
    gather = [(device, leader, "add", across.share) for leader, device in pairs]
    spread = [(leader, device, "copy", across.share) for leader, device in pairs]
    steps = _framed(gather, across.steps, spread, across.share, (hierarchical, machines, across))
    return Plan(nodes, across.share, steps, holds=devices, wants=devices)
