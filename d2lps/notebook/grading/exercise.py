"""The definition of an exercise: its cases and its judge, the failure of an answer, and the verdict on it."""

import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from html import escape
from numbers import Real
from typing import Any, Protocol

from d2lps.messages import html_language, text
from d2lps.notebook.shown import Late
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size


class Case(Protocol):
    """A case in which an answer is judged: every judge has its own kind, with a label such as ``"n = 4"``."""

    @property
    def label(self) -> str: ...


@dataclass(frozen=True)
class Exercise:
    """The requirements on an answer.

    Args:
        parameters: The parameters of the function that the learner writes.
        cases: The cases in which it is judged, of the judge's own kind; the learner reads the ``label`` of each, the
            same in every language: ``"n = 4"``. The result of the first is shown for a right answer.
        judge (callable (case, answer) → result): Raises :class:`Failure`, or returns a measurement: a predicted Trace,
            or an object for ``fills``. For answers that return a plan it is a :class:`PlanJudge`.
        shows: The labels of the cases whose times are shown for a right answer, if the results are traces.
        fills (callable (result of the first case) → dict of str): Further values for the sentence on a right answer.
    """

    parameters: tuple[str, ...]
    cases: tuple[Case, ...]
    judge: Callable[[Any, Callable], object]
    shows: tuple[str, ...] = ()
    fills: Callable[[object], dict[str, str]] = lambda result: {}


class Ended(BaseException):
    """An exercise's world ends what the answer does: no Exception, so that few handlers catch it."""


# The failures of the call under way; and of the whole judgement, those that an answer has caught.
FAILURES: ContextVar["list[Failure] | None"] = ContextVar("failures", default=None)
CAUGHT: ContextVar["list[Failure] | None"] = ContextVar("caught", default=None)


class Failure(Ended):
    """The mistake in an answer. The first one in a call ends the judgement, even if the answer catches it.

    Args:
        mistake: Its name: a key under ``mistakes`` in the chapter's exercises.toml, or under ``checks.mistake`` in the
            messages.
        sentence: The case and the finding, in the current language.
        trace: A trace for the learner to watch.
    """

    def __init__(self, mistake: str, sentence: str, trace: Trace | None = None):
        super().__init__(sentence)
        self.mistake, self.sentence, self.trace = mistake, sentence, trace
        if (made := FAILURES.get()) is None:
            return
        made.append(self)
        if len(made) > 1:  # the answer has caught the first, and goes on
            if (caught := CAUGHT.get()) is not None:
                caught.append(made[0])
            time.sleep(0.1)


def failure(mistake: str, sentence: str, case: Case, trace: Trace | None = None, **values: object) -> Failure:
    """Make a Failure whose sentence is a message in the current language; the caller raises it.

    Args:
        mistake, trace: As for :class:`Failure`.
        sentence: The message's key under ``checks``.
        case, **values: The case's label fills ``{case}`` in the message, the values its other placeholders.
    """
    return Failure(mistake, text(f"checks.{sentence}", case=case.label, **values), trace)


_carried: dict[int, dict[str, object]] = {}  # id of a case → the values that a handout has for it
SEALED: list[Callable] = []


def sealed(function: Callable[[Case], object]) -> Callable[[Case], object]:
    """Mark a function of a case that computes what is right there: a handout has its values in the place of its code.

    The values have to be what JSON can write.
    """

    @wraps(function)
    def read(case: Case) -> object:
        values = _carried.get(id(case), {})
        return values[function.__qualname__] if function.__qualname__ in values else function(case)

    SEALED.append(read)
    return read


def withheld(function: Callable) -> Callable:
    """Mark a function that only sealed functions use: a handout does not have it."""
    return function


def carry(cases: Iterable[Case], values: Iterable[dict[str, object]]) -> None:
    """Give each case the values of its sealed functions; the cases have to be kept, since copies have none."""
    _carried.update({id(case): each for case, each in zip(cases, values, strict=True)})


def time_text(seconds: float, digits: int = 4) -> str:
    """Write ``seconds`` as a time in a sentence: ``"7.5 ms"``, with a no-break space before its unit."""
    return show_seconds(float(seconds), digits).replace(" ", "\u00a0")


def size_text(nbytes: float, digits: int = 4) -> str:
    """Write ``nbytes`` as a size in a sentence: ``"160 MB"``, with a no-break space before its unit."""
    return show_size(float(nbytes), digits).replace(" ", "\u00a0")


def number_text(value: float, digits: int = 4) -> str:
    """Write a number in a sentence: ``"0.25"``."""
    return f"{float(value):.{digits}g}"


