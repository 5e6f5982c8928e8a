"""SVG as text: elements, numbers and a few shapes.

>>> tag("rect", x=1.25, y=2, class_="d2-box", rx=None)
'<rect x="1.3" y="2" class="d2-box"/>'
>>> tag("text", escape("<b>"), x=0)
'<text x="0">&lt;b&gt;</text>'

The shapes from which chapters build their figures: a sheet of paper, boxes, words, arrows, cells.
"""

import html
import math
from collections.abc import Iterable

from d2lps.view.drawing.theme import COLORS, LIGHT, STYLE, THIN
from d2lps.view.tables import SCROLLS

LEAST = 0.7  # the least scale of a still: its words on a phone have 13 units or more, hence 9 pixels
NARROW = 300  # pixels that every page has
Point = tuple[float, float]
Line = tuple[Point, Point]


def tag(name: str, inside: str | None = None, /, **attributes: object) -> str:
    """Return an element; ``class_`` becomes ``class``, ``font_size`` ``font-size``; attributes of None are omitted."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-") if key != "viewBox" else key}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}/>" if inside is None else f"<{name}{pairs}>{inside}</{name}>"


def page(title: str, width: float, height: float, *parts: str, looks: str = STYLE + THIN, rx: int = 10, **more) -> str:
    """Return a whole picture: a sheet of paper with ``parts`` on it and a ``title``, which is shown on hovering."""
    paper = tag("rect", width=width, height=height, rx=rx, **area("paper"))
    return root("".join([tag("title", escape(title)), tag("style", looks), paper, *parts]), width, height, **more)


def root(inside: str, width: float, height: float, class_: str = "d2lps d2-still", **more: object) -> str:
    """Return the outermost element, complete with its namespace."""
    look = {"class_": class_, "xmlns": "http://www.w3.org/2000/svg", "role": "img"}
    return tag("svg", inside, **look, viewBox=f"0 0 {num(width)} {num(height)}", width=width, **more)


def legible(svg: str) -> str:
    """Return a still as HTML: inside the page it follows the page's theme, and scrolls where it would be illegible."""
    least = round(LEAST * size(svg)[0])
    if least <= NARROW:
        return f"<div>{svg}</div>"
    return f'<div style="{SCROLLS}" tabindex="0"><div style="min-width:{least}px">{svg}</div></div>'


def size(svg: str) -> tuple[float, float]:
    """Return the width and the height of a picture."""
    width, height = svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()
    return float(width), float(height)


def _value(value: object) -> str:
    return num(value) if isinstance(value, int | float) else html.escape(str(value))


def num(value: float) -> str:
    """Print a number with at most one decimal, as short as possible."""
    value = math.floor(value * 10 + 0.5) / 10  # not round(): it rounds 0.25 down and 0.35 up
    return f"{value:g}" if abs(value) < 1e5 else str(int(value))


def escape(words: str) -> str:
    """Return words as text between tags."""
    return html.escape(words, quote=False)


