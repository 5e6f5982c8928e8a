"""A class of notebooks: right answers are solved, wrong ones get a reason, none hangs or changes its verdict."""

import csv
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from helpers import classes
from helpers.classes import hand_in, linux, notebook, solving, strange_names, told, wrong

from course.classes import handed_in, judging, notebooks, report, running, slices, values
from course.classes.__main__ import main
from course.classes.handed_in import Task
from d2lps.messages import LANGUAGES, only, text_in
from d2lps.notebook.grading import course
from d2lps.notebook.grading.course import CHAPTERS, all_texts

ROOT = CHAPTERS.parent
pytestmark = pytest.mark.timeout(1200)
FIRST, KEYS = "01-data-parallelism", "04-key-value-store"
RING, ASYNC = "02-ring", "05-asynchrony"

SPOKEN = "vi"  # the language of the report: neither the first one nor that of most notebooks
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

# Each tries to be told right for something that it has not computed. `{solutions}` is the file that it would like to
# read, `{out}` the folder of the report, `{other}` another learner's notebook.
CHEATS = {
    "reads": "return own(open({solutions!r}).read())",
    "reads-low": "import os\n    return own(os.read(os.open({solutions!r}, os.O_RDONLY), 1 << 20).decode())",
    "reads-another": "return own(open({other!r}).read())",
    "imports": """
        import importlib.util as util
        spec = util.spec_from_file_location("solutions", {solutions!r})
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.own_gpu(gpus)
    """,
    "asks-d2lps": "import d2lps\n    return own(d2lps.solution('own-gpu').code)",
    "asks-the-chapter": """
        from d2lps.notebook.grading import course
        return course.texts_of("own-gpu").solution()(gpus)
    """,
    "runs": "import subprocess\n    return own(subprocess.check_output(['cat', {solutions!r}], text=True))",
    "links": "import os\n    os.link({solutions!r}, '/tmp/d2lps-x')\n    return own(open('/tmp/d2lps-x').read())",
    "proc": "return own(open('/proc/1/root' + {solutions!r}).read())",
    "patches-grading": """
        import d2lps.notebook.grading as grading
        from d2lps.notebook.grading import attempts, calls, plan_judge
        grading.PlanJudge.__call__ = plan_judge.PlanJudge.__call__ = lambda *_: None
        attempts._judge_all = attempts.judged = calls.call = lambda *_: None
        return [1]
    """,
    "patches-torch": """
        import builtins, torch
        torch.equal = torch.allclose = lambda *_, **__: True
        builtins.isinstance = lambda *_: True
        builtins.max = builtins.sum = lambda *_, **__: 0
        return [1]
    """,
    "equals-everything": """
        class Same(list):
            def __eq__(self, other): return True
            def __lt__(self, other): return False
            def __gt__(self, other): return False
            def __hash__(self): return 0
        return Same()
    """,
    "is-a-plan": """
        class Fake(Plan):
            def __init__(self): pass
            nodes, share, steps, holds, wants = tuple(gpus), {{"g": 1}}, (), (), ()
            def __eq__(self, other): return True
        return Fake()
    """,
    "prints": """
        import os, sys
        os.write(1, b'{{"state": "solved"}}\\n')
        sys.exit(0)
    """,
    "exits": "import os\n    os._exit(0)",
    "atexit": "import atexit\n    atexit.register(lambda: open({out!r} + '/class.json', 'w'))\n    return 1",
    "writes": "open({out!r} + '/class.json', 'w').write('solved')",
    "speaks-for-itself": """
        import os
        for number in range(3, 20):
            for frame in (b'["return",0,null,[],[]]\\n', b'["return",0,true,[],[]]\\n', b'["solved",0,1]\\n'):
                try:
                    os.write(number, frame * 3)
                except OSError:
                    pass
        return 1
    """,
    "looks-around": """
        import gc
        for each in gc.get_objects():
            if type(each).__name__ in ("PlanCase", "Exercise", "Failure", "Verdict"):
                return own_of(each)
        return 1
    """,
    "looks-up": """
        import sys
        frame, seen = sys._getframe(), []
        while frame:
            seen.append(frame.f_locals)
            frame = frame.f_back
        found = [each["case"] for each in seen if "case" in each]
        return found[0].bound
    """,
    "threads": """
        import os, threading
        threading.Thread(target=lambda: os.write(3, b'["return",0,["l"],[],[]]\\n'), daemon=True).start()
        return 1
    """,
    "kills": "import os\n    os.kill(os.getppid(), 9)\n    return 1",
    "network": "import socket\n    socket.create_connection(('1.1.1.1', 53), 2)\n    return 1",
}

