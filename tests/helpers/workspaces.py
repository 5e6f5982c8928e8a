"""A reader's workspace, of a test's own."""

import json
from pathlib import Path

from d2lps.notebook import kept


def enter(folder: Path, monkeypatch) -> Path:
    """Stand where the notebooks of a new workspace are run; gives the folder in which things are kept."""
    (folder / "chapters").mkdir(parents=True)
    (folder / "workspace" / "en").mkdir(parents=True)
    monkeypatch.chdir(folder / "workspace" / "en")
    monkeypatch.setattr(kept, "_remembered", {})
    return folder / "workspace" / kept.NAME


def leave(folder: Path, monkeypatch) -> None:
    """Stand where a program is run that is no notebook."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(kept, "_remembered", {})


def contents(place: Path) -> dict[str, dict]:
    """What is kept, by file."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in place.iterdir()} if place.exists() else {}
