"""The shapes from which chapters build their figures: a sheet of paper, boxes, words, arrows, cells."""

import math
from collections.abc import Iterable

from d2lps.view.drawing.svg import Point, area, corners, hatch, line, page, rect, shift, stroke, tag, words, worker
from d2lps.view.drawing.theme import STYLE

HALF, HIGH = 26.0, 36.0  # half the width of a cell, and its height


def sheet(width: float, height: float, title: str, *parts: str, looks: str = "", **more: object) -> str:
    """Draw a figure with ``parts`` on it; ``looks`` are CSS rules that only some figures need."""
    return page(title, width, height, *parts, looks=STYLE + looks, rx=12, **more)


def box(x: float, y: float, w: float, h: float, rx: float = 8) -> str:
    """Draw a box like that of a node."""
    return tag("rect", x=x, y=y, width=w, height=h, rx=rx, **area("box", 1))


def symbol(name: str, x: float, y: float, anchor: str = "middle") -> str:
    """Write a letter of a formula."""
    return words(name, x, y, "note", "soft", anchor, font_style="italic")


def number(i: int, x: float, y: float) -> str:
    """Write the number of a step."""
    return words(f"({i})", x, y + 4, "note", "accent", font_weight=700)


def gpu(i: int, x: float, y: float) -> str:
    """Write the name of GPU i, with its color."""
    dot = tag("circle", cx=x - 31, cy=y - 4.5, r=5, **worker(i))
    return dot + words(f"GPU {i}", x - 20, y, anchor="start")


def arrow(a: Point, b: Point) -> str:
    """Draw a line with a head at ``b``."""
    (ax, ay), (bx, by) = a, b
    length = math.dist(a, b)
    ux, uy = (bx - ax) / length, (by - ay) / length
    tip = corners(b, (bx - 8 * ux - 4 * uy, by - 8 * uy + 4 * ux), (bx - 8 * ux + 4 * uy, by - 8 * uy - 4 * ux))
    return tag("path", d=line(a, (bx - 6 * ux, by - 6 * uy)), **stroke("line")) + tag("path", d=tip, **area("busy"))


def cell(x: float, y: float, contributors: Iterable[int], of: int, updated: bool = False, half=HALF, high=HIGH) -> str:
    """Draw a cell with a slot per worker and its middle at x."""
    w, h, contributors = 2 * half, high, tuple(contributors)
    parts = [tag("rect", width=w, height=h, **area("well"))]
    parts += [tag("path", d=rect(0, h * (1 - (c + 1) / of), w, h / of), **worker(c)) for c in contributors]
    parts.append(tag("path", d=hatch(0, 0, w, h), **stroke("new")) if updated else "")
    parts.append(tag("path", d=rect(0, 0, w, h), **stroke("done")) if len(contributors) == of else "")
    return tag("g", "".join(parts), transform=shift(x - w / 2, y))
