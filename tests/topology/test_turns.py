"""Turns of a topology: the cost of a few messages of a step is the cost of all of them."""

from dataclasses import replace

import pytest
from helpers.plans import large_beyond

from d2lps import Link, Plan, Topology, all_to_all, bruck, cost, leaf_spine, nvswitch, pcie_server, rails
from d2lps.plan.lazy import Lazy
from d2lps.topology import both_ways
from d2lps.topology.turns import turning

GPUS = [f"host{h}/gpu{g}" for h in range(6) for g in range(3)]
HOSTS = [f"host{h}" for h in range(18)]
AROUND = [f"host{h}" for h in range(20)]
FABRIC = {"hosts": 6, "gpus": 3, "latency": "7 us", "inside_latency": "1.7 us"}


def two_cards(swapped=()):
    """Return GPUs that are joined to each of two switches equally well: the order of their links decides."""
    links = [
        link
        for i, gpu in enumerate(HOSTS)
        for switch in (("b", "a") if i in swapped else ("a", "b"))
        for link in both_ways(gpu, switch, f"{1 + i % 2} GB/s")
    ]
    return Topology("cards", dict.fromkeys(HOSTS, "gpu") | {"a": "switch", "b": "switch"}, links)


def in_a_circle():
    """Return hosts on four switches, between which there are two ways."""
    switches = [f"s{i}" for i in range(4)]
    links = [link for i, host in enumerate(AROUND) for link in both_ways(host, f"s{i // 5}", "1 GB/s")]
    links += [link for i in range(4) for link in both_ways(f"s{i}", f"s{(i + 1) % 4}", "4 GB/s")]
    return Topology("circle", dict.fromkeys(AROUND, "machine") | dict.fromkeys(switches, "switch"), links)


def one_late():
    place = rails(**FABRIC)
    links = [replace(link, latency=1e-3) if link.dst == "host3/gpu2" else link for link in place.links]
    return Topology("late", place.kinds, links)


def limited():
    switch = pcie_server(gpus=18)
    return Topology("limited", switch.kinds, switch.links, through={"switch": "20 GB/s"}, overhead={"switch": "1 us"})


PLACES = {  # the topology, its nodes in the order of the plan, and the period of its turn
    "one switch": (nvswitch(18), [f"gpu{i}" for i in range(18)], 1),
    "a switch with limits": (limited(), [f"gpu{i}" for i in range(18)], 1),
    "rails": (rails(**FABRIC), GPUS, 3),
    "thin rails in pods": (rails(**FABRIC, per_pod=2, oversubscription=3), GPUS, 6),
    "rail by rail": (rails(**FABRIC), sorted(GPUS, key=lambda gpu: gpu[-1]), 6),
    "leaves": (leaf_spine(18, per_leaf=6, oversubscription=2, latency="1 us"), HOSTS, 6),
    "leaves in pods": (leaf_spine(18, per_leaf=3, per_pod=2), HOSTS, 6),
    "unequal leaves": (leaf_spine(18, per_leaf=5), HOSTS, None),
    "one late GPU": (one_late(), GPUS, None),
    "one slow GPU": (rails(**FABRIC).slowed("host3/gpu2", by=2), GPUS, None),
    "two equal ways out": (two_cards(), HOSTS, 2),
    "in unequal order": (two_cards(swapped=(7,)), HOSTS, None),
    "a circle": (in_a_circle(), AROUND, None),
}


@pytest.mark.parametrize("name", PLACES)
def test_all_to_all_takes_the_time_of_its_steps_written_out(name):
    place, nodes, period = PLACES[name]
    turn = turning(place, nodes)
    assert (turn and turn.period) == period
    with large_beyond(16):
        for plan in (all_to_all(nodes), all_to_all(nodes, few_steps=True), bruck(nodes)):
            steps = Lazy(lambda t, plan=plan: plan.steps[t], range(len(plan.steps)))
            listed = Plan(plan.nodes, plan.share, steps, plan.holds, plan.wants)
            quick, slow = (cost.shared(some, place, "72 MB") for some in (plan, listed))
            assert quick.step_times() == slow.step_times()
            for step in (0, len(plan.steps) // 2, -1):
                assert quick.events.costs[step].takes == slow.events.costs[step].takes
            assert cost.ideal(plan, place, "72 MB").duration == cost.ideal(listed, place, "72 MB").duration


def test_orbits_have_all_places_once():
    place, nodes, period = PLACES["thin rails in pods"]
    turn = turning(place, nodes)
    assert sum(turn.sizes) == len(place.links) == len(turn.orbit)
    for number, size in enumerate(turn.sizes):
        places = [link for link, orbit in turn.orbit.items() if orbit == number]
        assert len(places) == size and len({replace(link, src="", dst="") for link in places}) == 1


def test_nodes_that_take_no_part_may_stay_but_a_link_one_way_does_not_turn():
    assert turning(nvswitch(8), [f"gpu{i}" for i in range(6)]).sizes == [6, 6, 1, 1, 1, 1]
    assert turning(Topology("one", {"a": "gpu"}, []), ["a"]) is None
    pair = Topology("pair", {"a": "gpu", "b": "gpu"}, [Link("a", "b", "1 GB/s")])
    assert turning(pair, ["a", "b"]) is None
