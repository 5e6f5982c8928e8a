"""The site of a small book: its pages, its refusals, and the last site, which stays after a failure."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
from helpers.small_book import LESSON, PICTURE, SLUG, VI, edit, with_site
from helpers.small_site import bare
from IPython.core.inputtransformer2 import TransformerManager

import course.site.__main__ as site_command
import d2lps
from course.book import chromium
from course.book.__main__ import main
from course.book.findings import BookError
from course.book.library import Book
from course.site import downloads, exercises, outputs, pdf, proof, runs, search
from course.site.build import build
from course.site.pages import Site
from course.site.prose import Prose
from course.site.runs import ChapterRun
from d2lps.messages import LANGUAGES

FRONT = "# {0}\n\nLead.\n\n[[race]]\n\nText.\n\n[[chapters]]\n\nEnd.\n"


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A small book that has all that a site needs."""
    root = with_site(tmp_path, FRONT)
    lesson = root / LESSON
    lesson.write_text(lesson.read_text("utf-8").replace('d2lps.text("step", step=1)', "1"), "utf-8")
    bare(monkeypatch)
    assert main(["--root", str(root), "build"]) == 0
    return Book(root)


def test_a_chapter_that_is_left_out_is_its_title_without_a_link(book):
    """Also where the glossary names it; one that is not there at all is refused."""
    root = book.root
    (root / "chapters/02-more").mkdir()
    for language in LANGUAGES:
        (root / f"chapters/02-more/{language}.md").write_text(f"# More {language}\n", "utf-8")
        text = root / f"chapters/{SLUG}/{language}.md"
        text.write_text(
            text.read_text("utf-8").replace("[[cite:li-2014]]", "[[cite:li-2014]] [[chapter:02]]", 1), "utf-8"
        )
    terms = root / "chapters/terms.toml"
    means = 'means = { en = "Who sums.", vi = "Ai cộng.", zh = "求和者。" }\nchapter = "02"\n'
    terms.write_text(terms.read_text("utf-8").replace('vi = "máy thợ"\n', f'vi = "máy thợ"\n{means}', 1), "utf-8")
    assert main(["--root", str(root), "build"]) == 0
    assert "More vi" in (root / f"chapters/{SLUG}/vi.ipynb").read_text("utf-8")
    site = made(Book(root))
    pages = {path.name: path.read_text("utf-8") for path in (site / "en").glob("*.html")}
    assert "More en" in pages[f"{SLUG}.html"] and not any("02-more" in page for page in pages.values())
    assert any("Who sums." in page for page in pages.values())
    edit(Book(root), VI, "[[chapter:02]]", "[[chapter:03]]")
    with pytest.raises(BookError, match=r"there is no \[\[chapter:03\]\]"):
        Book(root).chapter(SLUG)


def ran(html: str = "<b>12</b>") -> ChapterRun:
    shown = {"output_type": "execute_result", "data": {"text/plain": "12", "text/html": html}, "metadata": {}}
    printed = {"output_type": "stream", "name": "stdout", "text": "\x1b[31m1 < 2\x1b[0m"}
    return ChapterRun({language: {"star": [printed, shown]} for language in LANGUAGES}, "2026-01-31", "2 × x86_64")


def made(book: Book, run: ChapterRun | None = None, **options) -> Path:
    return build(book, run=lambda slug: run or ran(), pdf=False, **options)


def test_pages_have_the_texts_and_the_outputs(book):
    site = made(book)
    page = (site / f"vi/{SLUG}.html").read_text("utf-8")
    for piece in (
        '<html lang="vi"',
        "<h1>1. Hai cách</h1>",
        '<section id="one"><h2>Mọi thứ đi qua một máy thợ',
        '<pre class="printed" tabindex="0">1 &lt; 2</pre>',
        "<b>12</b>",
        '<a href="references.html#li-2014"',
        '<img src="../img/star.svg" alt="Các gradient gặp nhau trên GPU 0." width="40" height="30"',
        "<figcaption>Hình 1.1. Các gradient gặp nhau trên GPU 0.</figcaption>",
        "<mi>t</mi>",
        "<summary>Gợi ý 1/1</summary><p>Đếm.</p>",
        "<summary>Lời giải</summary>",
        "2026-01-31",
        f'<a href="../zh/{SLUG}.html" lang="zh-Hans"',
        f'<a href="notebooks/{SLUG}.ipynb" download="{SLUG}-vi.ipynb"',
    ):
        assert piece in page, piece
    assert "d2lps.speak" not in page and "github" not in page
    index = json.loads(
        (site / "vi/sections.js").read_text("utf-8").removeprefix("window.D2_SECTIONS=").removesuffix(";\n")
    )
    assert [(each["title"], each["url"]) for each in index if each["page"] == "1. Hai cách"] == [
        ("1. Hai cách", f"{SLUG}.html"),
        ("Mọi thứ đi qua một máy thợ", f"{SLUG}.html#one"),
        ("Đến lượt bạn", f"{SLUG}.html#turn"),
    ]


