"""A trace: timed events, predicted or measured, with everything needed to count and to draw them."""

import json
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from itertools import accumulate, islice
from pathlib import Path
from typing import Protocol

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.acts import Send, Update, sends, updates
from d2lps.plan.lazy import Described, Lazy
from d2lps.plan.optimizers import RULES
from d2lps.plan.plan import Plan
from d2lps.profile import read, seen
from d2lps.schedule import Schedule, Task
from d2lps.schedule.acts import Size, messages_of
from d2lps.topology import Link, Topology, kind_of
from d2lps.units import Bandwidth, show_seconds

OPS = {"send": ("add", "copy", "move"), "update": RULES, "gone": ("gone",)}  # by kind of event
MOST = 1e18  # seconds or bytes: more than any trace has, and still a number that can be drawn


class TraceError(Brief, ValueError):
    """A trace that cannot be read, or that has no such node or link."""


@dataclass(frozen=True)
class Event:
    """A message, an optimizer step, or the absence of a dead node, with its times.

    Args:
        kind: ``"send"`` for a message, ``"update"`` for an optimizer step, ``"gone"`` for a node that is dead.
        step: Counted from 1.
        start, end: Seconds from the beginning of the trace.
        src, dst: Sender and receiver of a message; otherwise both are the node itself.
        key: The key that the event concerns.
        op: ``"add"`` or ``"copy"`` for a message, the rule's name for an update, ``"gone"``.
        nbytes (int or float): Bytes that travelled; a prediction may have fractions of a byte.
        carries: The workers whose gradients a message carries, if the run recorded them; None if the plan determines
            them.

    Example:
        >>> from d2lps import cost, pcie_server, ring
        >>> trace = cost.ideal(ring(["gpu0", "gpu1"]), pcie_server(gpus=2), "16 GB")
        >>> event = trace.events[0]
        >>> event.src, event.dst, event.op, event.nbytes, event.end
        ('gpu0', 'gpu1', 'add', 8000000000, 0.5)
    """

    kind: str
    step: int
    start: float
    end: float
    src: str
    dst: str
    key: str
    op: str
    nbytes: float
    carries: tuple[str, ...] | None = None


