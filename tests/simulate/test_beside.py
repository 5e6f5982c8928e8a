"""Streams as nodes of a schedule: predictions against the recursion of two queues, and measured times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Trace, cost
from d2lps.schedule import ScheduleError, Task
from d2lps.simulate import replayed, streams
from d2lps.trace import TraceError

TIMES = st.integers(0, 9)


def buffered(places, copies, computes):
    """Return when the last compute ends, by the recursion of a queue with so many places."""
    copied, computed = [], []
    for k, (copy, compute) in enumerate(zip(copies, computes, strict=True)):
        free = computed[k - places] if k >= places else 0
        copied.append(max(copied[-1] if copied else 0, free) + copy)
        computed.append(max(computed[-1] if computed else 0, copied[k]) + compute)
    return computed[-1]


def forward(places, copies, computes):
    layers = range(len(copies))
    waits = {f"F{k}": [f"C{k}"] for k in layers} | {f"C{k}": [f"F{k - places}"] for k in layers if k >= places}
    queues = {"copies": [f"C{k}" for k in layers], "computing": [f"F{k}" for k in layers]}
    seconds = {f"C{k}": copies[k] for k in layers} | {f"F{k}": computes[k] for k in layers}
    return streams(queues, waits, seconds)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=6), st.integers(1, 3))
def test_two_streams_take_as_long_as_a_queue_with_so_many_places(times, places):
    copies, computes = zip(*times, strict=True)
    assert cost.shared(forward(places, copies, computes)).duration == pytest.approx(buffered(places, copies, computes))


def test_a_task_that_several_streams_wait_for_is_told_to_each_once():
    schedule = streams(
        {"a": ["X0"], "b": ["Y0", "Y1"], "c": ["Z"]}, {"Y0": ["X0"], "Y1": ["X0"], "Z": ["X0"]}, {"X0": 3}
    )
    sends = [act for act in schedule.acts if not isinstance(act, Task)]
    assert sorted((send.src, send.dst, send.key) for send in sends) == [("a", "b", "X0"), ("a", "c", "X0")]
    starts = {
        event.src: event.start for event in cost.shared(schedule).events if event.kind == "task" and event.src != "a"
    }
    assert starts == {"b": 3, "c": 3}


def test_waiting_for_a_task_of_the_same_stream_needs_no_message():
    schedule = streams({"a": ["X0", "X1"]}, {"X1": ["X0"]}, {"X0": 1, "X1": 1})
    assert len(schedule.acts) == 2 and cost.shared(schedule).duration == 2


def test_streams_that_wait_for_each_other_are_refused():
    with pytest.raises(ScheduleError) as refused:
        streams({"a": ["X0", "X1"], "b": ["Y0", "Y1"]}, {"X0": ["Y1"], "Y0": ["X1"]})
    assert refused.value.reason == "deadlock"


@pytest.mark.parametrize("waits", [{"Q": ["X0"]}, {"X0": ["Q7"]}])
def test_an_unknown_task_is_named(waits):
    with pytest.raises(ScheduleError, match="Q") as refused:
        streams({"a": ["X0"]}, waits)
    assert refused.value.reason == "no-such-task"


def test_a_label_that_is_no_label_is_named():
    with pytest.raises(ScheduleError, match="3x"):
        streams({"a": ["3x"]}, {})


def test_measured_times_replace_the_predicted_ones():
    trace = replayed(forward(1, (1, 1), (2, 2)), {"F1": (4.5, 7.0), "C0": (0.5, 1.0)}, "H200")
    assert [(event.src, event.key, event.start, event.end) for event in trace.events] == [
        ("copies", "0", 0.5, 1.0),
        ("computing", "1", 4.5, 7.0),
    ]
    assert trace.measured and trace.duration == 7.0 and trace.bubble() == pytest.approx(1 - 3 / 14)
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("spans", [{"F9": (0, 1)}, {"F0": (2, 1)}, {"F0": (-1, 1)}])
def test_a_span_that_cannot_be_is_refused(spans):
    with pytest.raises(TraceError, match=next(iter(spans))):
        replayed(forward(1, (1,), (1,)), spans)
