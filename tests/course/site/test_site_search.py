"""The search page with a small index: typed words find their typeset forms, and exactly these are marked."""

from pathlib import Path
from urllib.parse import quote

import pytest
from helpers import browser as browsers

from course.site import search

chromium, new_page = browsers.chromium, browsers.new_page
SCRIPT = Path(search.__file__).parent / "theme" / "search.js"
PAGE = (
    '<!DOCTYPE html><html lang="{}"><meta charset="utf-8"><input name="q">'
    '<p id="found" data-found="{{n}}" data-none="0" data-near="near {{other}}" data-like="like {{other}}">'
    '</p><ol id="results"></ol>'
    '<script src="sections.js"></script><script src="search.js"></script>'
)
TEXTS = {
    "en": "A key–value store and halving–doubling send 2(n − 1)/n of it, by reduce-scatter, an AllReduce, and a ring – "
    "as others do; so does a worker’s rank. Here n − k = 3, max − mean, and b ≤ 7.",
    "vi": "Khóa này của máy chủ; thủy lôi quý, khỏe và hoà. Truyền key–value, toán.",
    "zh": "键–值存储——环形的 2(n − 1) 步，reduce-scatter。",
}


@pytest.fixture
def marks(new_page, tmp_path):
    def search_for(language: str, query: str, text: str = "") -> list[str]:
        entry = search.Entry("Page", "Section", "page.html#s", text or TEXTS[language])
        (tmp_path / "sections.js").write_text(search.script([entry]), "utf-8")
        (tmp_path / "search.js").write_text(SCRIPT.read_text("utf-8"), "utf-8")
        (tmp_path / "search.html").write_text(PAGE.format("zh-Hans" if language == "zh" else language), "utf-8")
        page = new_page()
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(f"{(tmp_path / 'search.html').as_uri()}?q={quote(query)}")
        instead = page.locator("#found").inner_text().startswith(("near", "like"))  # results for another word
        return [] if instead else page.locator("#results mark").all_inner_texts()

    return search_for


@pytest.mark.parametrize(
    ("language", "query", "found"),
    [
        *[("en", f"key{sign}value store", ["key–value store"]) for sign in "-–−‐‑—"],
        ("en", "keyvalue", ["key–value"]),
        ("en", "halving-doubling", ["halving–doubling"]),
        ("en", "halving−", ["halving"]),
        *[("en", f"2(n{sign}1)", ["2(n − 1)"]) for sign in ("-", "−", " − ", " - ", "–")],
        ("en", "reducescatter", ["reduce-scatter"]),
        ("en", "Reduce-Scatter", ["reduce-scatter"]),
        ("en", "all-reduce", ["AllReduce"]),
        ("en", "allre\u00adduce", ["AllReduce"]),
        ("en", "worker's", ["worker’s"]),
        ("en", "n-k", ["n − k"]),
        ("en", "n-k=3", ["n − k = 3"]),
        ("en", "b≤7", ["b ≤ 7"]),
        ("en", "max-mean", ["max − mean"]),
        ("vi", "khoá", ["Khóa"]),
        ("vi", "KHÓA", ["Khóa"]),
        ("vi", "kho\u0301a", ["Khóa"]),
        ("vi", "khoa\u0301", ["Khóa"]),
        ("vi", "khoa", ["Khóa"]),
        ("vi", "khoà", []),
        ("vi", "hòa", ["hoà"]),
        ("vi", "thuỷ", ["thủy"]),
        ("vi", "quý", ["quý"]),
        ("vi", "khoẻ", ["khỏe"]),
        ("vi", "toán", ["toán"]),
        ("vi", "máy chủ", ["máy chủ"]),
        ("vi", "key-value", ["key–value"]),
        ("zh", "键-值存储", ["键–值存储"]),
        ("zh", "2（n-1）", ["2(n − 1)"]),
        ("zh", "reducescatter", ["reduce-scatter"]),
    ],
)
def test_typed_words_find_their_typeset_forms(marks, language, query, found):
    assert marks(language, query) == found


