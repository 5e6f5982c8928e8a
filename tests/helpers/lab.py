"""A chapter in JupyterLab, as a reader uses it: open it, run it, press play, and see the messages move."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from helpers import browser
from helpers.axe import grave
from helpers.waits import LIVE, soon

ROOT = Path(__file__).parents[2]
FIRST = "00-in-15-minutes"  # the chapter that JupyterLab opens
PLAY = {"en": "Play", "vi": "Phát", "zh": "播放"}

# Every cell has its number, or one of them failed, and those behind it will never run. Behind the notebook that is seen
# there may be the first chapter's, which JupyterLab opens by itself.
DONE = """() => {
    const book = document.querySelector(".jp-NotebookPanel:not(.lm-mod-hidden)");
    const all = (of) => [...book.querySelectorAll(of)];
    return all(".jp-OutputArea-output").some(o => o.textContent.includes("Traceback")) ||
        all(".jp-CodeCell .jp-InputPrompt").every(p => /\\d/.test(p.textContent));
}"""


@contextmanager
def lab(folder: Path, language: str, before: str) -> Iterator[str]:
    """Start `make lab-…` in a new folder, yield the address it prints, and stop it.

    ``before`` is the first code of each kernel.
    """
    for part in ("chapters", "img"):
        shutil.copytree(ROOT / part, folder / part)
    # A home of its own: neither the settings nor an open session of the user who runs the tests.
    home = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "spaces",
        "IPYTHONDIR": "ipython",
    }
    first = folder / "ipython" / "profile_default" / "startup" / "first.py"
    first.parent.mkdir(parents=True)
    first.write_text(before, "utf-8")
    # An automatic save just before the reader's own makes JupyterLab ask which of the two it shall keep.
    manager = folder / "settings" / "@jupyterlab" / "docmanager-extension" / "plugin.jupyterlab-settings"
    manager.parent.mkdir(parents=True)
    manager.write_text(json.dumps({"autosave": False}), "utf-8")
    # JupyterLab's schemas are checked without this module, too, which takes 3 s to make a grammar when it is imported.
    (folder / "without" / "rfc3987_syntax.py").parent.mkdir()
    (folder / "without" / "rfc3987_syntax.py").write_text("raise ImportError\n", "utf-8")
    paths = f"{ROOT}{os.pathsep}{folder / 'without'}"
    with socket.create_server(("127.0.0.1", 0)) as free:  # two that start together would both find 8888 free
        own = {"PYTHONPATH": paths, "JUPYTER_PORT": str(free.getsockname()[1])}
    environment = os.environ | {name: str(folder / part) for name, part in home.items()} | own
    command = [sys.executable, "-m", "course.book", "--root", str(folder), "lab", "--no-browser"]
    with (folder / "log").open("w") as log:
        command += ["--language", language]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield _address(process, folder / "log")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def _address(process: subprocess.Popen, log: Path) -> str:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        if match := re.search(r"http://127\.0\.0\.1:\d+/lab\S*\?token=\w+", log.read_text("utf-8")):
            return match[0]
        assert process.poll() is None, log.read_text("utf-8")
        time.sleep(0.2)
    raise AssertionError("JupyterLab did not start within 180 s")


def read(folder: Path, chapter: str, language: str, picture: Path, before: str) -> tuple[str, dict]:
    """Return the chapter's notebook as JupyterLab saves it after a run, and what the reader saw.

    ``before``: what the kernel does first. After the run the reader answers the first prediction.
    """
    with lab(folder, language, before) as address, sync_playwright() as playwright:
        own = next((folder / "workspace" / language).glob(f"{chapter}*.ipynb"))
        seen = {"address": address}
        chromium = browser.launch(playwright)
        page = chromium.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="light")
        page.goto(address.replace(FIRST, chapter))
        page.locator(".jp-Notebook:not(.lm-mod-hidden)").first.wait_for(timeout=120_000)
        page.get_by_text("| Idle").wait_for(timeout=120_000)
        choose(page, "Run", "Run All Cells")
        page.wait_for_function(DONE, timeout=400_000, polling=500)  # else at every frame, which takes a processor
        assert page.locator(".jp-OutputArea-output", has_text="Traceback").all_text_contents() == []

        player = page.locator(".d2-player").first
        player.scroll_into_view_if_needed()
        head, clock = player.locator(".d2-head").first, player.locator(".d2-clock").first
        seen["before"] = head.get_attribute("style"), clock.text_content()
        player.get_by_role("button", name=PLAY[language], exact=True).click()
        player.locator(".d2-tile").first.wait_for(state="attached", timeout=30_000)  # messages are under way
        moved = "([head, style, clock, said]) => head.getAttribute('style') !== style && clock.textContent !== said"
        (style, said), handles = seen["before"], (head.element_handle(), clock.element_handle())
        page.wait_for_function(moved, arg=[handles[0], style, handles[1], said])
        seen["after"] = head.get_attribute("style"), clock.text_content()
        picture.parent.mkdir(exist_ok=True)
        page.screenshot(path=picture)
        seen["contents"] = page.locator(".jp-TableOfContents-tree").is_visible()
        seen["grave"] = grave(page, ".jp-OutputArea-output")

        choose(page, "File", "Save Notebook")
        text = _saved(own)
        seen["revealed"] = _guess(page)
        chromium.close()
    return text, seen


def _guess(page: Page) -> tuple[int, int]:
    """Answer the first prediction, and return how many answers its next cell hides before and afterwards."""
    answers, hidden = page.locator(".d2lps-revealed"), page.locator(".d2lps-revealed > details")
    before, form = hidden.count(), page.locator(".widget-vbox", has=page.locator(".widget-text")).first
    for field in form.locator("input").all():
        field.fill("10")
    form.locator("button").click()
    answers.first.locator("details").wait_for(state="detached", timeout=30_000)
    return before, hidden.count()


def choose(page: Page, menu: str, item: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()


def _saved(path: Path) -> str:
    """Return the text of a notebook once all its cells have run."""

    def whole() -> str:
        try:
            cells = json.loads(text := path.read_text("utf-8"))["cells"]
        except ValueError:  # it is being written
            return ""
        return text if all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code") else ""

    return soon(whole, 2 * LIVE, every=0.2)
