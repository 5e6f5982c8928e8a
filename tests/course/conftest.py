"""Fixtures of the tests of the course: each chapter is run once."""

import os
from functools import cache

import pytest
from helpers import notebooks, sites


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
    """Return the folder of the whole site, which shows these runs."""
    return sites.built(runs)
