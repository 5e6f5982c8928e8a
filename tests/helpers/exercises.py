"""The exercises of all chapters, as their tests need them."""

import ast
from types import ModuleType

import pytest

import d2lps
from d2lps.notebook.grading import Exercise, PlanCase, PlanJudge, Verdict
from d2lps.notebook.grading.course import CHAPTERS, all_texts, chapter_module, texts_of

EXERCISES: dict[str, Exercise] = {id: texts.exercise() for id, texts in all_texts().items()}
TRACED = [id for id, exercise in EXERCISES.items() if isinstance(exercise.cases[0], PlanCase)]  # judged by a trace
PLANNED = [id for id in TRACED if isinstance(EXERCISES[id].judge, PlanJudge)]  # whose answers return a plan

ENDLESS = pytest.mark.slow(3)  # its deadline, in each language


def ids_of(chapter: str) -> tuple[str, ...]:
    return tuple(id for id, texts in all_texts().items() if texts.folder.name == chapter)


def module(chapter: str, name: str) -> ModuleType:
    """A module beside the chapter's grader."""
    return chapter_module(CHAPTERS / chapter, name)


def stub(id: str) -> str:
    """The code from which the learner starts."""
    return texts_of(id).table["stub"].strip("\n")


def wrong_answers(id: str) -> dict[str, list]:
    """Mistake → the answers that make it."""
    return texts_of(id).solutions()["WRONG"][id]


def long(id: str) -> tuple:
    """The marks of a test in which an answer is judged for a second or more."""
    return (pytest.mark.slow,) if id in ("count-once", "fault-tolerance") else ()


def every_wrong(ids) -> list:
    return [
        pytest.param(id, mistake, answer, id=f"{id} {mistake} {i}", marks=ENDLESS if mistake == "endless" else long(id))
        for id in ids
        for mistake, answers in wrong_answers(id).items()
        for i, answer in enumerate(answers, 1)
    ]


def be_impatient(monkeypatch) -> None:
    """A node that goes on and on is given up soon."""
    monkeypatch.setattr(module("04-key-value-store", "network"), "PATIENCE", 0.3)


def cell(code: str) -> Verdict:
    """What a notebook shows of a cell: the value of its last expression."""
    *body, last = ast.parse(code).body
    names = {"d2lps": d2lps}
    exec("from fractions import Fraction\nimport torch\nfrom d2lps import Plan, Send", names)  # as the lessons do
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def called_in(code: str) -> set[str]:
    """The names of the functions that are called by their name alone."""
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}
