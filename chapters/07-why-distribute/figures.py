"""The runs with which this chapter opens, and its figures: both without a word of any language."""

import math

from d2lps import Link, Topology, Trace, cost, ring
from d2lps.scaling.published import CHIPS, TRAINED
from d2lps.schedule import Collective, Schedule, Task, Value
from d2lps.view.drawing.svg import area, arrow, box, fine, sheet, stroke, symbol, tag, words, worker

COMPUTING, GRADIENT = 0.008, 10**6  # seconds for the whole minibatch on one machine, and bytes


def opening() -> dict[str, Trace]:
    """The same minibatch on 1, 2 and 4 machines: its examples are shared out, and the gradients are added up."""
    return {f"n = {n}": _shared_out(n) for n in (1, 2, 4)}


def _shared_out(n: int) -> Trace:
    nodes = [f"host{i}" for i in range(n)]
    values, acts = {"g": Value(GRADIENT, tuple(nodes))}, []
    for node in nodes:
        values |= {f"x:{node}": Value(0), f"u:{node}": Value(0)}
        acts.append(Task(node, "F", "", None, (f"x:{node}",), (f"u:{node}",), (), COMPUTING / 3 / n))
        acts.append(Task(node, "B", "", None, (f"u:{node}",), (("g", node),), (f"u:{node}",), COMPUTING * 2 / 3 / n))
    acts += [Collective(ring(nodes), "g")] if n > 1 else []
    schedule = Schedule(nodes, values, acts, [(node, f"x:{node}") for node in nodes], [(node, "g") for node in nodes])
    links = [Link(a, b, "100 MB/s") for a in nodes for b in nodes if a != b]
    return cost.shared(schedule, Topology("hosts", dict.fromkeys(nodes, "cpu"), links))


def why_growth() -> str:
    """Compute of whole trainings, on a logarithmic scale, beside one GPU that begins at the same point."""
    left, top, wide, high = 64, 16, 520, 320
    first, last = 2012, 2027

    def at(year: float, power: float) -> tuple[float, float]:
        return left + wide * (year - first) / (last - first), top + high * (28 - power) / (28 - 16)

    parts = []
    for power in range(16, 29, 2):
        _, y = at(first, power)
        parts.append(
            tag("path", d=f"M{left} {fine(y)}h{wide}", **stroke("gaps", 1, "edge"), style="stroke:var(--d2-edge)")
        )
        parts.append(words(f"10{_raised(power)}", left - 8, y + 4, "note", "soft", "end"))
    for year in range(first, last + 1, 3):
        parts.append(words(str(year), at(year, 16)[0], top + high + 18, "note", "soft"))
    models = [*TRAINED.values()]
    start = math.log10(models[0].flops)
    for each, grows in (("18", 12 / 18), ("3.4", 12 / 3.4)):
        year = min(last, models[0].year + (28 - start) / grows / math.log10(2))
        a, b = at(models[0].year, start), at(year, start + grows * math.log10(2) * (year - models[0].year))
        parts.append(
            tag(
                "path",
                d=f"M{fine(a[0])} {fine(a[1])}L{fine(b[0])} {fine(b[1])}",
                stroke_dasharray="6 4",
                **stroke("line", 1.5),
            )
        )
        parts.append(
            words(
                f"×2 / {each} m",
                b[0] - (4 if each == "18" else -6),
                b[1] + (-8 if each == "18" else 12),
                "note",
                "soft",
                "end" if each == "18" else "start",
            )
        )
    chips = [*CHIPS.values()]
    for chip in chips:
        x, y = at(chip.year, math.log10(chip.flops * 86400 * 30))
        parts += [
            tag("rect", x=x - 4, y=y - 4, width=8, height=8, **worker(1)),
            words(chip.name, x, y + 20, "note", "soft"),
        ]
    for i, model in enumerate(models):
        x, y = at(model.year, math.log10(model.flops))
        if model.low:
            (_, above), (_, below) = at(0, math.log10(model.high)), at(0, math.log10(model.low))
            parts.append(tag("path", d=f"M{fine(x)} {fine(above)}V{fine(below)}", **stroke("line", 2)))
        before = i % 2 or model is models[-1]  # names stand on both sides in turn, so that they do not meet
        place = (x - 10, y - 3, "note", "ink", "end") if before else (x + 10, y + 11, "note", "ink", "start")
        parts += [tag("circle", cx=x, cy=y, r=5, **worker(0)), words(model.name, *place)]
    return sheet(left + wide + 24, top + high + 30, "FLOP", *parts)


def _raised(power: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def why_one_node() -> str:
    """A program of three operators, its gradients, and the same on several nodes with a sum."""
    parts = [*_program(20, 20, "x", "op1 op2 op3".split())]
    for i in range(2):
        parts += _program(20, 150 + 108 * i, f"x{i + 1}", "op1 op2 op3".split(), i)
    x = 474
    parts += [tag("circle", cx=x, cy=246, r=16, **area("box", 1)), words("∑", x, 251, font_weight=700)]
    parts += [arrow((x - 56, 196), (x - 11, 231)), arrow((x - 56, 288), (x - 11, 261))]
    parts += [arrow((x + 17, 246), (x + 46, 246)), words("g", x + 58, 251)]
    return sheet(580, 366, "x → op1 → op2 → op3; g3, g2, g1", *parts, style="--d2-zoom:1.2")


def _program(x: float, y: float, data: str, operators: list[str], node: int = 0) -> list[str]:
    parts = [box(x, y + 14, 44, 40), words(data, x + 22, y + 39)]
    for i, name in enumerate(operators):
        left = x + 84 + 112 * i
        parts.append(tag("rect", x=left, y=y + 8, width=76, height=52, rx=8, **worker(node)))
        parts.append(tag("rect", x=left + 14, y=y + 24, width=48, height=18, rx=9, **area("paper")))
        parts += [words(name, left + 38, y + 38)]
        parts.append(arrow((left - 34, y + 26), (left - 2, y + 26)))
        if i:
            parts.append(arrow((left - 2, y + 48), (left - 34, y + 48)))
        parts += [arrow((left + 38, y + 62), (left + 38, y + 80)), symbol(f"g{i + 1}", left + 38, y + 94)]
    return parts
