"""The definition of an exercise: its cases and its judge, and the failure of an answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size


class Case(Protocol):
    """A case in which an answer is judged: every judge has its own kind, with a label such as ``"n = 4"``."""

    label: str


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
    judge: Callable[[Case, Callable], object]
    shows: tuple[str, ...] = ()
    fills: Callable[[object], dict[str, str]] = lambda result: {}


class Failure(Exception):
    """The mistake in an answer.

    Args:
        mistake: Its name: a key under ``mistakes`` in the chapter's exercises.toml, or under ``checks.mistake`` in the
            messages.
        sentence: The case and the finding, in the current language.
        trace: A trace for the learner to watch.
    """

    def __init__(self, mistake: str, sentence: str, trace: Trace | None = None):
        super().__init__(sentence)
        self.mistake, self.sentence, self.trace = mistake, sentence, trace


def failure(mistake: str, sentence: str, case: Case, trace: Trace | None = None, **values: object) -> Failure:
    """Make a Failure whose sentence is a message in the current language; the caller raises it.

    Args:
        mistake, trace: As for :class:`Failure`.
        sentence: The message's key under ``checks``.
        case, **values: The case's label fills ``{case}`` in the message, the values its other placeholders.
    """
    return Failure(mistake, text(f"checks.{sentence}", case=case.label, **values), trace)


def time_text(seconds: float) -> str:
    """Write ``seconds`` as a time in a sentence: ``"7.5 ms"``, with a no-break space before its unit."""
    return show_seconds(float(seconds)).replace(" ", "\u00a0")


def size_text(nbytes: float) -> str:
    """Write ``nbytes`` as a size in a sentence: ``"160 MB"``, with a no-break space before its unit."""
    return show_size(float(nbytes)).replace(" ", "\u00a0")
