"""The site, opened from its files by a browser: each page, in each language, nothing from elsewhere."""

import json
import re
from urllib.parse import quote

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave
from playwright.sync_api import Page, expect

from course.site import browser
from d2lps.messages import LANGUAGES, sentences

chromium, new_page, quiet_page = browsers.chromium, browsers.new_page, browsers.quiet_page

# The narrowest window of the widest layout, and a phone; in English also a wide window, and the narrowest of the third.
WIDTHS = {language: (1151, 360) for language in LANGUAGES} | {"en": (1151, 1920, 900, 360)}
LOW = 200  # pixels: what is not in the window is laid out, and need not be painted
PAGE, FRONT = 700_000, 400_000  # bytes of a page with what it loads at once
HERO = "../img/moving-ring.svg"  # of the front page


@pytest.fixture
def opened(quiet_page, site):
    """``opened("vi/index.html")``: the page."""
    return lambda address, **media: quiet_page(
        f"{site.as_uri()}/{address}", viewport={"width": 1100, "height": 900}, **media
    )


@pytest.fixture
def hosted(chromium, site):
    """``hosted("vi/index.html")``: the page at an address with a host, in a browser that has kept nothing."""
    context = chromium.new_context(viewport={"width": 1100, "height": 900})
    home = browsers.serve(context, site)

    def open_it(address: str) -> Page:
        page = context.new_page()
        page.goto(f"{home}/{address}")
        return page

    yield open_it
    context.close()


def names(site, language: str) -> list[str]:
    return sorted(path.name for path in (site / language).glob("*.html"))


def api_pages(site) -> list[str]:
    return [f"api/{path.name}" for path in sorted((site / "api").glob("*.html"))]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_whole_at_every_width_and_on_paper_and_speaks_its_language(site, quiet_page, language):
    english = said_in_english_alone(language)
    first, *others = WIDTHS[language]
    page = quiet_page("about:blank", reduced_motion="reduce")  # one for all: a new one takes as long as a small page
    for name in [f"{language}/{each}" for each in names(site, language)] + api_pages(site) * (language == "en"):
        page.set_viewport_size({"width": first, "height": LOW})
        page.emulate_media(media="screen")
        page.goto(f"{site.as_uri()}/{name}")
        browsers.set_up(page)
        it_plays(page, name)
        spoken, missing, text = page.evaluate(READ)
        assert spoken == ("zh-Hans" if language == "zh" else language), name
        assert missing == [], name
        assert [piece for piece in english if piece in text] == [], name
        assert browsers.too_wide(page) == [], f"{name} at {first}"
        for width in others:
            page.set_viewport_size({"width": width, "height": LOW})
            assert browsers.too_wide(page) == [], f"{name} at {width}"
        if not name.startswith("api/"):
            page.emulate_media(media="print")
            page.set_viewport_size({"width": 688, "height": LOW})  # an A4 without its margins
            assert page.evaluate(CUT) == [], f"{name} on paper"


def it_plays(page: Page, name: str) -> None:
    # The pictures of tradeoff and divide are charts, which sliders change, and a race waits for a bet; all other stills
    # give way to players.
    data = ":has(> script[type='application/json'])"
    still = page.locator(f"[id^=d2lps-]{data}:has(svg.d2-still):not(#cell-tradeoff *, #cell-divide *, .d2-bets)")
    expect(still, f"{name}: a player does not play").to_have_count(0)
    unstyled = "all => all.filter((each) => getComputedStyle(each).containerType !== 'inline-size').length"
    assert page.locator(".d2-hand").evaluate_all(unstyled) == 0, f"{name}: a picture for the hand has no style sheet"
    if re.search(r"/0\d", name):
        expect(page.locator(".d2-player").first, name).to_be_attached()


def said_in_english_alone(language: str) -> list[str]:
    """What the course says in English, in pieces, and not in ``language``: nothing where that is English."""
    spoken = {key: said for key, said in sentences("en").items() if not key.startswith("names.")}
    pieces = {piece.strip() for said in spoken.values() for piece in re.split(r"\{[^}]*\}|\n", said)}
    own = "\n".join(sentences(language).values())
    return [p for p in pieces if len(p.split()) >= 2 and len(p) >= 10 and p.isascii() and p not in own]


# The language of a page, its pictures that are missing, and its text, without code and passages marked as English.
READ = """() => {
  const skipped = "script,style,pre,code,math,[lang=en]";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode())
    if (!walk.currentNode.parentElement.closest(skipped)) found.push(walk.currentNode.data);
  const said = ["aria-label", "title", "alt", "placeholder"];
  for (const each of document.querySelectorAll(said.map((name) => `[${name}]`).join()))
    if (!each.closest("[lang=en]")) found.push(...said.map((name) => each.getAttribute(name) ?? ""));
  const missing = [...document.images].filter((each) => !each.naturalWidth).map((each) => each.src);
  return [document.documentElement.lang, missing, found.join("\\n")];
}"""

