"""Each check, on a chapter with one fault: the finding, its place and its remedy; and all of them, on the course."""

from pathlib import Path

import pytest
from helpers.small_book import EN, LESSON, SLUG, VI, ZH, changes, edit, small

from course.book.__main__ import main
from course.book.agree import agreed
from course.book.check import check_chapter, check_figures, check_messages
from course.book.language import FILES, RULES
from course.book.library import Book
from d2lps.messages import LANGUAGES

EXERCISES = f"chapters/{SLUG}/exercises.toml"
MESSAGES = {language: f"d2lps/messages/{language}.toml" for language in LANGUAGES}


@pytest.fixture
def book(tmp_path):
    return small(tmp_path)


def found(book) -> list[str]:
    """What is found besides the staleness that every edit brings."""
    return [
        str(finding).split("\n")[0]
        for finding in check_chapter(book, SLUG) + check_messages(book)
        if finding.check not in ("agreed", "notebooks")
    ]


# Changes of a right book, and under each the first line of the finding.
CHANGES = """
# 1 the same shape
VI: Hãy chạy thử: ⇒ ### Hãy chạy thử
    fail  one [en vi]  shape: the heading levels are (2,) and (2, 3)
ZH: - 受限的是带宽。¶-  ⇒ 受限的是带宽。
    warn  one [en zh]  shape: items are 2 and 0
VI: Hãy chạy thử: ⇒ > Hãy chạy thử:
    warn  one [en vi]  shape: quotes are 0 and 1
VI: # Hai cách ⇒ # Hai cách khác
    fail  top [vi]  title: 'Hai cách khác' is 'Hai cách' in toc.toml
# 2 the same numbers
VI: 160\u00a0MB ⇒ 180\u00a0MB
    fail  top [en vi]  numbers: 160 MB in en, not in vi
ZH: 10\u00a0ms ⇒ 10\u00a0s
    fail  one [zh en]  numbers: 10 s in zh, not in en
ZH: GPU 0， ⇒ GPU，
    fail  one [en zh]  numbers: 0 in en, not in zh
VI: Bốn máy thợ ⇒ Những máy thợ
    warn  top [vi]  numbers: 4 in en zh, not in vi
VI: 16\u00a0GB/s ⇒ 16\u00a0Gb/s
    fail  one [vi]  notation: 'Gb/s': bits are Gbit/s, bytes are GB/s
EN: 16\u00a0GB/s ⇒ 16\u00a0Gbps
    fail  one [en]  notation: 'Gbps': bits are Gbit/s, bytes are GB/s
VI: 10\u00a0ms ⇒ 10,5\u00a0ms
    fail  one [vi]  notation: '10,5': the decimal mark is a point, and no comma parts thousands
VI: 10\u00a0ms ⇒ 10 ms
    fail  one [vi]  notation: '10 ms': a no-break space (U+00A0) stands between number and unit
EN: 10\u00a0ms ⇒ 10ms
    fail  one [en]  notation: '10ms': a no-break space (U+00A0) stands between number and unit
VI: GB/s ⇒ GB/giây
    fail  one [vi]  notation: 'GB/giây': units are copied, never translated: write /s
ZH: 10\u00a0ms ⇒ 10\u00a0毫秒
    fail  one [zh]  notation: '10\\xa0毫秒': units are copied, never translated: write s or ms
VI: Hãy chạy thử: ⇒ Hãy chạy thử trên Gbe:
    fail  one [vi]  notation: 'Gbe': the name is GbE
EN: Run it: ⇒ Run it at 50 %:
    fail  one [en]  notation: '50 %': no space stands before %
EN: Run it: ⇒ Run it 3 x 4:
    fail  one [en]  notation: '3 x 4': times is × (U+00D7)
EN: Run it: ⇒ Run it at -3:
    fail  one [en]  notation: '-3': a minus in prose is − (U+2212)
EN: Run it: ⇒ Run it 60 000 times:
    fail  one [en]  notation: '60 000': thousands are parted by a no-break space (U+00A0)
EN: Run it: ⇒ Run it 60000 times:
    warn  one [en]  notation: '60000': part thousands by a no-break space (U+00A0)
ZH: 运行一下： ⇒ 运行 6 万次：
    fail  one [zh en]  numbers: 60000 in zh, not in en
# 3 the same pieces
VI: $t = S/b$ ⇒ $t = S/B$
    fail  one [en vi]  formulas: only en: $t = S/b$; only vi: $t = S/B$
ZH: $n$ 个 ⇒ $n_\\text{个}$ 个
    fail  turn [zh]  formulas: $n_\\text{个}$ holds letters that TeX fonts lack; explain it in the prose
VI: `time` ⇒ `thời_gian`
    fail  one [en vi]  code: only en: time; only vi: thời_gian
VI: [[figure:star| ⇒ [[figure:line|
    fail  one [en vi]  figures: star and line
VI: [[figure:star|Các gradient gặp nhau trên GPU 0.]] ⇒ [[figure:star]]
    fail  one [vi]  figures: [[figure:star]] has no caption; write [[figure:star|what it shows]]
VI: , như [[cite:li-2014]] mô tả ⇒ ∅
    fail  one [en vi]  sources: only en: li-2014; only vi: none
EN: Run it: ⇒ Run [it](https://example.org/it):
    fail  one [en vi]  links: only en: https://example.org/it; only vi: none
EN: Run it: ⇒ Run [it](../../gone.md):
    fail  one [en]  links: ../../gone.md leads nowhere
EN: Run it: ⇒ Run [it](lesson.py):
    warn  one [en]  links: lesson.py is lost in a reader's copy; begin it with ../../
EN: [[cite:li-2014]] ⇒ [Li](https://example.org/li)
    fail  one [en]  links: https://example.org/li is in references.toml; write [[cite:…]]
# 5 one's own language
VI: Sau đó tổng ⇒ Sau đó tổng đi ngược lại đúng theo con đường ấy. The sum then goes back the same way as before. Sau đó tổng
    fail  one [vi]  language: 'The sum then goes back the same way as before.' is not Vietnamese
VI: Hãy chạy thử: ⇒ Now run the following cell in your own notebook and look at what it prints
    fail  one [vi]  language: 'Now run the following cell in your own notebook a…': only 0% of the words are Vietnamese
VI: ## Đến lượt bạn ⇒ ## Your turn
    fail  turn [vi]  language: 'Your turn' is not Vietnamese
VI: ## Đến lượt bạn ⇒ ## Your turn
    fail  turn [vi]  language: 'Your turn' is the English text
ZH: 运行一下： ⇒ Run the cell below.
    fail  one [zh]  language: 'Run the cell below.' is not Chinese
ZH: 运行一下： ⇒ 运行一下 and then look at what it prints 就好：
    fail  one [zh]  language: 'and then look at what it prints': a run of English words
ZH: 运行一下： ⇒ 运行，distributed，data-parallel，synchronization，framework。
    fail  one [zh]  language: '运行，distributed，data-parallel，synchronization，fram…': only 4% of the letters are Chinese
EN: Run it: ⇒ Run 它:
    fail  one [en]  language: 'Run 它:' is not English
ZH: 运行一下： ⇒ 运行 TODO：
    fail  one [zh]  language: 'TODO': an unfinished place
VI: Hãy chạy thử: ⇒ Hãy chạy thá»\u00ad Ã:
    fail  one [vi]  language: 'Ã': letters broken by a wrong encoding
# 6 the glossary
VI: dù có bao nhiêu máy thợ ⇒ dù có bao nhiêu công nhân
    fail  one [vi]  glossary: 'công nhân' is not 'worker'; write 'máy thợ'
ZH: 无论工作节点有多少 ⇒ 无论工人有多少
    fail  one [zh]  glossary: '工人' is not 'worker'; write '工作节点'
VI: - Băng thông là ⇒ - Băng thông, tức dải thông, là
    warn  one [vi]  glossary: 'dải thông': 'bandwidth' is 'băng thông'
VI: Băng thông là ⇒ Nó là
    warn  one [vi]  glossary: 'bandwidth' without 'băng thông'
VI: Băng thông là ⇒ Nó là
    fail  (chapter) [vi]  glossary: 7 of 8 terms are translated as the glossary says; 95% are needed
VI: máy thợ (worker) ⇒ máy thợ
    fail  top [vi]  first use: 'máy thợ' never carries (worker)
ZH: 四个工作节点（worker）各 ⇒ 四个工作节点各
    fail  top [zh]  first use: '工作节点' never carries (worker)
VI: bao nhiêu máy thợ. ⇒ bao nhiêu máy thợ (worker).
    warn  one [vi]  first use: 'máy thợ (worker)': the English stands at the first use only
ZH: 延迟不是 ⇒ 连线（link）的延迟不是
    fail  one [zh]  glossary: '连线（link）': 'link' is '链路'
VI: Hãy chạy thử: ⇒ Hãy chạy thử các bước (links, như ở trên):
    fail  one [vi]  glossary: 'hạy thử các bước (links,': 'link' is 'đường liên kết'
EXERCISES: Đường liên kết nào bận nhất? ⇒ Kết nối (link) nào bận nhất?
    fail  star.hints[1] [vi]  glossary: 'Kết nối (link)': 'link' is 'đường liên kết'
MESSAGES vi: bước {step} ⇒ đợt (step) {step}
    fail  step [vi]  glossary: 'đợt (step)': 'step' is 'bước'
# 7 Chinese typography
ZH: 梯度，大家 ⇒ 梯度,大家
    fail  top [zh]  chinese: '\\xa0MB 的梯度,大家都要得到': a half-width mark beside Chinese
ZH: 四个工作节点（worker） ⇒ 四个工作节点(worker)
    fail  top [zh]  chinese: '四个工作节点(worker': half-width parentheses beside Chinese
ZH: 受限的是带宽。 ⇒ 受限的是带宽.
    fail  one [zh]  chinese: '受限的是带宽.': a half-width full stop after Chinese
ZH: 受限的是带宽。 ⇒ 受限的是带宽。。
    fail  one [zh]  chinese: '受限的是带宽。。': two marks in a row
ZH: GPU 0， ⇒ ＧPU 0，
    fail  one [zh]  chinese: '的梯度发给 ＧPU 0，做': full-width letters or digits
ZH: 梯度，大家 ⇒ 梯度， 大家
    fail  top [zh]  chinese: 'MB 的梯度， 大家都要得到': a space beside a full-width mark
ZH: 运行一下 ⇒ "运行"一下
    fail  one [zh]  chinese: '"运行"一下：': straight quotes beside Chinese; write “…”
ZH: 梯度，大家 ⇒ 梯度，¶大家
    fail  top [zh]  chinese: 'MB 的梯度，\\n大家都要得到总': a line break inside a paragraph shows as a space; keep the paragraph on one line
ZH: 发给 GPU ⇒ 发给GPU
    fail  one [zh]  chinese: '自己的梯度发给GPU 0，做': no space between Chinese and Latin letters or digits
ZH: 请写出 $n$ ⇒ 请写出$n$
    warn  turn [zh]  chinese: '请写出$…$ 个工作节点': no space beside a formula or code
ZH: 运行一下 ⇒ 運行一下參
    fail  one [zh]  chinese: '運行一下參：': a traditional character
# 8 markup
VI: Hãy chạy thử: ⇒ Hãy * chạy* thử:
    fail  one [vi]  markup: 'Hãy * chạy* thử:': a * is left over
EN: $n$ workers ⇒ $n workers
    fail  turn [en]  markup: 'Write the time for $n workers.': a $ is left over
EN: see `time` ⇒ see `time
    fail  one [en]  markup: 'The latency is not; see `time.': a ` is left over
ZH: 运行一下： ⇒ **运行（一下）**就行：
    fail  one [zh]  markup: '**运行（一下）**就行：': a * is left over
# 9 Vietnamese letters
VI: Hãy chạy thử: ⇒ Ha\u0303y chạy thử:
    fail  one [vi]  vietnamese: the text is not in NFC; save it with composed letters
VI: Hãy chạy thử: ⇒ Hãy đồng bộ hoá:
    fail  one [vi]  vietnamese: 'g bộ hoá:': the tone stands on the first vowel, as in hóa, khỏe
VI: Hãy chạy thử: ⇒ Hãy chạy tuỳ ý:
    fail  one [vi]  vietnamese: 'chạy tuỳ ý:': the tone stands on the first vowel, as in tùy
VI: Hãy chạy thử: ⇒ Hãy chạy thật kĩ:
    fail  one [vi]  vietnamese: 'thật kĩ:': write y: kỹ, lý, mỹ, quý
VI: Hãy chạy thử: ⇒ Hãy tính tỉ lệ:
    fail  one [vi]  vietnamese: 'tính tỉ lệ:': write tỷ lệ
VI: ## Đến ⇒ ## Ðến
    fail  turn [vi]  vietnamese: 'Ðến l': a look-alike of đ (U+0111)
VI: Hãy chạy thử: ⇒ Hãy chạу thử:
    fail  one [vi]  vietnamese: 'у' is of another alphabet
VI: Hãy chạy thử: ⇒ Hãy chạy thử :
    fail  one [vi]  vietnamese: 'ạy thử :': no space stands before a mark
# 10 length
ZH: 运行一下： ⇒ 运行。看。想。写。运行。看。想。写。
    warn  one [zh]  length: 15 sentences, 8 in English
# 12 fingerprints
VI: Hãy chạy thử: ⇒ Hãy chạy thử mã của chúng tôi:
    warn  one [vi]  style: 'của chúng tôi' reads like a machine's translation
ZH: 运行一下： ⇒ 进行一次运行：
    warn  one [zh]  style: '进行' reads like a machine's translation
# the lesson
LESSON: time¶ ⇒ time  # seconds¶
    fail  one  lesson: the cell 'star' holds the comment '# seconds'; say it in the prose
LESSON: time = 160e6 / 16e9 ⇒ time = 160e6 / (8e9 + 1e9 + 1e9 + 1e9 + 1e9 + 1e9 + 1e9 + 1e9 + 1e9 + 1e9 - 1e9 + 0 + 0 + 0)
    fail  one  lesson: the cell 'star' has a line of 92 characters, 'time = 160e6 / (8e9 + 1e9 + 1e'…; break it, 90 fit beside a menu
LESSON: time¶ ⇒ time, "the time it takes"¶
    fail  one  lesson: the cell 'star' says "the time it takes"; move the sentence to d2lps/messages
LESSON:     # TODO¶ ⇒ ∅
    fail  turn  lesson: the cell 'exercise-star' is an exercise and needs one `# TODO`
EXERCISES: [star.hints] ⇒ [sun.hints]
    fail  (chapter)  exercises: no cell of lesson.py asks the exercise 'sun'
# messages and exercises
MESSAGES zh: step ⇒ stop
    fail  step [zh]  messages: the key is missing
MESSAGES vi: {step} ⇒ {bước}
    fail  step [en vi]  placeholders: only en: {step}; only vi: none
MESSAGES vi: 16 ⇒ 61
    fail  step [en vi]  numbers: 16 MB in en, not in vi
MESSAGES zh: {step} 步从 ⇒ {step} 步,从
    fail  step [zh]  chinese: '第 {…} 步,从 `…` 发送': a half-width mark beside Chinese
MESSAGES vi: bước {step} ⇒ bước công nhân {step}
    fail  step [vi]  glossary: 'công nhân' is not 'worker'; write 'máy thợ'
EXERCISES: Đường liên kết nào bận nhất? ⇒ Which link is used most?
    fail  star.hints[1] [vi]  language: 'Which link is used most?' is the English text
# 7 plain
EN: $n$ workers ⇒ $q_n$ workers
    fail  turn [en]  symbols: q is none of the symbols; take one of n, m, t, S, b, or add it
EXERCISES: 哪条链路最忙？ ⇒ 哪条链路最忙?
    fail  star.hints[1] [zh]  chinese: '哪条链路最忙?': a half-width mark beside Chinese
"""  # noqa: E501
NAMED = {"EN": EN, "VI": VI, "ZH": ZH, "LESSON": LESSON, "EXERCISES": EXERCISES}
NAMED |= {f"MESSAGES {language}": path for language, path in MESSAGES.items()}


