"""A table as a picture: stacked bars, or dots and ranges, on one axis; its numbers are folded below it.

Plain HTML, so that words keep their size on any page. A chart reads its numbers from the cells of its table: the two
cannot differ.
"""

import math
import re
from html import escape
from itertools import pairwise

from d2lps.messages import html_language, text
from d2lps.units import PREFIXES, SECONDS, show_seconds, show_size
from d2lps.view.drawing.theme import STYLE, WORKERS, contrast

NUMBER = re.compile(r"([-+−]?\d[\d.]*)\s*([a-zA-Zµ%]*)")
SHOW = {"B": show_size, "s": show_seconds, "%": lambda value: f"{value:g}%", "": lambda value: f"{value:g}"}
MOST = 5  # steps of an axis
LOOK = """.d2-chart{container-type:inline-size;max-width:60em;color:var(--d2-ink);font-size:13px;line-height:1.25}
.d2-chart *{box-sizing:border-box}.d2-keys{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0}
.d2-keys i,.d2-part,.d2-dot,.d2-range{background:var(--of);print-color-adjust:exact}
.d2-keys i{display:inline-block;width:11px;height:11px;margin-right:5px}
.d2-keys .d2-dot{position:static;margin:0 5px 0 0}
.d2-rows{display:grid;grid-template-columns:fit-content(17em) minmax(0,1fr) max-content;gap:0 10px}
.d2-row{display:grid;grid-column:1/-1;grid-template-columns:subgrid;align-items:center;min-height:27px}
.d2-row>:last-child{text-align:right}.d2-heads{color:var(--d2-soft)}
.d2-track{position:relative;height:100%;min-height:27px;display:flex;align-items:center;
border-right:1px solid var(--d2-edge);
background:repeating-linear-gradient(to right,var(--d2-edge) 0 1px,transparent 1px var(--step))}
.d2-part{height:20px;overflow:hidden;container-type:inline-size;flex:none;border-right:1px solid var(--d2-paper)}
.d2-part b{display:none;font-size:12px;line-height:20px;text-align:center;white-space:nowrap}
@container (min-width:52px){.d2-part b{display:block}}
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
    """A table that a notebook shows as a picture. Made by :meth:`Table.bars` and :meth:`Table.dots`."""

    def __init__(self, table, kind: str, columns: tuple[str, ...], label: int, end: str | None, log: bool):
        self._table, self._kind, self._columns, self._label, self._log = table, kind, columns, label, log
        self._end = end or (columns[0] if kind == "bars" and len(columns) == 1 else None)

    def __repr__(self) -> str:
        return repr(self._table)

    def _repr_html_(self) -> str:
        heads, rows = dict(zip(self._table.columns, self._table.heads, strict=True)), self._table.rows
        places = {column: i for i, column in enumerate(heads)}
        names = [*heads.values()][: self._label]
        values = [[_read(row[places[column]]) for column in self._columns] for row in rows]
        unit = next(unit for row in values for numbers in row for _, unit in numbers)
        amounts = [[[number for number, _ in numbers] for numbers in row] for row in values]
        if self._log:
            amounts = [[[math.log10(number) for number in numbers if number] for numbers in row] for row in amounts]
        low, high, step = self._axis(amounts)

        def at(place: float) -> float:
            return 100 * (place - low) / (high - low)

        draw = self._bars if self._kind == "bars" else self._dots
        lines, told = [_row("d2-row d2-heads", ", ".join(names), "", heads.get(self._end, ""))], []
        for row, numbers in zip(rows, amounts, strict=True):
            shown = [row[places[column]] for column in self._columns]
            label, end = ", ".join(row[: self._label]), row[places[self._end]] if self._end else ""
            track = f'<div class="d2-track" style="--step:{at(low + step):.4g}%">{draw(numbers, shown, at)}</div>'
            lines.append(_row("d2-row", label, track, end))
            told.append(f"{label}: " + ", ".join(f"{heads[c]} {s}" for c, s in zip(self._columns, shown, strict=True)))
        ticks = [low + i * step for i in range(round((high - low) / step) + 1)]
        marks = "".join(
            f'<span style="left:{at(tick):.4g}%">{SHOW[unit](10**tick if self._log else round(tick, 9))}</span>'
            for tick in ticks
        )
        lines.append(_row("d2-row", "", f'<div class="d2-axis">{marks}</div>', ""))
        keys = "".join(f"<span>{self._key(i)}{escape(heads[c])}</span>" for i, c in enumerate(self._columns))
        return (
            f'<div class="d2lps d2-chart" lang="{html_language()}"><style>{STYLE}{LOOK}</style>'
            f'<div class="d2-keys">{keys}</div>'
            f'<div class="d2-rows" role="img" aria-label="{escape("; ".join(told))}">{"".join(lines)}</div>'
            f"<details><summary>{escape(text('table.of-picture'))}</summary>{self._table._repr_html_()}</details></div>"
        )

    def _axis(self, amounts: list[list[list[float]]]) -> tuple[float, float, float]:
        """Return both ends of the axis, and the distance of its ticks; on a log axis, as powers of ten."""
        if self._kind == "bars" and not self._log:
            low, high = 0.0, max(sum(map(sum, row)) for row in amounts)
        else:
            all_of = [number for row in amounts for numbers in row for number in numbers]
            low, high = min(all_of), max(all_of)
        rough = max((high - low) / MOST, 1e-12)
        power = 10 ** math.floor(math.log10(rough))
        step = 1.0 if self._log else next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * 0.999)
        first, last = math.floor(low / step), math.ceil(high / step)
        return first * step, max(last, first + 1) * step, step

    def _bars(self, amounts: list[list[float]], shown: list[str], at) -> str:
        sums = [sum(map(sum, amounts[:i])) for i in range(len(amounts) + 1)]
        ends = [0.0, *map(at, sums[1:])]
        return "".join(
            f'<div class="d2-part d2-{self._columns[i]}" style="width:{b - a:.4g}%;{self._color(i)}">'
            f"<b>{escape(shown[i]) if len(amounts) > 1 else ''}</b></div>"
            for i, (a, b) in enumerate(pairwise(ends))
            if b > a and amounts[i]
        )

    def _dots(self, amounts: list[list[float]], shown: list[str], at) -> str:
        marks = [f'<div class="d2-zero" style="left:{at(0):.4g}%"></div>'] if 0 < at(0) < 100 and not self._log else []
        for i, numbers in reversed([*enumerate(amounts)]):  # the first, with which the others are compared, is on top
            if len(numbers) > 1:
                a, b = at(min(numbers)), at(max(numbers))
                look = f"left:{a:.4g}%;width:{b - a:.4g}%;{self._color(i)}"
                marks.append(f'<div class="d2-range d2-{self._columns[i]}" style="{look}"></div>')
            elif numbers:
                look = f"left:{at(numbers[0]):.4g}%;{self._color(i)}"
                marks.append(f'<div class="d2-dot d2-{self._columns[i]}" style="{look}"></div>')
        return "".join(marks)

    def _key(self, i: int) -> str:
        return f'<i class="{"d2-dot " * (self._kind == "dots")}d2-{self._columns[i]}" style="{self._color(i)}"></i>'

    def _color(self, i: int) -> str:
        if self._kind == "dots":
            return f"--of:var(--d2-w{(4, 4, 3)[i]})"
        on = [max("#ffffff", "#15181d", key=lambda ink, of=color: contrast(ink, of)) for color in WORKERS[i]]
        return f"--of:var(--d2-w{i});color:light-dark({on[0]},{on[1]})"


def _row(look: str, label: str, track: str, end: str) -> str:
    return f'<div class="{look}"><span>{escape(label)}</span>{track or "<span></span>"}<span>{escape(end)}</span></div>'


def _read(cell: str) -> list[tuple[float, str]]:
    """Return the numbers of a cell, in bytes or seconds if it has such units; ``12 GB … 14 GB`` has two, ``–`` none."""
    found = []
    for number, unit in NUMBER.findall(cell):
        value = float(number.replace("−", "-"))
        if unit in SECONDS:
            found.append((value / SECONDS[unit], "s"))
        elif unit.endswith("B") and unit[:-1] in PREFIXES:
            found.append((value * PREFIXES[unit[:-1]], "B"))
        else:
            found.append((value, unit if unit == "%" else ""))
    return found
