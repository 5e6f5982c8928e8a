"""A class of sixteen with every case that a teacher has to know; each is reported, here in Vietnamese."""

import builtins
import csv
import json
import subprocess
import sys
import zipfile
from datetime import datetime, timedelta

import pytest
from helpers.classes import hand_in, notebook, solving, told, wrong

from course.classes import answers
from d2lps.messages import LANGUAGES, text_in
from d2lps.notebook.grading.course import CHAPTERS, all_texts

pytestmark = pytest.mark.timeout(600)
FIRST, ROOT = "01-data-parallelism", CHAPTERS.parent
SPOKEN = "vi"  # neither the first language nor that of most notebooks
DUE = "2026-12-01T23:59"
BACK = "    return d2lps.sharded([*gpus])"
OWN = """def own_gpu(gpus):
    share = {f"part{i}": Fraction(1, len(gpus)) for i in range(len(gpus))}
    there = [Send(a, b, f"part{i}", "add") for i, b in enumerate(gpus) for a in gpus if a != b]
    back = [Send(b, a, f"part{i}", "copy") for i, b in enumerate(gpus) for a in gpus if a != b]
    return Plan(gpus, share, [there, back])"""
TAMPERS = f"""def own_gpu(gpus):
    import os, socket
    try:
        open({str(CHAPTERS / FIRST / "solutions.py")!r})
    except OSError:
        pass
    try:
        os.kill(os.getppid(), 9)
    except OSError:
        pass
    try:
        socket.create_connection(("1.1.1.1", 53), 1)
    except OSError:
        pass
{BACK}"""
CAUGHT = "def own_gpu(gpus):\n    try:\n        d2lps.solution('own-gpu')\n    except Exception:\n        pass\n" + BACK
LOCAL = f"""def own_gpu(gpus):
    import decimal, fractions, os
    open(os.devnull, "w").close()
    open(decimal.__file__).close()
{BACK}"""
ENDLESS = "def own_gpu(gpus):\n    while True:\n        pass"
IMPORTS = "from my_helpers import ring\n\ndef own_gpu(gpus):\n    return ring(gpus)"
GROUP = "def own_gpu(gpus):\n    raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])"
SOLVED, SPLIT = {"own-gpu": solving("own-gpu")}, solving("split")


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict:
    """Grade the class; Mei Li handed in after the due time, and a file of Lan is marked as late."""
    top = tmp_path_factory.mktemp("graded")
    folder, out = top / "class", top / "report"
    codes = {
        "right": {"own-gpu": LOCAL, "overlap": solving("overlap")},
        "wrong": {"overlap": wrong("overlap", "not-overlapped")},
        "copied": SOLVED, "calls": {"own-gpu": "own_gpu = d2lps.sharded"},
        "first": {"own-gpu": OWN}, "second": {"own-gpu": OWN.replace("there", "to").replace("share", "parts")},
        "tampers": {"own-gpu": TAMPERS}, "asks": {"own-gpu": CAUGHT}, "endless": {"own-gpu": ENDLESS, "split": SPLIT},
        "imports": {"own-gpu": IMPORTS}, "group": {"own-gpu": GROUP},
    }  # fmt: skip
    for number, (learner, code) in enumerate(codes.items()):
        hand_in(folder, learner, notebook(FIRST, code, LANGUAGES[number % 3]))
    canvas = {"lan_LATE_4711_8801_01.ipynb": {"overlap": solving("overlap")}, "lan_4711_8802_01-1.ipynb": SOLVED}
    for name, code in canvas.items():
        (folder / name).write_text(json.dumps(notebook(FIRST, code, "vi")))
    hand_in(folder, "Mei Li_77_assignsubmission_file", notebook(FIRST, {"own-gpu": LOCAL}, "zh"))
    with zipfile.ZipFile(folder / "zip.zip", "w") as file:
        file.writestr("work/01.ipynb", json.dumps(notebook(FIRST, {"own-gpu": LOCAL})))
    huge = notebook(FIRST, {"own-gpu": LOCAL})
    huge.cells[1].outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * (67 << 20)}]
    hand_in(folder, "huge", huge)
    (folder / "links").mkdir()
    (folder / "links" / "01.ipynb").symlink_to(folder / "right" / "01.ipynb")
    in_time = [*codes, "zip", "huge", "links", "4711"]
    late = (datetime.fromisoformat(DUE) + timedelta(hours=30)).isoformat()
    rows = [f"{learner},{DUE}\n" for learner in in_time] + [f"77,{late}\n"]
    (top / "times.csv").write_text("learner,time\n" + "".join(rows))
    (top / "roster.csv").write_text('Student,ID,Section\n"Lan, Ng",4711,A\n"Li, Mei",12,B\n"Away, All",13,B\n')
    points, roster = "own-gpu=2,overlap=3", str(top / "roster.csv")
    options = ["--roster", roster, "--exercises", points, "--due", DUE, "--seconds", "1"]
    options += ["--handed-in", str(top / "times.csv")]
    command = [sys.executable, "-m", "course.classes", str(folder), "--out", str(out), "--jobs", "2", *options]
    done = subprocess.run([*command, "--language", SPOKEN], capture_output=True, text=True, cwd=ROOT, timeout=550)
    report = told(out)
    rows = {(row["learner"], row["exercise"]): row for row in report["answers"] if row["state"] not in ("untouched",)}
    return {"done": done, "out": out, "report": report, "rows": rows}