WRONG = [
    *changes(CHANGES, NAMED),
    (
        VI,
        "Hãy chạy thử:",
        "Hãy chạy thử " + "thật kỹ, thật chậm rãi và thật cẩn thận " * 6 + "nhé:",
        "warn  one [vi]  length: 1.77 times the English; 0.8 to 1.4 is usual",
    ),
    (
        EN,
        "The sum then goes back the same way, and it takes",
        "The sum then goes back the same way, " + "and it waits, " * 13 + "and it takes",
        "fail  one [en]  sentence: 'The sum then goes back the same way, and it waits…': 58 words in one sentence; "
        "at most 35",
    ),
    (
        ZH,
        "- 受限的是带宽。",
        "- 受限的是带宽" + "，而不是任何别的东西" * 7 + "。",
        f"warn  one [zh]  sentence: '受限的是带宽{'，而不是任何别的东西' * 4}，而不…': "
        "69 characters in one sentence; at most 60",
    ),
]


def test_the_book_is_right_to_begin_with(book):
    assert found(book) == []


@pytest.mark.parametrize("name, old, new, finding", WRONG, ids=[wrong[3].split(": ")[0] for wrong in WRONG])
def test_a_wrong_place_is_found(book, name, old, new, finding):
    edit(book, name, old, new)
    assert finding in found(book)


