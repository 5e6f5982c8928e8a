"""Progress: an exercise that was passed stays passed, in the workspace, and nowhere else."""

import re
import threading

import pytest
from helpers import workspaces

from d2lps import aggregate_at, check_exercise, progress, sharded, speak
from d2lps.messages import LANGUAGES
from d2lps.notebook import kept
from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, tables


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
    "spoken, words", list(zip(LANGUAGES, ["1 of 51", "1 trong 51", "51 道练习，已通过 1 道"], strict=True))
)
def test_it_is_shown_per_chapter_in_every_language(spoken, words, place):
    speak(spoken)
    check_exercise("own-gpu", sharded)
    page = progress()
    assert words in repr(page) and words in page._repr_html_()
    lines = repr(page).splitlines()
    assert [line[:3].strip() for line in lines if "✓ own-gpu   – overlap   – split" in line] == ["01"]
    assert len(lines) == 1 + page._repr_html_().count("data-chapter=")
    counts = [(str(sum(map(bool, days.values()))), str(len(days))) for days in page.chapters.values()]
    assert re.findall(r"(\d) / (\d)<", page._repr_html_()) == counts and counts[:2] == [("1", "3"), ("0", "5")]
    assert page._repr_html_().count("✓") == 1 and "1/3" in page._repr_html_()


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0"])
def test_a_spoilt_file_counts_as_unsolved_and_raises_nothing(content, place):
    check_exercise("own-gpu", sharded)
    (place / "passed-own-gpu.json").write_text(content, "utf-8")
    assert passed() == []
    check_exercise("own-gpu", sharded)
    assert passed() == ["own-gpu"]


def test_a_notebook_that_was_run_to_its_end_is_marked_for_good(place):
    assert progress().ended == {}
    assert "06-faults" not in progress("02").ended and [*progress().ended] == ["02-ring"]
    (place / "ended-02-ring.json").write_text('{"day": "2026-01-31"}', "utf-8")
    shown = progress("02")
    assert shown.ended == {"02-ring": "2026-01-31"}
    assert [line for line in repr(shown).splitlines() if "✓" in line] == [
        line for line in repr(shown).splitlines() if line.startswith("02  ")
    ]
    html = shown._repr_html_()
    assert re.findall(r'data-chapter="([^"]+)" aria-current="page" class="d2-reached"', html) == ["02-ring"]
    assert html.count('class="d2-reached"') == 1 and '<span class="d2-mark">✓ to the end</span>' in html


def test_a_chapter_that_is_not_there_is_refused_and_nothing_is_stored(place):
    with pytest.raises(ExerciseError, match="there is no chapter '99'; there are 00-in-15-minutes, "):
        progress("99")
    assert progress().ended == {}


def test_hints_that_two_notebooks_get_at_once_are_all_counted(place):
    """Each holds the folder in its own way, as two kernels do."""

    def count() -> None:
        for _ in range(50):
            kept.count("hints", "own-gpu", "all-on-one")

    notebooks = [threading.Thread(target=count) for _ in range(4)]
    for notebook in notebooks:
        notebook.start()
    for notebook in notebooks:
        notebook.join()
    assert workspaces.contents(place) == {"hints-own-gpu.json": {"all-on-one": 200}}
