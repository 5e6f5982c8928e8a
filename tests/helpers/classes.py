"""Notebooks as learners hand them in: chapters with answers from solutions.py or from a test."""

import ast
import copy
import json
import os
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import nbformat
import pytest

from course.classes import slices
from d2lps.notebook.grading.course import CHAPTERS, texts_of
from helpers.exercises import wrong_answers

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names of files")
# Folders of a zip from a Chinese Windows, one learner whose name is encoded in two ways, and a cell with half a letter.
NOT_UTF8 = b"\xc0\xee\xc3\xf7", b"\xcd\xf5\xb7\xbc"
TWO_WAYS = unicodedata.normalize("NFC", "Hà"), unicodedata.normalize("NFD", "Hà")
NOTHING = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1", "id": "a", "outputs": []}]})


def notebook(chapter: str, answers: dict[str, str], language: str = "en") -> nbformat.NotebookNode:
    """Return a chapter's notebook with this code in the place of the stubs of exercises."""
    book = copy.deepcopy(_lesson(chapter, language))
    for id, code in answers.items():
        cell = next(each for each in book.cells if each["id"] == f"exercise-{id}")
        check = next(line for line in "".join(cell.source).split("\n") if "check_exercise" in line)
        cell.source = f"{code.rstrip()}\n\n{check}"
    return book


@cache
def _lesson(chapter: str, language: str) -> nbformat.NotebookNode:
    return nbformat.from_dict(json.loads((CHAPTERS / chapter / f"{language}.ipynb").read_text("utf-8")))


def hand_in(folder: Path, learner: str, book: object) -> Path:
    """Put a notebook into a learner's folder."""
    place = folder / learner
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{len([*place.iterdir()]) + 1:02}.ipynb"
    path.write_text(book if isinstance(book, str) else json.dumps(book), "utf-8")
    return path


def strange_names(folder: Path) -> None:
    """Hand in notebooks whose names are not UTF-8, or one name in two ways."""
    for name in (*NOT_UTF8, *(name.encode() for name in TWO_WAYS)):
        place = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        place.mkdir(parents=True)
        (place / os.fsdecode(b"b\xb5i.ipynb")).write_text(NOTHING.replace('"a"', '"exercise-\\ud800"'))
        (place / os.fsdecode(b"b\xb5i.txt")).touch()


def solving(id: str) -> str:
    """Return the code of an exercise's solution with everything it uses."""
    return _code(id, [id.replace("-", "_")])


def wrong(id: str, mistake: str) -> str | None:
    """Return the first wrong answer with this mistake, named as the solution; None if a program makes the answer."""
    if source := getattr(wrong_answers(id)[mistake][0], "source", None):  # the solution, edited
        return f"{solving(id)}\n\n{source}"
    (table,) = (each.value for each in _solutions(id).body if "WRONG" in slices.bound(each))
    answers = _at(_at(table, id), mistake)
    if not isinstance(answers, ast.List) or isinstance(answers.elts[0], ast.Starred):
        return None
    answer = ast.unparse(answers.elts[0])
    return f"{_code(id, slices.used_in(answer))}\n\n{id.replace('-', '_')} = {answer}"


def _at(table: ast.expr, key: str) -> ast.expr | None:
    pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
    return next((value for name, value in pairs if getattr(name, "value", None) == key), None)


def _solutions(id: str) -> slices.Cell:
    return slices.cell("solutions", (texts_of(id).folder / "solutions.py").read_text("utf-8"))


def _code(id: str, names: Iterable[str]) -> str:
    """Return the statements of solutions.py that bind these names, and the names that they use."""
    cell = _solutions(id)
    chosen = [cell.body[at] for _, _, run in slices.needed(names, [cell], []) for at in run]
    return "\n\n".join(ast.unparse(each) for each in chosen)


def told(out: Path) -> dict:
    """Return the JSON report."""
    return json.loads((out / "class.json").read_text("utf-8"))
