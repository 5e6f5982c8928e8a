"""The course's figures: without a word of any language, so that one file serves all three.

Numbers come from topologies and traces; a test compares the files in ``img/`` with what is drawn here.
"""

import math

from d2lps import cost
from d2lps.algorithms import aggregate_at, sharded
from d2lps.drawing.scene import Scene
from d2lps.drawing.svg import (
    Point,
    area,
    corners,
    hatch,
    letters,
    line,
    num,
    rect,
    say,
    shift,
    stroke,
    tag,
    worker,
)  # fmt: skip
from d2lps.drawing.theme import STYLE
from d2lps.drawing.timeline import timeline
from d2lps.topology import pcie_server
from d2lps.units import Bandwidth, bandwidth, show_seconds

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]
BELOW = "₀₁₂₃"
HALF, HIGH = 26.0, 36.0  # of a cell


def figures() -> dict[str, str]:
    """Name → SVG."""
    drawn = {"ps": ps(), "bw-hierarchy": bw_hierarchy(), "ps-distributed": ps_distributed()}
    return {name: svg + "\n" for name, svg in drawn.items()}


def _sheet(wide: float, high: float, title: str, *parts: str, **more: object) -> str:
    paper = tag("rect", width=wide, height=high, rx=12, **area("paper"))
    inside = "".join([tag("title", say(title)), tag("style", STYLE), paper, *parts])
    return tag("svg", inside, class_="d2lps d2-still", xmlns="http://www.w3.org/2000/svg", role="img",
               viewBox=f"0 0 {num(wide)} {num(high)}", width=wide, **more)  # fmt: skip


def _box(x: float, y: float, w: float, h: float, rx: float = 8) -> str:
    return tag("rect", x=x, y=y, width=w, height=h, rx=rx, **area("box", 1))


def _words(words: str, x: float, y: float, size="name", colour="ink", anchor="middle", **more: object) -> str:
    return tag("text", say(words), x=x, y=y, **letters(size, colour, anchor, **more))


def _symbol(words: str, x: float, y: float, anchor: str = "middle") -> str:
    return _words(words, x, y, "note", "soft", anchor, font_style="italic")


def _number(number: int, x: float, y: float) -> str:
    return _words(f"({number})", x, y + 4, "note", "accent", font_weight=700)


def _gpu(number: int, x: float, y: float) -> str:
    dot = tag("circle", cx=x - 31, cy=y - 4.5, r=5, **worker(number))
    return dot + _words(f"GPU {number}", x - 20, y, anchor="start")


def _arrow(a: Point, b: Point) -> str:
    (ax, ay), (bx, by) = a, b
    length = math.dist(a, b)
    ux, uy = (bx - ax) / length, (by - ay) / length
    tip = corners(b, (bx - 8 * ux - 4 * uy, by - 8 * uy + 4 * ux), (bx - 8 * ux + 4 * uy, by - 8 * uy - 4 * ux))
    return tag("path", d=line(a, (bx - 6 * ux, by - 6 * uy)), **stroke("line")) + tag("path", d=tip, **area("busy"))


def _cell(x: float, y: float, contributors: tuple[int, ...], of: int, updated: bool = False) -> str:
    """A cell as every drawing has it, its middle at x, with a slot per worker."""
    w, h = 2 * HALF, HIGH
    parts = [tag("rect", width=w, height=h, **area("well"))]
    parts += [tag("path", d=rect(0, h * (1 - (c + 1) / of), w, h / of), **worker(c)) for c in contributors]
    parts.append(tag("path", d=hatch(0, 0, w, h), **stroke("new")) if updated else "")
    parts.append(tag("path", d=rect(0, 0, w, h), **stroke("done")) if len(contributors) == of else "")
    return tag("g", "".join(parts), transform=shift(x - w / 2, y))


def ps() -> str:
    """Training on one GPU; and on four: (1) loss and gradient, (2) the sum on GPU 0, (3) new weights for everyone."""
    data, gradient, total, weights = 50.0, 108.0, 186.0, 264.0
    wide, high, parts = 720.0, 338.0, []

    def lane(x: float, number: int, of: int) -> None:
        below = BELOW[number] if of > 1 else ""
        parts.extend([
            _box(x - 52, 12, 104, high - 24), _gpu(number, x, 34),
            _box(x - 26, data, 52, 26, rx=13), _words("X" + below, x, data + 17.5, font_style="italic"),
            _arrow((x, data + 28), (x, gradient - 3)), _number(1, x - 24, data + 44),
            _symbol("ℓ" + below, x + 12, data + 47, "start"),
            _cell(x, gradient, (number,), of), _symbol("g" + below, x - 34, gradient + 22, "end"),
            _cell(x, weights, tuple(range(of)), of, updated=True), _symbol("w", x, weights + HIGH + 17),
        ])  # fmt: skip

    lane(80, 0, 1)
    parts += [_arrow((80, gradient + HIGH + 3), (80, weights - 4)), _number(3, 64, weights - 34)]
    home, *others = (260.0 + 124 * i for i in range(4))
    for i, x in enumerate((home, *others)):
        lane(x, i, 4)
    parts.append(_arrow((home, gradient + HIGH + 3), (home, total - 3)))
    parts.append(_arrow((home, total + HIGH + 3), (home, weights - 4)))
    for i, x in enumerate(others):
        parts.append(_arrow((x, gradient + HIGH + 3), (home + HALF + 1, total + 8 + 9 * i)))
        parts.append(_arrow((home + HALF + 1, total + 30), (x - HALF - 1, weights + 6)))
    parts += [_cell(home, total, (0, 1, 2, 3), 4), _symbol("Σg", home - 34, total + 22, "end")]
    parts += [_number(2, others[0] - 24, total - 22), _number(3, others[0] - 24, weights - 22)]
    return _sheet(wide, high, "GPU 0 … GPU 3: X, ℓ, g, Σg, w", *parts)


