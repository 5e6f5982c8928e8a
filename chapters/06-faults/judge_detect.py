"""Judge a failure detector: play heartbeats to it in virtual time, and ask it often for its suspects.

What is right follows from what the detector has been told. Each difficulty has a schedule by itself, and the first
schedule that goes wrong names the mistake; schedules with everything in them are drawn last.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, time_text, unlike, untouched

START = 5000.0  # what the detector's own clock says as it begins: no clock has to begin at 0
SEEDS = 12
STEP = 0.97  # of `every`, between two questions: no sum of these rounds to more than `every`
NAMES = "node2 node10 node0 node1 node5".split()
LONG = 200  # a node that is still not suspected after so many of the longest silences never will be


class Event(NamedTuple):
    """A heartbeat arrives, a connection ends, or the detector is asked for its suspects."""

    kind: str
    now: float
    node: str = ""
    sent: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Events in the order of their times, and the (start, end) of the detector's own stops.

    A living node that is suspected here makes the mistake ``living``, and a dead one that is not ``missed``.
    """

    events: tuple[Event, ...]
    living: str
    missed: str
    stops: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class DetectCase:
    """Nodes and their protocol: a heartbeat ``every`` seconds, so many ``lost`` in a row, at most this ``delay``."""

    nodes: tuple[str, ...]
    every: float
    lost: int
    delay: float

    @property
    def label(self) -> str:
        return f"n = {len(self.nodes)}, every = {self.every:g}, lost = {self.lost}, delay = {self.delay:g}"

    @property
    def silence(self) -> float:
        """How long a living node can be silent."""
        return (self.lost + 1) * self.every + self.delay


def detect_case(n: int, every: float, lost: int, delay: float) -> DetectCase:
    return DetectCase(tuple(NAMES[:n]), every, lost, delay)


# ---- schedules


def heartbeats(
    case: DetectCase,
    draw: random.Random,
    node: str,
    start: float,
    end: float,
    clock: float = 0.0,
    losses: float = 0.3,
    late: float = 0.9,
) -> list[Event]:
    """What is heard of a node that lives from ``start`` to ``end``; its own clock differs by ``clock`` seconds."""
    heard, sent, row = [], start + draw.uniform(0, 0.9) * case.every, 0
    while sent < end:
        row = row + 1 if row < case.lost and draw.random() < losses else 0
        if not row:
            heard.append(Event("heard", sent + draw.uniform(0, late) * case.delay, node, sent + clock))
        sent += case.every
    return heard


def worst(case: DetectCase, node: str, start: float, end: float) -> list[Event]:
    """A living node at its worst: one heartbeat at once, ``lost`` in a row lost, the next one as late as can be."""
    heard, sent = [], start
    while sent < end:
        late = sent + (case.lost + 1) * case.every
        arrives = late + 0.98 * case.delay
        heard += [Event("heard", sent, node, sent), Event("heard", arrives, node, late)]
        sent = late + case.every * (1 + int(case.delay / case.every))
    return heard


def asks(start: float, end: float, step: float) -> list[Event]:
    return [Event("asked", start + i * step) for i in range(1, int((end - start) / step) + 1)]


def evenly(start: float, end: float, step: float) -> list[Event]:
    """At most ``step`` apart, the last one just before ``end``."""
    count = math.ceil((end - start) / step)
    return [Event("asked", end - 1e-3 * step - i * (end - start) / count) for i in range(count)]


def schedule(events: Iterable[Event], living: str, missed: str, stops: Sequence[tuple[float, float]] = ()) -> Schedule:
    """Return the events in the order of time; arrivals during a stop of the detector come at its end."""
    events = list(events)
    for begin, end in stops:
        events = [event for event in events if event.kind != "asked" or not begin < event.now < end]
        events = [event._replace(now=end) if begin < event.now < end else event for event in events]
        # The last question before it, and the first one after it, which comes before what has arrived meanwhile.
        events += [Event("asked", begin - 1e-6), Event("asked", end - 1e-6)]
    events = [event for event in events if event.now > START]
    return Schedule(tuple(sorted(events, key=lambda event: event.now)), living, missed, tuple(stops))


