"""Two levels: sums inside every machine, then between machines, then the total back inside."""

from collections.abc import Iterable, Mapping

from d2lps.plan.acts import PlanError, Send
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan, require_plan


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