HOGS = {
    "endless": "while True:\n        pass",
    "sleeps": "import time\n    time.sleep(1e6)",
    "catches": "while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    "memory": "return [bytearray(1 << 28) for _ in range(100)]",
    "forks": "import os\n    while True:\n        os.fork()",
    "spawns": "import subprocess, sys\n    subprocess.run([sys.executable, '-c', 'while True: pass'])",
    "threads": "import threading as t, time\n    while True:\n        t.Thread(target=time.sleep, args=(99,)).start()",
    "prints": "for _ in range(10**6):\n        print('x' * 1000)",
    "large": "return ['x' * 1000] * 10**6",
    "deep": "x = []\n    for _ in range(10**5):\n        x = [x]\n    return x",
    "crashes": "import ctypes\n    ctypes.string_at(0)",
    "judge": """import os
    for lane in range(9):
        os.write(3, b'["return",%d,["f","1e60000000"],[],[],[]]\\n' % lane)
    return 1""",
    "files": "import tempfile\n    open(tempfile.mktemp(), 'wb').write(bytes(1 << 30))",
}


def grade(folder: Path, out: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "course.classes", str(folder), "--out", str(out), "--jobs", "2", *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1100)


def _notable(folder: Path) -> set[str]:
    """Hand in what a teacher has to know about; return the learners. Mei Li is late, and a file of Lan is marked so."""
    solved, right = {"own-gpu": solving("own-gpu")}, notebook(FIRST, {"own-gpu": LOCAL})
    codes = {
        "right": {"own-gpu": LOCAL, "overlap": solving("overlap")},
        "wrong": {"overlap": wrong("overlap", "not-overlapped")},
        "copied": solved, "calls": {"own-gpu": "own_gpu = d2lps.sharded"},
        "first": {"own-gpu": OWN}, "second": {"own-gpu": OWN.replace("there", "to").replace("share", "parts")},
        "tampers": {"own-gpu": TAMPERS}, "asks": {"own-gpu": CAUGHT},
        "endless": {"own-gpu": ENDLESS, "split": solving("split")},
        "imports": {"own-gpu": IMPORTS}, "group": {"own-gpu": GROUP},
    }  # fmt: skip
    for number, (learner, code) in enumerate(codes.items()):
        hand_in(folder, learner, notebook(FIRST, code, LANGUAGES[number % 3]))
    canvas = {"lan_LATE_4711_8801_01.ipynb": {"overlap": solving("overlap")}, "lan_4711_8802_01-1.ipynb": solved}
    for name, code in canvas.items():
        (folder / name).write_text(json.dumps(notebook(FIRST, code, "vi")))
    hand_in(folder, "Mei Li_77_assignsubmission_file", notebook(FIRST, {"own-gpu": LOCAL}, "zh"))
    with zipfile.ZipFile(folder / "zip.zip", "w") as file:
        file.writestr("work/01.ipynb", json.dumps(right))
    right.cells[1].outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * (67 << 20)}]
    hand_in(folder, "huge", right)
    (folder / "links").mkdir()
    (folder / "links" / "01.ipynb").symlink_to(folder / "right" / "01.ipynb")
    in_time = [*codes, "zip", "huge", "links", "4711"]
    late = (datetime.fromisoformat(DUE) + timedelta(hours=30)).isoformat()
    times = [f"{learner},{DUE}\n" for learner in in_time] + [f"77,{late}\n"]
    (folder.parent / "times.csv").write_text("learner,time\n" + "".join(times))
    return {*codes, "lan", "Mei Li", "zip", "huge", "links"}


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict:
    """One class in which everybody does something else, graded once: (learner, exercise) → row."""
    top = tmp_path_factory.mktemp("class")
    folder, out = top / "learners", top / "report"
    first = {"own-gpu": solving("own-gpu"), "overlap": wrong("overlap", "not-overlapped")}
    hand_in(folder, "anh", notebook(FIRST, first, "vi"))
    hand_in(folder, "anh", notebook(ASYNC, {id: solving(id) for id in ("buckets", "staleness", "backup", "local-sgd")}))
    hand_in(folder, "anh", notebook(RING, {id: solving(id) for id in ("labels", "beyond-sums", "both-ways")}))
    keys = {"placement": solving("placement"), "count-workers": wrong("count-workers", "keeps-all")}
    hand_in(folder, "mei", notebook(KEYS, keys, "zh"))
    hand_in(folder, "bad", "{ this is no notebook")
    hand_in(folder, "other", json.dumps({"cells": [{"cell_type": "code", "source": "1", "outputs": []}]}))
    hand_in(folder, "syntax", notebook(FIRST, {"own-gpu": "def own_gpu(gpus:", "split": solving("split")}))
    _without_ids(folder)
    _doubled(folder)
    (folder / "empty").mkdir()
    given = {
        "solutions": str(CHAPTERS / FIRST / "solutions.py"),
        "out": str(out),
        "other": str(folder / "anh" / "01.ipynb"),
    }
    own = "def own(code):\n    names = {}\n    exec(code, names)\n    return names['own_gpu'](gpus_of_the_call)\n\n"
    for name, body in CHEATS.items():
        body = dedent(body).strip("\n") if body.startswith("\n") else body.replace("\n    ", "\n")
        code = own + "def own_gpu(gpus):\n    global gpus_of_the_call\n    gpus_of_the_call = gpus\n"
        hand_in(folder, f"cheat-{name}", notebook(FIRST, {"own-gpu": code + _indented(body.format(**given))}))
    for name, body in HOGS.items():
        answers = {"own-gpu": f"def own_gpu(gpus):\n    {body}", "split": solving("split")}
        hand_in(folder, f"hog-{name}", notebook(FIRST, answers))
    notable = _notable(folder)
    (top / "roster.csv").write_text('Student,ID,Section\n"Lan, Ng",4711,A\n"Li, Mei",12,B\n"Away, All",13,B\n')
    before = _bytes(folder)
    book = "--roster", str(top / "roster.csv"), "--exercises", "own-gpu=2,overlap=3", "--due", DUE
    book = *book, "--handed-in", str(top / "times.csv")
    done = grade(folder, out, *book, "--seconds", "1", "--memory", "512", "--language", SPOKEN)
    assert _bytes(folder) == before, "a teacher's folder was changed"
    report = told(out)
    rows = {(row["learner"], row["exercise"]): row for row in report["answers"]}
    return {"done": done, "out": out, "report": report, "rows": rows, "notable": notable}


