"""A table as a picture: stacked bars, or dots and ranges, on one axis; its numbers are folded below it.

Plain HTML, so that words keep their size on any page. A chart reads its numbers from the cells of its table: the two
cannot differ.
"""

import math
import re
from functools import partial
from html import escape

from d2lps.messages import html_language, text
from d2lps.units import PREFIXES, SECONDS, show_number, show_seconds, show_size
from d2lps.view.drawing.theme import STYLE, WORKERS, contrast

NUMBER = re.compile(r"([-+−]?\d[\d.\u00a0]*)\s*([a-zA-Zµ%]*)")
UNITS = {unit: (1 / count, "s") for unit, count in SECONDS.items()} | {"%": (1, "%")}
UNITS |= {f"{prefix}B": (count, "B") for prefix, count in PREFIXES.items()}
SHOW = {"B": show_size, "s": show_seconds, "%": lambda value: f"{show_number(value)}%", "": show_number}
MOST = 5  # steps of an axis
LOOK = """.d2-chart{container-type:inline-size;max-width:60em;color:var(--d2-ink);font-size:13px;line-height:1.25}
.d2-chart *{box-sizing:border-box}.d2-keys{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0}
.d2-keys i,.d2-part,.d2-dot,.d2-range{background:var(--of);print-color-adjust:exact}
.d2-keys i{display:inline-block;width:11px;height:11px;margin-right:5px}
.d2-keys .d2-dot{position:static;margin:0 5px 0 0}
.d2-rows{display:grid;grid-template-columns:fit-content(17em) minmax(0,1fr) max-content;gap:0 10px}
.d2-row{display:grid;grid-column:1/-1;grid-template-columns:subgrid;align-items:center;min-height:27px}
.d2-row>:last-child{text-align:right}.d2-heads{color:var(--d2-soft)}
.d2-track{position:relative;height:100%;min-height:27px;display:grid;align-items:center;
border-right:1px solid var(--d2-edge);
background:repeating-linear-gradient(to right,var(--d2-edge) 0 1px,transparent 1px var(--step))}
.d2-part{position:absolute;height:20px;overflow:hidden;container-type:inline-size;
border-right:1px solid var(--d2-paper)}
.d2-part b{display:none;font-size:12px;line-height:20px;text-align:center;white-space:nowrap}
@container (min-width:64px){.d2-part b{display:block}}
.d2-bubble{background:repeating-linear-gradient(45deg,var(--d2-busy) 0 2px,var(--d2-well) 2px 6px)!important}
.d2-bubble b{background:var(--d2-well);color:var(--d2-ink)!important;width:max-content;margin:auto;padding:0 3px}
.d2-dot{position:absolute;width:12px;height:12px;margin-left:-6px;border-radius:50%;border:1px solid var(--d2-paper)}
.d2-dot.d2-published-speed{border-radius:0;rotate:45deg;scale:.9;--of:var(--d2-ink)!important}
.d2-range{position:absolute;height:10px;border-radius:5px}.d2-speed-interval{--of:var(--d2-busy)!important}
.d2-range.d2-speed-interval{height:2px;border-radius:0}.d2-zero{position:absolute;height:100%;width:2px;background:var(--d2-ink)}
.d2-axis{position:relative;height:18px;font-size:12px;color:var(--d2-soft)}
.d2-axis span{position:absolute;translate:-50%;white-space:nowrap}.d2-axis span:first-child{translate:0}
.d2-axis span:last-child{translate:-100%}.d2-chart summary{color:var(--d2-soft);cursor:pointer;width:max-content}
@container (max-width:520px){.d2-rows{grid-template-columns:minmax(0,1fr) max-content}
.d2-row>:nth-child(2){grid-area:2/1/3/3}.d2-row{padding-top:5px}.d2-heads>:nth-child(2){display:none}}
@media print{.d2-chart details{display:none}}"""


