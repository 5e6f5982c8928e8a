"""The readers' own notebooks in ``workspace/``: made once, never overwritten, opened in JupyterLab."""

import itertools
import os
import sys
from pathlib import Path
from urllib.parse import quote

from d2lps.course.book.findings import BookError
from d2lps.course.book.library import Book, write
from d2lps.course.book.notebook import dumps
from d2lps.course.book.origin import Origin, copy, edition, load, origin_of, touched
from d2lps.messages import LANGUAGES


def lay_out(book: Book) -> list[str]:
    """Put a copy of every chapter into ``workspace/``, in every language; say what a reader must know.

    A copy that somebody has run or changed stays; a newer edition is laid beside it.
    """
    notes = []
    for slug in book.slugs():
        chapter = book.chapter(slug)
        for language, text in chapter.texts.items():
            newest = edition(slug, language, chapter.lesson, text.source, book.cites)
            own = own_copy(book, slug, language)
            path = next(path for path in _names(own) if not path.exists() or _free(path, newest))
            if path.exists() and origin_of(load(path), path) == newest:
                continue
            write({path: dumps(copy(newest))})
            if path != own:
                mine, beside = (each.relative_to(book.root).as_posix() for each in (own, path))
                notes.append(f"{mine} is yours and stays; the newer edition is {beside}")
    return notes


def _free(path: Path, newest: Origin) -> bool:
    """No work is lost if the edition takes this name: it is there already, or nobody touched what is."""
    try:
        made = load(path)
        return origin_of(made, path) == newest or not touched(made)
    except BookError:
        return False


def _names(own: Path):
    yield own
    yield own.with_name(f"{own.stem} (new).ipynb")
    for number in itertools.count(2):
        yield own.with_name(f"{own.stem} (new {number}).ipynb")


def own_copy(book: Book, slug: str, language: str) -> Path:
    """Where a reader's copy of a chapter lies; its figures are as far away as from the chapter's own notebook."""
    return book.root / "workspace" / language / f"{slug}.ipynb"


def language(book: Book, wanted: str | None) -> tuple[str, list[str]]:
    """The language to open: the one wanted, the one opened last, or English with a word on how to choose."""
    memory = book.root / "workspace" / ".language"
    if wanted:
        write({memory: wanted + "\n"})
        return wanted, []
    last = memory.read_text("utf-8").strip() if memory.is_file() else ""
    if last in LANGUAGES:
        return last, []
    return LANGUAGES[0], ["Opening English. Tiếng Việt: make lab-vi. 中文：make lab-zh."]


def start(book: Book, chosen: str, browser: bool = True) -> None:
    """Become JupyterLab, at the first chapter, for this machine only and with a token."""
    first = own_copy(book, book.slugs()[0], chosen).relative_to(book.root)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={book.root.resolve()}",
        f"--LabApp.default_url=/lab/workspaces/{chosen}/tree/{quote(first.as_posix())}",
        f"--LabApp.app_settings_dir={Path(__file__).with_name('settings')}",  # asks nothing of the network
    ]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    os.chdir(book.root)
    os.execv(sys.executable, command)