@pytest.mark.slow(40)
def test_the_gradebook_has_the_points_and_days_of_everyone(graded):
    with open(graded["out"] / "gradebook.csv", encoding="utf-8-sig", newline="") as file:
        first, *people = csv.reader(file)
    assert first == ["Student", "ID", "Section", "own-gpu", "overlap", "Total", "Days late"]
    expected = {
        "Lan, Ng": "2 3 5 1", "Li, Mei": "2 0 2 2", "Away, All": "   ", "right": "2 3 5 0", "wrong": "0 0 0 0",
        "endless": "0 0 0 0", "imports": "0 0 0 0", "group": "0 0 0 0", "links": "   0",
    } | dict.fromkeys(("copied", "calls", "first", "second", "tampers", "asks", "zip", "huge"), "2 0 2 0")  # fmt: skip
    assert {line[0]: " ".join(line[3:]) for line in people} == expected
    assert people[0][:3] == ["Lan, Ng", "4711", "A"] and graded["done"].returncode == 1  # the link was not graded


@pytest.mark.slow
def test_conspicuous_answers_are_noted_without_a_penalty(graded):
    rows = graded["rows"]

    def notes(learner: str) -> list[str]:
        row = rows[learner, "own-gpu"]
        return row["notes"] + row["look"]

    def said(key: str, **values: object) -> str:
        return text_in(SPOKEN, f"grade.note.{key}", **values)

    assert notes("copied") == [said("as-published")] and notes("calls") == [said("only-calls")]
    assert notes("first") == [said("alike", learners="second")] and notes("second") == [said("alike", learners="first")]
    assert [notes(learner) for learner in ("right", "zip", "huge", "Mei Li", "endless", "group")] == [[]] * 6
    if "files" not in graded["report"]["not-shut-out"]:
        attempts = [said("refused-file", name="solutions.py"), said("refused-process"), said("refused-network")]
        assert notes("tampers") == attempts and notes("asks") == [said("refused-file", name="chapters")]
    books = {book["notebook"] or book["learner"]: book["notes"] for book in graded["report"]["notebooks"]}
    assert books["links"] == [said("link", file="links/01.ipynb")]
    assert books["huge/01.ipynb"] == [said("large", size="67 MiB")]
    assert books["lan_LATE_4711_8801_01.ipynb"] == [said("late", days=1)] and books["lan_4711_8802_01-1.ipynb"] == []


@pytest.mark.slow
def test_the_reported_cause_is_the_true_one(graded):
    rows = graded["rows"]
    missing, group = rows["imports", "own-gpu"], rows["group", "own-gpu"]
    assert "ModuleNotFoundError" in missing["sentence"] and "NameError" not in missing["sentence"]
    assert missing["notes"] == [text_in(SPOKEN, "grade.note.refused-import", name="my_helpers")]
    assert group["state"] == "tried" and "ExceptionGroup: both (2 sub-exceptions)" in group["sentence"]
    assert rows["wrong", "overlap"]["mistake"] == "not-overlapped"
    assert (rows["endless", "own-gpu"]["mistake"], rows["endless", "split"]["state"]) == ("overtime", "solved")


@pytest.mark.slow
def test_each_learner_has_a_page_in_the_own_language(graded):
    pages = {path.stem: path.read_text("utf-8") for path in (graded["out"] / "learners").iterdir()}
    learners = graded["report"]["learners"]
    assert pages.keys() == learners.keys() and len(pages) == 16
    spoken = {book["learner"]: book["language"] for book in graded["report"]["notebooks"]}
    assert spoken["right"] == "en" and spoken["lan"] == "vi" and spoken["Mei Li"] == "zh"
    for learner, page in pages.items():
        language = spoken[learner] or SPOKEN
        assert f"<h1>{text_in(language, 'grade.feedback', learner=learner)}" in page
        if learner != "links":
            assert text_in(language, "grade.state.untouched") in page and "⟦" not in page
        assert not [key for key in ("as-published", "only-calls") if text_in(language, f"grade.note.{key}") in page]
    assert "first" not in pages["second"] and "second" not in pages["first"]
    whole = (graded["out"] / "class.html").read_text("utf-8")
    assert "⟦" not in whole and text_in(SPOKEN, "grade.state.untouched") in whole


KINDS = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_any_builtin_kind_can_be_made_again(kind):
    base = answers._builtin(kind)
    made = answers.Answers(None)._error(["error", kind.__name__, base, "said", 3, None, None], {})
    assert type(made).__name__ == kind.__name__ and str(made) == "said" and made.answer_line == 3
    assert isinstance(made, Exception) == issubclass(kind, Exception)


@pytest.mark.slow(120)
def test_each_published_solution_is_solved_without_notes(tmp_path):
    chapters: dict[str, dict[str, str]] = {}
    for id, texts in all_texts().items():
        chapters.setdefault(texts.folder.name, {})[id] = solving(id)
    for chapter, codes in chapters.items():
        hand_in(tmp_path / "class", chapter, notebook(chapter, codes))
    command = [sys.executable, "-m", "course.classes", str(tmp_path / "class"), "--out", str(tmp_path / "report")]
    subprocess.run([*command, "--jobs", "2"], capture_output=True, cwd=ROOT, timeout=550)
    rows = {row["exercise"]: row for row in told(tmp_path / "report")["answers"]}
    assert rows.keys() == all_texts().keys()
    assert {id: row["notes"] for id, row in rows.items() if row["notes"]} == {}
    assert {id: row["sentence"] for id, row in rows.items() if row["state"] != "solved"} == {}
