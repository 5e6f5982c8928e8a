"""The readers' copies of the notebooks in ``workspace/``: never overwritten once edited, and opened in JupyterLab.

The metadata ``d2lps`` of a copy has the chapter, the language, and the compressed sources that it was made from. They
show if the copy was edited, and are the base when its prose is pulled, so a copy may be renamed or moved.
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

from course.book import way
from course.book.findings import COMMAND, BookError
from course.book.lesson import read_cells, read_text
from course.book.library import Book, Chapter, digest, write
from course.book.notebook import dumps, notebook
from course.book.stills import committed, place
from d2lps.messages import LANGUAGES
from d2lps.notebook import ranks

KEY = "d2lps"
VIEW_METADATA = {"collapsed", "jp-MarkdownHeadingCollapsed", "scrolled", "trusted"}  # written by looking at a cell


@dataclass(frozen=True)
class Origin:
    """The sources of one edition of a chapter in one language."""

    chapter: str
    language: str
    lesson: str
    prose: str
    cites: dict[str, str]
    end: str = ""  # older copies have none

    def metadata(self) -> dict:
        """Return the metadata that a notebook keeps."""
        sources = {"lesson": self.lesson, "prose": self.prose, "cites": self.cites, "end": self.end}
        sources = json.dumps(sources, sort_keys=True)
        base = base64.b64encode(zlib.compress(sources.encode(), 9)).decode()
        return {"chapter": self.chapter, "language": self.language, "base": base}

    def read(self) -> Chapter:
        """Return the chapter of that edition, in this one language."""
        text = read_text(self.prose, f"{self.language}.md")
        return Chapter(self.chapter, self.lesson, read_cells(self.lesson), {self.language: text})


def edition(chapter: str, language: str, lesson: str, prose: str, cites: dict[str, str], end: str = "") -> Origin:
    """Return an edition from its sources, with only the citations that the prose makes."""
    sections = read_text(prose, f"{language}.md").sections
    keys = sorted({key for section in sections for key in section.cited()})
    return Origin(chapter, language, lesson, prose, {key: cites[key] for key in keys if key in cites}, end)


def copy(source: Origin, still: nbformat.NotebookNode | None = None) -> nbformat.NotebookNode:
    """Make a reader's copy, with its sources in the metadata, and the still of its opening."""
    book = place(notebook(source.read(), source.language, source.cites, source.end), still)
    book.metadata[KEY] = source.metadata()
    book.metadata[KEY]["made"] = _content(book)
    return book


def load(path: Path) -> nbformat.NotebookNode:
    """Read a notebook; raise BookError if there is none."""
    try:
        return nbformat.reads(path.read_text("utf-8"), as_version=4)
    except FileNotFoundError:
        raise BookError(f"there is no notebook {path}; name one, as workspace/en/01-data-parallelism.ipynb") from None
    except Exception as error:
        raise BookError(f"{path} is not a notebook ({error}); name another, or make one with `{COMMAND} lab`") from None


def origin_of(book: nbformat.NotebookNode, path: Path) -> Origin:
    """Return the sources of a copy; raise BookError if it has none in its metadata."""
    data = book.metadata.get(KEY, {})
    try:
        return Origin(data["chapter"], data["language"], **json.loads(zlib.decompress(base64.b64decode(data["base"]))))
    except (KeyError, TypeError, ValueError, zlib.error):
        raise BookError(
            f"{path} does not say what it was made from; copy your edits into a notebook made by `{COMMAND} lab`"
        ) from None


def touched(book: nbformat.NotebookNode) -> bool:
    """Return whether a cell of the copy was changed or run; opening the copy does not count."""
    if book.metadata.get(KEY, {}).get("made") in (_content(book), _everything(book)):
        return False
    try:  # the digest of an older copy covers metadata that JupyterLab may have rewritten since
        return _content(copy(origin_of(book, Path()))) != _content(book)
    except BookError:
        return True


