"""The rings of topologies, their widths, and the sentences for topologies without rings."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Topology, one_memory, pcie_server, rings
from d2lps.topology import Link, TopologyError, both_ways
from d2lps.topology.cycles import Ring
from d2lps.topology.hosts import dgx1_v100, nvswitch


def mesh(n, counts, kind="gpu"):
    names = [f"{kind}{i}" for i in range(n)]
    links = [both_ways(names[i], names[j], "1 GB/s", count=count) for (i, j), count in counts.items() if count]
    return Topology("mesh", dict.fromkeys(names, kind), sum(links, []))


def complete(n, count=1):
    return mesh(n, dict.fromkeys(combinations(range(n), 2), count))


def plain(found):
    return [(ring.count, *(int(node.lstrip("gpumachine")) for node in ring.nodes)) for ring in found]


# ---------------------------------------------------------------- which there are


def test_a_dgx1_has_one_ring_of_double_links_and_one_of_single_links():
    assert plain(rings(dgx1_v100())) == [(2, 0, 3, 2, 1, 5, 6, 7, 4), (1, 0, 1, 3, 7, 5, 4, 6, 2)]
    assert plain(rings(dgx1_v100("25 GB/s"))) == plain(rings(dgx1_v100()))


def test_a_square_of_links_is_one_ring_towards_the_earlier_neighbour():
    assert plain(rings(mesh(4, {(0, 2): 3, (1, 2): 3, (1, 3): 3, (0, 3): 2}))) == [(2, 0, 2, 1, 3)]


@pytest.mark.parametrize(
    "n, count, total",
    [(3, 1, 1), (4, 1, 1), (4, 4, 6), (5, 1, 2), (6, 1, 2), (7, 1, 3), (8, 1, 3), (8, 2, 7), (8, 4, 14)],
)
def test_on_a_complete_graph_all_links_are_used_or_one_per_node_is_left(n, count, total):
    assert sum(ring.count for ring in rings(complete(n, count))) == total == (n - 1) * count // 2


def test_of_packings_as_large_one_of_fewest_rings_is_taken():
    assert plain(rings(complete(5, 3))) == [(3, 0, 1, 2, 3, 4), (3, 0, 2, 4, 1, 3)]


def test_a_hypercube_of_sixteen_is_two_rings():
    cube = mesh(16, {(i, i ^ bit): 1 for i in range(16) for bit in (1, 2, 4, 8) if i < i ^ bit})
    found = rings(cube)
    assert [ring.count for ring in found] == [1, 1]
    assert used(found, 16) == {(i, i ^ bit): 1 for i in range(16) for bit in (1, 2, 4, 8) if i < i ^ bit}


def test_a_ring_of_a_thousand_is_found():
    assert rings(mesh(1000, {(min(i, j), max(i, j)): 2 for i in range(1000) for j in [(i + 1) % 1000]})) == (
        Ring(tuple(f"gpu{i}" for i in range(1000)), 2),
    )


@pytest.mark.parametrize(
    "topology, count",
    [
        (pcie_server(4), 1),
        (nvswitch(4), 6),
        (nvswitch(8, links=18), 18),
        (one_memory([f"gpu{i}" for i in range(4)], "1 GB/s"), 1),
    ],
)
def test_at_a_switch_the_ring_has_the_order_of_the_topology(topology, count):
    gpus = tuple(node for node, kind in topology.kinds.items() if kind == "gpu")
    assert rings(topology) == (Ring(gpus, count),)


def test_the_smallest_count_on_the_way_is_that_of_a_ring_through_switches():
    links = both_ways("a", "switch", "1 GB/s", count=3) + both_ways("b", "switch", "1 GB/s", count=2)
    assert rings(Topology("t", {"a": "gpu", "b": "gpu", "switch": "switch"}, links)) == (Ring(("a", "b"), 2),)


def test_two_nodes_go_there_and_back_and_one_is_a_ring_by_itself():
    assert rings(mesh(2, {(0, 1): 4})) == (Ring(("gpu0", "gpu1"), 4),)
    assert rings(mesh(1, {})) == (Ring(("gpu0",), 1),)


def test_a_link_counts_as_much_as_its_narrower_direction():
    links = [Link("a", "b", "1 GB/s", count=3), Link("b", "a", "1 GB/s", count=2)]
    assert rings(Topology("t", {"a": "gpu", "b": "gpu"}, links)) == (Ring(("a", "b"), 2),)


def test_without_gpus_machines_take_part_and_else_cpus():
    assert plain(rings(mesh(3, {(0, 1): 1, (1, 2): 1, (0, 2): 1}, "machine"))) == [(1, 0, 1, 2)]
    assert rings(one_memory(["cpu0", "cpu1"], "1 GB/s")) == (Ring(("cpu0", "cpu1"), 1),)


# ---------------------------------------------------------------- and why there are none

WAY_OUT = "; d2lps.ring(nodes) works without direct links, because its messages take the routes that exist"
NONE = [
    (mesh(3, {(0, 1): 1, (1, 2): 1}), "gpu0 has a direct link only to gpu1, but a ring needs two neighbors"),
    (
        mesh(4, {(0, 1): 1, (1, 2): 1, (0, 2): 1}),
        "gpu3 has no direct link to the others, but a ring needs two neighbors",
    ),
    (
        mesh(6, {(0, 1): 1, (1, 2): 1, (0, 2): 1, (3, 4): 1, (4, 5): 1, (3, 5): 1}),
        "no direct links lead from gpu0 to gpu3",
    ),
    (
        mesh(5, {(0, 1): 1, (1, 2): 1, (0, 2): 1, (2, 3): 1, (3, 4): 1, (2, 4): 1}),
        "it would have to pass through gpu2 twice",
    ),
    (mesh(5, {(i, j): 1 for i in (0, 1) for j in (2, 3, 4)}), "no cycle passes through each of them once"),
]


@pytest.mark.parametrize("topology, why", NONE)
def test_a_missing_ring_is_explained(topology, why):
    with pytest.raises(TopologyError) as error:
        rings(topology)
    nodes = " ".join(topology.kinds)
    assert str(error.value) == f"mesh has no ring of direct links through {nodes}: {why}{WAY_OUT}"


def test_what_is_too_large_to_search_exactly_is_refused():
    with pytest.raises(TopologyError, match="mesh has too many possible rings to find the best ones: choose an order"):
        rings(complete(12))


def test_switches_alone_have_no_ring():
    with pytest.raises(TopologyError, match="t has no GPU, machine or CPU that a ring could pass through"):
        rings(Topology("t", {"switch": "switch"}, []))


# ---------------------------------------------------------------- any graph


def used(found, n):
    """Return (i, j) → the number of links between the two that the rings take."""
    links = {}
    for count, *around in plain(found):
        for hop in {tuple(sorted(hop)) for hop in pairwise((*around, around[0]))}:
            links[hop] = links.get(hop, 0) + count
    return links


def graphs(most, width):
    def counts(n):
        pairs = list(combinations(range(n), 2))
        counts = st.lists(st.integers(0, width), min_size=len(pairs), max_size=len(pairs))
        return counts.map(lambda found: (n, dict(zip(pairs, found, strict=True))))

    return st.integers(3, most).flatmap(counts)


@given(graphs(most=8, width=3))
def test_rings_share_no_link_and_pass_each_node_once(graph):
    n, counts = graph
    if not any(counts.values()):
        return
    try:
        found = rings(mesh(n, counts))
    except TopologyError:
        return
    assert all(sorted(around) == list(range(n)) for _, *around in plain(found))
    assert all(around[0] == 0 and around[1] < around[-1] for _, *around in plain(found))
    assert all(took <= counts[hop] for hop, took in used(found, n).items())
    assert [ring.count for ring in found] == sorted((ring.count for ring in found), reverse=True)
    assert len({ring.nodes for ring in found}) == len(found)


def best(cycles, room, kinds=0):
    """Return (total count, −kinds) of the best packing, by trying every count of every cycle."""
    if not cycles:
        return 0, -kinds
    first, *rest = cycles
    tried = []
    for count in range(min(room[hop] for hop in first) + 1):
        less = room | {hop: room[hop] - count for hop in first}
        total, fewer = best(rest, less, kinds + bool(count))
        tried.append((total + count, fewer))
    return max(tried)


@given(graphs(most=5, width=3))
def test_no_packing_is_better(graph):
    n, counts = graph
    orders = [(0, *rest) for rest in permutations(range(1, n)) if rest[0] < rest[-1]]
    hops = [[tuple(sorted(hop)) for hop in pairwise((*order, 0))] for order in orders]
    total, kinds = best(hops, counts)
    if total:
        found = rings(mesh(n, counts))
        assert (sum(ring.count for ring in found), -len(found)) == (total, kinds)
    elif any(counts.values()):
        with pytest.raises(TopologyError, match="has no ring of direct links"):
            rings(mesh(n, counts))