# Lines that look wrong and are right, in the three languages.
RIGHT = {
    "names and units": ["Ethernet, 100\u00a0Gbit/s"] * 3,
    "a word that begins like a unit": ["128 examples", "128 mẫu", "128 个样本"],
    "names": ["PyTorch NVLink MirroredStrategy"] * 3,
    "a ring of names": ["It goes 1-2-3-1 on DGX-1V", "Nó đi 1-2-3-1 trên DGX-1V", "沿 1-2-3-1 走，在 DGX-1V 上"],
    "an aside": [
        "That is so (all of it)",
        "Là thế (as the five or six English words say)",
        "就是这样（as the five or six English words say）",
    ],
    "spelled out": ["Twelve of them", "Mười hai cái", "十二个"],
    "half spelled out": ["There are 3", "Có ba", "有三个"],
    "bold": ["**Here** it is", "**Đây** rồi", "**这里**（就是）"],
    "a table": ["| a | b |\n|---|---|\n| 1\u00a0ms | 2× |"] * 3,
    "a longer term": [
        "The link speed (that of links) is high",
        "Tốc độ đường truyền (của đường liên kết) thì cao",
        "线速（即链路的速度）很高",
    ],
    "a formula at a mark": ["So $n$, $m$ and `x`.", "Vậy $n$, $m$ và `x`.", "于是有 $n$、$m$ 和 `x`。"],
    "a call and a pair": [
        "It calls send(link, step) with (link, step)",
        "Nó gọi send(link, step) với (link, step)",
        "它调用 send(link, step)，给出 (link, step)",
    ],
    "a tuple": ["At (10, 20) it is", "Ở (10, 20) đấy", "在 (10, 20) 处"],
}


