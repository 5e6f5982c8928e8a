"""The words of the glossary on a page: their marks, their cards, and the ways to open a card."""

import re
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.axe import grave
from helpers.small_book import edit, small
from playwright.sync_api import expect

from course.book.check import check_meanings
from course.book.findings import BookError
from course.book.glossary import Glossary
from course.book.library import Book
from course.site import terms
from course.site.terms import cards, glossary_page, marked_terms
from d2lps.messages import LANGUAGES

ROOT = Path(__file__).parents[3]
THEME = Path(terms.__file__).with_name("theme")
chromium, new_page = browsers.chromium, browsers.new_page


def term(en: str, vi: str, zh: str, **more) -> dict:
    means = {language: f"{word} <b> & `x`" for language, word in zip(LANGUAGES, (en, vi, zh), strict=True)}
    return {"en": en, "vi": vi, "zh": zh, "means": means} | more


WORDS = Glossary(
    {
        "term": [
            term("worker", "máy thợ", "工作节点"),
            term("ring", "vòng", "环", other_zh=["环境"], other_vi=["vòng lặp"], other_en=["ring finger"]),
            term("ring all-reduce", "all-reduce dạng vòng", "环形全归约"),
            term("key", "khóa", "键"),
            term("ZeRO", "ZeRO", "ZeRO"),
            term("Zipf's law", "định luật Zipf", "齐普夫定律"),
            term("topology", "cấu trúc kết nối", "拓扑"),
            term("shard", "mảnh", "分片"),
            term("sharding", "phân mảnh", "分片", shares_zh="shard"),
            {"en": "course", "vi": "khóa học", "zh": "课程"},
        ]
    }
)


def found(html: str, language: str, seen: set[str] | None = None) -> list[tuple[str, str]]:
    """Term and word of each mark, after a look at everything else: it has stayed as it was."""
    marked = marked_terms(html, language, WORDS, set() if seen is None else seen)
    mark = r'<a class="term" href="glossary.html#([^"]*)" data-term="\1">([^<]*)</a>'
    assert re.sub(mark, r"\2", marked) == html
    return re.findall(mark, marked)


@pytest.mark.parametrize(
    "language, html, expected",
    [
        ("en", "Workers form a ring of workers.", [("worker", "Workers"), ("ring", "ring")]),
        ("en", "two topologies", [("topology", "topologies")]),
        ("en", "A coworker worked in a ring-shaped string.", []),
        ("en", "the ring\nall–reduce, a ring finger", [("ring-all-reduce", "ring\nall–reduce")]),
        ("en", "zero copies of ZeRO by Zipf’s law", [("zero", "ZeRO"), ("zipfs-law", "Zipf’s law")]),
        ("vi", "Máy thợ này gửi cho máy thợ kia.", [("worker", "Máy thợ")]),
        ("vi", "Khóa học có một vòng lặp trong all-reduce dạng vòng.", [("ring-all-reduce", "all-reduce dạng vòng")]),
        ("vi", "Định luật Zipf; khóa", [("zipfs-law", "Định luật Zipf"), ("key", "khóa")]),
        (
            "zh",
            "在环境中，环形全归约把环上的工作节点",
            [("ring-all-reduce", "环形全归约"), ("ring", "环"), ("worker", "工作节点")],
        ),
        ("zh", "先分片（shard），再把 XZeRO 和 ZeRO 发出。", [("shard", "分片"), ("zero", "ZeRO")]),
    ],
)
def test_a_word_is_marked_where_it_stands_first(language, html, expected):
    assert found(f"<p>{html}</p>", language) == expected


@pytest.mark.parametrize(
    "html",
    [
        '<h2 id="worker">The worker</h2>',
        '<p><code>worker</code> <a href="#">a <em>worker</em></a></p>',
        '<math alttext="worker > 1"><mtext>worker</mtext></math>',
        '<figure><img alt="a worker > another"><figcaption>A worker</figcaption></figure>',
        "<script>if (1 < worker) {}</script><style>.worker {}</style><!-- worker -->",
        '<pre class="code"><code>worker</code></pre>',
        "<summary>A worker</summary><table><th>worker</th></table>",
    ],
)
def test_nothing_is_marked_outside_prose(html):
    assert found(html, "en") == []
    assert found(f"{html}<p>a worker</p>", "en") == [("worker", "worker")]


