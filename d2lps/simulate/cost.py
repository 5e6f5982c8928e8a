"""What a plan costs on a topology: predicted traces.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> plan = aggregate_at(["gpu0", "gpu1", "gpu2", "gpu3"], "gpu0")
>>> cost.ideal(plan, pcie_server(), "160 MB").duration
0.02
>>> cost.shared(plan, pcie_server(), "160 MB").duration
0.06

The two columns side by side are a lesson by themselves: what a link could do, and what it does when
several messages want it at once. In both, steps are barriers: the next begins when the last message of
this one has arrived. A message starts at the beginning of its step, takes all links of its route at once
(nothing is stored and forwarded), and arrives the route's latency after its last byte has left. Updating
takes no time, and adding only where the topology says how fast a node adds what passes through it.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from d2lps import units
from d2lps.plan.acts import sends
from d2lps.plan.lazy import Lazy
from d2lps.plan.plan import Plan, require_plan
from d2lps.topology import Link, Topology, TopologyError
from d2lps.trace import Predicted, Trace


def ideal(plan: Plan, topology: Topology, nbytes: "int | str") -> Trace:
    """Each message as if it had its links to itself. ``nbytes``: the gradient's size, such as ``"160 MB"``."""
    return _predict("ideal", plan, topology, nbytes, _alone)


def shared(plan: Plan, topology: Topology, nbytes: "int | str") -> Trace:
    """Messages that meet on a link share it fairly. ``nbytes``: the gradient's size, such as ``"160 MB"``.

    Fairly means max–min: no message can be faster without a slower one becoming slower still. When a
    message has left, what it leaves free is shared anew.
    """
    return _predict("shared", plan, topology, nbytes, _fluid)


Message = tuple[str, str, Fraction, str]  # src, dst, share and op: all that the cost of a message depends on


class Load(NamedTuple):
    """``count`` messages that are alike, and what each asks of the limited links and nodes on its way.

    ``needs`` says for how many seconds it would occupy each of them if it were alone. ``size`` is its bytes, or, where
    adding or overhead make it harder, the bytes that would occupy the place as long: what fair sharing is fair in.
    """

    count: int
    size: Fraction
    needs: Mapping[Hashable, Fraction]


def _predict(origin: str, plan: Plan, topology: Topology, nbytes: "int | str", model: Callable) -> Trace:
    # Exact fractions throughout: a prediction equals its closed form, and what ends together ends together.
    require_plan("cost", plan)
    if not isinstance(topology, Topology):
        raise TopologyError(f"cost needs a Topology that the plan runs on, such as pcie_server(), not {topology!r}")
    total, now, seen, starts, takes = units.size(nbytes), Fraction(0), {}, [], []
    for node in plan.nodes:
        topology.require_node(node)
    for i in range(len(plan.steps)):
        alike = plan.steps.kind(i) if isinstance(plan.steps, Lazy) else _sent(plan, i)
        if alike not in seen:  # a ring has two kinds of steps, however many there are
            sent = _sent(plan, i)
            times = _times(Counter(sent), topology, total, model)
            seen[alike] = tuple(times[message] for message in sent), max(times.values(), default=Fraction(0))
        starts.append(now)
        takes.append(seen[alike][0])
        now += seen[alike][1]
    events = Predicted(plan, total, tuple(starts), tuple(takes))
    return Trace(origin, plan, topology, total, events if isinstance(plan.steps, Lazy) else tuple(events))


def _sent(plan: Plan, i: int) -> tuple[Message, ...]:
    return tuple((send.src, send.dst, plan.share[send.key], send.op) for send in sends(plan.steps[i]))


def _times(counts: Mapping[Message, int], topology: Topology, total: int, model: Callable) -> dict[Message, Fraction]:
    """How long each of the messages takes that start together, latency included."""
    loads = [_load(message, count, topology, total) for message, count in counts.items()]
    return {
        (src, dst, share, op): wait + sum(Fraction(link.latency) for link in topology.route(src, dst))
        for (src, dst, share, op), wait in zip(counts, model(loads), strict=True)
    }


def _load(message: Message, count: int, topology: Topology, total: int) -> Load:
    src, dst, share, op = message
    size, sizes, needs = share * total, [share * total], {}
    for resource in topology.resources(src, dst):
        capacity = topology.capacity(resource)
        need = _over(size, capacity)
        if not isinstance(resource, Link):
            if op == "add" and resource != src:  # at a port it is the one where it arrives that adds
                need += _over(size, topology.adding.get(resource, math.inf))
            need = max(need, Fraction(topology.overhead.get(resource, 0)))
        if need:
            needs[resource] = need
            sizes += [] if math.isinf(capacity) else [need * Fraction(capacity)]
    return Load(count, max(sizes) or Fraction(1), needs)


def _over(size: Fraction, rate: float) -> Fraction:
    return Fraction(0) if math.isinf(rate) else size / Fraction(rate)


def _alone(loads: Sequence[Load]) -> list[Fraction]:
    """Seconds until each message has left, each at the speed of the narrowest place on its way."""
    return [max(load.needs.values(), default=Fraction(0)) for load in loads]


def _fluid(loads: Sequence[Load]) -> list[Fraction]:
    """Seconds until each of the messages that start together has left, under max–min fair sharing."""
    left = {i: load.size for i, load in enumerate(loads) if load.needs}
    done, now = [Fraction(0)] * len(loads), Fraction(0)
    while left:
        rates = _fair({i: loads[i] for i in left})
        wait = min(left[i] / rates[i] for i in left)
        now += wait
        for i in list(left):
            left[i] -= rates[i] * wait
            if not left[i]:
                done[i] = now
                del left[i]
    return done


def _fair(loads: Mapping[int, Load]) -> dict[int, Fraction]:
    """Bytes per second of each message: fill all alike, freeze those on the places that are full first, go on."""
    crossing: dict[Hashable, dict[int, Fraction]] = {}  # place → message → the part of it that 1 byte per second takes
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
