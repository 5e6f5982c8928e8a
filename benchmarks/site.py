"""Measure the site: the time to build it, and what a reader waits for, loads and sees.

Runs of the chapters are those that `make book` has kept; without them they are made first, and that is told apart.
``--quick`` builds nothing, and reads the site that is there.

Of a page at load it measures the kilobytes, uncompressed and as `make serve` sends them, and the total blocking time:
of each task that holds up the page for more than 50 ms, what is beyond them. The processor time of the page depends
less on what else this machine does. At several widths it measures by how many pixels a page is too wide, and which
players are cut: wider than the room that the page gives them.
"""

import http.server
import statistics
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from helpers import browser
from playwright.sync_api import Browser, sync_playwright

from benchmarks.common import ROOT, Run
from course.book import chromium
from course.book.library import Book
from course.site.build import KEPT
from course.site.server import Handler
from d2lps.messages import LANGUAGES

SEARCHES = [
    ("zh", "参数服务器"),
    ("zh", "分片"),
    ("vi", "máy chủ tham số"),
    ("vi", "may chu tham so"),
    ("en", "parameter server"),
]
PLAYS = "document.querySelector('.d2-player, .d2-bets[data-state]')"
LOADED = ("kB", "sent kB", "blocked ms", "processor ms", "elements")
SETTLED = 2500  # milliseconds after which a page that nobody touches has nothing left to do
WIDTHS = (390, 1280, 1440, 1920)
WATCH = """window.blocked = 0;
new PerformanceObserver((tasks) => {
  for (const task of tasks.getEntries()) blocked += Math.max(0, task.duration - 50);
}).observe({ type: "longtask", buffered: true });"""
SEARCH = "query => { const begun = performance.now(); find(query); return performance.now() - begun; }"


def building(book: Book) -> list[dict]:
    """Seconds of `make book`: as it is, again, and after one sentence was changed in one language."""
    figures = []

    def timed(what: str, *options: str) -> None:
        begun = time.monotonic()
        for command in (["book", "build"], ["site", "build", *options]):
            command = [sys.executable, "-m", f"course.{command[0]}", *command[1:]]
            subprocess.run(command, cwd=book.root, check=True, stdout=subprocess.DEVNULL)
        figures.append({"what": what, "s": round(time.monotonic() - begun, 1)})

    had = len(list((book.root / KEPT).glob("*.json"))) >= len(book.contents)
    timed("as it was found" if had else "from nothing")
    timed("nothing changed")
    text = book.chapters / next(iter(book.contents)) / "vi.md"
    before = text.read_text("utf-8")
    try:
        text.write_text(before.rstrip("\n") + "\n\nHết.\n", "utf-8")
        timed("one change of prose")
        timed("the same, without PDFs", "--no-pdf")
    finally:
        text.write_text(before, "utf-8")
    timed("changed back")
    return figures


def waiting(site: Path, turns: int) -> list[dict]:
    """Return the waiting times of a reader in ms: medians and the longest of some turns."""
    found: dict[str, list[float]] = {}
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        for _ in range(turns):
            for language, name in [(each, name) for each in LANGUAGES for name in ("index.html", "02-ring.html")]:
                page = context.new_page()
                begun = time.monotonic()
                page.goto((site / language / name).as_uri(), wait_until="commit")
                page.wait_for_function(PLAYS)
                found.setdefault(f"player usable: {name}", []).append(1e3 * (time.monotonic() - begun))
                page.close()
            for language, query in SEARCHES:
                page = context.new_page()
                page.goto((site / language / "search.html").as_uri())
                found.setdefault("search", []).append(page.evaluate(SEARCH, query))
                page.close()
        chromium.close()
    return [
        {"what": what, "median ms": round(statistics.median(took), 1), "most ms": round(max(took), 1)}
        for what, took in found.items()
    ]


class _Quiet(Handler):
    def log_message(self, *_: object) -> None:
        pass


def loading(site: Path, language: str, names: list[str], turns: int) -> list[dict]:
    """Return what pages load before anyone touches them, and how long they are blocked: medians of some turns."""
    handler = partial(_Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = browser.launch(playwright)
        home = f"http://127.0.0.1:{server.server_port}/{language}"
        taken = {name: [_loaded(chromium, f"{home}/{name}.html") for _ in range(turns)] for name in names}
        chromium.close()
        server.shutdown()
    middle = {name: map(statistics.median, zip(*loads, strict=True)) for name, loads in taken.items()}
    return [
        {"what": f"loads: {language}/{name}"} | dict(zip(LOADED, map(round, values), strict=True))
        for name, values in middle.items()
    ]


def _loaded(chromium: Browser, address: str) -> tuple[float, ...]:
    """Return the figures LOADED of a page in a browser that has kept nothing."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page, sizes, sent = context.new_page(), [], []
    page.add_init_script(WATCH)
    session = context.new_cdp_session(page)
    session.on("Network.dataReceived", lambda event: sizes.append(event["dataLength"]))
    session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    session.send("Network.enable")
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(address)
    page.wait_for_timeout(SETTLED)
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    blocked, nodes = page.evaluate("[blocked, document.querySelectorAll('*').length]")
    context.close()
    return sum(sizes) / 1e3, sum(sent) / 1e3, blocked, 1e3 * metrics["TaskDuration"], nodes


def fitting(site: Path, names: list[str]) -> list[dict]:
    """Return for each width of a window the most pixels by which an English page is wider, and its cut players."""
    beyond: dict[int, dict[str, int]] = {width: {} for width in WIDTHS}
    cut: dict[int, dict[str, int]] = {width: {} for width in WIDTHS}
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        for name in names:
            page = chromium.new_page(viewport={"width": WIDTHS[0], "height": 900})
            page.goto((site / "en" / f"{name}.html").as_uri())
            browser.look_through(page)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                browser.draw(page)
                beyond[width][name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if players := browser.cut_players(page):
                    cut[width][name] = len(players)
            page.close()
        chromium.close()
    return [
        {"what": f"at {width} pixels", "beyond": max(beyond[width].values()), "cut players": sum(cut[width].values())}
        | {"on": cut[width]}
        for width in WIDTHS
    ]


def weighing(site: Path) -> list[dict]:
    """Bytes of the largest page, without those that have Python inside, and of the largest PDF."""
    files = (path for path in site.glob("??/*.html") if not path.name.startswith("d2lps-"))
    pages = {path.relative_to(site).as_posix(): path.stat().st_size for path in files}
    largest = max(pages, key=pages.get)
    return [
        {"what": f"largest page: {largest}", "kB": round(pages[largest] / 1e3)},
        {
            "what": "largest PDF",
            "kB": round(max([path.stat().st_size for path in site.glob("??/*.pdf")], default=0) / 1e3),
        },
    ]


def reading(run: Run) -> None:
    site, book = ROOT / "_site", Book(ROOT)
    if run.quick and not (site / "index.html").is_file():
        print("not measured: there is no site yet (make book)")
        return
    run.figures += [] if run.quick else building(book)
    turns, languages = (1, ["en"]) if run.quick else (5, ["en", *(each for each in LANGUAGES if each != "en")])
    names = ["index", *book.contents][: 3 if run.quick else None]
    run.figures += waiting(site, turns)
    for language in languages:
        run.figures += loading(site, language, names, turns if language == "en" else 1)
    run.figures += fitting(site, names) + weighing(site)
    run.versions = {"browser": chromium.browser()}
    for figure in run.figures:
        what, *values = figure.items()
        print(f"{what[1]:34}", *(f"{name} {value}" for name, value in values), sep="   ")
