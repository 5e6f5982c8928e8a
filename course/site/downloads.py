"""Notebooks to take away: with their pictures inside, and for Colab if the course has an address."""

import base64
import html
import re
import tomllib
from collections.abc import Callable
from urllib.parse import urlsplit

import nbformat

from course.book import stills
from course.book.library import Book
from course.book.notebook import dumps
from course.site import browser, pyodide
from d2lps.messages import LANGUAGES, text_in

BRANCH = "main"  # has the sources of the course
PUBLISHED = "gh-pages"  # has the built site, from which Colab opens notebooks
_IMAGE = re.compile(r"\]\(\.\./\.\./img/([\w-]+\.svg)\)")
_CHAPTER = re.compile(r"\]\(\.\./([\w-]+)/\w\w\.ipynb\)")


def repository(book: Book) -> str:
    """Return the address of the sources from pyproject.toml, or an empty text if it has none."""
    return _urls(book).get("Repository", "").rstrip("/")


def domain(book: Book) -> str:
    """Return the domain of the site from the Homepage in pyproject.toml; empty if it is one of GitHub, or missing."""
    host = urlsplit(_urls(book).get("Homepage", "")).hostname or ""
    return "" if host.endswith(("github.io", "github.com")) else host


def _urls(book: Book) -> dict[str, str]:
    file = book.root / "pyproject.toml"
    return tomllib.loads(file.read_text("utf-8"))["project"].get("urls", {}) if file.is_file() else {}


def tools(book: Book, slug: str, language: str, pdf: bool) -> list[dict[str, str]]:
    """Return the links above a chapter, or above the first page if the slug is empty; ``pdf`` adds that of the PDF."""

    def link(key: str, href: str, download: str = "") -> dict[str, str]:
        return {"title": html.escape(text_in(language, f"site.{key}")), "href": href, "download": download}

    links = [link("notebook", f"notebooks/{slug}.ipynb", f"{slug}-{language}.ipynb")] if slug else []
    links += [link("pdf", f"d2lps-{language}.pdf")] if pdf else []
    if slug == browser.ALONE and pyodide.is_there(book.root):
        links += [link("alone", browser.file(language), browser.file(language))]
    if slug and (address := repository(book)):
        on_github = address.removeprefix("https://github.com/")
        colab = f"https://colab.research.google.com/github/{on_github}/blob/{PUBLISHED}/{language}/colab/{slug}.ipynb"
        links += [link("colab", colab), link("edit", f"{address}/edit/{BRANCH}/chapters/{slug}/{language}.md")]
        links += [link("report", f"{address}/issues/new?template=sentence.{language}.md")]
    return links


def notebooks(book: Book) -> dict[str, str]:
    """Return path in the site → text of the notebook, for every chapter in every language."""
    texts, address = {}, repository(book)
    for slug in book.contents:
        made = stills.texts(book, book.chapter(slug), draw=None)
        for language in LANGUAGES:
            source = nbformat.reads(made[book.folder(slug) / f"{language}.ipynb"], as_version=4)
            texts[f"{language}/notebooks/{slug}.ipynb"] = dumps(with_pictures(book, source, language))
            if address:
                texts[f"{language}/colab/{slug}.ipynb"] = dumps(for_colab(source, address, slug, language))
    return texts


def with_pictures(book: Book, source: nbformat.NotebookNode, language: str) -> nbformat.NotebookNode:
    """Return a notebook that can be read without other files: its pictures are attached.

    It links to other chapters beside it, and begins with the requirements to run it.
    """

    def attached(cell: nbformat.NotebookNode) -> str:
        for name in _IMAGE.findall(cell.source):
            picture = base64.b64encode((book.root / "img" / name).read_bytes()).decode()
            cell.setdefault("attachments", {})[name] = {"image/svg+xml": picture}
        return _CHAPTER.sub(r"](\1.ipynb)", _IMAGE.sub(r"](attachment:\1)", cell.source))

    return _changed(source, attached, nbformat.v4.new_markdown_cell(f"> {text_in(language, 'site.needs')}", id="needs"))


def for_colab(source: nbformat.NotebookNode, address: str, slug: str, language: str) -> nbformat.NotebookNode:
    """Return a notebook that begins by installing its requirements, and takes its pictures from the repository."""
    raw = address.replace("https://github.com/", "https://raw.githubusercontent.com/")
    on_github = address.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{on_github}/blob/{PUBLISHED}/{language}/colab"

    def elsewhere(cell: nbformat.NotebookNode) -> str:
        return _CHAPTER.sub(rf"]({colab}/\1.ipynb)", _IMAGE.sub(rf"]({raw}/{BRANCH}/img/\1)", cell.source))

    return _changed(source, elsewhere, nbformat.v4.new_code_cell(_install(address, slug), id="install"))


def _changed(
    source: nbformat.NotebookNode, text: Callable[[nbformat.NotebookNode], str], first: nbformat.NotebookNode
) -> nbformat.NotebookNode:
    """Return a copy of a notebook with another first cell, and these texts."""
    made = nbformat.from_dict(source)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = text(cell)
    made.cells.insert(0, first)
    return made


def _install(address: str, slug: str) -> str:
    # Colab has torch, numpy and matplotlib, which stay as they are. Elsewhere than on Colab the cell does nothing.
    return f"""\
import os, sys

if "google.colab" in sys.modules:
    if not os.path.exists("/content/course"):
        !git clone -q --depth 1 {address} /content/course
        %pip install -q anywidget ipyparallel networkx -e /content/course
    os.chdir("/content/course/chapters/{slug}")
    sys.path.insert(0, "/content/course")"""
