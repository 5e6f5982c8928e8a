"""The page with the table of a pipeline, opened from its file in each language."""

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave
from helpers.small_book import SLUG, with_site
from helpers.small_site import bare

from course.book.__main__ import main
from course.book.library import Book
from course.site.build import build
from course.site.pages import NAMES, PIPELINE
from course.site.runs import ChapterRun
from d2lps.messages import LANGUAGES, text_in

LOOKS = ("en", 1200, "light"), ("vi", 380, "dark"), ("zh", 380, "light")
chromium, new_page, quiet_page = browsers.chromium, browsers.new_page, browsers.quiet_page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of a small book, whose chapter shows a table, too."""
    from d2lps import edit
    from d2lps.messages import only

    root = with_site(tmp_path_factory.mktemp("book"))
    assert main(["--root", str(root), "build"]) == 0
    tables = {language: only(language, lambda: edit("gpipe", 2, 2)._repr_html_()) for language in LANGUAGES}
    shown = {
        language: {"star": [{"output_type": "display_data", "data": {"text/html": table}}]}
        for language, table in tables.items()
    }
    run = ChapterRun(shown, "2026-01-31", "2 × x86_64")
    with pytest.MonkeyPatch.context() as patch:
        bare(patch)
        return build(Book(root), run=lambda slug: run, pdf=False)


@pytest.fixture
def opened(quiet_page, site):
    """Open a page of the site."""

    def open_it(address: str, width: int = 1200, **media):
        page = quiet_page(f"{site.as_uri()}/{address}", viewport={"width": width, "height": 900}, **media)
        page.wait_for_selector(".d2-edit")
        return page

    return open_it


@pytest.mark.parametrize("language, width, scheme", LOOKS)
def test_the_table_is_alive_in_each_language_width_and_theme(opened, language, width, scheme):
    page = opened(f"{language}/{PIPELINE}", width, color_scheme=scheme)
    assert page.locator("h1").inner_text() == text_in(language, "site.pipeline")
    here = page.locator(f"nav.chapters a[href='{PIPELINE}']")
    assert here.get_attribute("aria-current") == "page"
    assert page.locator(".d2-verdict").inner_text() == "✓ " + text_in(language, "edit.legal", slots=22)
    page.locator("[data-at='1 2']").focus()
    page.keyboard.press("Delete")
    assert page.locator(".d2-verdict").inner_text().startswith("✗ gpu1 ")
    page.locator(".d2-edit summary").click()
    page.get_by_role("button", name=text_in(language, "edit.read")).click()
    refused = text_in(language, "acts.backward-alone", node="gpu3", cell="B0", missing="F0")
    assert page.locator(".d2-verdict").inner_text() == "✗ " + refused
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert grave(page, rules=CONTRAST if scheme == "dark" else ()) == []
    for other in NAMES:
        assert page.locator(f".languages a[href='../{other}/{PIPELINE}']").count() == 1


def test_the_same_table_is_alive_inside_a_chapter(opened, site):
    page = opened(f"zh/{SLUG}.html")
    page.locator("[data-at='1 1']").click()
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-at^='1 ']").all_inner_texts() == ["F0", "B0", "F1", "B1"]
    assert page.locator(".d2-facts b").all_inner_texts() == ["33.3 %", "50 %", "6"]
    written = (site / f"zh/{SLUG}.html").read_text("utf-8")
    assert "function edit(" not in written and "function edit(" in (site / "_static/edit.js").read_text("utf-8")
    assert len(written.encode()) < 60_000


def test_the_end_of_the_table_is_visible_at_1280_pixels_and_a_shadow_marks_the_cut_below(opened):
    room = "document.querySelector('.d2-grid-room')"
    for width in (1280, 1920):
        page = opened(f"en/{PIPELINE}", width)
        assert page.locator(".d2-grid [role=columnheader]").count() >= 22
        assert page.evaluate(f"{room}.scrollWidth <= {room}.clientWidth"), width
    page = opened(f"en/{PIPELINE}", 700)
    assert page.evaluate(f"{room}.scrollWidth > {room}.clientWidth")
    shadow = "getComputedStyle(document.querySelector('.d2-grid [role=row] .d2-grid-peak, .d2-grid-peak')).boxShadow"
    assert page.evaluate(shadow) != "none"
    page.evaluate(f"{room}.scrollLeft = 9999")
    page.wait_for_function(f"{shadow} === 'none'")  # its end is visible
