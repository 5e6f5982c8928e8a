"""Traces: counts, JSON written and read back, and refused input."""

import json
from dataclasses import replace

import pytest
from helpers.plans import anything, damaged, legal_plans
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Event, Link, Plan, Send, Topology, Trace, aggregate_at, cost, one_memory, pcie_server, sharded
from d2lps.topology import both_ways
from d2lps.trace import TraceError, pairs
from d2lps.units import Bandwidth

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]


@pytest.fixture
def star():
    return cost.shared(aggregate_at(GPUS, "gpu0"), pcie_server(latency="5 us"), "160 MB")


def measured(*spans, plan=None) -> Trace:
    """A trace as a run leaves it: the two messages of a tiny star, at the given (start, end)."""
    plan = plan or aggregate_at(["a", "b"], "a")
    acts = [(n, act) for n, step in enumerate(plan.steps, 1) for act in step]
    events = [
        Event("send", n, start, end, act.src, act.dst, act.key, act.op, 8)
        for (n, act), (start, end) in zip(acts, spans, strict=True)
    ]
    return Trace("cpu ×2", plan, pairs(plan), 8, tuple(events))


# ---------------------------------------------------------------- counting


def test_a_star_in_numbers(star):
    assert star.steps == 2 and star.duration == pytest.approx(0.06 + 20e-6)
    assert [star.bytes_sent(g) for g in GPUS] == [480_000_000, *[160_000_000] * 3]
    assert [star.bytes_received(g) for g in GPUS] == [480_000_000, *[160_000_000] * 3]
    assert [star.messages(g) for g in GPUS] == [3, 1, 1, 1]
    assert all(isinstance(star.bytes_sent(g), int) for g in GPUS)


def test_a_prediction_may_say_fractions_of_a_byte():
    thirds = cost.shared(sharded(["gpu0", "gpu1", "gpu2"]), pcie_server(3), "10 B")
    assert thirds.bytes_sent("gpu0") == pytest.approx(2 * 2 * 10 / 3)


def test_predicted_or_measured(star):
    assert not star.measured and not cost.ideal(star.plan, star.topology, "1 B").measured
    assert measured((0, 1), (1, 2)).measured


def test_step_times_span_their_events_and_empty_steps_take_none():
    assert measured((0.5, 1.0), (1.5, 2.0)).step_times() == [(0.5, 1.0), (1.5, 2.0)]
    gap = Plan(["a", "b"], {"g": 1}, [[Send("b", "a", "g")], [], [Send("a", "b", "g", "copy")]])
    assert measured((0.5, 1.0), (1.5, 2.0), plan=gap).step_times() == [(0.5, 1.0), (1.0, 1.0), (1.5, 2.0)]
    nothing = aggregate_at(["a"], "a")
    assert measured(plan=nothing).step_times() == [] and measured(plan=nothing).duration == 0.0


def test_a_link_is_busy_while_anything_is_on_it():
    trace = cost.shared(aggregate_at(GPUS, "gpu0"), pcie_server(), "160 MB")
    assert trace.busy("switch", "gpu0") == pytest.approx(0.03)
    assert trace.busy("gpu1", "switch") == pytest.approx(0.03)
    assert trace.busy("cpu", "switch") == 0.0
    thirds = {"g1": "1/3", "g2": "1/3", "g3": "1/3"}
    crowd = Plan(["a", "b"], thirds, [[Send("b", "a", key) for key in thirds]], wants=["a"])
    assert measured((0, 3), (2, 4), (4, 5), plan=crowd).busy("b", "a") == 5
    assert measured((0, 3), (1, 2), (2, 4), plan=crowd).busy("b", "a") == 4
    assert measured((4, 5), (0, 1), (2, 3), plan=crowd).busy("b", "a") == 3


