"""Topologies: the route of a message, the places it occupies, and refused arguments."""

import math
from dataclasses import replace

import pytest

from d2lps import Link, Topology, one_memory, pcie_server
from d2lps.plan.plan import PlanError
from d2lps.topology import Resource, TopologyError, both_ways, kind_of
from d2lps.units import Bandwidth, UnitError


def way(topology, src, dst):
    links = topology.route(src, dst)
    return "→".join([src, *(link.dst for link in links)]) if links else ""


def mesh(*links, **kinds):
    return Topology("mesh", kinds, [Link(*link) for link in links])


# ---------------------------------------------------------------- routes


def test_gpus_on_a_pcie_server_meet_at_the_switch():
    server = pcie_server(gpus=3)
    assert way(server, "gpu0", "gpu2") == "gpu0→switch→gpu2"
    assert way(server, "gpu0", "cpu") == "gpu0→switch→cpu"
    assert way(server, "cpu", "gpu0") == "cpu→switch→gpu0"


def test_gpus_never_forward_even_where_one_would_be_a_shortcut():
    links = [
        *both_ways("gpu0", "gpu1", "25 GB/s"),
        *both_ways("gpu1", "gpu2", "25 GB/s"),
        *both_ways("gpu0", "switch", "1 GB/s"),
        *both_ways("switch", "gpu2", "1 GB/s"),
    ]
    kinds = {"gpu0": "gpu", "gpu1": "gpu", "gpu2": "gpu", "switch": "switch"}
    assert way(Topology("dgx", kinds, links), "gpu0", "gpu2") == "gpu0→switch→gpu2"
    with pytest.raises(
        TopologyError, match="no route from gpu0 to gpu2 on dgx: only nodes of kind cpu, memory, switch"
    ):
        Topology("dgx", kinds, links[:4]).route("gpu0", "gpu2")


@pytest.mark.parametrize(
    "kind, forwards", [("gpu", False), ("machine", False), ("switch", True), ("cpu", True), ("memory", True)]
)
def test_switches_cpus_and_memories_forward(kind, forwards):
    line = mesh(("a", "m", "1 GB/s"), ("m", "b", "1 GB/s"), a="gpu", m=kind, b="gpu")
    if forwards:
        assert way(line, "a", "b") == "a→m→b"
    else:
        with pytest.raises(TopologyError, match="no route from a to b on mesh"):
            line.route("a", "b")


def test_links_are_directed():
    one_way = mesh(("a", "b", "1 GB/s"), a="gpu", b="gpu")
    assert way(one_way, "a", "b") == "a→b"
    with pytest.raises(TopologyError, match="there is no route from b to a on mesh"):
        one_way.route("b", "a")


def test_the_widest_way_is_taken():
    links = [("a", "slow", "1 GB/s"), ("slow", "b", "1 GB/s"), ("a", "fast", "3 GB/s"), ("fast", "b", "3 GB/s")]
    kinds = {"a": "gpu", "b": "gpu", "slow": "switch", "fast": "switch"}
    assert way(mesh(*links, **kinds), "a", "b") == "a→fast→b"
    assert way(mesh(*links, ("a", "b", "2 GB/s"), **kinds), "a", "b") == "a→fast→b"
    assert way(mesh(*links, ("a", "b", "3 GB/s"), **kinds), "a", "b") == "a→b"


def test_of_equally_wide_ways_that_of_least_latency_is_taken():
    kinds = {"a": "gpu", "b": "gpu", "near": "switch"}
    links = [("a", "near", "1 GB/s", "1 us"), ("near", "b", "1 GB/s", "1 us")]
    assert way(mesh(*links, ("a", "b", "1 GB/s", "3 us"), **kinds), "a", "b") == "a→near→b"
    assert way(mesh(*links, ("a", "b", "1 GB/s", "2 us"), **kinds), "a", "b") == "a→b"


def test_between_switches_too_the_way_of_least_latency_is_taken():
    us = {"xa": 0, "ab": 10, "ac": 1, "cb": 1, "by": 0}
    links = [link for ends, latency in us.items() for link in both_ways(*ends, "1 GB/s", latency * 1e-6)]
    place = Topology("t", {"x": "gpu", "y": "gpu"} | dict.fromkeys("abc", "switch"), links)
    assert [link.dst for link in place.route("x", "y")] == ["a", "c", "b", "y"]


