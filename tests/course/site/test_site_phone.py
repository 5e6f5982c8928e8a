"""On a phone: no word of a picture is smaller than 9 pixels, and the controls of a player are low."""

import base64
import re
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.traces import predicted

from course.book.figures import figures
from course.book.library import Book
from course.site import prose
from course.site.build import THEME, code_colors
from course.site.outputs import shared_looks
from d2lps import draw, opening, watch
from d2lps.messages import text
from d2lps.notebook.explore import FirstRace
from d2lps.topology import machines

chromium, new_page = browsers.chromium, browsers.new_page

ROOT = Path(__file__).parents[3]
PHONE = {"width": 420, "height": 844}
LOOK = f"<style>{shared_looks()}{code_colors()}{(THEME / 'book.css').read_text('utf-8')}</style>"
HEAD = f'<!doctype html><html data-theme="light"><meta name="viewport" content="width=device-width">{LOOK}'
SIZES = """() => [...document.querySelectorAll("svg text, svg tspan")]
  .filter((e) => e.textContent.trim() && e.checkVisibility() && e.getClientRects().length && !e.querySelector("tspan"))
  .map((e) => { const m = (e.closest("text")).getScreenCTM();
    return [parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b), e.textContent]; })"""


def small(page) -> list[tuple[float, str]]:
    """Return the words of pictures that are smaller than 9 pixels."""
    sizes = page.evaluate(SIZES)
    assert sizes or page.locator(".d2-lanes").count()  # tasks that are too short for their letters have none
    return [(round(size, 1), words) for size, words in sizes if size < 8.99]


def body(inside: str) -> str:
    return f'{HEAD}<body class="chapter"><div class="columns"><main>{inside}</main></div>'


def beyond(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("slug", Book(ROOT).contents)
def test_the_words_of_the_opening_are_legible(new_page, slug):
    if not (Book(ROOT).folder(slug) / "figures.py").is_file():
        pytest.skip("the chapter opens with text")
    page = new_page(viewport=PHONE)
    first = opening(slug.partition("-")[0])
    html = first.page("")[0] if isinstance(first, FirstRace) else first._repr_html_()
    page.set_content(body(f'<div class="cell"><div class="shown">{html}</div></div>'))
    if isinstance(first, FirstRace):
        page.get_by_role("button", name=text("explore.bet")).click()
        page.locator(".d2-cards button").last.click()
    page.locator(".d2-player").wait_for()
    browsers.draw(page)
    assert small(page) == [] and beyond(page) <= 0
    high = page.locator(".d2-controls").bounding_box()["height"]
    assert high <= PHONE["height"] / 6


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(
    "name", ["pcie, sharded", "pcie, part of it", "memory, servers", "machines, ring", "pairs, tree"]
)
def test_the_words_of_players_and_drawings_are_legible(new_page, name, count):
    trace = predicted(name, count)
    page = new_page(viewport=PHONE)
    shown = [watch(trace), watch(trace, trace), draw(trace), draw(trace.topology)]
    page.set_content(
        body("".join(f'<div class="cell"><div class="shown">{each._repr_html_()}</div></div>' for each in shown))
    )
    page.locator(".d2-player").nth(1).wait_for()
    browsers.draw(page)
    assert small(page) == [] and beyond(page) <= 0


@pytest.mark.parametrize("hosts", [4, 8])
def test_the_words_of_a_topology_of_hosts_are_legible(new_page, hosts):
    page = new_page(viewport=PHONE)
    page.set_content(body(f'<div class="shown">{draw(machines(hosts, 2))._repr_html_()}</div>'))
    assert small(page) == [] and beyond(page) <= 0


@pytest.mark.parametrize("path", sorted((ROOT / "img").glob("*.svg")), ids=lambda path: path.stem)
def test_the_words_of_figures_are_legible(new_page, path):
    """An image has the media of its own width, so its words are measured in a window of that width."""
    svg = path.read_text("utf-8")
    width, height = prose.size(svg)
    page = new_page(viewport=PHONE)
    data = base64.b64encode(svg.encode()).decode()
    least = f'style="min-width:{prose.legible(svg)}px"'
    image = f'<img {least} width="{width}" height="{height}" alt="" src="data:image/svg+xml;base64,{data}">'
    page.set_content(body(f'<figure><div class="wide" tabindex="0">{image}</div></figure>'))
    shown = page.locator("figure img").bounding_box()["width"]
    assert beyond(page) <= 0
    alone = new_page(viewport={"width": round(shown), "height": 900})
    alone.goto(path.as_uri())
    assert small(alone) == []


def test_every_figure_is_shown_at_that_width():
    book = Book(ROOT)
    shown = {}
    for slug in book.contents:
        chapter = book.chapter(slug)
        written = prose.Prose(book, "en", chapter)
        for section in chapter.texts["en"].sections:
            for block in section.blocks:
                if block.kind == "figure":
                    shown[block.name] = written.figure(block)
    assert set(shown) <= {name for slug in book.contents for name in figures(book.folder(slug))}
    for name, html in shown.items():
        least = prose.legible(book.figure(name).read_text("utf-8"))
        assert re.findall(r"min-width:(\d+)px", html) == [str(least)] * (least > prose.NARROW), name
        assert ('<div class="wide" tabindex="0">' in html) == (least > prose.NARROW), name
