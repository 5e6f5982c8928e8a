"""The map of the course: every chapter once, below those that it needs, and a link that leads somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

from course.site.outputs import cell_html
from d2lps import course_map, speak
from d2lps.messages import LANGUAGES
from d2lps.view.drawing.course_map import rows_of, stops_of

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "chapters/toc.toml").read_text("utf-8"))["chapter"]
STOPS = stops_of(ENTRIES, {entry["slug"]: "" for entry in ENTRIES}, "en")


def test_no_chapter_needs_one_that_is_not_before_it():
    for i, stop in enumerate(STOPS):
        assert set(stop.needs) <= {before.number for before in STOPS[:i]}, stop.number


def test_each_chapter_stands_below_those_that_it_needs():
    row = {stop.number: i for i, row in enumerate(rows_of(STOPS)) for stop in row}
    assert set(row) == {stop.number for stop in STOPS}
    assert all(row[need] < row[stop.number] for stop in STOPS for need in stop.needs)


def test_a_chapter_without_needs_comes_after_the_one_before():
    entries = [{k: v for k, v in entry.items() if k != "needs"} for entry in ENTRIES[1:4]]
    stops = stops_of(entries, {entry["slug"]: "" for entry in entries}, "en")
    assert [stop.needs for stop in stops] == [(), ("01",), ("02",)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_link_leads_to_a_notebook_in_that_language(language, monkeypatch):
    monkeypatch.chdir(ROOT / "chapters/07-why-distribute")
    speak(language)
    try:
        shown = course_map("07")
        links = re.findall(r'<a href="([^"]+)"', shown._repr_html_())
    finally:
        speak("en")
    assert links == [f"../{slug}/{language}.ipynb" for slug in shown.chapters]
    assert all((ROOT / "chapters/07-why-distribute" / link).is_file() for link in links)
    output = {"output_type": "display_data", "data": {"text/html": f'<a href="{links[1]}">x</a>'}}
    assert f'href="{shown.chapters[1]}.html"' in cell_html([output], "map", "here", "", str)


def test_in_a_workspace_links_lead_to_the_notebooks_beside(tmp_path, monkeypatch):
    (tmp_path / "02-ring.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    assert '<a href="02-ring.ipynb"' in course_map()._repr_html_()


def test_boxes_do_not_overlap():
    places = re.findall(r"left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%", course_map()._repr_html_())
    boxes = [tuple(map(float, place)) for place in places]
    assert len(boxes) == len(STOPS)
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= 100 and y + h <= 100
        assert all(abs(x - a) >= w or abs(y - b) >= h for a, b, *_ in boxes[:i])