def test_parallel_links_count_when_the_faster_way_is_looked_for():
    kinds = {"a": "gpu", "b": "gpu", "one": "switch", "two": "switch"}
    links = [
        ("a", "one", "3 GB/s"),
        ("one", "b", "3 GB/s"),
        ("a", "two", "2 GB/s", 0.0, 2),
        ("two", "b", "2 GB/s", 0.0, 2),
    ]
    assert way(mesh(*links, **kinds), "a", "b") == "a→two→b"


def test_to_itself_nothing_is_crossed():
    assert pcie_server().route("gpu0", "gpu0") == ()


@pytest.mark.parametrize("src, dst", [("gpu9", "gpu0"), ("gpu0", "gpu9")])
def test_an_unknown_node_is_named_with_those_there_are(src, dst):
    with pytest.raises(TopologyError) as error:
        pcie_server(gpus=2).route(src, dst)
    assert str(error.value) == "there is no node 'gpu9' on pcie_server (nodes: gpu0 gpu1 switch cpu)"


def test_of_ways_of_equal_latency_that_of_fewest_links_is_taken_however_long_they_take():
    kinds = {"a": "gpu", "b": "gpu", "near": "switch"}
    links = [("a", "near", "1 GB/s", 1.5), ("near", "b", "1 GB/s", 1.5), ("a", "b", "1 GB/s", 3.0)]
    assert way(mesh(*links, **kinds), "a", "b") == "a→b"


def test_a_thousand_gpus_find_their_ways():
    server = pcie_server(gpus=1000)
    assert {len(server.route(f"gpu{i}", f"gpu{i - 1}")) for i in range(1, 1000)} == {2}


def test_a_way_may_begin_and_end_at_what_forwards():
    kinds = {"cpu0": "cpu", "cpu1": "cpu", "gpu": "gpu", "switch": "switch"}
    links = [both_ways(*ends, "9 GB/s") for ends in [("cpu0", "cpu1"), ("cpu1", "switch"), ("switch", "gpu")]]
    host = Topology("host", kinds, sum(links, []))
    assert way(host, "cpu0", "switch") == "cpu0→cpu1→switch" and way(host, "switch", "gpu") == "switch→gpu"
    assert way(host, "gpu", "cpu0") == "gpu→switch→cpu1→cpu0"


# ---------------------------------------------------------------- resources


def test_a_message_occupies_its_links_and_limited_nodes():
    server = pcie_server(gpus=2)
    assert server.resources("gpu0", "gpu1") == server.route("gpu0", "gpu1")
    assert [server.capacity(r) for r in server.resources("gpu0", "gpu1")] == [16e9, 16e9]


def test_every_route_of_one_memory_crosses_the_same_bandwidth():
    laptop = one_memory(["gpu0", "gpu1", "cpu"], "20 GB/s")
    crossed = [
        set(laptop.resources(a, b)) for a in laptop.kinds for b in laptop.kinds if "memory" not in (a, b) and a != b
    ]
    assert len(crossed) == 6
    limited = {r for r in set.union(*crossed) if not math.isinf(laptop.capacity(r))}
    assert limited == {"memory"} == set.intersection(*crossed)
    assert laptop.capacity("memory") == 20e9


def test_parallel_links_carry_together():
    assert Link("a", "b", "25 GB/s", count=2).capacity == 50e9


def test_a_limited_node_limits_what_passes_through_it_and_not_what_begins_or_ends_there():
    kinds = {"a": "gpu", "m": "cpu", "b": "gpu"}
    links = [*both_ways("a", "m", "16 GB/s"), *both_ways("m", "b", "16 GB/s")]
    host = Topology("host", kinds, links, {"m": "10 GB/s"})
    assert "m" in host.resources("a", "b")
    assert "m" not in host.resources("a", "m") and "m" not in host.resources("m", "b")


