"""What an exercise is: what its answer is called with, in which cases, who judges it, and what a failure says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size


class Case(Protocol):
    """One of the cases in which an answer is judged: every judge has its own kind, with a label such as ``"n = 4"``."""

    label: str


@dataclass(frozen=True)
class Exercise:
    """What is asked of an answer.

    Parameters
    ----------
    parameters : tuple of str
        The parameters of the function that the learner writes.
    cases : tuple
        The cases in which it is judged, of the judge's own kind; what the learner reads of each is its ``label``,
        the same in every language: ``"n = 4"``. The first is told and shown when all is right.
    judge : callable (case, answer) → result
        Raises :class:`Failure`, or returns what was measured: a predicted Trace, or what ``fills`` can read.
        For answers that return a plan it is a :class:`PlanJudge`.
    shows : tuple of str
        The labels of the cases whose times are told when all is right, where the results are traces.
    fills : callable (result of the first case) → dict of str
        What else the sentence for a right answer is filled with.
    keeps : tuple of str
        The mistakes that are told by their name even where earlier cases were right; others are ``not-general``.
    """

    parameters: tuple[str, ...]
    cases: tuple[Case, ...]
    judge: Callable[[Case, Callable], object]
    shows: tuple[str, ...] = ()
    fills: Callable[[object], dict[str, str]] = lambda result: {}
    keeps: tuple[str, ...] = ("inexact",)


class Failure(Exception):
    """What is wrong with an answer.

    Parameters
    ----------
    mistake : str
        Its name: a key under ``mistakes`` in the chapter's exercises.toml, or under ``checks.mistake`` in the messages.
    sentence : str
        The case and what was found there, in the language in force.
    trace : Trace, optional
        What there is to watch.
    """

    def __init__(self, mistake: str, sentence: str, trace: Trace | None = None):
        super().__init__(sentence)
        self.mistake, self.sentence, self.trace = mistake, sentence, trace


def failure(mistake: str, sentence: str, case: Case, trace: Trace | None = None, **values: object) -> Failure:
    """The Failure whose sentence is a message, in the language in force.

    Parameters
    ----------
    mistake, trace
        As of :class:`Failure`.
    sentence : str
        The message's key under ``checks``.
    case, **values
        Its label fills ``{case}`` in the message, and these its other placeholders.

    Returns
    -------
    Failure
        To be raised.
    """
    return Failure(mistake, text(f"checks.{sentence}", case=case.label, **values), trace)


def time_text(seconds: float) -> str:
    """A time in ``seconds`` as it stands in a sentence: ``"7.5 ms"``, with a no-break space before its unit."""
    return show_seconds(float(seconds)).replace(" ", "\u00a0")


def size_text(nbytes: float) -> str:
    """A size of ``nbytes`` as it stands in a sentence: ``"160 MB"``, with a no-break space before its unit."""
    return show_size(float(nbytes)).replace(" ", "\u00a0")
