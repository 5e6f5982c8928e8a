"""Predicted times: the numbers of the texts, max–min fairness computed by hand, and properties that always hold."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from helpers.plans import legal_plans, ring
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Link, Plan, Send, Topology, Update, aggregate_at, cost, one_memory, pcie_server, sharded
from d2lps.topology import TopologyError, both_ways
from d2lps.units import Bandwidth, UnitError

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def exactly(milliseconds):
    return pytest.approx(milliseconds / 1000, rel=1e-12, abs=0)


# ---------------------------------------------------------------- the numbers of the texts


@pytest.mark.parametrize(
    "plan, shared, ideal",
    [
        (aggregate_at(GPUS, "gpu0"), 60, 20),
        (aggregate_at(GPUS, "cpu"), 80, 20),
        (sharded(GPUS), 15, 5),
        (ring(GPUS), 15, 15),
    ],
)
def test_160_MB_on_four_gpus_with_16_GB_per_second(plan, shared, ideal):
    server = pcie_server(gpus=4, bandwidth="16 GB/s")
    assert cost.shared(plan, server, "160 MB").duration == exactly(shared)
    assert cost.ideal(plan, server, "160 MB").duration == exactly(ideal)


@pytest.mark.parametrize("written, duration", [("16 GB/s", 60), ("128 Gbit/s", 60), ("16 Gbit/s", 480)])
def test_16_gigabits_are_eight_times_slower_than_16_gigabytes(written, duration):
    plan, server = aggregate_at(GPUS, "gpu0"), pcie_server(gpus=4, bandwidth=written)
    assert cost.shared(plan, server, "160 MB").duration == exactly(duration)


def test_sharding_buys_nothing_where_all_share_one_memory():
    laptop = one_memory([*GPUS, "cpu"], "16 GB/s")
    for plan in (aggregate_at(GPUS, "gpu0"), sharded(GPUS), ring(GPUS), aggregate_at(GPUS, "gpu0", chunks=7)):
        assert cost.shared(plan, laptop, "160 MB").duration == exactly(60)
    assert cost.shared(aggregate_at(GPUS, "cpu"), laptop, "160 MB").duration == exactly(80)
    assert cost.ideal(aggregate_at(GPUS, "cpu"), laptop, "160 MB").duration == exactly(20)


# ---------------------------------------------------------------- fair sharing, worked by hand

# Messages over named links; every end has an unlimited link of its own. Links carry 1 B/s unless it says otherwise.


def arrivals(flows: dict[str, tuple[str, float]], rates: dict[str, float] | None = None, model=cost.shared):
    """flows: message → (the links it crosses, such as "AB", its bytes). The second at which each arrives."""
    rates = {"A": 1, "B": 1, "C": 1} | (rates or {})
    kinds, links, sends = {}, [], []
    for name in rates:
        kinds |= {f"{name}in": "switch", f"{name}out": "switch"}
        links.append(Link(f"{name}in", f"{name}out", Bandwidth(rates[name])))
    free, joined = Bandwidth("inf"), set()
    total = sum(size for _, size in flows.values())
    for message, (crossed, _) in flows.items():
        kinds |= {f"{message}0": "gpu", f"{message}1": "gpu"}
        hops = [f"{message}0", *(f"{c}{end}" for c in crossed for end in ("in", "out")), f"{message}1"]
        joined |= {hop for hop in zip(hops[::2], hops[1::2], strict=True)}
        sends.append(Send(f"{message}0", f"{message}1", message))
    links += [Link(a, b, free) for a, b in sorted(joined)]
    share = {message: Fraction(size) / total for message, (_, size) in flows.items()}
    plan = Plan([n for n, kind in kinds.items() if kind == "gpu"], share, [sends], wants=[])
    trace = model(plan, Topology("by hand", kinds, links), f"{int(total)} B")
    return {event.key: event.end for event in trace.events}


def test_three_on_one_link_and_one_more_beyond_get_a_third_and_two_thirds():
    # A: x, y, z at 1/3 each; z goes on over B, so that w gets the 2/3 that z leaves there.
    times = arrivals({"x": ("A", 6), "y": ("A", 6), "z": ("AB", 6), "w": ("B", 12)})
    assert times == {"x": 18, "y": 18, "z": 18, "w": 18}


def test_one_over_two_links_and_one_on_each_get_a_half():
    # Max–min, not proportional: the long one is not punished (1/3 against 2/3) for using two links.
    assert arrivals({"long": ("AB", 6), "x": ("A", 6), "y": ("B", 6)}) == {"long": 12, "x": 12, "y": 12}


def test_other_flows_take_the_share_that_a_slow_link_leaves():
    # z is held to 1/4 by B (1/2, shared with w); x gets the 3/4 left on A.
    times = arrivals({"x": ("A", 6), "z": ("AB", 2), "w": ("B", 2)}, {"B": 0.5})
    assert times == {"x": 8, "z": 8, "w": 8}


def test_a_finished_flow_frees_its_share():
    # Both at 1/2 until x has left at 4; then y alone at 1 for its other 6.
    assert arrivals({"x": ("A", 2), "y": ("A", 8)}) == {"x": 4, "y": 10}
    # Three at 1/3 until x has left at 3, two at 1/2 until y has left at 5, then z alone.
    assert arrivals({"x": ("A", 1), "y": ("A", 2), "z": ("A", 3)}) == {"x": 3, "y": 5, "z": 6}


def test_when_the_narrow_place_moves():
    # x (A) and z (AB) at 1/2; x has left at 4; then z runs at 1, which B (1) allows.
    assert arrivals({"x": ("A", 2), "z": ("AB", 4)}) == {"x": 4, "z": 6}
    # the same with B at 1/2: z does not become faster.
    assert arrivals({"x": ("A", 2), "z": ("AB", 4)}, {"B": 0.5}) == {"x": 4, "z": 8}


def test_ideal_sees_each_message_alone_at_its_narrowest_place():
    flows = {"x": ("A", 6), "z": ("AB", 2), "w": ("BC", 4)}
    assert arrivals(flows, {"B": 0.5, "C": 2}, cost.ideal) == {"x": 6, "z": 4, "w": 8}


def test_unequal_links_bind_at_the_slowest():
    fast, slow = "16 GB/s", "4 GB/s"
    plan = aggregate_at(["gpu0", "gpu1", "gpu2"], "gpu0")
    slow_sender = pcie_server(3, [fast, slow, fast, fast])
    # gpu1 holds itself to 4 GB/s, gpu2 takes the 12 that are left: 13.3 ms and 40 ms; both ways.
    assert cost.shared(plan, slow_sender, "160 MB").duration == exactly(80)
    assert [e.end for e in cost.shared(plan, slow_sender, "160 MB").events][1] == pytest.approx(0.16 / 12)
    slow_root = pcie_server(3, [slow, fast, fast, fast])
    assert cost.shared(plan, slow_root, "160 MB").duration == exactly(160)


def test_parallel_links_carry_as_one():
    single = Topology("one", {"a": "gpu", "b": "gpu"}, both_ways("a", "b", "25 GB/s"))
    double = Topology("two", {"a": "gpu", "b": "gpu"}, both_ways("a", "b", "25 GB/s", count=2))
    plan = aggregate_at(["a", "b"], "a")
    assert cost.shared(plan, double, "1 GB").duration == cost.shared(plan, single, "500 MB").duration


def test_the_two_directions_of_a_link_do_not_share():
    line = Topology("line", {"a": "gpu", "b": "gpu"}, both_ways("a", "b", "1 GB/s"))
    exchange = Plan(["a", "b"], {"g": 1}, [[Send("a", "b", "g"), Send("b", "a", "g")]])
    assert cost.shared(exchange, line, "1 GB").duration == exactly(1000)


# ---------------------------------------------------------------- latency, zero, infinity


def test_latency_is_added_once_per_link_and_message_and_does_not_occupy_the_link():
    server = pcie_server(gpus=4, latency="5 us")
    trace = cost.shared(aggregate_at(GPUS, "gpu0"), server, "160 MB")
    assert trace.duration == pytest.approx(0.06 + 2 * 2 * 5e-6, rel=1e-12)
    assert [e.end - e.start for e in trace.events] == [pytest.approx(0.03 + 10e-6, rel=1e-12)] * 6
    alone = cost.ideal(aggregate_at(GPUS, "gpu0"), server, "160 MB")
    assert alone.duration == pytest.approx(0.02 + 2 * 2 * 5e-6, rel=1e-12)


def test_no_bytes_take_the_latency_only():
    assert cost.shared(sharded(GPUS), pcie_server(), 0).duration == 0.0
    assert cost.shared(sharded(GPUS), pcie_server(latency="5 us"), 0).duration == pytest.approx(20e-6, rel=1e-12)
    with_an_empty_key = sharded(GPUS, {"cpu": 1, "gpu0": 0})
    assert cost.shared(with_an_empty_key, pcie_server(), "160 MB").duration == exactly(80)


def test_unlimited_links_take_no_time():
    free = pcie_server(bandwidth=Bandwidth("inf"))
    assert cost.shared(sharded(GPUS), free, "160 MB").duration == 0.0
    assert cost.ideal(sharded(GPUS), free, "160 MB").duration == 0.0
    one = pcie_server(bandwidth=[Bandwidth("inf")] * 4 + [Bandwidth(16e9)])
    assert cost.shared(aggregate_at(GPUS, "cpu"), one, "160 MB").duration == exactly(80)
    assert cost.shared(aggregate_at(GPUS, "gpu0"), one, "160 MB").duration == 0.0


def test_a_plan_without_steps_takes_no_time():
    trace = cost.shared(aggregate_at(["gpu0"], "gpu0"), pcie_server(), "160 MB")
    assert (trace.duration, trace.events, trace.steps) == (0.0, (), 0)


def test_updates_happen_at_the_end_of_their_step_and_take_no_time():
    plan = aggregate_at(GPUS, "cpu", update=("sgd", {"lr": 0.1}))
    (update,) = [e for e in cost.shared(plan, pcie_server(), "160 MB").events if e.kind == "update"]
    assert (update.start, update.end, update.src, update.dst, update.op) == (0.04, 0.04, "cpu", "cpu", "sgd")


def test_steps_are_barriers():
    trace = cost.shared(ring(GPUS), pcie_server(4, ["16 GB/s", "16 GB/s", "16 GB/s", "4 GB/s", "1 GB/s"]), "160 MB")
    for (_, end), (start, _) in zip(trace.step_times(), trace.step_times()[1:], strict=False):
        assert start == end
    assert trace.duration == exactly(6 * 10)


# ---------------------------------------------------------------- refusals


ISLANDS = Topology("islands", {"a": "gpu", "b": "gpu"}, [])


@pytest.mark.parametrize("model", [cost.ideal, cost.shared])
@pytest.mark.parametrize(
    "plan, topology, nbytes, error, words",
    [
        (aggregate_at(GPUS, "server"), pcie_server(), "1 B", TopologyError, "no node 'server' on pcie_server"),
        (aggregate_at(["lonely"], "lonely"), pcie_server(1), "1 B", TopologyError, "(nodes: gpu0 switch cpu)"),
        (sharded(["a", "b"]), ISLANDS, "1 B", TopologyError, "there is no route from b to a on islands"),
        (sharded(GPUS), pcie_server(), 160e6, UnitError, "size 160000000.0 is neither a whole number of bytes"),
        (sharded(GPUS), pcie_server(), 160, UnitError, "size 160 has no unit: write '160 MB', or '160 B'"),
    ],
)
def test_an_invalid_prediction_is_refused_in_one_sentence(model, plan, topology, nbytes, error, words):
    with pytest.raises(error) as caught:
        model(plan, topology, nbytes)
    assert words in str(caught.value)


@pytest.mark.parametrize("model", [cost.ideal, cost.shared])
@pytest.mark.parametrize("given", ["x", None, Topology])
def test_what_is_not_a_topology_is_named(model, given):
    with pytest.raises(TopologyError) as caught:
        model(sharded(GPUS), given, "1 B")
    assert str(caught.value) == f"cost needs a Topology that the plan runs on, such as pcie_server(), not {given!r}"


# ---------------------------------------------------------------- nodes that add, and messages that cost time


def test_of_two_ports_that_of_the_receiver_adds():
    speeds = {"ports": {"a": "1 GB/s", "b": "1 GB/s"}, "adding": {"b": "1 GB/s"}}
    place = Topology("pair", {"a": "gpu", "b": "gpu"}, both_ways("a", "b", "1 GB/s"), **speeds)
    for src, dst, seconds in (("a", "b", 2), ("b", "a", 1)):
        plan = Plan(["a", "b"], {"g": 1}, [[Send(src, dst, "g", "add")]], wants=[dst])
        assert cost.shared(plan, place, "1 GB").duration == seconds


def busy_memory(nodes, adding=None, overhead=0.0):
    free = one_memory(nodes, "10 GB/s")
    return Topology(
        "busy",
        free.kinds,
        free.links,
        free.through,
        {"memory": adding} if adding else {},
        {"memory": overhead} if overhead else {},
    )


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("adding, overhead", [(None, 0.0), ("3 GB/s", 0.0), (None, 4e-3), ("3 GB/s", 8e-3)])
def test_a_memory_adds_at_a_rate_of_its_own_and_spends_time_on_every_message(n, adding, overhead):
    nodes, size = [f"gpu{i}" for i in range(n)], 160_000_000
    place = busy_memory(nodes, adding, overhead)
    copied, added = size / 10e9, size / 10e9 + (size / 3e9 if adding else 0.0)
    # n messages of S/n in each of the 2(n−1) steps, half of them to be added; all that is moved shares one memory.
    pieces = (n - 1) * n * (max(added / n, overhead) + max(copied / n, overhead))
    assert cost.shared(ring(nodes), place, size).duration == pytest.approx(pieces)
    assert cost.shared(sharded(nodes), place, size).duration == pytest.approx(pieces)
    star, whole = aggregate_at(nodes, "gpu0"), max(added, overhead) + max(copied, overhead)
    assert cost.shared(star, place, size).duration == pytest.approx((n - 1) * whole)
    assert cost.ideal(star, place, size).duration == pytest.approx(whole if n > 1 else 0.0)


def test_at_a_port_the_one_where_it_arrives_adds():
    place = one_memory(["a", "b", "c"], Bandwidth("inf"), each="10 GB/s", each_adding="5 GB/s")
    assert cost.shared(aggregate_at(["a"], "b"), place, "10 GB").step_times() == [(0, 3), (3, 4)]
    # b receives and adds two at once; what c adds meanwhile is its own affair.
    gathered = Plan(["a", "b", "c"], {"x": "1/2", "y": "1/2"}, [[Send("a", "b", "x"), Send("b", "c", "y")]], wants=[])
    assert {e.key: e.end for e in cost.shared(gathered, place, "20 GB").events} == {"x": 4, "y": 4}
    only = one_memory(["a", "b"], Bandwidth("inf"), each_adding="5 GB/s")
    assert cost.shared(aggregate_at(["a"], "b"), only, "10 GB").step_times() == [(0, 2), (2, 2)]


def test_a_message_without_bytes_still_costs_its_overhead():
    assert cost.shared(sharded(GPUS), busy_memory(GPUS, overhead=1e-3), 0).duration == pytest.approx(24e-3)


def test_adds_and_copies_share_a_memory_by_their_loads():
    # 1 GB at 10 GB/s; the sum asks for twice as much. Alike until the copy has left at 0.2 s, then the sum alone.
    plan = Plan(
        ["a", "b", "c", "d"], {"x": "1/2", "y": "1/2"}, [[Send("a", "b", "x"), Send("c", "d", "y", "copy")]], wants=[]
    )
    times = {e.key: e.end for e in cost.shared(plan, busy_memory(plan.nodes, "10 GB/s"), "2 GB").events}
    assert times == {"x": pytest.approx(0.3), "y": pytest.approx(0.2)}


def test_equal_messages_together_are_costed_as_one_by_one():
    # All at 1/3 until x and y have left at 3 s, with 1 GB each; then z alone for its other 1 GB.
    line = Topology("line", {"a": "gpu", "b": "gpu"}, both_ways("a", "b", "1 GB/s", "1 ms"))
    plan = Plan(["a", "b"], {"x": "1/4", "y": "1/4", "z": "1/2"}, [[Send("a", "b", key) for key in "xyz"]], wants=[])
    ends = [event.end for event in cost.shared(plan, line, "4 GB").events]
    assert ends == [pytest.approx(3.001), pytest.approx(3.001), pytest.approx(4.001)]


# ---------------------------------------------------------------- what always holds


@st.composite
def places(draw, nodes):
    """A switch with links of any speed and latency, or one memory; for the nodes of a plan."""
    speeds = st.sampled_from(["1 GB/s", "3 GB/s", "7 GB/s", "128 Gbit/s"])
    if draw(st.booleans()):
        return one_memory(nodes, draw(speeds))
    latencies = st.sampled_from([0.0, "1 us", "50 us"])
    links = [Link(*ends, draw(speeds), draw(latencies)) for n in nodes for ends in ((n, "hub"), ("hub", n))]
    return Topology("star", {**dict.fromkeys(nodes, "gpu"), "hub": "switch"}, links)


@given(st.data(), legal_plans(), st.sampled_from([0, "1 B", 1000, 160_000_000, 999_999_937]))
def test_shared_is_never_faster_than_ideal_nor_than_the_busiest_place_allows(data, plan, nbytes):
    place = data.draw(places(plan.nodes))
    ideal, shared = cost.ideal(plan, place, nbytes), cost.shared(plan, place, nbytes)
    assert [e.nbytes for e in ideal.events] == [e.nbytes for e in shared.events]
    for (a, b), (c, d) in zip(ideal.step_times(), shared.step_times(), strict=True):
        assert b - a <= (d - c) * (1 + 1e-9)
    for number, (start, end) in enumerate(shared.step_times(), 1):
        for resource, events in shared.occupied().items():
            load = sum(Fraction(e.nbytes) for e in events if e.step == number)
            assert float(load) / place.capacity(resource) <= (end - start) * (1 + 1e-9) + 1e-15
    for event, alone in zip(shared.events, ideal.events, strict=True):
        assert event.end - event.start >= (alone.end - alone.start) * (1 - 1e-9)


@st.composite
def equal_flows(draw):
    """Flows of one size, some of them several times, between nodes that meet in places of any speed."""
    nodes = [f"n{i}" for i in range(draw(st.integers(2, 6)))]
    ends = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes)).filter(lambda pair: pair[0] != pair[1])
    op, share = draw(st.sampled_from(["add", "copy"])), (1, draw(st.integers(1, 9)))
    return nodes, tuple(cost.Flow(*pair, share, op) for pair in draw(st.lists(ends, min_size=1, max_size=12)))


@given(st.data(), equal_flows(), st.sampled_from([0, 1, 160_000_000, 999_999_937]))
def test_counting_gives_the_same_time_as_filling_where_all_messages_are_of_one_size(data, flows, nbytes):
    nodes, flows = flows
    place = data.draw(places(nodes))
    if data.draw(st.booleans()):
        speeds = st.sampled_from([None, "1 GB/s", "5 GB/s"])
        place = one_memory(nodes, "7 GB/s", data.draw(speeds), "3 us", "1 us", data.draw(speeds), data.draw(speeds))
    step = cost.StepCost(Counter(flows), lambda flow: cost.route_of(flow, place, nbytes), cost.fluid, lambda: flows)
    assert step.duration == max(step.takes)
    if len({load.size for load in step.loads}) == 1:
        assert cost.busiest(step.loads) == max(cost.fluid(step.loads))


def test_counting_is_not_enough_where_messages_are_of_several_sizes():
    # While x holds a back on A, a has no use for C; when a is alone it cannot catch up: 26/3 s, though no link has
    # more than 6 bytes to carry.
    flows = {"x": ("AB", 3), "a": ("AC", 3)} | {f"{name}{i}": (name, Fraction(1, 3)) for name in "BC" for i in range(9)}
    assert max(arrivals(flows).values()) == pytest.approx(26 / 3)


@given(st.data(), legal_plans())
def test_a_prediction_scales_with_the_bytes_and_repeats_exactly(data, plan):
    place = data.draw(places(plan.nodes))
    assert cost.shared(plan, place, 10**6) == cost.shared(plan, place, "1 MB")
    free = Topology(place.name, place.kinds, [Link(k.src, k.dst, k.bandwidth) for k in place.links], place.through)
    once, twice = cost.shared(plan, free, 10**6).duration, cost.shared(plan, free, 2 * 10**6).duration
    assert twice == pytest.approx(2 * once, rel=1e-12)


@given(legal_plans())
def test_every_act_of_a_plan_is_one_event_in_the_order_written(plan):
    events = cost.shared(plan, one_memory(plan.nodes, "1 GB/s"), "1 MB").events
    acts = [
        (number, act)
        for number, step in enumerate(plan.steps, 1)
        for act in sorted(step, key=lambda a: isinstance(a, Update))
    ]
    assert len(events) == len(acts)
    for event, (number, act) in zip(events, acts, strict=True):
        ends = act[:2] if isinstance(act, Send) else (act.node, act.node)
        assert (event.step, event.src, event.dst, event.key) == (number, *ends, act.key)
        assert event.nbytes == pytest.approx(float(plan.share[act.key] * 10**6), rel=1e-15)
        assert 0 <= event.start <= event.end < math.inf
