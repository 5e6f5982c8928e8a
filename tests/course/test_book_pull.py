"""Prose that was edited in a reader's notebook is pulled into the chapter, or nothing is written."""

import shutil

import nbformat
import pytest
from helpers import workspaces
from helpers.small_book import EN, FILES, LESSON, SLUG, VI, ZH, edit, files
from helpers.workspaces import COPY, Notebook
from hypothesis import given, settings
from hypothesis import strategies as st

from course.book import notebook as notebooks
from course.book.__main__ import main
from course.book.findings import BookError
from course.book.pull import _prose, pull
from course.book.workspace import Origin, load, touched

book, notebook = workspaces.book, workspaces.notebook
TO_FOLLOW = "changed in vi, to follow in the other languages: one"


def sources(book) -> dict[str, str]:
    return {name: (book.root / name).read_text("utf-8") for name in (LESSON, EN, VI, ZH)}


def changed(book, **edits):
    """Return the expected sources: the first ones, with some replaced."""
    return {name: FILES[name] for name in (LESSON, EN, VI, ZH)} | edits


def test_an_unchanged_notebook_changes_nothing(book, capsys):
    before = files(book)
    assert main(["--root", str(book.root), "pull", str(book.root / COPY)]) == 0
    assert capsys.readouterr().out == "the notebook has no edited prose\n"
    assert files(book) == before


def test_prose_is_pulled_and_the_languages_that_have_to_follow_are_named(book, notebook, capsys):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook["star"].outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.01")]
    notebook["star"].execution_count = 7
    notebook.save()
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 0
    assert sources(book) == changed(book) | {VI: FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")}
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {VI}",
        "changed in vi, to follow in the other languages: one",
        "then: python -m course.book build; read the three texts side by side; python -m course.book agree 01-small one",  # noqa: E501
        "the notebook now has a new base: reload it in JupyterLab (File, Reload Notebook from Disk)",
    ]


def test_a_chapter_is_found_from_the_course_and_from_the_workspace(book, capsys):
    for name, old in ((EN, "Run it:"), (VI, "Hãy chạy thử:"), (ZH, "运行一下：")):
        edit(book, name, old, f"{old} [[chapter:01]]")
    assert main(["--root", str(book.root), "build"]) == main(["--root", str(book.root), "lab", "--no-start"]) == 0
    made = nbformat.read(book.root / f"chapters/{SLUG}/vi.ipynb", as_version=4)
    assert any(f"[Hai cách](../{SLUG}/vi.ipynb)" in cell.source for cell in made.cells)
    notebook = Notebook(book.root / COPY)
    assert f"[Hai cách]({SLUG}.ipynb)" in notebook["one"].source
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    capsys.readouterr()
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 0
    assert "Bây giờ hãy chạy thử: [[chapter:01]]" in sources(book)[VI]
    edit(book, EN, "[[chapter:01]]", "[[chapter:07]]")
    assert main(["--root", str(book.root), "build"]) == 1
    assert "there is no [[chapter:07]]; chapters/toc.toml has chapter:01" in capsys.readouterr().err


def test_figures_citations_and_heading_ids_survive_the_round_trip(book, notebook):
    notebook.replace("one", "Mọi thứ đi qua", "Tất cả đi qua")
    notebook.replace("one", "mô tả.", "mô tả rất rõ.")
    notebook.replace("one", "Hình 1.1. Các gradient gặp", "Hình 1.1. Mọi gradient gặp")
    notebook.save()
    assert TO_FOLLOW in pull(book, notebook.path)
    expected = FILES[VI].replace("Mọi thứ đi qua", "Tất cả đi qua").replace("mô tả.", "mô tả rất rõ.")
    expected = expected.replace("|Các gradient gặp", "|Mọi gradient gặp")
    assert sources(book) == changed(book) | {VI: expected}


BLOCKS = st.lists(
    st.sampled_from(
        [
            "Một đoạn với $x$ và `[[mã]]`.",
            "Xem [[cite:li-2014]] và [[cite:li-2014]].",
            "- một\n- hai",
            "$$\n## x\n$$",
            "```\n## [[no]]\n![a](../../img/star.svg)\n```",
            "[[figure:star|Hình $n$ (1).]]",
            "[[figure:line|Hai hình.]]",
            "### Nhỏ",
            "| a | b |\n|---|---|\n| 1 | 2 |",
            "## Mục {#muc}",
            "CELL",
        ]
    ),
    max_size=12,
)


