"""The cost of a plan on a topology: predicted traces.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> plan = aggregate_at(["gpu0", "gpu1", "gpu2", "gpu3"], "gpu0")
>>> cost.ideal(plan, pcie_server(), "160 MB").duration
0.02
>>> cost.shared(plan, pcie_server(), "160 MB").duration
0.06

The difference between the two numbers is a lesson by itself: the speed of a link for one message, and for several
messages at once. In both models steps are barriers: the next step begins when the last message of this one has arrived.
A message starts at the beginning of its step, takes all links of its route at once (nothing is stored and forwarded),
and arrives the route's latency after its last byte has left. Updating takes no time; adding takes time only if the
topology limits the speed at which a node adds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

from d2lps import units
from d2lps.messages import text
from d2lps.plan.acts import sends
from d2lps.plan.lazy import LARGE, Lazy
from d2lps.plan.plan import Plan, require_plan
from d2lps.schedule import Schedule
from d2lps.simulate.timeline import timeline
from d2lps.topology import Link, Topology, TopologyError
from d2lps.topology.graph import total_latency
from d2lps.topology.turns import Turn, turning
from d2lps.trace import Predicted, Trace


def ideal(plan: Plan, topology: Topology, nbytes: "int | str") -> Trace:
    """Predict the trace of a plan as if each message had its links to itself.

    Args:
        plan: The plan that runs.
        topology: The nodes and links on which it runs.
        nbytes: The gradient's size in bytes, such as ``"160 MB"``.

    Returns:
        A predicted trace, with times in seconds.

    Raises:
        PlanError, TopologyError, UnitError: For an argument that is not a plan, topology or size, and for a plan that
            needs missing nodes or routes.
    """
    return _predict("ideal", plan, topology, nbytes, _alone)


def shared(plan: "Plan | Schedule", topology: Topology | None = None, nbytes: "int | str | None" = None) -> Trace:
    """Predict the trace of a plan whose messages share the links on which they meet fairly.

    Fair means max–min: no message can be faster without a slower one becoming slower still. When a message has left,
    the others share its bandwidth anew.

    Args:
        plan, topology, nbytes: As for :func:`ideal`; or a :class:`~d2lps.schedule.Schedule`, whose values have their
            sizes: see :mod:`d2lps.simulate.timeline`. Without a topology, its messages take no time.

    Returns:
        A predicted trace, with times in seconds.

    Raises:
        PlanError, TopologyError, UnitError: As for :func:`ideal`.

    Example:
        >>> from d2lps.schedule import gpipe, pipeline
        >>> round(shared(pipeline(gpipe(stages=4, micro=8))).bubble(), 3)
        0.273

    Source: Bertsekas and Gallager, "Data Networks", 6.5.2: max–min flow control.
    """
    if isinstance(plan, Schedule):
        return timeline(plan, topology)
    return _predict("shared", plan, topology, nbytes, fluid)


class Flow(NamedTuple):
    """A message: the fields that decide its cost. Its share is (numerator, denominator), as ints are hashed fast."""

    src: str
    dst: str
    share: tuple[int, int]
    op: str


class Load(NamedTuple):
    """``count`` equal flows, and the load of each on the limited links and nodes of its route.

    ``needs`` maps each of these places to the seconds for which one flow alone would occupy it. ``size`` is the bytes
    of a flow, or, if adding or overhead cost more, the bytes that would occupy the place as long: the quantity in
    which sharing is fair.
    """

    count: int  # type: ignore[assignment]  # hides the method of tuples
    size: Fraction
    needs: "Mapping[Link | str, Fraction]"


class Route(NamedTuple):
    """The part of a flow's cost that is the same in all steps: fields of :class:`Load`, and the latency in seconds."""

    size: Fraction
    needs: "Mapping[Link | str, Fraction]"
    latency: Fraction


class StepCost:
    """The cost of a step, and, computed on demand, of each of its messages.

    ``counts`` has the number of messages of each flow, ``messages`` returns the flow of each message in their order.
    """

    def __init__(self, counts: Mapping[Flow, int], route: Callable[[Flow], Route], model: Callable, messages: Callable):
        self.model, self.messages, self.count = model, messages, sum(counts.values())
        routes = {flow: route(flow) for flow in counts}
        self.loads = [Load(counts[flow], size, needs) for flow, (size, needs, _) in routes.items()]
        self.latencies = {flow: latency for flow, (_, _, latency) in routes.items()}
        self._ends: dict[Flow, Fraction] | None = None
        self.duration = self._duration()

    def __len__(self) -> int:
        return self.count

    @property
    def takes(self) -> tuple[Fraction, ...]:
        """Seconds of each message, latency included."""
        ends = self.by_flow()
        return tuple(ends[flow] for flow in self.messages())

    def by_flow(self) -> dict[Flow, Fraction]:
        """Return the seconds of each flow, latency included."""
        if self._ends is None:  # two threads may both compute it, with the same result
            waits = zip(self.latencies.items(), self.model(self.loads), strict=True)
            self._ends = {flow: wait + latency for (flow, latency), wait in waits}
        return self._ends

    def _duration(self) -> Fraction:
        """Return the seconds until the last flow has arrived.

        If all flows have one size and one latency, this is the load of the busiest place: that place needs so long, and
        since the smallest rate only rises as flows leave, all have left by then. Counting is far faster than filling.
        """
        sizes = {load.size for load in self.loads if load.needs}
        if self.model is fluid and len(sizes) < 2 and len({*self.latencies.values()}) == 1:
            return busiest(self.loads) + next(iter(self.latencies.values()))
        return max(self.by_flow().values(), default=Fraction(0))


