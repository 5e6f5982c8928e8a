"""File names identify learners, and each learner gets the earned points."""

import csv
import io
import json
import re
import zipfile
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest
from helpers.classes import notebook

from course.classes import gradebook, handed_in, judging, notebooks, report, running
from course.classes.__main__ import main
from course.classes.handed_in import Task
from d2lps import aggregate_at, sharded
from d2lps.messages import LANGUAGES, text_in
from d2lps.messages.marked import marked
from d2lps.notebook.grading import attempts
from d2lps.notebook.grading.course import ExerciseError, texts_of

FIRST, RING = "01-data-parallelism", "02-ring"
EMPTY = json.dumps({"cells": []})


def found(folder: Path, **how: object) -> list[Task]:
    (unpacked := folder.parent / "unpacked").mkdir()
    return handed_in.find(folder, None, handed_in.Sorter(unpacked, **how))


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(EMPTY)


def zipped(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, EMPTY)


def by_learner(tasks: list[Task]) -> dict[str, list[str]]:
    return {one.learner: [task.name for task in tasks if task.learner == one.learner and task.name] for one in tasks}


# ---- learners


def test_all_files_of_one_canvas_user_belong_to_one_learner(tmp_path):
    names = ["nguyenlan_LATE_4711_8801_ring.ipynb", "nguyenlan_4711_8802_ring-1.ipynb", "limei_52_9_1_x.ipynb"]
    put(tmp_path / "class", *names)
    zipped(tmp_path / "class" / "nguyenlan_4711_8803_more.zip", "a/b.ipynb", "a/c.txt", "__MACOSX/a/._b.ipynb")
    tasks = found(tmp_path / "class")
    assert by_learner(tasks) == {
        "limei_52_9_1_x": [names[2]],  # 9 is no number of a user and of a file
        "nguyenlan": [names[1], "nguyenlan_4711_8803_more.zip/a/b.ipynb", names[0]],
    }
    assert {task.late for task in tasks if task.name == names[0]} == {1}
    assert {task.id for task in tasks if task.learner == "nguyenlan"} == {"4711"}


def test_two_numbers_with_one_name_are_two_learners(tmp_path):
    put(tmp_path / "class", "an_11_70_a.ipynb", "an_12_71_a.ipynb", "mei_13_72_a.ipynb", "mei_13_73_a-1.ipynb")
    assert list(by_learner(found(tmp_path / "class"))) == ["an (11)", "an (12)", "mei"]


def test_moodle_folders_and_files_name_the_learner(tmp_path):
    folder = "Lan Nguyễn_123_assignsubmission_file_"
    put(tmp_path / "class", f"{folder}/a.ipynb", "Mei Li_9_assignsubmission_file_b.ipynb", "anh/c.ipynb", "d.ipynb")
    tasks = found(tmp_path / "class")
    learners = {task.learner: task.id for task in tasks}
    assert learners == {"Lan Nguyễn": "123", "Mei Li": "9", "anh": "", "d": ""}


def test_a_pattern_finds_names_in_paths(tmp_path):
    put(tmp_path / "class", "ring/s1_anh/a.ipynb", "ring/s2_mei/a.ipynb", "store/s1_anh/b.ipynb", "store/x/c.ipynb")
    pattern = gradebook.re.compile(r"[^/]+/(?P<id>s\d)_(?P<name>\w+)/.*")
    tasks = found(tmp_path / "class", names=pattern)
    assert by_learner(tasks) == {
        "anh": ["ring/s1_anh/a.ipynb", "store/s1_anh/b.ipynb"],
        "mei": ["ring/s2_mei/a.ipynb"],
        "store": ["store/x/c.ipynb"],
    }


@pytest.mark.parametrize("top", ["", "CS101 Lab 1/"])
@pytest.mark.parametrize("given", ["class", "class/Lab 1-99.zip"])
def test_zip_of_a_whole_class_is_many_learners(tmp_path, given, top):
    names = ["Lan Nguyễn_123_assignsubmission_file_/a.ipynb", "Mei Li_9_assignsubmission_file/b/c.ipynb"]
    names += ["minh_4711_8801_a.ipynb", "minh_LATE_4711_8802_b.ipynb", "__MACOSX/._x"]
    put(tmp_path / "class", "anh/d.ipynb")
    zipped(tmp_path / "class" / "Lab 1-99.zip", *(f"{top}{name}" for name in names))
    learners = {task.learner: task.id for task in found(tmp_path / given) if task.name}
    others = {"anh": ""} if given == "class" else {}
    assert learners == {"Lan Nguyễn": "123", "Mei Li": "9", "minh": "4711"} | others


