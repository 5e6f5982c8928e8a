"""The buttons that copy code: reached by keyboard, in the page's language, from a file, also without a clipboard."""

import pytest
from helpers import browser as browsers

from course.site import prose
from course.site.front import FRAME, THEME
from course.site.linked import linked
from d2lps.messages import LANGUAGES, sentences

chromium, new_page = browsers.chromium, browsers.new_page

SOURCE = 'import d2lps\n\n\nd2lps.text("<b> & c")'
CONSOLE = (
    '<pre class="code" tabindex="0"><code><span class="gp">&gt;&gt;&gt; </span>a = 1\n'
    '<span class="gp">&gt;&gt;&gt; </span>a\n'
    '<span class="go">1</span>\n<span class="gp">... </span>b\n</code></pre>'
)
NONE = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
REFUSED = "navigator.clipboard.writeText = () => Promise.reject(new Error('no'))"
CATCH = "window.taken = []; document.addEventListener('copy', () => taken.push(document.activeElement.value))"


@pytest.fixture
def site(tmp_path):
    """Write a page in each language with a cell, a console and nothing else."""
    (tmp_path / "_static").mkdir()
    for name in ("book.css", "copy.js"):
        (tmp_path / "_static" / name).write_bytes((THEME / name).read_bytes())
    for language in LANGUAGES:
        (tmp_path / language).mkdir()
        words = {word: sentences(language)[f"site.{word}"] for word in ("copy", "copied")}
        body = f'<div class="cell">{prose.code(linked(SOURCE, {}))}</div>{CONSOLE}'
        frame = FRAME.get_template("page.html").render(
            lang=language, up="../", body=body, w=words, looks=["book.css"], scripts=["../_static/copy.js"]
        )
        (tmp_path / language / "page.html").write_text(frame, "utf-8")
    return tmp_path


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_keyboard_copies_a_cell_and_the_page_says_so(new_page, site, language):
    page = browsers.hold_time(new_page(apart=True))  # else it says so for 2 s only
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto((site / language / "page.html").as_uri())
    button = page.locator(".cell > .copy")
    assert button.inner_text() == sentences(language)["site.copy"]
    page.locator(".theme").focus()
    for _ in range(4):  # over the contents
        page.keyboard.press("Tab")
        if button.evaluate("e => e === document.activeElement"):
            break
    assert button.evaluate("e => e === document.activeElement && getComputedStyle(e).opacity === '1'")
    page.keyboard.press("Enter")
    page.locator(".copy", has_text=sentences(language)["site.copied"]).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == SOURCE + "\n"


@pytest.mark.parametrize("without", [NONE, REFUSED])
def test_without_a_clipboard_a_selection_is_copied(new_page, site, without):
    page = browsers.hold_time(new_page(apart=True))
    page.goto((site / "en/page.html").as_uri())
    page.evaluate(f"{without}; {CATCH}")
    page.locator(".cell").hover()
    page.locator(".cell > .copy").click()
    page.locator(".copy", has_text="Copied").wait_for()
    assert page.evaluate("taken") == [SOURCE + "\n"]


def test_prompts_and_results_are_not_copied(new_page, site):
    page = browsers.hold_time(new_page(apart=True))
    page.goto((site / "en/page.html").as_uri())
    page.evaluate(f"{NONE}; {CATCH}")
    page.locator(".boxed").hover()
    page.locator(".boxed > .copy").click()
    page.locator(".copy", has_text="Copied").wait_for()
    assert page.evaluate("taken") == ["a = 1\na\nb\n"]


def test_without_scripts_and_on_paper_there_is_no_button(chromium, new_page, site):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "en/page.html").as_uri())
    assert page.locator("pre.code").count() == 2 and page.locator(".copy").count() == 0
    context.close()
    page = new_page(media="print")
    page.goto((site / "en/page.html").as_uri())
    assert page.locator(".copy").count() == 2 and not page.locator(".copy").first.is_visible()


def test_the_button_leaves_with_the_code_that_is_tried(new_page, site):
    page = new_page()
    page.goto((site / "en/page.html").as_uri())
    page.locator(".cell > pre").evaluate("pre => { pre.hidden = true; }")
    assert not page.locator(".cell > .copy").is_visible()
