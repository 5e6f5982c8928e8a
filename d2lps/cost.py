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
(nothing is stored and forwarded), and arrives the route's latency after its last byte has left. Adding
and updating take no time here.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction

from d2lps import units
from d2lps.plan import Plan
from d2lps.steps import sends, updates
from d2lps.topology import Topology
from d2lps.trace import Trace, event, plain


def ideal(plan: Plan, topology: Topology, nbytes: "int | str") -> Trace:
    """Each message as if it had its links to itself. ``nbytes``: the gradient's size, such as ``"160 MB"``."""
    return _predict("ideal", plan, topology, nbytes, _alone)


def shared(plan: Plan, topology: Topology, nbytes: "int | str") -> Trace:
    """Messages that meet on a link share it fairly. ``nbytes``: the gradient's size, such as ``"160 MB"``.

    Fairly means max–min: no message can be faster without a slower one becoming slower still. When a
    message has left, what it leaves free is shared anew.
    """
    return _predict("shared", plan, topology, nbytes, _fluid)


Route = tuple[Hashable, ...]  # the limited links and nodes that a message crosses
Capacity = Mapping[Hashable, Fraction]  # bytes per second of each of them


def _predict(origin: str, plan: Plan, topology: Topology, nbytes: "int | str", model: Callable) -> Trace:
    # Exact fractions throughout: a prediction equals its closed form, and what ends together ends together.
    total, now, events = units.size(nbytes), Fraction(0), []
    for node in plan.nodes:
        topology.known(node)
    for number, step in enumerate(plan.steps, 1):
        sent = sends(step)
        sizes = [plan.share[send.key] * total for send in sent]
        crossed = [topology.resources(send.src, send.dst) for send in sent]
        capacity = {r: Fraction(topology.capacity(r)) for route in crossed for r in route
                    if not math.isinf(topology.capacity(r))}  # fmt: skip
        routes = [tuple(r for r in route if r in capacity) for route in crossed]
        ends = [now]
        for send, size, wait in zip(sent, sizes, model(sizes, routes, capacity), strict=True):
            latency = sum(Fraction(link.latency) for link in topology.route(send.src, send.dst))
            ends.append(now + wait + latency)
            events.append(event(send, number, float(now), float(ends[-1]), plain(size)))
        now = max(ends)
        events += [event(act, number, float(now), float(now), plain(plan.share[act.key] * total))
                   for act in updates(step)]  # fmt: skip
    return Trace(origin, plan, topology, total, tuple(events))


def _alone(sizes: list[Fraction], routes: list[Route], capacity: Capacity) -> list[Fraction]:
    """Seconds until each message has left, each at the speed of the narrowest place on its way."""
    return [max((size / capacity[r] for r in route), default=Fraction(0))
            for size, route in zip(sizes, routes, strict=True)]  # fmt: skip


def _fluid(sizes: list[Fraction], routes: list[Route], capacity: Capacity) -> list[Fraction]:
    """Seconds until each of the messages that start together has left, under max–min fair sharing."""
    left = {i: size for i, size in enumerate(sizes) if size and routes[i]}
    done, now = [Fraction(0)] * len(sizes), Fraction(0)
    while left:
        rates = _fair(left, routes, capacity)
        wait = min(left[i] / rates[i] for i in left)
        now += wait
        for i in list(left):
            left[i] -= rates[i] * wait
            if not left[i]:
                done[i] = now
                del left[i]
    return done


def _fair(messages: Iterable[int], routes: list[Route], capacity: Capacity) -> dict[int, Fraction]:
    """Bytes per second of each message: fill all alike, freeze those on the link that is full first, go on."""
    crossing: dict[Hashable, set[int]] = {}
    for i in messages:
        for resource in routes[i]:
            crossing.setdefault(resource, set()).add(i)
    room = {resource: capacity[resource] for resource in crossing}
    rates: dict[int, Fraction] = {}
    while crossing:
        tight = min(crossing, key=lambda r: room[r] / len(crossing[r]))
        rate = room[tight] / len(crossing[tight])
        for i in tuple(crossing[tight]):
            rates[i] = rate
            for resource in routes[i]:
                room[resource] -= rate
                crossing[resource].discard(i)
        crossing = {resource: users for resource, users in crossing.items() if users}
    return rates
