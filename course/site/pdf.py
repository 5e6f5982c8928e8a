"""All chapters of a language as one PDF: a page without scripts, printed by a headless Chromium."""

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
SECONDS = 300  # the book has some hundred pages
REMEDY = "install Chromium (Debian, Ubuntu: sudo apt install chromium), or leave the PDFs out with --no-pdf"
_PLAYER = re.compile(r'<a href="#player:[^"]*">(.*?)</a>', re.S)
_ID = re.compile(r'(?<= id=")([^"]+)(?=")')
_INSIDE = re.compile(r'(?<= href="#)([^"]+)(?=")')
_OTHER = re.compile(r'(?<= href=")([\w-]+)\.html(?:#([^"]+))?(?=")')


def bound(site: Site) -> str:
    """Return all chapters, answers and sources of a language as one page; links between them stay inside it."""
    parts = [*map(site.chapter, site.chapters), site.answers(), site.references()]
    names = {page.path.removesuffix(".html") for page in parts}

    def other(match: re.Match) -> str:
        if match[1] not in names:
            return match[0]
        return f"#{match[1]}" + (f"--{match[2]}" if match[2] and match[2] != "main" else "")

    def body(page) -> str:
        page_id = page.path.removesuffix(".html")
        text = _PLAYER.sub(r"\1", page.body)  # paper has no player to be set to a moment
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


def printed(page: Path, folder: Path) -> Path:
    """Return the PDF of an HTML file: the one in ``folder`` if the page has not changed, else a new one.

    Raises BookError if there is no browser, or it does not print.
    """
    looks = "".join((page.parent.parent / "_static" / name).read_text("utf-8") for name in LOOKS)
    pdf = folder / f"{page.stem}-{digest(page.read_text('utf-8') + looks)}.pdf"
    if not pdf.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            _print(page, Path(temporary) / pdf.name, Path(temporary))
            (Path(temporary) / pdf.name).rename(pdf)
        for old in folder.glob(f"{page.stem}-*.pdf"):
            if old != pdf:
                old.unlink(missing_ok=True)
    return pdf


def browser() -> str:
    """Return the Chromium of this machine; raise BookError if there is none."""
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
