"""Judge a reading of a trace: from when to when was each of the seven steps under way?

The traces are like measured ones: no two messages take equally long, and who has what it needs goes on, without
waiting for machines that are slower. Their times are made up, of what the cost model says.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from d2lps import Trace, cost, hierarchical, machines, sharded
from d2lps.notebook.grading import call, failure, number, time_text, unlike

UPDATED = 2e9  # bytes per second that a server updates
STEPS = (3, 4, 5, 6, 7)


@dataclass(frozen=True)
class StepsCase:
    """Machines with these numbers and ``gpus`` each, and ``k`` servers by themselves or on the first machines.

    In each machine, ``leader`` sums the gradients and sends the sum over the network.
    """

    hosts: tuple[int, ...]
    gpus: int
    k: int
    chunks: int = 1
    colocated: bool = False
    updates: bool = True
    leader: str = "cpu"

    @property
    def label(self) -> str:
        chunks = f", c = {self.chunks}" if self.chunks > 1 else ""
        return f"m = {len(self.hosts)}, {self.gpus} GPU, k = {self.k}{chunks}"

    @cached_property
    def trace(self) -> Trace:
        """The argument of the answer."""
        leaders = [f"host{i}/{self.leader}" for i in self.hosts]
        servers = leaders[: self.k] if self.colocated else [f"server{j}" for j in range(self.k)]
        update = ("sgd", {"lr": 0.1}) if self.updates else None
        plan = sharded(leaders, servers, self.chunks, update)
        if self.gpus:
            inside = {node: [f"{host_of(node)}/gpu{j}" for j in range(self.gpus)] for node in leaders}
            plan = hierarchical(inside, plan)
        alone = 0 if self.colocated else self.k
        place = machines(max(self.hosts) + 1, self.gpus, "400 Mbit/s", "2 GB/s", servers=alone)
        return uneven(cost.shared(plan, place, "20 MB"))


def uneven(predicted: Trace) -> Trace:
    """The same events, played so that each node continues when it has its inputs; some messages take longer."""
    free: dict[str, float] = defaultdict(lambda: 0.01)  # node → until when it is occupied
    events = []
    for at_step in range(1, predicted.steps + 1):
        until = dict(free)
        for event in (event for event in predicted.events if event.step == at_step):
            slower = 1 + 0.07 * (len(events) * 5 % 7)
            if event.kind == "update":  # when everything has arrived
                start = until.get(event.src, free[event.src])
                end = start + event.nbytes / UPDATED
            else:
                start = free[event.src] + 0.0004 * (len(events) % 3)
                end = start + slower * (event.end - event.start)
            events.append(replace(event, start=start, end=end))
            for node in (event.src, event.dst):
                until[node] = max(until.get(node, 0.0), end)
        free.update(until)
    return Trace("made up", predicted.plan, predicted.topology, predicted.nbytes, tuple(events))


def host_of(node: str) -> str:
    return node.partition("/")[0]


def step_of(event) -> int:
    """The number of the step to which an event belongs."""
    if event.kind == "update":
        return 5
    inside = host_of(event.src) == host_of(event.dst)
    return {("add", True): 3, ("add", False): 4, ("copy", False): 6, ("copy", True): 7}[event.op, inside]


def judge(case: StepsCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    trace = case.trace
    parts = defaultdict(list)
    for event in trace.events:
        parts[step_of(event)].append(event)
    right = {step: span(parts[step]) for step in STEPS}
    got = _seconds(case, call(case, answer, trace))
    for step in STEPS:
        if not near(got[step], right[step], trace):
            shown = unlike(got[step], right[step], time_text)
            values = {"step": step, "got": shown[0], "right": shown[1]}
            said = "step-took"
            if parts[step]:
                values["start"] = time_text(min(event.start for event in parts[step]))
                values["end"] = time_text(max(event.end for event in parts[step]))
            else:
                said = "step-took-nothing"
            raise failure(_mistake(trace, parts, got, right, step), said, case, **values)
    whole = {f"t{step}": time_text(right[step]) for step in STEPS}
    return whole | {"case": case.label, "time": time_text(trace.duration), "sum": time_text(sum(right.values()))}


def span(events: list) -> float:
    """Seconds from the first start to the last end."""
    return max(event.end for event in events) - min(event.start for event in events) if events else 0.0


def near(one: float, other: float, trace: Trace) -> bool:
    return abs(one - other) <= 1e-6 * trace.duration


def _seconds(case: StepsCase, given: object) -> dict[int, float]:
    if not isinstance(given, dict):
        raise failure("wrong-type", "not-seconds", case, type=type(given).__name__)
    if given and set(given) <= set(STEPS) and not any(given.values()):
        raise failure("todo", "no-seconds", case)
    for step in STEPS:
        if step not in given:
            raise failure("differs", "step-missing", case, step=step)
    found = {}
    for step, seconds in given.items():
        if step not in STEPS:
            raise failure("differs", "step-strange", case, step=repr(step))
        try:
            found[step] = number(seconds)
        except TypeError:
            raise failure("wrong-type", "step-no-number", case, step=step, got=type(seconds).__name__) from None
    return found


def _mistake(trace: Trace, parts: Mapping, got: Mapping, right: Mapping, step: int) -> str:
    """Name the typical thought that leads to this answer for the step."""
    events, said = parts[step], got[step]
    if not events or not said:
        return "differs"
    alike = [e for e in trace.events if e.kind == events[0].kind and e.op == events[0].op]
    for begin in (lambda node: node[:5], lambda node: node[:6]):
        some = [e for e in alike if (begin(e.src) == begin(e.dst)) == (step in (3, 7))]
        if near(said, span(some), trace):
            return "prefix"
    back = {3: 7, 4: 6, 6: 4, 7: 3}.get(step)
    thoughts = {
        "sums": [sum(event.end - event.start for event in events)],
        "until-the-end": [max(event.end for event in events)],
        "directions": [right[back], span(events + parts[back])] if back else [],
        "hosts-mixed": [span(alike)],
        "step-by-number": [end - start for start, end in trace.step_times()],
    }
    for mistake, values in thoughts.items():
        if any(near(said, value, trace) and not near(value, right[step], trace) for value in values):
            return mistake
    return "differs"
