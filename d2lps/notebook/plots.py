"""Plots of matplotlib in a notebook, in the theme, language and font of the page, and in words and numbers.

matplotlib's font has no Chinese letters, so words stay text and the browser draws them. The words name the axes and
the curve that is apart at the end; a folded table has the values.
"""

import io
import math
import re
import warnings
from html import escape, unescape
from statistics import median

from d2lps.messages import named, text
from d2lps.messages.marked import LANGUAGES, unmarked
from d2lps.units import show_number
from d2lps.view.drawing.theme import STYLE
from d2lps.view.tables import SCROLLS, Table

# Colours of lines and bars, on light and dark: different from those of nodes and of the bottleneck link.
LINES = (("#1c2230", "#e9ecf2"), ("#6b4fd0", "#ab9dff"), ("#1d7f52", "#5cc492"), ("#96552b", "#dc9a70"))
# The default colours of matplotlib and d2l.plot → the number of a line.
DEFAULTS = {"#1f77b4": 0, "#ff7f0e": 1, "#2ca02c": 2, "#d62728": 3, "#bf00bf": 1, "#008000": 2, "#ff0000": 3}
LETTERS = ".d2lps-plot text,.d2lps-plot tspan{font-family:inherit!important}"
LEAST = 0.7  # the smallest scale, at which letters of 10 points are still readable; a wider plot scrolls sideways
PHONE = 300  # pixels: the width of the narrowest page
REST = {"#000000": "ink", "#b0b0b0": "edge", "#cccccc": "edge", "#ffffff": "paper"}


def as_html(figure) -> str:
    """Return a figure of matplotlib as HTML, with a description for screen readers."""
    from matplotlib import rc_context

    for axes in figure.axes:
        _label_powers(axes)
    entries = [entry for axes in figure.axes if axes.get_legend() for entry in axes.get_legend().get_texts()]
    names = {_placeholder(entry.get_text(), number): entry.get_text() for number, entry in enumerate(entries)}
    for entry, placeholder in zip(entries, names, strict=True):  # to make room in the legend for the final words
        entry.set_text(placeholder)
    written = io.StringIO()
    # The fixed salt makes the SVG of a figure the same every time.
    with rc_context({"svg.hashsalt": "d2lps", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)  # the browser has it
        figure.savefig(written, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    for entry in entries:
        entry.set_text(names[entry.get_text()])
    svg = written.getvalue()
    svg = re.sub(r"#[0-9a-f]{6}\b", _in_theme, svg[svg.index("<svg") :])

    def translated(match: re.Match) -> str:
        word = unescape(match[1])
        return f">{escape(named(names.get(word, word)))}</text>"

    svg = re.sub(r">([^<>]+)</text>", translated, svg)
    colours = "".join(f"--d2-line{i}:light-dark({light},{dark});" for i, (light, dark) in enumerate(LINES))
    least = round(LEAST * float(re.findall(r'viewBox="0 0 ([\d.]+)', svg)[0]))
    look = f"{colours}fill:var(--d2-ink);background:var(--d2-paper);max-width:max(100%,{least}px);min-width:{least}px"
    start = f'<svg role="img" aria-label="{escape(words(figure))}" style="{look};height:auto"'
    inside = re.sub(r"<svg[^>]*>", lambda svg: f"{svg[0]}<desc>{escape(described(figure))}</desc>", svg, count=1)
    inside = inside.replace("<svg", start, 1)
    if least > PHONE:
        inside = f'<div style="{SCROLLS}" tabindex="0">{inside}</div>'
    return f'<div class="d2lps d2lps-plot"><style>{STYLE}{LETTERS}</style>{inside}{table(figure)}</div>'


def _placeholder(name: str, number: int) -> str:
    """Return a unique text for matplotlib, as wide as ``name`` in any language, with W for each Chinese letter."""
    words = [re.sub("[\u2e80-\uffff]", "W", unmarked(named(name), language)) for language in LANGUAGES]
    return chr(0xE000 + number) + max(words, key=len)[1:]


def _label_powers(axes) -> None:
    """Label a logarithmic axis with its values, such as 1, 2, 4, 8, if they are few whole numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    for axis, scale, data in (
        (axes.xaxis, axes.get_xscale(), "get_xdata"),
        (axes.yaxis, axes.get_yscale(), "get_ydata"),
    ):
        values = sorted({float(value) for line in axes.lines for value in getattr(line, data)()})
        if scale == "log" and 1 < len(values) <= 12 and all(value == int(value) < 1e5 for value in values):
            axis.set_major_locator(FixedLocator(values))
            axis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            axis.set_minor_locator(NullLocator())


def _in_theme(match: re.Match) -> str:
    colour = match[0]
    if colour in DEFAULTS:
        return f"var(--d2-line{DEFAULTS[colour]})"
    return f"var(--d2-{REST[colour]})" if colour in REST else colour


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
        rows: list[list[object]] = [
            [_shown(x), *(_shown(points.get(x)) for points in curves.values())] for x in dict.fromkeys(chosen)
        ]
        heads: list[str | int] = [label, *curves]
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
        return [str(column) for column in self._columns]


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
