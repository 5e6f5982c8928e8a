"""The figures of this chapter: without a word of any language, so that one file serves all three.

Numbers come from topologies and traces; a test compares the files in ``img/`` with what is drawn here.
"""

from d2lps import cost
from d2lps.algorithms import aggregate_at, sharded
from d2lps.plan import Plan
from d2lps.topology.hosts import pcie_server
from d2lps.units import Bandwidth, bandwidth, show_seconds
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.scene import race as level
from d2lps.view.drawing.svg import HALF, HIGH, area, arrow, box, cell, gpu, number, sheet, symbol, tag, words, worker
from d2lps.view.drawing.timeline import timeline

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]
BELOW = "₀₁₂₃"


def opening() -> dict:
    """The race of this chapter, three meeting places, with another size and other links than those asked for later."""
    server = pcie_server(gpus=4, bandwidth="32 GB/s")
    return {name: cost.shared(plan, server, "200 MB") for name, plan in _plans().items()}


def ps() -> str:
    """Training on one GPU; and on four: (1) loss and gradient, (2) the sum on GPU 0, (3) new weights for everyone."""
    data, gradient, total, weights = 50.0, 108.0, 186.0, 264.0
    wide, high, parts = 720.0, 338.0, []

    def lane(x: float, i: int, of: int) -> None:
        below = BELOW[i] if of > 1 else ""
        parts.extend(
            [
                box(x - 58, 12, 112, high - 24),
                gpu(i, x, 34),
                box(x - 26, data, 52, 26, rx=13),
                words("X" + below, x, data + 17.5, font_style="italic"),
                arrow((x, data + 28), (x, gradient - 3)),
                number(1, x - 24, data + 44),
                symbol("ℓ" + below, x + 12, data + 47, "start"),
                cell(x, gradient, (i,), of),
                symbol("∇ℓ" + below, x - 34, gradient + 22, "end"),
                cell(x, weights, tuple(range(of)), of, updated=True),
                symbol("w", x, weights + HIGH + 17),
            ]
        )

    lane(80, 0, 1)
    parts += [arrow((80, gradient + HIGH + 3), (80, weights - 4)), number(3, 64, weights - 34)]
    home, *others = (264.0 + 126 * i for i in range(4))
    for i, x in enumerate((home, *others)):
        lane(x, i, 4)
    parts.append(arrow((home, gradient + HIGH + 3), (home, total - 3)))
    parts.append(arrow((home, total + HIGH + 3), (home, weights - 4)))
    for i, x in enumerate(others):
        parts.append(arrow((x, gradient + HIGH + 3), (home + HALF + 1, total + 8 + 9 * i)))
        parts.append(arrow((home + HALF + 1, total + 30), (x - HALF - 1, weights + 6)))
    parts += [cell(home, total, (0, 1, 2, 3), 4), symbol("Σ∇ℓ", home - 34, total + 22, "end")]
    parts += [number(2, others[0] - 24, total - 22), number(3, others[0] - 24, weights - 22)]
    return sheet(wide, high, "GPU 0 … GPU 3: X, ℓ, ∇ℓ, Σ∇ℓ, w", *parts)


def bw_hierarchy() -> str:
    """A server with four GPUs; every link as thick as it is fast, one way."""
    server = pcie_server(gpus=4, bandwidth="16 GB/s")
    pcie, fast, slow = server.route("gpu0", "switch")[0].bandwidth, bandwidth("100 Gbit/s"), bandwidth("1 Gbit/s")
    wide, high, middle, parts = 500.0, 356.0, 246.0, []

    def link(x: float, top: float, bottom: float, rate: float, *lines: str) -> None:
        half = rate / 1e9
        parts.append(tag("rect", x=x - half, y=top, width=2 * half, height=bottom - top, **area("busy")))
        for i, one in enumerate(lines):
            y, colour = (top + bottom) / 2 + 4 + (i - (len(lines) - 1) / 2) * 15, "ink" if i else "soft"
            parts.append(words(one, x + max(half, 14) + 8, y, "note", colour, "start"))

    def node(name: str, y: float, w: float) -> None:
        parts.append(box(middle - w / 2, y, w, 36) + words(name, middle, y + 22.5))

    link(middle, 48, 96, fast, "100 GbE", str(fast))
    link(middle - 78, 48, 96, 10 * slow)
    parts.append(words("1–10 GbE", middle - 92, 68, "note", "soft", "end"))
    parts.append(words(f"{slow} – {Bandwidth(10 * slow)}", middle - 92, 83, "note", "ink", "end"))
    link(middle, 132, 184, pcie, "PCIe 3.0 ×16", str(pcie))
    for i in range(4):
        x = middle + (i - 1.5) * 116
        link(x, 220, 284, pcie, "×16", str(pcie))
        parts.append(box(x - 48, 284, 96, 60) + gpu(i, x + 5, 318.5))
    node("Ethernet", 12, 300)
    node("CPU", 96, 220)
    node("PCIe", 184, 452)
    return sheet(wide, high, f"100 GbE = {fast}, PCIe 3.0 ×16 = {pcie}", *parts)


def ps_distributed() -> str:
    """Three ways to synchronise the same 160 MB on the same server, at a telling moment, on one scale of time."""
    scenes, row, wide, y, parts = _scenes(), 22.0, 330.0, 12.0, [_unit(124, 32)]
    longest = max(scene.trace.duration for scene in scenes.values())
    right = max(scene.view[2] for scene in scenes.values()) + 88
    for name, scene in scenes.items():
        (_, _, w, h), trace, moment = scene.view, scene.trace, scene.motion.telling()
        nodes, long = trace.plan.nodes, wide * trace.duration / longest
        top, took = y + 30 + (h - row * len(nodes)) / 2, show_seconds(trace.duration)
        parts += [
            words(name, 26, y + 20, anchor="start", font_weight=700),
            scene.svg(moment, x=14, y=y + 28, width=w, height=h),
            timeline(trace, scene.motion, moment, x=right, y=top, width=long, height=row * len(nodes)),
            words(took, right + max(long, 44), top - 8, anchor="end", font_weight=700),
            *(words(node, right - 8, top + row * (i + 0.5) + 4, "note", "soft", "end") for i, node in enumerate(nodes)),
        ]
        y += h + 36
    names = ", ".join(f"{name} {show_seconds(scene.trace.duration)}" for name, scene in scenes.items())
    return sheet(right + wide + 18, y + 4, names, *parts, style="--d2-zoom:1.5")


def _unit(x: float, y: float) -> str:
    """Return the unit of the numbers beside the links."""
    blocks = (tag("rect", x=x - 26 + 11 * i, y=y - 8, width=11, height=8, **worker(i)) for i in range(2))
    return words("MB", x, y, "note", "soft", None) + "".join(blocks)


def _plans() -> dict[str, Plan]:
    return {"GPU 0": aggregate_at(GPUS, "gpu0"), "CPU": aggregate_at(GPUS, "cpu"), "shards": sharded(GPUS)}


def _scenes() -> dict[str, Scene]:
    server = pcie_server(gpus=4, bandwidth="16 GB/s")
    scenes = {name: Scene(cost.shared(plan, server, "160 MB"), widest=76) for name, plan in _plans().items()}
    level([*scenes.values()])
    return scenes
