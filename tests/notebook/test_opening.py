"""The opening of a chapter."""

import re

import pytest

import d2lps
from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, chapter_module

NUMBERS = [path.parent.name.partition("-")[0] for path in sorted(CHAPTERS.glob("*/lesson.py"))]


@pytest.mark.parametrize("chapter", NUMBERS)
def test_a_chapter_opens_with_a_race_whose_runs_differ(chapter):
    folder = next(CHAPTERS.glob(f"{chapter}-*"))
    traces = chapter_module(folder, "figures").opening()
    shown = repr(d2lps.opening(chapter))
    assert len(traces) > 1 and all(name in shown for name in traces)
    assert len({trace.duration for trace in traces.values()}) > 1


def test_a_chapter_that_is_not_there():
    with pytest.raises(ExerciseError, match="there is no chapter '99'; there are 00, 01, 02"):
        d2lps.opening("99")


def test_what_chapter_01_asks_is_told_neither_by_the_first_pages_nor_by_an_opening():
    root = CHAPTERS.parent
    files = [*root.glob("README*.md"), root / "img/race.svg", *CHAPTERS.glob("front/*.md")]
    texts = [file.read_text("utf-8") for file in files] + [repr(d2lps.opening(chapter)) for chapter in ("00", "01")]
    times = {time for text in texts for time in re.findall(r"\d[\d.]*[ \u00a0]ms", text)}
    assert "96 ms" in times and not times & {"60 ms", "80 ms", "15 ms"}
