"""The map of a course: its chapters from top to bottom, each below those that it needs, and each a link.

The links are HTML over the picture, because JupyterLab cannot follow a link inside SVG.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

from d2lps.view.drawing.shapes import arrow, sheet
from d2lps.view.drawing.svg import area, fine, stroke, tag, words, worker

WIDE, HIGH, ACROSS, DOWN, EDGE = 150, 74, 166, 116, 16
LEAST = 0.75  # the smallest scale; on a narrower page the map scrolls
LETTERS = 18  # of a line in a box; a Chinese letter is as wide as two
LOOK = """.d2-map{position:relative;margin:auto}.d2-map>svg{display:block;width:100%;height:auto}
.d2-map>a{position:absolute;box-sizing:border-box;border-radius:10px}
.d2-map>a:is(:hover,:focus-visible){outline:2.5px solid var(--d2-accent,#1952af)}"""


class Stop(NamedTuple):
    """A chapter on the map.

    Parameters
    ----------
    number, title : str
        What stands in its box.
    address : str
        Where its link leads.
    needs : tuple of str
        The numbers of the chapters that it builds on directly.
    about : str
        What appears when the pointer rests on it.
    """

    number: str
    title: str
    address: str
    needs: tuple[str, ...] = ()
    about: str = ""


def rows_of(stops: Iterable[Stop]) -> list[list[Stop]]:
    """Sort chapters into rows: each one row below the lowest chapter that it needs, near the chapters above it.

    >>> stops = [Stop("1", "", ""), Stop("2", "", "", ("1",)), Stop("3", "", "", ("2",)), Stop("4", "", "", ("1",))]
    >>> [[stop.number for stop in row] for row in rows_of(stops)]
    [['1'], ['2', '4'], ['3']]
    """
    depth: dict[str, int] = {}
    rows: list[list[Stop]] = []
    for stop in stops:
        depth[stop.number] = 1 + max((depth[need] for need in stop.needs if need in depth), default=-1)
        rows += [[] for _ in range(depth[stop.number] + 1 - len(rows))]
        rows[depth[stop.number]].append(stop)
    place: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda stop: _mean([place[need] for need in stop.needs if need in place]))
        place |= {stop.number: (i + 1) / (len(row) + 1) for i, stop in enumerate(row)}
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0


def course_map(stops: Sequence[Stop], title: str, here: str = "") -> str:
    """Draw the map.

    Parameters
    ----------
    stops : sequence of Stop
        The chapters in the order of the book: none needs a later one.
    title : str
        The name of the picture, for screen readers.
    here : str
        The number of the chapter in which the map stands.

    Returns
    -------
    str
        HTML: the picture as SVG, and a link over every box.
    """
    rows = rows_of(stops)
    width = 2 * EDGE + max(map(len, rows)) * ACROSS - (ACROSS - WIDE)
    height = 2 * EDGE + len(rows) * DOWN - (DOWN - HIGH)
    at = {}
    for down, row in enumerate(rows):
        left = (width - (len(row) * ACROSS - (ACROSS - WIDE))) / 2
        at |= {stop.number: (left + across * ACROSS, EDGE + down * DOWN) for across, stop in enumerate(row)}
    ways = [_way(at[need], at[stop.number]) for stop in stops for need in stop.needs if need in at]
    boxes = [_box(stop, at[stop.number], i, stop.number == here) for i, stop in enumerate(stops)]
    links = []
    for stop in stops:
        (x, y), name, about = at[stop.number], html.escape(f"{stop.number} {stop.title}"), html.escape(stop.about)
        place = f"left:{x / width:.3%};top:{y / height:.3%};width:{WIDE / width:.3%};height:{HIGH / height:.3%}"
        links.append(f'<a href="{html.escape(stop.address)}" style="{place}" aria-label="{name}" title="{about}"></a>')
    size = f"max-width:{width:g}px;min-width:{width * LEAST:g}px"
    picture = sheet(width, height, title, *ways, *boxes)
    return f'<div class="d2-map" style="{size}"><style>{LOOK}</style>{picture}{"".join(links)}</div>'


def _way(above: tuple[float, float], below: tuple[float, float]) -> str:
    """Draw the arrow from a chapter to one that needs it."""
    (ax, ay), (bx, by) = (above[0] + WIDE / 2, above[1] + HIGH), (below[0] + WIDE / 2, below[1])
    middle = (ay + by) / 2
    curve = f"M{fine(ax)} {fine(ay)}C{fine(ax)} {fine(middle)} {fine(bx)} {fine(middle)} {fine(bx)} {fine(by - 9)}"
    return tag("path", d=curve, **stroke("line")) + arrow((bx, by - 10), (bx, by))


def _box(stop: Stop, at: tuple[float, float], number: int, here: bool) -> str:
    x, y = at
    look = {"style": "stroke:var(--d2-accent);stroke-width:3"} if here else {}
    parts = [tag("rect", x=x, y=y, width=WIDE, height=HIGH, rx=10, **area("box", 1), **look)]
    lines = wrapped(stop.title)
    first = y + HIGH / 2 + 12 - 8 * (len(lines) - 1)
    parts.append(tag("circle", cx=x + 17, cy=y + 16, r=5, **worker(number)))
    written = stop.number.upper() if stop.number.isalpha() else stop.number
    parts.append(words(written, x + 27, y + 20, "note", "soft", None, font_weight=700))
    parts += [words(line, x + WIDE / 2, first + 16 * i, font_weight=600) for i, line in enumerate(lines)]
    return "".join(parts)


def wrapped(title: str, letters: int = LETTERS) -> list[str]:
    """Break a title into lines for its box.

    >>> wrapped("The key–value store"), wrapped("模型并行")
    (['The key–value', 'store'], ['模型并行'])
    """
    wide = any(east_asian_width(letter) in "WF" for letter in title)
    pieces = [*title] if wide and " " not in title else title.split(" ")
    lines, between = [""], "" if len(pieces) == len(title) else " "
    for piece in pieces:
        longer = f"{lines[-1]}{between}{piece}" if lines[-1] else piece
        if lines[-1] and sum(2 if east_asian_width(letter) in "WF" else 1 for letter in longer) > letters:
            lines.append(piece)
        else:
            lines[-1] = longer
    return lines


def stops_of(chapters: Iterable[Mapping], addresses: Mapping[str, str], language: str) -> list[Stop]:
    """Return the stops of the chapters of ``toc.toml``.

    Parameters
    ----------
    chapters : iterable of mapping
        The entries ``slug``, ``title`` and ``about`` (by language), and ``needs``: numbers of chapters; without it, a
        chapter needs the one before it.
    addresses : mapping of str to str
        Slug → address.
    language : str
        Of titles and sentences.
    """
    stops: list[Stop] = []
    for chapter in chapters:
        number = chapter["slug"].partition("-")[0]
        needs = chapter.get("needs", [stops[-1].number] if stops else [])
        titles, abouts = chapter["title"], chapter["about"]
        stops.append(Stop(number, titles[language], addresses[chapter["slug"]], tuple(needs), abouts[language]))
    return stops
