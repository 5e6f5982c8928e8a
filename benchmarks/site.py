"""Measure the site: the time to build it, and what a reader waits for, loads and sees.

Runs of the chapters are those that `make book` has kept; without them they are made first, and that is told apart.
``--quick`` builds nothing, and reads the site that is there.

Of a page at load it measures the kilobytes, uncompressed, and the total blocking time: of each task that holds up the
page for more than 50 ms, what is beyond them. The processor seconds of the page depend less on what else this machine
does. Of a player it measures if its runs are cut: wider than the room that the page gives them.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

from helpers import browser
from playwright.sync_api import sync_playwright

from benchmarks.common import ROOT, Run
from course.book import chromium
from course.book.library import Book
from course.site.build import KEPT
from d2lps.messages import LANGUAGES

SEARCHES = [
    ("zh", "参数服务器"),
    ("zh", "分片"),
    ("vi", "máy chủ tham số"),
    ("vi", "may chu tham so"),
    ("en", "parameter server"),
]
PLAYS = "document.querySelector('.d2-player, .d2-bets[data-state]')"
PAGES = ("index", "00-in-15-minutes", "01-data-parallelism", "02-ring", "09-pipelines", "10-data-centre")
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


def loading(site: Path, turns: int) -> list[dict]:
    """Return what pages load before anyone touches them, and how long they are blocked: the best of some turns."""
    figures = []
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        for name in PAGES:
            loaded, blocked, busy = 0, [], []
            for _ in range(turns):
                context = chromium.new_context(viewport={"width": 1440, "height": 900})
                home, page, asked = browser.serve(context, site), context.new_page(), set()
                page.add_init_script(WATCH)
                page.on("request", lambda request, asked=asked: asked.add(urlparse(request.url).path))
                counts = context.new_cdp_session(page)
                counts.send("Performance.enable", {"timeDomain": "threadTicks"})
                page.goto(f"{home}/en/{name}.html")
                page.wait_for_timeout(SETTLED)
                metrics = {each["name"]: each["value"] for each in counts.send("Performance.getMetrics")["metrics"]}
                loaded = sum((site / path.lstrip("/")).stat().st_size for path in asked)
                blocked.append(page.evaluate("blocked"))
                busy.append(1e3 * metrics["TaskDuration"])
                context.close()
            what = {"what": f"loads: {name}", "kB": round(loaded / 1e3)}
            figures.append(what | {"blocked ms": round(min(blocked)), "processor ms": round(min(busy))})
        chromium.close()
    return figures


def fitting(site: Path) -> list[dict]:
    """Return for each width of a window how many players of the English pages are cut, and on which pages."""
    cut: dict[int, dict[str, int]] = {width: {} for width in WIDTHS}
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        for path in sorted((site / "en").glob("*.html")):
            if 'class="d2lps d2-sheet"' not in path.read_text("utf-8") or path.name.startswith("d2lps-"):
                continue
            page = chromium.new_page(viewport={"width": WIDTHS[0], "height": 900})
            page.goto(path.as_uri())
            browser.look_through(page)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                browser.draw(page)
                if players := browser.cut_players(page):
                    cut[width][path.stem] = len(players)
            page.close()
        chromium.close()
    return [{"what": f"cut players at {width}", "players": sum(on.values()), **on} for width, on in cut.items()]


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
    site = ROOT / "_site"
    if run.quick and not (site / "index.html").is_file():
        print("not measured: there is no site yet (make book)")
        return
    run.figures += [] if run.quick else building(Book(ROOT))
    turns = 1 if run.quick else 5
    run.figures += waiting(site, turns) + loading(site, turns) + fitting(site) + weighing(site)
    run.versions = {"browser": chromium.browser()}
    for figure in run.figures:
        print(*figure.values())