@pytest.mark.parametrize("right", RIGHT)
def test_a_right_place_is_left_alone(book, right):
    places = (EN, "Run it:"), (VI, "Hãy chạy thử:"), (ZH, "运行一下：")
    for (name, old), new in zip(places, RIGHT[right], strict=True):
        edit(book, name, old, new)
    assert found(book) == []


TERMS = "chapters/terms.toml"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    {
        "a translation of two terms": (
            'zh = "线速"',
            'zh = "链路"',
            "'链路' translates both 'link' and 'link speed' into zh; give each its own word",
        ),
        "one that differs in capitals": (
            'vi = "bước"',
            'vi = "Đường liên kết"',
            "'Đường liên kết' translates both 'link' and 'step' into vi; give each its own word",
        ),
        "a term with two translations": (
            'zh = "链路"',
            'zh = ["链路", "连线"]',
            "'link' has two translations in zh, '链路' and '连线'; keep one",
        ),
        "a term with another one allowed": (
            'vi = "bước"',
            'vi = "bước"\nallow_vi = ["đợt"]',
            "'step' has two translations in vi, 'bước' and 'đợt'; keep one",
        ),
    }.values(),
)
def test_a_term_has_one_translation_and_a_translation_one_term(book, capsys, old, new, said):
    edit(book, TERMS, old, new)
    capsys.readouterr()
    assert main(["--root", str(book.root), "check", "01"]) == 1
    assert capsys.readouterr().err == f"error: terms.toml: {said}\n"


