"""A chapter's sources become three notebooks: reading, refusals and writing."""

import json
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from helpers.outputs import same_outputs
from helpers.small_book import EN, FILES, LESSON, SLUG, VI, ZH, changes, edit, files, small

import course.book
from course.book import navigation
from course.book.__main__ import main
from course.book.check import check_chapter, check_messages
from course.book.findings import BookError
from course.book.lesson import read_cells, read_text
from course.book.library import Book
from course.book.notebook import captions


@pytest.fixture
def book(tmp_path):
    return small(tmp_path)


def test_a_right_chapter_passes_every_check(book):
    assert [str(finding) for finding in check_chapter(book, SLUG) + check_messages(book)] == []
    assert main(["--root", str(book.root), "check"]) == 0


def test_a_text_is_its_sections_and_nothing_is_lost(book):
    for name in (EN, VI, ZH):
        source = (book.root / name).read_text("utf-8")
        text = read_text(source, name)
        assert text.source == source
        assert [section.id for section in text.sections] == ["top", "one", "turn"]
    assert [block.kind for block in text.section("one").blocks] == ["prose", "figure", "prose", "cell", "prose"]
    assert text.section("one").names("cell") == ["star"]


def test_headings_and_placeholders_inside_code_and_formulas_are_text():
    text = read_text("# T\n\n```\n## no\n[[no]]\n```\n\n`[[no]]` $[[a]]$\n\n$$\n## no\n$$\n", "en.md")
    assert [section.id for section in text.sections] == ["top"]
    assert [block.kind for block in text.sections[0].blocks] == ["prose"]


def test_a_lesson_is_its_cells(book):
    source = (book.root / LESSON).read_text("utf-8")
    cells = read_cells(source)
    assert [cell.id for cell in cells] == ["language", "star", "exercise-star", "last"]
    assert [cell.exercise for cell in cells] == [None, None, "star", None]


# A change of a right chapter, written as in test_book_check.py, and under it the sentence that refuses it.
REFUSED = """
LESSON: # %% last ⇒ # %% star
    lesson.py: the cell id 'star' is given twice; rename one of the two
LESSON: # %% last ⇒ # %% Last one
    lesson.py: cell 4 is called 'Last one'; write its id after `# %%`, in small letters, digits and hyphens, at most 60 of them
LESSON: # %% last ⇒ # %%
    lesson.py: cell 4 is called ''; write its id after `# %%`, in small letters, digits and hyphens, at most 60 of them
LESSON: # %% last ⇒ # %% last [markdown]
    lesson.py: cell 4 is markdown; a lesson holds code, prose stands in en.md, vi.md and zh.md
LESSON: speak("en") ⇒ speak("vi")
    lesson.py: the first cell must be called `language` and hold d2lps.speak("en")
VI: [[last]]¶ ⇒ ∅
    vi.md: the cell 'last' is not placed; put [[last]] alone on a line where it belongs
ZH: - 受限 ⇒ [[star]]¶¶- 受限
    zh.md: the cell 'star' is placed 2 times, in one; keep one of them
ZH: 请写出 ⇒ [[star]]¶¶请写出
    zh.md: the cell 'star' is placed 2 times, in one and turn; keep one of them
VI: [[star]] ⇒ [[stern]]
    vi.md: the cell 'star' is not placed; put [[star]] alone on a line where it belongs
EN: [[last]]¶ ⇒ [[last]]¶¶[[lost]]¶
    en.md, section 'turn': lesson.py has no cell 'lost'; write it there or mend the placeholder
EN: [[figure:star| ⇒ [[figure:stern|
    en.md, section 'one': there is no figure img/stern.svg; draw it with `python -m course.book figures` or mend the placeholder
VI: [[cite:li-2014]] ⇒ [[cite:li-2041]]
    vi.md, section 'one': references.toml has no source 'li-2041'; add it there or mend [[cite:…]]
ZH: ## 轮到你了 {#turn}¶ ⇒ ∅
    zh.md: the section 'turn' of en.md is missing; write `## … {#turn}` or take it out of the others
EN: ## Your turn {#turn}¶ ⇒ ∅
    en.md: the section 'turn' of vi.md is missing; write `## … {#turn}` or take it out of the others
VI: {#turn} ⇒ {#turns}
    vi.md: the section 'turn' of en.md is missing; write `## … {#turn}` or take it out of the others
VI:  {#turn} ⇒ ∅
    vi.md: the heading 'Đến lượt bạn' has no id; write `## Đến lượt bạn {#its-id}`, the same id in en.md, vi.md and zh.md
VI: {#turn} ⇒ {#Lượt}
    vi.md: the heading 'Đến lượt bạn' has the id 'Lượt'; an id is at most 60 small letters, digits and hyphens, and not `top`
VI: {#turn} ⇒ {#one}
    vi.md: the section id 'one' is given twice; rename one of the two
VI: Hãy chạy thử: ⇒ ### Chạy {#run}
    vi.md: the heading 'Chạy' has an id; only `##` headings have one
VI: Hãy chạy thử: ⇒ # Chạy
    vi.md: 'Chạy' is a second `#` title; a chapter has one, sections begin with `##`
VI: # Hai cách¶ ⇒ ∅
    vi.md: the text begins with 'Bốn máy thợ (worker) đều giữ một gradien'; begin with `# Title`
VI: Hãy chạy thử: ⇒ Hãy chạy [[star]] thử:
    vi.md, section 'one': [[star]] stands inside a paragraph; put it alone on a line
VI: [[star]] ⇒ [[cell:star]]
    vi.md, section 'one': [[cell:star]] is not understood; write [[cell-id]], [[figure:name|caption]], [[cite:key]] or [[chapter:01]]
VI: Các gradient gặp ⇒ Các *gradient* gặp
    vi.md, section 'one': the caption of the figure 'star' holds `*` or `|`; leave it out
TOC: , vi = "Hai cách" ⇒ ∅
    toc.toml: the title of chapter 1 has no 'vi'; write it
REFERENCES: year = "2014" ⇒ ∅
    references.toml: 'li-2014' has no 'year'; write it
REFERENCES: [li-2014] ⇒ [li]¶authors = "Li et al."¶year = 2014¶title = "Twice"¶url = "https://example.org/li"¶[li-2014]
    references.toml: 'li-2014' looks the same as another source; tell them apart in `year`, as in 2014a
TOC: [[chapter]] ⇒ [[chapter
    toc.toml is not TOML
"""  # noqa: E501
TOC, REFERENCES = "chapters/toc.toml", "chapters/references.toml"
NAMED = {"EN": EN, "VI": VI, "ZH": ZH, "LESSON": LESSON, "TOC": TOC, "REFERENCES": REFERENCES}


