"""JupyterLab as a reader uses it: open the chapter, run it, press play, see the run move."""

import pytest
from helpers.lab import FIRST
from helpers.notebooks import IN_LAB


@pytest.mark.timeout(400)
@pytest.mark.parametrize("language, chapter", IN_LAB)
def test_a_reader_runs_the_chapter_and_plays_the_run_just_made(executed, language, chapter):
    seen = executed(chapter, language).seen
    assert FIRST in seen["address"]
    (style, clock), (later_style, later_clock) = seen["before"], seen["after"]
    assert later_style != style
    assert later_clock != clock
