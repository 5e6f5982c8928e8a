"""The runs with which this chapter opens, and its figures: both without a word of any language."""

from d2lps import Link, Topology, Trace, cost
from d2lps.schedule import place
from d2lps.view.drawing.svg import area, arrow, box, corners, line, sheet, stroke, tag, words, worker

MB = 10**6
PAIR = ("gpu1", "gpu2")
OPERATORS = {"op1": 9 * MB, "op2": 9 * MB}


def _pair(bandwidth: str) -> Topology:
    """Two GPUs of 10 MB, joined by a link in each direction."""
    links = [Link("gpu1", "gpu2", bandwidth), Link("gpu2", "gpu1", bandwidth)]
    kinds = dict.fromkeys(PAIR, "gpu")
    return Topology("pair", kinds, links, computing=dict.fromkeys(PAIR, 1e12), memory=dict.fromkeys(PAIR, "10 MB"))


def opening() -> dict[str, Trace]:
    """The same two operators: each on a device of its own, both cut over fast links, both cut over slow links."""
    data, rows = MB // 5, 400
    memory = dict.fromkeys(PAIR, 10 * MB)
    between = place(OPERATORS, dict(zip(OPERATORS, PAIR, strict=True)), memory, data, rows)
    inside = place(OPERATORS, dict.fromkeys(OPERATORS, PAIR), memory, data, rows)
    return {
        "between operators": cost.shared(between, _pair("1 GB/s")),
        "inside operators": cost.shared(inside, _pair("1 GB/s")),
        "inside operators, slow links": cost.shared(inside, _pair("0.1 GB/s")),
    }


def _tile(name: str, color: int, x: float, y: float, w: float = 56, h: float = 20) -> str:
    return tag("rect", x=x, y=y, width=w, height=h, rx=4, **worker(color)) + _on(name, x + w / 2, y + h / 2)


def _on(name: str, x: float, y: float) -> str:
    """Write a name on a spot of paper, which is readable on every color."""
    wide = 8 * len(name) + 8
    return tag("rect", x=x - wide / 2, y=y - 8, width=wide, height=16, rx=8, **area("paper")) + words(name, x, y + 4.5)


def _device(name: str, x: float, y: float, operators: list[str], data: str) -> str:
    tiles = [_tile(each, int(each[2]) - 1, x + 8, y + 8 + 24 * i) for i, each in enumerate(operators)]
    below = words(data, x + 36, y + 74, font_weight=700)
    return box(x, y, 72, 84) + "".join(tiles) + below + words(name, x + 36, y + 100, "note", "soft")


def kinds() -> str:
    """One program on all devices, or several; one batch, or parts of it."""
    both, first, second = ["op1", "op2"], ["op1"], ["op2"]
    grid = {
        (0, 0): [(both, "x")],
        (1, 0): [(both, f"x{i}") for i in range(1, 5)],
        (0, 1): [(first, "x"), (second, "")],
        (1, 1): [(first, "x1"), (second, ""), (first, "x2"), (second, "")],
    }
    parts = []
    for (column, row), devices in grid.items():
        left, top = 16 + 226 * column, 16 + 130 * row
        for i, (operators, data) in enumerate(devices):
            parts.append(_device(f"gpu{i + 1}", left + 96 * i, top, operators, data))
            if row and i % 2 == 0:
                parts.append(arrow((left + 96 * i + 73, top + 22), (left + 96 * i + 95, top + 22)))
    return sheet(
        626, 262, "op1 op2: gpu1; gpu1 … gpu4; gpu1 → gpu2; gpu1 → gpu2, gpu3 → gpu4", *parts, style="--d2-zoom:1.4"
    )


def mlp() -> str:
    """Two devices: A in columns, B in rows; x goes to both, the parts of y are added up."""
    parts = []
    for i in range(2):
        y = 24 + 120 * i
        parts += [words(f"gpu{i + 1}", 22, y + 40, "note", "soft", "start")]
        parts += [box(66, y + 12, 46, 56), words("x", 89, y + 44)]
        parts += [words("·", 125, y + 44), _matrix(140, y, 30, 80, f"A{i + 1}", i)]
        parts += [words("=", 184, y + 44), _matrix(200, y + 12, 30, 56, f"u{i + 1}", i)]
        parts += [arrow((242, y + 40), (292, y + 40)), words("gelu", 266, y + 32, "note", "soft")]
        parts += [words("·", 298, y + 44), _matrix(304, y + 25, 80, 30, f"B{i + 1}", i), words("=", 398, y + 44)]
        parts += [_matrix(414, y + 12, 80, 56, f"y{i + 1}", i)]
        parts += [arrow((496, y + 40), (548, 104 + 12 * (2 * i - 1)))]
    parts += [tag("circle", cx=564, cy=104, r=15, **area("box", 1)), words("+", 564, 109, font_weight=700)]
    parts += [arrow((580, 104), (612, 104)), box(614, 76, 80, 56), words("y", 654, 108)]
    return sheet(712, 244, "y = gelu(x A1) B1 + gelu(x A2) B2", *parts, style="--d2-zoom:1.4")


def _matrix(x: float, y: float, w: float, h: float, name: str, color: int) -> str:
    return tag("rect", x=x, y=y, width=w, height=h, rx=3, **worker(color)) + _on(name, x + w / 2, y + h / 2)


def groups() -> str:
    """Two replicas of two operators: activations pass within a replica, sums between the same operators."""
    parts = []
    for r in range(2):
        x, y = 30, 24 + 142 * r
        for i, name in enumerate(("op1", "op2")):
            parts.append(_device(f"gpu{2 * r + i + 1}", x + 210 * i, y, [name], "" if i else f"x0.{r}"))
        parts.append(arrow((x + 76, y + 26), (x + 204, y + 26)))
        parts.append(arrow((x + 204, y + 56), (x + 76, y + 56)))
        parts.append(words(f"x1.{r}", x + 140, y + 20, "note", "soft"))
        parts.append(words(f"d1.{r}", x + 140, y + 72, "note", "soft"))
    for i in range(2):
        x = 92 + 210 * i
        parts.append(tag("path", d=line((x, 112), (x, 162)), stroke_dasharray="5 4", **stroke("done")))
        parts += [
            tag("path", d=corners((x, tip), (x - 5, back), (x + 5, back)), **area("busy"))
            for tip, back in ((110, 119), (164, 155))
        ]
        parts.append(words(f"∑ g:op{i + 1}", x + 10, 142, anchor="start", font_weight=700))
    return sheet(400, 284, "∑ g:op1: gpu1 gpu3; ∑ g:op2: gpu2 gpu4", *parts)