def test_a_limited_node_may_take_time_to_add_and_for_each_message():
    kinds, links = {"a": "gpu", "m": "cpu", "b": "gpu"}, both_ways("a", "m", "16 GB/s")
    host = Topology("host", kinds, links, {"m": Bandwidth("inf")}, {"m": "80 Gbit/s"}, {"m": "20 us"})
    assert (host.adding, host.overhead) == ({"m": 10e9}, {"m": 2e-5})
    assert Topology("host", kinds, links).adding == Topology("host", kinds, links).overhead == {}


def test_limits_may_be_given_one_by_one_or_as_what_a_node_can_do():
    kinds, links = {"a": "gpu", "m": "cpu", "b": "gpu"}, both_ways("a", "m", "16 GB/s")
    limits = {"m": Resource("10 GB/s", "80 Gbit/s", "20 us"), "a": Resource(port="5 GB/s", adding="3 GB/s")}
    host = Topology("host", kinds, links, limits=limits)
    rates = {"m": "80 Gbit/s", "a": "3 GB/s"}
    assert host == Topology("host", kinds, links, {"m": "10 GB/s"}, rates, {"m": "20 us"}, {"a": "5 GB/s"})
    assert (host.through, host.ports, host.overhead) == ({"m": 10e9}, {"a": 5e9}, {"m": 2e-5})
    assert replace(host, name="other").limits == host.limits != Topology("host", kinds, links).limits == {}
    for wrong in (Resource(adding="1 GB/s"), Resource(overhead=1e-6), Resource(overhead=1e-6, port="1 GB/s")):
        with pytest.raises(
            TopologyError, match="b takes time for the data that passes through it, but its speed is not given"
        ):
            Topology("host", kinds, links, limits={"b": wrong})


# ---------------------------------------------------------------- makers


def test_a_pcie_server_has_one_link_each_way_for_every_node():
    server = pcie_server(gpus=2, bandwidth="128 Gbit/s", latency="5 us")
    assert server.kinds == {"gpu0": "gpu", "gpu1": "gpu", "switch": "switch", "cpu": "cpu"}
    assert {(link.src, link.dst) for link in server.links} == {
        (a, b) for end in ("gpu0", "gpu1", "cpu") for a, b in [(end, "switch"), ("switch", end)]
    }
    assert {link.bandwidth for link in server.links} == {16e9}
    assert {link.latency for link in server.links} == {5e-6}


def test_each_node_may_have_a_bandwidth_of_its_own():
    server = pcie_server(gpus=2, bandwidth=["16 GB/s", "8 GB/s", "4 GB/s"])
    assert {link.src: link.bandwidth for link in server.links if link.dst == "switch"} == {
        "gpu0": 16e9,
        "gpu1": 8e9,
        "cpu": 4e9,
    }
    assert server != pcie_server(gpus=2, bandwidth="16 GB/s")


@pytest.mark.parametrize(
    "node, kind",
    [
        ("gpu0", "gpu"),
        ("gpu12", "gpu"),
        ("cpu", "cpu"),
        ("switch1", "switch"),
        ("machine3", "machine"),
        ("server", "machine"),
        ("0", "machine"),
        ("mygpu0", "machine"),
    ],
)
def test_a_name_tells_the_kind(node, kind):
    assert kind_of(node) == kind


def test_topologies_are_equal_by_content():
    assert pcie_server(4) == pcie_server(4) != pcie_server(3)
    used = pcie_server(4)
    used.route("gpu0", "gpu1")
    assert used == pcie_server(4) and hash(used) == hash(pcie_server(4))
    assert len({used, pcie_server(4), pcie_server(3)}) == 2


def test_a_topology_does_not_follow_the_mapping_it_was_made_from():
    kinds, through = {"a": "gpu", "b": "gpu"}, {}
    made = Topology("pair", kinds, both_ways("a", "b", "1 GB/s"), through)
    kinds["c"] = "gpu"
    assert "c" not in made.kinds


# ---------------------------------------------------------------- refusals

