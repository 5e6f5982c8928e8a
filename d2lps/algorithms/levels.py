"""Two levels: sums inside every machine, then between machines, then the total back inside."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction

from d2lps.algorithms.compose import steps_side_by_side
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

    Parameters
    ----------
    hosts : iterable of iterable of str
        The GPUs of each host, equally many; the i-th of each form rail i.
    across : callable
        An all-reduce such as :func:`ring` or :func:`halving_doubling`: called with the nodes of a rail and ``key``.
    key : str
        The first part of the keys' names.

    Returns
    -------
    Plan
        A plan with the keys of ``across`` for each rail.

    Raises
    ------
    PlanError
        If hosts have different numbers of GPUs, or for invalid names.

    Examples
    --------
    >>> print(rail_wise([["a0", "a1"]]), len(rail_wise([["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]).steps))
    2 nodes: a0 a1
    shares: g1.1 = g2.1 = 1/2
    step 1   a0→a1 +g2.1   a1→a0 +g1.1
    step 2   a1→a0 =g2.1   a0→a1 =g1.1 6
    """
    members = [tuple(gpus) for gpus in hosts]
    nodes = names(gpu for gpus in members for gpu in gpus)
    if len({len(gpus) for gpus in members}) != 1:
        raise PlanError("unequal-hosts", counts=" ".join(str(len(gpus)) for gpus in members))
    lanes = [across(rail, key=f"{key}{i}.") for i, rail in enumerate(zip(*members, strict=True), 1)]
    share, middle = steps_side_by_side(lanes, [Fraction(1, len(lanes))] * len(lanes))
    last = len(middle) + 1
    # (a GPU, another of its host, the part of the other)
    pairs = [(a, b, i) for gpus in members for a in gpus for i, b in enumerate(gpus) if a != b]

    def step(t: int) -> Iterable[Send]:
        if t == 0:
            return [Send(a, b, name, "add") for a, b, i in pairs for name in lanes[i].share]
        if t == last:
            return [Send(b, a, name, "copy") for a, b, i in pairs for name in lanes[i].share]
        return middle[t - 1]

    if not isinstance(middle, Lazy):
        return Plan(nodes, share, filter(None, map(step, range(last + 1))))

    def groups(t: int) -> list[tuple[str, str, str, int]]:
        count = len(lanes[0].share)
        if t == 0:
            return [(a, b, "add", count) for a, b, _ in pairs]
        if t == last:
            return [(b, a, "copy", count) for a, b, _ in pairs]
        return middle.groups(t - 1) or [(*send[:2], send.op, 1) for send in middle[t - 1]]

    def alike(t: int) -> Hashable:
        return t if t in (0, last) else (middle.kind(t - 1),)

    one_size = len({*share.values()}) == 1
    call = (rail_wise, members, across, key)
    steps = Lazy(step, range(last + 1), alike, call, groups if one_size else None)
    return Plan(nodes, share, steps)


def hierarchical(inside: Mapping[str, Iterable[str]], across: Plan) -> Plan:
    """Add inside every machine first, so that one sum per machine crosses its network card, however many GPUs it has.

    1. In every machine the devices send their gradients to its leader, which then holds the machine's sum.
    2. The leaders add up their sums by ``across``, which may use servers.
    3. The leaders send the total to their devices.

    Steps: those of ``across``, and 2. In a machine of g devices a separate leader receives and sends g·S, a leader that
    is one of them (g−1)·S; between machines the nodes move the bytes of ``across``, instead of g times as many.

    Parameters
    ----------
    inside : mapping of str to iterable of str
        Leader → the devices of its machine that have a gradient. A leader may be one of them (GPU 0), or a separate
        node (the CPU).
    across : Plan
        A plan between the leaders, each of which holds a gradient and wants the sum: ``ring(leaders)``,
        ``sharded(leaders, servers=["server0"])``, …

    Returns
    -------
    Plan
        A plan with the keys of ``across``. The devices receive updated weights for the keys that ``across`` updates.

    Raises
    ------
    PlanError
        If leaders and plan do not fit together, or a device is in two machines.

    Examples
    --------
    >>> from d2lps import aggregate_at
    >>> print(hierarchical({"a0": ["a0", "a1"], "b0": ["b0", "b1"]}, aggregate_at(["a0", "b0"], "server")))
    5 nodes: a0 a1 b0 b1 server
    shares: g = 1
    step 1   a1→a0 +g   b1→b0 +g
    step 2   a0,b0→server +g
    step 3   server→a0,b0 =g
    step 4   a0→a1 =g   b0→b1 =g

    References
    ----------
    The seven steps of *Dive into Deep Learning*, 12.7.3; Horovod's and NCCL's hierarchical all-reduce do the same.
    """
    require_plan("hierarchical", across)
    if not isinstance(inside, Mapping) or not inside:
        raise PlanError("inside-wanted", given=repr(inside))
    machines = {leader: names(devices) for leader, devices in inside.items()}
    devices = names(device for members in machines.values() for device in members)
    holding, wanting = {*across.holds}, {(node, key) for node, key, _ in across.wants}
    for leader in machines:
        if not {(leader, key) for key in across.share} <= holding & wanting:
            raise PlanError("leader-without", leader=leader)
    for node in across.nodes:
        if node not in machines and (node in devices or any(holder == node for holder, _ in holding)):
            raise PlanError("no-leader", node=node)
    pairs = [(leader, device) for leader, members in machines.items() for device in members if device != leader]
    gather = [Send(device, leader, key, "add") for key in across.share for leader, device in pairs]
    spread = [Send(leader, device, key, "copy") for key in across.share for leader, device in pairs]
    nodes = dict.fromkeys(node for leader, members in machines.items() for node in (*members, leader))
    nodes |= dict.fromkeys(across.nodes)
    return Plan(nodes, across.share, filter(None, [gather, *across.steps, spread]), holds=devices, wants=devices)
