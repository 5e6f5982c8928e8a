"""The opening of a chapter."""

import re

import pytest

import d2lps
from d2lps.messages import named
from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, chapter_module

NUMBERS = [path.parent.name.partition("-")[0] for path in sorted(CHAPTERS.glob("*/lesson.py"))]


@pytest.mark.parametrize("chapter", NUMBERS)
def test_a_chapter_opens_with_a_race_whose_runs_differ(chapter):
    folder = next(CHAPTERS.glob(f"{chapter}-*"))
    traces = chapter_module(folder, "figures").opening()
    shown = repr(d2lps.opening(chapter))
    assert len(traces) > 1 and all(named(name) in shown for name in traces)
    assert len({trace.duration for trace in traces.values()}) > 1


def test_a_chapter_that_is_not_there():
    with pytest.raises(ExerciseError, match="there is no chapter '99'; there are 00, 01, 02"):
        d2lps.opening("99")


def test_no_first_page_or_opening_answers_the_question_of_chapter_01():
    root = CHAPTERS.parent
    files = [*root.glob("README*.md"), root / "img/race.svg", *CHAPTERS.glob("front/*.md")]
    texts = [file.read_text("utf-8") for file in files] + [repr(d2lps.opening(chapter)) for chapter in ("00", "01")]
    times = {time for text in texts for time in re.findall(r"\d[\d.]*[ \u00a0]ms", text)}
    assert "96 ms" in times and not times & {"60 ms", "80 ms", "15 ms"}


def test_the_openings_of_09_and_10_do_not_answer_what_their_chapters_ask():
    pipelines, orders = (
        chapter_module(next(CHAPTERS.glob(f"{number}-*")), "figures").opening() for number in ("09", "10")
    )
    bubbles = {f"{trace.bubble(relative=each):.1%}" for trace in pipelines.values() for each in (False, True)}
    assert "75.0%" in bubbles and not bubbles & {"60.0%", "42.9%", "27.3%"}
    assert not any(peak for trace in pipelines.values() for peak in trace.plan.peak.values())
    best, pairs, alternating = (trace.duration for trace in orders.values())
    assert pairs / best < 1.5 and alternating / best < 3  # the answers are 2 and 4
