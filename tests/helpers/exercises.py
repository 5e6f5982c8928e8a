"""The exercises of all chapters, the answers that tests give, and the verdicts as readers of each language get them."""

import ast
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import pytest
import torch

import d2lps
from d2lps.messages import LANGUAGES, spoken, unmarked
from d2lps.notebook.grading import Exercise, PlanCase, PlanJudge, Verdict, check_exercise, edited
from d2lps.notebook.grading.course import CHAPTERS, all_texts, chapter_module, texts_of

EXERCISES: dict[str, Exercise] = {id: texts.exercise() for id, texts in all_texts().items()}
TRACED = [id for id, exercise in EXERCISES.items() if isinstance(exercise.cases[0], PlanCase)]  # judged by a trace
PLANNED = [id for id in TRACED if isinstance(EXERCISES[id].judge, PlanJudge)]  # whose answers return a plan
LONG = ("count-once", "fault-tolerance")  # judged for a second or more


def ids_of(chapter: str) -> tuple[str, ...]:
    return tuple(id for id, texts in all_texts().items() if texts.folder.name == chapter)


def module(chapter: str, name: str) -> ModuleType:
    """Return a module beside the chapter's grader."""
    return chapter_module(CHAPTERS / chapter, name)


def wrong_answers(id: str) -> dict[str, list]:
    """Return the wrong answers by the mistake that they make."""
    return texts_of(id).solutions()["WRONG"][id]


def rules(id: str) -> dict[str, object]:
    """Return the rules that the text states, each with the way to turn it off."""
    return texts_of(id).solutions()["RULES"][id]


def without(id: str, way: object) -> Callable:
    """Return the solution without a rule; the way is an edit, several of them, or the answer itself."""
    if callable(way):
        return way
    return edited(texts_of(id).solution(), *([way] if isinstance(way[0], str) else way))


# ---- verdicts


@contextmanager
def all_languages() -> Iterator[None]:
    """Make sentences in all languages at once, as in a notebook that is executed for all readers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spoken, "_all", True)
        patch.setenv(spoken.VARIABLE, "1")
        yield


def in_each_language(verdict: Verdict) -> dict[str, Verdict]:
    """Return the verdict as readers of each language get it."""
    texts = {name: getattr(verdict, name) for name in ("sentence", "hint", "ladder")}
    return {language: replace(verdict, **unmarked(texts, language)) for language in LANGUAGES}


def judged(id: str, answer: Callable, deadline: "str | float" = "100 s") -> dict[str, Verdict]:
    """Judge an answer once, and return the verdict in each language."""
    with all_languages():
        return in_each_language(check_exercise(id, answer, deadline))


def cell(code: str) -> Verdict:
    """Return the value of a cell's last expression, which a notebook shows."""
    *body, last = ast.parse(code).body
    names = {"d2lps": d2lps}
    exec("from fractions import Fraction\nimport torch\nfrom d2lps import Plan, Send", names)  # as the lessons do
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def called_in(code: str) -> set[str]:
    """Return the names of the functions that are called by their name alone."""
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


# ---- answers


def with_parameters(id: str, function: Callable) -> Callable:
    """Return the function with the exercise's own parameters instead of ``*args``."""
    names = ", ".join(EXERCISES[id].parameters)
    return eval(f"lambda {names}: function({names})", {"function": function})


def greedy(id: str) -> Callable:
    """Return the solution, which then empties all lists and dicts that it was given."""
    solution = texts_of(id).solution()

    def answer(*arguments):
        result = solution(*(each.copy() if type(each) in (list, dict) else each for each in arguments))
        for argument in arguments:
            if type(argument) in (list, dict):
                argument.clear()
        return result

    return with_parameters(id, answer)


class Itself:
    """A function that returns itself."""

    def __call__(self, *_):
        return self


def endless(*_):
    while True:
        time.sleep(0)


def leaves(*_):
    raise SystemExit("enough")


def always(result: object) -> Callable:
    return lambda *_: result


RESULTS = (None, 0, -1.5, 7, 10**400, math.nan, math.inf, True, ..., NotImplemented, int, "", "01", "server0", b"",
           b"ab", (), [], {}, set(), [[]], [[], []],
           [None] * 3, (None, None, None), {"a": 1}, {None: None}, {1: 2}, [[0.0]],
           [[-1]], [[0] * 9], {"layer0.weight.0": ["server0"]}, iter(()), range(9), object(), torch.zeros(3),
           torch.zeros(8), torch.zeros(5, 16), lambda: None, Itself(), (abs, abs), [len] * 3,
           (print, print, print))  # fmt: skip
NOTHING = always(None)
HOSTILE = [
    *map(always, RESULTS),
    *(always(always(result)) for result in (1, "a", True, torch.zeros(3), torch.zeros(4), Itself())),
    always(leaves),
    *(always((leaves,) * count) for count in (2, 3)),
    always((NOTHING, always(7))),
    *(always((NOTHING, function, NOTHING)) for function in (always(1), leaves)),
    *(always((NOTHING, NOTHING, function)) for function in (always("node0"), always([["node0"]]), leaves)),
    always((endless, leaves, leaves)),
    leaves,
    Itself(),
    lambda *arguments: arguments,
    lambda *arguments: arguments[0],
    lambda *arguments: arguments[-1],
    lambda *arguments: [each.clear() for each in arguments if hasattr(each, "clear")],
    lambda fs, *_: (lambda name, data: fs.write(name, 7), NOTHING),
    lambda fs, *_: (lambda name, data: fs.sync_folder(), always(bytearray(b"1"))),
    lambda keys, *_: {key: "server0" for key in keys} if isinstance(keys, list) else keys,
    lambda keys, *_: {key: [["server0"]] for key in keys} if isinstance(keys, list) else keys,
]


def be_impatient(monkeypatch) -> None:
    """Give up soon on a node of chapter 04 that runs without end."""
    monkeypatch.setattr(module("04-key-value-store", "network"), "PATIENCE", 0.3)
