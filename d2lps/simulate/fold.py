"""Folds: a step of many nodes as a trace of few, by merging those that do the same at the same times.

>>> from d2lps import cost, rails, ring
>>> gpus = [f"host{h}/gpu{g}" for h in range(64) for g in range(8)]
>>> folded = fold(cost.shared(ring(gpus), rails(hosts=64), "1 GB"))
>>> {name: len(nodes) for name, nodes in folded.members.items() if "gpu" in name}
{'*/gpu0×64': 64, '*/gpu1–6×384': 384, '*/gpu7×64': 64}

Messages and links are refined together: messages are of one class if they have one size and pass links of the same
classes, and links if they are equally fast and messages of the same classes pass them, equally many of each. So all
links of a class share their bandwidth in the same way, and one of them tells the times of all (a coarsest equitable
partition). Nodes are merged if they send and receive messages of the same classes over links of the same classes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain

from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.simulate.cost import Flow, StepCost, fluid, route_of, spread, step_flows
from d2lps.topology import Link, Topology
from d2lps.trace import Event, Trace, TraceError, plain
from d2lps.units import Bandwidth

FEW = 8  # so many different numbers in the names of merged nodes are written as a range, more of them as a star


@dataclass(frozen=True, repr=False)
class Folded(Trace):
    """The trace of one step with merged nodes, made by :func:`fold`.

    Its links stand for all links of their class (their ``count``), and its messages for all messages (their bytes are
    those of all). A message can lead from a merged node to itself: from one of the nodes to another.

    Args:
        origin, plan, topology, nbytes, events: As for :class:`~d2lps.Trace`; the plan says only which merged nodes hold
            something, and has no sends.
        members: Merged node → the nodes for which it stands, in the order of the topology.
        stands_for: The number of messages for which each event stands.
        loads: Link → the seconds that its messages need if they are alone on it.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stands_for: tuple[int, ...] = ()
    loads: Mapping[Link, float] = field(default_factory=dict)


def fold(trace: Trace, step: int = 1, apart: Iterable[str] = ()) -> Folded:
    """Return one step of a predicted trace, with all nodes merged that do the same at the same times.

    Args:
        trace: Predicted by ``cost.shared`` from a plan.
        step: The number of the step, counted from 1.
        apart: Nodes that are not merged, such as the GPUs of one host.

    Returns:
        A small trace, whose times are those of the step, from its beginning on; ``draw`` and ``watch`` show it.

    Raises:
        TraceError: For any other trace, for a step or node that it does not have, and if messages between the same two
            merged nodes take several ways, which one picture cannot show.

    Source: Paige and Tarjan, "Three partition refinement algorithms", SIAM Journal on Computing 16, 1987.

    Example:
        >>> from d2lps import all_to_all, cost, rails
        >>> gpus = [f"host{h}/gpu{g}" for h in range(16) for g in range(8)]
        >>> event = fold(cost.shared(all_to_all(gpus), rails(hosts=16), "128 GB"), step=65).events[0]
        >>> event.src, event.dst, event.nbytes  # the 128 messages of a step, 1/16384 of the bytes each
        ('*/gpu0–7×128', '*/gpu0–7×128', 1000000000)
    """
    if not isinstance(trace, Trace) or trace.origin != "shared" or not isinstance(trace.plan, Plan):
        raise TraceError(text("fold.predicted", given=repr(trace)))
    if type(step) is not int or not 1 <= step <= trace.steps:
        raise TraceError(text("fold.step", step=repr(step), steps=trace.steps))
    alone = {*apart}
    for node in alone:
        trace._require_node(node)
    return _Step(trace, trace.plan, step - 1, alone).folded()


