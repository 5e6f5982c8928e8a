"""Trees and pairs: O(log n) messages one after the other, compared with O(n) in a ring."""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from d2lps.algorithms.servers import require_chunks
from d2lps.plan.acts import PlanError, Send
from d2lps.plan.lazy import Lazy
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan


def tree(nodes: Iterable[str], key: str = "g") -> Plan:
    """Binomial tree with node 1 at its root, for whole tensors and any number of nodes.

    1. Reduce, ⌈lg n⌉ steps: in step t the remaining nodes form pairs, 2^(t−1) apart; the later node of each pair
       sends its sum to the earlier. Node 1 then holds the complete sum.
    2. Broadcast, ⌈lg n⌉ steps: the same messages backwards; every node then holds the sum.

    Steps: 2⌈lg n⌉. Node 1 sends and receives ⌈lg n⌉·S; another node S, and S more for each node that reports to it.
    Step by step, if no link is shared: 2⌈lg n⌉(α + S/b).

    Args:
        nodes: Their names, in order.
        key: The first part of the keys' names.

    Returns:
        A plan with one key for the whole buffer.

    Raises:
        PlanError: For invalid node names.

    Example:
        >>> print(tree(["a", "b", "c"]))
        3 nodes: a b c
        shares: g = 1
        step 1   b→a +g
        step 2   c→a +g
        step 3   a→c =g
        step 4   a→b =g
    """
    nodes = names(nodes)
    n = len(nodes)
    pairs = [[(nodes[i], nodes[i + d]) for i in range(0, n - d, 2 * d)] for d in _powers(n)]
    up = [[Send(far, near, key, "add") for near, far in step] for step in pairs]
    down = [[Send(near, far, key, "copy") for near, far in step] for step in reversed(pairs)]
    return Plan(nodes, {key: 1}, up + down)


def halving_doubling(nodes: Iterable[str], key: str = "g") -> Plan:
    """Recursive halving, then recursive doubling: a reduce-scatter and an all-gather in lg n steps each.

    This is the plain form for n a power of two; libraries fold the surplus nodes into the others first.

    1. Halving: two nodes n/2 apart each send the other its half of the keys, which the other adds; then, within each
       half, two nodes n/4 apart exchange quarters, and so on. Node i then holds the complete sum of key i.
    2. Doubling: the same pairs, backwards, send each other all their complete keys; every node then holds all keys.

    Steps: 2 lg n. Every node sends and receives 2(n−1)/n·S. Step by step, if no link is shared:
    2 lg n·α + 2(n−1)/n·S/b.

    Args:
        nodes: Their names, in order; their number must be 1, 2, 4, 8, …
        key: The first part of the keys' names.

    Returns:
        A plan with n keys of 1/n, ``g1`` … ``gn``; lazy beyond 64 nodes.

    Raises:
        PlanError: For any other number of nodes, and for invalid node names.

    Example:
        >>> print(halving_doubling(["a", "b", "c", "d"]))
        4 nodes: a b c d
        shares: g1 = g2 = g3 = g4 = 1/4
        step 1   a→c +g3   a→c +g4   b→d +g3   b→d +g4   c→a +g1   c→a +g2   d→b +g1   d→b +g2
        step 2   a→b +g2   b→a +g1   c→d +g4   d→c +g3
        step 3   a→b =g1   b→a =g2   c→d =g3   d→c =g4
        step 4   a→c =g1   a→c =g2   b→d =g1   b→d =g2   c→a =g3   c→a =g4   d→b =g3   d→b =g4
    """
    nodes = names(nodes)
    n = len(nodes)
    if n & (n - 1):
        raise PlanError("power-of-two", name="halving_doubling", count=n)
    phase = n.bit_length() - 1

    def step(t: int) -> list[Send]:
        halving = t < phase
        apart = n >> (t + 1) if halving else 1 << (t - phase)
        acts = []
        for i, node in enumerate(nodes):
            partner = i ^ apart
            first = (partner if halving else i) // apart * apart  # halving sends the partner's keys, doubling its own
            keys = [f"{key}{j + 1}" for j in range(first, first + apart)]
            acts += [Send(node, nodes[partner], name, "add" if halving else "copy") for name in keys]
        return acts

    def joined(t: int) -> list[tuple[str, str, str, int]]:
        apart, op = (n >> (t + 1), "add") if t < phase else (1 << (t - phase), "copy")
        return [(node, nodes[i ^ apart], op, apart) for i, node in enumerate(nodes)]

    steps = Lazy(step, range(2 * phase), call=(halving_doubling, nodes, key), joined=joined)
    return Plan(nodes, {f"{key}{j + 1}": Fraction(1, n) for j in range(n)}, steps)


