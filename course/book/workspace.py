"""The readers' copies of the notebooks in ``workspace/``: never overwritten once edited, and opened in JupyterLab.

The metadata ``d2lps`` of a copy has the chapter, the language, and digests of the sources that it was made from and of
its cells. They show whether the copy was edited, so it may be renamed or moved.
"""

import itertools
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import nbformat

from course.book import navigation
from course.book.findings import COMMAND, BookError
from course.book.library import Book, Chapter, digest, write
from course.book.notebook import dumps, notebook, own
from course.book.stills import committed, place
from d2lps.messages import LANGUAGES
from d2lps.notebook import ranks
from d2lps.notebook.grading.course import OWN, own_texts

KEY = "d2lps"
VIEW_METADATA = {"collapsed", "jp-MarkdownHeadingCollapsed", "scrolled", "trusted"}  # written by looking at a cell
STRIPPED = {"id", "outputs", "execution_count"}  # removed or written anew by nbstripout


def sources(book: Book, chapter: Chapter, language: str) -> dict[str, str]:
    """Return the metadata of a copy that say what it was made from: chapter, language, and a digest of the sources."""
    text = chapter.texts[language]
    links, end = book.links(language, workspace=True), navigation.end(book, chapter.slug, language, workspace=True)
    cited = sorted({key for section in text.sections for key in section.cited()} & {*links})
    made_of = [chapter.lesson, text.source, {key: links[key] for key in cited}, end]
    return {"chapter": chapter.slug, "language": language, "base": digest(json.dumps(made_of, ensure_ascii=False))}


def copy(book: Book, chapter: Chapter, language: str) -> nbformat.NotebookNode:
    """Make a reader's copy, with the digest of its sources in the metadata, and the still of its opening."""
    links, end = book.links(language, workspace=True), navigation.end(book, chapter.slug, language, workspace=True)
    made = place(notebook(chapter, language, links, end), committed(book, chapter.slug, language))
    made = nbformat.reads(dumps(made), as_version=4)  # which joins the lines of the still's words, as every reader does
    made.metadata[KEY] = sources(book, chapter, language)
    made.metadata[KEY]["made"], made.metadata[KEY]["stripped"] = _content(made), _content(made, without=STRIPPED)
    return made


def load(path: Path) -> nbformat.NotebookNode:
    """Read a notebook; raise BookError if there is none."""
    try:
        return nbformat.reads(path.read_text("utf-8"), as_version=4)
    except FileNotFoundError:
        raise BookError(f"there is no notebook {path}; name one, as workspace/en/01-data-parallelism.ipynb") from None
    except Exception as error:
        raise BookError(f"{path} is not a notebook ({error}); name another, or make one with `{COMMAND} lab`") from None


def touched(copy: nbformat.NotebookNode) -> bool:
    """Return whether a cell of the copy was changed or run; opening the copy does not count, nor does nbstripout."""
    about = copy.metadata.get(KEY, {})
    if about.get("made") == _content(copy):
        return False
    was_run = any(cell.get("outputs") or cell.get("execution_count") for cell in copy.cells)
    return was_run or about.get("stripped") != _content(copy, without=STRIPPED)


def _content(book: nbformat.NotebookNode, without: Collection[str] = ()) -> str:
    """Return the digest of the cells, without metadata that JupyterLab writes when they are only looked at."""
    cells = [
        {key: value for key, value in cell.items() if key not in without}
        | {"metadata": {key: value for key, value in cell.metadata.items() if key not in VIEW_METADATA}}
        for cell in book.cells
    ]
    return digest(json.dumps(cells, sort_keys=True))


def lay_out(book: Book) -> list[str]:
    """Put a copy of every chapter into ``workspace/``, in every language, and return notes for the reader.

    A copy that was changed or run stays; a newer edition is put beside it.
    """
    notes, exercises = [], own_texts()  # a fault in these is reported at once
    for slug in book.slugs():
        chapter = book.chapter(slug)
        for language in chapter.texts:
            newest, home = sources(book, chapter, language), own_copy(book, slug, language)
            path = next(path for path in _names(home) if not path.exists() or _free(path, newest))
            if path.exists() and _is(load(path), newest):
                continue
            write({path: dumps(copy(book, chapter, language))})
            if path != home:
                kept_name, new_name = (file.relative_to(book.root).as_posix() for file in (home, path))
                notes.append(f"{kept_name} is yours and stays; the newer edition is {new_name}")
    for language in LANGUAGES if exercises else ():
        path, made = own_copy(book, OWN, language), own(exercises, language)
        made.metadata[KEY] = {"made": _content(made), "stripped": _content(made, without=STRIPPED)}
        if not path.exists() or not touched(load(path)):
            write({path: dumps(made)})
    return notes


def _is(copy: nbformat.NotebookNode, newest: dict[str, str]) -> bool:
    """Return whether the copy was made from these sources."""
    return newest.items() <= copy.metadata.get(KEY, {}).items()


def _free(path: Path, newest: dict[str, str]) -> bool:
    """Return whether the file is this edition already, or an untouched copy that may be replaced."""
    try:
        copy_there = load(path)
    except BookError:
        return False
    return _is(copy_there, newest) or not touched(copy_there)


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
