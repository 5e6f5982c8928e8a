"""The map on the first page shows progress in this browser; chapters name the chapters before and after."""

import shutil

import pytest
from helpers import browser as browsers
from helpers.small_book import SLUG, with_site
from helpers.small_site import bare

from course.book.__main__ import main
from course.book.library import Book
from course.site.build import build
from course.site.runs import ChapterRun
from d2lps.messages import LANGUAGES, text_in

chromium, new_page = browsers.chromium, browsers.new_page
MORE = """minutes = 15
about = { en = "Two.", vi = "Hai.", zh = "两种。" }

[[chapter]]
slug = "06b-late"
minutes = 90
title = { en = "Two ways", vi = "Hai cách", zh = "两种办法" }
about = { en = "Late.", vi = "Muộn.", zh = "迟了。" }
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of two chapters; both have the exercise star."""
    root = with_site(tmp_path_factory.mktemp("book"), more=MORE)
    shutil.copytree(root / "chapters" / SLUG, root / "chapters/06b-late")
    assert main(["--root", str(root), "build"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        bare(patch)
        ran = ChapterRun({language: {} for language in LANGUAGES}, "2026-01-31", "2 × x86_64")
        return build(Book(root), run=lambda slug: ran, pdf=False)


@pytest.fixture
def opened(site, chromium):
    """``opened(address)``: a page with a storage of its own, which has nothing to say and asks for its site alone."""
    said, contexts = [], []

    def open_it(address: str, **options):
        contexts.append(context := chromium.new_context(viewport={"width": 1280, "height": 700}, **options))
        page, home = context.new_page(), browsers.serve(context, site)
        page.add_init_script("addEventListener('pageshow', () => { window.shown = true; })")  # before the map's own
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url.startswith((home, "data:")) or said.append(request.url))
        page.goto(f"{home}/{address}")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert said == []


def marks(page, scripts: bool = True) -> list[str]:
    if scripts:
        page.wait_for_function("window.shown")
    return [mark.strip() for mark in page.locator(".course-map .d2-mark").all_inner_texts()]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", [1280, 420])
def test_what_was_read_and_solved_is_marked_and_stays(opened, language, width):
    page = opened(f"{language}/index.html")
    page.set_viewport_size({"width": width, "height": 700})
    assert marks(page) == ["", ""] and page.locator(".progress").is_hidden()
    page.locator(".course-map a").last.click()
    page.wait_for_url("**/06b-late.html")
    page.go_back()
    assert marks(page) == ["", ""]  # it was opened, and its last section was not seen
    page.goto(f"{browsers.HOME}/{language}/06b-late.html")
    browsers.look_through(page)
    page.wait_for_function("localStorage.getItem('d2lps-read-06b-late')")
    page.evaluate("document.dispatchEvent(new CustomEvent('d2lps-passed', { detail: ['star'] }))")
    page.goto(f"{browsers.HOME}/{language}/index.html")
    solved = text_in(language, "map.solved", passed=1, exercises=1)
    expected = [solved, f"{text_in(language, 'map.read')} · {solved}"]
    assert marks(page) == expected
    page.reload()
    assert marks(page) == expected
    assert page.locator(".course-map .d2-reached").evaluate_all("all => all.map(e => e.dataset.chapter)") == [
        "06b-late"
    ]
    said = text_in(language, "map.sum", read=1, chapters=2, passed=2, exercises=2)
    assert page.locator(".progress").inner_text() == said
    assert expected[1] in " ".join(page.get_by_role("link", name="06b").first.all_text_contents())
    other = next(code for code in LANGUAGES if code != language)
    page.goto(f"{browsers.HOME}/{other}/index.html")
    assert marks(page)[1].startswith(text_in(other, "map.read"))


def test_a_jump_to_the_end_reads_nothing_before_it(opened):
    page = opened("en/index.html")
    page.set_viewport_size({"width": 1280, "height": 200})
    page.goto(f"{browsers.HOME}/en/06b-late.html#turn")
    page.wait_for_function("(localStorage.getItem('d2lps-seen-06b-late') ?? '').includes('turn')")
    assert page.evaluate("localStorage.getItem('d2lps-read-06b-late')") is None
    browsers.look_through(page)
    page.wait_for_function("localStorage.getItem('d2lps-read-06b-late')")


def test_the_map_follows_a_reader_who_reads_in_another_window(opened):
    page = opened("en/index.html")
    with page.context.expect_page() as beside:
        page.evaluate("open('01-small.html')")
    beside.value.wait_for_load_state()
    browsers.look_through(beside.value)
    page.wait_for_function("document.querySelector('.course-map .d2-mark').textContent !== ''")
    assert marks(page) == ["✓ read", ""]


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_javascript_it_is_a_plain_map(opened, language):
    page = opened(f"{language}/index.html", java_script_enabled=False)
    assert page.locator(".course-map svg").is_visible() and marks(page, scripts=False) == ["", ""]
    assert page.locator(".progress").is_hidden()
    page.locator(".course-map a").first.click()
    page.wait_for_url("**/01-small.html")


def test_a_browser_that_keeps_nothing_shows_a_plain_map(opened):
    page = opened("en/index.html")
    refuse = "Storage.prototype.getItem = Storage.prototype.setItem = () => { throw new Error('no'); };"
    page.add_init_script(refuse)
    page.goto(f"{browsers.HOME}/en/01-small.html")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.goto(f"{browsers.HOME}/en/index.html")
    assert marks(page) == ["", ""]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_chapter_names_its_requirements_and_the_next_chapter(opened, language):
    page = opened(f"{language}/06b-late.html")
    needs, takes = page.locator("p.way").inner_text().split(" · ")
    assert takes == text_in(language, "site.minutes", minutes=90)
    link = page.locator("p.way a")
    assert link.get_attribute("href") == "01-small.html"
    assert needs == text_in(language, "book.needs", chapters=link.inner_text())
    assert page.locator("nav.way").inner_text() == text_in(language, "book.last")
    page.goto(f"{browsers.HOME}/{language}/01-small.html")
    assert page.locator("p.way").inner_text() == text_in(language, "site.minutes", minutes=15)
    assert page.locator("nav.way a").get_attribute("href") == "06b-late.html"
    assert takes in page.locator("nav.way").inner_text()
