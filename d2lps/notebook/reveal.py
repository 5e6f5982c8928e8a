"""A guess beside the model's and the measured value: bars on one scale, in plain HTML, so that any page shows them."""

import math
from collections.abc import Callable
from html import escape
from typing import NamedTuple

from d2lps.messages import html_language, text
from d2lps.notebook.entries import number_text
from d2lps.notebook.predict_page import as_data
from d2lps.notebook.shown import Late

# A contrast of more than 3:1 with white paper and with a dark page; besides, every bar has its name beside it.
COLOURS = {"guess": "#7a6ff0", "model": "#1f8fb3", "measured": "#2e9e6b"}
OTHER = "#808896"
WIDTH = "min(24em,26vw)"  # of the longest bar; less on a phone
SPAN = 30  # the largest ratio of values that a linear scale shows
# Nothing can be opened on a printed page: it shows the answer.
LOOK = """@media print{.d2lps-revealed>p:has(+details),.d2lps-revealed summary{display:none}
.d2lps-revealed details::details-content{content-visibility:visible;block-size:auto}}"""


class Bar(NamedTuple):
    """A number to show: its source, label, value and unit; the value is None if there is no guess."""

    source: str
    label: str
    value: float | None
    unit: str


class Revealed:
    """A guess beside the answer; the result of :meth:`d2lps.notebook.predict.Prediction.reveal`.

    It is displayed again as soon as the reader has guessed.

    Parameters
    ----------
    bars : callable
        Returns question → its bars.
    guessed : callable
        Returns True if there is a guess.
    thoughts : callable
        Returns the sentences about the guess.
    data : callable
        Returns the data with which a page without a kernel judges a guess made there.
    """

    def __init__(
        self,
        bars: Callable[[], dict[str, list[Bar]]],
        guessed: Callable[[], bool],
        thoughts: Callable[[], list[str]],
        data: Callable[[], dict[str, object]],
    ):
        self._bars, self._guessed, self._thoughts, self._data, self._handle = bars, guessed, thoughts, data, None

    @property
    def hidden(self) -> bool:
        """True while there is no guess."""
        return not self._guessed()

    @property
    def thoughts(self) -> list[str]:
        """The sentences about the guess; empty if there is none."""
        return self._thoughts()

    def __repr__(self) -> str:
        if self.hidden:
            return text("predict.hidden")
        groups = self._bars()
        names, labels = max(map(len, groups)), max(len(bar.label) for bars in groups.values() for bar in bars)
        lines = [
            f"{'' if i else item:{names}}   {bar.label:{labels}}   {number_text(bar.value, bar.unit)}"
            for item, bars in groups.items()
            for i, bar in enumerate(bars)
        ]
        return "\n".join([*lines, *self.thoughts])

    def again(self) -> None:
        """Update the display in the notebook, if there is one."""
        if self._handle is not None:
            self._handle.update(Late(self._bundle))

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._handle = display(Late(self._bundle), display_id=True)

    def _repr_html_(self) -> str:
        start = f'<div class="d2lps-revealed" lang="{html_language()}" style="max-width:48em"'
        inside = chart(self._bars()) + "".join(f"<p>{escape(sentence)}</p>" for sentence in self.thoughts)
        if not self.hidden:
            return f"{start}>{inside}</div>"
        # A page without a kernel can show the answer, too, but not by accident.
        summary = f"<summary>{escape(text('predict.show-anyway'))}</summary>"
        data = self._data()
        return (
            f'{start} data-of="{data["of"]}"><style>{LOOK}</style><p>{escape(text("predict.hidden"))}</p>'
            f"<details>{summary}{inside}</details>"
            f"{as_data(data | {'colour': COLOURS['guess'], 'width': WIDTH})}</div>"
        )


def chart(groups: dict[str, list[Bar]]) -> str:
    """Return groups of bars as a table that can also be read; bars of the same unit have the same scale.

    It is logarithmic if their values span more than ``SPAN``: then a bar is cut where its value is ten times as large.
    """
    sizes: dict[str, list[float]] = {}
    for bar in (bar for bars in groups.values() for bar in bars):
        sizes.setdefault(bar.unit, []).append(abs(bar.value or 0.0))
    scales = {unit: _scale(values) for unit, values in sizes.items()}
    bodies = []
    for item, bars in groups.items():
        shown = [bar for bar in bars if bar.value is not None]
        head = f'<th scope="rowgroup" rowspan="{len(shown)}" style="{_CELL}">{escape(item)}</th>'
        cells = [_row(bar, *scales[bar.unit]) for bar in shown]
        rows = [f'<tr style="background:none">{"" if i else head}{row}</tr>' for i, row in enumerate(cells)]
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    begins = [number_text(low, unit) for unit, (low, _) in scales.items() if low]
    caption = text("predict.log", low=text("list.between").join(begins))
    note = f'<caption style="caption-side:bottom;text-align:left">{escape(caption)}</caption>' if begins else ""
    return f'<table style="border-spacing:0 2px;border-collapse:separate">{note}{"".join(bodies)}</table>'


def _scale(sizes: list[float]) -> tuple[float, float]:
    """Return where bars of these sizes begin and end; they begin at a power of ten if the scale is logarithmic."""
    high = max(sizes)
    least = min(filter(None, sizes), default=high)
    return (10.0 ** (math.ceil(math.log10(least)) - 1) if high > SPAN * least else 0.0), high


_CELL = "text-align:left;vertical-align:top;border:0;padding:0 .7em 0 0;"
_BAR = "border-radius:2px;margin-right:.5em;print-color-adjust:exact"  # print the colours, too


def _row(bar: Bar, low: float, high: float) -> str:
    size, look = abs(bar.value), "display:inline-block;height:.85em"
    part = math.log10(size / low) / math.log10(high / low) if low and size else size / (high or 1)
    look += f";width:calc({WIDTH}*{round(part, 3):g});background:{COLOURS.get(bar.source, OTHER)}"
    if low:
        tenfold = f"{WIDTH}/{math.log10(high / low):.4g}"
        look += f";mask:repeating-linear-gradient(90deg,#000 0 calc({tenfold} - 2px),#0000 0 calc({tenfold}))"
    return (
        f'<th scope="row" style="{_CELL}font-weight:normal;word-break:keep-all">{escape(bar.label)}</th>'
        f'<td style="{_CELL}white-space:nowrap"><span aria-hidden="true" style="{look};{_BAR}"></span>'
        f"{escape(number_text(bar.value, bar.unit))}</td>"
    )