def _predict(origin: str, plan: Plan, topology: Topology | None, nbytes: "int | str | None", model: Callable) -> Trace:
    # Exact fractions throughout: a prediction equals its closed form, and simultaneous ends are exactly equal.
    require_plan("cost", plan)
    if not isinstance(topology, Topology):
        raise TopologyError(text("topology.wanted", given=repr(topology)))
    total, now, starts = units.meant_size(nbytes), Fraction(0), []
    costs: dict[Hashable, StepCost] = {}
    steps: list[StepCost] = []
    for node in plan.nodes:
        topology.require_node(node)
    # The same pairs often send in many steps; whether they add counts only where a port is limited.
    known = cache(lambda src, dst, share, op: route_of(Flow(src, dst, share, op), topology, total))
    route = (lambda flow: known(*flow)) if topology.limits else (lambda flow: known(*flow[:3], "copy"))
    lazy = plan.steps if isinstance(plan.steps, Lazy) else None
    turn = turning(topology, plan.nodes) if lazy and lazy.around and model is fluid else None
    for i in range(len(plan.steps)):
        moved = lazy.turns(i) if lazy and turn else None
        turned = Turned(plan, topology, turn, moved, i) if turn and moved else None
        alike = turned.kind if turned else lazy.kind(i) if lazy else _flows(plan, i)
        if alike not in costs:  # a ring of any size has only two kinds of steps
            costs[alike] = turned.cost(route, model) if turned else _step_cost(plan, i, route, model)
        starts.append(now)
        steps.append(costs[alike])
        now += costs[alike].duration
    events = Predicted(plan, total, tuple(starts), tuple(steps))
    return Trace(origin, plan, topology, total, events if len(plan.nodes) > LARGE else tuple(events))


