"""A trace: what happened when, predicted or measured, with all that is needed to count and to draw it.

>>> from d2lps import Trace, aggregate_at, cost, pcie_server
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> trace = cost.shared(aggregate_at(gpus, "gpu0"), pcie_server(), "160 MB")
>>> trace.duration
0.06
>>> trace.bytes_sent("gpu0"), trace.messages("gpu0"), trace.steps
(480000000, 3, 2)
>>> Trace.from_json(trace.to_json()) == trace
True
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction

from d2lps.plan import Plan
from d2lps.steps import Send, Update, sends
from d2lps.topology import Link, Topology, kind_of
from d2lps.units import Bandwidth, show_seconds


class TraceError(ValueError):
    """A trace that cannot be read, or that does not know what is asked of it."""


@dataclass(frozen=True)
class Event:
    """One thing that took time: a message (kind ``"send"``) or an optimizer step (``"update"``).

    Times are seconds from the beginning of the trace, ``nbytes`` is what travelled (a prediction may say
    fractions of a byte). ``op`` is ``"add"`` or ``"copy"`` for a message, the rule's name for an update, whose
    ``src`` and ``dst`` are the node that updates. ``step`` counts from 1.
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


@dataclass(frozen=True)
class Trace:
    """Timed events of one run of a plan, and where it ran. Equal by content; JSON in and out.

    origin
        how it came about: ``"shared"`` and ``"ideal"`` are predictions of :mod:`d2lps.cost`; a measured one
        says on what, such as ``"cpu ×5"``.
    topology
        the nodes with their kinds, and the links. A run without a topology has a link per pair used.
    nbytes
        the size of the gradient in bytes.
    """

    origin: str
    plan: Plan
    topology: Topology
    nbytes: int
    events: tuple[Event, ...]

    @property
    def measured(self) -> bool:
        """Whether it was run, rather than predicted."""
        return self.origin not in ("ideal", "shared")

    @property
    def duration(self) -> float:
        """Seconds from the beginning to the last event's end."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.plan.steps)

    def step_times(self) -> list[tuple[float, float]]:
        """(start, end) of each step, in seconds."""
        spans: list[tuple[float, float]] = []
        for number in range(1, self.steps + 1):
            inside = [(e.start, e.end) for e in self.events if e.step == number]
            before = spans[-1][1] if spans else 0.0
            spans.append((min((s for s, _ in inside), default=before), max((e for _, e in inside), default=before)))
        return spans

    def bytes_sent(self, node: str) -> float:
        """Bytes that left ``node``."""
        return plain(sum(Fraction(e.nbytes) for e in self._messages() if e.src == self._known(node)))

    def bytes_received(self, node: str) -> float:
        """Bytes that arrived at ``node``."""
        return plain(sum(Fraction(e.nbytes) for e in self._messages() if e.dst == self._known(node)))

    def messages(self, node: str) -> int:
        """The number of messages that ``node`` sent."""
        return sum(e.src == self._known(node) for e in self._messages())

    def occupied(self) -> dict["Link | str", list[Event]]:
        """The messages over each link, and through each limited node, in order of their start."""
        found: dict[Link | str, list[Event]] = {}
        for event in sorted(self._messages(), key=lambda e: (e.start, e.end)):
            for resource in self.topology.resources(event.src, event.dst):
                found.setdefault(resource, []).append(event)
        return found

    def busy(self, src: str, dst: str) -> float:
        """Seconds during which the link from ``src`` to ``dst`` carries anything."""
        link = next((k for k in self.topology.links if (k.src, k.dst) == (src, dst)), None)
        if link is None:
            raise TraceError(f"there is no link {src}→{dst} on {self.topology.name}")
        total = until = 0.0
        for event in self.occupied().get(link, []):
            total += max(0.0, event.end - max(event.start, until))
            until = max(until, event.end)
        return total

    def _messages(self) -> Iterator[Event]:
        return (event for event in self.events if event.kind == "send")

    def _known(self, node: str) -> str:
        if node not in self.plan.nodes:
            raise TraceError(f"there is no node {node!r} in this trace (nodes: {' '.join(self.plan.nodes)})")
        return node

    def __repr__(self) -> str:
        return f"<Trace: {self.origin}, {len(self.events)} events, {self.steps} steps, {show_seconds(self.duration)}>"

    def to_json(self) -> str:
        """The trace as JSON text; :meth:`from_json` gives an equal trace back."""
        place = self.topology
        return json.dumps({
            "d2lps": "trace", "origin": self.origin, "nbytes": self.nbytes, "plan": json.loads(self.plan.to_json()),
            "topology": {"name": place.name, "kinds": dict(place.kinds), "through": _rates(place.through),
                         "links": [asdict(link) | {"bandwidth": _rate(link.bandwidth)} for link in place.links]},
            "events": [[getattr(event, f.name) for f in fields(Event)] for event in self.events],
        })  # fmt: skip

    @classmethod
    def from_json(cls, source: str) -> "Trace":
        """The trace that :meth:`to_json` wrote. Raises TraceError if ``source`` is something else."""
        try:
            data = json.loads(source)
            if data["d2lps"] != "trace":
                raise ValueError(f"it says d2lps = {data['d2lps']!r}")
            place = data["topology"]
            links = [Link(**link | {"bandwidth": Bandwidth(link["bandwidth"])}) for link in place["links"]]
            through = {node: Bandwidth(rate) for node, rate in place["through"].items()}
            topology = Topology(place["name"], place["kinds"], tuple(links), through)
            plan = Plan.from_json(json.dumps(data["plan"]))
            trace = cls(data["origin"], plan, topology, data["nbytes"], tuple(Event(*e) for e in data["events"]))
            for event in trace.events:
                if not 0 <= event.start <= event.end:
                    raise ValueError(f"an event ends before it starts: {event}")
            return trace
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"this is not a trace that d2lps wrote ({type(error).__name__}: {error})") from None

    def to_chrome(self) -> str:
        """The trace in the Chrome trace format, for chrome://tracing and Perfetto: a row per node that sends."""
        rows = {node: i for i, node in enumerate(self.plan.nodes)}
        events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": node}}
                  for node, i in rows.items()]  # fmt: skip
        events += [
            {"ph": "X", "name": f"{e.key} {e.op} {e.src}→{e.dst}", "cat": e.kind, "pid": 0, "tid": rows[e.src],
             "ts": e.start * 1e6, "dur": (e.end - e.start) * 1e6, "args": {"step": e.step, "bytes": e.nbytes}}
            for e in self.events
        ]  # fmt: skip
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def pairs(plan: Plan) -> Topology:
    """A link for each pair that ``plan`` uses: where a run is drawn when no topology is known."""
    used = dict.fromkeys((send.src, send.dst) for step in plan.steps for send in sends(step))
    links = tuple(Link(src, dst, Bandwidth("inf")) for src, dst in used)
    return Topology("pairs", {node: kind_of(node) for node in plan.nodes}, links)


def event(act: "Send | Update", step: int, start: float, end: float, nbytes: float) -> Event:
    """The event of one act of a plan."""
    if isinstance(act, Send):
        return Event("send", step, start, end, act.src, act.dst, act.key, act.op, nbytes)
    return Event("update", step, start, end, act.node, act.node, act.key, act.rule, nbytes)


def plain(number: Fraction) -> "int | float":
    """An exact number of bytes as an int where it is whole, else as a float."""
    return int(number) if number.denominator == 1 else float(number)


def _rate(rate: float) -> "float | str":
    return "inf" if rate == float("inf") else float(rate)  # JSON has no infinity


def _rates(through: Mapping[str, float]) -> dict[str, "float | str"]:
    return {node: _rate(rate) for node, rate in through.items()}
