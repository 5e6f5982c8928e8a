"""The parts of the site that run Python in the reader's browser: "try it" below a cell, and a chapter in one file.

``trial`` finds the cells that run there, ``pyodide`` has Python itself, ``theme/try.js`` and ``try-worker.js`` run it.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import d2lps
from course import handout
from course.book.library import Book, Chapter, digest, write, zipped
from course.site import pyodide, runs
from course.site.exercises import solved
from course.site.trial import runnable
from d2lps.messages import text_in
from d2lps.notebook.predict_page import as_data

STATIC = "_static"
PYTHON = f"{STATIC}/python"  # the folder of Python in the site
WORKER = "try-worker.js"  # in that folder
WORDS = ("try", "run", "stop", "again", "close", "fetching", "starting", "running", "stopped")
WORDS += ("from-file", "edit", "late", "failed")
TABLES = (".py", ".toml", ".md", ".css", ".js", ".json")  # files of the package and of chapters that Python reads
ALONE = "01-data-parallelism"  # the chapter that is also one file, d2lps-try-en.html


def tried(book: Book, chapter: Chapter, folder: Path, say: Callable[[str], None] = print) -> dict[str, list[str]]:
    """Return the cells of a chapter that a browser can run, each with the ids of the earlier cells that it needs.

    The result is kept in ``folder`` until the chapter's code or the package changes.
    """
    path = folder / f"tried-{runs.name(book, chapter.slug)}-{digest(chapter.lesson)}.json"
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        say(f"finding the cells of {chapter.slug} that a browser can run")
    solutions = {cell.id: solved(book, chapter, cell.exercise) for cell in chapter.cells if cell.exercise}
    found = runnable([(cell.id, cell.source) for cell in chapter.cells], solutions)
    for old in folder.glob(f"tried-{chapter.slug}-*.json"):
        old.unlink(missing_ok=True)
    write({path: json.dumps(found)})
    return found


def file(language: str) -> str:
    """Return the name of the file that has a whole chapter and Python."""
    return f"d2lps-try-{language}.html"


def cells(chapter: Chapter, needs: dict[str, list[str]]) -> str:
    """Return the script with the code of the cells that can be tried, and of those that they need."""
    wanted = {*needs, *(earlier for ids in needs.values() for earlier in ids)}
    sources = {cell.id: cell.source for cell in chapter.cells if cell.id in wanted}
    return f"window.d2lpsCells = {json.dumps({'needs': needs, 'sources': sources}, ensure_ascii=False)};\n"


def data(language: str, slug: str, python: dict[str, bytes]) -> str:
    """Return the element of a page with what ``try.js`` needs.

    That is its words, the address of the chapter's cells, and for each of Python's files, of :func:`parts`, its bytes
    and a digest: a browser keeps a file until that changes.
    """
    values = {"done": "{done}", "all": "{all}"}  # the script fills them
    given = {"words": {word: text_in(language, f"browser.{word}", **values) for word in WORDS}}
    given["cells"], given["alone"] = f"{slug}-cells.js", file(language)
    given["parts"] = {name: [len(content), digest(content)] for name, content in python.items()}
    return f'<div id="d2lps-try" hidden>{as_data(given)}</div>'


def parts(book: Book) -> dict[str, bytes]:
    """Return the files of Python in the site: Pyodide's, and ``course.zip`` with d2lps, networkx and the exercises."""
    folder = pyodide.folder(book.root)
    worker = Path(__file__).with_name("theme") / WORKER
    files = {path.name: path.read_bytes() for path in (*(folder / name for name in pyodide.FILES), worker)}
    return files | {"course.zip": zipped(sorted(_packed(book)), level=9)}


def _packed(book: Book) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file that Python reads in the browser."""
    yield "in_browser.py", Path(__file__).with_name("in_browser.py").read_bytes()
    package = Path(d2lps.__file__).parent
    for path in package.rglob("*"):
        if path.suffix in TABLES and path.is_file():
            yield f"d2lps/{path.relative_to(package).as_posix()}", path.read_bytes()
    yield "chapters/toc.toml", handout.contents(book).encode()
    for slug in book.contents:
        for name, text in handout.code_of(book, slug):
            yield f"chapters/{slug}/{name}", text.encode()
    for file in distribution("networkx").files or ():
        if file.suffix == ".py" and "tests" not in file.parts and file.parts[0] == "networkx":
            yield file.as_posix(), file.read_binary()


def packed(files: dict[str, bytes]) -> str:
    """Return Python's files, of :func:`parts`, as elements of a page."""
    kind = 'type="text/plain" data-part='
    return "".join(f'<script {kind}"{name}">{_text(content)}</script>\n' for name, content in files.items())


def alone(page: str, site: Path, folder: str, script: str, python: str) -> str:
    """Return a page of a chapter as one file: it asks for nothing, neither from the network nor from other files.

    Args:
        page: The framed page.
        site: The folder of the site, in which style sheets, scripts and pictures lie already.
        folder: The folder of the page in the site.
        script: The code of the cells, of :func:`cells`, and the data of the players.
        python: Python's files, of :func:`packed`.
    """

    def content(address: str) -> bytes:
        return (site / folder / address).resolve().read_bytes()

    def style(match: re.Match) -> str:
        font = base64.b64encode(content("../_static/math.woff2")).decode()
        sheet = content(match[1]).decode().replace("url(math.woff2)", f"url(data:font/woff2;base64,{font})")
        return f"<style>{sheet}</style>"

    def picture(match: re.Match) -> str:
        return f'src="data:image/svg+xml;base64,{base64.b64encode(content(match[1])).decode()}"'

    scripts = [content(address).decode() for address in re.findall(r'<script defer src="([^"]+)"></script>', page)]
    page = re.sub(r'<script defer src="[^"]+"></script>\n?', "", page)
    page = re.sub(r'<link rel="stylesheet" href="([^"]+)">', style, page)
    page = re.sub(r'<link rel="alternate"[^>]*>\n?', "", page)
    page = re.sub(r'src="(\.\./img/[^"]+)"', picture, page)
    # What leads to other pages of the site is only text here.
    page = re.sub(
        r'<nav class="(?:chapters|languages|near)".*?</nav>|<form role="search".*?</form>', "", page, flags=re.S
    )
    page = re.sub(r'<p class="tools">.*?</p>', "", page, flags=re.S)
    page = re.sub(r'<a ((?:(?!>).)*)href="(?!#|https?:)[^"]*"', r"<a \1", page)
    started = "".join(f"<script>{_inside(code)}</script>\n" for code in [script, *scripts])
    return page.replace("</body>", f"{python}{started}</body>")


def _text(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _inside(code: str) -> str:
    """Return a script that can stand inside a page."""
    return code.replace("</script", "<\\/script")
