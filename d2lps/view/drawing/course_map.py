"""The map of a course: its chapters from top to bottom, each below those that it needs, and each a link.

The links are HTML over the picture, because JupyterLab cannot follow a link inside SVG. Where the map has too little
room, such as on a phone, the picture gives way to the list of the links.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from unicodedata import east_asian_width

from d2lps.view.drawing.svg import area, arrow, fine, sheet, stroke, tag, words, worker

WIDE, HIGH, ACROSS, BETWEEN, EDGE = 150, 74, 166, 42, 16
MARK = 18  # the height of the line with the mark
LEAST = 0.86  # the smallest scale: its letters are 9 pixels high; on a narrower page the map is a list
LETTERS = 18  # of a line in a box; a Chinese letter is as wide as two
# All but the mark is drawn, so its words in the link are for screen readers, and for the list.
LOOK = """.d2-map{{position:relative;margin:auto;max-width:{width:g}px;container-type:inline-size}}
.d2-map>svg{{display:block;width:100%;height:auto}}
.d2-map>a{{position:absolute;box-sizing:border-box;border-radius:10px;color:var(--d2-ink);text-decoration:none}}
.d2-map>a:is(:hover,:focus-visible){{outline:2.5px solid var(--d2-accent)}}
.d2-map>a.d2-reached{{box-shadow:inset 6px 0 var(--d2-accent)}}
.d2-map>a>:not(.d2-mark){{position:absolute;width:1px;height:1px;overflow:clip;clip-path:inset(50%)}}
.d2-map .d2-mark{{position:absolute;inset:auto 0 8px;text-align:center;font-size:calc({note}cqw);line-height:1.2}}
@container(max-width:{least:g}px){{.d2-map>svg{{display:none}}
.d2-map>a{{position:static;display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px;
width:auto!important;height:auto!important;
padding:11px 14px;border-radius:0;border-bottom:1px solid var(--d2-edge);font-size:15px;line-height:1.4}}
.d2-map>a>:not(.d2-mark){{position:static;width:auto;height:auto;overflow:visible;clip-path:none}}
.d2-map>a>small{{color:var(--d2-soft);font-size:14px}}
.d2-map .d2-mark{{position:static;margin-left:auto;font-size:14px;text-align:right}}
.d2-map>a[aria-current]{{font-weight:700}}}}"""


class Mark(NamedTuple):
    """What a reader has done of a chapter.

    Args:
        words: The text at the bottom of its box; may be empty.
        reached: True if the reader has come to its end: the box gets a bar.
    """

    words: str
    reached: bool


class Stop(NamedTuple):
    """A chapter on the map.

    Args:
        number, title: The text in its box.
        address: Where its link leads.
        needs: The numbers of the chapters that it builds on directly.
        about: The text that appears when the pointer rests on it.
        slug: Its folder.
        takes: The time that it takes, as in "90 minutes".
    """

    number: str
    title: str
    address: str
    needs: tuple[str, ...] = ()
    about: str = ""
    slug: str = ""
    takes: str = ""


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


def columns_of(rows: Sequence[Sequence[Stop]]) -> dict[str, float]:
    """Return number → column of each chapter: below the chapters that it needs, as far as there is room.

    >>> stops = [Stop("1", "", ""), Stop("2", "", "", ("1",)), Stop("3", "", "", ("1",)), Stop("4", "", "", ("3",))]
    >>> columns_of(rows_of(stops))
    {'1': 0.5, '2': 0.0, '3': 1.0, '4': 1.0}
    """
    most = max(map(len, rows)) - 1
    columns: dict[str, float] = {}
    for row in rows:
        needed = [[columns[need] for need in stop.needs if need in columns] for stop in row]
        wanted = [_mean(above) if above else most / 2 for above in needed]
        placed: list[float] = []
        for column in wanted:
            placed.append(max(column, placed[-1] + 1) if placed else column)
        moved = _mean(wanted) - _mean(placed)
        for i, stop in enumerate(row):
            columns[stop.number] = min(max(placed[i] + moved, i), most - (len(row) - 1 - i))
    return columns


def course_map(stops: Sequence[Stop], title: str, here: str = "", marks: Mapping[str, Mark] | None = None) -> str:
    """Draw the map.

    Args:
        stops: The chapters in the order of the book: none needs a later one.
        title: The name of the picture, for screen readers.
        here: The number of the chapter in which the map stands.
        marks: Slug → what the reader has done of the chapter. Without it, the boxes have no room for marks; with an
            empty one, a script may fill the elements ``d2-mark`` of the links, which have ``data-chapter``.

    Returns:
        HTML: the picture as SVG, and a link over every box.
    """
    rows, high = rows_of(stops), HIGH + MARK * (marks is not None)
    width = 2 * EDGE + max(map(len, rows)) * ACROSS - (ACROSS - WIDE)
    height = 2 * EDGE + len(rows) * (high + BETWEEN) - BETWEEN
    across = columns_of(rows)
    down = {stop.number: i for i, row in enumerate(rows) for stop in row}
    at = {number: (EDGE + column * ACROSS, EDGE + down[number] * (high + BETWEEN)) for number, column in across.items()}
    ways = [_way(at[need], at[stop.number], high) for stop in stops for need in stop.needs if need in at]
    boxes = [_box(stop, at[stop.number], high, i, stop.number == here) for i, stop in enumerate(stops)]
    links = []
    for stop in stops:
        (x, y), about = at[stop.number], html.escape(stop.about)
        place = f"left:{x / width:.3%};top:{y / height:.3%};width:{WIDE / width:.3%};height:{high / height:.3%}"
        mark = marks.get(stop.slug, Mark("", False)) if marks is not None else Mark("", False)
        more = ' aria-current="page"' * (stop.number == here) + ' class="d2-reached"' * mark.reached
        parts = [f"<b>{html.escape(written(stop.number))}</b> <span>{html.escape(stop.title)}</span>"]
        parts += [f" <small>{html.escape(stop.takes)}</small>"] if stop.takes else []
        parts += [f' <span class="d2-mark">{html.escape(mark.words)}</span>'] if marks is not None else []
        links.append(
            f'<a href="{html.escape(stop.address)}" data-chapter="{html.escape(stop.slug)}"{more} style="{place}" '
            f'title="{about}">{"".join(parts)}</a>'
        )
    look = LOOK.format(width=width, least=width * LEAST, note=f"{10.5 / width:.4%}".rstrip("%"))
    picture = sheet(width, height, title, *ways, *boxes)
    return f'<div class="d2lps d2-map"><style>{look}</style>{picture}{"".join(links)}</div>'


def _way(above: tuple[float, float], below: tuple[float, float], high: float) -> str:
    """Draw the arrow from a chapter to one that needs it."""
    (ax, ay), (bx, by) = (above[0] + WIDE / 2, above[1] + high), (below[0] + WIDE / 2, below[1])
    middle = (ay + by) / 2
    curve = f"M{fine(ax)} {fine(ay)}C{fine(ax)} {fine(middle)} {fine(bx)} {fine(middle)} {fine(bx)} {fine(by - 9)}"
    return tag("path", d=curve, **stroke("line")) + arrow((bx, by - 10), (bx, by))


def _box(stop: Stop, at: tuple[float, float], high: float, number: int, here: bool) -> str:
    x, y = at
    look = {"style": "stroke:var(--d2-accent);stroke-width:3"} if here else {}
    parts = [tag("rect", x=x, y=y, width=WIDE, height=high, rx=10, **area("box", 1), **look)]
    lines = wrapped(stop.title)
    first = y + HIGH / 2 + 12 - 8 * (len(lines) - 1)
    parts.append(tag("circle", cx=x + 17, cy=y + 16, r=5, **worker(number)))
    parts.append(words(written(stop.number), x + 27, y + 20, "note", "soft", None, font_weight=700))
    parts += [words(stop.takes, x + WIDE - 12, y + 20, "note", "soft", "end")] if stop.takes else []
    parts += [words(line, x + WIDE / 2, first + 16 * i, font_weight=600) for i, line in enumerate(lines)]
    return "".join(parts)


def written(number: str) -> str:
    """Return the number of a chapter as readers see it: an appendix has a capital letter.

    >>> written("a"), written("06b")
    ('A', '06b')
    """
    return number.upper() if number.isalpha() else number


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


def stops_of(
    chapters: Iterable[Mapping], addresses: Mapping[str, str], language: str, takes: Callable[[int], str] | None = None
) -> list[Stop]:
    """Return the stops of the chapters of ``toc.toml``.

    Args:
        chapters (iterable of mapping): The entries ``slug``, ``title`` and ``about`` (by language), ``minutes``, and
            ``needs``: numbers of chapters; without it, a chapter needs the one before it.
        addresses: Slug → address.
        language: Of titles and sentences.
        takes: Says in words that a chapter takes a number of minutes.
    """
    stops: list[Stop] = []
    for chapter in chapters:
        slug, minutes = chapter["slug"], chapter.get("minutes")
        needs = chapter.get("needs", [stops[-1].number] if stops else [])
        about, said = chapter.get("about", {}).get(language, ""), takes(minutes) if takes and minutes else ""
        number, title = slug.partition("-")[0], chapter["title"][language]
        stops.append(Stop(number, title, addresses.get(slug, ""), tuple(needs), about, slug, said))
    return stops


def opened_by(stops: Sequence[Stop], number: str) -> list[Stop]:
    """Return where a chapter leads: the next one of the book, then the others that build on it directly.

    >>> stops = [Stop("1", "", ""), Stop("2", "", "", ("1",)), Stop("3", "", "", ("2",)), Stop("4", "", "", ("1",))]
    >>> [stop.number for stop in opened_by(stops, "1")], [stop.number for stop in opened_by(stops, "3")]
    (['2', '4'], ['4'])
    """
    at = [stop.number for stop in stops].index(number)
    return [stop for i, stop in enumerate(stops) if i == at + 1 or number in stop.needs]