class Turned:
    """A step that stays the same if all nodes move on by the period of a turn: its first sends stand for all of them.

    Steps of the same ``kind`` take the same time: their sends pass places of the same orbits.
    """

    def __init__(self, plan: Plan, topology: Topology, turn: Turn, moved: tuple[int, str, int], i: int):
        places, op, count = moved
        nodes, part = plan.nodes, next(iter(plan.share.values())).as_integer_ratio()
        self.plan, self.turn, self.count, self.number = plan, turn, count, i
        self.flows = [Flow(nodes[j], nodes[(j + places) % len(nodes)], part, op) for j in range(turn.period)]
        passed = tuple(
            tuple(turn.orbit[place] for place in topology.resources(flow.src, flow.dst)) for flow in self.flows
        )
        self.kind = op, count, passed, i if count > 1 else None  # several sends of a node may be in any order

    def cost(self, route: Callable[[Flow], Route], model: Callable) -> StepCost:
        """Return the cost of the step, from its first sends alone."""
        nodes, (period, orbit, sizes), plan, i = self.plan.nodes, self.turn, self.plan, self.number
        first = {node: self.flows[j % period] for j, node in enumerate(nodes)}

        route = spread(route, orbit, sizes)
        counts = dict.fromkeys(self.flows, self.count * len(nodes) // period)
        if self.count == 1:
            return StepCost(counts, route, model, lambda: [first[node] for node in nodes])
        return StepCost(counts, route, model, lambda: [first[send.src] for send in sends(plan.steps[i])])


def spread(
    route: Callable[[Flow], Route], number: "Mapping[Link | str, int]", sizes: "Sequence[int] | Mapping[int, int]"
) -> Callable[[Flow], Route]:
    """Return ``route`` over classes of places that all carry the same: an equal part of the flows of the class.

    ``number`` has the class of each place, ``sizes`` how many places there are in each.
    """

    def over_classes(flow: Flow) -> Route:
        way = route(flow)
        needs: dict[Any, Fraction] = defaultdict(Fraction)  # the numbers of classes are its places
        for place, need in way.needs.items():
            needs[number[place]] += need / sizes[number[place]]
        return way._replace(needs=needs)

    return over_classes


def _step_cost(plan: Plan, i: int, route: Callable[[Flow], Route], model: Callable) -> StepCost:
    return StepCost(step_flows(plan, i), route, model, lambda: _flows(plan, i))


def step_flows(plan: Plan, i: int) -> dict[Flow, int]:
    """Return each flow of step i, counted from 0, with the number of its messages."""
    joined = plan.steps.groups(i) if isinstance(plan.steps, Lazy) else None
    if joined is None:
        return Counter(_flows(plan, i))
    part = next(iter(plan.share.values())).as_integer_ratio()
    return {Flow(src, dst, part, op): count for src, dst, op, count in joined}


def _flows(plan: Plan, i: int) -> tuple[Flow, ...]:
    ratio = plan.share.ratio
    return tuple(Flow(send.src, send.dst, ratio(send.key), send.op) for send in sends(plan.steps[i]))


def route_of(flow: Flow, topology: Topology, total: int) -> Route:
    """Return what a flow needs of each place on its way, of a plan that moves ``total`` bytes per whole buffer."""
    size, latencies = _over(flow.share, total, 1.0), []
    needs: dict[Link | str, Fraction] = {}
    sizes = [size]
    for resource in topology.resources(flow.src, flow.dst):
        capacity = topology.capacity(resource)
        need = _over(flow.share, total, capacity)
        if isinstance(resource, Link):
            latencies.append(resource.latency)
        else:
            limit = topology.limits[resource]
            if flow.op == "add" and resource != flow.src and limit.adding:  # of two ports the receiver's adds
                need += _over(flow.share, total, limit.adding)
            need = max(need, Fraction(limit.overhead or 0))
            sizes += [] if math.isinf(capacity) else [need * Fraction(capacity)]
        if need:
            needs[resource] = need
    return Route((max(sizes) if len(sizes) > 1 else size) or Fraction(1), needs, total_latency(tuple(latencies)))


@lru_cache(1024)  # a thousand messages of one size over links of one speed
def _over(share: tuple[int, int], total: int, rate: float) -> Fraction:
    return Fraction(0) if math.isinf(rate) else Fraction(*share) * total / Fraction(rate)


def busiest(loads: Iterable[Load]) -> Fraction:
    """Return the seconds that the place with the largest load needs for all its flows."""
    needs: dict[Hashable, list] = {}  # place → its first need, how many flows have just this, the sum of other needs
    for load in loads:
        for place, need in load.needs.items():
            entry = needs.setdefault(place, [need, 0, 0])
            if entry[0] is need:  # usual, because _over keeps its results; counting is far faster than adding
                entry[1] += load.count
            else:
                entry[2] += load.count * need
    alike = {(id(need), count): need * count for need, count, rest in needs.values() if not rest}
    others = [need * count + rest for need, count, rest in needs.values() if rest]
    return max([*alike.values(), *others], default=Fraction(0))


def _alone(loads: Sequence[Load]) -> list[Fraction]:
    """Return the seconds until each flow has left, each at the speed of the narrowest place on its route."""
    return [max(load.needs.values(), default=Fraction(0)) for load in loads]


def fluid(loads: Sequence[Load]) -> list[Fraction]:
    """Return the seconds until each flow has left, under max–min fair sharing; all flows start together."""
    remaining = {i: load.size for i, load in enumerate(loads) if load.needs}
    ends, now = [Fraction(0)] * len(loads), Fraction(0)
    while remaining:
        rates = _fair({i: loads[i] for i in remaining})
        wait = min(remaining[i] / rates[i] for i in remaining)
        now += wait
        for i in list(remaining):
            remaining[i] -= rates[i] * wait
            if not remaining[i]:
                ends[i] = now
                del remaining[i]
    return ends


def _fair(loads: Mapping[int, Load]) -> dict[int, Fraction]:
    """Return the bytes per second of each flow: raise all rates alike, freeze flows on full places, repeat."""
    crossing: dict[Hashable, dict[int, Fraction]] = {}  # place → flow → the part of it that 1 byte per second takes
    for i, load in loads.items():
        for place, need in load.needs.items():
            crossing.setdefault(place, {})[i] = load.count * need / load.size
    room = dict.fromkeys(crossing, Fraction(1))
    rates: dict[int, Fraction] = {}
    while crossing:
        levels = {place: room[place] / sum(parts.values()) for place, parts in crossing.items()}
        rate = min(levels.values())
        full = {i for place, level in levels.items() if level == rate for i in crossing[place]}
        for i in full:
            rates[i] = rate
            for place in loads[i].needs:
                room[place] -= rate * crossing[place].pop(i)
        crossing = {place: parts for place, parts in crossing.items() if parts}
    return rates