def test_zip_with_folders_of_plain_names_is_a_class_if_it_is_given(tmp_path):
    zipped(tmp_path / "class.zip", "class/anh/1.ipynb", "class/mei/work/1.ipynb", "class/notes.txt")
    assert by_learner(found(tmp_path / "class.zip")) == {"anh": ["anh/1.ipynb"], "mei": ["mei/work/1.ipynb"], "": []}


def test_zip_of_one_learner_stays_that_learners(tmp_path):
    zipped(tmp_path / "class" / "anh.ZIP", "01/en.ipynb", "02/en.ipynb")
    zipped(tmp_path / "class" / "mei_4711_8801_work.zip", "lan_4712_8802_a.ipynb")
    assert {task.learner for task in found(tmp_path / "class")} == {"anh", "mei"}


def test_extensions_that_browsers_make_are_read(tmp_path):
    names = ["anh/01.ipynb.json", "anh/02.ipynb.txt", "anh/03.IPYNB", "mei.ipynb.json", "minh.IPYNB"]
    put(tmp_path / "class", *names)
    zipped(tmp_path / "class/lan.ZIP", "a.Ipynb", "b.ipynb.txt")
    assert by_learner(found(tmp_path / "class")) == {
        "anh": names[:3], "lan": ["lan.ZIP/a.Ipynb", "lan.ZIP/b.ipynb.txt"], "mei": names[3:4], "minh": names[4:],
    }  # fmt: skip


def test_names_of_brightspace_and_of_anonymous_canvas_are_one_learner_each(tmp_path):
    put(
        tmp_path / "class", "12345-67890 - Lan Nguyen - Nov 2, 2026 1159 PM/a.ipynb",
        "12345-67891 - Lan Nguyen - Nov 3, 2026 101 AM/a.ipynb",
        "12345-67890 - Mei-Li Wu - Nov 2, 2026 905 AM - b.ipynb",
        "anon_Ab3dE_8801_a.ipynb", "anon_Ab3dE_8802_b.ipynb", "LATE_anon_12345_8803_a.ipynb", "index.html",
    )  # fmt: skip
    tasks = found(tmp_path / "class")
    learners = {task.learner: task.id for task in tasks if task.name}
    assert learners == {"Lan Nguyen": "", "Mei-Li Wu": "", "anon_Ab3dE": "Ab3dE", "anon_12345": "12345"}
    assert {task.learner for task in tasks if task.late} == {"anon_12345"} and len([t for t in tasks if t.name]) == 6


def test_text_beside_a_notebook_is_no_work_that_is_not_graded(tmp_path):
    put(tmp_path / "class", "Lan_1_assignsubmission_file/a.ipynb", "Lan_1_assignsubmission_onlinetext/onlinetext.html",
        "Mei_2_assignsubmission_onlinetext/onlinetext.html", "minh_31_81_a.ipynb", "minh_31_82_essay.docx")  # fmt: skip
    (tmp_path / "class/Anh_3_assignsubmission_file").mkdir()
    books = [(task.learner, notebooks.read(task)) for task in found(tmp_path / "class") if not task.name]
    assert {name: [note.key for note in book.notes] for name, book in books} == {
        "Lan": ["beside"], "Mei": ["no-notebooks"], "minh": ["beside"], "Anh": ["empty"],
    }  # fmt: skip
    harmless = {name for name, book in books if all(note.key in notebooks.HARMLESS for note in book.notes)}
    assert harmless == {"Lan", "minh", "Anh"}


WORKSHEET = """Identifier,Full name,Email address,Status,Grade,"Last modified (submission)"
Participant 1,early,e@x.org,Submitted,,"Tuesday, 1 December 2026, 10:59 PM"
Participant 2,in-time,i@x.org,Submitted,,"Tuesday, 1 December 2026, 11:59 PM"
Participant 3,first,f@x.org,Submitted,,"Wednesday, 2 December 2026, 12:05 AM"
Participant 4,second,s@x.org,Submitted,,"Thursday, 3 December 2026, 12:05 AM"
Participant 5,nothing,n@x.org,No submission,,-
"""
SHORT = (
    "learner;time\nearly;2026-12-01T22:59\nin-time;2026-12-01 23:59\nfirst;2026-12-02T00:05\nsecond;2026-12-03T00:05\n"
)


