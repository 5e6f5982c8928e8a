"""Each chapter is executed at most once per run of the tests, and all tests share its outputs.

One chapter is executed in JupyterLab, as a reader runs it, and ``make book`` finds its run, too. For the others a run
serves that ``make book`` or an earlier run of the tests has kept, until one of the chapter's inputs changes.
"""

import fcntl
import json
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from course.book.library import Book
from course.site import runs
from course.site.build import KEPT
from course.site.execute import FIRST, in_languages
from helpers import lab

ROOT = Path(__file__).parents[2]
IN_LAB = {"02-ring": "zh"}  # chapter → the language of its reader in JupyterLab


def executed(folder: Path, chapter: str, language: str) -> nbformat.NotebookNode:
    """Return the chapter's notebook with its outputs; ``folder`` is shared by all processes of these tests."""
    outputs = run(folder, chapter).outputs[language]
    book = nbformat.read(ROOT / "chapters" / chapter / f"{language}.ipynb", as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.from_dict(output) for output in outputs[cell.id]]
    return book


def run(folder: Path, chapter: str) -> runs.ChapterRun:
    """Return the chapter's run, which is made by the first test that asks for it."""
    return runs.ChapterRun(*once(folder / chapter, lambda here: _run(here, chapter))[0])


def seen(folder: Path, chapter: str) -> dict:
    """Return what a reader sees of the chapter in JupyterLab, in the language of ``IN_LAB``."""
    return once(folder / chapter, lambda here: _run(here, chapter))[1]


def once(here: Path, make: Callable[[Path], object]) -> object:
    """Return what ``make`` returned in the folder ``here``, in whichever process; raise if it failed there."""
    with locked(here.with_name(f"{here.name}.lock")):
        if not here.exists():
            here.mkdir()
            try:
                result = make(here)
            except BaseException:  # a failure is kept, too: the next test would fail in the same way
                (here / "failure").write_text(traceback.format_exc(), "utf-8")
                raise
            (here / "result").write_text(json.dumps(result), "utf-8")
    if (here / "failure").exists():
        raise AssertionError(f"{here.name} did not run:\n{(here / 'failure').read_text('utf-8')}")
    return json.loads((here / "result").read_text("utf-8"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process in at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class ByCell:
    """A notebook with a kernel of its own, run cell by cell."""

    def __init__(self):
        self.made = nbformat.v4.new_notebook()
        self.client = NotebookClient(self.made, timeout=60, kernel_name="python3", allow_errors=True)

    def run(self, source: str) -> list:
        """Return the outputs of a cell."""
        self.made.cells.append(nbformat.v4.new_code_cell(source))
        return self.client.execute_cell(self.made.cells[-1], len(self.made.cells) - 1).outputs

    def says(self, source: str) -> str:
        """Return the outputs and errors of a cell, as plain text without colors."""
        texts = [
            output.get("text")
            or output.get("data", {}).get("text/plain")
            or re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.get("traceback", ())))
            for output in self.run(source)
        ]
        return "\n".join(text.rstrip("\n") for text in texts)


def _listed(made: runs.ChapterRun) -> list:
    return [made.outputs, made.day, made.machine]


def _run(folder: Path, chapter: str) -> tuple[list, dict | None]:
    if chapter not in IN_LAB:
        return _listed(runs.run(Book(ROOT), chapter, ROOT / KEPT)), None
    picture = ROOT / f"tests/pictures/lab-{IN_LAB[chapter]}-{chapter}.png"
    text, what_is_seen = lab.read(folder, chapter, IN_LAB[chapter], picture, FIRST)
    books = in_languages(nbformat.reads(text, as_version=4), ROOT / "chapters" / chapter)
    return _listed(runs.keep(Book(ROOT), chapter, ROOT / KEPT, runs.new(books))), what_is_seen
