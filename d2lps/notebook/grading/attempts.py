"""An attempt at an exercise: the answer is judged in all cases within a deadline, and the learner is told."""

import inspect
from collections.abc import Callable
from datetime import date

from d2lps import units
from d2lps.messages import text
from d2lps.notebook import kept
from d2lps.notebook.grading.calls import Overtime, within
from d2lps.notebook.grading.course import Texts, texts_of
from d2lps.notebook.grading.exercise import Exercise, Failure, time_text
from d2lps.notebook.grading.plan_judge import PlanJudge
from d2lps.notebook.grading.verdict import Verdict
from d2lps.trace import Trace
from d2lps.view.tables import Source, source


def check_exercise(id: str, answer: Callable, deadline: "str | float" = "20 s") -> Verdict:
    """Judge an answer in all cases of an exercise.

    The answer is called with copies, so that it may change its arguments, and whatever it raises becomes a
    sentence. An attempt that fails gets the hint for its mistake, and offers the exercise's general hints, one after
    the other, to whoever opens them; the untouched stub fails, too, and offers none. That an exercise was passed is
    remembered in the workspace, and how often the hint for each mistake was given: see :func:`~d2lps.progress`.

    Parameters
    ----------
    id : str
        The exercise, such as ``"own-gpu"``.
    answer : callable
        A function that takes what the exercise gives and returns what it asks for.
    deadline : str or float
        Seconds, or ``"20 s"``, for all cases together; an answer that is not done by then is stopped.

    Returns
    -------
    Verdict
        Whether the answer is right, and if not, what is wrong.

    Raises
    ------
    ExerciseError
        If there is no such exercise, no course beside the package, or no judge that loads beside the exercise.
    UnitError
        If the deadline is no time.

    Examples
    --------
    >>> import d2lps
    >>> verdict = d2lps.check_exercise("own-gpu", lambda gpus: d2lps.aggregate_at(gpus, "gpu0"))
    >>> verdict.passed, verdict.mistake
    (False, 'all-on-one')
    >>> d2lps.check_exercise("own-gpu", d2lps.sharded).passed
    True
    """
    texts, allowed = texts_of(id), units.seconds(deadline)
    verdict = judged(texts, answer, allowed)
    if verdict.passed and kept.kept("passed", id) is None:
        kept.keep("passed", id, {"day": date.today().isoformat()})
    if verdict.hint:
        told = kept.kept("hints", id) or {}
        kept.keep("hints", id, told | {verdict.mistake: _count(told, verdict.mistake) + 1})
    return verdict


def judged(texts: Texts, answer: Callable, allowed: float) -> Verdict:
    """The verdict on an answer, of which nothing is remembered."""
    exercise, begun = texts.exercise(), []
    try:
        _require_callable(answer, exercise.parameters)
        results = within(allowed, lambda: _judge_all(exercise, answer, begun))
    except Overtime:
        key = "endless" if isinstance(exercise.judge, PlanJudge) else "no-answer"
        sentence = text(f"checks.{key}", case=begun[-1], allowed=time_text(allowed))
        return _failed(texts, Failure("endless", sentence))
    except Failure as failure:
        if len(begun) > 1 and failure.mistake not in exercise.keeps:
            failure.mistake = "not-general"
        return _failed(texts, failure)
    first = results[exercise.cases[0].label]
    values = exercise.fills(first)
    if not isinstance(first, Trace):
        return Verdict(True, texts.passed(**values))
    values |= {
        "time": time_text(first.duration),
        "bound": time_text(exercise.cases[0].bound),
        "times": ", ".join(time_text(results[label].duration) for label in exercise.shows),
    }
    return Verdict(True, texts.passed(**values), trace=first)


def solution(id: str) -> Source:
    """The source code of a solution of an exercise.

    Parameters
    ----------
    id : str
        The exercise, such as ``"own-gpu"``.

    Returns
    -------
    Source
        Highlighted in a notebook, plain when printed; its text is ``.code``.

    Raises
    ------
    ExerciseError
        If there is no such exercise, or no course beside the package.

    Examples
    --------
    >>> import d2lps
    >>> d2lps.solution("own-gpu").code.splitlines()[0]
    'def own_gpu(gpus):'
    """
    return source(texts_of(id).solution())


def _count(told: dict, mistake: str) -> int:
    """How often the hint for a mistake was given; a file that says nothing sensible counts as never."""
    count = told.get(mistake)
    return count if type(count) is int else 0


def _judge_all(exercise: Exercise, answer: Callable, begun: list[str]) -> dict[str, object]:
    """Label of a case → what was measured there; ``begun`` collects the labels as the cases are begun."""
    results = {}
    for case in exercise.cases:
        begun.append(case.label)
        results[case.label] = exercise.judge(case, answer)
    return results


def _require_callable(answer: object, parameters: tuple[str, ...]) -> None:
    if not callable(answer):
        raise Failure("not-callable", text("checks.not-callable", type=type(answer).__name__))
    try:
        inspect.signature(answer).bind(*parameters)
    except TypeError as error:
        wanted = ", ".join(parameters)
        raise Failure("signature", text("checks.signature", parameters=wanted, why=error)) from None
    except ValueError:  # a builtin does not tell what it takes
        pass


def _failed(texts: Texts, failure: Failure) -> Verdict:
    rungs = () if failure.mistake == "todo" else texts.ladder
    return Verdict(False, failure.sentence, texts.hint(failure.mistake), rungs, failure.mistake, failure.trace)
