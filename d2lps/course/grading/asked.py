"""What an exercise asks: the cases in which its answer is called, what each may cost, and what a failure says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from d2lps.messages import text
from d2lps.topology.graph import Topology
from d2lps.trace import Trace
from d2lps.units import size

NBYTES = size("160 MB")


@dataclass(frozen=True)
class Case:
    """One call of an answer, and what its plan may cost.

    label
        what the learner reads, the same in every language: ``"n = 4"``.
    arguments
        what the answer is called with, copied anew for every call.
    workers, servers
        the plan's nodes: those that have a gradient and want the sum, and those that do neither.
    steps
        how many steps may move bytes.
    in_all
        node → the part of the gradient that it may send, and receive; who is missing is held by ``bound`` alone.
    per_step
        node → what it needs to send, or receive, in one step: tells where a failed plan leaves the way.
    bound
        seconds that no plan can beat on ``topology``.
    allowed
        seconds that the plan may take there; ``bound`` if left out.
    per_link
        the part of the gradient that one node needs to send to one other in one step; any, if left out.
    one_at_a_time
        whether a node may send to one other at most in a step, and receive from one.
    nbytes
        the gradient's size.
    """

    label: str
    arguments: tuple
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    topology: Topology
    steps: int
    in_all: Mapping[str, Fraction]
    per_step: Mapping[str, Fraction]
    bound: Fraction
    allowed: Fraction | None = None
    per_link: Fraction | None = None
    one_at_a_time: bool = False
    nbytes: int = NBYTES


@dataclass(frozen=True)
class Exercise:
    """What an answer is called with, in which cases, and how it is judged.

    diagnose
        names the mistake of an attempt that does its work, but not well enough.
    shows
        the labels of the cases whose times are told when all is right; the first case is the one to watch.
    judge
        (case, answer, diagnose) → the predicted trace of a right answer; raises Failure. If left out, the one for
        answers that return a Plan; other answers, and one day programs of real processes, have judges of their own.
    tells
        the first case's trace → what else the sentence for a right answer is filled with.
    keeps
        the mistakes that are told by their name even where earlier cases were right.
    """

    parameters: tuple[str, ...]
    cases: tuple[Case, ...]
    diagnose: Callable
    shows: tuple[str, ...]
    judge: Callable[[Case, Callable, Callable], Trace] | None = None
    tells: Callable[[Trace], dict[str, str]] = lambda trace: {}
    keeps: tuple[str, ...] = ("inexact",)


class Failure(Exception):
    """What is wrong with an attempt: the name of the mistake, its sentence, and what there is to watch."""

    def __init__(self, mistake: str, sentence: str, trace: Trace | None = None):
        super().__init__(sentence)
        self.mistake, self.sentence, self.trace = mistake, sentence, trace


def failure(mistake: str, sentence: str, case: Case, trace: Trace | None = None, **values: object) -> Failure:
    """The Failure of that name, whose sentence is the message ``sentence``."""
    return Failure(mistake, text(f"checks.{sentence}", case=case.label, **values), trace)