@cache
def schedules(case: DetectCase) -> tuple[Schedule, ...]:
    """Each difficulty by itself first, then all together."""
    draw, silence, nodes, step = random.Random(case.label), case.silence, case.nodes, STEP * case.every
    first, last, others, end = nodes[0], nodes[-1], nodes[1:], START + 12 * case.silence
    middle = START + 5 * silence

    def beats(who: Iterable[str], start: float = START, end: float = end, **given: float) -> list[Event]:
        return [event for node in who for event in heartbeats(case, draw, node, start, end, **given)]

    regular, begin = asks(START, end, step), START + 0.1 * case.every
    steady = [event for node in nodes for event in worst(case, node, begin, end)]
    times = sorted({START, *(event.now for event in steady)})
    just_before = [event for times in pairwise(times) for event in evenly(*times, step)]
    alone = [
        schedule([*steady, *just_before], "too-short", "differs"),
        schedule(
            [*beats([first], end=middle, losses=0, late=0), *beats(others, losses=0), *regular], "differs", "too-long"
        ),
        schedule(
            [*beats([first], end=middle, clock=-3600), *beats([last], clock=7200), *beats(others[:-1]), *regular],
            *["wall-clocks"] * 2,
        ),
        schedule([*beats(nodes[:-1]), *regular], *["before-first"] * 2),
        schedule(
            [
                *beats([first], end=middle),
                Event("ended", middle + 0.95 * case.delay + 1e-3 * case.every, first),
                *beats([first], middle + 2 * silence),
                *beats(others),
                *regular,
            ],
            "never-forgives",
            "differs",
        ),
        schedule(
            [*beats([first], end=middle), *beats([first], middle + 4 * silence), *beats(others), *regular],
            "never-forgives",
            "too-long",
        ),
        _stopped(case, beats([first], end=START + silence)),
    ]
    if not case.every % 0.5:  # no more than `every` passes between two questions: here no number is rounded
        asked = asks(START, end, case.every)
        alone.append(schedule([*beats([first], end=middle), *beats(others), *asked], "differs", "own-pause"))
    return (*alone, *(drawn(case, seed) for seed in range(SEEDS)))


def _stopped(case: DetectCase, dying: list[Event]) -> Schedule:
    """The detector stops for a long or a short time, always when living nodes have long been silent; one dies at last.

    The others are at their worst, and ``dying`` has heartbeats of the first node, which dies early.
    """
    silence, every = case.silence, case.every
    stops = [(START, START + 2.5 * silence)]  # before it is asked for the first time
    quiet = [event.now for event in worst(case, case.nodes[-1], START + silence, START + 60 * silence)[::2]]
    for length in (5 * silence, 2.5 * silence, 1.2 * silence, 1.9 * every, 1.2 * every):
        begin = next(time for time in quiet if time > stops[-1][1] + 4 * silence) + 0.9 * silence
        stops.append((begin, begin + length))
    gone = stops[-1][1] + 4 * silence
    end = gone + 4 * silence
    ends = dict.fromkeys(case.nodes[1:-1], end) | {case.nodes[-1]: gone}
    steady = [event for node in ends for event in worst(case, node, START + silence, ends[node])]
    early = [event for node in ends for event in worst(case, node, START + 0.1 * every, START + silence)]
    events = [*dying, *early, *steady, *asks(START, end, STEP * every)]
    return schedule(events, *["own-pause"] * 2, stops)


