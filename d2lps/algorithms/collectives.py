"""The collectives besides all-reduce: broadcast, reduce, scatter, gather, all-gather, reduce-scatter and all-to-all.

>>> print(broadcast(["a", "b", "c"]))
3 nodes: a b c
shares: g = 1
step 1   a→c =g
step 2   a→b =g

A collective is defined by who holds which keys before, and who wants them after; ``plan.holds`` and ``plan.wants`` say
so. Each comes in a form of few steps (binomial trees, Bruck, doubling), for small messages, and in one that keeps all
links busy with few bytes (a chain of chunks, pairs), for large ones. S is the buffer of n parts that one node has in
the end or in the beginning. The ring forms of reduce-scatter and all-gather are in ``rings.py``.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from d2lps.algorithms.servers import require_chunks
from d2lps.algorithms.trees import halving_doubling
from d2lps.plan.acts import PlanError, Send
from d2lps.plan.lazy import Cells, Grid, Lazy
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan
from d2lps.units import is_count


def broadcast(nodes: Iterable[str], chunks: int | None = None, key: str = "g") -> Plan:
    """Give every node the tensor of the first one: by a binomial tree, or in chunks along a chain.

    In the tree, each node that has the tensor sends it to one that has not. In the chain, each node passes chunk after
    chunk on to the next.

    Steps: ⌈lg n⌉ in the tree, n − 2 + c in a chain of c chunks. Node 1 sends S to each of its ⌈lg n⌉ children, or S to
    its neighbor; every other node receives S. Step by step: ⌈lg n⌉(α + S/b), or (n − 2 + c)(α + S/(c·b)), which
    approaches S/b.

    Args:
        nodes: Their names, in order; the first one has the tensor.
        chunks: The number of chunks of a chain; a tree without it.
        key: The first part of the keys' names.

    Returns:
        A plan with one key, or with a key for each chunk.

    Raises:
        PlanError: For invalid node names or chunks.

    Example:
        >>> print(broadcast(["a", "b", "c"], chunks=2))
        3 nodes: a b c
        shares: g1 = g2 = 1/2
        step 1   a→b =g1
        step 2   b→c =g1   a→b =g2
        step 3   b→c =g2
    """
    nodes = names(nodes)
    share, steps = _down(nodes, chunks, key)
    return Plan(nodes, share, steps, holds=nodes[:1])


def reduce(nodes: Iterable[str], chunks: int | None = None, key: str = "g") -> Plan:
    """Add up the tensors of all nodes on the first one: :func:`broadcast` backwards.

    Steps: ⌈lg n⌉ in the tree, n − 2 + c in a chain of c chunks. Every node but the first sends S. Step by step:
    ⌈lg n⌉(α + S/b), or (n − 2 + c)(α + S/(c·b)).

    Args:
        nodes: Their names, in order; the first one gets the sum.
        chunks: The number of chunks of a chain; a tree without it.
        key: The first part of the keys' names.

    Returns:
        A plan with one key, or with a key for each chunk.

    Raises:
        PlanError: For invalid node names or chunks.

    Example:
        >>> print(reduce(["a", "b", "c"]))
        3 nodes: a b c
        shares: g = 1
        step 1   b→a +g
        step 2   c→a +g
    """
    nodes = names(nodes)
    share, steps = _down(nodes, chunks, key)
    back = [[Send(dst, src, name, "add") for src, dst, name, _ in step] for step in reversed(steps)]
    return Plan(nodes, share, back, wants=nodes[:1])


def scatter(nodes: Iterable[str], key: str = "g") -> Plan:
    """Give node j part j of the tensor of the first node, by a binomial tree.

    Each node that has several parts sends the later half of them to the first node that wants one of these.

    Steps: ⌈lg n⌉. Node 1 sends (n−1)/n·S. Step by step, if n is a power of two: ⌈lg n⌉·α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order; the first one has the tensor.
        key: The first part of the keys' names.

    Returns:
        A plan with n keys of 1/n, ``g1`` … ``gn``.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(scatter(["a", "b", "c"]))
        3 nodes: a b c
        shares: g1 = g2 = g3 = 1/3
        step 1   a→c =g3
        step 2   a→b =g2
    """
    nodes, share, steps, own = _parts(nodes, key)
    return Plan(nodes, share, steps, holds=nodes[:1], wants=own)


def gather(nodes: Iterable[str], key: str = "g") -> Plan:
    """Put the parts of all nodes together on the first one: :func:`scatter` backwards.

    Steps: ⌈lg n⌉. Node 1 receives (n−1)/n·S. Step by step, if n is a power of two: ⌈lg n⌉·α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order; the first one gets all parts.
        key: The first part of the keys' names.

    Returns:
        A plan with n keys of 1/n, ``g1`` … ``gn``.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(gather(["a", "b", "c"]))
        3 nodes: a b c
        shares: g1 = g2 = g3 = 1/3
        step 1   b→a =g2
        step 2   c→a =g3
    """
    nodes, share, steps, own = _parts(nodes, key)
    back = [[Send(dst, src, name, "copy") for src, dst, name, _ in step] for step in reversed(steps)]
    return Plan(nodes, share, back, holds=own, wants=nodes[:1])


def recursive_doubling(nodes: Iterable[str], key: str = "g") -> Plan:
    """All-reduce in lg n steps of whole tensors, for n a power of two.

    In step t all nodes form pairs, 2^(t−1) apart, which exchange their sums; each adds the other's.

    Steps: lg n, and no all-reduce has fewer. Every node sends and receives lg n·S. Step by step: lg n·(α + S/b).

    Args:
        nodes: Their names, in order; their number must be 1, 2, 4, 8, …
        key: The first part of the keys' names.

    Returns:
        A plan with one key for the whole buffer.

    Raises:
        PlanError: For any other number of nodes, and for invalid node names.

    Example:
        >>> print(recursive_doubling(["a", "b", "c", "d"]))
        4 nodes: a b c d
        shares: g = 1
        step 1   a→b +g   b→a +g   c→d +g   d→c +g
        step 2   a→c +g   b→d +g   c→a +g   d→b +g
    """
    nodes = names(nodes)
    n = len(nodes)
    if n & (n - 1):
        raise PlanError("power-of-two", name="recursive_doubling", count=n)
    steps = [
        [Send(node, nodes[i ^ 1 << t], key, "add") for i, node in enumerate(nodes)] for t in range(n.bit_length() - 1)
    ]
    return Plan(nodes, {key: 1}, steps)


def halving(nodes: Iterable[str], key: str = "g") -> Plan:
    """Reduce-scatter in lg n steps, for n a power of two: the first half of :func:`halving_doubling`.

    Steps: lg n. Every node sends and receives (n−1)/n·S. Step by step: lg n·α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order; their number must be 1, 2, 4, 8, …
        key: The first part of the keys' names.

    Returns:
        A plan after which node j has the sum of key j.

    Raises:
        PlanError: For any other number of nodes, and for invalid node names.

    Example:
        >>> print(halving(["a", "b", "c", "d"]))
        4 nodes: a b c d
        shares: g1 = g2 = g3 = g4 = 1/4
        step 1   a→c +g3   a→c +g4   b→d +g3   b→d +g4   c→a +g1   c→a +g2   d→b +g1   d→b +g2
        step 2   a→b +g2   b→a +g1   c→d +g4   d→c +g3
    """
    whole = halving_doubling(nodes, key)
    return Plan(whole.nodes, whole.share, whole.steps[: len(whole.steps) // 2], wants=_own(whole))


def doubling(nodes: Iterable[str], key: str = "g") -> Plan:
    """All-gather in lg n steps, for n a power of two: the second half of :func:`halving_doubling`.

    Steps: lg n. Every node sends and receives (n−1)/n·S. Step by step: lg n·α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order; their number must be 1, 2, 4, 8, …
        key: The first part of the keys' names.

    Returns:
        A plan before which node j has key j.

    Raises:
        PlanError: For any other number of nodes, and for invalid node names.

    Example:
        >>> print(doubling(["a", "b"]))
        2 nodes: a b
        shares: g1 = g2 = 1/2
        step 1   a→b =g1   b→a =g2
    """
    whole = halving_doubling(nodes, key)
    return Plan(whole.nodes, whole.share, whole.steps[len(whole.steps) // 2 :], holds=_own(whole))


def bruck(nodes: Iterable[str], key: str = "g") -> Plan:
    """All-gather in ⌈lg n⌉ steps for any number of nodes.

    In step t node i sends the keys that it has, at most n − 2^(t−1) of them, to the node 2^(t−1) places before it.
    After the step it has the keys i, i+1, … of min(2^t, n) nodes (cyclic). A program that keeps keys by place has to
    rotate them in the end; here keys have names.

    Steps: ⌈lg n⌉. Every node sends and receives (n−1)/n·S. Step by step: ⌈lg n⌉·α + (n−1)/n·S/b.

    Args:
        nodes: Their names, in order.
        key: The first part of the keys' names.

    Returns:
        A plan before which node j has key j.

    Raises:
        PlanError: For invalid node names.

    Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
    IEEE Transactions on Parallel and Distributed Systems 8, 1997.

    Example:
        >>> print(bruck(["a", "b", "c"]))
        3 nodes: a b c
        shares: g1 = g2 = g3 = 1/3
        step 1   a→c =g1   b→a =g2   c→b =g3
        step 2   a→b =g1   b→c =g2   c→a =g3
    """
    nodes = names(nodes)
    n = len(nodes)

    def step(t: int) -> list[Send]:
        apart = 2**t
        return [
            Send(node, nodes[(i - apart) % n], f"{key}{(i + j) % n + 1}", "copy")
            for i, node in enumerate(nodes)
            for j in range(min(apart, n - apart))
        ]

    def joined(t: int) -> list[tuple[str, str, str, int]]:
        return [(node, nodes[(i - 2**t) % n], "copy", min(2**t, n - 2**t)) for i, node in enumerate(nodes)]

    def around(t: int) -> tuple[int, str, int]:
        return -(2**t), "copy", min(2**t, n - 2**t)

    steps = Lazy(step, range((n - 1).bit_length()), call=(bruck, nodes, key), joined=joined, around=around)
    share = {f"{key}{j + 1}": Fraction(1, n) for j in range(n)}
    return Plan(nodes, share, steps, holds=[*zip(nodes, share, strict=True)])


def all_to_all(
    nodes: Iterable[str], few_steps: bool = False, key: str = "g", sizes: Sequence[Sequence[int]] | None = None
) -> Plan:
    """Every node has a part for every other node: n² keys, each of which changes places once.

    Pairwise, in step t node i sends its part for node i+t to that node. With ``few_steps`` (Bruck), in step t all parts
    whose way has bit t set go 2^(t−1) places further, so that a part travels as often as its way has bits.

    Steps: n−1, or ⌈lg n⌉ with few steps. Every node sends and receives (n−1)/n·S, or S/2 per step if n is a power of
    two, else less. Step by step: (n−1)·α + (n−1)/n·S/b, or at most ⌈lg n⌉·(α + S/(2b)).

    Beyond 64 nodes keys and steps are described, not stored. Ten thousand nodes are costed in seconds if the topology
    looks the same from many of them; one slow GPU among so many takes hours.

    Args:
        nodes: Their names, in order.
        few_steps: False to send each part straight to its destination, True to send it by powers of two.
        key: The first part of the keys' names.
        sizes: ``sizes[i][j]``: the size of what node i has for node j, in any unit; all alike if left out.

    Returns:
        A plan with the keys ``g1.1`` … ``gn.n``: key ``gi.j`` goes from node i to node j, and is 1/n of the buffer S of
            a node, 1/n² of all bytes. With ``sizes``, there is no key for what has the size 0.

    Raises:
        PlanError: For invalid node names, and for sizes that are not n × n whole numbers or all 0.

    Example:
        >>> print(all_to_all(["a", "b"]))
        2 nodes: a b
        shares: g1.1 = g1.2 = g2.1 = g2.2 = 1/4
        step 1   a→b =g1.2   b→a =g2.1
        >>> print(all_to_all(["a", "b"], sizes=[[1, 2], [0, 1]]))
        2 nodes: a b
        shares: g1.1 = 1/4, g1.2 = 1/2, g2.2 = 1/4
        step 1   a→b =g1.2
    """
    nodes = names(nodes)
    n = len(nodes)

    def name(i: int, way: int) -> str:
        return f"{key}{i + 1}.{(i + way) % n + 1}"

    def pairwise(t: int) -> list[Send]:
        return [Send(nodes[i], nodes[(i + t) % n], name(i, t), "copy") for i in range(n)]

    def by_powers(t: int) -> list[Send]:
        apart = 2**t
        return [
            # The part goes from i to i+way, and has gone as far as the lower bits of its way say.
            Send(nodes[(i + way % apart) % n], nodes[(i + way % apart + apart) % n], name(i, way), "copy")
            for i in range(n)
            for way in range(1, n)
            if way & apart
        ]

    def around(t: int) -> tuple[int, str, int]:
        if not few_steps:
            return t, "copy", 1
        # Of the ways below n, whole runs of 2 · 2^t have bit t set in their second half.
        return 2**t, "copy", n // 2 ** (t + 1) * 2**t + max(0, n % 2 ** (t + 1) - 2**t)

    def joined(t: int) -> list[tuple[str, str, str, int]]:
        places, op, count = around(t)
        return [(node, nodes[(i + places) % n], op, count) for i, node in enumerate(nodes)]

    step, span = (by_powers, range((n - 1).bit_length())) if few_steps else (pairwise, range(1, n))
    if sizes is None:
        share, every = Grid(key, n), range(n * n)
        steps = Lazy(step, span, call=(all_to_all, nodes, few_steps, key), joined=joined, around=around)
        return Plan(nodes, share, steps, Cells(nodes, share, False, every), Cells(nodes, share, True, every))
    sizes = [[*row] for row in sizes]
    counts = [size for row in sizes for size in row]
    if [len(row) for row in sizes] != [n] * n or not all(map(is_count, counts)) or not any(counts):
        raise PlanError("sizes", count=n)
    pairs, total = [(i, j) for i in range(n) for j in range(n) if sizes[i][j]], sum(counts)
    parts = {f"{key}{i + 1}.{j + 1}": Fraction(sizes[i][j], total) for i, j in pairs}
    holds = [(nodes[i], name) for (i, _), name in zip(pairs, parts, strict=True)]
    wants = [(node, f"{key}{i + 1}.{j + 1}") for j, node in enumerate(nodes) for i in range(n) if sizes[i][j]]
    sent = [[send for send in step(t) if send.key in parts] for t in span]
    return Plan(nodes, parts, filter(None, sent), holds, wants)


def _down(nodes: tuple[str, ...], chunks: int | None, key: str) -> tuple[dict[str, Fraction], list[list[Send]]]:
    """Return the shares and steps by which the tensor of the first node reaches the others."""
    if chunks is None:
        return {key: Fraction(1)}, [[Send(near, far, key, "copy") for near, far in step] for _, step in _tree(nodes)]
    keys = [f"{key}{c}" for c in range(1, require_chunks(chunks) + 1)]
    steps: list[list[Send]] = [[] for _ in range(len(nodes) - 2 + chunks if len(nodes) > 1 else 0)]
    for c, name in enumerate(keys):
        for i in range(len(nodes) - 1):
            steps[c + i].append(Send(nodes[i], nodes[i + 1], name, "copy"))
    return dict.fromkeys(keys, Fraction(1, chunks)), steps


def _parts(nodes: Iterable[str], key: str) -> tuple[tuple[str, ...], dict, list[list[Send]], list[tuple[str, str]]]:
    """Return nodes, shares, the steps of :func:`scatter`, and the key of each node."""
    nodes = names(nodes)
    n = len(nodes)
    share = {f"{key}{j + 1}": Fraction(1, n) for j in range(n)}
    keys, place = list(share), {node: i for i, node in enumerate(nodes)}
    # The far node of a pair gets its own key, and those of all nodes that it will serve.
    steps = [
        [Send(near, far, name, "copy") for near, far in step for name in keys[place[far] : place[far] + apart]]
        for apart, step in _tree(nodes)
    ]
    return nodes, share, steps, [*zip(nodes, share, strict=True)]


def _tree(nodes: tuple[str, ...]) -> list[tuple[int, list[tuple[str, str]]]]:
    """Return the steps of a binomial tree from the first node on: how far apart its pairs are, and (near, far)."""
    n = len(nodes)
    distances = [2**t for t in range((n - 1).bit_length())][::-1]
    return [(apart, [(nodes[i], nodes[i + apart]) for i in range(0, n - apart, 2 * apart)]) for apart in distances]


def _own(plan: Plan) -> list[tuple[str, str]]:
    return [*zip(plan.nodes, plan.share, strict=True)]
