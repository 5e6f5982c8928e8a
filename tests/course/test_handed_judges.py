"""The judges of a handout judge as those of the course do, and contain no right answer."""

import inspect
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.exercises import wrong_answers

from course import handout
from course.book.library import Book
from d2lps.notebook.grading.attempts import judged
from d2lps.notebook.grading.course import CHAPTERS, Texts, chapter_module, every_text

KNOWN = {  # functions of the course's judges that are a right answer
    "servers": {"ServersCase.enough"},
    "best-mix": {"best_shares"},
    "interval": {"best", "daly"},
    "critical-batch": {"BatchCase.right"},
    "break-even": {"EvenCase.best"},
    "cache-hit": {"hits", "right_hits"},
    "state-bytes": {"BytesCase.bytes"},
    "merge": {"PartsCase.right"},
    "which-way": {"ShapeCase.ways", "right_ways"},
    "global-norm": {"GridCase.right"},
}
JUDGED = sorted(path.parent.name for path in CHAPTERS.glob("*/grader.py"))


def handed_out(slug: str, folder: Path) -> Iterator[Texts]:
    """Yield the exercises of a chapter as a handout has them, with modules of their own."""
    (home := folder / f"handed-{slug}-{folder.name}").mkdir()
    for name, text in handout.code_of(Book(solutions=False), slug):
        (home / name).write_text(text, "utf-8")
    for id, table in tomllib.loads((home / "exercises.toml").read_text("utf-8")).items():
        yield Texts(id, home, table)


def functions(folder: Path) -> Iterator[tuple[str, type | None, Callable]]:
    """Yield name, class and code of each function, class, method and property of a chapter's judges."""
    for path in sorted(folder.glob("judge_*.py")):
        module = chapter_module(folder, path.stem)
        own = {
            name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        }
        for name, value in own.items():
            if callable(value):
                yield name, None, value
            for inner, member in vars(value).items() if isinstance(value, type) else ():
                code = getattr(member, "fget", None) or getattr(member, "func", None) or member
                if inspect.isfunction(code) and not inner.startswith("__"):
                    yield f"{name}.{inner}", value, code


def as_answer(case: object, names: Sequence[str], owner: type | None, function: Callable) -> Callable:
    """Return an answer that calls a function with what the answer was given, and with parts of the case."""

    def answer(*given: object) -> object:
        first = [case if isinstance(case, owner) else owner(*given)] if owner else []
        arguments, known = [], dict(zip(names, given, strict=True)) | {"case": case}
        for parameter in [*inspect.signature(function).parameters.values()][len(first) :]:
            if parameter.name not in known and not hasattr(case, parameter.name):
                if parameter.default is parameter.empty:
                    return function(*first, *given)
                break
            arguments.append(known[parameter.name] if parameter.name in known else getattr(case, parameter.name))
        return function(*first, *arguments)

    return answer


def passing(texts: Texts) -> set[str]:
    """Return the functions of the judges that are a right answer in all cases.

    A case is given as a copy: an answer could make it from what it was given, but not the values that it carries.
    """
    exercise, found = texts.exercise(), set()
    for name, owner, function in functions(texts.folder):
        try:
            for case in exercise.cases:
                exercise.judge(case, as_answer(replace(case), exercise.parameters, owner, function))
        except BaseException:  # whatever it raises, it is no right answer
            continue
        found.add(name)
    return found


@pytest.mark.parametrize("slug", JUDGED)
def test_no_function_of_a_handed_judge_is_a_right_answer(slug, tmp_path):
    assert {texts.id: found for texts in handed_out(slug, tmp_path) if (found := passing(texts))} == {}


@pytest.mark.parametrize("id", KNOWN)
def test_right_answer_in_a_judge_is_found(id):
    assert passing(every_text()[id]) == KNOWN[id]


@pytest.mark.parametrize("slug", sorted({every_text()[id].folder.name for id in KNOWN}))
def test_handed_judge_gives_the_same_verdicts(slug, tmp_path):
    for handed in handed_out(slug, tmp_path):
        if handed.id in KNOWN:
            texts = every_text()[handed.id]
            answers = [texts.solution(), *(each for wrong in wrong_answers(handed.id).values() for each in wrong)]
            verdicts = [[judged(one, each, 100) for each in answers] for one in (texts, handed)]
            told, again = [[(one.passed, one.mistake, one.sentence) for one in each] for each in verdicts]
            assert told == again and told[0][0]