def drawn(case: DetectCase, seed: int) -> Schedule:
    """Nodes die, pause and lose their connection, clocks differ, questions come at odd times, the detector stops."""
    draw, silence = random.Random(f"{case.label} {seed}"), case.silence
    end, events, now = START + 40 * silence, [], START
    for node in case.nodes:
        clock, begin = draw.uniform(-5000, 5000), START
        while begin < end:
            stop = begin + draw.expovariate(1 / (12 * silence))
            events += heartbeats(case, draw, node, begin, min(stop, end), clock)
            if draw.random() < 0.3 and stop < end:
                events.append(Event("ended", stop + case.delay, node))
            begin = end if draw.random() < 0.3 else stop + case.delay + draw.uniform(0.5, 5) * silence
    while now < end:
        now += case.every * (draw.uniform(0.05, 0.15) if int(now / silence) % 3 else draw.uniform(0.5, 0.95))
        events.append(Event("asked", now))
    events += [Event("asked", event.now - 1e-3 * case.every) for event in events if event.kind == "heard"]
    events = [event for event in events if event.now <= end]
    stops = []
    for earliest in (5, 20):
        begin = START + draw.uniform(earliest, earliest + 8) * silence
        shortest = 1.2 * case.every
        stops.append((begin, begin + shortest * (6 * silence / shortest) ** draw.random()))
    return schedule(events, "differs", "too-long", stops)


# ---- the right answer, from the arrivals


class Told:
    """Knowledge of the detector: the last sign of each node, ended connections, its own stops."""

    def __init__(self, case: DetectCase, stops: Sequence[tuple[float, float]]):
        self.case, self.stops = case, stops
        self.last, self.heard = dict.fromkeys(case.nodes, START), set()
        self.ended, self.suspected = set(), set()

    def tell(self, event: Event) -> None:
        if event.kind == "heard":
            self.last[event.node] = event.now
            self.heard.add(event.node)
            self.ended.discard(event.node)
            self.suspected.discard(event.node)
        elif event.kind == "ended":
            self.ended.add(event.node)

    def silence(self, node: str, now: float) -> float:
        return now - self.last[node]

    def stopped(self, node: str, now: float) -> float:
        """Return the seconds for which the detector itself was stopped since the node's last sign."""
        return sum(max(0.0, min(end, now) - max(begin, self.last[node])) for begin, end in self.stops)

    def must(self, node: str, now: float) -> bool:
        since = max([self.last[node], *(end for _, end in self.stops if end <= now + 1e-5)])
        dead = now - since > 2 * self.case.silence
        return dead or node in self.ended or node in self.suspected

    def must_not(self, node: str, now: float) -> bool:
        if node in self.ended or node in self.suspected:
            return False
        return self.silence(node, now) - self.stopped(node, now) <= self.case.silence


def judge(case: DetectCase, answer: Callable) -> dict[str, float]:
    """How often it was asked, and how long after their last sign the silent were suspected; raises Failure."""
    waits, asked = [], 0
    for number, each in enumerate(schedules(case)):
        asked += sum(event.kind == "asked" for event in each.events)
        waits += _play(case, answer, each, first=number == 0)
    return {"asked": asked, "silence": case.silence, "mean": sum(waits) / len(waits), "most": max(waits)}


def _play(case: DetectCase, answer: Callable, schedule: Schedule, first: bool) -> list[float]:
    functions = _functions(case, answer)
    told, waits = Told(case, schedule.stops), []
    for at, event in enumerate(schedule.events):
        if event.kind == "heard":
            call(case, functions["heard"], event.node, event.sent, event.now, none=True)
        elif event.kind == "ended":
            call(case, functions["ended"], event.node, event.now, none=True)
        told.tell(event)
        if event.kind != "asked":
            continue
        suspects = _suspects(case, functions, event.now, first)
        for node in case.nodes:
            if node in suspects and told.must_not(node, event.now):
                raise _living(case, schedule, told, node, at)
            if node not in suspects and told.must(node, event.now):
                raise _missed(case, schedule, functions, told, node, at)
            if node in suspects and node not in told.suspected and node not in told.ended:
                waits.append(told.silence(node, event.now) - told.stopped(node, event.now))
        told.suspected = set(suspects)
    return waits


