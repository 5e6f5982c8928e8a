"""The map of the course: every chapter once, below those that it needs, and a link that leads somewhere."""

import re
import tomllib
from pathlib import Path

import pytest
from helpers import browser as browsers

from course.site.outputs import cell_html
from d2lps import course_map, speak
from d2lps.messages import LANGUAGES
from d2lps.view.drawing.course_map import Mark, columns_of, opened_by, rows_of, stops_of
from d2lps.view.drawing.course_map import course_map as drawn

chromium, new_page = browsers.chromium, browsers.new_page

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


def sixteen() -> list[dict]:
    """The chapters of the book, and more of them."""

    def more(slug: str, *needs: str) -> dict:
        return {
            "slug": slug,
            "needs": [*needs],
            "minutes": 90,
            "title": {"en": f"Chapter {slug}"},
            "about": {"en": "x"},
        }

    entries = [entry for entry in ENTRIES if entry["slug"][:3] not in ("06b", "13-", "14-", "15-")]
    at = [entry["slug"][:2] for entry in entries].index("07")
    return [*entries[:at], more("06b-copies", "06"), *entries[at:-1], more("13-which", "12", "07"), *entries[-1:]]


@pytest.mark.parametrize("marks", [None, {}])
@pytest.mark.parametrize("entries", [ENTRIES, sixteen()], ids=["book", "sixteen"])
def test_boxes_do_not_overlap(entries, marks):
    stops = stops_of(entries, {}, "en", "{} minutes".format)
    places = re.findall(
        r"left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%", drawn(stops, "map", marks=marks)
    )
    boxes = [tuple(map(float, place)) for place in places]
    assert len(boxes) == len(stops)
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= 100 and y + h <= 100
        assert all(abs(x - a) >= w or abs(y - b) >= h for a, b, *_ in boxes[:i])


def test_an_only_child_stands_below_its_parent():
    columns = columns_of(rows_of(stops_of(sixteen(), {}, "en")))
    assert columns["06b"] == columns["06"] and columns["12"] == columns["09"]


def test_a_chapter_leads_to_the_next_one_and_to_those_that_need_it():
    stops = stops_of(sixteen(), {}, "en")
    leads = {stop.number: [other.number for other in opened_by(stops, stop.number)] for stop in stops}
    assert leads["06"] == ["06b"] and leads["06b"] == ["07"] and leads["07"] == ["08", "13"] and leads["a"] == []
    assert leads["02"] == ["03", "04", "08", "a"]


@pytest.mark.parametrize("width, listed", [(400, True), (1000, False)])
def test_a_narrow_map_is_a_list_of_the_same_links(new_page, width, listed):
    page = new_page(viewport={"width": width, "height": 900})
    stops = stops_of(sixteen(), {}, "en", "{} minutes".format)
    page.set_content(drawn(stops, "map", "06b", {"02-ring": Mark("✓ read · 1/5 solved", True)}))
    assert page.locator("svg").is_visible() != listed
    links = page.locator("a")
    assert links.count() == 16
    (takes,) = (stop.takes for stop in stops if stop.number == "02")
    ring = page.get_by_role("link", name=f"02 Ring synchronization {takes} ✓ read · 1/5 solved")
    mark, box = ring.locator(".d2-mark").bounding_box(), ring.bounding_box()
    assert box["x"] <= mark["x"] and mark["x"] + mark["width"] <= box["x"] + box["width"] + 0.5
    assert box["y"] <= mark["y"] and mark["y"] + mark["height"] <= box["y"] + box["height"] + 0.5
    assert ring.locator("span").first.bounding_box()["width"] > 100 or not listed
    assert page.locator("[aria-current=page]").inner_text().startswith("06b")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