def test_two_terms_share_a_translation_if_the_second_names_the_first(book):
    edit(book, TERMS, 'zh = "线速"', 'zh = "链路"\nshares_zh = "link"')
    assert found(book) == []


def test_a_listed_word_may_bear_the_english_of_a_term(book):
    edit(book, VI, "Hãy chạy thử:", "Hãy chạy thử ở tiến trình (worker) này:")
    assert "fail  one [vi]  glossary: 'thử ở tiến trình (worker)': 'worker' is 'máy thợ'" in found(book)
    edit(book, TERMS, 'no_vi = ["công nhân"]', 'no_vi = ["công nhân"]\nbears_vi = ["tiến trình"]')
    assert not [each for each in found(Book(book.root)) if "tiến trình (worker)': " in each]


def test_a_count_may_be_written_as_each_language_does(book):
    edit(book, EN, "Run it:", "Run it 175 billion times:")
    edit(book, VI, "Hãy chạy thử:", "Hãy chạy thử 175 tỷ lần:")
    edit(book, ZH, "运行一下：", "运行 1750 亿次：")
    assert found(book) == []


def test_a_finding_says_where_what_and_how_to_mend_it(book, capsys):
    edit(book, VI, "16\u00a0GB/s", "16\u00a0Gb/s")
    edit(book, VI, "Hãy chạy thử:", "Hãy chạy mã của chúng tôi:")
    capsys.readouterr()
    assert main(["--root", str(book.root), "check", "01"]) == 1
    said = capsys.readouterr().out
    assert (
        "fail  one [vi]  notation: 'Gb/s': bits are Gbit/s, bytes are GB/s\n      → edit chapters/01-small/vi.md\n"
    ) in said
    assert said.index("fail  one [vi]") < said.index("warn  one [vi]  style")
    assert "→ python -m course.book build 01-small\n" in said
    assert "→ read them, then python -m course.book agree 01-small one\n" in said
    assert said.endswith(" to mend, 1 to look at\n")