def said(key: str, **values: object) -> str:
    """Return a sentence of the report."""
    return text_in(SPOKEN, f"grade.{key}", **values)


def note(key: str, **values: object) -> str:
    """Return a note of the report."""
    return said(f"note.{key}", **values)


def _indented(body: str) -> str:
    return "\n".join("    " + line for line in body.split("\n"))


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _without_ids(folder: Path) -> None:
    """An old format: no ids, and the checks taken out."""
    book = notebook(FIRST, {"split": solving("split")})
    for each in book.cells:
        each.pop("id")
        if each.cell_type == "code":
            lines = "".join(each.source).split("\n")
            each.source = "\n".join(line for line in lines if "check_exercise" not in line)
    book.nbformat_minor = 4
    hand_in(folder, "no-ids", book)


def _doubled(folder: Path) -> None:
    """A wrong answer and the stub stand after the right one, an exercise is gone, and one is of another edition."""
    book = notebook(FIRST, {"own-gpu": solving("own-gpu")})
    stub = next(each for each in notebook(FIRST, {}).cells if each["id"] == "exercise-own-gpu")
    book.cells = [each for each in book.cells if each["id"] != "exercise-overlap"]
    worse = {"id": "worse", "source": "".join(stub["source"]).replace("shares =", "return None\n    shares =")}
    book.cells += [type(stub)(dict(stub) | worse), type(stub)(dict(stub) | {"id": "again"})]
    strange = dict(stub) | {"id": "exercise-of-old", "source": "d2lps.check_exercise('of-old', print)"}
    book.cells.append(type(stub)(strange))
    hand_in(folder, "doubled", book)


