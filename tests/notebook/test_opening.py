"""The opening of a chapter."""

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