def test_once_in_a_section_and_again_in_the_next():
    seen = set()
    assert found("<p>a worker</p>", "en", seen) == [("worker", "worker")] and seen == {"worker"}
    assert found("<p>a worker in a ring</p>", "en", seen) == [("ring", "ring")]
    assert found("<p>a worker</p>", "en") == [("worker", "worker")]


def test_cards_hold_the_terms_of_the_page_and_cannot_end_the_script():
    words = Glossary({"term": [term("worker", "máy thợ", "工作节点"), term("ring", "vòng", "</script>")]})
    script = cards("zh", words, {"ring"})
    assert '"ring": ["<\\/script>", "ring", "&lt;\\/script' not in script and script.count("</script>") == 1
    assert "worker" not in script and "<code>x</code>" in script.replace("<\\/", "</")


def listed(language: str, written: str, tmp_path) -> list[str]:
    book = small(tmp_path)
    (book.root / "chapters/terms.toml").write_text(written, "utf-8")
    page = glossary_page(language, Book(book.root))
    assert '<a href="01-small.html">' in page
    return re.findall(r"<dt id=\"[^\"]*\"><b>([^<]*)</b>", page)


def test_the_glossary_is_sorted_by_its_own_alphabet(tmp_path):
    three = 'means = { en = "a", vi = "b", zh = "c" }\nchapter = "01"'
    words = [
        ("b", "đẩy", "甲"),
        ("a", "dịch", "乙"),
        ("d", "ma", "丙"),
        ("c", "má", "丁"),
        ("e", "mà", "重试"),
        ("f", "ăn", "己"),
    ]
    written = "\n".join(f'[[term]]\nen = "{en}"\nvi = "{vi}"\nzh = "{zh}"\n{three}' for en, vi, zh in words)
    written += '\n[[term]]\nen = "x"\nvi = "y"\nzh = "z"\n'  # without a meaning it is not listed
    assert listed("en", written, tmp_path / "en") == list("abcdef")
    assert listed("vi", written, tmp_path / "vi") == ["ăn", "dịch", "đẩy", "ma", "mà", "má"]
    assert listed("zh", written, tmp_path / "zh") == [
        "丙",
        "重试",
        "丁",
        "己",
        "甲",
        "乙",
    ]  # bǐng, chóng, dīng, jǐ, jiǎ, yǐ


WORDS_ELSEWHERE = '[elsewhere]\n"ring" = ["ring", "vòng", "", "环", "环形, 圈"]\n'


def test_a_table_has_the_words_of_other_texts(tmp_path):
    """Each in its own language; what a text lacks is a dash, and search finds a term by all of them."""
    book = small(tmp_path)
    means = 'means = { en = "a", vi = "b", zh = "c" }'
    written = f'{WORDS_ELSEWHERE}[[term]]\nen = "ring"\nvi = "vòng tròn"\nzh = "环"\n{means}\n'
    (book.root / TERMS).write_text(written, "utf-8")
    book = Book(book.root)
    page = glossary_page("vi", book)
    row = page.partition("<tbody>")[2]
    assert re.findall(r'data-from="([^"]*)"', row) == [terms.text_in("vi", f"terms.{name}") for name in COLUMNS]
    assert re.findall(r'<span lang="([^"]*)">([^<]*)<', row) == [
        ("en", "ring"),
        ("en", "ring"),
        ("vi", "vòng"),
        ("zh-Hans", "环"),
        ("zh-Hans", "环形, 圈"),
    ]
    assert '<a href="#ring">vòng tròn</a>' in row and row.count("–") == 1
    glossary = Glossary(book.terms)
    assert terms.elsewhere(glossary, glossary.terms[0]) == "ring · vòng · 环 · 环形 · 圈"
    assert f">{terms.text_in('en', 'terms.english')}<" not in glossary_page("en", book)


