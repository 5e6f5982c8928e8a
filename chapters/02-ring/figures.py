"""Figures about rings: the links of eight GPUs, the two rings that they are, and what a ring does step by step."""

from dataclasses import replace

from d2lps import cost
from d2lps.algorithms import naive_ring, ring
from d2lps.plan.acts import sends
from d2lps.plan.checking import replay
from d2lps.topology import Link, Topology
from d2lps.topology.cycles import Ring, rings
from d2lps.topology.hosts import dgx1_v100
from d2lps.trace import Trace
from d2lps.view.drawing.layout import arrange
from d2lps.view.drawing.links import network
from d2lps.view.drawing.svg import arrow, cell, gpu, line, number, sheet, stroke, tag, words
from d2lps.view.drawing.theme import THIN

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def opening() -> dict[str, Trace]:
    """The race that opens the chapter: the same bytes round the same circle, whole and in chunks.

    Six GPUs, so that the four of the lesson are still the reader's to predict.
    """
    gpus = [f"gpu{i}" for i in range(6)]
    hops = zip(gpus, gpus[1:] + gpus[:1], strict=True)
    circle = Topology("circle", dict.fromkeys(gpus, "gpu"), [Link(src, dst, "16 GB/s") for src, dst in hops])
    plans = {"c = 1": naive_ring(gpus), "c = 6": ring(gpus)}
    return {name: cost.shared(plan, circle, "160 MB") for name, plan in plans.items()}


def nvlink() -> str:
    """Who is linked with whom on a server with eight V100: NVLinks in front, PCIe behind them."""
    server = dgx1_v100()
    place = arrange(server)
    widths = ", ".join(f"{link.count} × {link.bandwidth}" for link in _kinds(server))
    drawn = network(server, place, x=8, y=8, width=place.width, height=place.height)
    return sheet(place.width + 16, place.height + 16, f"GPU 0 … GPU 7: {widths}", drawn, looks=THIN)


def _kinds(topology: Topology) -> list:
    """One link of each kind between GPUs, the widest first."""
    gpus = [link for link in topology.links if {topology.kinds[link.src], topology.kinds[link.dst]} == {"gpu"}]
    return sorted({(link.count, link.bandwidth): link for link in gpus}.values(), key=lambda link: -link.count)


def nvlink_twoloop() -> str:
    """The same NVLinks as rings through all GPUs, side by side."""
    server = dgx1_v100()
    place, parts, x = arrange(server), [], 8.0
    loops = rings(server)
    for each in loops:
        part = _only(server, each)
        parts.append(network(part, place, server, x=x, y=8, width=place.width, height=place.height))
        rate = f"{each.count} × {part.links[0].bandwidth}"
        parts.append(words(rate, x + place.width / 2, 12 + place.height / 2, font_weight=700))
        x += place.width + 12
    around = ", ".join(" → ".join(node.removeprefix("gpu") for node in each.nodes) for each in loops)
    return sheet(x - 4, place.height + 16, around, *parts, looks=THIN, style="--d2-zoom:1.5")


def _only(topology: Topology, ring: Ring) -> Topology:
    """The GPUs of ``topology`` with the links of one ring, as many of each as are its own."""
    hops = {frozenset(pair) for pair in zip(ring.nodes, ring.nodes[1:] + ring.nodes[:1], strict=True)}
    links = [replace(link, count=ring.count) for link in topology.links if {link.src, link.dst} in hops]
    return Topology(topology.name, {node: topology.kinds[node] for node in ring.nodes}, links)


def ringsync() -> str:
    """A ring of four, step by step: the sums come together in the upper half, and go round in the lower half."""
    plan = ring(GPUS)
    states = [dict(have) for _, have in replay(plan)]
    half, high, row, pitch, left = 13.5, 40.0, 62.0, 176.0, 122.0
    keys, count, phase = list(plan.share), len(GPUS), len(plan.steps) // 2
    wide, below = left + phase * pitch + 2 * count * half + 34, 46 + count * row
    parts = []

    def buffers(state: int, x: float, y: float) -> None:
        for i, node in enumerate(plan.nodes):
            for k, key in enumerate(keys):
                who = states[state][node, key].who
                inside = [j for j in range(count) if who >> j & 1]
                parts.append(cell(x + (2 * k + 1) * half, y + i * row, inside, count, half=half - 0.8, high=high))

    for part, top in enumerate((46.0, 46.0 + below)):
        first = part * phase
        parts += [gpu(i, 66, top + i * row + high / 2 + 4) for i in range(count)]
        parts += [words(key, left + (2 * k + 1) * half, top - 8, "key", "soft") for k, key in enumerate(keys)]
        for t in range(phase + 1):
            buffers(first + t, left + t * pitch, top)
        for t, step in enumerate(plan.steps[first : first + phase]):
            start, end = left + t * pitch + 2 * count * half + 5, left + (t + 1) * pitch - 5
            parts.append(number(first + t + 1, (start + end) / 2, top + (count - 0.5) * row + high / 2 + 13))
            for send in sends(step):
                parts += _moved(send, plan, states[first + t], start, end, top + high / 2, row)
    return sheet(wide, 46 + 2 * below - 14, f"GPU 0 … GPU {count - 1}: (1) … ({len(plan.steps)})", *parts)


def _moved(send, plan, have, start: float, end: float, top: float, row: float) -> list[str]:
    """The arrow of a message with what it carries; one that goes on at the other end leaves below, comes in above."""
    count, src, dst = len(plan.nodes), plan.nodes.index(send.src), plan.nodes.index(send.dst)
    who, middle = have[send.src, send.key].who, (start + end) / 2
    last = dst < src
    y = top + (dst - 1) * row
    parts = [arrow((middle if last else start, y + row / 2 if last else y), (end, y + row))]
    if last:
        parts.append(
            tag("path", d=line((start, top + src * row), (middle, top + src * row + row / 2)), **stroke("line"))
        )
    inside = [j for j in range(count) if who >> j & 1]
    parts.append(cell(middle, y + row / 2 - 11, inside, count, half=7.0, high=22.0))
    return parts
