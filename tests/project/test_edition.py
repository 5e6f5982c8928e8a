"""The edition is the same everywhere, and has its part of the changelog."""

import re
from pathlib import Path

import yaml

import d2lps

ROOT = Path(__file__).parents[2]


def test_the_edition_is_the_same_in_the_package_its_citation_and_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "date-released"} <= citation.keys()
    editions = re.findall(r"(?m)^## (\d+\.\d+\.\d+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert d2lps.__version__ == citation["version"] == editions[0]
