"""Plots of matplotlib in a notebook: in the theme, the language and the letters of the page, in colours of their own.

matplotlib has no letters for Chinese, so words are left to the browser, as text.
"""

import io
import re
import warnings
from html import escape, unescape

from d2lps.messages import named
from d2lps.messages.marked import LANGUAGES, unmarked
from d2lps.view.drawing.theme import STYLE
from d2lps.view.tables import SCROLLS

# Of a line or of bars, in light and dark: none is that of a node, nor the warm one of the link that decides.
LINES = (("#1c2230", "#e9ecf2"), ("#6b4fd0", "#ab9dff"), ("#1d7f52", "#5cc492"), ("#96552b", "#dc9a70"))
# What matplotlib and d2l.plot take of their own accord → the number of a line.
THEIRS = {"#1f77b4": 0, "#ff7f0e": 1, "#2ca02c": 2, "#d62728": 3, "#bf00bf": 1, "#008000": 2, "#ff0000": 3}
LETTERS = ".d2lps-plot text,.d2lps-plot tspan{font-family:inherit!important}"
LEAST = 0.7  # of its size: letters of 10 points are still read; what is wider than the page moves sideways
PHONE = 300  # pixels that any page has
REST = {"#000000": "ink", "#b0b0b0": "edge", "#cccccc": "edge", "#ffffff": "paper"}


def as_html(figure) -> str:
    """A figure of matplotlib as a piece of HTML, said in words too."""
    from matplotlib import rc_context

    for axes in figure.axes:
        _count(axes)
    entries = [each for axes in figure.axes if axes.get_legend() for each in axes.get_legend().get_texts()]
    names = {_as_wide(each.get_text(), number): each.get_text() for number, each in enumerate(entries)}
    for entry, room in zip(entries, names, strict=True):  # a legend has room for the words that will stand there
        entry.set_text(room)
    written = io.StringIO()
    # The same figure is the same text every time.
    with rc_context({"svg.hashsalt": "d2lps", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)  # the browser has it
        figure.savefig(written, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    for entry in entries:
        entry.set_text(names[entry.get_text()])
    svg = written.getvalue()
    svg = re.sub(r"#[0-9a-f]{6}\b", _in_theme, svg[svg.index("<svg") :])

    def spoken(found: re.Match) -> str:
        said = unescape(found[1])
        return f">{escape(named(names.get(said, said)))}</text>"

    svg = re.sub(r">([^<>]+)</text>", spoken, svg)
    colours = "".join(f"--d2-line{i}:light-dark({light},{dark});" for i, (light, dark) in enumerate(LINES))
    least = round(LEAST * float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1]))
    look = f"{colours}fill:var(--d2-ink);background:var(--d2-paper);max-width:max(100%,{least}px);min-width:{least}px"
    said = f'<svg role="img" aria-label="{escape(words(figure))}" style="{look};height:auto"'
    inside = svg.replace("<svg", said, 1)
    if least > PHONE:
        inside = f'<div style="{SCROLLS}" tabindex="0">{inside}</div>'
    return f'<div class="d2lps d2lps-plot"><style>{STYLE}{LETTERS}</style>{inside}</div>'


def _as_wide(name: str, number: int) -> str:
    """A text for matplotlib, unlike those of other numbers and as wide as ``name`` for any reader: it has letters for
    Latin, and W is as wide as a Chinese one."""
    words = [re.sub("[\u2e80-\uffff]", "W", unmarked(named(name), language)) for language in LANGUAGES]
    return chr(0xE000 + number) + max(words, key=len)[1:]


def _count(axes) -> None:
    """Where few whole numbers stand on a logarithmic axis, as 1, 2, 4, 8, they are its labels, and not powers of 10."""
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


def _in_theme(found: re.Match) -> str:
    colour = found[0]
    if colour in THEIRS:
        return f"var(--d2-line{THEIRS[colour]})"
    return f"var(--d2-{REST[colour]})" if colour in REST else colour


def words(figure) -> str:
    """What a figure shows, for who does not see it: its axes and the names of its lines."""
    told = []
    for axes in figure.axes:
        legend = axes.get_legend()
        lines = ", ".join(named(each.get_text()) for each in legend.get_texts()) if legend else ""
        labels = [*map(named, (axes.get_title(), axes.get_ylabel(), axes.get_xlabel())), lines]
        told.append(" · ".join(label for label in labels if label))
    return "; ".join(each for each in told if each)