def test_occupied_lists_the_messages_of_each_link_and_limited_node(star):
    (in_link,) = [k for k in star.topology.links if (k.src, k.dst) == ("switch", "gpu0")]
    assert [(e.src, e.step) for e in star.occupied()[in_link]] == [("gpu1", 1), ("gpu2", 1), ("gpu3", 1)]
    assert len(star.occupied()) == 8  # the CPU's link is idle
    laptop = cost.shared(star.plan, one_memory(GPUS, "1 GB/s"), "8 B")
    assert len(laptop.occupied()["memory"]) == 6


@pytest.mark.parametrize("ask", ["bytes_sent", "bytes_received", "messages"])
@pytest.mark.parametrize("trace", [measured((0, 1), (1, 2)), measured(plan=aggregate_at(["a"], "a"))])
def test_an_unknown_node_is_named_even_where_nothing_was_sent(ask, trace):
    with pytest.raises(TraceError) as error:
        getattr(trace, ask)("gpu9")
    assert str(error.value) == f"there is no node 'gpu9' in this trace (nodes: {' '.join(trace.plan.nodes)})"


def test_a_link_that_is_not_there_is_named(star):
    with pytest.raises(TraceError) as error:
        star.busy("gpu0", "gpu1")
    assert str(error.value) == "there is no link gpu0→gpu1 on pcie_server"


def test_a_trace_in_one_line(star):
    assert repr(star) == "<Trace: shared, 6 events, 2 steps, 60.02 ms>"


def test_a_run_without_topology_is_drawn_on_the_pairs_that_its_plan_uses():
    plan = aggregate_at(["gpu0", "gpu1", "gpu2"], "cpu")
    drawn = pairs(plan)
    assert drawn.kinds == {"gpu0": "gpu", "gpu1": "gpu", "gpu2": "gpu", "cpu": "cpu"}
    assert sorted((k.src, k.dst) for k in drawn.links) == [
        ("cpu", "gpu0"),
        ("cpu", "gpu1"),
        ("cpu", "gpu2"),
        ("gpu0", "cpu"),
        ("gpu1", "cpu"),
        ("gpu2", "cpu"),
    ]


# ---------------------------------------------------------------- JSON


@given(legal_plans(), st.sampled_from([0, "1 B", 10**6]), st.sampled_from([cost.ideal, cost.shared]))
def test_json_gives_an_equal_trace_back(plan, nbytes, model):
    trace = model(plan, one_memory(plan.nodes, "3 GB/s"), nbytes)
    again = Trace.from_json(trace.to_json())
    assert again == trace and again.to_json() == trace.to_json()
    assert [type(e.nbytes) for e in again.events] == [type(e.nbytes) for e in trace.events]


def test_json_keeps_kinds_links_limits_and_infinity(star):
    kinds = {"a": "gpu", "b": "cpu"}
    links = [*both_ways("a", "b", Bandwidth("inf"), "5 us", count=3)]
    place = Topology("pair", kinds, links, {"b": "7 GB/s"})
    again = Trace.from_json(cost.shared(aggregate_at(["a", "b"], "a"), place, "8 B").to_json())
    assert again.topology == place
    assert again.topology.links[0] == Link("a", "b", Bandwidth("inf"), "5 us", 3)
    json.loads(again.to_json(), parse_constant=pytest.fail)  # no NaN, no Infinity: any reader of JSON can read it
    assert Trace.from_json(measured((0.25, 1), (1, 2)).to_json()) == measured((0.25, 1), (1, 2))
    assert Trace.from_json(star.to_json()).topology == star.topology


def test_json_keeps_what_a_node_adds_and_spends_and_reads_traces_that_know_neither():
    free = one_memory(["a", "b"], "7 GB/s")
    place = Topology("busy", free.kinds, free.links, free.through, {"memory": "3 GB/s"}, {"memory": "20 us"})
    trace = cost.shared(aggregate_at(["a", "b"], "a"), place, "8 B")
    assert Trace.from_json(trace.to_json()).topology == place
    old = json.loads(trace.to_json())
    del old["topology"]["adding"], old["topology"]["overhead"]
    again = Trace.from_json(json.dumps(old)).topology
    assert (again.adding, again.overhead) == ({}, {})


