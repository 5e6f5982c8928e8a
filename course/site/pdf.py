"""All chapters of a language as one PDF: a page without scripts, printed by a Chromium without windows."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from course.book.findings import BookError
from course.book.library import digest
from course.site.front import FRAME
from course.site.pages import LOOKS, Site

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
SECONDS = 300  # a whole book has some hundred pages
REMEDY = "install Chromium (Debian, Ubuntu: sudo apt install chromium), or leave the PDFs out with --no-pdf"
_PLAYER = re.compile(r'<a href="#player:[^"]*">(.*?)</a>', re.S)
_ID = re.compile(r'(?<= id=")([^"]+)(?=")')
_INSIDE = re.compile(r'(?<= href="#)([^"]+)(?=")')
_OTHER = re.compile(r'(?<= href=")([\w-]+)\.html(?:#([^"]+))?(?=")')


def bound(site: Site) -> str:
    """All chapters of a language, answers and sources, as one page; links between them stay inside it."""
    parts = [*map(site.chapter, site.chapters), site.answers(), site.references()]
    names = {page.path.removesuffix(".html") for page in parts}

    def other(match: re.Match) -> str:
        if match[1] not in names:
            return match[0]
        return f"#{match[1]}" + (f"--{match[2]}" if match[2] and match[2] != "main" else "")

    def body(page) -> str:
        page_id = page.path.removesuffix(".html")
        text = _PLAYER.sub(r"\1", page.body)  # there is nothing on paper that could be set to a moment
        text = _INSIDE.sub(rf"{page_id}--\1", _ID.sub(rf"{page_id}--\1", text))
        return _OTHER.sub(other, text)

    return FRAME.get_template("bound.html").render(
        lang=site.html_language,
        title=site.say("title"),
        question=site.say("question"),
        still=site.say("still"),
        footer=site.say("license"),
        looks=LOOKS,
        parts=[{"id": page.path.removesuffix(".html"), "title": page.title, "body": body(page)} for page in parts],
    )


def printed(page: Path, folder_of_pdfs: Path) -> Path:
    """The PDF of a page: the one that is kept, if the page is the same, else a new one.

    Parameters
    ----------
    page : Path
        An HTML file without scripts.
    kept : Path
        The folder of the PDFs that were printed before.

    Returns
    -------
    Path
        The PDF, in ``kept``.

    Raises
    ------
    BookError
        Where there is no browser, or it prints nothing.
    """
    looks = "".join((page.parent.parent / "_static" / name).read_text("utf-8") for name in LOOKS)
    pdf = folder_of_pdfs / f"{page.stem}-{digest(page.read_text('utf-8') + looks)}.pdf"
    if not pdf.is_file():
        folder_of_pdfs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder_of_pdfs) as folder:
            _print(page, Path(folder) / pdf.name, Path(folder))
            (Path(folder) / pdf.name).rename(pdf)
        for old in folder_of_pdfs.glob(f"{page.stem}-*.pdf"):
            if old != pdf:
                old.unlink(missing_ok=True)
    return pdf


def browser() -> str:
    """The Chromium of this machine; raises BookError where there is none."""
    programs = [path for name in BROWSERS if (path := shutil.which(name))]
    programs += [path for path in APPLICATIONS if Path(path).exists()]
    if not programs:
        raise BookError(f"the PDFs are printed by a Chromium, and there is none here: {REMEDY}")
    return programs[0]


def _print(page: Path, out: Path, profile: Path) -> None:
    command = [browser(), "--headless", "--disable-gpu", "--no-pdf-header-footer", "--generate-pdf-document-outline"]
    command += [f"--user-data-dir={profile}"]
    command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command += [f"--print-to-pdf={out}", page.resolve().as_uri()]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise BookError(f"{command[0]} did not print {page.name} within {SECONDS} s: try again, or {REMEDY}") from None
    if process.returncode or not out.is_file():
        raise BookError(f"{command[0]} did not print {page.name}: {process.stderr.strip()[-300:]}; {REMEDY}")
