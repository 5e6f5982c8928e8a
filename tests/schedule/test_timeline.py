"""Predicted times of schedules: closed forms, exactly."""

import pytest

from d2lps import Link, Send, Topology, Trace, cost, pcie_server, ring
from d2lps.schedule import (
    Schedule,
    ScheduleError,
    Task,
    Value,
    gpipe,
    interleaved,
    one_f_one_b,
    pipeline,
    tensor_mlp,
    zero_bubble,
)
from d2lps.simulate.timeline import timeline
from d2lps.topology import both_ways
from d2lps.trace import TraceError
from d2lps.units import UnitError


def idle(trace):
    busy = sum(event.end - event.start for event in trace.events if event.kind == "task")
    return 1 - busy / (trace.duration * len(trace.plan.nodes))


@pytest.mark.parametrize("micro, bubble", [(2, 0.6), (4, 3 / 7), (8, 3 / 11)])
@pytest.mark.parametrize("table", [gpipe, one_f_one_b])
def test_the_bubble_does_not_depend_on_the_times_of_f_and_b(table, micro, bubble):
    for work in ({"F": 1, "B": 1}, {"F": 1, "B": 2}, {"F": 0.3, "B": 0.7}):
        assert idle(timeline(pipeline(table(4, micro), work), None)) == pytest.approx(bubble)


def test_interleaved_and_zero_bubble():
    assert idle(timeline(pipeline(interleaved(4, 8, 2)), None)) == pytest.approx(3 / 19)
    assert idle(timeline(pipeline(zero_bubble(4, 8)), None)) == pytest.approx(3 / 27)


def test_a_message_takes_its_bytes_over_the_link_and_its_latency():
    chain = Topology(
        "chain",
        {"gpu0": "gpu", "gpu1": "gpu"},
        [Link(*pair, "1 GB/s", "1 ms") for pair in (("gpu0", "gpu1"), ("gpu1", "gpu0"))],
    )
    trace = timeline(pipeline(one_f_one_b(2, 1), boundary=10**9), chain)
    assert trace.duration == pytest.approx(4 + 2 * 1.001)


def test_messages_that_meet_share_a_link_and_speed_up_when_the_other_has_left():
    nodes = ["gpu0", "gpu1", "gpu2"]
    values = {"a": Value(2 * 10**9), "b": Value(10**9)}
    acts = [Send("gpu1", "gpu0", "a", "copy"), Send("gpu2", "gpu0", "b", "copy")]
    schedule = Schedule(nodes, values, acts, holds=[("gpu1", "a"), ("gpu2", "b")])
    ends = {event.key: event.end for event in timeline(schedule, pcie_server(gpus=3, bandwidth="1 GB/s")).events}
    assert ends == {"b": 2.0, "a": 3.0}


def test_a_collective_costs_what_its_plan_costs():
    nodes = ["gpu0", "gpu1", "gpu2", "gpu3"]
    mlp = tensor_mlp(nodes, rows=4, width=1000, hidden=1000)
    place = pcie_server(gpus=4, bandwidth="1 kB/s")
    trace = timeline(mlp, place)
    work = sum(task.work for task in mlp.tasks if task.node == "gpu0")
    assert trace.duration == pytest.approx(work + 2 * (2 * 3 / 4 * 16_000 / 1000))
    assert {trace.bytes_sent(node) for node in nodes} == {2 * 2 * 3 * 16_000 // 4}


def test_a_message_is_queued_once_the_task_before_it_has_started():
    nodes, values = ["gpu0", "gpu1"], {"x": Value(10**9), "y": Value(0), "z": Value(0)}
    acts = [
        Task("gpu0", "F", "0", None, (), ("y",), (), 2),
        Send("gpu0", "gpu1", "x", "copy"),
        Task("gpu0", "F", "1", None, (), ("z",), (), 2),
    ]
    schedule = Schedule(nodes, values, acts, holds=[("gpu0", "x")])
    spans = {event.key: (event.start, event.end) for event in timeline(schedule, pcie_server(2, "1 GB/s")).events}
    assert spans == {"0": (0, 2), "x": (0, 1), "1": (2, 4)}


def test_a_trace_has_both_bubbles_its_memory_and_json():
    for table, of_total, relative in ((gpipe(4, 8), 3 / 11, 3 / 8), (interleaved(4, 8, 2), 3 / 19, 3 / 16)):
        schedule = pipeline(table)
        trace = cost.shared(schedule)
        assert trace.bubble() == pytest.approx(of_total) and trace.bubble(relative=True) == pytest.approx(relative)
        assert {node: trace.peak_memory(node) for node in schedule.nodes} == schedule.peak
        assert Trace.from_json(trace.to_json()) == trace
    with pytest.raises(TraceError, match="only schedules of tasks have a bubble"):
        cost.shared(ring(["gpu0", "gpu1"]), pcie_server(2), 1000).bubble()
    assert cost.shared(pipeline(one_f_one_b(2, 1))).memory("gpu1") == [(0.0, 0), (1.0, 1), (2.0, 1), (3.0, 0)]


def test_a_topology_gives_rates_and_memory_of_nodes():
    schedule = pipeline(one_f_one_b(2, 3), {"F": 4.0, "B": 8.0}, saved=1000)
    links = both_ways("gpu0", "gpu1", "1 GB/s")
    kinds = dict.fromkeys(schedule.nodes, "gpu")
    place = Topology("pair", kinds, links, computing={"gpu1": 4.0}, memory={"gpu0": "9 kB"})
    trace = cost.shared(schedule, place)
    assert {(e.src, e.op): e.end - e.start for e in trace.events if e.kind == "task"}["gpu1", "F"] == 1.0
    assert Trace.from_json(trace.to_json()) == trace
    small = Topology("pair", kinds, links, memory={"gpu0": schedule.peak["gpu0"] - 1})
    with pytest.raises(ScheduleError, match="gpu0 needs"):
        cost.shared(schedule, small)
    with pytest.raises(UnitError, match="no rate of computing"):
        Topology("pair", kinds, links, computing={"gpu1": 0})