def short(name: str, width: float, letter: float = 7.6) -> str:
    """Shorten ``name`` to fit into ``width`` but keep its end, in which names mostly differ.

    >>> short("gpu12", 40), short("gpu12", 30), short("my-machine12", 60)
    ('gpu12', '12', 'my-…e12')
    """
    fits = max(2, int(width / letter))
    if len(name) <= fits:
        return name
    number = name[len(name.rstrip("0123456789")) :]
    if number and len(number) <= fits < len(number) + 3:
        return number
    return name[: (fits - 1) // 2] + "…" + name[len(name) - fits // 2 :]


SIZES = {"name": 13, "note": 10.5, "key": 9.5}


def letters(size: str, color: str = "soft", anchor: str | None = None, **more: object) -> dict[str, object]:
    """Return the attributes of a text: a ``"name"``, a ``"note"`` or a ``"key"``."""
    look = {"font_size": SIZES[size], "class_": f"d2-{size} d2-{color}", "fill": LIGHT[color], "text_anchor": anchor}
    return look | more


def words(sentence: str, x: float, y: float, size="name", color="ink", anchor: str | None = "middle", **more) -> str:
    """Write a text whose middle (or ``anchor``: "start", "end"; None is "start") is at (x, y)."""
    return tag("text", escape(sentence), x=x, y=y, **letters(size, color, anchor, **more))


EDGED = {"box": ("box", "edge"), "bar": ("box", "edge"), "tile": ("well", "busy")}


def area(name: str, width: float | None = None, color: str | None = None) -> dict[str, object]:
    """Return the attributes of a filled shape in a color of the theme, with an edge if it has one."""
    fill, edge = EDGED.get(name, (name, None))
    look: dict[str, object] = {"class_": f"d2-{name}", "fill": LIGHT[fill]}
    return look | {"stroke": LIGHT[color or edge], "stroke_width": width} if edge else look


STROKES = {"done": ("ink", 1.5), "new": ("paper", 1.6), "line": ("busy", 2), "gaps": ("box", 1)}


def stroke(name: str, width: float | None = None, color: str | None = None) -> dict[str, object]:
    """Return the attributes of a line: a ``"lane"``, a ``"line"``, the frame, the hatching or the gaps of cells."""
    usual, thickness = STROKES.get(name, (name, 1))
    return {"class_": f"d2-{name}", "fill": "none", "stroke": LIGHT[color or usual], "stroke_width": width or thickness}


def worker(number: int) -> dict[str, str]:
    """Return the attributes of a shape in the color of a worker (``theme.WORKERS``)."""
    number %= len(COLORS)
    return {"class_": f"d2-w{number}", "fill": COLORS[number]}


def rect(x: float, y: float, w: float, h: float) -> str:
    """Return a rectangle, as a piece of a path."""
    return f"M{fine(x)} {fine(y)}h{fine(w)}v{fine(h)}h-{fine(w)}z"


def fine(value: float) -> str:
    """Print a number with at most two decimals: the slots of 16 workers are only 2.5 high."""
    return f"{math.floor(value * 100 + 0.5) / 100:g}"


def hatch(x: float, y: float, w: float, h: float, every: float = 7.0) -> str:
    """Return slanting lines across a rectangle, as a piece of a path."""
    parts, t = [], every * 0.75
    while t < w + h:
        ax, ay = (x, y + t) if t <= h else (x + t - h, y + h)
        bx, by = (x + t, y) if t <= w else (x + w, y + t - w)
        parts.append(f"M{num(ax)} {num(ay)}L{num(bx)} {num(by)}")
        t += every
    return "".join(parts)


def along(line: Line, part: float) -> Point:
    """Return the point at ``part`` (0 … 1) of a line."""
    (ax, ay), (bx, by) = line
    return ax + (bx - ax) * part, ay + (by - ay) * part


def beside(line: Line, offset: float) -> Line:
    """Return the line moved by ``offset`` to the right of its direction."""
    (ax, ay), (bx, by) = line
    length = math.dist(*line) or 1.0
    dx, dy = -(by - ay) / length * offset, (bx - ax) / length * offset
    return (ax + dx, ay + dy), (bx + dx, by + dy)


def block(box, /, **look: object) -> str:
    """Draw a :class:`~d2lps.view.drawing.layout.Box`."""
    return tag("rect", x=box.x, y=box.y, width=box.w, height=box.h, **{"rx": 8} | look)


def line(a: Point, b: Point) -> str:
    """Return a line, as a path."""
    return f"M{num(a[0])} {num(a[1])}L{num(b[0])} {num(b[1])}"


def corners(*points: Point) -> str:
    """Return a polygon, as a path."""
    return "M" + "L".join(f"{num(x)} {num(y)}" for x, y in points) + "z"


def shift(x: float, y: float) -> str:
    """Return the transformation that moves a shape by (x, y)."""
    return f"translate({num(x)} {num(y)})"


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