@pytest.mark.parametrize(("name", "old", "new", "sentence"), [*changes(REFUSED, NAMED)])
def test_a_broken_chapter_is_refused_in_one_sentence(book, name, old, new, sentence, capsys):
    edit(book, name, old, new)
    before = files(book)
    assert main(["--root", str(book.root), "build"]) == 1
    said = capsys.readouterr().err
    assert said == f"error: {sentence}\n" or sentence.endswith("is not TOML") and sentence in said
    assert files(book) == before


def test_sections_and_cells_stand_in_one_order(book, capsys):
    path = book.root / ZH
    top, one, turn = (section.source for section in read_text(path.read_text("utf-8"), "zh.md").sections)
    path.write_text(f"{top}{turn}\n{one}", "utf-8")
    assert main(["--root", str(book.root), "build"]) == 1
    assert capsys.readouterr().err == (
        "error: zh.md: the section 'turn' stands where en.md has 'one'; put the sections in one order\n"
    )
    path.write_text(
        FILES[ZH]
        .replace("[[star]]", "[[x]]")
        .replace("[[exercise-star]]", "[[star]]")
        .replace("[[x]]", "[[exercise-star]]"),
        "utf-8",
    )
    assert main(["--root", str(book.root), "build"]) == 1
    assert capsys.readouterr().err == (
        "error: zh.md: the cell 'exercise-star' stands where lesson.py has 'star'; "
        "put the cells in the order of lesson.py\n"
    )


def test_a_cell_stands_in_the_same_section_in_every_language(book, capsys):
    edit(book, ZH, "[[last]]\n", "")
    edit(book, ZH, "[[exercise-star]]\n", "")
    edit(book, ZH, "[[star]]\n", "[[star]]\n\n[[exercise-star]]\n\n[[last]]\n")
    assert main(["--root", str(book.root), "build"]) == 1
    assert capsys.readouterr().err == (
        "error: zh.md: the cell 'exercise-star' stands in the section 'one', in en.md "
        "it stands in 'turn'; put it into one section\n"
    )