@pytest.mark.parametrize("table", [WORKSHEET, SHORT])
def test_day_that_has_begun_is_a_day_late_by_the_given_times(tmp_path, table):
    names = ["early", "in-time", "first", "second", "nothing"]
    put(tmp_path / "class", *(f"{name}_{number}_assignsubmission_file/a.ipynb" for number, name in enumerate(names, 1)))
    (tmp_path / "times.csv").write_text(table)
    times = gradebook.HandInTimes.read(tmp_path / "times.csv")
    tasks = found(tmp_path / "class", due=datetime(2026, 12, 1, 23, 59), handed_in=times.of_learner)
    late = {task.learner: task.late for task in tasks}
    assert late == {"early": 0, "in-time": 0, "first": 1, "second": 2, "nothing": None}


def test_nobody_is_late_by_the_time_of_a_file(tmp_path):
    put(tmp_path / "class", "a_1_assignsubmission_file/a.ipynb", "b/a.ipynb", "c.ipynb")
    *tasks, note = found(tmp_path / "class", due=datetime(2020, 1, 1))
    assert {task.late for task in tasks} == {None} and (note.learner, note.note.key) == ("", "no-times")


@pytest.mark.parametrize(
    "table, reason",
    [("learner,when\nan,2026-12-01\n", "no-time-column"), ("learner,time\nan,1.12.26\n", "no-time"), ("", "no-roster")],
)
def test_hand_in_times_that_cannot_be_read_are_refused(tmp_path, table, reason):
    (tmp_path / "times.csv").write_text(table)
    with pytest.raises(gradebook.GradebookError) as error:
        gradebook.HandInTimes.read(tmp_path / "times.csv")
    assert error.value.reason == reason


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no more", None])
def test_a_zip_that_cannot_be_unpacked_has_a_note(tmp_path, data):
    zipped(path := tmp_path / "class" / "anh.zip", "a.ipynb")
    if data is None:
        path.write_bytes(path.read_bytes().replace(b'{"cells": []}', b'{"cells": {}}'))  # other bytes than its checksum
    else:
        path.write_bytes(data)
    assert [(task.learner, task.note.key) for task in found(tmp_path / "class")] == [("anh", "zip")]


def test_a_zip_that_would_fill_the_disk_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "LARGEST", 30)
    zipped(tmp_path / "class" / "anh.zip", "a.ipynb", "b.ipynb", "c.ipynb")
    zipped(tmp_path / "class" / "mei.zip", "../../a.ipynb", "/b.ipynb")
    tasks = found(tmp_path / "class")
    assert [(task.learner, task.name, task.note and task.note.key) for task in tasks] == [
        ("anh", "", "huge"), ("mei", "mei.zip/a.ipynb", None), ("mei", "mei.zip/b.ipynb", None),
    ]  # fmt: skip
    assert not [*tmp_path.glob("*.ipynb")]


def test_links_that_leave_a_learners_folder_are_not_read(tmp_path):
    put(tmp_path / "class", "good/a.ipynb", "links/own.ipynb", "good/.d2lps/hints-own-gpu.json")
    (tmp_path / "class/good/.d2lps/hints-own-gpu.json").write_text('{"uneven": 7}')
    for link, to in {"peer": "good", "links/a.ipynb": "../good/a.ipynb", "links/b.ipynb": "own.ipynb",
                     "top.ipynb": "good/a.ipynb", "links/c.ipynb": "/etc/passwd", "links/d": "../good",
                     "links/.d2lps": "../good/.d2lps", "gone.ipynb": "nothing",
                     "links/e.ipynb": "f.ipynb", "links/f.ipynb": "e.ipynb", "circle": "circle"}.items():  # fmt: skip
        (tmp_path / "class" / link).symlink_to(to)
    tasks = found(tmp_path / "class")
    read = {task.name: [note.key for note in notebooks.read(task).notes] for task in tasks if not task.note}
    circle = dict.fromkeys(["links/e.ipynb", "links/f.ipynb"], ["unreadable"])
    assert read == dict.fromkeys(["good/a.ipynb", "links/own.ipynb", "links/b.ipynb"], ["no-chapter"]) | circle
    linked = {task.note.values["file"] for task in tasks if task.note and task.note.key == "link"}
    assert linked == {"peer", "links/a.ipynb", "links/c.ipynb", "links/d", "top.ipynb", "gone.ipynb", "circle"}
    assert notebooks.hints("own-gpu", [tmp_path / "class/links"], []) == (0, "notebook")
    assert notebooks.hints("own-gpu", [tmp_path / "class/good"], []) == (7, "kept")


