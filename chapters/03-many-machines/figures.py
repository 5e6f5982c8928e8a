"""Figures about many machines: the seven steps of one training step, and one server beside several."""

from collections.abc import Iterable
from fractions import Fraction

from d2lps import cost
from d2lps.algorithms import aggregate_at, ring, sharded
from d2lps.topology import Link, Topology, machines
from d2lps.trace import Trace
from d2lps.units import size
from d2lps.view.drawing.svg import area, arrow, box, cell, number, sheet, tag, words, worker


def opening() -> dict[str, Trace]:
    """The race that opens the chapter: four machines and one server, four servers, or none.

    Faster cards and a larger gradient than in the lesson, whose times are the reader's to predict.
    """
    hosts, servers = ([f"{what}{i}" for i in range(4)] for what in ("host", "server"))
    plans = {"1 server": aggregate_at(hosts, "server0"), "4 servers": sharded(hosts, servers), "ring": ring(hosts)}
    return {name: cost.shared(plan, _network(plan.nodes), "160 MB") for name, plan in plans.items()}


def _network(nodes: Iterable[str]) -> Topology:
    """Machines on one network switch, a card of 10 Gbit/s each."""
    pairs = [pair for node in nodes for pair in ((node, "network"), ("network", node))]
    kinds = dict.fromkeys(nodes, "machine") | {"network": "switch"}
    return Topology("machines", kinds, [Link(*pair, "10 Gbit/s") for pair in pairs])


def ps_multimachine() -> str:
    """Two machines with two GPUs each and a server: the act of each of the seven steps, from top to bottom."""
    wide, lane, own = 760.0, 80.0, 276.0
    data, gradient, inside, server, back, weights = 46.0, 98.0, 184.0, 262.0, 354.0, 426.0
    parts = []
    for machine in range(2):
        left = 12 + machine * (wide - 24 - own)
        parts += [box(left, 10, own, 500), words(f"host{machine}", left + own / 2, 500, "note", "soft")]
        middle = left + own / 2
        for i in range(2):
            x, who = left + own / 2 + (2 * i - 1) * lane, 2 * machine + i
            parts += [
                tag("circle", cx=x - 26, cy=29.5, r=5, **worker(who)),
                words(f"GPU {i}", x - 15, 34, anchor="start"),
                box(x - 26, data, 52, 24, rx=12),
                words("X" + "₀₁₂₃"[who], x, data + 16.5, font_style="italic"),
                arrow((x, data + 26), (x, gradient - 3)),
                number(1, x - 42, data + 12),
                number(2, x - 18, data + 37),
                cell(x, gradient, (who,), 4),
                arrow((x, gradient + 39), (middle + (2 * i - 1) * 22, inside - 3)),
                number(3, x - (2 * i - 1) * 12, gradient + 62),
                arrow((middle + (2 * i - 1) * 22, back + 39), (x, weights - 3)),
                number(7, x - (2 * i - 1) * 42, back + 66),
                cell(x, weights, range(4), 4, updated=True),
            ]
        both = (2 * machine, 2 * machine + 1)
        parts += [
            cell(middle, inside, both, 4),
            words("CPU", middle - (2 * machine - 1) * -44, inside + 22),
            cell(middle, back, range(4), 4, updated=True),
            words("CPU", middle - (2 * machine - 1) * -44, back + 22),
        ]
        side = 1 - 2 * machine  # the server stands to the right of the first machine, to the left of the second
        near, far = middle + side * 29, wide / 2 - side * 31
        parts += [
            arrow((near, inside + 24), (far, server + 12)),
            number(4, (near + far) / 2, (inside + server) / 2 + 4),
            arrow((far, server + 66), (near, back + 14)),
            number(6, (near + far) / 2, (server + back) / 2 + 56),
        ]
    parts += [
        box(wide / 2 - 62, server - 30, 124, 134),
        words("server0", wide / 2, server - 12),
        cell(wide / 2, server, range(4), 4),
        arrow((wide / 2, server + 38), (wide / 2, server + 56)),
        number(5, wide / 2 + 16, server + 46),
        cell(wide / 2, server + 58, range(4), 4, updated=True),
    ]
    return sheet(wide, 520, "host0, host1, server0: (1) … (7)", *parts)


def ps_multips() -> str:
    """Three machines: above with one server, below each with a third of the server; links as thick as what passes."""
    names = [f"host{i}/cpu" for i in range(3)]
    network = machines(3, 0, "400 Mbit/s", servers=1)
    above, below = (cost.shared(plan, network, "4 MB") for plan in (aggregate_at(names, "server0"), sharded(names)))
    wide, middle, parts = 560.0, 280.0, []

    def cable(trace: Trace, node: str, x: float, y: float, end: float) -> None:
        """The card of a node, with what passes it one way, in units of the gradient."""
        passes = Fraction(trace.bytes_sent(node) / size("4 MB")).limit_denominator(9)
        half = float(5 * passes)
        parts.append(tag("rect", x=x - half, y=min(y, end), width=2 * half, height=abs(end - y), **area("busy")))
        parts.append(
            words("S" if passes == 1 else f"{passes} S", x + half + 8, (y + end) / 2 + 4, "note", "ink", "start")
        )

    def machine(i: int, y: float, with_server: bool) -> None:
        x = middle + (i - 1) * 176
        parts.append(box(x - 70, y, 140, 82 if with_server else 62))
        parts.append(words(names[i].partition("/")[0], x, y + 19))
        parts.append(cell(x - (32 if with_server else 0), y + 28, (i,), 3, high=26.0))
        if with_server:
            parts.append(cell(x + 34, y + 28, range(3), 3, half=26 / 3, high=26.0))
            parts.append(words("1/3", x + 34, y + 71, "note", "soft"))

    parts += [box(middle - 70, 10, 140, 62), words("server0", middle, 29), cell(middle, 38, range(3), 3, high=26.0)]
    cable(above, "server0", middle, 72, 120)
    parts += [box(60, 120, wide - 120, 22), words("network", middle, 135, "note", "soft")]
    for i, node in enumerate(names):
        cable(above, node, middle + (i - 1) * 176, 142, 186)
        machine(i, 186, with_server=False)
    parts += [box(60, 280, wide - 120, 22), words("network", middle, 295, "note", "soft")]
    for i, node in enumerate(names):
        cable(below, node, middle + (i - 1) * 176, 302, 346)
        machine(i, 346, with_server=True)
    return sheet(wide, 440, "server0: 3 S; host0 … host2: 4/3 S", *parts)
