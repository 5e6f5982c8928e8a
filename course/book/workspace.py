"""The readers' own notebooks in ``workspace/``: made once, never overwritten, opened in JupyterLab.

A notebook's metadata ``d2lps`` hold the chapter, the language, and packed the sources of the edition that it was made
from: the base of a three-way merge, and the proof that a copy was never touched. So it may be renamed, copied or moved.
"""

import base64
import itertools
import json
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import nbformat

from course.book.findings import COMMAND, BookError
from course.book.lesson import read_cells, read_text
from course.book.library import Book, Chapter, digest, write
from course.book.notebook import dumps, notebook
from d2lps.messages import LANGUAGES
from d2lps.notebook import ranks

KEY = "d2lps"
NOTED = {"collapsed", "jp-MarkdownHeadingCollapsed", "scrolled", "trusted"}  # of a cell: how it was looked at


@dataclass(frozen=True)
class Origin:
    """One edition of one chapter in one language."""

    chapter: str
    language: str
    lesson: str
    prose: str
    cites: dict[str, str]

    def metadata(self) -> dict:
        """What a notebook keeps of it."""
        sources = json.dumps({"lesson": self.lesson, "prose": self.prose, "cites": self.cites}, sort_keys=True)
        base = base64.b64encode(zlib.compress(sources.encode(), 9)).decode()
        return {"chapter": self.chapter, "language": self.language, "base": base}

    def read(self) -> Chapter:
        """The chapter of that edition, in this one language."""
        text = read_text(self.prose, f"{self.language}.md")
        return Chapter(self.chapter, self.lesson, read_cells(self.lesson), {self.language: text})


def edition(chapter: str, language: str, lesson: str, prose: str, cites: dict[str, str]) -> Origin:
    """An edition from its sources, with no more citations than the prose makes."""
    sections = read_text(prose, f"{language}.md").sections
    keys = sorted({key for section in sections for key in section.cited()})
    return Origin(chapter, language, lesson, prose, {key: cites[key] for key in keys if key in cites})


def copy(source: Origin) -> nbformat.NotebookNode:
    """A notebook for a reader, which knows what it was made from."""
    book = notebook(source.read(), source.language, source.cites)
    book.metadata[KEY] = source.metadata()
    book.metadata[KEY]["made"] = _content(book)
    return book


def load(path: Path) -> nbformat.NotebookNode:
    """A notebook's file; raises BookError where there is none."""
    try:
        return nbformat.reads(path.read_text("utf-8"), as_version=4)
    except FileNotFoundError:
        raise BookError(f"there is no notebook {path}; name one, as workspace/en/01-data-parallelism.ipynb") from None
    except Exception as error:
        raise BookError(f"{path} is not a notebook ({error}); name another, or make one with `{COMMAND} lab`") from None


def origin_of(book: nbformat.NotebookNode, path: Path) -> Origin:
    """What a notebook was made from; raises BookError where it does not say."""
    data = book.metadata.get(KEY, {})
    try:
        return Origin(data["chapter"], data["language"], **json.loads(zlib.decompress(base64.b64decode(data["base"]))))
    except (KeyError, TypeError, ValueError, zlib.error):
        raise BookError(
            f"{path} does not say what it was made from; copy your edits into a notebook made by `{COMMAND} lab`"
        ) from None


def touched(book: nbformat.NotebookNode) -> bool:
    """Somebody has changed or run a cell of the notebook since it was made; opening it is neither."""
    if book.metadata.get(KEY, {}).get("made") in (_content(book), _everything(book)):
        return False
    try:  # an older copy, whose digest went over what JupyterLab has rewritten since
        return _content(copy(origin_of(book, Path()))) != _content(book)
    except BookError:
        return True


def _content(book: nbformat.NotebookNode) -> str:
    """The digest of the cells, without what JupyterLab notes in them while somebody only looks."""
    cells = [
        dict(cell) | {"metadata": {key: value for key, value in cell.metadata.items() if key not in NOTED}}
        for cell in book.cells
    ]
    return digest(json.dumps(cells, sort_keys=True))