# ---- notes


def test_right_answers_are_solved_and_wrong_ones_get_a_reason(graded):
    rows = graded["rows"]
    solved = [("anh", id) for id in ("own-gpu", "buckets", "staleness", "backup", "local-sgd", "labels", "beyond-sums")]
    solved += [("mei", "placement"), ("syntax", "split"), ("no-ids", "split")]
    assert {at: rows[at]["state"] for at in solved} == dict.fromkeys(solved, "solved")
    assert rows["anh", "overlap"]["mistake"] == "not-overlapped"
    assert rows["mei", "count-workers"]["mistake"] == "keeps-all"
    assert rows["anh", "split"]["state"] == rows["mei", "push-pull"]["state"] == "untouched"
    assert rows["no-ids", "own-gpu"]["state"] == "untouched"
    assert all(row["hint"] for row in rows.values() if row["state"] == "tried")


def test_unreadable_files_are_reported_and_the_rest_is_graded(graded):
    rows, learners = graded["rows"], graded["report"]["learners"]
    assert rows["syntax", "own-gpu"]["mistake"] == "syntax"
    assert note("no-json") in str(learners["bad"]["notes"])
    assert learners["other"]["notes"] and learners["other"]["exercises"] == 0
    assert rows["doubled", "own-gpu"]["state"] == "solved" and "3" in rows["doubled", "own-gpu"]["notes"][0]
    assert rows["doubled", "overlap"]["state"] == "missing"
    assert "of-old" in str(learners["doubled"]["notes"])
    assert graded["done"].returncode == 1


@pytest.mark.parametrize("name", CHEATS)
def test_no_answer_gets_at_the_solutions_or_the_verdict(graded, name):
    if graded["report"]["not-shut-out"]:
        pytest.skip("this machine cannot shut answers in")
    assert graded["rows"][f"cheat-{name}", "own-gpu"]["state"] in ("tried", "stopped")


@pytest.mark.parametrize(
    "name, refused", {"reads": "file", "asks-d2lps": "file", "runs": "process", "network": "network"}.items()
)
def test_refused_attempts_are_in_the_report(graded, name, refused):
    if graded["report"]["not-shut-out"]:
        pytest.skip("this machine cannot shut answers in")
    row = graded["rows"][f"cheat-{name}", "own-gpu"]
    file = {"reads": "solutions.py", "asks-d2lps": "chapters"}.get(name)
    assert row["notes"][0] == note(f"refused-{refused}", name=file) and row["hint"] == said("mistake.refused")
    assert str(ROOT) not in (graded["out"] / "class.json").read_text("utf-8")


@pytest.mark.parametrize("name", HOGS)
def test_greedy_answers_are_stopped_alone(graded, name):
    row = graded["rows"][f"hog-{name}", "own-gpu"]
    assert row["state"] in ("tried", "stopped") and row["sentence"]
    assert graded["rows"][f"hog-{name}", "split"]["state"] == "solved"
    if name in ("endless", "catches"):
        assert row["mistake"] == "overtime"
    if name == "memory":
        assert (row["state"], row["mistake"]) == ("stopped", "out-of-memory") and "512 MiB" in row["sentence"]


def test_the_report_is_three_files_that_agree(graded):
    out, report = graded["out"], graded["report"]
    lines = [*csv.DictReader((out / "class.csv").read_text("utf-8-sig").splitlines())]
    assert {(line["learner"], line["exercise"], line["state"]) for line in lines if line["exercise"]} == {
        (row["learner"], row["exercise"], row["state"]) for row in report["answers"]
    }
    html = (out / "class.html").read_text("utf-8")
    assert f'<html lang="{SPOKEN}">' in html and "<script" not in html and "http" not in html
    assert all(f">{learner}</a>" in html for learner in report["learners"])
    own_gpu = report["class"]["own-gpu"]
    assert sum(own_gpu["states"].values()) == len(
        {row["learner"] for row in report["answers"] if row["exercise"] == "own-gpu"}
    )