@pytest.mark.parametrize(
    "written, message",
    [
        ({"none": ["a"] * 5}, "'none' in [elsewhere] is no term with a meaning"),
        ({"ring": ["ring"]}, "'ring' in [elsewhere] needs a word or \"\" for each of d2l, d2l-vi, d2l-vi-mt, d2l-zh"),
        ({"ring": [""] * 5}, "'ring' in [elsewhere] needs a word"),
    ],
)
def test_a_wrong_line_of_the_words_of_other_texts_is_named(written, message):
    with pytest.raises(BookError, match=re.escape(message)):
        Glossary({"term": [term("ring", "vòng", "环")], "elsewhere": written})


COLUMNS = ["english", "d2l", "d2l-vi", "d2l-vi-mt", "d2l-zh", "openmlsys"]
TERMS = "chapters/terms.toml"
LINK = 'en = "link"\nvi = "đường liên kết"'
WRONG = {
    "language": (f'means = {{ en = "a", vi = "b" }}\n{LINK}', "'link': means has no 'zh'; write it"),
    "long": (
        f'means = {{ en = "{"a " * 26}", vi = "b", zh = "c" }}\n{LINK}',
        "what 'link' means takes 26 words in en; say it in 25",
    ),
    "chapter": (f'chapter = "07"\n{LINK}', "'link': there is no chapter '07'; take one of 01"),
    "twice": (f'also = ["Link-Speed"]\n{LINK}', "'link speed' of 'link speed' looks the same as a word of 'link'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_faults_of_the_glossary_are_reported_on_loading(name, tmp_path):
    new, message = WRONG[name]
    book = small(tmp_path)
    edit(book, TERMS, LINK, new)
    with pytest.raises(BookError, match=re.escape(message)):
        Glossary(Book(book.root).terms)


def test_meanings_are_held_to_the_rules_of_all_texts(tmp_path):
    book = small(tmp_path)
    meaning = 'means = { en = "One. Two.", vi = "Một công nhân.", zh = "梯度,大家。" }'
    edit(book, TERMS, LINK, f"{meaning}\n{LINK}")
    said = [str(finding).split("\n")[0] for finding in check_meanings(Book(book.root)) if finding.level == "fail"]
    assert said == [
        "fail  link [zh]  chinese: '梯度,大家。': a half-width mark beside Chinese",
        "fail  link [vi]  glossary: 'công nhân' is not 'worker'; write 'máy thợ'",
        "fail  link [en]  sentence: 2 sentences where one is wanted",
    ]


# ---------------------------------------------------------------- in a browser

PAGE = """<!DOCTYPE html><html lang="vi"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>page</title><style>:root{--paper:#fff;--ink:#1c2230;--soft:#5d6778;--edge:#d5dae3;--box:#f6f8fb;--accent:#1952af}
body{margin:8px;background:#fff;color:#1c2230}%s</style>%s<script defer src="%s"></script><main><h1>page</h1>
<p>%s</p><p style="margin-top:150vh;text-align:right">%s</p><p><a href="#">later</a></p></main>"""


@pytest.fixture
def written(tmp_path):
    """The address of a page with a mark at its beginning and one far below at the right."""
    seen = set()
    first, last = (marked_terms(text, "vi", WORDS, seen) for text in ("Máy thợ ở đây.", "Ở cuối có khóa"))
    script = cards("vi", WORDS, seen)
    css, js = (THEME / "terms.css").read_text("utf-8"), (THEME / "terms.js").as_uri()
    (tmp_path / "page.html").write_text(PAGE % (css, script, js, first, last), "utf-8")
    (tmp_path / "glossary.html").write_text("<p id=worker>", "utf-8")
    return (tmp_path / "page.html").as_uri()


@pytest.fixture
def opened(new_page, written):
    """Opens that page, which asks for nothing that is not beside it and has no errors."""
    asked, wrong = [], []

    def open_it(page=None, **options):
        page = page or new_page(**options)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(written)
        return page

    yield open_it
    assert wrong == [] and all(url.startswith("file:") for url in asked)


def inside(page) -> bool:
    return page.evaluate(
        "() => { const r = document.querySelector('.term-card').getBoundingClientRect(), p = document.documentElement;"
        "return r.left >= 0 && r.top >= 0 && r.right <= p.clientWidth && r.bottom <= p.clientHeight"
        " && p.scrollWidth <= p.clientWidth }"
    )


def test_the_pointer_shows_the_card_and_may_go_into_it(opened):
    page = opened(viewport={"width": 360, "height": 640}, apart=True)
    card = page.locator(".term-card")
    expect(card).to_be_hidden()
    page.locator(".term").first.hover()
    expect(card).to_be_visible()
    assert card.inner_text().split("\n")[0].split() == ["máy", "thợ", "worker"]
    assert "máy thợ <b> & x" in card.inner_text() and inside(page)
    card.get_by_role("link").hover()
    page.evaluate("new Promise((done) => setTimeout(done, 400))")  # ends after each shorter timer that had begun
    expect(card).to_be_visible()
    page.mouse.move(300, 600)
    expect(card).to_be_hidden()
    page.locator(".term").last.hover()
    expect(card).to_be_visible()
    assert inside(page)
    page.locator(".term-card a").click()
    page.wait_for_url("**/glossary.html#key")


def test_the_keyboard_reaches_it_and_escape_closes_it(opened):
    page = opened(viewport={"width": 360, "height": 640})
    card = page.locator(".term-card")
    page.keyboard.press("Tab")
    card.wait_for(state="visible")
    noted = page.evaluate(
        "() => document.getElementById(document.activeElement.getAttribute('aria-describedby')).innerText"
    )
    assert noted == "máy thợ <b> & x"
    assert grave(page) == []
    page.keyboard.press("Escape")
    assert card.is_hidden()
    page.keyboard.press("Tab")
    card.wait_for(state="visible")
    assert inside(page) and "khóa" in card.inner_text()
    page.keyboard.press("Tab")
    assert card.is_hidden()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/glossary.html#key")


def test_a_finger_shows_it_and_another_tap_closes_it(chromium, opened):
    context = chromium.new_context(has_touch=True, viewport={"width": 360, "height": 640})
    try:
        page = opened(context.new_page())
        card = page.locator(".term-card")
        page.locator(".term").first.tap()
        card.wait_for(state="visible")
        assert page.url.endswith("page.html") and inside(page)
        page.locator(".term").first.tap()
        card.wait_for(state="hidden")
        page.locator(".term").first.tap()
        card.wait_for(state="visible")
        page.touchscreen.tap(300, 600)
        card.wait_for(state="hidden")
        page.locator(".term").first.tap()
        card.get_by_role("link").tap()
        page.wait_for_url("**/glossary.html#worker")
    finally:
        context.close()


def test_paper_has_no_card(opened):
    page = opened()
    page.keyboard.press("Tab")
    page.locator(".term-card").wait_for(state="visible")
    page.emulate_media(media="print")
    assert page.locator(".term-card").is_hidden()
    assert page.locator(".term").first.evaluate("term => getComputedStyle(term).textDecorationLine") == "none"


# ---------------------------------------------------------------- the book


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_mark_leads_to_an_entry_of_the_glossary(language):
    book = Book(ROOT)
    words = Glossary(book.terms)
    listed = set(re.findall(r'<dt id="([^"]*)"', glossary_page(language, book)))
    assert listed == {each.id for each in words.terms if each.means}
    for each in words.terms:
        seen = set()
        marked_terms(f"<p>{each.called(language)[0]}</p>", language, words, seen)
        assert seen <= listed


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_word_that_only_looks_like_a_term_is_left_alone(language):
    for each in Glossary(Book(ROOT).terms).terms:
        assert all(any(word in other for word in each.called(language)) for other in each.other[language]), each.en