REFUSED = [
    (lambda: pcie_server(gpus=0), TopologyError, "gpus = 0: a server has a whole number of GPUs, 1 or more"),
    (lambda: pcie_server(gpus=-1), TopologyError, "gpus = -1: a server has a whole number of GPUs, 1 or more"),
    (lambda: pcie_server(gpus=True), TopologyError, "gpus = True: a server has a whole number of GPUs, 1 or more"),
    (lambda: pcie_server(gpus="4"), TopologyError, "gpus = '4': a server has a whole number of GPUs, 1 or more"),
    (lambda: pcie_server(2, ["1 GB/s", "1 GB/s"]), TopologyError, "2 bandwidths for 3 links: give one for each GPU"),
    (lambda: pcie_server(bandwidth=16), UnitError, "bandwidth 16 has no unit: write '16 GB/s' (bytes) or '128 Gbit/s'"),
    (lambda: pcie_server(bandwidth="-16 GB/s"), UnitError, "bandwidth '-16 GB/s' is not positive: a link carries more"),
    (lambda: pcie_server(bandwidth="16 Gb/s"), UnitError, "bandwidth '16 Gb/s' is ambiguous: 'b' is read as bits, so"),
    (lambda: pcie_server(bandwidth=None), UnitError, None),
    (lambda: pcie_server(latency="5"), UnitError, "time '5' has no unit that d2lps knows: write '7.5 ms', '10 us' or"),
    (lambda: one_memory(["a", "memory"], "1 GB/s"), TopologyError, "a node is named 'memory', but this is the name of"),
    (lambda: one_memory(["a", "a"], "1 GB/s"), PlanError, "node a is named twice"),
    (lambda: one_memory(["a", "b"], 5), UnitError, "bandwidth 5 has no unit: write '16 GB/s' (bytes) or '128 Gbit/s'"),
    (lambda: Link("a", "b", "1 GB/s", count=0), TopologyError, "link a→b has count 0: write a whole number, 1 or more"),
    (lambda: Link("a", "b", "1 GB/s", count=1.5), TopologyError, None),
    (lambda: Link("a", "b", "1 GB/s", latency=-1), UnitError, "time -1 is not a finite time of 0 or more"),
    (lambda: mesh(("a", "b", "1 GB/s"), a="gpu"), TopologyError, "there is no node 'b' on mesh (nodes: a)"),
    (lambda: mesh(("a", "a", "1 GB/s"), a="gpu"), TopologyError, "a is linked to itself"),
    (
        lambda: mesh(("a", "b", "1 GB/s"), ("a", "b", "1 GB/s"), a="gpu", b="gpu"),
        TopologyError,
        "two links a→b: write one with count=2",
    ),
    (lambda: mesh(a="tpu"), TopologyError, "a is of kind 'tpu', but the only kinds are gpu, cpu, memory, switch"),
    (lambda: Topology("t", {"a": "cpu"}, [], {"b": "1 GB/s"}), TopologyError, "there is no node 'b' on t (nodes: a)"),
    (lambda: Topology("t", {}, []), TopologyError, None),
    (lambda: Topology("t", {"a": "cpu"}, [], {}, {"b": "1 GB/s"}), TopologyError, "there is no node 'b' on t (nodes"),
    (lambda: Topology("t", {"a": "cpu"}, [], {}, {"a": "1 GB/s"}), TopologyError, "a takes time for the data that"),
    (lambda: Topology("t", {"a": "cpu"}, [], {}, {}, {"a": "20 us"}), TopologyError, None),
    (
        lambda: Topology("t", {"a": "cpu"}, [], {"a": "1 GB/s"}, {}, {"a": "20"}),
        UnitError,
        "time '20' has no unit that d2lps knows: write '7.5 ms', '10 us' or '2 s'",
    ),
    (lambda: Topology("t", {"a": "cpu"}, [], {"a": "1 GB/s"}, {"a": 5}), UnitError, None),
]


@pytest.mark.parametrize("build, error, sentence", REFUSED)
def test_a_topology_that_cannot_be_is_refused_in_one_sentence(build, error, sentence):
    with pytest.raises(error) as caught:
        build()
    if sentence is not None:
        assert sentence in str(caught.value)


def test_links_may_be_unlimited_but_not_without_unit():
    assert Link("a", "b", Bandwidth("inf")).capacity == math.inf
    with pytest.raises(UnitError):
        Link("a", "b", math.inf)
