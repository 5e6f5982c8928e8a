"""Tell if a site is up to date: its sources and its own files have not changed since it was built.

``build/site.json`` has the digest of the sources, and size and time of each file of the site.
"""

import json
import sys
from pathlib import Path

import course
import d2lps
from course.book.library import Book, digest, source_files, write
from d2lps.notebook.grading.course import edition

NOTE = "build/site.json"
FILES = ("requirements.lock", "pyproject.toml")


def made_of(book: Book, pdf: bool) -> str:
    """Return a digest of everything that decides the content of a site: texts, code, pictures, packages, Python."""
    packages = [Path(package.__file__).parent for package in (d2lps, course)]
    files = [path for folder in (*packages, book.chapters, book.root / "img") for path in source_files(folder)]
    files += [path for name in FILES if (path := book.root / name).is_file()]
    chosen = f"{pdf} {book.solutions} {[*book.contents]} {book.chosen_exercises} {edition()}"
    return digest("\n".join([sys.version, chosen, *(f"{path} {digest(path.read_bytes())}" for path in files)]))


def is_current(book: Book, site: Path, name: str) -> bool:
    """Return whether the site was made from the sources of this digest, and its files have not changed since."""
    try:
        return json.loads((book.root / NOTE).read_text("utf-8")) == _noted(site, name)
    except (OSError, ValueError):
        return False


def note(book: Book, site: Path, name: str) -> None:
    """Note that the site was made from the sources of this digest."""
    write({book.root / NOTE: json.dumps(_noted(site, name))})


def _noted(site: Path, name: str) -> dict:
    files = {path: path.stat() for path in sorted(site.rglob("*")) if path.is_file()}
    states = {path.relative_to(site).as_posix(): [status.st_size, status.st_mtime_ns] for path, status in files.items()}
    return {"site": str(site.resolve()), "made of": name, "files": states}