@given(BLOCKS)
@settings(max_examples=60, deadline=None)
def test_every_placeholder_survives_the_way_to_the_notebook_and_back(blocks):
    section, cells, lines = 0, [], ["# Tên"]
    for block in blocks:
        if block.startswith("## "):
            section += 1
            block = f"## Mục {section} {{#muc-{'x' * section}}}"
        if block == "CELL":
            cells.append(f"c{len(cells)}")
            block = f"[[{cells[-1]}]]"
        lines.append(block)
    prose = "\n\n".join(lines) + "\n"
    lesson = "".join(f"# %% {cell}\nx = 1\n\n" for cell in cells)
    base = Origin("01", "vi", lesson, prose, {"li-2014": "[Li et al., 2014](https://example.org/li)"})
    made = notebooks.notebook(base.read(), "vi", base.cites)
    assert _prose(base, made.cells) == prose
    expected = ""
    for part, cell in zip(notebooks.parts(base.read(), "vi"), made.cells, strict=True):
        expected += part.source if part.code else part.source.rstrip("\n") + "\n\nThêm.\n\n"
        if not part.code:
            cell.source += "\n\nThêm."
    assert _prose(base, made.cells) == expected.rstrip("\n") + "\n"


def test_edits_of_different_paragraphs_are_merged(book, notebook):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    edit(book, VI, "- Độ trễ thì không", "- Còn độ trễ thì không")
    edit(book, VI, "dù có bao nhiêu máy thợ.", "dù có bao nhiêu máy thợ đi nữa.")
    assert TO_FOLLOW in pull(book, notebook.path)
    expected = FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    expected = expected.replace("- Độ trễ", "- Còn độ trễ").replace("nhiêu máy thợ.", "nhiêu máy thợ đi nữa.")
    assert sources(book)[VI] == expected


def test_the_same_edit_on_both_sides_is_no_conflict(book, notebook):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert pull(book, notebook.path) == ["the notebook has no edited prose"]


def test_a_conflict_writes_nothing_and_shows_both_sides(book, notebook, capsys):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.replace("turn", "Hãy viết", "Bạn hãy viết")
    notebook.save()
    edit(book, VI, "Hãy chạy thử:", "Ta chạy thử:")
    before = files(book)
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 1
    assert capsys.readouterr().err == (
        "error: 01-small/vi.md, section 'one': the chapter and the notebook changed the same lines; "
        "make the notebook say what is right, or edit the chapter by hand. Nothing was written.\n"
        "<<<<<<< chapter\nTa chạy thử:\n=======\nBây giờ hãy chạy thử:\n>>>>>>> notebook\n"
    )
    assert files(book) == before


def test_a_notebook_can_be_pulled_again_and_again(book, notebook):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    pull(book, notebook.path)
    assert pull(book, notebook.path) == ["the notebook has no edited prose"]
    notebook = Notebook(notebook.path)
    notebook.replace("one", "Bây giờ hãy", "Giờ thì hãy")
    notebook.save()
    pull(book, notebook.path)
    assert sources(book)[VI] == FILES[VI].replace("Hãy chạy thử:", "Giờ thì hãy chạy thử:")
    assert not touched(load(notebook.path))


def test_a_renamed_notebook_knows_where_it_comes_from(book, notebook):
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    elsewhere = book.root / "của tôi.ipynb"
    shutil.move(notebook.path, elsewhere)
    assert TO_FOLLOW in pull(book, elsewhere)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            f"chapters/{SLUG}/vi.ipynb",
            "does not say what it was made from; copy your edits into a notebook made by `python -m course.book lab`",
        ),
        (VI, "is not a notebook"),
        ("gone.ipynb", "there is no notebook .*gone.ipynb; name one, as workspace/en/01-data-parallelism.ipynb"),
    ],
)
def test_other_files_than_workspace_notebooks_are_refused(book, name, sentence):
    before = files(book)
    with pytest.raises(BookError, match=sentence):
        pull(book, book.root / name)
    assert files(book) == before


def test_code_and_cells_that_were_added_or_deleted_are_named_and_prose_is_pulled(book, notebook):
    notebook.replace("language", '"vi"', '"en"')
    notebook.replace("exercise-star", "# TODO\n    ...", "return 2 * (n - 1) * size / rate")
    notebook.save()
    assert pull(book, notebook.path) == ["the notebook has no edited prose"]
    notebook.replace("star", "160e6", "320e6")
    notebook.insert("star", nbformat.v4.new_code_cell("print(1)", id="scratch"))
    notebook.insert("star", nbformat.v4.new_markdown_cell("Một giây.", id="note"))
    notebook.insert("star", nbformat.v4.new_code_cell("", id="empty"))
    notebook.delete("last")
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.replace("turn-2", notebook["turn-2"].source, "")
    notebook.save()
    written, left, *_ = pull(book, notebook.path)
    assert written == f"wrote {VI}"
    assert left == (
        f"only edited prose was pulled, not star, note, scratch, last; edit code in {LESSON}, "
        "and add or delete cells there and in the texts"
    )
    prose = FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:").replace("Rồi hãy xem thông điệp:\n\n", "")
    assert sources(book) == changed(book) | {VI: prose}


def test_a_section_is_not_added_in_one_language_alone(book, notebook):
    notebook.replace("turn-2", "Rồi hãy", "## Thêm nữa {#more}\n\nRồi hãy")
    notebook.save()
    before = files(book)
    with pytest.raises(BookError, match="en.md: the section 'more' of vi.md is missing"):
        pull(book, notebook.path)
    assert files(book) == before