def _content(book: nbformat.NotebookNode) -> str:
    """Return the digest of the cells, without metadata that JupyterLab writes when they are only looked at."""
    cells = [
        dict(cell) | {"metadata": {key: value for key, value in cell.metadata.items() if key not in VIEW_METADATA}}
        for cell in book.cells
    ]
    return digest(json.dumps(cells, sort_keys=True))


def _everything(book: nbformat.NotebookNode) -> str:
    """Return the digest that older copies have, which covers the whole notebook."""
    data = {key: value for key, value in book.metadata.get(KEY, {}).items() if key != "made"}
    content = dict(book) | {"metadata": dict(book.metadata) | {KEY: data}}
    return digest(json.dumps(content, sort_keys=True))


def lay_out(book: Book) -> list[str]:
    """Put a copy of every chapter into ``workspace/``, in every language, and return notes for the reader.

    A copy that was changed or run stays; a newer edition is put beside it.
    """
    notes = []
    for slug in book.slugs():
        chapter = book.chapter(slug)
        for language, text in chapter.texts.items():
            links, end = book.links(language, workspace=True), way.end(book, slug, language, workspace=True)
            newest = edition(slug, language, chapter.lesson, text.source, links, end)
            home = own_copy(book, slug, language)
            path = next(path for path in _names(home) if not path.exists() or _free(path, newest))
            if path.exists() and origin_of(load(path), path) == newest:
                continue
            write({path: dumps(copy(newest, committed(book, slug, language)))})
            if path != home:
                kept_name, new_name = (file.relative_to(book.root).as_posix() for file in (home, path))
                notes.append(f"{kept_name} is yours and stays; the newer edition is {new_name}")
    return notes


def _free(path: Path, newest: Origin) -> bool:
    """Return whether the file is this edition already, or an untouched copy that may be replaced."""
    try:
        copy_there = load(path)
        return origin_of(copy_there, path) == newest or not touched(copy_there)
    except BookError:
        return False


def _names(home: Path):
    yield home
    yield home.with_name(f"{home.stem} (new).ipynb")
    for number in itertools.count(2):
        yield home.with_name(f"{home.stem} (new {number}).ipynb")


def own_copy(book: Book, slug: str, language: str) -> Path:
    """Return the path of a copy; its relative links to figures are those of the chapter's own notebook."""
    return book.root / "workspace" / language / f"{slug}.ipynb"


def language(book: Book, choice: str | None) -> tuple[str, list[str]]:
    """Return the language to open, chosen now or last time, or English and a note about the other languages."""
    memory = book.root / "workspace" / ".language"
    if choice:
        write({memory: choice + "\n"})
        return choice, []
    last = memory.read_text("utf-8").strip() if memory.is_file() else ""
    if last in LANGUAGES:
        return last, []
    return LANGUAGES[0], ["Opening English. Tiếng Việt: make lab-vi. 中文：make lab-zh."]


def show_contents(chosen: str, first: str) -> None:
    """Let JupyterLab open with the table of contents beside the chapter, unless it has saved a layout."""
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
    """Replace this process by JupyterLab, open at the first chapter; it listens on this machine only, with a token."""
    first = own_copy(book, book.slugs()[0], chosen).relative_to(book.root).as_posix()
    show_contents(chosen, first)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={book.root.resolve()}",
        f"--LabApp.default_url=/lab/workspaces/{chosen}/tree/{quote(first)}",
        f"--LabApp.app_settings_dir={Path(__file__).with_name('settings')}",  # no requests to the network
    ]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    if file := os.environ.get("D2LPS_TOC"):
        os.environ["D2LPS_TOC"] = os.path.abspath(file)  # kernels run in other folders
    os.environ.setdefault("PYTHONSTARTUP", str(Path(ranks.__file__).with_name("startup.py")))
    os.chdir(book.root)
    os.execv(sys.executable, command)
