"""What the tests of the course share: each notebook, run once."""

import os
from functools import cache

import pytest
from helpers import notebooks


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """``executed(chapter, language)``: the notebook with its outputs, and what was seen of its run in JupyterLab."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    return cache(lambda chapter, language: notebooks.executed(folder, chapter, language))
