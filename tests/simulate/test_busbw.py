"""algbw and busbw of all collectives: nccl-tests' factors, derived from what nodes hold and want."""

from fractions import Fraction

import pytest
from helpers.plans import legal_plans
from hypothesis import given

from d2lps import Plan, Send, Topology, Trace, algorithms, bandwidth, cost, nvswitch
from d2lps.schedule import gpipe, pipeline
from d2lps.topology import both_ways
from d2lps.trace import TraceError

BOTH, ONE = (lambda n: Fraction(2 * (n - 1), n)), (lambda n: Fraction(n - 1, n))
FACTORS = {  # nccl-tests, src/*.cu
    **dict.fromkeys(("ring", "tree", "sharded", "recursive_doubling", "halving_doubling"), BOTH),
    **dict.fromkeys(("all_gather", "bruck", "doubling", "reduce_scatter", "halving"), ONE),
    **dict.fromkeys(("all_to_all", "gather", "scatter"), ONE),
    **dict.fromkeys(("broadcast", "reduce"), lambda n: 1),
}


@pytest.mark.parametrize("n", [2, 3, 5, 8, 66])  # beyond 64 nodes the holdings may be described
@pytest.mark.parametrize("name", FACTORS)
def test_the_factors_are_those_of_nccl_tests(name, n):
    if name in ("recursive_doubling", "halving_doubling", "halving", "doubling") and n & (n - 1):
        n = 4 if n < 64 else 128
    plan = getattr(algorithms, name)([f"gpu{i}" for i in range(n)])
    total = 360_000 * (n if name == "all_to_all" else 1)  # of an all-to-all, the buffers of all nodes
    result = bandwidth(cost.shared(plan, nvswitch(n), total))
    assert result.factor == FACTORS[name](n)
    assert result.nbytes == 360_000
    assert result.busbw == pytest.approx(result.algbw * float(result.factor))


def by_hand(plan: Plan) -> Fraction:
    """Return the factor, counted key by key and node by node."""
    sent, received, held, wanted = (dict.fromkeys(plan.nodes, Fraction(0)) for _ in range(4))
    total, members = Fraction(0), set()
    for key, part in plan.share.items():
        have = {node for node, name in plan.holds if name == key}
        want = {node for node, name, _ in plan.wants if name == key}
        members |= have | want
        total += part * (len(have) - 1 + len(want) - bool(have & want)) if want else 0
        for node in have:
            held[node] += part
            sent[node] += part * bool(want - {node})
        for node in want:
            wanted[node] += part
            received[node] += part * bool(have - {node})
    return max(total / len(members), *sent.values(), *received.values()) / max(*held.values(), *wanted.values())


@given(legal_plans())
def test_the_factor_of_any_plan_is_the_count_of_keys_and_nodes(plan):
    place = Topology(
        "any",
        dict.fromkeys([*plan.nodes], "gpu") | {"s": "switch"},
        [link for node in plan.nodes for link in both_ways(node, "s", "1 GB/s", "1 us")],
    )
    trace = cost.shared(plan, place, "1 MB")
    if trace.duration and by_hand(plan):
        assert bandwidth(trace).factor == by_hand(plan)


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "all_gather", "bruck", "halving", "all_to_all", "gather"])
def test_the_best_algorithms_reach_the_speed_of_a_link(name):
    plan = getattr(algorithms, name)([f"gpu{i}" for i in range(8)])
    assert bandwidth(cost.shared(plan, nvswitch(8, links=18), "8 GB")).busbw == pytest.approx(450e9)


def test_a_tree_does_not_reach_it_and_the_line_says_how_far():
    trace = cost.shared(algorithms.tree([f"gpu{i}" for i in range(8)]), nvswitch(8, links=18), "450 MB")
    assert str(bandwidth(trace)) == "450 MB: 75 GB/s of the buffer × 7/4 = 131.2 GB/s on the bus"


def test_without_messages_or_time_there_is_no_bandwidth():
    for plan in (algorithms.ring(["gpu0"]), Plan(["gpu0", "gpu1"], {"g": 1}, [[Send("gpu0", "gpu1", "g")]], wants=[])):
        with pytest.raises(TraceError, match="sends something and takes time"):
            bandwidth(cost.shared(plan, nvswitch(2), "1 MB"))
    with pytest.raises(TraceError, match="sends something and takes time"):
        bandwidth(cost.shared(pipeline(gpipe(2, 2))))
    assert isinstance(cost.shared(algorithms.ring(["gpu0"]), nvswitch(2), 0), Trace)