def test_a_section_may_bear_the_name_of_a_cell_but_not_of_another_sections_part(book, capsys):
    for name in (EN, VI, ZH):
        edit(book, name, "{#turn}", "{#star}")
    assert main(["--root", str(book.root), "build"]) == 0
    made = nbformat.read(book.folder(SLUG) / "vi.ipynb", as_version=4)
    assert [cell.id for cell in made.cells][-6:-2] == ["star-1", "exercise-star", "star-2", "last"]
    for name in (EN, VI, ZH):
        edit(book, name, "{#star}", "{#one-2}")
    assert main(["--root", str(book.root), "build"]) == 1
    assert capsys.readouterr().err == (
        "error: the id 'one-2' is kept for the parts of the section 'one'; choose another\n"
    )
    for old, new in (("one-2", "how"), ("how", "what-next"), ("what-next", "what-next-map")):
        for name in (EN, VI, ZH):
            edit(book, name, f"{{#{old}}}", f"{{#{new}}}")
        assert main(["--root", str(book.root), "build"]) == 1
        assert f"the id {new!r} is kept for a cell that every notebook has" in capsys.readouterr().err


def test_a_magic_is_a_comment_in_the_lesson_and_a_magic_in_the_notebook(book, capsys):
    edit(book, LESSON, "# %% last\n", "# %% last\n# %%px --targets 0\n# %px d2lps\n")
    assert main(["--root", str(book.root), "build"]) == 0
    assert main(["--root", str(book.root), "agree", "--all"]) == 0
    assert main(["--root", str(book.root), "check"]) == 0
    source = '%%px --targets 0\n%px d2lps\nd2lps.text("step", step=1)'
    for language in ("en", "vi", "zh"):
        made = nbformat.read(book.folder(SLUG) / f"{language}.ipynb", as_version=4)
        assert made.cells[-3].source == source
    lesson = (book.root / LESSON).read_text("utf-8")
    assert compile(lesson, LESSON, "exec")


def test_a_misplaced_magic_is_reported(book, capsys):
    edit(book, LESSON, "# %% last\n", "# %% last\nx = 1\n# %%px\n# A comment stays one.\n")
    assert [str(finding).split("\n")[0] for finding in check_chapter(book, SLUG) if finding.check == "lesson"] == [
        "fail  turn  lesson: the cell 'last' holds %%px, which is for a cell's first line; put `# %% cell-id` above it",
        "fail  turn  lesson: the cell 'last' holds the comment '# A comment stays one.'; say it in the prose",
    ]
    edit(book, LESSON, "# %%px", "%%px")
    assert main(["--root", str(book.root), "build"]) == 1
    assert capsys.readouterr().err == ("error: lesson.py: %%px is not Python; write `# %%px`\n")


