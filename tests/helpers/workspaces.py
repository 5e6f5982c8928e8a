"""Workspaces of tests, and readers who edit notebooks there."""

import json
from pathlib import Path

import nbformat
import pytest

from course.book.__main__ import main
from d2lps.notebook import kept
from helpers.small_book import SLUG, small

COPY = f"workspace/vi/{SLUG}.ipynb"


def enter(folder: Path, monkeypatch) -> Path:
    """Change into the notebooks' folder of a new workspace, and return the folder of its kept files."""
    (folder / "chapters").mkdir(parents=True)
    (folder / "workspace" / "en").mkdir(parents=True)
    monkeypatch.chdir(folder / "workspace" / "en")
    monkeypatch.setattr(kept, "_remembered", {})
    return folder / "workspace" / kept.NAME


def leave(folder: Path, monkeypatch) -> None:
    """Change into a folder outside the workspace."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(kept, "_remembered", {})


def contents(place: Path) -> dict[str, dict]:
    """Return file name → content of the kept files."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in place.iterdir()} if place.exists() else {}


class Notebook:
    """A notebook in a workspace, edited as a reader would."""

    def __init__(self, path: Path):
        self.path = path
        self.made = nbformat.read(self.path, as_version=4)

    def __getitem__(self, id):
        return next(cell for cell in self.made.cells if cell.id == id)

    def replace(self, id, old, new):
        assert old in self[id].source
        self[id].source = self[id].source.replace(old, new)

    def insert(self, after, cell):
        self.made.cells.insert([cell.id for cell in self.made.cells].index(after) + 1, cell)

    def delete(self, id):
        self.made.cells.remove(self[id])

    def save(self):
        nbformat.write(self.made, self.path)


@pytest.fixture
def book(tmp_path, capsys):
    """Return a small book whose copies for readers are laid out."""
    made = small(tmp_path)
    assert main(["--root", str(tmp_path), "lab", "--no-start"]) == 0
    capsys.readouterr()
    return made


@pytest.fixture
def notebook(book):
    """Return the Vietnamese reader's notebook."""
    return Notebook(book.root / COPY)