class _Step:
    """The flows of a step, the links and limited nodes (places) that they pass, and the classes of both."""

    def __init__(self, trace: Trace, plan: Plan, i: int, apart: set[str]):
        self.trace, self.apart = trace, apart
        self.counts = step_flows(plan, i)
        self.ways = {flow: trace.topology.resources(flow.src, flow.dst) for flow in self.counts}
        self.flow, self.place = self._classes()

    def _classes(self) -> "tuple[dict[Flow, int], dict[Link | str, int]]":
        """Return flow → class and place → class: the coarsest for which equal flows pass equal places."""
        limits, places = self.trace.topology.limits, dict.fromkeys(chain(*self.ways.values()))
        flow = _numbered({x: (x.share, x.op, count) for x, count in self.counts.items()})
        place = _numbered({y: (y.bandwidth, y.latency, y.count) if isinstance(y, Link) else limits[y] for y in places})
        before, number = 0, 1
        while before < number:
            flow = _numbered({x: (flow[x], *(place[y] for y in way)) for x, way in self.ways.items()})
            passing: dict = {y: Counter() for y in places}
            for x, way in self.ways.items():
                for position, y in enumerate(way):
                    passing[y][flow[x], position] += 1
            place = _numbered({y: (place[y], frozenset(passing[y].items())) for y in places})
            before, number = number, len({*flow.values()}) + len({*place.values()})
        return flow, place

    def _groups(self) -> list[list[str]]:
        """Return the nodes that do the same: nodes of the plan, and those that messages pass, in their order.

        They send and receive the same, and are joined by links of the same classes to nodes that are alike, too.
        """
        kinds, limits = self.trace.topology.kinds, self.trace.topology.limits
        acts: dict[str, Counter] = {node: Counter() for node in self.trace.plan.nodes}
        for x, number in self.flow.items():
            acts[x.src][0, number] += 1
            acts[x.dst][1, number] += 1
        links = [(link.src, link.dst, number) for link, number in self.place.items() if isinstance(link, Link)]
        acts |= {node: Counter() for src, dst, _ in links for node in (src, dst) if node not in acts}
        look = _numbered(
            {
                node: node if node in self.apart else (kinds[node], limits.get(node), frozenset(did.items()))
                for node, did in acts.items()
            }
        )
        before = 0
        while before < (number := len({*look.values()})):
            near: dict[str, Counter] = {node: Counter() for node in look}
            for src, dst, link in links:
                near[src][0, link, look[dst]] += 1
                near[dst][1, link, look[src]] += 1
            look, before = _numbered({node: (look[node], frozenset(near[node].items())) for node in look}), number
        groups: dict[int, list[str]] = defaultdict(list)
        for node in kinds:
            if node in look:
                groups[look[node]].append(node)
        return list(groups.values())

    def _links(self, merged: Mapping[str, str]) -> dict[Link, Link]:
        """Return link → the link that stands for all of its class between the same merged nodes."""
        groups: dict[tuple[str, str], list[Link]] = defaultdict(list)
        for link in self.place:
            if isinstance(link, Link):
                groups[merged[link.src], merged[link.dst]].append(link)
        stands: dict[Link, Link] = {}
        for (src, dst), links in groups.items():
            if src == dst or len({self.place[link] for link in links}) > 1:
                raise TraceError(text("fold.several-ways", src=src, dst=dst))
            one = replace(links[0], src=src, dst=dst, count=sum(link.count for link in links))
            stands |= dict.fromkeys(links, one)
        return stands

    def _cost(self) -> StepCost:
        """Return the cost of the step, with one flow of each class."""
        counts: Counter[Flow] = Counter()
        first: dict[int, Flow] = {}
        for x, number in self.flow.items():
            counts[first.setdefault(number, x)] += self.counts[x]
        sizes, topology, nbytes = Counter(self.place.values()), self.trace.topology, self.trace.nbytes
        return StepCost(counts, spread(lambda x: route_of(x, topology, nbytes), self.place, sizes), fluid, tuple)

    def folded(self) -> Folded:
        """Return the trace with merged nodes."""
        trace, members = self.trace, {}
        for nodes in self._groups():
            name = _name(nodes)
            while name in members:
                name += "′"
            members[name] = tuple(nodes)
        merged = {node: name for name, nodes in members.items() for node in nodes}
        links, alike = self._links(merged), defaultdict(list)
        ways: dict[tuple[str, str], tuple[Link, ...]] = {}
        for x, way in self.ways.items():
            ends = merged[x.src], merged[x.dst]
            over = tuple(links[y] for y in way if isinstance(y, Link))
            if ways.setdefault(ends, over) != over:
                raise TraceError(text("fold.several-ways", src=ends[0], dst=ends[1]))
            alike[ends, self.flow[x]].append(x)
        cost = self._cost()
        takes = {self.flow[x]: float(seconds) for x, seconds in cost.by_flow().items()}
        stands_for = [sum(self.counts[x] for x in flows) for flows in alike.values()]
        events = [
            Event("send", 1, 0.0, takes[number], *ends, "g", flows[0].op, self._bytes(flows[0], count))
            for ((ends, number), flows), count in zip(alike.items(), stands_for, strict=True)
        ]
        needs: Counter = Counter()
        for load in cost.loads:
            needs.update({number: load.count * need for number, need in load.needs.items()})
        loads = {one: float(needs[self.place[link]]) for link, one in links.items()}
        own = [name for name, nodes in members.items() if nodes[0] in {*trace.plan.nodes}]
        # A plan without sends: what the merged nodes send cannot be read as what single nodes would.
        plan = Plan(own, {"g": 1}, [[]], wants=[])
        place = self._topology(members, dict.fromkeys(links.values()), ways)
        return Folded("shared", plan, place, trace.nbytes, tuple(events), members, tuple(stands_for), loads)

    def _bytes(self, flow: Flow, count: int) -> float:
        return plain(Fraction(*flow.share) * self.trace.nbytes * count)

    def _topology(self, members: Mapping[str, tuple[str, ...]], links: Iterable[Link], ways: Mapping) -> Topology:
        topology = self.trace.topology
        kinds = {name: topology.kinds[nodes[0]] for name, nodes in members.items()}
        limits = {name: topology.limits[nodes[0]] for name, nodes in members.items() if nodes[0] in topology.limits}
        for name, limit in limits.items():
            count = len(members[name])
            through, adding, port = (
                rate and Bandwidth(rate * count) for rate in (limit.through, limit.adding, limit.port)
            )
            limits[name] = replace(limit, through=through, adding=adding, port=port)
        folded = Topology(topology.name, kinds, links, limits=limits)
        folded._routes.update(ways)  # also those from a merged node to itself
        return folded


def _numbered(colors: Mapping[Hashable, Hashable]) -> dict:
    """Return the same keys, with a number for each different color."""
    numbers: dict[Hashable, int] = {}
    return {key: numbers.setdefault(color, len(numbers)) for key, color in colors.items()}


def _name(nodes: Sequence[str]) -> str:
    """Return a name for merged nodes: their common name, with ranges or stars for what differs."""
    if len(nodes) == 1:
        return nodes[0]
    parts = [re.split(r"(\d+)", node) for node in nodes]
    if len({(*words[::2],) for words in parts}) > 1:
        return f"{nodes[0]}…×{len(nodes)}"
    name = list(parts[0])
    for i in range(1, len(name), 2):
        numbers = {int(words[i]) for words in parts}
        low, high = min(numbers), max(numbers)
        if high > low:
            name[i] = f"{low}–{high}" if high - low < min(FEW, len(numbers)) else "*"
    whole, slash, local = "".join(name).rpartition("/")
    return f"{'*' if set('*–') & set(whole) else whole}{slash}{local}×{len(nodes)}"
