"""The site of the course, built once per run of the tests, from the runs of its chapters that other tests look at."""

from pathlib import Path

import nbformat

from course.book.library import Book
from course.site.build import build
from course.site.runs import Run, outputs_of
from d2lps.messages import LANGUAGES
from helpers import notebooks


def built(folder: Path) -> Path:
    """The site; ``folder`` is for all processes of these tests."""
    here = folder / "site"
    notebooks.once(here, lambda place: _build(place, folder))
    return here / "_site"


def _build(place: Path, folder: Path) -> None:
    def run(slug: str) -> Run:
        books = {language: notebooks.executed(folder, slug, language).book for language in LANGUAGES}
        return Run(
            outputs_of({name: nbformat.from_dict(book) for name, book in books.items()}), "2026-01-31", "2 × x86_64"
        )

    build(Book(notebooks.ROOT), place / "_site", run, pdf=False)
