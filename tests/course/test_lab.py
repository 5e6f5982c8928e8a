"""JupyterLab as a reader uses it: open the chapter, run it, press play, see the run move."""

import json

import pytest
from helpers import notebooks
from helpers.lab import FIRST
from helpers.notebooks import IN_LAB

from course.book.workspace import show_contents

pytestmark = pytest.mark.timeout(400)  # a test waits for the notebook that another process runs


@pytest.fixture(scope="module")
def seen(runs):
    """``seen(chapter)``: what a reader sees of it."""
    return lambda chapter: notebooks.seen(runs, chapter)


@pytest.mark.parametrize("chapter", IN_LAB)
def test_a_reader_runs_the_chapter_and_plays_the_run_just_made(seen, chapter):
    shown = seen(chapter)
    assert FIRST in shown["address"]
    (style, clock), (later_style, later_clock) = shown["before"], shown["after"]
    assert later_style != style
    assert later_clock != clock


@pytest.mark.parametrize("chapter", IN_LAB)
def test_a_guess_after_all_cells_have_run_reveals_its_answer_at_once(seen, chapter):
    before, after = seen(chapter)["revealed"]
    assert (before > 0, before - after) == (True, 1)


@pytest.mark.parametrize("chapter", IN_LAB)
def test_it_opens_with_the_table_of_contents_and_axe_finds_nothing_grave_in_it(seen, chapter):
    shown = seen(chapter)
    assert shown["contents"] is True
    assert shown["grave"] == []


def test_an_arrangement_of_jupyterlab_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(tmp_path))
    show_contents("vi", "workspace/vi/01.ipynb")
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text("utf-8"))["metadata"]["id"] == "vi"
    file.write_text('{"data": {}, "metadata": {"id": "vi"}}', "utf-8")
    show_contents("vi", "workspace/vi/01.ipynb")
    assert [json.loads(each.read_text("utf-8"))["data"] for each in tmp_path.iterdir()] == [{}]
    show_contents("zh", "workspace/zh/01.ipynb")
    assert len(list(tmp_path.iterdir())) == 2