class StepCost(Protocol):
    """The predicted cost of a step: its exact seconds, and, computed on demand, the seconds of each send."""

    duration: Fraction

    @property
    def takes(self) -> Sequence[Fraction]:
        """The seconds of each send, latency included."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False, repr=False)
class Predicted(Described):
    """The events of a prediction, made on demand: a ring of 1024 nodes has two million of them.

    ``starts`` has the exact second at which each step starts, ``costs`` its cost (steps that are alike share one), and
    ``spans`` its (start, end).
    """

    plan: Plan
    total: int
    starts: tuple[Fraction, ...]
    costs: tuple[StepCost, ...]
    spans: tuple[tuple[float, float], ...] = field(init=False)
    _before: list[int] = field(init=False)  # how many events there are before each step, and in all

    def __post_init__(self):
        timed = zip(self.starts, self.costs, strict=True)
        object.__setattr__(self, "spans", tuple((float(at), float(at + cost.duration)) for at, cost in timed))
        steps = self.costs if isinstance(self.plan.steps, Lazy) else self.plan.steps  # lazy ones have sends only
        object.__setattr__(self, "_before", [0, *accumulate(map(len, steps))])

    def step(self, i: int) -> Iterator[Event]:
        """Yield the events of step i (from 0): its sends as written, then its updates, which take no time."""
        acts, takes, (start, end) = self.plan.steps[i], self.costs[i].takes, self.spans[i]
        times = {take: float(self.starts[i] + take) for take in {*takes}}
        for send, take in zip(sends(acts), takes, strict=True):
            yield event(send, i + 1, start, times[take], plain(self.plan.share[send.key] * self.total))
        for act in updates(acts):
            yield event(act, i + 1, end, end, plain(self.plan.share[act.key] * self.total))

    def __len__(self) -> int:
        return self._before[-1]

    def __iter__(self) -> Iterator[Event]:
        return (event for i in range(len(self.starts)) for event in self.step(i))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        number = range(len(self))[index]
        i = bisect_right(self._before, number) - 1
        return next(islice(self.step(i), number - self._before[i], None))


@dataclass(frozen=True)
class Trace:
    """The timed events of one run of a plan, and its topology. Equal by content; JSON in and out.

    Args:
        origin: ``"shared"`` or ``"ideal"`` for a prediction of :mod:`d2lps.cost`; the devices of a measured run, such
            as ``"cpu ×5"``, and which rank played which node if their names differ: ``"gloo ×2 (rank0 = a, rank1 =
            b)"``.
        plan: The plan that ran.
        topology: The nodes with their kinds, and the links. A run without a topology has a link per pair used.
        nbytes: The size of the gradient in bytes.
        events: A tuple; for a plan with lazy steps, a sequence that makes its events on demand.

    Example:
        >>> from d2lps import cost, nvswitch, ring
        >>> trace = cost.shared(ring(["gpu0", "gpu1", "gpu2"]), nvswitch(gpus=3), "900 MB")
        >>> trace.steps, trace.duration, trace.bytes_sent("gpu0"), Trace.from_json(trace.to_json()) == trace
        (4, 0.008, 1200000000, True)
    """

    origin: str
    plan: "Plan | Schedule"
    topology: Topology
    nbytes: int
    events: Sequence[Event]

    @property
    def measured(self) -> bool:
        """True for a run, False for a prediction."""
        return self.origin not in ("ideal", "shared")

    @property
    def duration(self) -> float:
        """Seconds from the beginning to the last event's end."""
        if isinstance(self.events, Predicted):
            return max((end for _, end in self.events.spans), default=0.0)
        return max((event.end for event in self.events), default=0.0)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.plan.steps)

    def step_times(self) -> list[tuple[float, float]]:
        """Return the start and end of each step.

        Returns:
            Seconds from the beginning of the trace.
        """
        if isinstance(self.events, Predicted):
            return list(self.events.spans)
        inside: list[list[Event]] = [[] for _ in self.plan.steps]
        for event in self.events:
            if event.kind != "gone":
                inside[event.step - 1].append(event)
        spans: list[tuple[float, float]] = []
        for step in inside:
            before = spans[-1][1] if spans else 0.0
            spans.append((min((e.start for e in step), default=before), max((e.end for e in step), default=before)))
        return spans

    def bytes_sent(self, node: str) -> float:
        """Return the bytes that left ``node``.

        Args:
            node: One of the plan's.

        Returns:
            (int or float): Whole numbers as int.

        Raises:
            TraceError: For a node that is not in the plan.
        """
        self._require_node(node)
        return plain(sum((Fraction(e.nbytes) for e in self._messages() if e.src == node), Fraction(0)))

    def bytes_received(self, node: str) -> float:
        """Return the bytes that arrived at ``node``.

        Args:
            node: One of the plan's.

        Returns:
            (int or float): Whole numbers as int.

        Raises:
            TraceError: For a node that is not in the plan.
        """
        self._require_node(node)
        return plain(sum((Fraction(e.nbytes) for e in self._messages() if e.dst == node), Fraction(0)))

    def messages(self, node: str) -> int:
        """Return the number of messages that ``node`` sent.

        Args:
            node: One of the plan's.

        Returns:
            Updates are not counted.

        Raises:
            TraceError: For a node that is not in the plan.
        """
        self._require_node(node)
        return sum(e.src == node for e in self._messages())

    def resting(self) -> list[str]:
        """Return the network cards of the topology by which no message leaves its host.

        Returns:
            Their names, in the topology's order.
        """
        rest = dict.fromkeys(self.topology.nics.values())
        steps = self.plan.steps
        kinds = {steps.kind(i) if isinstance(steps, Lazy) else i: i for i in range(len(steps))}
        for i in kinds.values():
            for send in (send for act in (steps[i] if rest else ()) for send in messages_of(act)):
                if send.src.partition("/")[0] != send.dst.partition("/")[0]:
                    rest.pop(self.topology.nics.get(send.src, ""), None)
        return [*rest]

    def bubble(self, relative: bool = False) -> float:
        """Return which part of the devices' time is idle, in the trace of a schedule.

        Args:
            relative: False: idle time as a part of the total, (p−1)/(m+p−1) for GPipe with p stages and m
                micro-batches. True: idle time relative to the ideal, which is the time for computing alone, (p−1)/m for
                GPipe.

        Returns:
            0 if every device computes all the time.

        Raises:
            TraceError: If this is the trace of a plan, or of a schedule without tasks.
        """
        computing = sum(event.end - event.start for event in self.events if event.kind == "task")
        if not isinstance(self.plan, Schedule) or not computing:
            raise TraceError(text("trace.no-tasks"))
        total = self.duration * len(self.plan.nodes)
        return (total - computing) / (computing if relative else total)

    def memory(self, node: str) -> list[tuple[float, Size]]:
        """Return the bytes on a node over time, in the trace of a schedule.

        A value is there from the start of the task or message that brings it to the end of the act that frees it.

        Args:
            node: One of the schedule's.

        Returns:
            (list of (float, int)): (seconds, bytes from then on), from second 0 on.

        Raises:
            TraceError: For a node that is not in the schedule, and for the trace of a plan.
        """
        self._require_node(node)
        if not isinstance(self.plan, Schedule):
            raise TraceError(text("trace.no-tasks"))
        spans: dict[int, tuple[float, float]] = {}
        for event in self.events:
            start, end = spans.get(event.step, (event.start, event.end))
            spans[event.step] = min(start, event.start), max(end, event.end)
        changes: list[tuple[float, int, Size]] = []
        for step, name, comes in self.plan.lives(node):
            start, end = spans.get(step, (0.0, 0.0))
            size = self.plan.size(name)
            changes.append((start, 1, size) if comes else (end, 0, -size))  # what is freed at a time goes first
        amounts: dict[float, Size] = {0.0: 0}
        total: Size = 0
        for time, _, change in sorted(changes):
            total += change
            amounts[time] = total
        return sorted(amounts.items())

    def peak_memory(self, node: str) -> Size:
        """Return the most bytes that a node has at one time: see :meth:`memory`.

        Args:
            node: One of the schedule's.

        Returns:
            (int): In a prediction without messages that arrive early, what ``Schedule.peak`` says.

        Raises:
            TraceError: As for :meth:`memory`.
        """
        return max(amount for _, amount in self.memory(node))

    def occupied(self) -> dict["Link | str", list[Event]]:
        """Return the messages over each link and through each limited node.

        Returns:
            Events in order of their start; a link or node that no message uses is absent.
        """
        users: dict[Link | str, list[Event]] = {}
        for event in sorted(self._messages(), key=lambda e: (e.start, e.end)):
            for resource in self.topology.resources(event.src, event.dst):
                users.setdefault(resource, []).append(event)
        return users

    def busy(self, src: str, dst: str) -> float:
        """Return the seconds during which a message is under way on a link, latency included.

        Args:
            src, dst: The nodes that the link joins.

        Returns:
            Each moment counts once, even with several messages under way.

        Raises:
            TraceError: If there is no such link.
        """
        link = next((k for k in self.topology.links if (k.src, k.dst) == (src, dst)), None)
        if link is None:
            raise TraceError(text("trace.no-link", src=src, dst=dst, name=self.topology.name))
        total = until = 0.0
        for event in self.occupied().get(link, []):
            total += max(0.0, event.end - max(event.start, until))
            until = max(until, event.end)
        return total

    def _messages(self) -> Iterator[Event]:
        return (event for event in self.events if event.kind == "send")

    def _require_node(self, node: str) -> None:
        if node not in self.plan.nodes:
            raise TraceError(text("trace.no-node", node=repr(node), nodes=" ".join(self.plan.nodes)))

    def __repr__(self) -> str:
        rest, cards = len(self.resting()), len({*self.topology.nics.values()})
        resting = f", {rest} of {cards} network cards send nothing" if 0 < rest < cards else ""
        took = show_seconds(self.duration)
        return f"<Trace: {self.origin}, {len(self.events)} events, {self.steps} steps, {took}{resting}>"

    def to_json(self) -> str:
        """Return the trace as JSON text.

        Returns:
            Text from which :meth:`from_json` makes an equal trace.
        """
        topology = self.topology
        return json.dumps(
            {
                "d2lps": "trace",
                "origin": self.origin,
                "nbytes": self.nbytes,
                "plan": json.loads(self.plan.to_json()),
                "topology": {
                    "name": topology.name,
                    "kinds": dict(topology.kinds),
                    **{limit: _rates(getattr(topology, limit)) for limit in ("through", "adding", "overhead", "ports")},
                    **{limit: getattr(topology, limit) for limit in ("computing", "memory")},
                    "links": [asdict(link) | {"bandwidth": _rate(link.bandwidth)} for link in topology.links],
                },
                "events": [[getattr(event, f.name) for f in fields(Event)] for event in self.events],
            }
        )

    @classmethod
    def from_json(cls, source: str) -> "Trace":
        """Return the trace that :meth:`to_json` wrote.

        Args:
            source: JSON text.

        Returns:
            Its plan is checked like any other, and its events can have been.

        Raises:
            TraceError: If ``source`` is something else.
        """
        try:
            data = json.loads(source)
            if data["d2lps"] != "trace":
                raise ValueError(f"it says d2lps = {data['d2lps']!r}")
            fields = data["topology"]
            links = [Link(**link | {"bandwidth": Bandwidth(link["bandwidth"])}) for link in fields["links"]]
            limits = [fields["through"], fields.get("adding", {}), fields.get("ports", {})]  # old traces have one
            through, adding, ports = ({node: Bandwidth(rate) for node, rate in rates.items()} for rates in limits)
            overhead = fields.get("overhead", {})
            more = {limit: fields.get(limit) for limit in ("computing", "memory")}
            topology = Topology(fields["name"], fields["kinds"], links, through, adding, overhead, ports, **more)
            kind = Schedule if data["plan"].get("d2lps") == "schedule" else Plan
            plan = kind.from_json(json.dumps(data["plan"]))
            events = [
                Event(*row[:9], *(None if carries is None else (*carries,) for carries in row[9:]))
                for row in data["events"]
            ]
            trace = cls(data["origin"], plan, topology, data["nbytes"], tuple(events))
            _require_sound(trace)
            return trace
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise TraceError(text("trace.not-a-trace", why=f"{type(error).__name__}: {error}")) from None

    @classmethod
    def from_kineto(cls, files: "str | Path | Iterable[str | Path]", step: int | None = None) -> "Trace":
        """Return one step of profiles of torch.profiler, to draw and to play.

        Args:
            files: Chrome traces of one run, a file per rank, as ``export_chrome_trace`` writes them, also gzipped; of
                any size, as they are not read into memory whole.
            step: The number in ``ProfilerStep#7``; the middle one if left out.

        Returns:
            A node per stream or thread. Its tasks are M (products of matrices), K (other kernels or operators), C
                (copies) and A (a message, with a number that all ranks of a collective share). A profile does not say
                which way bytes went: here each rank of a collective sends to the next one, from when the last came.

        Raises:
            ProfileError: For a file that is no such profile, two of one rank, and a step that not all have.

        Example:
            >>> trace = Trace.from_kineto(["rank0.json.gz", "rank1.json.gz"])  # doctest: +SKIP
        """
        profiles = read([files] if isinstance(files, str | Path) else files)
        schedule, times = seen(profiles, step)
        events = []
        for number, (act, (start, end, nbytes)) in enumerate(zip(schedule.acts, times, strict=True), 1):
            if isinstance(act, Task):
                events.append(Event("task", number, start, end, act.node, act.node, act.of, act.name, 0))
            elif isinstance(act, Send):
                events.append(event(act, number, start, end, nbytes))
        kind = "GPU" if profiles[0].gpu else "CPU"
        return cls(f"torch.profiler, {kind} ×{len(profiles)}", schedule, pairs(schedule), 0, tuple(events))

    def to_chrome(self) -> str:
        """Return the trace in the Chrome trace format, for Perfetto and chrome://tracing.

        Returns:
            JSON text: a row per node that sends, times in microseconds.
        """
        rows = {node: i for i, node in enumerate(self.plan.nodes)}
        events = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": node}} for node, i in rows.items()
        ]
        events += [
            {
                "ph": "X",
                "name": f"{e.key} {e.op} {e.src}→{e.dst}",
                "cat": e.kind,
                "pid": 0,
                "tid": rows[e.src],
                "ts": e.start * 1e6,
                "dur": (e.end - e.start) * 1e6,
                "args": {"step": e.step, "bytes": e.nbytes},
            }
            for e in self.events
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _require_sound(trace: Trace) -> None:
    """Raise ValueError if ``trace`` contains anything impossible."""
    words = trace.origin, trace.topology.name
    if not all(isinstance(word, str) and word.isprintable() for word in words):
        raise ValueError(f"its origin is {trace.origin!r}, on {trace.topology.name!r}")
    if isinstance(trace.nbytes, bool) or not isinstance(trace.nbytes, int) or not 0 <= trace.nbytes < MOST:
        raise ValueError(f"it is about {trace.nbytes!r} bytes")
    nodes = set(trace.plan.nodes)
    for node in nodes:
        trace.topology.require_node(node)
    for event in trace.events:
        numbers = event.start, event.end, event.nbytes
        if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
            raise ValueError(f"not a number in {event}")
        if not (0 <= event.start <= event.end < MOST and 0 <= event.nbytes < MOST):
            raise ValueError(f"times or bytes that cannot be in {event}")
        if event.kind == "task" and isinstance(trace.plan, Schedule):
            if type(event.step) is not int or not 1 <= event.step <= trace.steps or event.src != event.dst:
                raise ValueError(f"no such task: {event}")
            continue
        if event.kind not in OPS or type(event.step) is not int or not 1 <= event.step <= trace.steps:
            raise ValueError(f"no such kind or step: {event}")
        if event.op not in OPS[event.kind]:
            raise ValueError(f"no such op: {event}")
        if (event.kind == "send") == (event.src == event.dst):
            raise ValueError(f"from and to do not fit: {event}")
        keys: Container[str] = trace.plan.share if isinstance(trace.plan, Plan) else trace.plan.sizes
        if event.key not in keys or {event.src, event.dst, *(event.carries or ())} - nodes:
            raise ValueError(f"a key or node that is not in the plan: {event}")
        trace.topology.route(event.src, event.dst)


def pairs(plan: "Plan | Schedule") -> Topology:
    """Return a topology with a link for each pair that ``plan`` uses, for runs whose topology is unknown."""
    used = dict.fromkeys(send[:2] for step in plan.steps for act in step for send in messages_of(act))
    links = tuple(Link(src, dst, Bandwidth("inf")) for src, dst in used)
    return Topology("pairs", {node: kind_of(node) for node in plan.nodes}, links)


def event(act: "Send | Update", step: int, start: float, end: float, nbytes: float) -> Event:
    """Return the event of one act of a plan."""
    if isinstance(act, Send):
        return Event("send", step, start, end, act.src, act.dst, act.key, act.op, nbytes)
    return Event("update", step, start, end, act.node, act.node, act.key, act.rule, nbytes)


def plain(number: Fraction) -> "int | float":
    """Return an exact number of bytes as an int if it is whole, else as a float."""
    return int(number) if number.denominator == 1 else float(number)


def _rate(rate: float) -> "float | str":
    return "inf" if rate == float("inf") else float(rate)  # JSON has no infinity


def _rates(rates: Mapping[str, float]) -> dict[str, "float | str"]:
    return {node: _rate(rate) for node, rate in rates.items()}