class Chart:
    """A table that a notebook shows as a picture. Made by :meth:`Table.bars` and :meth:`Table.dots`.

    The first ``label`` cells name a row, and the cell of the column ``end`` stands behind it. A log axis (``log``)
    takes one column of bars.
    """

    def __init__(self, table, heads: dict, bars: bool, columns: tuple, label=1, end: str | None = None, log=False):
        self._table, self._heads, self._bars, self._columns, self._label = table, heads, bars, columns, label
        self._end, self._log = end or (columns[0] if bars and len(columns) == 1 else None), log

    def __repr__(self) -> str:
        return repr(self._table)

    def _repr_html_(self) -> str:
        heads, rows = self._heads, [dict(zip(self._heads, row, strict=True)) for row in self._table.rows]
        spans = [[self._span(row, i) for i in range(len(self._columns))] for row in rows]
        low, high, step = self._axis([place for row in spans for span in row for place in span])

        def at(place: float) -> float:
            return 100 * (max(place, low) - low) / (high - low)

        unit = next(unit for row in rows for column in self._columns for _, unit in _read(row[column]))
        names = ", ".join([*heads.values()][: self._label])
        lines, told = [_row("d2-row d2-heads", names, "<span></span>", heads.get(self._end, ""))], []
        for row, label, places in zip(rows, self._table.rows, spans, strict=True):
            marks = [self._mark(i, row, *map(at, span)) for i, span in enumerate(places) if span]
            if not self._bars:
                marks.reverse()  # the first series, with which the others are compared, is on top
            if low < 0 < high and not self._log:
                marks.insert(0, f'<div class="d2-zero" style="left:{at(0):.4g}%"></div>')
            track = f'<div class="d2-track" style="--step:{at(low + step):.4g}%">{"".join(marks)}</div>'
            lines.append(_row("d2-row", ", ".join(label[: self._label]), track, row.get(self._end, "")))
            shown = ", ".join(f"{heads[column]} {row[column]}" for column in self._columns)
            told.append(f"{', '.join(label[: self._label])}: {shown}")
        ticks = [low + i * step for i in range(round((high - low) / step) + 1)]
        values = [SHOW[unit](10**tick if self._log else round(tick, 9)) for tick in ticks]
        axis = "".join(
            f'<span style="left:{at(t):.4g}%">{value}</span>' for t, value in zip(ticks, values, strict=True)
        )
        lines.append(_row("d2-row", "", f'<div class="d2-axis">{axis}</div>', ""))
        dot = "" if self._bars else "d2-dot "
        keys = "".join(
            f'<span><i class="{dot}d2-{column}" style="{self._color(i)}"></i>{escape(heads[column])}</span>'
            for i, column in enumerate(self._columns)
        )
        return (
            f'<div class="d2lps d2-chart" lang="{html_language()}"><style>{STYLE}{LOOK}</style>'
            f'<div class="d2-keys">{keys}</div>'
            f'<div class="d2-rows" role="img" aria-label="{escape("; ".join(told))}">{"".join(lines)}</div>'
            f"<details><summary>{escape(text('table.of-picture'))}</summary>{self._table._repr_html_()}</details></div>"
        )

    def _span(self, row: dict[str, str], i: int) -> tuple[float, ...]:
        """Return both ends of a mark: of a part of a bar, of a range, or twice the place of a dot; () without any."""
        numbers = [[number for number, _ in _read(row[column])] for column in self._columns]
        if not numbers[i] or (self._log and not numbers[i][0]):
            return ()
        if self._log:
            return (-math.inf if self._bars else math.log10(numbers[i][0]), math.log10(numbers[i][-1]))
        before = sum(map(sum, numbers[:i]))
        return (before, before + numbers[i][0]) if self._bars else (min(numbers[i]), max(numbers[i]))

    def _axis(self, places: list[float]) -> tuple[float, float, float]:
        """Return both ends of the axis, and the distance of its ticks; on a log axis, as powers of ten."""
        places = [place for place in places if math.isfinite(place)]
        rough = max((max(places) - min(places)) / MOST, 1e-12)
        power = 10 ** math.floor(math.log10(rough))
        step = 1.0 if self._log else next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * 0.999)
        first, last = math.floor(min(places) / step), math.ceil(max(places) / step)
        return first * step, max(last, first + 1) * step, step

    def _mark(self, i: int, row: dict[str, str], a: float, b: float) -> str:
        kind = "part" if self._bars else "range" if b > a else "dot"
        look = f"left:{a:.4g}%;" + f"width:{b - a:.4g}%;" * (kind != "dot") + self._color(i)
        inside = f"<b>{escape(row[self._columns[i]])}</b>" if self._bars and len(self._columns) > 1 else ""
        return f'<div class="d2-{kind} d2-{self._columns[i]}" style="{look}">{inside}</div>'

    def _color(self, i: int) -> str:
        i = i if self._bars else (4, 4, 3)[i]
        on = [max("#ffffff", "#15181d", key=partial(contrast, color)) for color in WORKERS[i]]
        return f"--of:var(--d2-w{i});color:light-dark({on[0]},{on[1]})"


def _row(look: str, label: str, track: str, end: str) -> str:
    return f'<div class="{look}"><span>{escape(label)}</span>{track}<span>{escape(end)}</span></div>'


def _read(cell: str) -> list[tuple[float, str]]:
    """Return the numbers of a cell, in bytes or seconds if it has such units; ``12 GB … 14 GB`` has two, ``–`` none."""
    found = [
        (float(number.replace("−", "-").replace("\u00a0", "")), *UNITS.get(unit, (1, "")))
        for number, unit in NUMBER.findall(cell)
    ]
    return [(number * times, unit) for number, times, unit in found]
