"""Folds: few nodes stand for many, with the same times, bytes and loads."""

from collections import Counter
from fractions import Fraction
from functools import cache

import pytest

from d2lps import (
    all_to_all,
    cost,
    fold,
    leaf_spine,
    nvswitch,
    pcie_server,
    rail_wise,
    rails,
    reduce_scatter,
    ring,
    tree,
)
from d2lps.schedule import gpipe, pipeline
from d2lps.trace import TraceError

HOSTS = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(8)]
GPUS = [gpu for host in HOSTS for gpu in host]
RAILS = {"hosts": 8, "latency": "7 us", "inside_latency": "1.7 us"}
MACHINES = [f"host{i}" for i in range(64)]

RUNS = {  # the plan, its topology, the step, and the number of merged nodes that have a gradient
    "ring on rails": (ring(GPUS), rails(**RAILS), 1, 3),
    "ring on thin rails": (ring(GPUS), rails(**RAILS, oversubscription=4), 100, 3),
    "ring on one slow GPU": (ring(GPUS), rails(**RAILS).slowed("host3/gpu4", by=4), 1, 9),
    "inside the hosts": (rail_wise(HOSTS), rails(**RAILS), 1, 1),
    "rail by rail": (rail_wise(HOSTS), rails(**RAILS), 2, 1),
    "all-to-all along the rails": (all_to_all(GPUS), rails(**RAILS), 8, 1),
    "all-to-all between rails": (all_to_all(GPUS), rails(**RAILS), 11, 1),
    "all-to-all next to it": (all_to_all(GPUS), rails(**RAILS), 3, 3),
    "few steps": (all_to_all(GPUS, few_steps=True), rails(**RAILS), 2, 3),
    "one switch": (ring([f"gpu{i}" for i in range(64)]), nvswitch(64), 126, 1),
    "racks": (ring(MACHINES), leaf_spine(64, per_leaf=8, oversubscription=2), 1, 3),
    "unequal racks": (ring(MACHINES), leaf_spine(64, per_leaf=10), 1, 6),
    "a tree, with idle nodes": (tree([f"gpu{i}" for i in range(64)]), pcie_server(gpus=64, latency="5 us"), 3, 3),
}


@cache
def traced(name):
    plan, place, *_ = RUNS[name]
    return cost.shared(plan, place, "64 MB")


@pytest.mark.parametrize("name", RUNS)
def test_times_bytes_and_members_are_those_of_the_whole(name):
    plan, place, step, number = RUNS[name]
    trace = traced(name)
    folded = fold(trace, step)
    node = {one: name for name, members in folded.members.items() for one in members}
    assert sum(len(folded.members[one]) for one in folded.plan.nodes) == len(plan.nodes) == 64
    assert len(folded.plan.nodes) == number
    start, end = trace.step_times()[step - 1]
    assert folded.duration == pytest.approx(end - start, rel=1e-9)
    whole, bytes_of, merged = Counter(), Counter(), Counter()
    for event in trace.events:
        if event.step == step:
            way = node[event.src], node[event.dst], round((event.end - start) * 1e12)
            whole[way] += 1
            bytes_of[way] += Fraction(event.nbytes)
    for event, count in zip(folded.events, folded.stands_for, strict=True):
        way = event.src, event.dst, round(event.end * 1e12)
        merged[way] += count
        assert event.nbytes == pytest.approx(float(bytes_of[way]))
    assert merged == whole


@pytest.mark.parametrize("name", RUNS)
def test_every_link_of_a_class_has_the_load_of_the_one_that_stands_for_it(name):
    plan, place, step, _ = RUNS[name]
    folded = fold(traced(name), step)
    node = {one: name for name, members in folded.members.items() for one in members}
    load = {(link.src, link.dst): seconds for link, seconds in folded.loads.items()}
    seen, needs = Counter(), Counter()
    for send in plan.steps[step - 1]:
        for link in place.route(send.src, send.dst):
            needs[link] += Fraction(64_000_000 * plan.share[send.key]) / Fraction(link.capacity)
    for link, seconds in needs.items():
        ends = node[link.src], node[link.dst]
        assert float(seconds) == pytest.approx(load[ends])
        seen[ends] += link.count
    assert {(link.src, link.dst): link.count for link in folded.loads} == seen


def test_a_slow_gpu_is_apart_and_so_are_those_it_makes_wait():
    alone = {nodes[0] for nodes in fold(traced("ring on one slow GPU")).members.values() if len(nodes) == 1}
    assert {"host3/gpu3", "host3/gpu4", "host3/gpu5", "host3/nvswitch"} <= alone


def test_nodes_may_be_kept_apart():
    folded = fold(traced("ring on rails"), apart=HOSTS[2])
    assert all(folded.members[gpu] == (gpu,) for gpu in HOSTS[2])
    assert [*folded.members][0] == "*/gpu0×7" and len(folded.plan.nodes) == 8 + 3


def test_thousands_of_gpus_are_as_few_as_64():
    small, large = (
        fold(cost.shared(ring([f"host{h}/gpu{g}" for h in range(hosts) for g in range(8)]), rails(hosts), "1 GB"))
        for hosts in (8, 256)
    )
    assert [len(nodes) * 32 for nodes in small.members.values() if len(nodes) > 1] == [
        len(nodes) for nodes in large.members.values() if len(nodes) > 1
    ]
    assert len(small.events) == len(large.events) == 4


def test_a_trace_that_cannot_be_folded_is_refused_in_one_sentence():
    trace = traced("ring on rails")
    for wrong in (None, cost.ideal(ring(GPUS), rails(**RAILS), "64 MB"), cost.shared(pipeline(gpipe(2, 2)))):
        with pytest.raises(TraceError, match="fold merges the nodes of a run that cost.shared predicted"):
            fold(wrong)
    for step in (0, 127, True, "1"):
        with pytest.raises(TraceError, match="fold: there is no step .*: the run has the steps 1 to 126"):
            fold(trace, step)
    with pytest.raises(TraceError, match="there is no node 'gpu9'"):
        fold(trace, apart=["gpu9"])
    direct = cost.shared(reduce_scatter(GPUS, direct=True), rails(**RAILS), "64 MB")
    with pytest.raises(TraceError, match="between .* are of several kinds, which one picture cannot show"):
        fold(direct)
