"""Progress: an exercise that was passed stays passed, in the workspace, and nowhere else."""

import re

import pytest
from helpers import workspaces

from d2lps import aggregate_at, check_exercise, progress, sharded, speak
from d2lps.messages import LANGUAGES
from d2lps.notebook.grading.course import CHAPTERS, tables


@pytest.fixture
def place(tmp_path, monkeypatch):
    return workspaces.enter(tmp_path / "course", monkeypatch)


def passed() -> list[str]:
    return [id for exercises in progress().chapters.values() for id, day in exercises.items() if day]


def test_only_a_right_answer_counts_and_it_counts_for_good(place):
    check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    assert passed() == [] and workspaces.contents(place) == {"hints-own-gpu.json": {"all-on-one": 1}}
    assert check_exercise("own-gpu", sharded).passed
    assert passed() == ["own-gpu"]
    (place / "passed-own-gpu.json").write_text('{"day": "2026-01-31"}', "utf-8")
    check_exercise("own-gpu", sharded)
    check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    assert progress().chapters["01-data-parallelism"]["own-gpu"] == "2026-01-31"


def test_chapters_without_exercises_are_not_listed():
    contents = tables(CHAPTERS / "toc.toml")["chapter"]
    assert [chapter["slug"] for chapter in contents if chapter["slug"] not in progress().chapters] == [
        "00-in-15-minutes",
        "a-corrections",
    ]


def test_the_notebooks_of_a_workspace_share_it(place, monkeypatch):
    check_exercise("own-gpu", sharded)
    (place.parent / "zh").mkdir()
    monkeypatch.chdir(place.parent / "zh")
    assert passed() == ["own-gpu"]


def test_a_program_that_is_no_notebook_writes_nothing(tmp_path, monkeypatch):
    workspaces.leave(tmp_path, monkeypatch)
    check_exercise("own-gpu", sharded)
    assert passed() == ["own-gpu"] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spoken, words", list(zip(LANGUAGES, ["1 of 45", "1 trong 45", "45 道练习，已通过 1 道"], strict=True))
)
def test_it_is_shown_per_chapter_in_every_language(spoken, words, place):
    speak(spoken)
    check_exercise("own-gpu", sharded)
    page = progress()
    assert words in repr(page) and words in page._repr_html_()
    assert [
        re.search(r"✓ own-gpu   – overlap   – split", line) is not None for line in repr(page).splitlines()[1:]
    ] == [True, *[False] * 12]
    assert re.findall(r"(\d) / (\d)<", page._repr_html_()) == [
        ("1", "3"),
        ("0", "5"),
        *[("0", "4")] * 3,
        *[("0", "3")] * 2,
        ("0", "2"),
        *[("0", "3")] * 2,
        ("0", "4"),
        ("0", "3"),
        ("0", "4"),
    ]
    assert page._repr_html_().count("✓") == 1


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0"])
def test_a_spoilt_file_is_not_passed_and_stops_nobody(content, place):
    check_exercise("own-gpu", sharded)
    (place / "passed-own-gpu.json").write_text(content, "utf-8")
    assert passed() == []
    check_exercise("own-gpu", sharded)
    assert passed() == ["own-gpu"]
