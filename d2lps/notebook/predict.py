"""A prediction: numbers to which a reader commits before the answer is shown, and what their errors tell.

>>> race = predict("race", {"CPU": "ms"})
>>> race
What do you think? CPU (ms). You have not guessed yet.
>>> race.reveal({"CPU": 80})
You have not guessed yet: the answer stays hidden until you commit to a guess above.

What a chapter knows of its predictions stands in its ``predictions.toml``: in which range a guess can be meant, and
which thought leads to which wrong number.
"""

import math
import re
from collections.abc import Mapping
from html import escape
from numbers import Real

from d2lps.messages import named, said, text
from d2lps.notebook import kept
from d2lps.notebook.entries import PredictionError, number, number_text
from d2lps.notebook.grading.course import CHAPTERS, tables
from d2lps.notebook.predict_page import form, question
from d2lps.notebook.reveal import Bar, Revealed
from d2lps.notebook.shown import Late
from d2lps.trace import Trace
from d2lps.units import SECONDS

NEAR = 0.05  # a guess is right, or made by a known thought, within this part of it


def predict(name: str, asked: Mapping[str, str], guess: "Mapping[str, float | str] | None" = None) -> "Prediction":
    """Ask for numbers before they are known.

    In a notebook a field for each number appears; the answer stays hidden until the reader has committed to all of
    them. The guess is kept in the workspace, and is there when the notebook runs again; it is never sent. Where nobody
    has guessed, the program says so and goes on.

    Parameters
    ----------
    name : str
        What the prediction is called, of letters, digits and ``-``.
    asked : mapping of str to str
        What is asked, and the unit of each answer: ``"ms"``, ``"%"``, or ``""`` for a plain number.
    guess : mapping of str to number, optional
        The guess itself, where no fields can be shown. None in all places is no guess.

    Returns
    -------
    Prediction
        A notebook shows its fields; ``reveal`` compares the guess with what is true.

    Raises
    ------
    PredictionError
        For a name or units that cannot be, and for a guess that cannot be meant: no number, negative, with a unit, a
        thousand times too large.

    Examples
    --------
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
    if not pairs or not all(isinstance(each, str) for pair in pairs for each in pair):
        raise PredictionError("bad-asked", given=repr(asked))
    made = Prediction(name, dict(asked))
    if guess is not None:
        made.commit(guess)
    return made


class Prediction:
    """What :func:`predict` gives: the fields of a notebook, the guess, and its comparison with the truth.

    Attributes
    ----------
    name : str
        What it is called.
    asked : dict of str to str
        What is asked, and the unit of each answer.
    guess : dict of str to float, or None
        What the reader has committed to.
    """

    def __init__(self, name: str, asked: dict[str, str]):
        self.name, self.asked, self._shown = name, asked, []
        self._known = known().get(name, {})
        old = kept.kept("guess", name) or {}
        self.guess = self._again(old) if old.get("asked") == asked else None

    def __repr__(self) -> str:
        return f"{question(self.asked)} {self.said()}"

    def said(self) -> str:
        """The guess in a sentence, or that there is none.

        Returns
        -------
        str
            In the language in force.
        """
        if self.guess is None:
            return text("predict.none")
        each = [f"{named(what)} {number_text(value, self.asked[what])}" for what, value in self.guess.items()]
        own = text("list.between").join(each)
        return text("predict.yours", guess=own)

    def commit(self, guess: "Mapping[str, float | str]") -> None:
        """Take a guess, keep it, and show the answer wherever it was hidden.

        Parameters
        ----------
        guess : mapping of str to number or str
            For each thing that is asked a number in its unit. Where all are None, or empty, there is no guess.

        Raises
        ------
        PredictionError
            For what cannot be meant; nothing is kept then.
        """
        if not isinstance(guess, Mapping) or set(guess) != set(self.asked):
            raise PredictionError("other-names", given=repr(guess), names=", ".join(self.asked))
        if all(entry is None or entry == "" for entry in guess.values()):
            return
        self.guess = {what: self.read(what, guess[what]) for what in self.asked}
        kept.keep("guess", self.name, {"asked": self.asked, "guess": self.guess})
        for again in self._shown:
            again()

    def read(self, what: str, entry: "float | str | None") -> float:
        """An entry as the number that is meant.

        Parameters
        ----------
        what : str
            Which of the things that are asked.
        entry : float or str
            What was entered.

        Returns
        -------
        float
            In the unit that is asked for.

        Raises
        ------
        PredictionError
            For what is no number in that unit, or can hardly be meant.
        """
        return number(named(what), entry, self.asked[what], *self._within)

    @property
    def _within(self) -> tuple[float, float]:
        """Between which numbers a guess can be meant."""
        return tuple(self._known.get("within", (0, math.inf)))

    def reveal(
        self,
        model: "Mapping[str, float | Trace]",
        measured: "Mapping[str, float | Trace] | None" = None,
        **columns: "Mapping[str, float | Trace]",
    ) -> Revealed:
        """The guess beside what is true, once there is a guess.

        Parameters
        ----------
        model : mapping of str to number or Trace
            For each thing that was asked what the model says: a number in its unit, or a trace, which stands for its
            duration. A guess is judged by it.
        measured : mapping of str to number or Trace, optional
            What was measured.
        **columns : mapping of str to number or Trace
            More to compare with, each under the heading ``table.<column>`` of the messages.

        Returns
        -------
        Revealed
            Bars in a notebook, lines elsewhere; hidden for as long as nobody has guessed.

        Raises
        ------
        PredictionError
            If something that was asked has no answer, or a trace answers a question that is not about time.
        """
        sources = {**columns, "model": model} | ({} if measured is None else {"measured": measured})
        labels = {label: f"table.{label}" for label in columns} | {"model": _label(model), "measured": "predict.found"}
        true = {source: self._in_units(values) for source, values in sources.items()}
        right = {what: [true[each][what] for each in ("model", "measured") if each in true] for what in self.asked}

        def bars() -> dict[str, list[Bar]]:
            own = self.guess or {}
            return {
                named(what): [Bar("guess", text("predict.you"), own.get(what), unit)]
                + [Bar(source, text(labels[source]), values[what], unit) for source, values in true.items()]
                for what, unit in self.asked.items()
            }

        def data() -> dict[str, object]:
            thoughts = self._known.get("thoughts", ())
            return {
                "of": self.name,
                "bars": [[values[what] for values in true.values()] for what in self.asked],
                "right": [*right.values()],
                "thoughts": [
                    [[each["guess"], said(each.__getitem__)] for each in thoughts if what in each["of"]]
                    for what in self.asked
                ],
            }

        revealed = Revealed(bars, lambda: self.guess is not None, lambda: self._thoughts(right), data)
        self._shown.append(revealed.again)
        return revealed

    def _again(self, old: dict) -> dict[str, float] | None:
        """What was kept, if it could be entered today."""
        try:
            return {what: self.read(what, old["guess"][what]) for what in self.asked}
        except (KeyError, TypeError, PredictionError):
            return None

    def _in_units(self, values: "Mapping[str, float | Trace]") -> dict[str, float]:
        found = {}
        for what, unit in self.asked.items():
            value = values.get(what) if isinstance(values, Mapping) else None
            if isinstance(value, Trace):
                value = value.duration * SECONDS[unit] if unit in SECONDS else None
            if not isinstance(value, Real) or isinstance(value, bool):
                raise PredictionError("no-answer", what=what, unit=unit or "–")
            found[what] = float(value)
        return found

    def _thoughts(self, right: dict[str, list[float]]) -> list[str]:
        """What the guess tells, a sentence for each thing that was asked; the same sentence is said once."""
        said: dict[str, list[str]] = {}
        for what, own in (self.guess or {}).items():
            said.setdefault(self._thought(what, own, *right[what]), []).append(named(what))
        return [
            f"{text('list.between').join(names)}{text('predict.colon')}{sentence}" for sentence, names in said.items()
        ]

    def _thought(self, what: str, own: float, right: float, *measured: float) -> str:
        if any(_near(own, each) for each in (right, *measured)):
            return text("predict.right")
        for thought in self._known.get("thoughts", ()):
            if what in thought["of"] and _near(own, thought["guess"]):
                return said(thought.__getitem__)
        if not own or not right:
            return text("predict.wrong")
        times = max(own, right) / min(own, right)
        factor = f"{times:.2g}" if times < 99.5 else f"{times:.0f}"
        return text("predict.above", factor=factor) if own > right else text("predict.below", factor=factor)

    def _repr_html_(self) -> str:
        if self.guess is None:
            return form(self.name, self.asked, self._within, NEAR)
        return f"<p>{escape(repr(self))}</p>"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        try:
            from d2lps.notebook.fields import bundle
        except ImportError:  # no widgets: the guess is given to predict itself, and the program says how
            plain = f"{self!r}\n{text('predict.without-fields', names=', '.join(self.asked))}"
            display({"text/plain": plain}, raw=True)
            return
        shown = Late(bundle(self))
        handle = display(shown, display_id=True)
        if handle:  # so that the file of the notebook, too, says what was guessed
            self._shown.append(lambda: handle.update(shown))


def known() -> dict[str, dict]:
    """What the chapters say of their predictions, by name; empty where there is no course beside the package."""
    files = sorted(CHAPTERS.glob("*/predictions.toml"))
    return {name: table for file in files for name, table in tables(file).items()}


def _label(model: object) -> str:
    """The key of what the model is called: traces say by which they were made, numbers do not."""
    values = model.values() if isinstance(model, Mapping) else ()
    origins = {each.origin if isinstance(each, Trace) else None for each in values}
    return "table.shared" if origins == {"shared"} else "predict.modelled"


def _near(own: float, right: float) -> bool:
    return abs(own - right) <= NEAR * abs(right)
