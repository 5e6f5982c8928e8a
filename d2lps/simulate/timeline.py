"""When the acts of a schedule happen: an event-driven model with a compute lane and a network lane per node.

* Each node does its tasks one after the other, in the order of the list. A task starts when the one before has ended
  and the values that it reads are complete; it takes its work divided by the node's rate.
* A message or a collective is queued as soon as the task before it in the list has started. It starts when its values
  are there. Two messages of one node to the same other node go one after the other, and so do two collectives of one
  node; the steps of a collective are barriers.
* Messages under way at the same time share links max–min fairly. A message arrives the latency of its route after its
  last byte has left. Rates change whenever a message starts or ends.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush

from d2lps.messages import text
from d2lps.plan.acts import Send, Update, sends
from d2lps.schedule import Collective, Schedule, Task
from d2lps.schedule.acts import made_by, nodes_of
from d2lps.schedule.checking import verify
from d2lps.topology import Topology, TopologyError
from d2lps.trace import Event, Trace, pairs, plain

Number = int | Fraction
NodeValue = tuple[str, str]  # (node, value)


def timeline(schedule: Schedule, topology: Topology | None) -> Trace:
    """Return the predicted trace of a schedule: see :func:`d2lps.cost.shared`."""
    place = pairs(schedule) if topology is None else topology
    if not isinstance(place, Topology):
        raise TopologyError(text("topology.wanted", given=repr(topology)))
    for node in schedule.nodes:
        place.require_node(node)
    if any(schedule.peak.get(node, 0) > size for node, size in place.memory.items()):  # for the act to blame
        verify(schedule.values, schedule.acts, schedule.holds, schedule.wants, place.memory)
    return Trace("shared", schedule, place, 0, tuple(_Clock(schedule, place).run()))


def _exact(number: "float | Fraction") -> Number:
    """Return a number as an exact one, a float as the decimal that it prints, and an int if it is whole.

    Ints are ten times as fast as fractions, and decimals have small denominators.
    """
    exact = Fraction(repr(float(number))) if isinstance(number, float) else Fraction(number)
    return exact.numerator if exact.denominator == 1 else exact


class _Flow:
    """A message under way: how many bytes are left, and at which rate they leave since when."""

    def __init__(self, places: tuple, size: Number, latency: Number, then: Callable[[], object]):
        self.places, self.left, self.latency, self.then = places, size, latency, then
        self.rate: Number = 0
        self.since: Number = 0
        self.version = 0


class _Clock:
    """Virtual time: what is under way, and what waits for what."""

    def __init__(self, schedule: Schedule, topology: Topology):
        self.schedule, self.topology = schedule, topology
        self.now: Number = 0
        self.queue: list[tuple] = []
        self.count = 0
        self.users: dict[Hashable, set[_Flow]] = defaultdict(set)  # link or limited node → its flows
        self.routes: dict[tuple[str, str], tuple[tuple, Number]] = {}
        self.capacity: dict[Hashable, Number] = {}
        self.events: list[Event] = []
        self.rates = topology.computing
        acts = schedule.acts
        self.waits = [0] * len(acts)  # how many things each act still waits for
        self.after_end: list[list[int]] = [[] for _ in acts]
        self.after_start: list[list[int]] = [[] for _ in acts]
        self._link_acts()

    def _link_acts(self) -> None:
        """Note which act waits for the end, or for the start, of which other one."""
        makers: dict[tuple[str, str], list[int]] = {}
        freed: dict[tuple[str, str], int] = {}
        task_before: dict[str, int] = {}
        lane: dict[Hashable, int] = {}
        for i, act in enumerate(self.schedule.acts):
            reads: list[NodeValue] = []
            makes: list[NodeValue] = []
            frees: list[NodeValue] = []
            lanes: list[Hashable] = []
            ends: set[int] = set()
            if isinstance(act, Task):
                reads = [(act.node, name) for name in act.reads]
                makes = [(act.node, name) for name, _ in made_by(act)]
                frees = [(act.node, name) for name in act.frees]
                lanes = [act.node]
            elif isinstance(act, Update):
                reads, lanes = [(act.node, act.key)], [act.node]
            elif isinstance(act, Send):
                reads, makes, lanes = [(act.src, act.key)], [(act.dst, act.key)], [(act.src, act.dst)]
                frees = [(act.src, act.key)] if act.op == "move" else []
            else:
                reads = [(node, name) for node in act.plan.nodes for name in act.holdings(node)]
                makes = [(node, name) for node in act.plan.nodes for name in act.results(node)]
                frees = [pair for pair in reads if pair not in makes] if act.frees else []
                lanes = [("network", node) for node in act.plan.nodes]
            for pair in reads:
                ends.update(makers.get(pair, ()))
            for pair in makes:
                if pair in freed:
                    ends.add(freed[pair])
            for name in lanes:
                if name in lane:
                    ends.add(lane[name])
                lane[name] = i
            starts = set()
            if not isinstance(act, Task | Update):
                starts = {task_before[node] for node in nodes_of(act) if node in task_before} - ends
            self.waits[i] = len(ends) + len(starts)
            for other in ends:
                self.after_end[other].append(i)
            for other in starts:
                self.after_start[other].append(i)
            for pair in makes:
                if isinstance(act, Collective) or pair not in makers:
                    makers[pair] = [i]
                else:
                    makers[pair].append(i)
            for pair in frees:
                makers.pop(pair, None)
                freed[pair] = i
            if isinstance(act, Task | Update):
                task_before[act.node] = i

    def run(self) -> list[Event]:
        """Return the events in order of their start."""
        for i, count in enumerate(self.waits):
            if not count:
                self._at(0, self._start, i)
        while self.queue:
            _, self.now, _, function, arguments = heappop(self.queue)
            function(*arguments)
        self.events.sort(key=lambda event: (event.start, event.step))
        return self.events

    def _at(self, time: Number, function: Callable, *arguments: object) -> None:
        self.count += 1
        heappush(self.queue, (float(time), time, self.count, function, arguments))  # floats compare fast

    def _start(self, i: int) -> None:
        act, now = self.schedule.acts[i], self.now
        self._release(self.after_start[i])
        if isinstance(act, Task):
            self._at(now + self._seconds(act), self._end, i, now)
        elif isinstance(act, Update):
            self._end(i, now)
        elif isinstance(act, Send):
            size = self.schedule.values[act.key].nbytes
            self._flow(act.src, act.dst, size, lambda: self._end(i, now))
        else:
            self._step(i, act, 0)

    def _end(self, i: int, start: Number) -> None:
        act, span = self.schedule.acts[i], (float(start), float(self.now))
        if isinstance(act, Task):
            label = act.of if act.batch is None else f"{act.of}.{act.batch}"
            self.events.append(Event("task", i + 1, *span, act.node, act.node, label, act.name, 0))
        elif isinstance(act, Update):
            self.events.append(Event("update", i + 1, *span, act.node, act.node, act.key, act.rule, 0))
        elif isinstance(act, Send):
            size = self.schedule.values[act.key].nbytes
            self.events.append(Event("send", i + 1, *span, act.src, act.dst, act.key, act.op, plain(Fraction(size))))
        self._release(self.after_end[i])

    def _release(self, acts: list[int]) -> None:
        for i in acts:
            self.waits[i] -= 1
            if not self.waits[i]:
                self._at(self.now, self._start, i)

    def _seconds(self, task: Task) -> Number:
        rate = self.rates.get(task.node)
        return _exact(task.work) if rate is None else _exact(Fraction(_exact(task.work)) / _exact(rate))

    # ---- messages

    def _step(self, i: int, act: Collective, number: int) -> None:
        """Start a step of a collective; the next one starts when the last message of this one has arrived."""
        if number == len(act.plan.steps):
            self._end(i, self.now)
            return
        messages, start = sends(act.plan.steps[number]), self.now
        left = len(messages)
        whole = self.schedule.values[act.value].nbytes

        def arrived(send: Send, size: Number) -> None:
            nonlocal left
            key = f"{act.value}/{send.key}"
            span = float(start), float(self.now)
            self.events.append(Event("send", i + 1, *span, send.src, send.dst, key, send.op, plain(Fraction(size))))
            left -= 1
            if not left:
                self._step(i, act, number + 1)

        if not messages:
            self._step(i, act, number + 1)
        for send in messages:
            size = _exact(whole * act.plan.share[send.key])
            self._flow(send.src, send.dst, size, partial(arrived, send, size))

    def _flow(self, src: str, dst: str, size: Number, then: Callable[[], object]) -> None:
        """Let ``size`` bytes leave, in fair shares of all places on the way; call ``then`` when they have arrived."""
        places, latency = self._route(src, dst)
        if not size or not places:
            self._at(self.now + latency, then)
            return
        flow = _Flow(places, size, latency, then)
        for place in places:
            self.users[place].add(flow)
        self._share(places)

    def _route(self, src: str, dst: str) -> tuple[tuple, Number]:
        if (src, dst) not in self.routes:
            latency = sum((_exact(link.latency) for link in self.topology.route(src, dst)), 0)
            places = self.topology.resources(src, dst)
            for place in places:
                rate = self.topology.capacity(place)
                if not math.isinf(rate):
                    self.capacity[place] = _exact(rate)
            limited = tuple(place for place in places if place in self.capacity)
            self.routes[src, dst] = limited, _exact(latency)
        return self.routes[src, dst]

    def _share(self, places: tuple) -> None:
        """Give the flows that meet these places, or meet those that do, their fair rates from now on."""
        flows: set[_Flow] = set()
        todo, seen = list(places), set(places)
        while todo:
            for flow in self.users[todo.pop()] - flows:
                flows.add(flow)
                fresh = [place for place in flow.places if place not in seen]
                seen.update(fresh)
                todo += fresh
        for flow, rate in self._fair(flows).items():
            if flow.rate == rate:
                continue
            if flow.rate:
                flow.left -= flow.rate * (self.now - flow.since)
            flow.rate, flow.since, flow.version = rate, self.now, flow.version + 1
            takes = Fraction(flow.left) / rate
            self._at(self.now + _exact(takes), self._left, flow, flow.version)

    def _left(self, flow: _Flow, version: int) -> None:
        if version != flow.version:  # its rate has changed since
            return
        for place in flow.places:
            self.users[place].discard(flow)
        self._at(self.now + flow.latency, flow.then)
        self._share(flow.places)

    def _fair(self, flows: set[_Flow]) -> dict[_Flow, Number]:
        """Return the max–min fair rate of each flow: raise all alike, stop those at full places, go on."""
        if len(flows) == 1:
            (flow,) = flows
            return {flow: min(self.capacity[place] for place in flow.places)}
        crossing: dict[Hashable, set[_Flow]] = defaultdict(set)
        for flow in flows:
            for place in flow.places:
                crossing[place].add(flow)
        room = {place: self.capacity[place] for place in crossing}
        rates: dict[_Flow, Number] = {}
        while crossing:
            levels = {place: Fraction(room[place]) / len(users) for place, users in crossing.items()}
            rate = min(levels.values())
            full = {flow for place, level in levels.items() if level == rate for flow in crossing[place]}
            for flow in full:
                rates[flow] = _exact(rate)
                for place in flow.places:
                    room[place] -= rate
                    crossing[place].discard(flow)
            crossing = {place: users for place, users in crossing.items() if users}
        return rates
