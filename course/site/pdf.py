"""All chapters of a language as one PDF: a page without scripts, printed by a headless Chromium."""

import re
import tempfile
from pathlib import Path

from course.book.chromium import INSTALL, open_page
from course.book.library import digest
from course.site.front import FRAME
from course.site.pages import LOOKS, Site

SECONDS = 300  # the book has some hundred pages
REMEDY = f"{INSTALL}, or leave the PDFs out with --no-pdf"
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
            out = Path(temporary) / pdf.name
            options = ["--no-pdf-header-footer", "--generate-pdf-document-outline", f"--print-to-pdf={out}"]
            open_page(page, options, out, SECONDS, REMEDY)
            out.rename(pdf)
        for old in folder.glob(f"{page.stem}-*.pdf"):
            if old != pdf:
                old.unlink(missing_ok=True)
    return pdf