def unlike(
    one: float, other: float, write: Callable[[float, int], str] = number_text, digits: int = 4
) -> tuple[str, str]:
    """Write two numbers that differ with as many digits as it takes to see that, and at least ``digits``.

    >>> unlike(1.0303, 1.0301), unlike(2, 3.25), unlike(1e-5, 1.00000001e-5, time_text)
    (('1.0303', '1.0301'), ('2', '3.25'), ('10\\xa0µs', '10.0000001\\xa0µs'))
    >>> unlike(10**17, 10**17 + 1)
    ('100000000000000000', '100000000000000001')
    """
    for more in range(digits, 18):
        written = write(one, more), write(other, more)
        if written[0] != written[1]:
            return written
    return str(one), str(other)


def number(value: object) -> Real:
    """Return a number as Python's own, also the only one of a tensor or of NumPy.

    Raises:
        TypeError: If it is none, or a truth value.
    """
    if hasattr(value, "shape") and hasattr(value, "item"):
        try:
            value = value.item()
        except Exception:  # several numbers, or a tensor without a value
            raise TypeError from None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return value


def plain(value: object) -> object:
    """Return a copy of what is made of numbers, text and None, in tuples, lists, sets and dicts.

    Raises:
        TypeError: If there is anything else in it.

    Example:
        >>> plain({"w": (1.5, [True, None])})
        {'w': (1.5, [True, None])}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is dict:
        return {plain(key): plain(each) for key, each in value.items()}
    for kind in (tuple, list, set, frozenset):
        if type(value) is kind:
            return kind(map(plain, value))
    try:
        return number(value)
    except TypeError:
        name = type(value).__name__
        raise TypeError(f"{name} is no number, text or None, and no tuple, list, set or dict of these") from None


TODO = "todo"  # the mistake of an exercise that was not begun


@dataclass(frozen=True, repr=False)
class Verdict:
    """The judgement of one attempt at an exercise, in the language that was set when it was made.

    A notebook displays it, with the player of the attempt under it; elsewhere ``print`` it.

    Args:
        passed: True if the answer is right.
        sentence: The measurement and the bound; or the case and step in which the attempt failed, and the values
            expected and found.
        hint: The hint for this mistake; empty if passed.
        ladder: The exercise's general hints, from vague to nearly the answer. A notebook folds each of them, the next
            inside the one before; ``print`` shows only their number.
        mistake: The mistake's name, such as ``"all-on-one"``; None if passed.
        trace: The predicted trace of the attempt, as far as it could be played.
    """

    passed: bool
    sentence: str
    hint: str = ""
    ladder: tuple[str, ...] = ()
    mistake: str | None = None
    trace: Trace | None = None

    def __str__(self) -> str:
        lines = [self._mark(), *self.sentence.split("\n")]
        if self.hint:
            lines += ["", _before(text("checks.hint")) + self.hint]
        if self.ladder:
            lines += ["", text("checks.ladder", count=len(self.ladder), last=len(self.ladder) - 1)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{self._mark()}</strong></p>"]
        parts += [f"<p>{_html(line)}</p>" for line in self.sentence.split("\n") if line]
        if self.hint:
            parts.append(f"<p><strong>{_before(escape(text('checks.hint')))}</strong>{_html(self.hint)}</p>")
        if self.ladder:
            parts.append(self._folded())
        # The text has the page's own colour, so that it is readable on light and dark.
        edge = "solid #2e9e6b" if self.passed else "dotted #808896" if self.mistake == TODO else "double #d9822b"
        style = f"border-left:.3em {edge};padding-left:.9em;max-width:48em"
        return f'<div class="d2lps-verdict" lang="{html_language()}" style="{style}">{"".join(parts)}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(Late(lambda: {"text/plain": str(self), "text/html": self._repr_html_()}))
        if self.trace is None:
            return
        try:
            from d2lps.view.player import watch
        except ImportError:  # the player needs more packages than the core; show the verdict without it
            return
        display(watch(self.trace))

    def _folded(self) -> str:
        """Return the ladder as HTML: each hint is folded inside the one before, so that none is seen by accident."""
        html = ""
        for number, rung in reversed([*enumerate(self.ladder, 1)]):
            label = escape(text("checks.show-hint", number=number, count=len(self.ladder)))
            html = f"<details><summary>{label}</summary><p>{_html(rung)}</p>{html}</details>"
        return html

    def _mark(self) -> str:
        if self.mistake == TODO:
            return f"– {text('checks.not-begun')}"
        return f"✓ {text('checks.right')}" if self.passed else f"✗ {text('checks.not-yet')}"


def _before(label: str) -> str:
    """Return a label with the space that follows it in its language: none after a full-width colon."""
    return label if label.endswith("：") else label + " "


def _html(sentence: str) -> str:
    """Return a sentence as HTML, with text in backticks as code."""
    parts = escape(sentence, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
