"""The Chromium of this machine, which prints PDFs and draws stills."""

import os
import shutil
import subprocess
from pathlib import Path

from course.book.findings import BookError

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
INSTALL = "install Chromium (Debian, Ubuntu: sudo apt install chromium)"


def browser(remedy: str = INSTALL) -> str:
    """Return the path of Chromium; raise BookError with the remedy if there is none."""
    programs = [path for name in BROWSERS if (path := shutil.which(name))]
    programs += [path for path in APPLICATIONS if Path(path).exists()]
    if not programs:
        raise BookError(f"there is no Chromium here: {remedy}")
    return programs[0]


def open_page(page: Path, options: list[str], out: Path, seconds: float, remedy: str = INSTALL) -> None:
    """Open a file with these options, by which Chromium writes ``out``; raise BookError with the remedy if it fails.

    Its profile is beside ``out``, in a folder that the caller removes.
    """
    command = [browser(remedy), "--headless", "--disable-gpu", f"--user-data-dir={out.parent}", *options]
    command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    try:
        process = subprocess.run([*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise BookError(f"{command[0]} was not ready with {page.name} within {seconds:g} s: {remedy}") from None
    if process.returncode or not out.is_file():
        raise BookError(f"{command[0]} did not write {out.name}: {process.stderr.strip()[-300:]}; {remedy}")