def test_the_gradebook_has_the_points_and_days_of_everyone(graded):
    with open(graded["out"] / "gradebook.csv", encoding="utf-8-sig", newline="") as file:
        first, *people = csv.reader(file)
    titles = [text_in(SPOKEN, f"grade.column-{name}") for name in ("total", "late")]
    assert first == ["Student", "ID", "Section", "own-gpu", "overlap", *titles]
    expected = {
        "Lan, Ng": "2 3 5 1", "Li, Mei": "2 0 2 2", "Away, All": "   ", "right": "2 3 5 0", "wrong": "0 0 0 0",
        "endless": "0 0 0 0", "imports": "0 0 0 0", "group": "0 0 0 0", "links": "   0",
    } | dict.fromkeys(("copied", "calls", "first", "second", "tampers", "asks", "zip", "huge"), "2 0 2 0")  # fmt: skip
    assert {line[0]: " ".join(line[3:]) for line in people if line[0] in expected} == expected
    assert people[0][:3] == ["Lan, Ng", "4711", "A"] and graded["done"].returncode == 1  # the link was not graded


def test_conspicuous_answers_are_noted_without_a_penalty(graded):
    rows = graded["rows"]

    def notes(learner: str) -> list[str]:
        row = rows[learner, "own-gpu"]
        return row["notes"] + row["look"]

    assert notes("copied") == [note("as-published")] and notes("calls") == [note("only-calls")]
    assert notes("first") == [note("alike", learners="second")] and notes("second") == [note("alike", learners="first")]
    assert [notes(learner) for learner in ("right", "zip", "huge", "Mei Li", "endless", "group")] == [[]] * 6
    if "files" not in graded["report"]["not-shut-out"]:
        attempts = [note("refused-file", name="solutions.py"), note("refused-process"), note("refused-network")]
        assert notes("tampers") == attempts and notes("asks") == [note("refused-file", name="chapters")]
    books = {book["notebook"] or book["learner"]: book["notes"] for book in graded["report"]["notebooks"]}
    assert books["links"] == [note("link", file="links/01.ipynb")]
    assert books["huge/01.ipynb"] == [note("large", size="67 MiB")]
    assert books["lan_LATE_4711_8801_01.ipynb"] == [note("late", days=1)] and books["lan_4711_8802_01-1.ipynb"] == []


def test_the_reported_cause_is_the_true_one(graded):
    rows = graded["rows"]
    missing, group = rows["imports", "own-gpu"], rows["group", "own-gpu"]
    assert "ModuleNotFoundError" in missing["sentence"] and "NameError" not in missing["sentence"]
    assert missing["notes"] == [note("refused-import", name="my_helpers")]
    assert group["state"] == "tried" and "ExceptionGroup: both (2 sub-exceptions)" in group["sentence"]
    assert rows["wrong", "overlap"]["mistake"] == "not-overlapped"
    assert (rows["endless", "own-gpu"]["mistake"], rows["endless", "split"]["state"]) == ("overtime", "solved")


def test_each_learner_has_a_page_in_the_own_language(graded):
    pages = {path.stem: path.read_text("utf-8") for path in (graded["out"] / "learners").iterdir()}
    assert pages.keys() == graded["report"]["learners"].keys() >= graded["notable"]
    spoken = {book["learner"]: book["language"] for book in graded["report"]["notebooks"]}
    assert spoken["right"] == "en" and spoken["lan"] == "vi" and spoken["Mei Li"] == "zh"
    for learner in graded["notable"]:
        page, language = pages[learner], spoken[learner] or SPOKEN
        assert f"<h1>{text_in(language, 'grade.feedback', learner=learner)}" in page
        if learner != "links":
            assert text_in(language, "grade.state.untouched") in page and "⟦" not in page
        assert not [key for key in ("as-published", "only-calls") if text_in(language, f"grade.note.{key}") in page]
    assert "first" not in pages["second"] and "second" not in pages["first"]
    whole = (graded["out"] / "class.html").read_text("utf-8")
    assert "⟦" not in whole and text_in(SPOKEN, "grade.state.untouched") in whole


# ---- without a class


def test_an_empty_class_is_reported(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "absent"):
        assert main([str(folder), "--out", str(tmp_path / "report")]) == 2
        assert str(folder) in capsys.readouterr().err


