"""The site of the course, built once per test run from the chapter runs that other tests use."""

from pathlib import Path

from course.book.library import Book
from course.site.build import build
from helpers import notebooks


def built(folder: Path) -> Path:
    """Return the site; ``folder`` is shared by all processes of these tests."""
    here = folder / "site"
    notebooks.once(here, lambda place: _build(place, folder))
    return here / "_site"


def _build(place: Path, folder: Path) -> None:
    build(Book(notebooks.ROOT), place / "_site", lambda slug: notebooks.run(folder, slug), pdf=False)
