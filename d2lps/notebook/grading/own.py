"""Exercises of a teacher's own: each is a TOML file with its text, stub and hints, and its cases as a table.

A text is a string, or a table with one for each language; languages that it lacks have its first one. A mistake is
recognized by what it returns. ``examples/exercise.toml`` is one to copy.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from d2lps.messages import LANGUAGES, text
from d2lps.notebook.grading.calls import call
from d2lps.notebook.grading.exercise import Exercise, failure, number

TEXTS = ("title", "text", "passed")
NEEDED = (*TEXTS, "minutes", "stub", "cases")
KNOWN = {*NEEDED, "hints", "mistakes", "optional", "solution"}
NEAR = 1e-6  # of a number: as near as a result has to be


class OwnError(ValueError):
    """The file is no exercise; the message says why."""


@dataclass(frozen=True)
class OwnCase:
    """A call of the function, its right result, and the result of each mistake."""

    label: str
    given: list
    right: object
    mistakes: dict[str, object] = field(default_factory=dict)


def judge(case: OwnCase, answer: Callable) -> object:
    """Return the result of a right answer; raise Failure for a wrong one."""
    got = call(case, answer, *copy.deepcopy(case.given))
    if same(got, case.right):
        return got
    mistake = next((name for name, result in case.mistakes.items() if same(got, result)), "differs")
    raise failure(mistake, "own-value", case, got=repr(got)[:200], right=repr(case.right))


def same(got: object, right: object) -> bool:
    """Return whether two values are equal; numbers in them may differ by rounding.

    >>> same((0.1 + 0.2, "a"), [0.3, "a"]), same({"x": 1}, {"x": True}), same([1], [1, 2])
    (True, False, False)
    """
    if isinstance(right, list):
        return isinstance(got, list | tuple) and len(got) == len(right) and all(map(same, got, right))
    if isinstance(right, dict):
        return isinstance(got, dict) and got.keys() == right.keys() and all(same(got[key], right[key]) for key in right)
    if isinstance(right, bool | str):
        return type(got) is type(right) and got == right
    try:
        return bool(abs(float(number(got)) - float(number(right))) <= NEAR * abs(float(number(right))))
    except (TypeError, ValueError, OverflowError):
        return False


def exercise(id: str, table: dict) -> Exercise:
    """Return the requirements of the exercise. Raises OwnError for the first fault of the table."""
    for fault in _faults(id, table):
        raise OwnError(fault)
    names = _parameters(id, table["stub"]) or []
    cases = []
    for row in table["cases"]:
        label = ", ".join(f"{name} = {value!r}" for name, value in zip(names, row["given"], strict=True))
        cases.append(OwnCase(label, row["given"], row["right"], _mistakes(row)))
    return Exercise(tuple(names), tuple(cases), judge)


def everywhere(value: "str | dict[str, str]") -> dict[str, str]:
    """Return language → text, for all languages.

    >>> everywhere({"vi": "Chào"})
    {'en': 'Chào', 'vi': 'Chào', 'zh': 'Chào'}
    """
    texts = value if isinstance(value, dict) else dict.fromkeys(LANGUAGES, value)
    return {language: texts.get(language, next(iter(texts.values()))) for language in LANGUAGES}


def as_chapters_have_it(table: dict) -> dict:
    """Return the texts of the exercise as exercises.toml of a chapter has them."""
    passed = everywhere(table["passed"]).items()
    return {
        "passed": {language: said.replace("{", "{{").replace("}", "}}") for language, said in passed},
        "hints": [everywhere(hint) for hint in table.get("hints", ())],
        "mistakes": {name: everywhere(hint) for name, hint in table.get("mistakes", {}).items()},
        "optional": table.get("optional", False),
    }


def _faults(id: str, table: dict) -> Iterator[str]:
    for name in table.keys() - KNOWN:
        yield text("checks.own-unknown", name=name, known=", ".join(sorted(KNOWN)))
    for name in NEEDED:
        if not table.get(name):
            yield text("checks.own-missing", name=name)
    mistakes = table.get("mistakes", {})
    texts = {name: table[name] for name in TEXTS} | {f"mistakes.{name}": hint for name, hint in mistakes.items()}
    texts |= {f"hints, {at}": hint for at, hint in enumerate(table.get("hints", ()), 1)}
    for name, value in texts.items():
        given = value if isinstance(value, dict) else {LANGUAGES[0]: value}
        for language in given.keys() - {*LANGUAGES}:
            yield text("checks.own-language", name=name, language=language, languages=", ".join(LANGUAGES))
        if not given or not all(isinstance(said, str) for said in given.values()):
            yield text("checks.own-text", name=name)
    names = _parameters(id, table["stub"])
    if names is None:
        yield text("checks.own-stub", function=id.replace("-", "_"))
        return
    for at, row in enumerate(table["cases"], 1):
        values = row.get("given") if isinstance(row, dict) else None
        if not isinstance(values, list) or len(values) != len(names) or "right" not in row:
            yield text("checks.own-case", number=at, parameters=", ".join(names))
        for name in _mistakes(row).keys() - mistakes.keys():
            yield text("checks.own-mistake", number=at, name=name)


def _mistakes(row: dict) -> dict[str, object]:
    return {name: result for name, result in row.items() if name not in ("given", "right")}


def _parameters(id: str, stub: str) -> list[str] | None:
    """Return the parameters of the function that the stub defines; None if it does not."""
    try:
        body = ast.parse(stub).body
    except SyntaxError:
        return None
    found = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == id.replace("-", "_")]
    return [argument.arg for argument in found[-1].args.args] if found else None