# What is cut off or scrolls, outside players and pictures.
CUT = """() => [...document.querySelectorAll("main :not(svg, svg *, math, math *, .d2-player, .d2-player *)")]
  .filter((e) => (e.scrollWidth > e.clientWidth + 1 && /auto|scroll|hidden/.test(getComputedStyle(e).overflowX)
    || e.getBoundingClientRect().right > innerWidth + 1) && e.offsetParent)
  .map((e) => e.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_run_and_plot_has_a_description_of_its_own(site, language):
    """The runs of a race each have one; a plot has the numbers of its picture below it."""
    for path in sorted((site / language).glob("[0-9a]*-*.html")):
        text = path.read_text("utf-8")
        said = re.findall(r"<desc>(.*?)</desc>", text)
        assert all(said), path.name
        assert len(said) == len(set(said)), path.name
        assert len(said) >= len(re.findall(r'class="d2lps d2-sheet"', text)) + text.count('class="d2lps d2lps-plot"')


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_scripts_no_page_asks_to_play_or_for_a_guess(chromium, site, language):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    asked = {"en": "Press play", "vi": "bấm “Phát”", "zh": "播放按钮"}[language]
    guess = sentences(language)["predict.none"]
    for slug in ("00-in-15-minutes", "01-data-parallelism", "02-ring", "03-many-machines"):
        page.goto((site / language / f"{slug}.html").as_uri())
        text = page.locator("main").inner_text()
        assert asked not in text and "播放键" not in text and guess not in text, slug
    context.close()


def test_sizes(site):
    """No page loads much before it is touched, and the code of the players is there once."""
    for language in LANGUAGES:
        for name in names(site, language):
            if name in (browser.file(language), "search.html"):  # these have all of Python, and all words
                continue
            page = (site / language / name).read_text("utf-8")
            assert "requestAnimationFrame" not in page
            files = re.findall(r'<(?:script defer src|link rel="stylesheet" href)="([^"]+)"', page)
            loads = [site / language / file for file in files] + [site / "_static/math.woff2"]
            loads += [site / language / HERO] * (name == "index.html")
            loaded = len(page.encode()) + sum(file.resolve().stat().st_size for file in loads)
            assert loaded <= (FRONT if name == "index.html" else PAGE), name


def test_a_reader_is_asked_for_the_language_once(hosted):
    page = hosted("index.html?choose")
    assert page.locator(".speak h2").all_inner_texts() == ["Tiếng Việt", "中文", "English"]
    page.wait_for_function("document.querySelector('.hero img').naturalWidth > 400")
    assert page.locator(".cards img").evaluate_all("all => all.every(each => each.getAttribute('src'))")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/index.html")
    page.goto(f"{browsers.HOME}/index.html", wait_until="commit")
    page.wait_for_url("**/zh/index.html")
    page.goto(f"{browsers.HOME}/index.html?choose")
    assert page.locator(".speak h2").count() == 3


def test_the_race_of_the_front_page_plays_steps_and_is_scrubbed(opened):
    page, words = opened("vi/index.html", apart=True), sentences("vi")
    assert page.locator(".d2-player").count() == 0 and not page.locator(".d2-verdict").is_visible()
    page.get_by_role("button", name=words["explore.bet"]).click()
    page.locator(".d2-cards button").last.click()
    player = page.locator(".d2-player")
    player.wait_for()
    player.get_by_role("slider").fill("1")
    expect(page.locator(".d2-outcome")).to_have_text(words["explore.bet-right"].format(name=words["names.ring"]))
    assert page.locator(".d2-verdict").is_visible()
    player.get_by_role("button", name=words["player.restart"], exact=True).click()
    browsers.hold_time(page)
    clock = player.locator(".d2-clock").first  # of the slowest

    def now() -> float:
        return float(re.match(r"[\d.]+", clock.text_content())[0])

    player.get_by_role("button", name=words["player.play"], exact=True).click()
    page.clock.run_for(1000)
    assert now() > 5
    player.get_by_role("button", name=words["player.pause"], exact=True).click()
    player.get_by_role("button", name=words["player.restart"], exact=True).click()
    assert now() == 0
    slider = player.get_by_role("slider")
    slider.fill("1")
    assert now() == 96
    player.get_by_role("button", name=words["player.back"], exact=True).click()
    page.clock.run_for(1000)
    assert now() < 96
    assert player.locator(".d2-run header b").all_inner_texts() == ["GPU 0", words["names.shards"], words["names.ring"]]


def test_the_switch_of_language_leads_to_the_same_section(opened):
    """Of every section, wherever it was scrolled to, the link names it, and there it stands near the top."""
    for name in ("02-ring.html", "06-faults.html"):
        page = opened(f"en/{name}")
        ids = page.locator("main section[id]").evaluate_all("all => all.map(each => each.id)")
        assert len(ids) > 5
        for id in ids:
            for event in ("pointerdown", "focus"):
                found = page.evaluate(
                    """([id, event]) => {
                      const section = document.getElementById(id);
                      const link = document.querySelector(".languages a[lang=vi]");
                      scrollTo(0, 0);
                      scrollBy(0, section.getBoundingClientRect().top - 90);
                      link.dispatchEvent(new Event(event));
                      return link.hash;
                    }""",
                    [id, event],
                )
                end = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
                assert found == f"#{id}" or end, (name, id, event)
        there = opened(f"vi/{name}")
        for id in ids:
            there.evaluate("id => { scrollTo(0, 0); location.hash = id; }", id)
            top = there.evaluate("id => document.getElementById(id).getBoundingClientRect().top", id)
            end = there.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
            assert 0 <= top <= 200 or end, (name, id, top)


def test_the_switch_is_followed_by_mouse_and_keyboard(opened):
    page = opened("zh/02-ring.html")
    ids = page.locator("main section[id]").evaluate_all("all => all.map(each => each.id)")
    page.evaluate("id => document.getElementById(id).scrollIntoView()", ids[4])
    page.mouse.wheel(0, 60)
    page.wait_for_function("document.querySelector('.here .now')")
    page.locator(".languages a[lang=vi]").click()
    page.wait_for_url(f"**/vi/02-ring.html#{ids[4]}")
    top = "id => document.getElementById(id).getBoundingClientRect().top"
    page.wait_for_function(f"id => [({top})(id)].every((top) => 0 <= top && top <= 200)", arg=ids[4])
    page.locator(".languages a[lang=en]").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/en/02-ring.html#{ids[4]}")


@pytest.mark.parametrize(
    ("language", "query", "section", "hit"),
    [
        ("zh", "参数服务器", "04-key-value-store.html", "参数服务器"),
        ("zh", "分片", "01-data-parallelism.html", "分片"),
        ("vi", "máy chủ tham số", "04-key-value-store.html", "máy chủ tham số"),
        ("vi", "may chu tham so", "04-key-value-store.html", "máy chủ tham số"),
        ("vi", "bang thong", "02-ring.html", "băng thông"),
        ("en", "parameter server", "04-key-value-store.html", "parameter server"),
        ("en", "PARAMETER  server", "04-key-value-store.html", "parameter server"),
        ("en", "aggregate_at", "algorithms.html#aggregate_at", "aggregate_at"),
        ("en", "δ/I", "06-faults.html#interval", "δ/i"),
    ],
)
def test_what_is_searched_for_is_found_in_its_section(opened, language, query, section, hit):
    page = opened(f"{language}/search.html?q={quote(query)}")
    hrefs = page.locator("#results a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    assert any(section in href for href in hrefs) and all("#" in href or href.endswith(".html") for href in hrefs)
    marks = page.locator("#results mark").all_inner_texts()
    assert hit in [mark.lower() for mark in marks]
    assert page.locator("#results mark").first.inner_text().lower() == hit or hit == "aggregate_at"
    first = page.locator("#results a").first
    with page.expect_navigation():
        first.click()
    if "#" in page.url:
        assert page.locator(f"[id='{page.url.partition('#')[2]}']").count() == 1


@pytest.mark.parametrize(
    ("language", "query", "first"),
    [
        ("en", "RING", "ring"),
        ("vi", "bang thong", "bandwidth"),
        ("vi", "Máy chủ", "server"),
        ("zh", "参数服务器", "parameter-server"),
    ],
)
def test_what_is_called_so_comes_first_and_its_title_is_marked(opened, language, query, first):
    page = opened(f"{language}/search.html?q={quote(query)}")
    link = page.locator("#results a").first
    assert link.get_attribute("href") == f"glossary.html#{first}"
    assert link.locator("mark").count() == 1
    assert link.inner_text().endswith(f"› {link.locator('mark').inner_text()}")


@pytest.mark.parametrize("query", ["n", "ring"])
def test_passages_are_read_as_they_are_written(opened, query):
    """One Latin letter is found as a word; a sentence that ends has no dots behind it."""
    page = opened(f"en/search.html?q={query}")
    parts = page.locator("#results p").all_inner_texts()
    assert len(parts) > 20 and not any(re.search(r"[.!?]…$", part) for part in parts)
    around = page.locator("#results mark").evaluate_all(
        "all => all.map(e => (e.previousSibling?.data ?? '').slice(-1) + (e.nextSibling?.data ?? '').slice(0, 1))"
    )
    assert query != "n" or not any(re.search(r"[A-Za-z0-9_]", each) for each in around)


def test_a_second_search_folds_no_section_again(opened):
    """Folding all sections takes longest, and would be felt after each letter that is typed."""
    page = opened("vi/search.html")
    letters = """() => { let count = 0; const own = String.prototype.normalize;
      String.prototype.normalize = function (form) { count += this.length; return own.call(this, form); };
      find("may chu"); String.prototype.normalize = own; return count; }"""
    first, second = page.evaluate(letters), page.evaluate(letters)
    assert first > 100_000 and second < 1000


def test_a_search_without_results_says_so(opened):
    page = opened("zh/search.html?q=xyzzy%22%3Cb%3E")
    assert page.locator("#found").inner_text() == sentences("zh")["site.none"]
    assert page.locator("#results li").count() == 0


def test_the_keyboard_reaches_the_text_and_the_search(opened):
    page = opened("en/index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")
    page.keyboard.press("/")
    page.keyboard.type("hash ring")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=hash+ring")
    assert page.locator("#results li").count() > 0


def test_light_or_dark_is_remembered(hosted):
    page = hosted("vi/index.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    button = page.get_by_role("button", name=sentences("vi")["site.theme"], exact=True)
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert page.evaluate(paper) == "rgb(21, 24, 29)" and button.get_attribute("aria-pressed") == "true"
    page.goto(f"{browsers.HOME}/vi/references.html")
    assert page.evaluate(paper) == "rgb(21, 24, 29)" and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)" and button.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave(opened, scheme):
    chapters = ["en/04-key-value-store.html", "zh/09-pipelines.html", "vi/15-a-step-measured.html"]
    others = [
        "index.html?choose",
        "vi/index.html",
        "zh/references.html",
        "vi/search.html?q=gradient",
        "zh/glossary.html",
    ]
    for name in [*chapters, *others]:
        assert grave(opened(name, color_scheme=scheme), rules=CONTRAST if scheme == "dark" else ()) == [], name


def test_a_prediction_is_kept_over_a_reload(hosted):
    page = hosted("zh/01-data-parallelism.html")
    asked = page.locator("#cell-guess form")
    for field in asked.locator("input").all():
        field.fill("60")
    asked.get_by_role("button").click()
    revealed = page.locator("#cell-predicted")
    expect(revealed).to_contain_text(sentences("zh")["predict.you"])
    page.reload()
    expect(asked.locator("input").first).to_have_value("60")
    expect(revealed).to_contain_text(sentences("zh")["predict.you"])


def test_on_paper_there_are_pictures_and_no_controls(opened):
    page = opened("vi/01-data-parallelism.html")
    browsers.look_through(page)
    page.emulate_media(media="print")
    assert not any(
        each.is_visible() for each in page.locator(".d2-controls, .d2-runs, .bar, .chapters, .here, .folds").all()
    )
    printed = page.locator(".d2-printed")
    assert printed.count() >= 5
    assert all(each.bounding_box()["height"] > 100 for each in printed.all())
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    legends = page.locator(".d2-legend ul")
    assert legends.count() == printed.count() and all(each.is_visible() for each in legends.all())


def test_code_that_goes_on_beyond_the_edge_says_so(opened):
    page = opened("en/01-data-parallelism.html")
    page.set_viewport_size({"width": 360, "height": 800})
    cells = page.locator("pre.code")
    assert any(cells.evaluate_all("all => all.map(e => e.scrollWidth > e.clientWidth)"))
    seen = "e => getComputedStyle(e).backgroundAttachment.split(', ').slice(0, 4).join()"
    assert cells.first.evaluate(seen) == "local,local,scroll,scroll"


def test_a_glossary_word_explains_itself(opened):
    page = opened("vi/01-data-parallelism.html")
    page.locator("a.term").first.hover()
    card = page.locator(".term-card")
    card.wait_for(state="visible")
    assert len(card.inner_text()) > 20
    page.keyboard.press("Escape")
    card.wait_for(state="hidden")


def test_hints_and_solutions_are_folded(opened):
    page = opened("en/01-data-parallelism.html")
    folds = page.locator("#cell-exercise-own-gpu .folds details")
    assert folds.count() == 5 and not any(each.get_attribute("open") for each in folds.all())
    folds.last.locator("summary").click()
    assert "def own_gpu(gpus)" in folds.last.inner_text()


def test_notebooks_to_take_away_need_no_other_file(site):
    for path in site.glob("*/notebooks/*.ipynb"):
        book = json.loads(path.read_text("utf-8"))
        for cell in book["cells"]:
            source = "".join(cell["source"])
            assert "../" not in re.sub(r"`[^`]*`", "", source) or cell["cell_type"] == "code", path
            for name in re.findall(r"\(attachment:([^)]*)\)", source):
                assert name in cell["attachments"]