def _everything(book: nbformat.NotebookNode) -> str:
    """The digest that older copies have: of all but the digest itself."""
    data = {key: value for key, value in book.metadata.get(KEY, {}).items() if key != "made"}
    content = dict(book) | {"metadata": dict(book.metadata) | {KEY: data}}
    return digest(json.dumps(content, sort_keys=True))


def lay_out(book: Book) -> list[str]:
    """Put a copy of every chapter into ``workspace/``, in every language; say what a reader must know.

    A copy that somebody has run or changed stays; a newer edition is laid beside it.
    """
    notes = []
    for slug in book.slugs():
        chapter = book.chapter(slug)
        for language, text in chapter.texts.items():
            newest = edition(slug, language, chapter.lesson, text.source, book.links(language, workspace=True))
            home = own_copy(book, slug, language)
            path = next(path for path in _names(home) if not path.exists() or _free(path, newest))
            if path.exists() and origin_of(load(path), path) == newest:
                continue
            write({path: dumps(copy(newest))})
            if path != home:
                kept_name, new_name = (file.relative_to(book.root).as_posix() for file in (home, path))
                notes.append(f"{kept_name} is yours and stays; the newer edition is {new_name}")
    return notes


def _free(path: Path, newest: Origin) -> bool:
    """No work is lost if the edition takes this name: it is there already, or nobody touched what is."""
    try:
        notebook_there = load(path)
        return origin_of(notebook_there, path) == newest or not touched(notebook_there)
    except BookError:
        return False


def _names(home: Path):
    yield home
    yield home.with_name(f"{home.stem} (new).ipynb")
    for number in itertools.count(2):
        yield home.with_name(f"{home.stem} (new {number}).ipynb")


def own_copy(book: Book, slug: str, language: str) -> Path:
    """Where a reader's copy of a chapter lies; its figures are as far away as from the chapter's own notebook."""
    return book.root / "workspace" / language / f"{slug}.ipynb"


def language(book: Book, choice: str | None) -> tuple[str, list[str]]:
    """The language to open: the one wanted, the one opened last, or English with a word on how to choose."""
    memory = book.root / "workspace" / ".language"
    if choice:
        write({memory: choice + "\n"})
        return choice, []
    last = memory.read_text("utf-8").strip() if memory.is_file() else ""
    if last in LANGUAGES:
        return last, []
    return LANGUAGES[0], ["Opening English. Tiếng Việt: make lab-vi. 中文：make lab-zh."]


def show_contents(chosen: str, first: str) -> None:
    """Let JupyterLab begin with the table of contents beside the chapter, unless it knows how it was left."""
    from jupyter_core.paths import jupyter_config_dir
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    place = os.environ.get("JUPYTERLAB_WORKSPACES_DIR") or Path(jupyter_config_dir(), "lab", "workspaces")
    manager, widget = WorkspacesManager(str(place)), f"notebook:{first}"
    if any(space["metadata"].get("id") == chosen for space in manager.list_workspaces()):
        return
    contents = "@jupyterlab/toc:plugin"
    left = {"collapsed": False, "visible": True, "current": contents, "widgets": ["filebrowser", contents]}
    main = {"dock": {"type": "tab-area", "currentIndex": 0, "widgets": [widget]}, "current": widget}
    data = {
        "layout-restorer:data": {"main": main, "left": left},
        widget: {"data": {"path": first, "factory": "Notebook"}},
    }
    manager.save(chosen, json.dumps({"data": data, "metadata": {"id": chosen}}))


def start(book: Book, chosen: str, browser: bool = True) -> None:
    """Become JupyterLab, at the first chapter, for this machine only and with a token."""
    first = own_copy(book, book.slugs()[0], chosen).relative_to(book.root).as_posix()
    show_contents(chosen, first)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={book.root.resolve()}",
        f"--LabApp.default_url=/lab/workspaces/{chosen}/tree/{quote(first)}",
        f"--LabApp.app_settings_dir={Path(__file__).with_name('settings')}",  # asks nothing of the network
    ]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    os.environ.setdefault("PYTHONSTARTUP", str(Path(ranks.__file__).with_name("startup.py")))
    os.chdir(book.root)
    os.execv(sys.executable, command)