def test_a_notebook_with_huge_outputs_is_graded_without_them(tmp_path, monkeypatch):
    book = notebook(FIRST, {"own-gpu": "own_gpu = print"})
    cell = next(cell for cell in book.cells if cell["id"] == "exercise-own-gpu")
    shown = {
        "output_type": "display_data",
        "data": {"text/html": '<div class="d2lps-verdict"><details>'},
        "metadata": {},
    }
    cell.outputs = [shown, {"output_type": "stream", "name": "stdout", "text": "x" * (67 << 20)}]
    (path := tmp_path / "a.ipynb").write_text(json.dumps(book))
    read = notebooks.read(Task("anh", path))
    assert [note.key for note in read.notes] == ["large"] and read.notes[0].values == {"size": "67 MiB"}
    attempt = next(attempt for attempt in read.answers if attempt.id == "own-gpu")
    assert len(attempt.answers) == 1 and attempt.hints == 0


def test_brackets_that_would_fill_the_memory_are_no_notebook(tmp_path):
    (path := tmp_path / "a.ipynb").write_bytes(b"[" + b"[]," * (12 << 20) + b"1]")
    assert [note.key for note in notebooks.read(Task("anh", path)).notes] == ["huge"]


# ---- points


def results_of(answers: dict[str, dict[str, str]], late: dict[str, int] | None = None, **more: str) -> list[dict]:
    """Return the results for learner/notebook → exercise → state, with more about each answer."""
    results = []
    for place, states in answers.items():
        learner, _, name = place.partition("/")
        about = running._about(Task(learner, Path(), name=place if name else "", late=(late or {}).get(place, 0)), [])
        chapter = next((texts_of(id).folder.name for id in states), FIRST)
        rows = [asdict(judging.Row(learner, place, chapter, id, state, **more)) for id, state in states.items()]
        results.append({"book": about | {"graded": True, "chapter": chapter}, "rows": rows, "missing": []})
    return results


def graded(answers: dict[str, dict[str, str]], late: dict[str, int] | None = None, **of: object) -> report.Report:
    return report.report("en", "class", results_of(answers, late), **of)


def lines(written: str) -> list[list[str]]:
    return [*csv.reader(written.removeprefix("\ufeff").splitlines())]


def test_each_learner_has_a_line_and_each_exercise_its_points():
    made = graded(
        {
            "anh/1": {"own-gpu": "solved", "overlap": "tried", "split": "solved"},
            "mei/1": {"own-gpu": "stopped"},
            "minh": {},
        },
        marking=gradebook.Marking(gradebook.points("own-gpu=2, overlap=0.5,split")),
    )
    assert lines(gradebook.as_csv(made)) == [
        ["Student", "ID", "Section", "own-gpu", "overlap", "split", "Total", "Days late"],
        ["anh", "", "", "2", "0", "1", "3", "0"],
        ["mei", "", "", "0", "", "", "0", "0"],
        ["minh", "", "", "", "", "", "", "0"],
    ]


def test_required_exercises_have_one_point_each_by_default():
    made = graded({"anh/1": {"own-gpu": "solved", "overlap": "tried", "split": "solved"}})
    assert lines(gradebook.as_csv(made))[0][3:6] == ["own-gpu", "overlap", "Total"]
    assert lines(gradebook.as_csv(made))[1][3:6] == ["1", "0", "1"]


def test_of_equal_answers_the_one_in_time_counts():
    states = {"anh/1": {"own-gpu": "solved"}, "anh/2": {"own-gpu": "solved"}, "mei/1": {"own-gpu": "tried"}}
    late = {"anh/2": 3, "mei/2": 2}
    made = graded(states | {"mei/2": {"own-gpu": "solved"}}, late)
    assert [(line[0], line[-1]) for line in lines(gradebook.as_csv(made))[1:]] == [("anh", "0"), ("mei", "2")]


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,HW 1 (7)
    Points Possible,,,,,5
