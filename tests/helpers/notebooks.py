"""Each notebook is run once per run of the tests, by whoever needs it first; its outputs are there for all.

Five of them run in JupyterLab, since a reader runs them there; the others without it, which takes less time.
"""

import fcntl
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient

from helpers import lab

ROOT = Path(__file__).parents[2]
IN_LAB = [
    *((language, lab.FIRST) for language in lab.PLAY),
    ("vi", "02-ring"),
    ("zh", "04-key-value-store"),
]  # every language, every chapter

# Nothing but this machine may be spoken to: a chapter needs no network.
OFFLINE = """
import sys
def _only_this_machine(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a chapter needs no network, and this one asked for {args[1]}")
sys.addaudithook(_only_this_machine)
"""


class Executed(NamedTuple):
    """A notebook with its outputs, and what a reader saw of its run, where that was in JupyterLab."""

    book: nbformat.NotebookNode
    seen: dict | None


def executed(folder: Path, chapter: str, language: str) -> Executed:
    """The notebook after its run; ``folder`` is for all processes of these tests."""
    here = folder / f"{chapter}-{language}"
    with locked(folder / f"{here.name}.lock"):
        if not here.exists():
            here.mkdir()
            try:
                kept = _run(here, chapter, language)
            except BaseException:  # a failure is kept, too: it would be the same for the next one
                (here / "failure").write_text(traceback.format_exc(), "utf-8")
                raise
            (here / "kept").write_text(json.dumps(kept), "utf-8")
    if (here / "failure").exists():
        raise AssertionError(f"{chapter}, {language}, did not run:\n{(here / 'failure').read_text('utf-8')}")
    text, seen = json.loads((here / "kept").read_text("utf-8"))
    return Executed(nbformat.reads(text, as_version=4), seen)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(folder: Path, chapter: str, language: str) -> tuple[str, dict | None]:
    if (language, chapter) in IN_LAB:
        return lab.read(folder, chapter, language, ROOT / f"tests/pictures/lab-{language}-{chapter}.png", OFFLINE)
    book = nbformat.read(ROOT / f"chapters/{chapter}/{language}.ipynb", as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(OFFLINE))
    where = {"metadata": {"path": str(ROOT / "chapters" / chapter)}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute()
    del book.cells[0]
    return nbformat.writes(book), None
