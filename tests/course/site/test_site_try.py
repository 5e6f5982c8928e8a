"""Cells of the site that run in the reader's browser, with real Pyodide: from a server, and from a file."""

import functools
import hashlib
import http.server
import io
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from helpers import browser as browsers
from playwright.sync_api import Browser, Page, expect

from course.book.findings import BookError
from course.book.library import Book
from course.site import browser, pyodide
from course.site.trial import needs, runnable
from d2lps.messages import sentences

chromium = browsers.chromium
PATIENCE = 240_000  # milliseconds until Python has begun and run a cell, on a busy machine


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site):
    """Return the address of the site on a server of its own."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def opened(chromium: Browser, address: str) -> Iterator[Page]:
    """Open a page, which asks for nothing outside its own server or file."""
    page, asked, errors = chromium.contexts[0].new_page(), [], []
    page.set_viewport_size({"width": 1100, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    own = ("data:", "blob:", address.rpartition("/en/")[0])
    assert [url for url in asked if not url.startswith(own)] == []
    assert errors == []


@pytest.fixture(scope="module")
def ring(served, chromium):
    """Return the page of chapter 02, from a server; its Python begins once for all tests."""
    with opened(chromium, f"{served}/en/02-ring.html") as page:
        yield page


def tried(page: Page, name: str, code: str | None = None, language: str = "en"):
    """Open a cell, change its code, run it, and return the place of its outputs."""
    cell, words = page.locator(f"#cell-{name}"), sentences(language)
    if cell.locator("textarea").count() == 0:
        cell.get_by_role("button", name=words["browser.try"]).click()
    run = cell.get_by_role("button", name=words["browser.run"], exact=True)
    expect(run).to_be_enabled(timeout=PATIENCE)
    if code is not None:
        cell.locator("textarea").fill(code)
    run.click()  # disables the button until the run has ended
    expect(run).to_be_enabled(timeout=PATIENCE)
    expect(cell.locator("[role=status]").first).to_have_text("", timeout=PATIENCE)
    return cell.locator(".tried")


def test_the_file_from_disk_plays_predicts_and_grades(site, chromium):
    with opened(chromium, (site / "en" / browser.file("en")).as_uri()) as page:
        plays_predicts_and_grades(page)


def plays_predicts_and_grades(page: Page) -> None:
    for width in (1100, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator("main").bounding_box()["width"] > 600  # also without a list of chapters beside it
    expect(tried(page, "race").locator(".d2-player")).to_have_count(1)
    form = tried(page, "guess").locator("form")
    for field in form.locator("input").all():
        field.fill("60")
    form.get_by_role("button").click()
    assert "right" in tried(page, "predicted").inner_text()
    wrong = (
        "def own_gpu(gpus):\n    return d2lps.aggregate_at(gpus, gpus[0])\n\nd2lps.check_exercise('own-gpu', own_gpu)"
    )
    assert "One GPU does all the adding" in tried(page, "exercise-own-gpu", wrong).inner_text()
    right = wrong.replace("aggregate_at(gpus, gpus[0])", "sharded(gpus)")
    assert "Right." in tried(page, "exercise-own-gpu", right).inner_text()
    assert page.evaluate("Object.keys(localStorage).filter((name) => name.startsWith('d2lps-passed-'))") == [
        "d2lps-passed-own-gpu"
    ]


def test_every_cell_that_is_offered_runs(ring):
    offered = ring.locator(".cell[data-try]").evaluate_all("all => all.map((cell) => cell.id.slice(5))")
    assert len(offered) > 30 and "exercise-both-ways" in offered
    for name in offered:
        assert tried(ring, name).locator("pre.error").count() == 0, name


def test_an_endless_cell_is_stopped_and_the_next_one_begins_anew(ring):
    name = "imports"
    cell = ring.locator(f"#cell-{name}")
    assert tried(ring, name, "x = 1\nprint('here')").inner_text().strip() == "here"
    cell.locator("textarea").fill("while True: pass")
    cell.locator("textarea").press("Shift+Enter")
    sign = cell.locator(".try i")  # moves, and counts the seconds
    for seconds in ("[2-9]", "[4-9]"):  # a busy machine may leave one out
        expect(sign).to_have_text(re.compile(rf"^({seconds}|\d\d+) s$"), timeout=PATIENCE)
    assert sign.evaluate("e => getComputedStyle(e, '::before').animationName") == "turn"
    cell.get_by_role("button", name="Stop").click()
    expect(cell.locator("[role=status]")).to_have_text(sentences("en")["browser.stopped"], timeout=PATIENCE)
    expect(sign).to_be_empty()
    assert "NameError" in tried(ring, name, "x").inner_text()
    cell.get_by_role("button", name="Close").click()
    assert cell.locator("pre.code").is_visible() and cell.locator("textarea").count() == 0


def test_a_page_from_a_file_says_what_to_do(site, chromium):
    with opened(chromium, (site / "en/01-data-parallelism.html").as_uri()) as page:
        page.locator("#cell-fraction").get_by_role("button", name="Try it").click()
        expect(page.locator("p.try")).to_have_text(f"{sentences('en')['browser.from-file']} {browser.file('en')}")
        assert "make serve" in page.locator("p.try").inner_text()
        assert page.locator("p.try a").get_attribute("href") == browser.file("en")
        assert page.get_by_role("link", name=sentences("en")["site.alone"]).get_attribute("href") == browser.file("en")


def test_a_cell_needs_the_cells_whose_names_it_uses():
    cells = [
        ("imports", "import math\nfrom d2lps import ring"),
        ("a", "a = [1]"),
        ("n", "def double(n):\n    k = n\n    return 2 * k"),
        ("k", "k = 5"),
        ("append", "a.append(2)"),
        ("px", "# %%px\nmagic = 1"),
        ("last", "math.pi * double(a[0])"),
    ]
    assert needs(cells)["last"] == ["imports", "a", "n", "append"] and needs(cells)["k"] == []


def test_cells_with_torch_threads_or_wrong_solutions_are_not_offered():
    cells = [
        ("language", "import d2lps\nd2lps.speak('en')"),
        ("torch", "import torch\ntorch.ones(1)"),
        ("thread", "import threading\nthreading.Thread(target=print).start()"),
        ("fork", "import os\nos.fork()"),
        ("slow", "while True: pass"),
        ("magic", "# %%px\nx = 1"),
        ("file", "from pathlib import Path\nPath(d2lps.__file__).parents[1].joinpath('README.md').read_text('utf-8')"),
        ("plain", "x = 2"),
        ("exercise-own-gpu", "own_gpu = None\nd2lps.check_exercise('own-gpu', own_gpu)"),
    ]
    wrong = "own_gpu = lambda gpus: d2lps.aggregate_at(gpus, gpus[0])"
    assert runnable(cells, {"exercise-own-gpu": wrong}, 1.5) == {"plain": []}
    right = runnable(cells[-2:], {"exercise-own-gpu": "own_gpu = d2lps.sharded"})
    assert right == {"plain": [], "exercise-own-gpu": []}


def test_another_package_than_the_expected_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"other"))
    with pytest.raises(BookError, match="is not the package that is expected"):
        pyodide.fetch(tmp_path)
    assert not pyodide.is_there(tmp_path) and not pyodide.folder(tmp_path).exists()


def test_the_archive_of_the_course_is_the_same_each_time():
    book = Book()
    first, second = (hashlib.sha256(browser.parts(book)["course.zip"]).hexdigest() for _ in range(2))
    assert first == second
    assert json.loads(browser.parts(book)["pyodide-lock.json"])["info"]["arch"] == "wasm32"
