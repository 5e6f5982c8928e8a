"""A prediction: the reader commits to numbers before the answer is shown, and learns from the errors.

>>> race = predict("race", {"CPU": "ms"})
>>> race
What do you think? CPU (ms). You have not guessed yet.
>>> race.reveal({"CPU": 80})
You have not guessed yet: the answer stays hidden until you commit to a guess above.

A chapter's ``predictions.toml`` has the range of plausible guesses, and the thoughts behind known wrong numbers.

A guess beside the model's and the measured value: bars on one scale, in plain HTML, so that any page shows them.
"""

import math
import re
from collections.abc import Callable, Mapping
from html import escape
from numbers import Real
from typing import Any, NamedTuple

from d2lps.messages import html_language, named, said, text
from d2lps.notebook import kept
from d2lps.notebook.grading.course import CHAPTERS, tables
from d2lps.notebook.predict_page import PredictionError, as_data, form, number, number_text, question
from d2lps.notebook.shown import Late
from d2lps.trace import Trace
from d2lps.units import SECONDS, show_number

NEAR = 0.05  # the relative error within which a guess is right, or matches a known wrong number


def predict(name: str, asked: Mapping[str, str], guess: "Mapping[str, float | str] | None" = None) -> "Prediction":
    """Ask for numbers before they are known.

    In a notebook a field for each number appears; the answer stays hidden until the reader has committed to all of
    them. The guess is stored in the workspace, for the next run of the notebook; it is never sent. Without a guess the
    program says so and goes on.

    Args:
        name: The name of the prediction: letters, digits and ``-``.
        asked: Each question, with the unit of its answer: ``"ms"``, ``"%"``, or ``""`` for a plain number.
        guess: The guess, if no fields can be shown. None for all questions is no guess.

    Returns:
        A notebook shows its fields; ``reveal`` compares the guess with the truth.

    Raises:
        PredictionError: For an invalid name or unit, and for a guess that is not plausible: no number, negative, with a
            unit, a thousand times too large.

    Example:
        >>> race = predict("race", {"GPU 0": "ms", "CPU": "ms"}, guess={"GPU 0": 60, "CPU": 30})
        >>> print(race.reveal({"GPU 0": 60, "CPU": 80}))
        GPU 0   you     60 ms
                model   60 ms
        CPU     you     30 ms
                model   80 ms
        GPU 0: right.
        CPU: the right number is 2.7 times as large.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9-]+", name):
        raise PredictionError("bad-name", name=repr(name))
    pairs = asked.items() if isinstance(asked, Mapping) else ()
    if not pairs or not all(isinstance(word, str) for pair in pairs for word in pair):
        raise PredictionError("bad-asked", given=repr(asked))
    prediction = Prediction(name, dict(asked))
    if guess is not None:
        prediction.commit(guess)
    return prediction


class Prediction:
    """The result of :func:`predict`: the fields of a notebook, the guess, and its comparison with the truth.

    Attributes:
        name: Its name.
        asked: Each question, with the unit of its answer.
        guess (dict of str to float, or None): The numbers to which the reader has committed.
    """

    def __init__(self, name: str, asked: dict[str, str]):
        self.name, self.asked = name, asked
        self._updates: list[Callable[[], None]] = []  # they renew displays
        self._table = known().get(name, {})
        old = kept.kept("guess", name) or {}
        self.guess = self._restored(old) if old.get("asked") == asked else None

    def __repr__(self) -> str:
        return f"{question(self.asked)} {self.said()}"

    def said(self) -> str:
        """Return a sentence with the guess, or one saying that there is none, in the current language."""
        if self.guess is None:
            return text("predict.none")
        parts = [f"{named(item)} {number_text(value, self.asked[item])}" for item, value in self.guess.items()]
        return text("predict.yours", guess=text("list.between").join(parts))

    def commit(self, guess: "Mapping[str, float | str]") -> None:
        """Take a guess, store it, and show the answers that were hidden.

        Args:
            guess: For each question a number in its unit. If all are None or empty, there is no guess.

        Raises:
            PredictionError: For a guess that is not plausible; it is not stored then.
        """
        if not isinstance(guess, Mapping) or set(guess) != set(self.asked):
            raise PredictionError("other-names", given=repr(guess), names=", ".join(self.asked))
        if all(entry is None or entry == "" for entry in guess.values()):
            return
        self.guess = {item: self.read(item, guess[item]) for item in self.asked}
        kept.keep("guess", self.name, {"asked": self.asked, "guess": self.guess})
        for update in self._updates:
            update()

    def read(self, item: str, entry: "float | str | None") -> float:
        """Return the entry for one question as a number in its unit; raise PredictionError if it is not plausible."""
        return number(named(item), entry, self.asked[item], *self._within)

    @property
    def _within(self) -> tuple[float, float]:
        """The range of plausible guesses."""
        return tuple(self._table.get("within", (0, math.inf)))

    def reveal(
        self,
        model: "Mapping[str, float | Trace] | None" = None,
        measured: "Mapping[str, float | Trace] | None" = None,
        **columns: "Mapping[str, float | Trace]",
    ) -> "Revealed":
        """Show the guess beside the truth, once there is a guess.

        Args:
            model: The model's answer to each question: a number in its unit, or a trace, which stands for its duration.
                The guess is judged by it.
            measured: The measured answers; they judge the guess as well.
            **columns: Further answers, each under the heading ``table.<column>`` of the messages.

        Returns:
            Bars in a notebook, lines elsewhere; hidden as long as there is no guess.

        Raises:
            PredictionError: If a question has no answer, or a trace answers a question that is not about time.
        """
        sources: dict[str, Any] = {**columns} | ({} if model is None and measured is not None else {"model": model})
        sources |= {} if measured is None else {"measured": measured}
        labels = {label: f"table.{label}" for label in columns} | {"model": _label(model), "measured": "predict.found"}
        answers = {source: self._in_units(values) for source, values in sources.items()}
        judges = [source for source in ("model", "measured") if source in answers]
        right = {item: [answers[source][item] for source in judges] for item in self.asked}

        def bars() -> dict[str, list[Bar]]:
            guess = self.guess or {}
            return {
                named(item): [Bar("guess", text("predict.you"), guess.get(item), unit)]
                + [Bar(source, text(labels[source]), values[item], unit) for source, values in answers.items()]
                for item, unit in self.asked.items()
            }

        def data() -> dict[str, object]:
            thoughts = self._table.get("thoughts", ())
            return {
                "of": self.name,
                "bars": [[values[item] for values in answers.values()] for item in self.asked],
                "right": [*right.values()],
                "thoughts": [
                    [[thought["guess"], said(thought.__getitem__)] for thought in thoughts if item in thought["of"]]
                    for item in self.asked
                ],
            }

        revealed = Revealed(bars, lambda: self.guess is not None, lambda: self._thoughts(right), data)
        self._updates.append(revealed.again)
        return revealed

    def _restored(self, old: dict) -> dict[str, float] | None:
        """Return the stored guess, if it would still be accepted today."""
        try:
            return {item: self.read(item, old["guess"][item]) for item in self.asked}
        except (KeyError, TypeError, PredictionError):
            return None

    def _in_units(self, values: "Mapping[str, float | Trace]") -> dict[str, float]:
        numbers: dict[str, float] = {}
        for item, unit in self.asked.items():
            value = values.get(item) if isinstance(values, Mapping) else None
            if isinstance(value, Trace):
                value = value.duration * SECONDS[unit] if unit in SECONDS else None
            if not isinstance(value, Real) or isinstance(value, bool):
                raise PredictionError("no-answer", what=item, unit=unit or "–")
            numbers[item] = float(value)
        return numbers

    def _thoughts(self, right: dict[str, list[float]]) -> list[str]:
        """Return the sentences about the guess, each once, with the questions that it answers."""
        items: dict[str, list[str]] = {}
        for item, guess in (self.guess or {}).items():
            items.setdefault(self._thought(item, guess, *right[item]), []).append(named(item))
        between, colon = text("list.between"), text("predict.colon")
        return [f"{between.join(names)}{colon}{sentence}" for sentence, names in items.items()]

    def _thought(self, item: str, guess: float, right: float, *measured: float) -> str:
        if any(_near(guess, answer) for answer in (right, *measured)):
            return text("predict.right")
        for thought in self._table.get("thoughts", ()):
            if item in thought["of"] and _near(guess, thought["guess"]):
                return said(thought.__getitem__)
        if not guess or not right:
            return text("predict.wrong")
        times = max(guess, right) / min(guess, right)
        factor = show_number(times, 2 if times < 99.5 else 3)
        return text("predict.above", factor=factor) if guess > right else text("predict.below", factor=factor)

    def _repr_html_(self) -> str:
        if self.guess is None:
            return form(self.name, self.asked, self._within, NEAR)
        return f"<p>{escape(repr(self))}</p>"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        try:
            from d2lps.notebook.fields import bundle
        except ImportError:  # no widgets: say how to give the guess to predict itself
            plain = f"{self!r}\n{text('predict.without-fields', names=', '.join(self.asked))}"
            display({"text/plain": plain}, raw=True)
            return
        shown = Late(bundle(self))
        handle = display(shown, display_id=True)
        if handle:  # so that the notebook's file contains the guess, too
            self._updates.append(lambda: handle.update(shown))


def known() -> dict[str, dict]:
    """Return the tables of all chapters' predictions, by name; empty if there is no course beside the package."""
    files = sorted(CHAPTERS.glob("*/predictions.toml"))
    return {name: table for file in files for name, table in tables(file).items()}


def _label(model: object) -> str:
    """Return the message key of the model's name; traces know their model, numbers do not."""
    values = model.values() if isinstance(model, Mapping) else ()
    origins = {value.origin if isinstance(value, Trace) else None for value in values}
    return "table.shared" if origins == {"shared"} else "predict.modelled"


def _near(guess: float, right: float) -> bool:
    return abs(guess - right) <= NEAR * abs(right)


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

    Args:
        bars: Returns question → its bars.
        guessed: Returns True if there is a guess.
        thoughts: Returns the sentences about the guess.
        data: Returns the data with which a page without a kernel judges a guess made there.
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
    size, look = abs(bar.value or 0.0), "display:inline-block;height:.85em"
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