"Nguyen, Lan",4711,s1,lan@x.edu,A,
"Li, Mei",52,s2,m2,A,3
"Student, Test",9,,,A,
"""
MOODLE = """\ufeffIdentifier,Full name,Email address
Participant 4711,Lan Nguyen,lan@x.edu
Participant 52,Mei Li,mei@x.edu
"""
PLAIN = "First name;Last name;ID number\nLan;Nguyen;4711\nMei;Li;52\n"


@pytest.mark.parametrize("table, width", [(CANVAS, 5), (MOODLE, 3), (PLAIN, 3)], ids=["canvas", "moodle", "plain"])
@pytest.mark.parametrize("learner, id", [("nguyenlan", "4711"), ("x", "4711"), ("Lan Nguyen", ""), ("Nguyen_Lan", "")])
def test_a_learner_is_found_in_the_roster(tmp_path, table, width, learner, id):
    (path := tmp_path / "roster.csv").write_text(table, "utf-8")
    roster = gradebook.Roster.read(path)
    made = graded({f"{learner}/1": {"own-gpu": "solved"}, "stranger/1": {"own-gpu": "tried"}})
    made.books[0]["id"] = id
    first, lan, mei, *others = lines(gradebook.as_csv(made, roster))
    assert first[:width] == roster.columns and len(others) == 1 and "stranger" in others[0]
    assert lan[width] == "1" and mei[width:] == [""] * len(mei[width:]) and len(mei) == len(first)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b'a,b\n"c'])
def test_a_file_that_is_no_roster_is_named(tmp_path, data):
    (path := tmp_path / "roster.csv").write_bytes(data)
    with pytest.raises(gradebook.GradebookError, match="roster.csv is not a roster"):
        gradebook.Roster.read(path)


@pytest.mark.parametrize("argument", ["own-gpu=x", "own-gpu=-1", "own-gpu=nan", "own-gpu=1=2"])
def test_points_that_are_no_number_are_refused(argument):
    with pytest.raises(gradebook.GradebookError, match=r"own-gpu=.* gives no points"):
        gradebook.points(argument)


def test_points_for_an_unknown_exercise_are_refused():
    with pytest.raises(ExerciseError, match="'own-cpu'"):
        gradebook.points("own-gpu=2,own-cpu=1")


def test_a_spreadsheet_does_not_compute_a_learners_name():
    assert lines(gradebook.as_csv(graded({"=HYPERLINK(1)/1": {"own-gpu": "tried"}})))[1][0] == "'=HYPERLINK(1)"


def test_stray_notebook_changes_no_points_and_is_named():
    answers = {f"{name}/1": {"own-gpu": "solved", "overlap": "tried"} for name in ("anh", "binh", "chi")}
    made = graded(answers | {"dung/2": {"both-ways": "solved"}})
    assert [*made.points] == ["own-gpu", "overlap"] and lines(gradebook.as_csv(made))[-1][3:6] == ["", "", ""]
    assert made.learners["dung"]["notes"][0]["note"] == "This is chapter 02, which does not count here."
    assert not made.learners["anh"]["notes"] and "Chapters that count: 01," in report.summary(made)
    assert "Chapters that count: 01," in made.as_page()


def test_chapters_of_half_the_class_count_or_else_those_of_most():
    one, two = {"own-gpu": "solved"}, {"both-ways": "solved"}
    assert {*graded({"anh/1": one, "anh/2": two, "mei/1": one}).points} >= {"own-gpu", "both-ways"}
    alone = graded({"anh/1": one, "mei/2": two, "minh/5": {"buckets": "tried"}})
    assert {texts_of(id).folder.name for id in alone.points} == {FIRST, RING, "05-asynchrony"} and not alone.remarks


def test_chosen_chapters_count_whatever_was_handed_in():
    made = graded({"anh/1": {"own-gpu": "solved"}}, marking=gradebook.Marking(gradebook.required(["02", " 01"])))
    assert {texts_of(id).folder.name for id in made.points} == {FIRST, RING}
    with pytest.raises(ExerciseError, match="no chapter '99'; there are 01, 02"):
        gradebook.required(["01", "99"])


def test_notebook_of_a_chapter_that_was_not_chosen_is_not_graded_as_another(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text('chapters = ["01"]')
    monkeypatch.setenv("D2LPS_TOC", str(tmp_path / "mine.toml"))
    (path := tmp_path / "a.ipynb").write_text(json.dumps(notebook(RING, {})))
    read = notebooks.read(Task("anh", path))
    assert (read.chapter, read.answers) == (RING, [])
    assert [(note.key, note.values) for note in read.notes] == [("other-chapter", {"chapter": "02"})]
    path.write_text(json.dumps(notebook(FIRST, {})))
    assert len(notebooks.read(Task("anh", path)).answers) == 3


def test_answer_that_only_calls_the_package_counts_as_chosen_and_its_learner_is_told():
    results = results_of(
        {"anh/1": {"own-gpu": "solved"}, "mei/1": {"own-gpu": "solved"}, "mei/2": {"own-gpu": "tried"}}
    )
    for result in results:
        result["rows"][0]["only_calls"] = True
    results += results_of({"mei/3": {"own-gpu": "solved"}})  # a later answer of her own
    half, whole = (report.report("en", "class", results, gradebook.Marking(only_calls=part)) for part in (0.5, 1.0))
    assert [half.learners[name]["scores"]["own-gpu"] for name in ("anh", "mei")] == [0.5, 1]
    assert [whole.learners[name]["scores"]["own-gpu"] for name in ("anh", "mei")] == [1, 1]
    anh, mei = report.feedbacks("en", "class", results, gradebook.Marking(only_calls=0.5)).values()
    assert "so it counts 50% of the points" in anh and "0.5 / 2" in anh and "50%" not in mei
    assert "50%" not in str(whole.rows)
    alone = [result for result in results if result["book"]["learner"] == "anh"]
    test = json.loads(gradebook.as_results(report.report("en", "", alone, gradebook.Marking(only_calls=0.5))))["tests"][
        0
    ]
    assert (test["score"], test["max_score"]) == (0.5, 1) and "50% of the points" in test["output"]


@pytest.mark.parametrize("part", ["half", "1.5", "-0.1", "nan"])
def test_part_of_the_points_that_is_none_is_refused(part, capsys):
    with pytest.raises(SystemExit):
        main(["class", "--only-calls", part])
    assert "is not a number from 0 to 1" in capsys.readouterr().err


MOODLE = "First name,Last name,Email address\nLan,Nguyen,lan@x.org\nNever,Came,never@x.org\n"
WITHOUT_WORK = "In the roster, but without work: "


@pytest.mark.parametrize(
    "table, never, stranger",
    [
        (MOODLE, "Never Came", ["minh", "", "", "Participant 4711"]),
        ('Student,ID,Section\n"Nguyen, Lan",1,A\n"Came, Never",2,A\n', "Came, Never", ["minh", "4711", ""]),
        (
            "Identifier,Full name,Grade\nParticipant 1,Lan Nguyen,\nParticipant 2,Never Came,\n", "Never Came",
            ["Participant 4711", "minh", ""],
        ),
    ],
)  # fmt: skip
def test_learners_beyond_the_roster_keep_their_ids_and_those_without_work_are_named(tmp_path, table, never, stranger):
    (tmp_path / "roster.csv").write_text(table)
    roster = gradebook.Roster.read(tmp_path / "roster.csv")
    results = results_of({"Lan Nguyen/1": {"own-gpu": "solved"}, "minh/1": {"own-gpu": "tried"}})
    results[1]["book"]["id"] = "4711"
    made = report.report("en", "class", results, roster=roster)
    first, lan, _, minh = lines(gradebook.as_csv(made, roster))
    assert minh[: len(stranger)] == stranger and minh[-4] == "0" and first[-4:] == ["own-gpu", "overlap", *first[-2:]]
    assert len({len(first), len(lan), len(minh)}) == 1 and lan[-4] == "1"
    for told in (made.as_page(), report.summary(made), made.as_json()):
        assert f"{WITHOUT_WORK}{never}." in told


def test_what_to_look_at_begins_with_copies_and_ends_with_who_is_late():
    answers = {f"{name}/1": {"own-gpu": "solved"} for name in ("anh", "binh", "chi", "dung")}
    results = results_of(answers, {"anh/1": 2, "chi/1": 2, "dung/1": 1})
    for result in results:
        result["rows"][0]["look"] = ["odd"]
        result["rows"][0]["same"] = "x" * (result["book"]["learner"] != "chi")
    page = report.report("en", "class", results).as_page()
    items = re.findall(r"<li>(.*?)</li>", page.partition("<h2>")[0])
    assert [re.sub("<[^>]*>", "", item) for item in items] == [
        "own-gpu: apart from names, these answers are equal. anh; binh; dung",
        "odd anh, own-gpu; binh, own-gpu; chi, own-gpu; dung, own-gpu",
        "Handed in late; days: 1. dung, dung/1",
        "Handed in late; days: 2. anh, anh/1; chi, chi/1",
    ]


# ---- points that a teacher chooses


def in_cases(state: str, *right: bool) -> list[dict]:
    results = results_of({"anh/1": {"own-gpu": state, "overlap": "solved"}})
    results[0]["rows"][0]["cases"] = {f"n = {n}": met for n, met in enumerate(right, 1)}
    return results


def test_share_of_the_cases_counts_if_the_teacher_says_so_and_the_cases_are_shown_in_any_case():
    results = in_cases("tried", True, True, False, True)
    whole, partial = (report.report("en", "", results, gradebook.Marking(partial=part)) for part in (False, True))
    assert [made.learners["anh"]["scores"]["own-gpu"] for made in (whole, partial)] == [0, 0.75]
    said = "Right in 3 of 4 cases: ✓ n = 1; ✓ n = 2; ✗ n = 3; ✓ n = 4"
    (learner,) = report.feedbacks("en", "", results, gradebook.Marking(partial=True)).values()
    assert said in learner and "Points: 0.75 / 1" in learner and "1.75 / 2" in learner and said in whole.as_page()
    results[0]["rows"][0]["only_calls"] = True
    made = report.report("en", "", results, gradebook.Marking(partial=True, only_calls=0.5))
    assert made.learners["anh"]["scores"]["own-gpu"] == 0.375


def test_cases_after_a_failure_are_judged_if_they_are_asked_for():
    def partly(gpus):
        return sharded(gpus) if len(gpus) != 3 else aggregate_at(gpus, gpus[0])

    texts, met = texts_of("own-gpu"), {}
    whole, first = attempts.judged(texts, partly, 100, met=met), attempts.judged(texts, partly, 100)
    assert (whole.sentence, whole.mistake, whole.hint) == (first.sentence, first.mistake, first.hint)
    wrong = {"n = 3", "n = 3, gpu4, gpu0, gpu7"}
    assert met == {case.label: case.label not in wrong for case in texts.exercise().cases}
    met = {}
    attempts.judged(texts, lambda gpus: None, 100, met=met)
    assert len(met) == 7 and not any(met.values())
    met = {}
    assert attempts.judged(texts, sharded, 100, met=met).passed and all(met.values())


def test_verdict_is_that_of_the_first_failure_although_a_later_case_never_ends():
    def hangs(gpus):
        while len(gpus) == 2:
            pass
        return aggregate_at(gpus, gpus[0]) if len(gpus) == 4 else sharded(gpus)

    met = {}
    verdict = attempts.judged(texts_of("own-gpu"), hangs, 1, met=met)
    assert verdict.mistake == "all-on-one" and len(met) == 7 and not any(met.values())


def test_of_two_answers_the_one_with_more_points_counts():
    (first,), (second,) = in_cases("tried", True, False, False), in_cases("stopped", True, True, False)
    second["book"]["notebook"] = second["rows"][0]["notebook"] = "anh/2"
    best = report.report("en", "", [first, second], gradebook.Marking(partial=True)).best["anh"]
    assert best["own-gpu"]["notebook"] == "anh/2"
    assert report.report("en", "", [first, second]).best["anh"]["own-gpu"]["notebook"] == "anh/1"


def entered(tmp_path: Path, *rows: str, columns: str = "learner,exercise,points,comment", **more: object) -> tuple:
    (path := tmp_path / "overrides.csv").write_text("\n".join([columns, *rows]) + "\n", "utf-8")
    tasks = [Task("anh", Path(), name="anh/1", id="4711"), Task("mei", Path(), name="mei/1")]
    return gradebook.overrides(path, tasks, **more)


def test_points_entered_by_hand_replace_those_of_the_judge_and_are_marked(tmp_path):
    given, without = entered(
        tmp_path, "anh,own-gpu,0.5,said so orally", "4711,essay,3,", "mei,both-ways,1,", paper=["essay"]
    )
    assert given == {
        ("anh", "own-gpu"): (0.5, "said so orally"), ("anh", "essay"): (3, ""), ("mei", "both-ways"): (1, ""),
    } and not without  # fmt: skip
    marking = gradebook.Marking(paper={"essay": 4.0}, given=given)
    made = report.report("en", "", in_cases("tried", False) + results_of({"mei/1": {"own-gpu": "solved"}}), marking)
    first, anh, mei = lines(gradebook.as_csv(made))
    assert first[3:] == ["own-gpu", "overlap", "essay", "Total", "Days late", "By hand"]
    assert anh[3:] == ["0.5", "1", "3", "4.5", "0", "own-gpu: said so orally; essay"]
    assert mei[3:] == ["1", "", "", "1", "0", "both-ways"]
    assert "change nothing: both-ways." in report.summary(made)
    pages = report.feedbacks("en", "", in_cases("tried", False), marking)
    for page in (made.as_page(), *pages.values()):
        assert "Points: 0.5 / 1 · ✎ entered by hand: said so orally" in page and "Points: 3 / 4 · ✎" in page
    assert "✎ 0.5" in made.as_page().partition("<h2>Exercises")[0]


def test_somebody_of_the_roster_without_work_can_have_points_on_paper(tmp_path):
    (tmp_path / "roster.csv").write_text(MOODLE)
    roster = gradebook.Roster.read(tmp_path / "roster.csv")
    given, (task,) = entered(tmp_path, "never@x.org,essay,2,", "Never Came,essay,3,", paper=["essay"], roster=roster)
    assert given == {("Never Came", "essay"): (3, "")} and task.learner == "Never Came"
    book = running._about(task, [note.key for note in notebooks.read(task).notes])
    results = [{"book": book, "rows": [], "missing": []}]
    made = report.report("en", "", results, gradebook.Marking({}, {"essay": 4.0}, given=given), roster)
    assert lines(gradebook.as_csv(made, roster))[2] == ["Never", "Came", "never@x.org", "3", "3", "", "essay"]


@pytest.mark.parametrize(
    "row, sentence",
    [
        ("minh,own-gpu,1,", "no learner 'minh'"),
        ("anh,own-cpu,1,", "no exercise 'own-cpu'; name one on paper with `--paper own-cpu=4`"),
        ("anh,own-gpu,half,", "'half' is no number of points for own-gpu of anh"),
        ("anh,own-gpu,-1,", "'-1' is no number of points"),
        ("anh,own-gpu,nan,", "'nan' is no number of points"),
    ],
)
def test_points_entered_wrongly_are_refused_with_the_cell(tmp_path, row, sentence):
    with pytest.raises(gradebook.GradebookError, match=re.escape(sentence)):
        entered(tmp_path, row)


def test_points_entered_without_their_column_are_refused(tmp_path):
    with pytest.raises(gradebook.GradebookError, match="has no column points"):
        entered(tmp_path, "anh,own-gpu,1", columns="learner,exercise,mark")


def test_exercise_of_the_course_is_none_on_paper():
    with pytest.raises(gradebook.GradebookError, match="own-gpu is an exercise of the course"):
        gradebook.points("own-gpu=3", paper=True)


# ---- feedback


def test_feedback_goes_back_under_the_names_of_the_download(tmp_path):
    names = ["Lan_1_assignsubmission_onlinetext_/a.html", "Lan_1_assignsubmission_file_/a.ipynb", "anh/a.ipynb",
             "Mei Li_9_assignsubmission_file_b.ipynb", "minh_LATE_47_88_r_1.ipynb", "minh_47_89_s.ipynb",
             "12-34 - Chi Vu - Nov 2, 2026 1159 PM/a.ipynb", "anon_Ab3dE_81_a.zip"]  # fmt: skip
    put(tmp_path / "class", *names)
    results = [{"book": running._about(task, []), "rows": [], "missing": []} for task in found(tmp_path / "class")]
    pages = report.feedbacks("en", "class", results)
    with zipfile.ZipFile(io.BytesIO(report.packed(results, pages.values()))) as archive:
        packed = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {name: re.search("<h1>Feedback for (.*?)</h1>", page)[1] for name, page in packed.items()} == {
        "Lan_1_assignsubmission_file_/feedback.html": "Lan", "anh/feedback.html": "anh",
        "Mei Li_9_assignsubmission_file_feedback.html": "Mei Li", "minh_47_89_feedback.html": "minh",
        "12-34 - Chi Vu - Nov 2, 2026 1159 PM/feedback.html": "Chi Vu", "anon_Ab3dE_81_feedback.html": "anon_Ab3dE",
    }  # fmt: skip


def test_feedback_has_the_learners_language_and_no_other_learner():
    sentence = marked([f"said in {language}" for language in LANGUAGES])
    results = []
    for learner, language in {"anh": "vi", "mei": "zh", "ANH": "", "a/b": "en"}.items():
        about = running._about(Task(learner, Path(), name=f"{learner}/1"), [])
        row = judging.Row(learner, f"{learner}/1", FIRST, "own-gpu", "tried", sentence=sentence, notes=["own note"])
        row.look = ["equal to another"]
        results.append({"book": about | {"language": language, "graded": True}, "rows": [asdict(row)], "missing": []})
    pages = report.feedbacks("en", "class", results)
    assert [*pages] == ["learners/anh.html", "learners/mei.html", "learners/ANH (2).html", "learners/a_b.html"]
    for page, (learner, language) in zip(pages.values(), {"anh": "vi", "mei": "zh", "ANH": "en"}.items(), strict=False):
        assert text_in(language, "grade.feedback", learner=learner) in page and f"said in {language}" in page
        assert text_in(language, "grade.state.tried") in page and "own note" in page and "equal to" not in page
        assert not [other for other in ("anh", "mei", "ANH") if other != learner and other in page]


def test_gradescope_gets_points_and_only_teachers_get_what_looks_odd():
    made = graded(
        {"me/1": {"own-gpu": "solved", "overlap": "tried"}}, marking=gradebook.Marking({"own-gpu": 2.0, "overlap": 3.0})
    )
    made.rows[0]["look"], made.rows[1]["sentence"], made.rows[1]["notes"] = ["copied"], "too slow", ["twice"]
    written = json.loads(gradebook.as_results(made))
    solved, tried, odd = written["tests"]
    scores = [(test["score"], test["max_score"]) for test in (solved, tried)]
    assert scores == [(2, 2), (0, 3)] and written["score"] == 2
    assert "too slow" in tried["output"] and "twice" in tried["output"]
    assert (odd["visibility"], "copied" in odd["output"], "copied" in solved["output"]) == ("hidden", True, False)
