"""A class of right answers: every published solution, answers as Jupyter allows them, and files with strange names."""

import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.classes import hand_in, linux, notebook, solving, strange_names, told
from test_cells import BOTH, RIGHT

from course.classes import answers
from d2lps.notebook.grading.course import CHAPTERS, all_texts

pytestmark = pytest.mark.timeout(1200)
FIRST, ROOT = "01-data-parallelism", CHAPTERS.parent
NAMES = (b"l\xf0p", b"b\xb8o") if sys.platform == "linux" else (b"class", b"report")  # of the folders
FORMS = ("help", "prompts", "time-cell-with-magics", "await", "future", "global", "import-star")


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict:
    """Grade the class with the usual limits."""
    top = os.fsencode(tmp_path_factory.mktemp("graded"))
    folder, out = (Path(os.fsdecode(top + b"/" + name)) for name in NAMES)
    chapters: dict[str, dict[str, str]] = {}
    for id, texts in all_texts().items():
        chapters.setdefault(texts.folder.name, {})[id] = solving(id)
    for chapter, codes in chapters.items():
        hand_in(folder, chapter, notebook(chapter, codes))
    written = {name: RIGHT[name] for name in FORMS} | {"command": ["one = !echo 1\n" + BOTH]}
    for name, cells in written.items():
        book = notebook(FIRST, {"own-gpu": cells[-1]})
        place = next(at for at, cell in enumerate(book.cells) if cell["id"] == "exercise-own-gpu")
        more = [type(book.cells[0])(cell_type="code", id=f"m{at}", source=source, metadata={}, outputs=[])
                for at, source in enumerate(cells[:-1])]  # fmt: skip
        book.cells[place:place] = more
        hand_in(folder, name, book)
    if sys.platform == "linux":
        strange_names(folder)
    command = [sys.executable, "-m", "course.classes", str(folder), "--out", str(out), "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1100)
    return {"done": done, "out": out, "report": told(out), "chapters": chapters}


def test_each_published_solution_is_solved_without_notes(graded):
    rows = {row["exercise"]: row for row in graded["report"]["answers"] if row["learner"] in graded["chapters"]}
    assert rows.keys() == all_texts().keys()
    assert {id: row["notes"] for id, row in rows.items() if row["notes"]} == {}
    assert {id: row["sentence"] for id, row in rows.items() if row["state"] != "solved"} == {}


def test_a_class_that_writes_as_in_jupyter_is_graded(graded):
    """The forms of the whole way, also through the sandbox."""
    rows = {row["learner"]: row for row in graded["report"]["answers"] if row["exercise"] == "own-gpu"}
    assert {name: rows[name]["state"] for name in FORMS} == dict.fromkeys(FORMS, "solved")
    assert rows["command"]["state"] == "tried" and "`one = !echo 1`" in rows["command"]["notes"][0]


@linux
def test_a_report_is_written_for_names_that_are_not_utf8(graded):
    done, out = graded["done"], graded["out"]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for shown in (done.stdout, *((out / f"class.{kind}").read_text("utf-8") for kind in ("html", "csv", "json"))):
        assert "\ufffd" * 4 + " (2)" in shown and "b\ufffdi.txt" in shown
    assert "b\ufffdi.ipynb" in done.stderr and "l\ufffdp" in (out / "class.html").read_text("utf-8")
    assert {"\ufffd" * 4, "\ufffd" * 4 + " (2)", "Hà"} <= graded["report"]["learners"].keys()


KINDS = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_any_builtin_kind_can_be_made_again(kind):
    base = answers._builtin(kind)
    made = answers.Answers(None)._error(["error", kind.__name__, base, "said", 3, None, None], {})
    assert type(made).__name__ == kind.__name__ and str(made) == "said" and made.answer_line == 3
    assert isinstance(made, Exception) == issubclass(kind, Exception)