def test_warnings_alone_pass(book):
    edit(book, VI, "Hãy chạy thử:", "Hãy chạy mã của chúng tôi:")
    assert main(["--root", str(book.root), "build"]) == 0
    assert main(["--root", str(book.root), "agree", "one"]) == 0
    assert main(["--root", str(book.root), "check"]) == 0


def test_a_chapter_that_cannot_be_built_is_reported_fault_by_fault(book):
    edit(book, VI, "[[last]]\n", "")
    edit(book, ZH, "[[cite:li-2014]]", "[[cite:li-2041]]")
    assert [(finding.check, finding.section, finding.languages) for finding in check_chapter(book, SLUG)] == [
        ("structure", "turn", ("vi",)),
        ("structure", "one", ("zh",)),
    ]
    edit(book, ZH, "{#one}", "")
    assert [(finding.check, finding.section) for finding in check_chapter(book, SLUG)] == [("structure", "(chapter)")]


def test_an_exercise_has_texts(book):
    (book.root / EXERCISES).write_text("")
    assert found(book) == ["fail  turn  exercises: the exercise 'star' has no texts"]


def test_exercise_texts_have_the_same_shape_in_every_language(book):
    edit(book, EXERCISES, 'vi = ["Đường liên kết nào bận nhất?"]', "vi = []")
    assert [finding.message for finding in check_chapter(book, SLUG)] == [
        "exercises.toml: star.hints is not the same in en, vi, zh; "
        "give every language the same keys and as many entries"
    ]


@pytest.mark.parametrize(
    ("name", "old", "new", "sections"),
    [
        (EN, "Run it:", "Now run it:", ["one"]),
        (VI, "Rồi hãy xem", "Sau đó hãy xem", ["turn"]),
        (ZH, "大家都要", "谁都要", ["top"]),
        (LESSON, "160e6", "80e6", ["one"]),
        ("img/star.svg", "<svg/>", "<svg></svg>", ["one"]),
        (EXERCISES, "哪条链路最忙？", "哪一条链路最忙？", ["turn"]),
        (MESSAGES["vi"], "gửi", "đang gửi", ["turn"]),
    ],
)
def test_each_change_makes_its_section_stale(book, name, old, new, sections):
    edit(book, name, old, new)
    stale = [finding for finding in check_chapter(book, SLUG) if finding.check == "agreed"]
    assert [finding.section for finding in stale] == sections
    assert stale[0].message == "the section has changed since its three texts were read side by side"


def test_other_colours_are_no_other_figure(book):
    figure = book.figure("star")

    def stale(svg: str) -> list[str]:
        figure.write_text(svg, "utf-8")
        return [finding.section for finding in check_chapter(book, SLUG) if finding.check == "agreed"]

    assert stale("<svg><style>.a{fill:red}</style></svg>\n") == ["one"]
    assert main(["--root", str(book.root), "agree", "one"]) == 0
    assert stale("<svg><style>.a{fill:blue}</style></svg>\n") == []
    assert stale("<svg><style>.a{fill:red}</style><path/></svg>\n") == ["one"]


