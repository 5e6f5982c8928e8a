"""Notebooks as learners hand them in, made of the lessons, with answers from solutions.py or of a test's own."""

import copy
import json
from pathlib import Path

import nbformat

from d2lps.course.classes import slices
from d2lps.course.grading.course import CHAPTERS, Texts, texts_of


def notebook(chapter: str, answers: dict[str, str], language: str = "en") -> nbformat.NotebookNode:
    """A chapter's notebook in which these exercises have other code than the stub's, before their check."""
    book = copy.deepcopy(nbformat.read(CHAPTERS / chapter / f"{language}.ipynb", as_version=4))
    for id, code in answers.items():
        cell = next(each for each in book.cells if each["id"] == f"exercise-{id}")
        check = next(line for line in cell.source.split("\n") if "check_exercise" in line)
        cell.source = f"{code.rstrip()}\n\n{check}"
    return book


def hand_in(folder: Path, learner: str, book: object) -> Path:
    """Put a notebook into a learner's folder."""
    place = folder / learner
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{len([*place.iterdir()]) + 1:02}.ipynb"
    path.write_text(book if isinstance(book, str) else nbformat.writes(book), "utf-8")
    return path


def solving(id: str) -> str:
    """The code of an exercise's solution, with all that it uses."""
    return _code(texts_of(id), id.replace("-", "_"))


def wrong(id: str, mistake: str) -> str | None:
    """The code of the first wrong answer that makes a mistake, under the name of the right one; None if it has none."""
    texts, answer = texts_of(id), texts_of(id).solutions()["WRONG"][id][mistake][0]
    name = getattr(answer, "__name__", "")
    if not name.isidentifier() or name not in texts.solutions():
        return None
    return f"{_code(texts, name)}\n\n\n{id.replace('-', '_')} = {name}"


def _code(texts: Texts, name: str) -> str:
    cell = slices.cell("solutions", (texts.folder / "solutions.py").read_text("utf-8"))
    lines = cell.source.split("\n")
    ((_, _, run),) = slices.needed([name], [cell], [])
    return "\n\n".join(
        "\n".join(
            lines[
                cell.body[at].lineno - 1 - len(getattr(cell.body[at], "decorator_list", [])) : cell.body[at].end_lineno
            ]
        )
        for at in run
    )


def told(out: Path) -> dict:
    """What the report says, for programs."""
    return json.loads((out / "class.json").read_text("utf-8"))
