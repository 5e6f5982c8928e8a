"""The streams of one device as nodes of a schedule: each does its tasks in order, and waits for tasks of the others.

>>> queues = {"copies": ["C0", "C1"], "computing": ["F0", "F1"]}
>>> schedule = streams(queues, {"F0": ["C0"], "F1": ["C1"]}, {"C1": 2, "F1": 3})
>>> print(schedule)
slot        0  1  2
copies      C0 C1
computing      F0 F1
>>> shared(schedule).duration, replayed(schedule, {"C1": (0, 2.5), "F1": (2.5, 5)}).duration
(5.0, 5)

A stream is a queue of work, such as a CUDA stream, or a thread that computes beside another one that sends. An event of
CUDA is what a task of one stream leaves for a task of another: here a value of 0 bytes, and a message that takes no
time. So :func:`d2lps.cost.shared` predicts when everything happens, and :func:`replayed` puts measured times in place
of the predicted ones.
"""

import re
from collections.abc import Iterable, Mapping

from d2lps.messages import text
from d2lps.plan.acts import Send
from d2lps.schedule import Schedule, ScheduleError, Task, Value, merge
from d2lps.schedule.acts import Act
from d2lps.simulate.cost import shared  # noqa: F401 – for the example
from d2lps.trace import Event, Trace, TraceError, pairs

LABEL = re.compile("[A-Za-z]+[0-9]*")


def streams(
    queues: Mapping[str, Iterable[str]], waits: Mapping[str, Iterable[str]], seconds: Mapping[str, float] | None = None
) -> Schedule:
    """Write the work of several streams as a schedule.

    Args:
        queues: Stream → the labels of its tasks, in order: letters, and a number if there is one: ``"F0"``, ``"U"``.
        waits: Task → tasks of other streams that must be over before it begins.
        seconds: Task → how long it takes; 0 if left out.

    Returns:
        A node per stream. It has no sizes: nothing is known of memory.

    Raises:
        ScheduleError: If a task is unknown, or the streams would wait for each other for ever.
    """
    queues = {stream: [*labels] for stream, labels in queues.items()}
    homes = {label: stream for stream, labels in queues.items() for label in labels}
    needed = {
        label: [other for other in others if homes.get(other) != homes.get(label)] for label, others in waits.items()
    }
    for label in (*homes, *waits, *(other for others in waits.values() for other in others)):
        if label not in homes or not LABEL.fullmatch(label):
            raise ScheduleError("no-such-task", given=repr(label), tasks=" ".join(homes))
    columns: dict[str, list[Act]] = {}
    for stream, labels in queues.items():
        acts: list[Act] = []
        for label in labels:
            name = label.rstrip("0123456789")
            needs, takes = (*needed.get(label, ()),), (seconds or {}).get(label, 0)
            acts.append(Task(stream, name, label[len(name) :], None, needs, (label,), (), takes))
            waiting = dict.fromkeys(homes[task] for task, others in needed.items() if label in others)
            acts += [Send(stream, other, label, "copy") for other in waiting]
        columns[stream] = acts
    return merge(columns, {label: Value() for label in homes})


def replayed(schedule: Schedule, spans: Mapping[str, tuple[float, float]], origin: str = "measured") -> Trace:
    """Return the trace of a schedule whose tasks happened when a profiler saw them.

    Args:
        schedule: With tasks on any nodes.
        spans: Label of a task → its start and end, in seconds from a common beginning; tasks without one are left out.
        origin: Where it was measured, as for :class:`~d2lps.trace.Trace`.

    Returns:
        Only with tasks: what the profiler saw of messages is a task on a stream of its own.

    Raises:
        TraceError: If a task ends before it starts, or there is no such task.
    """
    tasks = {act.label: (number, act) for number, act in enumerate(schedule.acts, 1) if isinstance(act, Task)}
    events = []
    for label, (start, end) in spans.items():
        if label not in tasks or not 0 <= start <= end:
            raise TraceError(text("trace.span", task=repr(label), start=start, end=end, tasks=" ".join(tasks)))
        number, task = tasks[label]
        events.append(
            Event("task", number, start, end, task.node, task.node, label.removeprefix(task.name), task.name, 0)
        )
    return Trace(origin, schedule, pairs(schedule), 0, tuple(sorted(events, key=lambda event: event.step)))