def bw_hierarchy() -> str:
    """A server with four GPUs; every link as thick as it is fast, one way."""
    server = pcie_server(gpus=4, bandwidth="16 GB/s")
    pcie, fast, slow = server.route("gpu0", "switch")[0].bandwidth, bandwidth("100 Gbit/s"), bandwidth("1 Gbit/s")
    wide, high, middle, parts = 500.0, 356.0, 246.0, []

    def link(x: float, top: float, bottom: float, rate: float, *words: str) -> None:
        half = rate / 1e9
        parts.append(tag("rect", x=x - half, y=top, width=2 * half, height=bottom - top, **area("busy")))
        for i, one in enumerate(words):
            y, colour = (top + bottom) / 2 + 4 + (i - (len(words) - 1) / 2) * 15, "ink" if i else "soft"
            parts.append(_words(one, x + max(half, 14) + 8, y, "note", colour, "start"))

    def node(words: str, y: float, w: float) -> None:
        parts.append(_box(middle - w / 2, y, w, 36) + _words(words, middle, y + 22.5))

    link(middle, 48, 96, fast, "100 GbE", str(fast))
    link(middle - 78, 48, 96, 10 * slow)
    parts.append(_words("1–10 GbE", middle - 92, 68, "note", "soft", "end"))
    parts.append(_words(f"{slow} – {Bandwidth(10 * slow)}", middle - 92, 83, "note", "ink", "end"))
    link(middle, 132, 184, pcie, "PCIe 3.0 ×16", str(pcie))
    for i in range(4):
        x = middle + (i - 1.5) * 116
        link(x, 220, 284, pcie, "×16", str(pcie))
        parts.append(_box(x - 48, 284, 96, 60) + _gpu(i, x + 5, 318.5))
    node("Ethernet", 12, 300)
    node("CPU", 96, 220)
    node("PCIe", 184, 452)
    return _sheet(wide, high, f"100 GbE = {fast}, PCIe 3.0 ×16 = {pcie}", *parts)


def ps_distributed() -> str:
    """Three ways to synchronise the same 160 MB on the same server, at a telling moment, on one scale of time."""
    server = pcie_server(gpus=4, bandwidth="16 GB/s")
    plans = {"GPU 0": aggregate_at(GPUS, "gpu0"), "CPU": aggregate_at(GPUS, "cpu"), "GPU 0–3": sharded(GPUS)}
    scenes = {name: Scene(cost.shared(plan, server, "160 MB"), widest=76) for name, plan in plans.items()}
    longest = max(scene.trace.duration for scene in scenes.values())
    tall = max(scene.layout.height for scene in scenes.values())
    x, parts, row = 14.0, [], 16.0
    for name, scene in scenes.items():
        w, h, trace = scene.layout.width, scene.layout.height, scene.trace
        at = scene.motion.telling()
        parts.append(_words(name, x + 10, 32, anchor="start", font_weight=700))
        parts.append(_words(show_seconds(trace.duration), x + w - 10, 32, anchor="end", font_weight=700))
        parts.append(scene.svg(at, x=x, y=44 + tall - h, width=w, height=h))
        long, rows = (w - 64) * trace.duration / longest, row * len(trace.plan.nodes)
        parts.append(timeline(trace, scene.motion, at, x=x + 54, y=56 + tall, width=long, height=rows))
        parts += [_words(node, x + 48, 56 + tall + row * (i + 0.5) + 4, "note", "soft", "end")
                  for i, node in enumerate(trace.plan.nodes)]  # fmt: skip
        parts.append(_words(show_seconds(trace.duration), x + 54 + long, 72 + tall + rows, "note", "soft",
                            "end" if long > 60 else "middle"))  # fmt: skip
        x += w + 24
    names = ", ".join(f"{name} {show_seconds(scene.trace.duration)}" for name, scene in scenes.items())
    return _sheet(x - 10, 56 + tall + row * 5 + 30, names, *parts, style="--d2-zoom:1.5")