def _functions(case: DetectCase, answer: Callable) -> Mapping[str, Callable]:
    result = call(case, answer, list(case.nodes), case.every, case.lost, case.delay, START)
    three = list(result) if isinstance(result, tuple | list) else []
    if len(three) != 3 or not all(map(callable, three)):
        raise failure("wrong-type", "not-three-of-detector", case, type=type(result).__name__)
    return dict(zip(("heard", "ended", "suspects"), three, strict=True))


def _suspects(case: DetectCase, functions: Mapping[str, Callable], now: float, first: bool) -> set[str]:
    result = call(case, functions["suspects"], now, none=True)
    if result is None and first and untouched(functions["suspects"]):
        raise failure("todo", "nobody-asked-for", case)
    if not isinstance(result, set | frozenset | list | tuple):
        raise failure("wrong-type", "not-suspects", case, type=type(result).__name__)
    for each in result:
        if not isinstance(each, str) or each not in case.nodes:
            raise failure("differs", "suspects-strange", case, got=repr(each)[:60])
    return set(result)


def _living(case: DetectCase, schedule: Schedule, told: Told, node: str, at: int) -> Failure:
    now, came_back = schedule.events[at].now, any(each.kind == "ended" for each in schedule.events[:at])
    general = schedule.living in ("too-short", "differs")
    if node not in told.heard and general:
        return _failure("before-first", "suspects-unheard", case, schedule, told, node, at)
    stopped = told.stopped(node, now)
    if stopped:
        return _failure("own-pause", "suspects-after-stop", case, schedule, told, node, at, stopped=time_text(stopped))
    mistake = "never-forgives" if came_back and general else schedule.living
    return _failure(mistake, "suspects-living", case, schedule, told, node, at)


def _missed(
    case: DetectCase, schedule: Schedule, functions: Mapping[str, Callable], told: Told, node: str, at: int
) -> Failure:
    if node in told.ended:
        return _failure("differs", "end-missed", case, schedule, told, node, at)
    if node in told.suspected:
        return _failure("differs", "taken-back", case, schedule, told, node, at)
    mistake = schedule.missed
    if mistake == "too-long":
        mistake = _why_missed(case, functions, node, schedule.events[at].now)
    return _failure(mistake, "dead-missed", case, schedule, told, node, at)


def _why_missed(case: DetectCase, functions: Mapping[str, Callable], node: str, now: float) -> str:
    """Ask on: is the node suspected later, or only when all are silent?"""
    living, regular = [each for each in case.nodes if each != node], STEP * case.every
    for alive, mistake in ((living, "too-long"), ([], "one-timer")):
        for _ in range(int(LONG * case.silence / regular)):
            now += regular
            for each in alive:
                call(case, functions["heard"], each, now, now, none=True)
            if node in _suspects(case, functions, now, False):
                return mistake
    return "differs"


def _failure(
    mistake: str, sentence: str, case: DetectCase, schedule: Schedule, told: Told, node: str, at: int, **values: object
) -> Failure:
    """The Failure, and in a line of its own what came last."""
    now = schedule.events[at].now
    values |= dict(zip(("silence", "allowed"), unlike(told.silence(node, now), case.silence, time_text), strict=True))
    found = failure(mistake, sentence, case, node=node, now=f"{now:.3f}", twice=time_text(2 * case.silence), **values)
    came = [_shown(event) for event in schedule.events[: at + 1] if event.kind != "asked" or event.now == now]
    found.sentence += "\n" + text("checks.what-detector-heard", events=" ".join(["…"] * (len(came) > 8) + came[-8:]))
    return found


def _shown(event: Event) -> str:
    if event.kind == "asked":
        return f"suspects({event.now:.3f})"
    given = [event.node, *([f"{event.sent:.3f}"] if event.kind == "heard" else []), f"{event.now:.3f}"]
    return f"{event.kind}({', '.join(given)})"
