"""The course as it stands: its notebooks, figures, texts and messages pass every check."""

from pathlib import Path

from course.book.__main__ import main

ROOT = Path(__file__).parents[2]


def test_the_book_passes_every_check(capsys):
    mended = main(["--root", str(ROOT), "check"]) == 0
    assert mended, capsys.readouterr().out
