"""A plot of matplotlib in words and numbers: its axes, which curve is apart at the end, and a table of the values."""

import math
from html import escape
from statistics import median

from d2lps.messages import named, text
from d2lps.units import show_number
from d2lps.view.tables import Table

MOST_ROWS = 12  # of the table under a plot: a longer curve is shown at places that are equally far apart
APART = 0.02  # of the range of all values: curves that end nearer to each other end together


def words(figure) -> str:
    """Return the titles of the axes, and the names of the lines."""
    parts = []
    for axes in figure.axes:
        legend = axes.get_legend()
        lines = ", ".join(named(entry.get_text()) for entry in legend.get_texts()) if legend else ""
        labels = [*map(named, (axes.get_title(), axes.get_ylabel(), axes.get_xlabel())), lines]
        parts.append(" · ".join(label for label in labels if label))
    return "; ".join(part for part in parts if part)


def described(figure) -> str:
    """Return a sentence about each pair of axes: the curve that is apart at the end, or the range; else its images."""
    said = []
    for axes in figure.axes:
        curves, bars = _curves(axes), _bars(axes)
        labels = map(named, (axes.get_title(), axes.get_ylabel(), axes.get_xlabel()))
        if curves or bars:
            sentence = _of_curves(curves) if curves else text("described.bars", count=len(bars), **_range(bars))
            said.append(text("predict.colon").join([*filter(None, [" · ".join(filter(None, labels))]), sentence]))
    if not said and figure.axes:
        said.append(text("described.images", count=len(figure.axes)))
    return " ".join(said)


def _of_curves(curves: dict[str, dict[float, float]]) -> str:
    last = {name: [*points.values()][-1] for name, points in curves.items()}
    if len(last) == 1:
        ((name, points),) = curves.items()
        values = [*points.values()]
        return text("described.one", first=_shown(values[0]), last=_shown(values[-1]), **_range(values))
    middle, values = median(last.values()), [value for points in curves.values() for value in points.values()]
    apart = max(last, key=lambda name: abs(last[name] - middle))
    if abs(last[apart] - middle) <= APART * (max(values) - min(values)):
        return text("described.together", **_range([*last.values()]))
    others = _range([value for name, value in last.items() if name != apart])
    return text("described.lines", line=apart, value=_shown(last[apart]), **others)


def table(figure) -> str:
    """Return a folded table with the numbers of each pair of axes as HTML; empty if they have no curves or bars."""
    tables = ""
    for axes in figure.axes:
        curves, label = _curves(axes), named(axes.get_xlabel()) or "x"
        places = sorted({x for points in curves.values() for x in points})
        every = math.ceil(len(places) / MOST_ROWS)
        chosen = [*places[::every], *places[-1:]] if places else []
        rows = [[_shown(x), *(_shown(points.get(x)) for points in curves.values())] for x in dict.fromkeys(chosen)]
        heads = [label, *curves]
        if not rows and (bars := _bars(axes)):
            heads = [label, named(axes.get_ylabel())]
            rows = [[str(i), _shown(value)] for i, value in enumerate(bars, 1)]
        if rows:
            title = named(axes.get_title())
            tables += (f"<p>{escape(title)}</p>" if title else "") + Numbers(heads, rows)._repr_html_()
    return f"<details><summary>{escape(text('table.of-picture'))}</summary>{tables}</details>" if tables else ""


class Numbers(Table):
    """A table whose headings are those of a plot."""

    @property
    def heads(self) -> list[str]:
        """The headings, as they are."""
        return self._columns


def _curves(axes) -> dict[str, dict[float, float]]:
    """Return name → x → y of the lines of axes, without those that only mark a place."""
    legend = axes.get_legend()
    names = [entry.get_text() for entry in legend.get_texts()] if legend else []
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1 and line.get_transform() == axes.transData]
    found = {}
    for i, line in enumerate(lines):
        own = "" if str(line.get_label()).startswith("_") else str(line.get_label())
        name = named(names[i] if len(names) == len(lines) else own or axes.get_ylabel() or "y")
        pairs = zip(line.get_xdata(), line.get_ydata(), strict=True)
        points = {float(x): float(y) for x, y in pairs if math.isfinite(float(y))}
        if points:
            found[name if name not in found else f"{name} ({i + 1})"] = points
    return found


def _bars(axes) -> list[float]:
    return [float(value) for bars in axes.containers for value in getattr(bars, "datavalues", ())]


def _range(values: list[float]) -> dict[str, str]:
    return {"low": _shown(min(values)), "high": _shown(max(values))}


def _shown(value: float | None) -> str:
    return "–" if value is None else show_number(value)