NOT_A_TRACE = "this is not a trace that d2lps wrote"


@pytest.mark.parametrize(
    "source", ["", "trace", "[" * 100_000, "{", b"\xff", None, 7, "[]", "null", "{}", '{"d2lps": "plan"}']
)
def test_what_is_not_a_trace_is_refused(source):
    with pytest.raises(TraceError, match=NOT_A_TRACE):
        Trace.from_json(source)


@given(anything)
def test_any_json_that_is_not_a_trace_is_refused(data):
    with pytest.raises(TraceError, match=NOT_A_TRACE):
        Trace.from_json(json.dumps(data))


def test_a_plan_is_not_a_trace_and_the_sentence_says_so():
    with pytest.raises(TraceError) as error:
        Trace.from_json(sharded(["a", "b"]).to_json())
    assert str(error.value) == f"{NOT_A_TRACE} (ValueError: it says d2lps = 'plan')"


SOUND = measured((0, 1), (1, 2))


@pytest.mark.parametrize(
    "change",
    [
        *({"start": 2.0, "end": 1.0}, {"start": -1.0}, {"start": float("nan")}, {"start": "0"}),
        *({"end": float("inf")}, {"end": 10**400}, {"kind": "receive"}, {"op": "mean"}, {"key": "h"}),
        *({"step": 0}, {"step": 3}, {"step": "1"}, {"src": "gpu9"}, {"dst": "gpu9"}),
        *({"nbytes": -1}, {"nbytes": "8"}, {"nbytes": None}),
    ],
)
def test_an_event_that_cannot_have_been_is_refused(change):
    impossible = replace(SOUND, events=(replace(SOUND.events[0], **change), *SOUND.events[1:]))
    with pytest.raises(TraceError, match=NOT_A_TRACE):
        Trace.from_json(impossible.to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"origin": 7},
        {"origin": "cpu\x00"},
        {"nbytes": "8"},
        {"nbytes": -8},
        {"nbytes": None},
        {"topology": pcie_server()},
        {"plan": aggregate_at(["x", "y"], "x")},
    ],
)
def test_a_trace_whose_parts_do_not_fit_is_refused(change):
    with pytest.raises(TraceError, match=NOT_A_TRACE):
        Trace.from_json(replace(SOUND, **change).to_json())


@given(damaged(measured((0.0, 1.0), (1.0, 2.0)).to_json()))
def test_a_damaged_trace_is_refused_with_a_trace_error_or_is_a_sound_trace(source):
    try:
        trace = Trace.from_json(source)
    except TraceError:
        return
    trace.duration, trace.step_times(), trace.occupied(), repr(trace)
    for node in trace.plan.nodes:
        trace.bytes_sent(node), trace.bytes_received(node), trace.messages(node)
    assert Trace.from_json(trace.to_json()) == trace


def test_chrome_shows_a_row_per_node_in_microseconds(star):
    shown = json.loads(star.to_chrome())
    assert shown["displayTimeUnit"] == "ms"
    rows = {e["args"]["name"]: e["tid"] for e in shown["traceEvents"] if e["ph"] == "M"}
    assert list(rows) == GPUS
    spans = [e for e in shown["traceEvents"] if e["ph"] == "X"]
    assert [rows["gpu1"], rows["gpu2"], rows["gpu3"], *[rows["gpu0"]] * 3] == [e["tid"] for e in spans]
    assert spans[0]["name"] == "g add gpu1→gpu0" and spans[0]["args"] == {"step": 1, "bytes": 160_000_000}
    assert (spans[3]["ts"], spans[3]["dur"]) == (pytest.approx(30010), pytest.approx(30010))