def test_the_root_page_shows_the_course_before_the_language_is_chosen(book):
    (book.root / "img/moving-ring.svg").write_text(PICTURE, "utf-8")
    toc = book.root / "chapters/toc.toml"
    toc.write_text(toc.read_text("utf-8").replace("title =", "minutes = 7\ntitle =", 1), "utf-8")
    figures = book.root / f"chapters/{SLUG}/figures.py"
    figures.write_text(
        "from d2lps import cost, pcie_server, ring\nfrom d2lps.schedule import gpipe, pipeline\n\n\ndef opening():\n"
        '    race = cost.shared(ring(["gpu0", "gpu1"]), pcie_server(gpus=2), "1 MB")\n'
        '    return {"GPipe": cost.shared(pipeline(gpipe(2, 2))), "ring": race}\n',
        "utf-8",
    )
    site = made(Book(book.root))
    root = (site / "index.html").read_text("utf-8")
    for piece in (
        '<img src="img/moving-ring.svg" alt="Four GPUs',
        f'<img src="thumbnails/{SLUG}.svg" alt="1. Two ways" loading="lazy">',
        f'<a href="en/{SLUG}.html">1. Two ways</a></h2><p>Two.</p><small>7 minutes</small>',
        '<meta property="og:description" content="Four GPUs train one network',
        '<link rel="icon" href="_static/icon.svg"',
        "<code>make lab</code>",
    ):
        assert piece in root, piece
    assert "gpu1" in (site / f"thumbnails/{SLUG}.svg").read_text("utf-8") and (site / "_static/icon.svg").is_file()
    page = (site / "vi/index.html").read_text("utf-8")
    assert f'<img src="../thumbnails/{SLUG}.svg" alt="1. Hai cách"' in page and "<small>7 phút</small>" in page
    assert '<meta property="og:description" content="Hai.">' in (site / f"vi/{SLUG}.html").read_text("utf-8")
    (book.root / "pyproject.toml").write_text('[project]\nurls.Repository = "https://github.com/a/b"\n', "utf-8")
    again = (made(Book(book.root)) / "index.html").read_text("utf-8")
    assert "<code>git clone https://github.com/a/b course\ncd course\nmake lab</code>" in again


def test_a_repository_brings_links_to_edit_and_copies_for_colab(book):
    (book.root / "pyproject.toml").write_text(
        '[project]\nname = "x"\nurls.Repository = "https://github.com/a/b/"\n', "utf-8"
    )
    site = made(book)
    page = (site / f"zh/{SLUG}.html").read_text("utf-8")
    assert f"https://github.com/a/b/edit/main/chapters/{SLUG}/zh.md" in page
    assert f"https://colab.research.google.com/github/a/b/blob/gh-pages/zh/colab/{SLUG}.ipynb" in page
    (template,) = re.findall(r"https://github.com/a/b/issues/new\?template=([\w.-]+)", page)
    assert (Path(d2lps.__file__).parents[1] / ".github/ISSUE_TEMPLATE" / template).is_file()
    copy = nbformat.read(site / f"zh/colab/{SLUG}.ipynb", as_version=4)
    nbformat.validate(copy)
    assert "git clone -q --depth 1 https://github.com/a/b" in copy.cells[0].source
    assert "https://raw.githubusercontent.com/a/b/main/img/star.svg" in "".join(cell.source for cell in copy.cells)


