"""Fixtures of the tests of the course: each chapter is run once."""

import os
from functools import cache

import pytest
from helpers import notebooks

from course.book.library import Book
from course.site.build import build


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return the folder that keeps the runs of chapters for all processes of these tests."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def executed(runs):
    """``executed(chapter, language)``: the notebook with its outputs."""
    return cache(lambda chapter, language: notebooks.executed(runs, chapter, language))


@pytest.fixture(scope="session")
def site(runs):
    """Return the folder of the whole site, which shows these runs and is built once by all processes."""

    def built(folder):
        build(Book(notebooks.ROOT), folder / "_site", lambda slug: notebooks.run(runs, slug), pdf=False)

    notebooks.once(runs / "site", built)
    return runs / "site" / "_site"
