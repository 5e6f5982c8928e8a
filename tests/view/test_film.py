"""The picture that moves by itself: at every moment it equals the still of that moment."""

import re
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.traces import PLANS, measured, predicted

from d2lps.notebook.grading.course import chapter_module
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import page as sheet
from d2lps.view.drawing.theme import STYLE

ROOT = Path(__file__).parents[2]
films = chapter_module(ROOT / "chapters" / "00-in-15-minutes", "film")
chromium, new_page = browsers.chromium, browsers.new_page

AT = "time => document.getAnimations().forEach(each => { each.pause(); each.currentTime = time; })"
# The place in pixels and the color of each visible tile, slot and bar.
SEEN = """() => [...document.querySelectorAll(
    '.d2-tile, .d2-fill [class*="d2-w"], .d2-fill .d2-done, .d2-fill .d2-new, .d2-tank rect, .d2-bars rect')]
  .filter(e => getComputedStyle(e).visibility === 'visible')
  .filter(e => !e.closest('.d2-bars') || new DOMMatrix(getComputedStyle(e.parentNode).transform).a > 0.1)
  .map(e => {
    const area = e.getBoundingClientRect(), look = getComputedStyle(e);
    return [look.fill === 'none' ? look.stroke : look.fill, area.x, area.y, area.width, area.height];
  })"""


def alone(scene: Scene, drawn: str, looks: str = "") -> str:
    _, _, wide, high = scene.view
    return sheet("", wide, high + 100, drawn, looks=STYLE + looks)


def covered(seen: list) -> dict[str, list[int]]:
    """Return the columns and rows of pixels covered by each color: pieces may be cut in other places."""
    found: dict[str, set] = {}
    for color, x, y, wide, high in seen:
        cells = {(i, k) for i in range(round(x), round(x + wide)) for k in range(round(y), round(y + high))}
        found[color] = found.get(color, set()) | cells
    return {color: cells for color, cells in found.items() if cells}


@pytest.mark.parametrize("trace", [predicted("pcie, sharded", 4), measured(PLANS["servers"])])
def test_each_moment_shows_its_state(new_page, tmp_path, trace):
    scene, clock = Scene(trace), films.Clock(trace.duration, trace.duration / 3)
    moving, still = new_page(), new_page()
    size = {"x": 0, "y": 0, "width": scene.view[2], "height": scene.view[3]}
    drawn = films.film(scene, clock, **size) + films.film_of_time(
        scene, clock, x=0, y=scene.view[3], width=500, height=100
    )
    (tmp_path / "film.svg").write_text(alone(scene, drawn, clock.style()), "utf-8")
    moving.goto((tmp_path / "film.svg").as_uri())
    for part in (0.1, 0.37, 0.66, 0.92):
        moving.evaluate(AT, 1000 * (films.WAITS + films.LASTS * part))
        (tmp_path / "still.svg").write_text(alone(scene, scene.svg(part * trace.duration, **size)), "utf-8")
        still.goto((tmp_path / "still.svg").as_uri())
        one, other = (covered(page.evaluate(SEEN)) for page in (moving, still))
        assert one.keys() == other.keys()
        for color, cells in other.items():
            assert len(cells ^ one[color]) <= 0.06 * len(cells) + 60, color
        head = moving.locator(".d2-head").evaluate("e => new DOMMatrix(getComputedStyle(e).transform).e")
        assert head == pytest.approx(1000 * part, abs=1)


def test_the_race_ends_with_its_times_and_begins_again(new_page):
    page = new_page(viewport={"width": 1300, "height": 600})
    page.goto((ROOT / "img" / "race.svg").as_uri())
    traces = chapter_module(ROOT / "chapters" / "00-in-15-minutes", "figures").opening().values()
    ends = page.locator(".d2-still > g > text[font-weight='700']")
    assert ends.all_text_contents() == ["96 ms", "32 ms", "24 ms"]
    for now in (10, 28, 70, 100):
        page.evaluate(AT, 1000 * (films.WAITS + films.LASTS * now / 96))
        seen = ends.evaluate_all("all => all.map(e => getComputedStyle(e).visibility === 'visible')")
        assert seen == [trace.duration <= now / 1000 for trace in traces]
    whole = page.evaluate("document.getAnimations().map(e => e.effect.getTiming().duration)")
    assert {*whole} == {1000 * (films.WAITS + films.LASTS + films.STAYS)}


def test_reduced_motion_shows_one_moment_with_all_times(new_page):
    page = new_page(reduced_motion="reduce")
    page.goto((ROOT / "img" / "race.svg").as_uri())
    assert page.evaluate("document.getAnimations().length") == 0
    assert page.locator(".d2-still > g > text[font-weight='700']:visible").count() == 3
    assert page.locator(".d2-tile:visible").count() == 3 + 8 + 4  # in shards, those between the switches


def test_it_asks_for_nothing_and_is_small():
    svg = (ROOT / "img" / "race.svg").read_text("utf-8")
    assert len(svg.encode()) < 1_000_000 and "<script" not in svg
    assert set(re.findall(r"https?://[^\"' )]*", svg)) == {"http://www.w3.org/2000/svg"}
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.search(r'<img src="img/race.svg"[^>]* alt="[^"]{80,}"', readme.partition("```")[0])