@pytest.mark.parametrize(
    "homepage, domain", [("https://d2lps.example.org/", "d2lps.example.org"), ("https://a.github.io/b", None)]
)
def test_a_domain_of_ones_own_is_written_into_the_site(homepage, domain, book):
    (book.root / "pyproject.toml").write_text(f'[project]\nname = "x"\nurls.Homepage = "{homepage}"\n', "utf-8")
    file = made(book) / "CNAME"
    assert (file.read_text("utf-8").strip() if file.exists() else None) == domain


@pytest.mark.parametrize("there", [False, True])
def test_only_on_colab_the_first_cell_installs_something(there, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("colab"))
    if not there:
        del sys.modules["google.colab"]
    did = []
    monkeypatch.setattr(os, "chdir", did.append)
    shell = SimpleNamespace(system=did.append, run_line_magic=lambda *words: did.append(" ".join(words)))
    code = TransformerManager().transform_cell(downloads._install("https://example.org/a/b", SLUG))
    exec(code, {"get_ipython": lambda: shell})
    expected = [
        "git clone -q --depth 1 https://example.org/a/b /content/course",
        "pip install -q ",
        "/content/course/chapters",
    ]
    assert (
        [each.startswith(start) for each, start in zip(did, expected, strict=True)] == [True] * 3 if there else not did
    )
    assert "numpy" not in code and "d2l==" not in code


def test_a_notebook_to_take_away_has_its_pictures(book):
    copy = nbformat.reads(downloads.notebooks(book)[f"en/notebooks/{SLUG}.ipynb"], as_version=4)
    (cell,) = (cell for cell in copy.cells if "attachments" in cell)
    assert "](attachment:star.svg)" in cell.source and set(cell.attachments["star.svg"]) == {"image/svg+xml"}