def double_tree(nodes: Iterable[str], chunks: int | None = None, key: str = "g") -> Plan:
    """Two complementary binary trees, each with half of the buffer in c ``chunks`` that follow one another.

    A node that has children in one tree is a leaf of the other, so that all nodes send and receive equally much. Both
    trees are ⌊lg n⌋ high. The number of nodes is arbitrary.

    1. Reduce, c + ⌊lg n⌋ − 1 steps: every node adds the chunks from its children and passes chunk after chunk to its
       parent; each of the two roots then holds the complete sum of one half.
    2. Broadcast, c + ⌊lg n⌋ − 1 steps: the chunks come down the trees again; every node then holds them all.

    Steps: 2(c + ⌊lg n⌋ − 1). Every node sends S/2 to each of its parents and children in the two trees, and receives as
    much: at most 2·S. In a step the busiest nodes send or receive two chunks of S/(2c). Step by step, if no link is
    shared and n is neither 2 nor 4: 2(c + ⌊lg n⌋ − 1)(α + S/(c·b)), which approaches 2·S/b. For n = 2:
    2c·α + S/b; for n = 4: 2(c + 1)·α + (2c + 1)/c·S/b, because there each root has only one child.

    Args:
        nodes: Their names, in order.
        chunks: The best number, √((⌊lg n⌋−1)·S/(α·b)), depends on the machine. The default is 4⌊lg n⌋: filling and
            emptying the trees then costs less than a quarter of 2·S/b, and the steps remain O(log n).
        key: The first part of the keys' names.

    Returns:
        A plan with the keys ``g1.1`` … ``g1.c`` in tree 1, ``g2.1`` … in tree 2; ``g1`` and ``g2`` with one chunk.

    Raises:
        PlanError: For invalid node names or chunks.

    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
    Computing 35, 2009; NCCL's double binary tree.

    Example:
        >>> print(double_tree(["a", "b", "c"], chunks=2))
        3 nodes: a b c
        shares: g1.1 = g1.2 = g2.1 = g2.2 = 1/4
        step 1   a,c→b +g1.1   b,a→c +g2.1
        step 2   a,c→b +g1.2   b,a→c +g2.2
        step 3   b→a,c =g1.1   c→b,a =g2.1
        step 4   b→a,c =g1.2   c→b,a =g2.2
    """
    nodes = names(nodes)
    n = len(nodes)
    height = n.bit_length() - 1
    chunks = max(1, 4 * height) if chunks is None else require_chunks(chunks)
    phase = chunks + height - 1 if height else 0
    steps: list[list[Send]] = [[] for _ in range(2 * phase)]
    edges = list(_edges(0, n, depth=1))
    # Inner nodes have the places 1, 3, 5, …: reading the nodes backwards, or shifted by one for odd n, swaps them.
    other = nodes[::-1] if n % 2 == 0 else nodes[1:] + nodes[:1]
    keys = [[f"{key}{half}" if chunks == 1 else f"{key}{half}.{c}" for c in range(1, chunks + 1)] for half in (1, 2)]
    for c in range(chunks):
        for order, half in zip((nodes, other), keys, strict=True):
            for child, parent, depth in edges:
                steps[c + height - depth].append(Send(order[child], order[parent], half[c], "add"))
                steps[phase + c + depth - 1].append(Send(order[parent], order[child], half[c], "copy"))
    return Plan(nodes, {name: Fraction(1, 2 * chunks) for half in keys for name in half}, steps)


def _powers(n: int) -> list[int]:
    """Return the ⌈lg n⌉ powers 1, 2, 4, … below n."""
    return [2**t for t in range((n - 1).bit_length())]


def _edges(start: int, stop: int, depth: int, parent: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield (child, parent, depth of the child) of the binary tree over the places ``start`` … ``stop``−1.

    The tree is in order: a node's left part has smaller places. Leaves have even places and inner nodes odd ones, since
    the left part of every tree has an odd number of places.
    """
    count = stop - start
    if count:
        middle = start + (count // 2 | 1) if count > 1 else start
        if parent is not None:
            yield middle, parent, depth - 1
        yield from _edges(start, middle, depth + 1, middle)
        yield from _edges(middle + 1, stop, depth + 1, middle)
