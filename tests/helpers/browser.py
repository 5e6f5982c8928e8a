"""The Chromium of the tests: the system's if there is one that runs, else Playwright's own."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

# The first has no windows, and takes a third of the processor time of the others.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ON_A_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _usable(path: str) -> bool:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    # A Chromium in a snap cannot read the files that a test writes.
    return answer.returncode == 0 and "snap" not in answer.stdout


@functools.cache
def executable() -> str | None:
    """Return the path of the system's Chromium, or None: then Playwright uses its own."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    found += [path for path in ON_A_MAC if Path(path).exists()]
    return next(filter(_usable, found), None)


def launch(playwright, **options):
    """Start a headless Chromium that sends no requests by itself."""
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    options["args"] = [*FLAGS, *sandbox, *options.get("args", ())]
    return playwright.chromium.launch(executable_path=executable(), **options)


@pytest.fixture(scope="module")  # no longer: while it runs, this thread has an event loop, which others refuse
def chromium():
    """One browser for the tests of a module, as `chromium, new_page = browsers.chromium, browsers.new_page` there."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        browser.new_context()  # for the pages of all tests: one for each takes twice as long as a page
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium):
    """``new_page(viewport=…, color_scheme=…, reduced_motion=…)``: a page of the test's own, closed after it."""
    pages = []

    def make(viewport=None, **media):
        pages.append(page := chromium.contexts[0].new_page())
        if viewport:
            page.set_viewport_size(viewport)
        page.emulate_media(**media)
        return page

    yield make
    for page in pages:
        page.close()


@pytest.fixture
def quiet_page(new_page):
    """``quiet_page(url, …)``: a page, opened, which may ask for files alone, and has nothing to say on its console."""
    said = []

    def open_it(url, **options):
        page = new_page(**options)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or said.append(asked.url))
        page.goto(url)
        return page

    yield open_it
    assert said == []


if __name__ == "__main__":  # the set-up asks whether a browser starts here
    with sync_playwright() as playwright:
        browser = launch(playwright)
        print(executable() or "Playwright's own", browser.version)
        browser.close()