def test_notebooks_are_valid_and_the_same_bytes_every_time(book):
    before = files(book)
    assert main(["--root", str(book.root), "build"]) == 0
    assert files(book) == before
    for language in ("en", "vi", "zh"):
        text = (book.folder(SLUG) / f"{language}.ipynb").read_text("utf-8")
        made = nbformat.reads(text, as_version=4)
        nbformat.validate(made)
        assert text == json.dumps(json.loads(text), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        ids = "top how language one star one-2 turn exercise-star turn-2 last what-next what-next-map"
        assert " ".join(cell.id for cell in made.cells) == ids
        assert [cell.metadata.get("tags") for cell in made.cells if cell.id.startswith("exercise")] == [["exercise"]]
        assert all(cell.outputs == [] for cell in made.cells if cell.cell_type == "code")
        assert made.cells[2].source == f'import d2lps\n\nd2lps.speak("{language}")'
        assert made.metadata.kernelspec.name == "python3"


def test_a_notebook_shows_figures_citations_and_headings_without_ids(book):
    made = nbformat.read(book.folder(SLUG) / "vi.ipynb", as_version=4)
    source = next(cell.source for cell in made.cells if cell.id == "one")
    assert source.startswith("## Mọi thứ đi qua một máy thợ\n\n")
    assert "như [Li et al., 2014](https://example.org/li) mô tả" in source
    assert source.endswith(
        "![Các gradient gặp nhau trên GPU 0.](../../img/star.svg)\n\n"
        "*Hình 1.1. Các gradient gặp nhau trên GPU 0.*\n\nHãy chạy thử:"
    )


@pytest.mark.parametrize(
    "slug, number",
    [
        ("01-small", "1.1"),
        ("12-small", "12.1"),
        ("06b-small", "6b.1"),
        ("a-small", "A.1"),
        ("small", "1"),
        ("small-one", "1"),
    ],
)
def test_figures_are_counted_under_the_number_or_letter_of_their_chapter(slug, number, book):
    chapter = replace(book.chapter(SLUG), slug=slug)
    assert captions(chapter, "vi")["star"] == f"Hình {number}. Các gradient gặp nhau trên GPU 0."


def test_code_differs_between_languages_in_the_first_cell_only(book):
    codes = [
        [
            cell.source
            for cell in nbformat.read(book.folder(SLUG) / f"{language}.ipynb", as_version=4).cells
            if cell.cell_type == "code"
        ]
        for language in ("en", "vi", "zh")
    ]
    assert codes[0][1:] == codes[1][1:] == codes[2][1:]
    assert len({code[0] for code in codes}) == 3


THREE = """
[[chapter]]
slug = "01-small"
minutes = 15
title = { en = "Two ways", vi = "Hai cách", zh = "两种办法" }

[[chapter]]
slug = "06-other"
title = { en = "Other", vi = "Khác", zh = "其他" }
about = { en = "About others.", vi = "Về những thứ khác.", zh = "关于其他。" }

[[chapter]]
slug = "06b-last"
minutes = 20
needs = ["01", "06"]
title = { en = "Last", vi = "Cuối", zh = "最后" }
about = { en = "About the last.", vi = "Về thứ cuối.", zh = "关于最后。" }
"""


def test_a_chapter_names_its_requirements_and_the_next_chapter(book):
    (book.chapters / "toc.toml").write_text(THREE, "utf-8")
    book = Book(book.root)
    slugs, page = list(book.contents), "{}.html".format
    assert [navigation.before(book, slug, "en", page) for slug in slugs] == [
        "15 minutes",
        "Needs: [1. Two ways](01-small.html)",
        "Needs: [1. Two ways](01-small.html), [6. Other](06-other.html) · 20 minutes",
    ]
    assert [navigation.after(book, slug, "zh", page).split("\n") for slug in slugs] == [
        [
            "**下一章：** [6. 其他](06-other.html)  ",
            "关于其他。",
            "",
            "**读完本章，还可以读：**",
            "",
            "* [6b. 最后](06b-last.html) · 20 分钟  ",
            "  关于最后。",
        ],
        ["**下一章：** [6b. 最后](06b-last.html) · 20 分钟  ", "关于最后。"],
        ["这是全书的最后一章。"],
    ]


def test_a_notebook_ends_with_the_way_on_and_the_map(book):
    (book.chapters / "toc.toml").write_text(THREE, "utf-8")
    assert main(["--root", str(book.root), "build", "01"]) == 0
    for language, title in (("en", "Other"), ("vi", "Khác"), ("zh", "其他")):
        *_, told, last = nbformat.read(book.folder(SLUG) / f"{language}.ipynb", as_version=4).cells
        assert f"[6. {title}](../06-other/{language}.ipynb)" in told.source
        assert f"/06b-last/{language}.ipynb)" in told.source
        assert (last.cell_type, last.source) == ("code", 'd2lps.progress("01")')


def test_a_chapter_is_known_by_number_and_name(book):
    assert [book.slug(name) for name in ("01", "small", "01-small", "chapters/01-small")] == [SLUG] * 4
    with pytest.raises(BookError, match="there is no chapter '02'; chapters/toc.toml has 01-small"):
        book.slug("02")


def test_the_rooms_modules_import_only_from_those_before_them():
    order = re.findall(r"``(\w+)``", course.book.__doc__)
    folder = Path(course.book.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} == {*order, "__init__", "__main__"}
    for index, name in enumerate(order):
        source = (folder / f"{name}.py").read_text("utf-8")
        imported = set(re.findall(r"^\s*from course\.book\.(\w+) import", source, re.M))
        for several in re.findall(r"^\s*from course\.book import (.+)$", source, re.M):
            imported |= set(several.split(", "))
        assert imported <= set(order[:index]), name


def test_a_folder_without_chapters_is_no_book(tmp_path):
    with pytest.raises(BookError, match="has no chapters/; run this in the course's folder or name it with --root"):
        Book(tmp_path)


def outputs(*kinds):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", id="a")])
    for kind in kinds:
        if kind == "stream":
            made.cells[0].outputs.append(nbformat.v4.new_output("stream", name="stdout", text="3"))
        elif kind == "error":
            made.cells[0].outputs.append(nbformat.v4.new_output("error", ename="ValueError", evalue="no"))
        else:
            made.cells[0].outputs.append(nbformat.v4.new_output("display_data", {kind: "x"}))
    return made


def test_outputs_are_compared_by_kind_and_errors_are_reported():
    assert same_outputs(outputs("stream", "image/png"), outputs("stream", "stream", "image/png")) == []
    assert same_outputs(outputs("stream"), outputs("stream", "text/html")) == [
        "a: outputs ['stdout'] and ['stdout', 'display_data text/html']"
    ]
    assert same_outputs(outputs("error"), outputs("error")) == [
        "a: the first notebook shows the error ValueError: no",
        "a: the second notebook shows the error ValueError: no",
    ]
