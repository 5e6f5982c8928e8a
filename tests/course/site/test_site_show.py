"""A chapter's pictures and predictions, shown one by one in large type: by keyboard, in each language, and put back."""

import pytest
from helpers import browser as browsers

from course.site.front import FRAME, THEME
from course.site.pages import show_button
from d2lps.messages import LANGUAGES, sentences

chromium, new_page = browsers.chromium, browsers.new_page

PICTURE = '<svg viewBox="0 0 40 10"><rect width="40" height="10"/></svg>'
BODY = f"""<h1>1. Rings</h1>{{button}}<div class="cell"><pre class="code">c</pre>
<div class="shown">{PICTURE}</div></div>
<section id="a"><h2>One turn<a class="anchor">#</a></h2><p>Not about it.</p><p>How long does a turn take?</p>
<ul><li>to the right</li></ul><div class="cell" id="guess"><div class="shown">
<div class="d2lps-asked"><input></div></div></div>
<details><div class="cell"><div class="shown">{PICTURE}</div></div></details></section>
<section id="b"><h2>Two turns</h2><figure>{PICTURE}<figcaption>A ring.</figcaption></figure>
<div class="cell"><div class="shown"><table><tr><td>1</td></tr></table></div></div></section>"""


@pytest.fixture
def site(tmp_path):
    """Write a page in each language."""
    (tmp_path / "_static").mkdir()
    for name in ("book.css", "show.css", "show.js"):
        (tmp_path / "_static" / name).write_bytes((THEME / name).read_bytes())
    for language in LANGUAGES:
        frame = FRAME.get_template("page.html").render(
            lang=language, up="../", body=BODY.format(button=show_button(language)), w={},
            looks=["book.css", "show.css"], scripts=["../_static/show.js"],
        )  # fmt: skip
        (tmp_path / f"{language}").mkdir()
        (tmp_path / language / "page.html").write_text(frame, "utf-8")
    return tmp_path


def shown(page) -> tuple[str, str]:
    """Return the title of what is shown, and its number."""
    return page.locator("dialog h2").inner_text(), page.locator("dialog > p").inner_text()


@pytest.mark.parametrize("language", LANGUAGES)
def test_keys_lead_through_pictures_and_questions_and_the_page_is_whole_afterwards(new_page, site, language):
    page = new_page()
    page.goto((site / language / "page.html").as_uri())
    before = page.locator("main").inner_html()
    page.get_by_role("button", name=sentences(language)["site.show"]).press("Enter")
    assert shown(page) == ("1. Rings", "1 / 3") and page.locator("dialog svg").is_visible()
    page.keyboard.press("ArrowLeft")
    assert shown(page)[1] == "1 / 3"
    page.keyboard.press("ArrowRight")
    assert shown(page) == ("One turn", "2 / 3")
    place = page.locator("dialog > div")
    assert "How long" in place.inner_text() and "to the right" in place.inner_text()
    assert "Not about it." not in place.inner_text()
    page.locator("dialog input").focus()
    page.keyboard.press("ArrowRight")  # moves in the field
    assert shown(page)[1] == "2 / 3"
    page.keyboard.press("PageDown")
    assert shown(page) == ("Two turns", "3 / 3") and "A ring." in place.inner_text()
    page.keyboard.press("Escape")
    page.wait_for_function("before => document.querySelector('main').innerHTML === before", arg=before)
    assert page.locator("dialog").is_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_fills_the_screen_in_large_type_on_light_and_dark(new_page, site, theme):
    page = new_page()
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 1600, "height": 900})
    page.goto((site / "en/page.html").as_uri())
    text = page.locator("main p").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    page.locator("button.show").click()
    page.keyboard.press("ArrowRight")
    large = page.locator("dialog p").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert large >= 1.5 * text
    page.keyboard.press("ArrowRight")
    box = page.locator("dialog svg").bounding_box()
    assert box["width"] > 0.9 * 1600 and box["height"] <= 0.71 * 900
    paper = page.locator("dialog").evaluate("e => getComputedStyle(e).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(21, 24, 29)")


def test_button_is_hidden_if_a_chapter_has_nothing_to_show(new_page, site):
    path = site / "en/page.html"
    path.write_text(path.read_text("utf-8").replace("<svg", "<b").replace("d2lps-asked", "x").replace("figure>", "p>"))
    page = new_page()
    page.goto(path.as_uri())
    assert page.locator("button.show").is_hidden() and page.locator("dialog").count() == 0
