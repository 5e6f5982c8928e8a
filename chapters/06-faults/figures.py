"""With what this chapter opens, and its figure: both without a word of any language."""

import math
from fractions import Fraction
from itertools import pairwise

from d2lps import Event, Link, Plan, Topology, Trace
from d2lps.algorithms.placement import Placement
from d2lps.view.drawing.shapes import number, sheet
from d2lps.view.drawing.svg import fine, tag, words, worker

WORKERS, ROUNDS, HALVES = ("w0", "w1"), 6, {"a": "s0", "b": "s1"}
NBYTES = 4_000_000  # of a half of the gradient
COMPUTING, TRAVEL = 0.006, 0.004  # seconds for a gradient, and for a message
SAVED, FATAL = 2, 4  # after which round there is a checkpoint, and in which s1 dies
NOTICED = 0.012  # seconds after which its silence is taken for its death
STARTING = 0.024  # seconds until everything has been ended, and started anew


def opening() -> dict[str, Trace]:
    """A server dies: everything goes back to a checkpoint, or the other server has a copy, and takes over."""
    return {"checkpoint": _Run("disk").back_to_checkpoint(), "replica": _Run().taken_over()}


class _Run:
    """What happened so far, and what time it is."""

    def __init__(self, *more: str):
        self.nodes, self.now, self.events = (*WORKERS, "s0", "s1", *more), 0.0, []

    def back_to_checkpoint(self) -> Trace:
        for round in range(1, FATAL):
            self.push(round, HALVES)
            self.answer(round, HALVES)
            if round == SAVED:
                self.copy([(node, "disk", half) for half, node in HALVES.items()], range(1, SAVED + 1))
        self.push(FATAL, HALVES)
        died, again = self.now, self.now + NOTICED + STARTING
        self.gone("s1", died, again)
        for node in (*WORKERS, "s0"):
            self.gone(node, died + NOTICED, again)
        self.now = again
        self.copy([("disk", node, half) for half, node in HALVES.items()], range(1, SAVED + 1))
        self.copy([(node, each, half) for half, node in HALVES.items() for each in WORKERS], range(1, SAVED + 1))
        for round in range(SAVED + 1, ROUNDS + 1):
            self.push(round, HALVES)
            self.answer(round, HALVES)
        return self.trace()

    def taken_over(self) -> Trace:
        alone = dict.fromkeys(HALVES, "s0")
        for round in range(1, FATAL):
            self.push(round, HALVES)
            self.copy([("s0", "s1", "a"), ("s1", "s0", "b")], [round])
            self.answer(round, HALVES)
        self.push(FATAL, HALVES)
        died = self.now
        self.now += NOTICED
        self.push(FATAL, {"b": "s0"}, again=True)
        self.answer(FATAL, alone)
        for round in range(FATAL + 1, ROUNDS + 1):
            self.push(round, alone)
            self.answer(round, alone)
        self.gone("s1", died, self.now)
        return self.trace()

    def push(self, round: int, primaries: dict[str, str], again: bool = False) -> None:
        self.now += 0 if again else COMPUTING
        for half, server in primaries.items():
            for node in WORKERS:
                self.send(round, half, node, server, "add", (node,))
        self.now += TRAVEL

    def answer(self, round: int, primaries: dict[str, str]) -> None:
        for node in WORKERS:
            for half, server in primaries.items():
                self.send(round, half, server, node, "copy", WORKERS)
        self.now += TRAVEL

    def copy(self, ways: list[tuple[str, str, str]], rounds: "range | list[int]") -> None:
        for src, dst, half in ways:
            for round in rounds:
                self.send(round, half, src, dst, "copy", WORKERS)
        self.now += TRAVEL

    def send(self, round: int, half: str, src: str, dst: str, op: str, carries: tuple[str, ...]) -> None:
        ends = self.now, self.now + TRAVEL, src, dst
        self.events.append(Event("send", round, *ends, f"{half}{round}", op, NBYTES, carries))

    def gone(self, node: str, start: float, end: float) -> None:
        self.events.append(Event("gone", FATAL, start, end, node, node, "a1", "gone", 0))

    def trace(self) -> Trace:
        used = dict.fromkeys((event.src, event.dst) for event in self.events if event.kind == "send")
        links = [Link(*pair, f"{NBYTES / TRAVEL / 1e9:g} GB/s") for pair in used]
        network = Topology("network", dict.fromkeys(self.nodes, "machine"), links)
        keys = [f"{half}{round}" for half in HALVES for round in range(1, ROUNDS + 1)]
        share = {key: Fraction(1, len(keys)) for key in keys}
        plan = Plan(self.nodes, share, [[] for _ in range(ROUNDS)], holds=WORKERS, wants=[])
        events = tuple(sorted(self.events, key=lambda event: (event.start, event.end)))
        return Trace("shared", plan, network, NBYTES * len(keys), events)


def moving() -> str:
    """The hash ring of five servers, and the same without server 2: only its stretches have other colours."""
    parts = []
    for i, servers in enumerate(((0, 1, 2, 3, 4), (0, 1, 3, 4))):
        x, y, ring = 116.0 + 250 * i, 118.0, Placement(servers, virtual=8).ring
        before = ring[-1][0] - 2**64, ring[-1][1]
        for (start, _), (end, owner) in pairwise((before, *ring)):
            parts.append(tag("path", d=_stretch(x, y, start / 2**64, end / 2**64), **worker(owner)))
        parts.append(number(i + 1, x, y))
    for server in range(5):
        parts.append(tag("rect", x=500, y=60 + 26 * server, width=13, height=13, rx=2, **worker(server)))
        parts.append(words(f"server{server}", 522, 72 + 26 * server, anchor="start"))
    return sheet(620, 236, " ".join(f"server{server}" for server in range(5)), *parts)


def _stretch(x: float, y: float, start: float, end: float, outer: float = 92.0, inner: float = 62.0) -> str:
    """A piece of a ring around (x, y), from one part of a turn to another, less than half of it."""

    def at(turn: float, far: float) -> str:
        angle = 2 * math.pi * turn - math.pi / 2
        return f"{fine(x + far * math.cos(angle))} {fine(y + far * math.sin(angle))}"

    out, back = f"A{outer:g} {outer:g} 0 0 1 {at(end, outer)}", f"A{inner:g} {inner:g} 0 0 0 {at(start, inner)}"
    return f"M{at(start, outer)}{out}L{at(end, inner)}{back}Z"
