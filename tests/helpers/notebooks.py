"""Each chapter is executed once per run of the tests, by whoever needs it first; its outputs are there for all.

Two are executed in JupyterLab, since a reader runs them there; the others without it, which takes less time.
"""

import fcntl
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import nbformat

from course.site.execute import FIRST, execute, in_languages
from helpers import lab

ROOT = Path(__file__).parents[2]
IN_LAB = {lab.FIRST: "vi", "02-ring": "zh"}  # chapter → the language of whoever looks on

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
    """The notebook after the chapter's run; ``folder`` is for all processes of these tests."""
    texts, seen = once(folder / chapter, lambda here: _run(here, chapter))
    return Executed(nbformat.reads(texts[language], as_version=4), seen)


def seen(folder: Path, chapter: str, language: str) -> dict:
    """What a reader sees of the chapter in JupyterLab: of its run, or of one without what takes long."""
    if IN_LAB.get(chapter) == language:
        return executed(folder, chapter, language).seen
    return once(folder / f"{chapter}-{language}", lambda here: _read(here, chapter, language, lab.LONG)[1])


def once(here: Path, run: Callable[[Path], object]) -> object:
    """What ``run`` has given in the folder ``here``, whoever ran it first; or the failure that it was."""
    with locked(here.with_name(f"{here.name}.lock")):
        if not here.exists():
            here.mkdir()
            try:
                kept = run(here)
            except BaseException:  # a failure is kept, too: it would be the same for the next one
                (here / "failure").write_text(traceback.format_exc(), "utf-8")
                raise
            (here / "kept").write_text(json.dumps(kept), "utf-8")
    if (here / "failure").exists():
        raise AssertionError(f"{here.name} did not run:\n{(here / 'failure').read_text('utf-8')}")
    return json.loads((here / "kept").read_text("utf-8"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(folder: Path, chapter: str) -> tuple[dict[str, str], dict | None]:
    source, what_was_seen = ROOT / "chapters" / chapter, None
    if chapter in IN_LAB:
        text, what_was_seen = _read(folder, chapter, IN_LAB[chapter])
        books = in_languages(nbformat.reads(text, as_version=4), source)
    else:
        books = execute(source, OFFLINE)
    return {language: nbformat.writes(book) for language, book in books.items()}, what_was_seen


def _read(folder: Path, chapter: str, language: str, without: tuple[str, str] | None = None) -> tuple[str, dict]:
    picture = ROOT / f"tests/pictures/lab-{language}-{chapter}.png"
    first = OFFLINE if without else FIRST + OFFLINE
    return lab.read(folder, chapter, language, picture, first, without)
