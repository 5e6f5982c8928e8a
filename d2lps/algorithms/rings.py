"""Rings: every node sends to a neighbor only."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import repeat

from d2lps.algorithms.compose import side_by_side
from d2lps.algorithms.servers import sharded
from d2lps.plan.acts import Send
from d2lps.plan.lazy import Lazy
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan
from d2lps.topology import Topology, rings


def ring(nodes: Iterable[str], key: str = "g") -> Plan:
    """Chunked ring: n keys of 1/n travel around the ring, first to be added up, then to be distributed.

    1. Reduce-scatter, n−1 steps: in step t node i sends key i−t+1 (cyclic) to node i+1, which adds it. Key 1 starts
       on node 1; after the phase node n holds the complete sum of key 1, node i that of key i+1.
    2. All-gather, n−1 steps: the complete keys travel on in the same way; every node then holds them all.

    Steps: 2(n−1). Every node sends and receives 2(n−1)/n·S, which no algorithm between the workers alone can beat, and
    sends to one neighbor only. Step by step: 2(n−1)·α + 2(n−1)/n·S/b.

    Args:
        nodes: Their names, in order.
        key: The first part of the keys' names.

    Returns:
        A plan with n keys of 1/n, ``g1`` … ``gn``; lazy beyond 64 nodes.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(ring(["a", "b"]))
        2 nodes: a b
        shares: g1 = g2 = 1/2
        step 1   a→b +g1   b→a +g2
        step 2   a→b =g2   b→a =g1
    """
    nodes = names(nodes)
    n = len(nodes)

    keys = [f"{key}{j + 1}" for j in range(n)]
    after = nodes[1:] + nodes[:1]

    def step(t: int) -> list[Send]:
        op = "add" if t < n - 1 else "copy"
        first = -t % n
        return [*map(Send, nodes, after, keys[first:] + keys[:first], repeat(op))]  # twice as fast as a loop

    # The steps of a phase are alike: every node sends 1/n to the next.
    steps = Lazy(step, range(2 * (n - 1)), alike=lambda t: t < n - 1, call=(ring, nodes, key))
    return Plan(nodes, dict.fromkeys(keys, Fraction(1, n)), steps)


def reduce_scatter(nodes: Iterable[str], direct: bool = False, key: str = "g") -> Plan:
    """First half of :func:`ring`, or with ``direct`` of :func:`sharded`: the complete sums, spread over the nodes.

    At the start every node holds a gradient of n keys of 1/n. After n−1 steps around the ring node n holds the sum of
    key 1, node i that of key i+1. With ``direct`` every node sends key j straight to node j, which then holds its sum.

    Steps: n−1, or 1 with ``direct``. Every node sends and receives (n−1)/n·S. Step by step:
    (n−1)·α + (n−1)/n·S/b, with ``direct`` α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order.
        direct: True to send messages straight to their destination, False to send them around the ring.
        key: The first part of the keys' names.

    Returns:
        A plan in which every node holds all keys and wants one.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(reduce_scatter(["a", "b", "c"], direct=True))
        3 nodes: a b c
        shares: g1 = g2 = g3 = 1/3
        step 1   b,c→a +g1   a,c→b +g2   a,b→c +g3
    """
    whole, complete = _halves(nodes, direct, key)
    return Plan(whole.nodes, whole.share, whole.steps[: len(whole.steps) // 2], wants=complete)


def all_gather(nodes: Iterable[str], direct: bool = False, key: str = "g") -> Plan:
    """Second half of :func:`ring`, or with ``direct`` of :func:`sharded`: keys spread over the nodes go to every node.

    It begins where :func:`reduce_scatter` ends: node n holds key 1, node i key i+1, and with ``direct`` node j holds
    key j. After n−1 steps around the ring, or one with ``direct``, every node holds all keys.

    Steps: n−1, or 1 with ``direct``. Every node sends and receives (n−1)/n·S. Step by step:
    (n−1)·α + (n−1)/n·S/b, with ``direct`` α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order.
        direct: True to send messages straight to their destination, False to send them around the ring.
        key: The first part of the keys' names.

    Returns:
        A plan in which every node holds one key and wants them all.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(all_gather(["a", "b", "c"]))
        3 nodes: a b c
        shares: g1 = g2 = g3 = 1/3
        step 1   a→b =g2   b→c =g3   c→a =g1
        step 2   a→b =g1   b→c =g2   c→a =g3
    """
    whole, complete = _halves(nodes, direct, key)
    return Plan(whole.nodes, whole.share, whole.steps[len(whole.steps) // 2 :], holds=complete)


def _halves(nodes: Iterable[str], direct: bool, key: str) -> tuple[Plan, list[tuple[str, str]]]:
    """Return the plan of both phases, and the (node, key) that are complete between them."""
    whole = sharded(nodes, key=key) if direct else ring(nodes, key)
    return whole, [(whole.nodes[j if direct else j - 1], name) for j, name in enumerate(whole.share)]


def naive_ring(nodes: Iterable[str], key: str = "g") -> Plan:
    """Ring without chunks: the whole tensor travels around the ring twice.

    1. Reduce, n−1 steps: node i sends the sum so far to node i+1; node n then holds the complete sum.
    2. Broadcast, n−1 steps: the sum goes from node n to node 1 and on to node n−1; every node then holds it.

    Steps: 2(n−1). Nodes n−1 and n send S, the others 2·S; nodes 1 and n receive S, the others 2·S. Step by step:
    2(n−1)(α + S/b), since one message is under way at a time.

    Args:
        nodes: Their names, in order.
        key: The first part of the keys' names.

    Returns:
        A plan with one key for the whole buffer.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(naive_ring(["a", "b", "c"]))
        3 nodes: a b c
        shares: g = 1
        step 1   a→b +g
        step 2   b→c +g
        step 3   c→a =g
        step 4   a→b =g
    """
    nodes = names(nodes)
    n = len(nodes)
    steps = [[Send(nodes[t % n], nodes[(t + 1) % n], key, "add" if t < n - 1 else "copy")] for t in range(2 * (n - 1))]
    return Plan(nodes, {key: 1}, steps)


def bidirectional_ring(nodes: Iterable[str], key: str = "g") -> Plan:
    """Two :func:`ring` at the same time: half of the buffer travels in each direction.

    Keys ``g1.1`` … of 1/(2n) go up the nodes as in :func:`ring`, ``g2.1`` … down; key 1 of both starts on node 1.

    1. Reduce-scatter, n−1 steps: node i then holds the complete sum of key i+1 of the first ring and of one key of the
       second.
    2. All-gather, n−1 steps: every node then holds all keys.

    Steps: 2(n−1). Every node sends and receives 2(n−1)/n·S, half of it to each neighbor. Step by step, if the links to
    the two neighbors are separate (n ≥ 3): 2(n−1)·α + (n−1)/n·S/b. Through one full-duplex port it takes as long as
    :func:`ring`, which already fills both directions of the port.

    Args:
        nodes: Their names, in order.
        key: The first part of the keys' names.

    Returns:
        A plan with 2n keys of 1/(2n); lazy beyond 64 nodes.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(bidirectional_ring(["a", "b", "c"]))
        3 nodes: a b c
        shares: g1.1 = g1.2 = g1.3 = g2.1 = g2.2 = g2.3 = 1/6
        step 1   a→b +g1.1   b→c +g1.2   c→a +g1.3   a→c +g2.1   c→b +g2.2   b→a +g2.3
        step 2   a→b +g1.3   b→c +g1.1   c→a +g1.2   a→c +g2.3   c→b +g2.1   b→a +g2.2
        step 3   a→b =g1.2   b→c =g1.3   c→a =g1.1   a→c =g2.2   c→b =g2.3   b→a =g2.1
        step 4   a→b =g1.1   b→c =g1.2   c→a =g1.3   a→c =g2.1   c→b =g2.2   b→a =g2.3
    """
    nodes = names(nodes)
    return _rings(nodes, [(nodes, 1)], both=True, key=key)


def two_rings(topology: Topology, both: bool = False, key: str = "g") -> Plan:
    """All rings that the links of ``topology`` form, at the same time, each with a part in proportion to its width.

    :func:`d2lps.rings` finds the rings: on a DGX-1V one over doubled links and one over single links, which therefore
    carry 2/3 and 1/3 of the buffer. Ring r has the keys ``gr.1`` … ``gr.n``; with ``both``, each part is cut into
    halves that travel in the two directions, as rings 2r−1 and 2r. Nodes are in the topology's order.

    1. Reduce-scatter on each ring as in :func:`ring`; each key is then complete on one node.
    2. All-gather on each ring; every node then holds all keys.

    Steps: 2(n−1). Every node sends and receives 2(n−1)/n·S. Step by step, for c links of b bytes/s in all rings
    together: 2(n−1)·α + 2(n−1)/n·S/(c·b), with ``both`` 2(n−1)·α + (n−1)/n·S/(c·b). On the DGX-1V c = 3.

    Args:
        topology: The topology whose direct links form the rings.
        both: True to send each part in both directions.
        key: The first part of the keys' names.

    Returns:
        A plan with n keys for each ring and direction.

    Raises:
        TopologyError: If the links form no ring, or there is too much to search.

    Example:
        >>> from d2lps.topology import Topology, both_ways
        >>> triangle = Topology("triangle", dict.fromkeys("abc", "gpu"),
        ...                     [link for ends in ("ab", "bc", "ca") for link in both_ways(*ends, "18 GB/s")])
        >>> print(two_rings(triangle))
        3 nodes: a b c
        shares: g1.1 = g1.2 = g1.3 = 1/3
        step 1   a→b +g1.1   b→c +g1.2   c→a +g1.3
        step 2   a→b +g1.3   b→c +g1.1   c→a +g1.2
        step 3   a→b =g1.2   b→c =g1.3   c→a =g1.1
        step 4   a→b =g1.1   b→c =g1.2   c→a =g1.3
    """
    cycles = rings(topology)
    members = {node for cycle in cycles for node in cycle.nodes}
    return _rings([node for node in topology.kinds if node in members], cycles, both, key)


def _rings(nodes: Iterable[str], cycles: Iterable[tuple[tuple[str, ...], int]], both: bool, key: str) -> Plan:
    """Run :func:`ring` on each cycle (nodes, count), with parts in proportion to the counts."""
    ways = [(way, count) for cycle, count in cycles for way in (_ways(cycle) if both else [cycle])]
    total = sum(count for _, count in ways)
    plans = [ring(way, key=f"{key}{r}.") for r, (way, _) in enumerate(ways, 1)]
    return side_by_side(nodes, plans, [Fraction(count, total) for _, count in ways])


def _ways(nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the two directions of a cycle, both starting at the first node."""
    return [nodes, (nodes[0], *reversed(nodes[1:]))]