def test_a_learner_without_a_notebook_does_not_vanish(tmp_path):
    for name in (
        "anh/a.ipynb",
        "anh/a.txt",
        "binh/bai.docx",
        "binh/.x",
        "chi/deep/b.ipynb",
        "readme.md",
        "out/class.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "dung").mkdir()
    tasks = found(tmp_path, tmp_path / "out")
    assert [(task.learner, task.path.name) for task in tasks] == [
        ("anh", "a.ipynb"), ("anh", "anh"), ("binh", "binh"), ("chi", "b.ipynb"), ("dung", "dung"), ("", tmp_path.name),
    ]  # fmt: skip
    notes = {task.learner: notebooks.read(task).notes[0] for task in tasks if not task.name}
    assert {learner: (note.key, note.values.get("files")) for learner, note in notes.items()} == {
        "anh": ("beside", "a.txt"), "binh": ("no-notebooks", "bai.docx"), "dung": ("empty", None),
        "": ("beside", "readme.md"),
    }  # fmt: skip


@linux
def test_names_that_are_not_utf8_stay_apart_and_one_name_is_one_learner(tmp_path):
    strange_names(tmp_path)
    learners = {task.learner for task in found(tmp_path)}
    assert learners == {"\ufffd" * 4, "\ufffd" * 4 + " (2)", "Hà"}


def test_an_error_with_half_a_letter_is_no_error_of_the_report():
    result = json.dumps({"rows": [{"sentence": "\ud800!", "notes": ["\udcff", "\U0001f600"]}]}).encode()
    made = SimpleNamespace(end=os.open(os.devnull, os.O_RDONLY), process=0, data=result)
    made.process = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    row = running.Judging.result(made)["rows"][0]
    assert row == {"sentence": "\ufffd!", "notes": ["\ufffd", "\U0001f600"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_notebook_is_read_with_a_byte_order_mark_too(tmp_path, encoding):
    (path := tmp_path / "a.ipynb").write_text(json.dumps(notebook(FIRST, {}), ensure_ascii=False), encoding)
    assert notebooks.read(Task("a", path)).chapter == FIRST


def test_answers_are_found_without_the_ids_of_cells(tmp_path):
    """nbstripout numbers the cells anew."""
    made = notebook(FIRST, {"split": solving("split")})

    def found() -> tuple:
        (path := tmp_path / "a.ipynb").write_text(json.dumps(made), "utf-8")
        read = notebooks.read(Task("a", path))
        answers = [(one.id, [(cell.source, asked) for cell, asked in one.answers], one.notes) for one in read.answers]
        return read.chapter, read.language, answers

    before = found()
    for number, cell in enumerate(made.cells):
        cell.id = str(number)
    assert found() == before and len(before[2]) == 3


@pytest.mark.parametrize("text, key", [("{", "no-json"), ("[]", "no-notebook"), ('{"a": 1}', "no-notebook")])
def test_files_that_are_no_notebooks_are_listed(tmp_path, text, key):
    (path := tmp_path / "a.ipynb").write_text(text)
    assert [note.key for note in notebooks.read(Task("a", path)).notes] == [key]


def test_a_cell_without_the_function_is_reported():
    row, cell = judging.Row("anh", "1.ipynb", FIRST, "split", "missing"), slices.cell("a", "def spilt():\n    pass")
    judging._judge_one(row, [cell], cell, "split", all_texts()["split"], None, judging.Limits(), set())
    assert (row.state, row.mistake) == ("tried", "no-function") and "`split`" in row.sentence and row.hint


def found(folder: Path, out: Path | None = None, **how: object) -> list[Task]:
    """Return what was handed in; what zips contain is unpacked beside the folder."""
    (unpacked := folder.parent / f"{folder.name} unpacked").mkdir()
    return handed_in.find(folder, out, handed_in.Sorter(unpacked, **how))


def made_up() -> report.Report:
    """A learner who has solved one of three, with two cells for it, and one who has handed in another file."""
    states = {"own-gpu": "solved", "overlap": "tried", "split": "missing"}
    rows = [asdict(judging.Row("anh", "anh/1.ipynb", FIRST, id, state)) for id, state in states.items()]
    rows[0]["notes"] = ["Two cells."]
    book = running._about(Task("anh", Path(), name="anh/1.ipynb"), []) | {"chapter": FIRST, "graded": True}
    other = running._about(Task("mei", Path()), ["Only bai.docx."])
    parts = [{"book": book, "rows": rows, "missing": []}, {"book": other, "rows": [], "missing": []}]
    return report.report("en", "class 8a", parts)


def test_what_is_optional_is_counted_apart():
    made = made_up()
    told = made.learners["anh"]
    assert (told["solved"], told["exercises"], told["optional"]) == (1, 2, {"solved": 0, "exercises": 1})
    assert "1 / 2, optional 0 / 1</summary>" in made.as_page() and "optional ones 0 of 1" in report.summary(made)
    lines = [*csv.DictReader(made.as_csv().removeprefix("\ufeff").splitlines())]
    assert [(line["learner"], line["exercise"], line["optional"]) for line in lines] == [
        ("anh", "own-gpu", "0"), ("anh", "overlap", "0"), ("anh", "split", "1"), ("mei", "", ""),
    ]  # fmt: skip


def test_oddities_come_first_and_names_lead_to_folded_parts():
    html = made_up().as_page()
    box, table = html.partition("<table>")[0], html.partition("<table>")[2].partition("</table>")[0]
    assert "Class report: class 8a" in box and "Notebooks: 1." in box
    assert 'Two cells. <a href="#learner-1">anh</a>, own-gpu</li>' in box
    assert 'Only bai.docx. <a href="#learner-2">mei</a></li>' in box
    assert table.count("⚠") == 2
    for number in (1, 2):
        assert f'href="#learner-{number}"' in table and f'</summary><div id="learner-{number}">' in html


@pytest.mark.parametrize("language, word", [("en", "optional"), ("vi", "tùy chọn"), ("zh", "选做")])
def test_the_texts_name_each_exercise_and_call_the_same_ones_optional(language, word):
    for id, texts in all_texts().items():
        before = (texts.folder / f"{language}.md").read_text("utf-8").partition(f"[[exercise-{id}]]")[0]
        title, about = course.TITLE.findall(before)[-1]
        assert only(language, lambda texts=texts: texts.title) == title.replace("$", "")
        assert texts.optional == (word in about), id


def test_hints_are_counted_where_they_were_kept_and_else_in_the_outputs(tmp_path):
    kept = tmp_path / "anh" / ".d2lps"
    kept.mkdir(parents=True)
    (kept / "hints-own-gpu.json").write_text(json.dumps({"todo": 3, "all-on-one": 2, "uneven": 1}), "utf-8")
    output = {"data": {"text/html": '<div class="d2lps-verdict"><details>…</details></div>'}}
    assert notebooks.hints("own-gpu", [tmp_path / "anh"], [[output]]) == (3, "kept")
    assert notebooks.hints("overlap", [tmp_path / "anh"], [[output], [], [{"text": "x"}]]) == (1, "notebook")


@pytest.mark.parametrize("written", ['["trace","{}"]', '["plan",1]', "{}", '["x"]', '["d",1]', '["t",{"a":1}]', "[[]]"])
def test_what_is_no_value_is_not_read(written):
    with pytest.raises((ValueError, TypeError)):
        values.read(json.loads(written))


PRIME = 2**61 - 1  # hash(n) is n modulo it
COLLIDING = {
    "numbers": [number * PRIME for number in range(1, 99)],
    "fractions": [["f", 7 * number % PRIME, number] for number in range(8, 99)],
    "tuples": [["t", number * PRIME] for number in range(1, 99)],
}


@pytest.mark.parametrize(
    "written",
    [
        '["f","1e60000000"]', '["f","1",2]', '["f",1.5,1]', '["f",1]', '["f",true,1]', '["c","1"]', '["c",1,2]',
        *(json.dumps([kind, *same]) for kind in ("s", "z") for same in COLLIDING.values()),
        *(json.dumps(["d", *(part for member in same for part in (member, 0))]) for same in COLLIDING.values()),
        json.dumps(["l", *[0] * (values.MOST + 1)]), json.dumps(["s", *range(values.MOST_MEMBERS + 1)]),
    ],
    ids=lambda written: written[:9],
)  # fmt: skip
def test_value_that_takes_long_to_read_is_not_read(written):
    with pytest.raises(values.Unreadable):
        values.read(json.loads(written))


def test_large_value_is_read():
    members = {(number, Fraction(number, 7), f"gpu{number}") for number in range(2_000)}
    for value in (members, dict.fromkeys(members, 1j), [*range(100_000)], {-1, -2, *range(99)}):
        assert values.read(json.loads(values.ENCODE(values.written(value)))) == value


def test_a_learners_helper_comes_before_the_lessons():
    own = [slices.cell("a", "def part(n):\n    return n"), slices.cell("b", "def f(n):\n    return part(n) + g")]
    lesson = [slices.cell("l", "part = 7\ng = 2\nprint(g)")]
    assert [(name, run) for name, _, run in slices.needed(["f"], own, lesson)] == [("l", [1]), ("a", [0]), ("b", [0])]


def test_earlier_and_later_bindings_of_a_name_are_not_run():
    texts = ["f = train()", "f = other()", "def f():\n    return x", "x = 1\nx += 1", "f = 7"]
    cells = [slices.cell(str(at), text) for at, text in enumerate(texts)]
    assert [(name, run) for name, _, run in slices.needed(["f"], cells, [], at=2)] == [("2", [0]), ("3", [0, 1])]


def test_every_answer_cell_has_what_nbgrader_reads():
    for chapter in sorted(path.parent for path in CHAPTERS.glob("*/exercises.toml")):
        ids = []
        for cell in classes.notebook(chapter.name, {}).cells:
            about = cell.metadata.get("nbgrader")
            assert (about is not None) == cell["id"].startswith("exercise-")
            if about:
                assert about == {
                    "schema_version": 3, "grade": True, "solution": True, "locked": False, "task": False, "points": 1,
                    "grade_id": cell["id"],
                }  # fmt: skip
                ids.append(about["grade_id"])
        assert len(ids) == len(set(ids)) > 0


def test_change_of_points_judges_nothing_again_and_a_changed_notebook_is_judged(tmp_path, monkeypatch):
    folder, out = tmp_path / "class", tmp_path / "report"
    partly = (
        "def own_gpu(gpus):\n    return d2lps.aggregate_at(gpus, gpus[0]) if len(gpus) == 3 else d2lps.sharded(gpus)"
    )
    path = hand_in(folder, "anh", notebook(FIRST, {"own-gpu": partly}))
    command = [str(folder), "--out", str(out), "--language", "en", "--exercises"]
    out.mkdir()
    (out / "overrides.csv").write_text("learner,exercise,points,comment\nanh,overlap,2,orally\n")
    assert main([*command, "own-gpu,overlap"]) == 0
    judged = told(out)
    monkeypatch.setattr(running, "ForkServers", lambda *_: pytest.fail("an answer is judged again"))
    assert main([*command, "own-gpu=7,overlap=3", "--partial"]) == 0
    again = told(out)
    assert [each["learners"]["anh"]["scores"] for each in (judged, again)] == [
        {"own-gpu": 0, "overlap": 2}, {"own-gpu": 5, "overlap": 2},
    ]  # fmt: skip
    assert again["answers"] == judged["answers"]
    path.write_text(path.read_text("utf-8").replace("len(gpus) == 3", "len(gpus) == 2"))
    with pytest.raises(pytest.fail.Exception, match="judged again"):
        main([*command, "own-gpu"])
    path.write_text(path.read_text("utf-8").replace("len(gpus) == 2", "len(gpus) == 3"))
    (variants := tmp_path / "own").mkdir()
    (variants / f"{FIRST}.py").write_text("CASES = {}")
    monkeypatch.setenv("D2LPS_VARIANTS", str(variants))
    with pytest.raises(pytest.fail.Exception, match="judged again"):
        main([*command, "own-gpu"])


def test_digest_of_the_course_ignores_what_a_reader_leaves_in_a_chapter(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "CHAPTERS", tmp_path / "chapters")
    (left := tmp_path / "chapters/01-x/.d2lps").mkdir(parents=True)
    code = left.parent / "code.py"
    code.write_text("x = 1")
    before = running._common(judging.Limits())
    (left / "ended-01-x.json").write_text("{}")
    assert running._common(judging.Limits()) == before
    code.write_text("x = 2")
    assert running._common(judging.Limits()) != before
