"""The Chromium of the tests: the system's if there is one that runs, else Playwright's own."""

import functools
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from helpers.waits import LIVE

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

HOME = "https://course.test"
expect.set_options(timeout=1000 * LIVE)  # else 5 s


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


def serve(context: BrowserContext, folder: Path) -> str:
    """Let a folder answer for the address HOME, and return that address.

    A test that reloads a page and looks for what it has stored needs an address with a host: of a file, Chromium
    forgets one of twenty entries that are followed by a reload.
    """

    def answer(route):
        route.fulfill(path=folder / unquote(urlparse(route.request.url).path).lstrip("/"))

    context.route(f"{HOME}/**", answer)
    return HOME


def draw(page: Page) -> None:
    """Wait until the page is drawn as it is now: what watches its sizes has seen them."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def look_through(page: Page) -> None:
    """Bring each part of the page into view, because players are set up when they come near; return to its top."""
    page.evaluate(
        """async () => {
          const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight) {
            scrollTo(0, y);
            await drawn();
          }
          scrollTo(0, 0);
          await drawn();
        }"""
    )


def set_up(page: Page) -> None:
    """Load all pictures and start all players, which otherwise wait until they come near; return to the top."""
    page.evaluate(
        """async () => {
          const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          for (const each of document.querySelectorAll("[data-later]"))
            if (!("plays" in each.dataset)) {
              each.scrollIntoView();
              await drawn();
            }
          scrollTo(0, 0);
          for (const each of document.images) each.loading = "eager";
          const ended = (each) => each.complete || new Promise((done) => (each.onload = each.onerror = done));
          await Promise.all([...document.images].map(ended));
        }"""
    )


def cut_players(page: Page) -> list[str]:
    """Return the labels of players that are wider than their room, or whose runs are: on a phone, that begin later."""
    return page.evaluate(CUT_PLAYERS)


def too_wide(page: Page) -> list[str]:
    """Return the labels of cut players, and by how many pixels the page is wider than the window, if it is."""
    beyond = "document.documentElement.scrollWidth - innerWidth"
    return page.evaluate(f"() => [...({beyond} > 0 ? [`${{{beyond}}} pixels`] : []), ...({CUT_PLAYERS})()]")


CUT_PLAYERS = """() => [...document.querySelectorAll(".d2-player")].filter((player) => {
  const room = player.closest(".shown, main").getBoundingClientRect(), own = player.getBoundingClientRect();
  const inside = (each) => each.querySelector(".d2-track")?.clientWidth ?? each.scrollWidth;
  const wide = (each) => inside(each) > each.clientWidth + 1;
  const hides = innerWidth < 600 ? (each) => each.scrollLeft > 0 : wide;
  return own.right > room.right + 1 || [...player.querySelectorAll(".d2-all, .d2-stage")].some(hides);
}).map((player) => player.getAttribute("aria-label"))"""


def hold_time(page: Page) -> Page:
    """Let time pass only as ``page.clock.run_for(milliseconds)`` says, on all pages of this context."""
    page.clock.install(time=0)
    page.clock.pause_at(3_600_000)
    return page


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
    """``new_page(viewport=…, color_scheme=…, reduced_motion=…)``: a page of the test's own, closed after it.

    With ``apart`` it has a context of its own, in which a test may hold the time.
    """
    pages, contexts = [], []

    def make(viewport=None, apart=False, **media):
        if apart:
            contexts.append(chromium.new_context())
        pages.append(page := (contexts[-1] if apart else chromium.contexts[0]).new_page())
        if viewport:
            page.set_viewport_size(viewport)
        page.emulate_media(**media)
        return page

    yield make
    for page in (*pages, *contexts):
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


PAGE = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>page</title>'
    '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light dark}</style><main>%s</main>'
)


@pytest.fixture
def opened(quiet_page, tmp_path):
    """``opened(shown, width)``: a page of a player, a picture that answers, or a piece of HTML with one of them.

    With ``apart``, time passes there only as the test says.
    """
    numbers = itertools.count()

    def open_it(shown, width=980, height=1000, apart=False, **media):
        path = tmp_path / f"{next(numbers)}.html"
        if hasattr(shown, "save"):
            shown.save(path)
        else:
            path.write_text(PAGE % (shown if isinstance(shown, str) else shown._repr_html_()), "utf-8")
        look = {"viewport": {"width": width, "height": height}, "reduced_motion": "reduce"} | media
        page = quiet_page(path.as_uri(), apart=apart, **look)
        page.wait_for_selector(".d2-player, .d2-hand, .d2-edit")
        draw(page)
        return hold_time(page) if apart else page

    return open_it


def move(page: Page, part: float) -> None:
    """Move the slider of the player to a part of its length."""
    page.locator(".d2-controls input").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", part
    )


def head(page: Page, run: int = 0) -> float:
    """Return the place of the play-head, in percent."""
    found = page.locator(".d2-track > .d2-head").nth(run).evaluate("e => e.style.transform")
    return float(re.fullmatch(r"translateX\((.*)%\)", found)[1])


if __name__ == "__main__":  # the set-up asks whether a browser starts here
    with sync_playwright() as playwright:
        browser = launch(playwright)
        print(executable() or "Playwright's own", browser.version)
        browser.close()