def test_agree_shows_the_heads_and_renews_only_the_named_sections(book, capsys):
    edit(book, EN, "Run it:", "Now run it:")
    edit(book, EN, "Write the time", "Write down the time")
    before = agreed(book, SLUG)
    assert main(["--root", str(book.root), "agree", "turn"]) == 0
    said = capsys.readouterr().out
    assert "en  Your turn Write down the time for … workers." in said
    assert "vi  Đến lượt bạn Hãy viết thời gian cho … máy thợ." in said
    assert said.endswith("agreed: turn\n")
    after = agreed(book, SLUG)
    assert after["turn"] != before["turn"]
    assert after["one"] == before["one"]
    assert [finding.section for finding in check_chapter(book, SLUG) if finding.check == "agreed"] == ["one"]


def test_agree_refuses_a_section_with_open_findings(book, capsys):
    edit(book, VI, "16\u00a0GB/s", "16\u00a0Gb/s")
    before = (book.folder(SLUG) / "agreed.txt").read_bytes()
    assert main(["--root", str(book.root), "agree", "01", "one"]) == 1
    assert capsys.readouterr().out.endswith("nothing is agreed while these are open\n")
    assert (book.folder(SLUG) / "agreed.txt").read_bytes() == before
    assert main(["--root", str(book.root), "agree", "01", "turn"]) == 0


def test_agree_wants_sections_that_exist(book, capsys):
    assert main(["--root", str(book.root), "agree"]) == 1
    assert capsys.readouterr().err == "error: name the sections that were read, or --all; 01-small has top, one, turn\n"
    assert main(["--root", str(book.root), "agree", "two"]) == 1
    assert capsys.readouterr().err == "error: 01-small has no section 'two'; it has top, one, turn\n"


def test_a_section_that_is_gone_leaves_the_file(book):
    (book.folder(SLUG) / "agreed.txt").write_text(f"gone 0123\n{(book.folder(SLUG) / 'agreed.txt').read_text()}")
    assert [(finding.section, finding.message) for finding in check_chapter(book, SLUG)] == [
        ("gone", "agreed.txt names a section that no text has")
    ]
    assert main(["--root", str(book.root), "agree", "--all"]) == 0
    assert check_chapter(book, SLUG) == []


def test_a_notebook_that_the_sources_do_not_give_is_found(book):
    path = book.folder(SLUG) / "zh.ipynb"
    path.write_text(path.read_text("utf-8").replace("两种办法", "两种方法"), "utf-8")
    assert [(f.check, f.languages, f.remedy) for f in check_chapter(book, SLUG)] == [
        ("notebooks", ("zh",), "python -m course.book build 01-small")
    ]


def test_a_stale_figure_is_found_and_drawn_again(book, capsys):
    drawing = 'def star():\n    return "<svg>star</svg>"\n\n'
    drawing += 'def new_one():\n    return _plain()\n\ndef _plain():\n    return "<svg/>"\n'
    (book.folder(SLUG) / "figures.py").write_text(drawing, "utf-8")
    assert [finding.section for finding in check_figures(book)] == ["img/star.svg"]
    assert main(["--root", str(book.root), "figures"]) == 0
    assert capsys.readouterr().out == "wrote img/star.svg\nwrote img/new-one.svg\n"
    assert list(check_figures(book)) == []


def test_a_course_without_figures_of_its_own_says_where_they_are_written(book, capsys):
    assert main(["--root", str(book.root), "figures"]) == 1
    assert "no chapter has a figures.py" in capsys.readouterr().err


def test_the_book_passes_every_check(capsys):
    mended = main(["--root", str(Path(__file__).parents[2]), "check"]) == 0
    assert mended, capsys.readouterr().out


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_rule_finds_the_place_that_its_file_gives_as_an_example(language):
    for rule in RULES[language]:
        assert list(rule.places(rule.example)), f"{language}.toml: {rule.pattern} is not in {rule.example!r}"
    assert len(FILES[language]["numbers"]["spelled"]) == 13  # zero to twelve