@pytest.mark.parametrize("language", ["vi", "en"])
def test_each_vowel_pair_has_its_tone_on_either_vowel_in_vietnamese_alone(marks, language):
    pairs = ("óa oá", "òa oà", "ỏa oả", "õa oã", "ọa oạ", "óe oé", "òe oè", "ỏe oẻ", "õe oẽ", "ọe oẹ")
    pairs += ("úy uý", "ùy uỳ", "ủy uỷ", "ũy uỹ", "ụy uỵ")
    for one, other in map(str.split, pairs):
        found = [f"x{one}"] if language == "vi" else []
        assert marks(language, f"x{other}", text=f"x{one}") == found, other


def test_results_follow_typing_and_begin_with_the_defining_section(new_page, tmp_path):
    html = "<p>This idle time is called the <strong>bubble</strong>.</p>"
    entries = [
        search.Entry("9", "Zero bubble", "9.html#zero", "bubble bubble bubble bubble bubble"),
        search.Entry("9", "One", "9.html#one", search.words(html), search.defined(html)),
    ]
    (tmp_path / "sections.js").write_text(search.script(entries), "utf-8")
    (tmp_path / "search.js").write_text(SCRIPT.read_text("utf-8"), "utf-8")
    (tmp_path / "search.html").write_text(PAGE.format("en"), "utf-8")
    page = new_page()
    page.goto((tmp_path / "search.html").as_uri())
    assert page.locator("#results a").count() == 0
    page.locator("input").press_sequentially("Bubble")
    page.locator("#results a").first.wait_for()
    addresses = page.locator("#results a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    assert addresses == ["9.html#one", "9.html#zero"]
    page.locator("input").fill("")
    page.wait_for_function("!document.querySelector('#results a')")


TERMS = [
    search.Entry("Package", "ring", "../api/algorithms.html#ring", "ring ring ring, and the ring of a plan"),
    search.Entry("Package", "allreduce", "../api/carriers.html#allreduce", "all reduce, all reduce"),
    search.Entry("2", "Rings", "02.html#rings", "A ring needs 2(n − 1) steps, 环, vòng; an all-reduce."),
    search.Entry("Terms", "ring", "glossary.html#ring", "Each sends to the next.", "|ring|vòng|环|"),
    search.Entry("Terms", "all-reduce", "glossary.html#all-reduce", "All get the sum.", "|all-reduce|"),
    search.Entry("Terms", "server", "glossary.html#server", "Adds.", "|parameter server|máy chủ tham số|参数服务器|"),
]


@pytest.mark.parametrize(
    ("language", "query", "first", "said"),
    [
        ("en", "ring", "ring", "3"),
        ("vi", "ring", "ring", "3"),
        ("vi", "vòng", "ring", "2"),
        ("zh-Hans", "環", "ring", "2"),
        ("en", "all reduce", "all-reduce", "3"),
        ("en", "allreduce", "all-reduce", "3"),
        ("en", "rinng", "ring", "near ring"),
        ("en", "rign", "ring", "near ring"),
        ("en", "parameter servr", "server", "near parameter server"),
        ("vi", "vònng", "ring", "near vòng"),
        ("vi", "vonng", "ring", "near vòng"),
        ("vi", "may chu tham xo", "server", "near máy chủ tham số"),
        ("zh-Hans", "參數服務機", "server", "near 参数服务器"),
        ("en", "parameter serving", "server", "like parameter server"),
        ("en", "xyzzy", None, "0"),
    ],
)
def test_a_term_comes_first_and_what_is_misspelt_is_found(new_page, tmp_path, language, query, first, said):
    (tmp_path / "sections.js").write_text(search.script(TERMS), "utf-8")
    (tmp_path / "search.js").write_text(SCRIPT.read_text("utf-8"), "utf-8")
    (tmp_path / "search.html").write_text(PAGE.format(language), "utf-8")
    page = new_page()
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(f"{(tmp_path / 'search.html').as_uri()}?q={quote(query)}")
    assert page.locator("#found").inner_text() == said
    found = page.locator("#results a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    assert found[:1] == ([f"glossary.html#{first}"] if first else [])
