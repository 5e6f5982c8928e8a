"""The course as it stands: its notebooks, figures, texts and messages pass every check."""

import re
from pathlib import Path

import pytest

from course.book.__main__ import main
from course.book.library import Book

ROOT = Path(__file__).parents[2]


def test_the_book_passes_every_check(capsys):
    mended = main(["--root", str(ROOT), "check"]) == 0
    assert mended, capsys.readouterr().out


@pytest.mark.parametrize("language, optional", [("en", "(optional"), ("vi", "(tùy chọn"), ("zh", "（选做")])
def test_an_exercise_is_optional_for_the_grader_as_in_the_text(language, optional):
    book = Book(ROOT)
    for slug in book.contents:
        text = (book.folder(slug) / f"{language}.md").read_text("utf-8")
        for id, table in book.chapter(slug).exercises.items():
            before, cell, _ = text.partition(f"[[exercise-{id}]]")
            title = re.findall(r"^\d\. \*\*.*", before, re.M)[-1]
            assert cell and (optional in title) == table.get("optional", False), (slug, id)
