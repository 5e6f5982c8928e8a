"""The exercises' judge: an answer is a function, it is called on many cases, and its plans are counted.

>>> import d2lps
>>> verdict = d2lps.check_exercise("own-gpu", lambda gpus: d2lps.aggregate_at(gpus, "gpu0"))
>>> verdict.passed, verdict.mistake
(False, 'all-on-one')
>>> d2lps.check_exercise("own-gpu", d2lps.sharded).passed
True

``asked`` says what an exercise is, ``attempt`` judges one call that returns a plan, ``around`` one that returns
an order of GPUs, ``combining`` one that returns a reduction; ``pushing``, ``placing``, ``counting`` and ``sparse``
judge the parts of a store, the first on a ``network`` of nodes, and ``playing`` is what they have in common;
``mistakes`` names what is wrong with a refused plan,
``data_parallelism``, ``rings`` and ``key_value`` know what the exercises of their chapters ask,
``course`` reads what the chapters say, ``verdict`` shows the outcome.
"""

import inspect
from collections.abc import Callable

from d2lps import units
from d2lps.course.grading import data_parallelism, key_value, rings
from d2lps.course.grading.asked import Exercise, Failure
from d2lps.course.grading.attempt import judge, time
from d2lps.course.grading.course import ExerciseError, Texts, exercise
from d2lps.course.grading.deadline import Overtime, within
from d2lps.course.grading.verdict import Verdict
from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.view.tables import Source, source

__all__ = ["ExerciseError", "Verdict", "check_exercise", "solution"]

_ASKED = {**data_parallelism.EXERCISES, **rings.EXERCISES, **key_value.EXERCISES}

_failed: dict[str, int] = {}  # exercise → failed attempts since it was last passed, so that hints come one by one


def check_exercise(id: str, answer: Callable, deadline: "str | float" = "20 s") -> Verdict:
    """Judge ``answer``, a function that returns what the exercise ``id`` asks for, on all cases of that exercise.

    The answer is called with copies, so that it may change its arguments, and whatever it raises becomes a
    sentence. ``deadline`` (seconds, or ``"20 s"``) is for all cases together; an answer that is not done by
    then is stopped. The untouched stub fails too, but does not count as an attempt: each attempt that fails after the
    first one shows one more of the exercise's general hints.

    Raises ExerciseError if there is no such exercise, or no course beside the package.
    """
    texts, allowed = exercise(id), units.seconds(deadline)
    asked, reached = _ASKED[id], []
    try:
        _callable(answer, asked.parameters)
        first, times = within(allowed, lambda: _all_cases(asked, answer, reached))
    except Overtime:
        key = "no-answer" if asked.judge else "endless"  # only an answer without a judge of its own is a plan
        sentence = text(f"checks.{key}", case=reached[-1], allowed=time(allowed))
        return _failure(id, texts, Failure("endless", sentence))
    except Failure as failure:
        if len(reached) > 1 and failure.mistake not in asked.keeps:
            failure.mistake = "not-general"
        return _failure(id, texts, failure)
    _failed.pop(id, None)
    told = asked.tells(first)
    if not isinstance(first, Trace):
        return Verdict(True, texts.passed(**told))
    told |= {
        "time": time(first.duration),
        "bound": time(asked.cases[0].bound),
        "times": ", ".join(times[label] for label in asked.shows),
    }
    return Verdict(True, texts.passed(**told), trace=first)


def solution(id: str) -> Source:
    """The source code of a solution of the exercise ``id``. Raises ExerciseError."""
    return source(exercise(id).solution(id))


def _all_cases(asked: Exercise, answer: Callable, reached: list[str]) -> tuple[object, dict[str, str]]:
    """What was found in the first case, and what each trace took; ``reached`` collects the cases as they are begun."""
    found = []
    for case in asked.cases:
        reached.append(case.label)
        found.append((asked.judge or judge)(case, answer, asked.diagnose))
    pairs = zip(reached, found, strict=True)
    return found[0], {label: time(trace.duration) for label, trace in pairs if isinstance(trace, Trace)}


def _callable(answer: object, parameters: tuple[str, ...]) -> None:
    if not callable(answer):
        raise Failure("not-callable", text("checks.not-callable", type=type(answer).__name__))
    try:
        inspect.signature(answer).bind(*parameters)
    except TypeError as error:
        wanted = ", ".join(parameters)
        raise Failure("signature", text("checks.signature", parameters=wanted, why=error)) from None
    except ValueError:  # a builtin does not tell what it takes
        pass


def _failure(id: str, texts: Texts, failure: Failure) -> Verdict:
    if failure.mistake != "todo":
        _failed[id] = _failed.get(id, 0) + 1
    rungs = texts.ladder[: max(0, _failed.get(id, 0) - 1)]
    return Verdict(False, failure.sentence, texts.hint(failure.mistake), rungs, failure.mistake, failure.trace)
