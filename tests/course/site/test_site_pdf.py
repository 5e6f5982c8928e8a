"""The printed book: its bookmarks are the headings, each once."""

import re
from pathlib import Path

from course.site import pdf
from course.site.front import THEME
from course.site.pages import LOOKS

LINE = "<p>A paragraph that is as long as a line or two of the page, so that headings come to lie anywhere.</p>"
TITLE = re.compile(rb"/Title\s*(?:\(((?:\\.|[^\\)])*)\)|<([0-9A-Fa-f\s]*)>)", re.S)


def bookmarks(document: bytes) -> list[str]:
    """Return the titles of a PDF's bookmarks; Chromium writes them without compression."""
    titles = []
    for plain, hexadecimal in TITLE.findall(document):
        raw = bytes.fromhex(hexadecimal.decode()) if hexadecimal else re.sub(rb"\\(.)", rb"\1", plain)
        titles.append(raw.decode("utf-16" if raw[:2] in (b"\xfe\xff", b"\xff\xfe") else "latin-1"))
    return titles


def test_no_bookmark_has_a_heading_twice(tmp_path: Path):
    headings = [f"Heading {i}" if i % 2 else f"Mục {i}" for i in range(120)]
    body = "".join(f"<section><h2>{each}</h2>{LINE * (i % 7 + 1)}</section>" for i, each in enumerate(headings))
    look = (THEME / "book.css").read_text("utf-8")
    (tmp_path / "en").mkdir()
    page = tmp_path / "en" / "book.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Book</title><style>{look}</style>'
        f'<body class="bound"><article>{body}</article>',
        "utf-8",
    )
    (tmp_path / "_static").mkdir()
    for name in LOOKS:
        (tmp_path / "_static" / name).touch()  # what else a page looks like makes no difference to its bookmarks
    found = bookmarks(pdf.printed(page, tmp_path / "printed").read_bytes())
    assert [each for each in found if each.startswith(("Heading", "Mục"))] == headings