WRONG = {
    "a link that leads nowhere": (lambda book: ran('<a href="there.html">x</a>'), "the link there.html leads nowhere"),
    "a section that is not there": (lambda book: ran('<a href="#none">x</a>'), "leads to no part of that page"),
    "a player that is not there": (
        lambda book: ran('<a href="#player:x?at=1ms">x</a>'),
        "there is no player for #player:x",
    ),
    "a script from elsewhere": (
        lambda book: ran('<script src="https://a.b/c.js"></script>'),
        "<script> asks https://a.b/c.js",
    ),
    "a picture without words": (lambda book: ran('<img src="data:,">'), "a picture without words"),
    "an id given twice": (lambda book: ran('<a href="#one" id="one">x</a>'), "the id 'one' 2 times"),
    "another language": (lambda book: ran("<p>đường liên kết</p>"), "vi in a part that is en: đường liên kết"),
    "all languages": (lambda book: ran("<p>⟦a⟠b⟠c⟧</p>"), "all languages at once"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_named_and_the_last_site_stays(book, name):
    site = made(book)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    run, sentence = WRONG[name]
    with pytest.raises(BookError, match=r"the site has faults and does not replace the last one:\n") as error:
        made(book, run(book))
    assert sentence in str(error.value) and f"{SLUG}.html" in str(error.value)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    assert [path.name for path in book.root.iterdir() if path.name.startswith("._site")] == []


REFUSED = {
    "a section in one language only": (
        VI,
        "## Đến lượt bạn {#turn}",
        "## Đến lượt bạn {#turns}",
        "'turn' of en.md is missing",
    ),
    "a missing figure": (VI, "figure:star", "figure:moon", "there is no figure img/moon.svg"),
    "an undefined citation": (VI, "cite:li-2014", "cite:li-2015", "no source 'li-2015'"),
    "a formula that cannot be shown": (
        VI,
        "$t = S/b$",
        r"$t = \nonsense S/b$",
        r"the formula \$t = \\nonsense S/b\$ cannot be shown",
    ),
    "notebooks of before": (VI, "Hãy chạy thử", "Hãy thử chạy", "vi.ipynb does not match its sources; .* build"),
    "no solution": (f"chapters/{SLUG}/solutions.py", "star", "moon", "solutions.py has no star"),
    "no exercise": (
        f"chapters/{SLUG}/exercises.toml",
        "[star]\n[[star",
        "[moon]\n[[moon",
        "exercises.toml has no exercise 'star'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_in_the_sources_is_one_sentence(book, name):
    path, old, new, sentence = REFUSED[name]
    edit(book, path, old, new)
    if "formula" in name:
        main(["--root", str(book.root), "build"])
    with pytest.raises(BookError, match=sentence):
        made(Book(book.root))
    assert not (book.root / "_site").exists()


def test_an_error_among_the_outputs_and_what_only_a_kernel_can_show_are_refused():
    def shown(output):
        return outputs.cell_html([output], "c", "01, cell 'c',", "", str)

    with pytest.raises(BookError, match="01, cell 'c', raises ValueError: no; mend the cell"):
        shown({"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []})
    view = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}
    with pytest.raises(BookError, match="which a page cannot; give it a text/html form"):
        shown({"output_type": "display_data", "data": view, "metadata": {}})


def test_a_missing_front_is_named(book):
    (book.root / "chapters/front/zh.md").unlink()
    with pytest.raises(BookError, match=r"front/zh\.md is missing; write it"):
        made(book)


def test_a_run_is_found_again_until_code_changes_and_a_damaged_one_is_made_anew(book, monkeypatch):
    said = []
    kept = book.root / "kept"
    first = runs.run(book, SLUG, kept, said.append)
    assert [each["data"]["text/plain"] for each in first.outputs["vi"]["star"]] == ["0.01"]
    assert said[-1].startswith(f"{SLUG} ran in")
    (path,) = kept.iterdir()
    monkeypatch.setattr(runs, "_executed", lambda book, slug, say: pytest.fail("it ran again"))
    edit(book, VI, "Hãy chạy thử", "Hãy thử chạy")  # words alone
    assert runs.run(book, SLUG, kept, said.append) == first
    again = ChapterRun(first.outputs, "2026-02-01", first.machine)
    monkeypatch.setattr(runs, "_executed", lambda book, slug, say: again)
    path.write_text(path.read_text("utf-8")[:-5], "utf-8")
    assert runs.run(book, SLUG, kept, said.append) == again and "is damaged" in said[-1]
    edit(book, LESSON, "time = 160e6 / 16e9", "time = 160e6 / 8e9")
    runs.run(book, SLUG, kept, said.append)
    assert [each.name for each in kept.iterdir()] != [path.name] and len(list(kept.iterdir())) == 1


def test_a_cell_that_raises_is_named(book):
    edit(book, LESSON, "time = 160e6 / 16e9", 'raise ValueError("no time")')
    main(["--root", str(book.root), "build"])
    with pytest.raises(
        BookError, match=f"^{SLUG}, cell 'star', raises ValueError: no time; mend it in chapters/{SLUG}/lesson.py$"
    ):
        runs.run(Book(book.root), SLUG, book.root / "kept", print)
    assert not (book.root / "kept").exists()


def test_a_change_of_versions_or_of_the_lesson_is_another_run(book):
    """What it uses of the package counts, too: test_site_inputs.py."""
    names = [runs.name(book, SLUG), runs.name(book, SLUG)]
    (book.root / "requirements.lock").write_text("torch==2.13.0\n", "utf-8")
    names.append(runs.name(book, SLUG))
    edit(book, LESSON, "time = 160e6 / 16e9", "time = 160e6 / 8e9")
    names.append(runs.name(book, SLUG))
    assert names[0] == names[1] and len({*names}) == 3


def test_a_site_without_solutions_has_neither_these_nor_last_hints_in_any_file(book):
    for solutions in (True, False):
        site = made(Book(book.root, solutions=solutions))
        files = [path for kind in ("html", "js", "ipynb") for path in site.rglob(f"*.{kind}")]
        texts = [re.sub("<[^>]*>", "", path.read_text("utf-8")) for path in files]
        secrets = ("math.ceil(n * size / rate)", "Đếm.")
        assert [any(secret in text for text in texts) for secret in secrets] == [solutions] * 2


def test_without_a_browser_a_pdf_says_what_to_do(book, monkeypatch):
    monkeypatch.setattr(chromium, "BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(chromium, "APPLICATIONS", ())
    with pytest.raises(BookError, match="there is no Chromium here: install Chromium .* --no-pdf"):
        build(book, run=lambda slug: ran())
    assert not (book.root / "_site").exists()


def test_on_paper_hints_and_solutions_stand_open_at_the_end(book):
    chapters = {SLUG: book.chapter(SLUG)}
    text = pdf.bound(Site(book, chapters, "vi", {SLUG: ran()}, [], paper=True))
    link, told = f'<a href="#answers--{SLUG}-star">', f'<section id="answers--{SLUG}-star">'
    assert 0 < text.index(link) < text.index(told) < text.index("Đếm.") < text.index("ceil")
    assert "<details" not in text and "<script" not in text


def test_chapters_are_printed_and_a_pdf_is_kept_until_they_change(book, monkeypatch):
    site = build(book, run=lambda slug: ran())
    printed = {path.name: path.read_bytes() for path in site.glob("*/*.pdf")}
    assert sorted(printed) == ["d2lps-en.pdf", "d2lps-vi.pdf", "d2lps-zh.pdf"]
    assert all(content.startswith(b"%PDF") and len(content) > 10_000 for content in printed.values())
    for name in (SLUG, "index"):
        assert '<a href="d2lps-en.pdf">' in (site / f"en/{name}.html").read_text("utf-8")
    assert not list(site.glob("*/d2lps-*.html"))
    assert all(b"/Outlines" in content for content in printed.values())
    monkeypatch.setattr(pdf, "open_page", lambda *_: pytest.fail("it was printed again"))
    assert {path.name: path.read_bytes() for path in build(book, run=lambda slug: ran()).glob("*/*.pdf")} == printed


def test_a_solution_imports_only_the_names_it_needs():
    helper, f = "def helper(x):\n    return A + sep", "def f(x):\n    return helper(math.pi)"
    source = f"import math, re\nfrom os import path, sep\n\nA = 1\nB = 2\n\n\n{helper}\n\n\n{f}\n"
    assert exercises.solution(source, "f") == (f"import math\nfrom os import sep\n\nA = 1\n\n{helper}\n\n{f}")
    assert exercises.solution(source, "g") is None


def test_words_of_a_page_are_those_that_are_seen():
    said = "<p>An <em>all</em>-reduce &amp;<br>more</p><ul><li>a</li><li>b</li></ul>"
    unsaid = "<svg><text>x</text></svg><details><p>hint</p></details>"
    assert search.words(said + unsaid) == "An all-reduce & more a b"


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (r"\delta/\tau", "δ/τ"),
        (r"\frac{I}{2M}.", "I/(2M)."),
        (r"\sqrt{2 \delta M}", "√(2δM)"),
        (r"\sum_{i=1}^{N} x_i^2", "∑_(i = 1)^N x_i^2"),
        (r"2(n-1)\,\alpha \leq 5", "2(n − 1) α ≤ 5"),
    ],
)
def test_a_formula_is_found_as_it_is_read(book, formula, said):
    written = Prose(book, "en").markdown(f"With ${formula}$ it costs more.")
    assert search.words(written) == f"With {said} it costs more."


def test_words_of_predictions_and_explorers_are_not_indexed(tmp_path):
    gpus = ["gpu0", "gpu1"]
    guess = d2lps.predict("race", {"GPU 0": "ms"})
    traces = {"GPU 0": d2lps.cost.shared(d2lps.aggregate_at(gpus, "gpu0"), d2lps.pcie_server(gpus=2), "160 MB")}
    for shown in (guess, guess.reveal(traces), d2lps.watch(*traces.values())):
        assert search.words(f"<p>Before.</p>{outputs.lean(shown._repr_html_())}<p>After.</p>") == "Before. After."


def test_markdown_of_every_kind(book):
    shown = Prose(book, "en").markdown(
        "| a | b |\n|---|---|\n| $x^2$ | `c` |\n\n```sh\nmake lab\n```\n\n```\n<x>\n```\n"
    )
    assert '<div class="wide" tabindex="0"><table>' in shown and "<msup>" in shown
    assert "&lt;x&gt;" in shown and shown.count('<pre class="code" tabindex="0"><code>') == 2


def test_a_page_in_order_has_no_faults(tmp_path):
    (tmp_path / "a.html").write_text(
        '<html lang="en"><p id="x">x <span lang="vi">đường</span></p><a href="#x">x</a><a href="https://a.b">y</a>'
        '<a href="a.html#x">z</a><img alt="w" src="data:,"></html>',
        "utf-8",
    )
    assert proof.faults(tmp_path) == []


def test_the_site_is_served_to_this_machine_alone(book):
    made(book)
    command = [sys.executable, "-m", "course.site", "--root", str(book.root), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        try:
            address = serving.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{address}en/index.html", timeout=10) as answer:
                assert b"<title>" in answer.read()
        finally:
            serving.terminate()


def test_what_is_as_it_was_is_not_built_again(book, monkeypatch, capsys):
    builds = []

    def built_once_more(book, out, pdf):
        hint = book.folder(SLUG) / ".d2lps/hints-star.json"  # as a chapter leaves it that is run
        hint.parent.mkdir(exist_ok=True)
        hint.write_text(f"{len(builds)}", "utf-8")
        builds.append(build(book, out, lambda slug: ran(), pdf))

    monkeypatch.setattr(site_command, "build", built_once_more)
    command = ["--root", str(book.root), "build", "--no-pdf"]

    def built() -> bool:
        before = len(builds)
        assert site_command.main(command) == 0
        return len(builds) > before

    assert built() and not built() and "nothing has changed" in capsys.readouterr().out
    picture = book.root / "img/star.svg"
    picture.write_text(picture.read_text("utf-8").replace("40 30", "40 31"), "utf-8")
    assert built() and not built()
    (book.root / "_site/en/index.html").write_text("", "utf-8")
    assert built() and not built()
    (book.root / "_site/index.html").unlink()
    assert built() and (book.root / "_site/index.html").is_file()
    (book.root / "build/site.json").write_text("{", "utf-8")
    assert built() and not built()


def test_serve_refuses_a_missing_site_and_a_taken_port_in_one_sentence(book, capsys):
    command = site_command.main
    assert command(["--root", str(book.root), "serve"]) == 1
    assert "there is no site in" in capsys.readouterr().err
    made(book)
    assert command(["--root", str(book.root), "serve", "--port", "70000"]) == 1
    assert "--port" in capsys.readouterr().err


def test_each_chapter_to_run_is_named_with_the_time_that_is_left(book, monkeypatch):
    said, ran = [], ChapterRun({language: {} for language in LANGUAGES}, "2026-01-31", "2 × x86_64")
    monkeypatch.setattr(runs, "_executed", lambda *_: ran)
    (book.root / "tests").mkdir()
    recorded = {"slow": {f"{runs.RUNS}[{SLUG}]": 180.0}}
    (book.root / runs.DURATIONS).write_text(json.dumps(recorded), "utf-8")
    build(Book(book.root), pdf=False, say=said.append)
    assert f"chapter 1 of 1 to run: {SLUG}, about 3 minutes left" in said
    said.clear()
    build(Book(book.root), pdf=False, say=said.append)  # the run is kept
    assert not any("to run" in sentence for sentence in said)


def test_each_chapter_of_the_course_has_a_recorded_time():
    """Recorded is the test that runs it, by its name."""
    course = Book(Path(__file__).parents[3])
    assert [*runs.seconds(course)] == [*course.contents]


def test_each_player_but_the_first_of_a_page_waits_with_its_own_data():
    asked = f'<div id="d2lps-{"a" * 12}" class="d2lps-asked"><script type="application/json">{{"q":1}}</script></div>'
    asked += '<script type="module">ask(1)</script>'
    plays = [
        f'<div id="d2lps-{letter * 12}"><svg></svg><script type="application/json">{{"name":"{letter}"}}</script></div>'
        f"<script type=\"module\">for(const el of [])play(el,JSON.parse('{{}}'))</script>"
        for letter in "bcd"
    ]
    page, script = outputs.later(asked + "<p>".join(plays), "runs.js")
    assert page.startswith(asked) and page.count("play(") == 0 and page.count('data-later="runs.js"') == 2
    assert '{"name":"b"}' in page and 'data-later="" data-name="b"' in page
    assert script == f'window.d2Runs={{"d2lps-{"c" * 12}":{{"name":"c"}},"d2lps-{"d" * 12}":{{"name":"d"}}}};\n'
