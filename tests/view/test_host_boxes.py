"""Hosts as boxes: each contains its own nodes and no others; names, rates and rows identify them."""

import itertools
from collections import Counter

import pytest
from helpers.traces import SCENES, texts

from d2lps import cost, draw, hierarchical, machines, ring, sharded
from d2lps.trace import pairs
from d2lps.view.drawing.layout import arrange, host
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import still

SIZES = [(1, 2, 0), (2, 2, 0), (4, 2, 0), (4, 2, 1), (4, 2, 4), (4, 0, 0), (4, 0, 2), (8, 1, 0), (2, 10, 0), (8, 2, 1)]
RACKS = [(8, 0, 0, 2), (8, 1, 2, 2), (5, 1, 0, 3), (2, 0, 0, 2)]  # with the number of racks


def plans(hosts: int, gpus: int, servers: int):
    """None, for the topology alone; then plans between processors, between leaders, and of two levels."""
    cpus = [f"host{i}/cpu" for i in range(hosts)]
    inside = [[f"host{i}/gpu{j}" for j in range(gpus)] for i in range(hosts)]
    between = [f"server{i}" for i in range(servers)] or None
    leaders = [members[0] for members in inside] if gpus else cpus
    yield None
    if hosts > 1:
        yield from (ring(cpus), ring(leaders), sharded(leaders, servers=between))
        if gpus:
            yield hierarchical(dict(zip(cpus, inside, strict=True)), sharded(cpus, servers=between))
            yield hierarchical(dict(zip(leaders, inside, strict=True)), ring(leaders))


@pytest.mark.parametrize("widest", [104.0, 72.0])
@pytest.mark.parametrize("size", [*SIZES, *RACKS])
def test_a_host_holds_its_own_nodes_and_no_others(size, widest):
    topology = machines(*size[:2], servers=size[2], racks=(*size, 1)[3])
    for plan in plans(*size[:3]):
        place = arrange(topology, plan, widest)
        expected = [f"host{i}" for i in range(size[0])] + [f"server{i}" for i in range(size[2])]
        assert sorted(place.hosts) == sorted(expected)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(place.hosts.values(), 2))
        for name, around in place.hosts.items():
            assert around.x >= 0 and around.x + around.w <= place.width
            assert around.y >= 0 and around.y + around.h <= place.height
            for node, box in place.boxes.items():
                inside = around.x < box.x and box.x + box.w < around.x + around.w
                inside = inside and around.y < box.y and box.y + box.h < around.y + around.h
                assert inside == ((host(node) or node) == name)
                assert inside or not box.overlaps(around)


@pytest.mark.parametrize("size", SIZES)
def test_lanes_begin_and_end_at_the_boxes_of_nodes(size):
    topology = machines(*size[:2], servers=size[2])
    for plan in plans(*size):
        place = arrange(topology, plan)
        for ends, line in place.lanes.items():
            for node, (x, y) in zip(ends, line, strict=True):
                box = place.boxes[node]
                assert box.x <= x <= box.x + box.w and min(abs(y - box.y), abs(y - box.y - box.h)) < 0.01


@pytest.mark.parametrize("count", [2, 5, 16])
@pytest.mark.parametrize("name", SCENES)
def test_names_without_a_host_give_no_host_boxes(name, count):
    plan, topology = SCENES[name](count)
    place = arrange(topology, plan)
    assert place.hosts == {} and place.shown == {node: node for node in topology.kinds}


def test_a_host_says_its_name_once_and_its_nodes_their_own():
    labels = Counter(texts(str(draw(machines(4, 2, servers=1)))))
    assert labels == Counter({"several machines": 1, "network": 1, "1.25 GB/s": 1, "server0": 1}) + Counter(
        {f"host{i}": 1 for i in range(4)} | {"gpu0": 4, "gpu1": 4, "cpu": 5, "switch": 4, "16 GB/s": 4}
    )


@pytest.mark.parametrize("widest", [104.0, 72.0])
def test_names_of_workers_have_room_in_their_host_and_titles_say_all(widest):
    leaders = [f"host{i}/gpu0" for i in range(8)]
    svg = still(Scene(cost.shared(ring(leaders), machines(8, 1), "8 MB"), widest))
    assert Counter(texts(svg))["gpu0"] == 8
    assert all(f"<title>{node}</title>" in svg for node in [*leaders, "host3/cpu", "host3/switch"])


def test_network_cards_that_differ_each_say_how_fast_they_are():
    labels = Counter(texts(str(draw(machines(3, 2, nic=["10 Gbit/s", "10 Gbit/s", "1 Gbit/s"])))))
    assert labels["1.25 GB/s"] == 2 and labels["125 MB/s"] == 1 and labels["16 GB/s"] == 3


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_the_timeline_have_different_names(known):
    plan = ring(f"host{i}/gpu{j}" for i in range(4) for j in range(2))
    labels = texts(str(draw(cost.shared(plan, machines(4, 2) if known else pairs(plan), "8 MB"))))
    assert set(plan.nodes) <= set(labels)


def test_hosts_whose_nodes_stand_among_others_are_not_drawn():
    plan = ring(["a/0", "b/0", "a/1", "b/1"])
    place = arrange(pairs(plan), plan)
    assert place.hosts == {} and place.shown["a/1"] == "a/1"
