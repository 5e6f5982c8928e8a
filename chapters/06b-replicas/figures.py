"""With what this chapter opens, and its figure: both without a word of any language."""

import math
from itertools import pairwise

from d2lps import Trace
from d2lps.algorithms.placement import Placement
from d2lps.notebook.grading.course import CHAPTERS, chapter_module
from d2lps.view.drawing.shapes import number, sheet
from d2lps.view.drawing.svg import fine, tag, words, worker

training = chapter_module(CHAPTERS / "06-faults", "figures")
ROUNDS, FATAL, SAVED = 6, 4, 2  # in which round s1 dies, and of which there is a checkpoint


def opening() -> dict[str, Trace]:
    """A server dies: everything goes back to a checkpoint, or the other server has a copy, and takes over."""
    nodes = {"rounds": ROUNDS, "fatal": FATAL}
    return {
        "checkpoint": training.Run("disk", **nodes).back_to_checkpoint(SAVED),
        "replica": _taken_over(training.Run(**nodes)),
    }


def _taken_over(run) -> Trace:
    alone = dict.fromkeys(training.HALVES, "s0")
    for round in range(1, run.fatal):
        run.push(round, training.HALVES)
        run.copy([("s0", "s1", "a"), ("s1", "s0", "b")], [round])
        run.answer(round, training.HALVES)
    run.push(run.fatal, training.HALVES)
    died = run.now
    run.now += training.NOTICED
    run.push(run.fatal, {"b": "s0"}, again=True)
    run.answer(run.fatal, alone)
    for round in range(run.fatal + 1, run.rounds + 1):
        run.push(round, alone)
        run.answer(round, alone)
    run.gone("s1", died, run.now)
    return run.trace()


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
