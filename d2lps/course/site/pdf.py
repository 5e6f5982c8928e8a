"""All chapters of a language as one PDF, printed by a Chromium without windows."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from d2lps.course.book.findings import BookError

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
SECONDS = 300  # a whole book is some hundred pages
REMEDY = "install Chromium (Debian, Ubuntu: sudo apt install chromium), or give --no-pdf"


def browser() -> str:
    """The Chromium of this machine; raises BookError where there is none."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    found += [path for path in APPLICATIONS if Path(path).exists()]
    if not found:
        raise BookError(f"the PDFs are printed by a Chromium, and none is here: {REMEDY}")
    return found[0]


def printed(page: Path, out: Path) -> None:
    """Print a page; what is drawn by scripts is waited for.

    Parameters
    ----------
    page : Path
        An HTML file.
    out : Path
        The PDF.

    Raises
    ------
    BookError
        Where there is no browser, or it prints nothing.
    """
    with tempfile.TemporaryDirectory() as profile:
        command = [browser(), "--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
        command += _sandbox() + ["--virtual-time-budget=20000", f"--print-to-pdf={out}", page.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise BookError(f"{command[0]} did not print {page.name} within {SECONDS} s: try again, or {REMEDY}") from None
    if done.returncode or not out.is_file():
        raise BookError(f"{command[0]} did not print {page.name}: {done.stderr.strip()[-300:]}; {REMEDY}")


def _sandbox() -> list[str]:
    import os

    return ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def bound(head: str, chapters: Sequence[str]) -> str:
    """All chapters as one page."""
    return head + "".join(f"<article>{chapter}</article>" for chapter in chapters)
