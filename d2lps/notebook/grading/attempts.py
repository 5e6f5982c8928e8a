"""Judge an attempt at an exercise, in all cases and within a deadline."""

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date

from d2lps import units
from d2lps.messages import text
from d2lps.notebook import kept
from d2lps.notebook.grading.calls import Overtime, within
from d2lps.notebook.grading.course import Texts, texts_of
from d2lps.notebook.grading.exercise import TODO, Ended, Exercise, Failure, Verdict, time_text
from d2lps.notebook.grading.mere_calls import calls_package
from d2lps.notebook.grading.plan_judge import PlanJudge
from d2lps.trace import Trace
from d2lps.view.tables import Source, source


def check_exercise(id: str, answer: Callable, deadline: "str | float" = "20 s") -> Verdict:
    """Judge an answer in all cases of an exercise.

    The answer is called with copies, so it may change its arguments, and an error it raises becomes a sentence. A
    failed attempt shows the hint for its mistake, and offers the exercise's general hints, one after the other; the
    unchanged stub fails, too, and offers none. The verdict on a right answer that only calls a function of the package
    says so. The workspace stores which exercises were passed, and how often the hint for each mistake was given: see
    :func:`~d2lps.progress`.

    Args:
        id: The exercise, such as ``"own-gpu"``.
        answer: A function that takes what the exercise gives and returns what it asks for.
        deadline: Seconds of the processor, or ``"20 s"``, for all cases together; an answer that takes longer is
            stopped, one that only waits after ten times as long.

    Returns:
        The judgement, with the mistake if the answer is wrong.

    Raises:
        ExerciseError: If there is no such exercise, no course beside the package, or no judge that loads beside the
            exercise.
        UnitError: If the deadline is not a time.

    Example:
        >>> import d2lps
        >>> verdict = d2lps.check_exercise("own-gpu", lambda gpus: d2lps.aggregate_at(gpus, "gpu0"))
        >>> verdict.passed, verdict.mistake
        (False, 'all-on-one')
        >>> d2lps.check_exercise("own-gpu", d2lps.sharded).passed
        True
    """
    texts, allowed = texts_of(id), units.seconds(deadline)
    verdict = judged(texts, answer, allowed)
    if verdict.passed and calls_package(answer):
        verdict = replace(verdict, sentence="\n".join([verdict.sentence, "", text("checks.only-calls")]))
    if verdict.passed and kept.kept("passed", id) is None:
        kept.keep("passed", id, {"day": date.today().isoformat()})
    if verdict.hint:
        kept.count("hints", id, verdict.mistake)
    return verdict


def judged(
    texts: Texts,
    answer: Callable,
    allowed: float,
    used: Callable[[], float] = time.process_time,
    met: dict[str, bool] | None = None,
) -> Verdict:
    """Return the verdict on an answer, without storing anything; ``used`` is a clock of the time that it takes.

    Without ``met``, the first failure ends the judgement. Otherwise the cases after it are judged, too, and ``met``
    has for the label of each whether the answer is right there.
    """
    exercise, labels, failures = texts.exercise(), [], []
    try:
        _require_callable(answer, exercise.parameters)
        results = within(allowed, lambda: _judge_all(exercise, answer, labels, failures, met), used)
    except (Overtime, Ended) as error:
        failure = failures[0] if failures else error  # what comes after the first one does not change the verdict
        if isinstance(failure, Overtime):
            key = "endless" if isinstance(exercise.judge, PlanJudge) else "no-answer"
            sentence = text(f"checks.{key}", case=labels[-1], allowed=time_text(failure.seconds))
            return _failed(texts, Failure("endless", sentence))
        if not isinstance(failure, Failure):
            raise
        later = met[exercise.cases[0].label] if failures else len(labels) > 1
        if later and (failure.mistake == TODO or not texts.keeps(failure.mistake)):
            failure.mistake = "not-general"
        return _failed(texts, failure)
    finally:
        for case in exercise.cases if met is not None else ():
            met.setdefault(case.label, False)
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
    """Return the source code of a solution of an exercise.

    Args:
        id: The exercise, such as ``"own-gpu"``.

    Returns:
        Highlighted in a notebook, plain when printed; its text is ``.code``.

    Raises:
        ExerciseError: If there is no such exercise, no course beside the package, or no solution in this edition.

    Example:
        >>> import d2lps
        >>> d2lps.solution("own-gpu").code.splitlines()[0]
        'def own_gpu(gpus):'
    """
    return source(texts_of(id).solution())


def _judge_all(
    exercise: Exercise, answer: Callable, labels: list[str], failures: list[Failure], met: dict[str, bool] | None
) -> dict[str, object]:
    """Return label of a case → its result; add each label to ``labels`` when its case begins.

    With ``met``, judge on after a failure, unless the answer was not begun; the first failure is raised at the end.
    """
    results = {}
    for case in exercise.cases:
        labels.append(case.label)
        try:
            results[case.label] = exercise.judge(case, answer)
        except Failure as failure:
            if met is None or failure.mistake == TODO:
                raise
            failures.append(failure)
            met[case.label] = False
        else:
            if met is not None:
                met.setdefault(case.label, True)
    if failures:
        raise failures[0]
    return results


def _require_callable(answer: object, parameters: tuple[str, ...]) -> None:
    if not callable(answer):
        raise Failure("not-callable", text("checks.not-callable", type=type(answer).__name__))
    try:
        inspect.signature(answer).bind(*parameters)
    except TypeError as error:
        wanted = ", ".join(parameters)
        raise Failure("signature", text("checks.signature", parameters=wanted, why=error)) from None
    except ValueError:  # a builtin has no signature
        pass


def _failed(texts: Texts, failure: Failure) -> Verdict:
    rungs = () if failure.mistake == TODO else texts.ladder
    return Verdict(False, failure.sentence, texts.hint(failure.mistake), rungs, failure.mistake, failure.trace)
