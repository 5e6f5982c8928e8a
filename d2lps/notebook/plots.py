"""Plots of matplotlib in a notebook, in the theme, language and font of the page.

matplotlib's font has no Chinese letters, so words stay text and the browser draws them.
"""

import io
import re
import warnings
from html import escape, unescape

from d2lps.messages import named
from d2lps.messages.marked import LANGUAGES, unmarked
from d2lps.notebook.plot_words import described, table, words
from d2lps.view.drawing.theme import STYLE
from d2lps.view.tables import SCROLLS

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
    least = round(LEAST * float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1]))
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
