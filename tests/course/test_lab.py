"""JupyterLab as a reader uses it: open the chapter, run it, press play, see the run move."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import browser
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "tests" / "pictures"
FIRST = "01-data-parallelism"
PLAY = {"en": "Play", "vi": "Phát", "zh": "播放"}


# Every cell has its number, or one of them failed, and those behind it will never run.
DONE = """() =>
    [...document.querySelectorAll(".jp-OutputArea-output")].some(o => o.textContent.includes("Traceback")) ||
    [...document.querySelectorAll(".jp-Notebook .jp-CodeCell .jp-InputPrompt")].every(p => /\\d/.test(p.textContent))"""


@pytest.fixture
def lab(tmp_path):
    """Start `make lab-…` in a folder of its own, and give the address it prints; nothing is left running."""
    running = []

    def start(language: str) -> str:
        for folder in ("chapters", "img"):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        command = [sys.executable, "-m", "d2lps.course.book", "--root", str(tmp_path), "lab", "--no-browser"]
        command += ["--language", language]
        log = (tmp_path / "log").open("w+")
        # A home of its own: neither the settings of whoever runs the tests nor an open session of theirs.
        home = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "spaces",
        }
        environment = os.environ | {name: str(tmp_path / folder) for name, folder in home.items()}
        environment["PYTHONPATH"] = str(ROOT)
        running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment))
        until = time.monotonic() + 90
        while time.monotonic() < until:
            found = re.search(r"http://127\.0\.0\.1:\d+/lab\S*\?token=\w+", (tmp_path / "log").read_text("utf-8"))
            if found:
                return found[0]
            assert running[-1].poll() is None, (tmp_path / "log").read_text("utf-8")
            time.sleep(0.2)
        raise AssertionError("JupyterLab did not start within 90 s")

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "language, chapter", [*((language, FIRST) for language in PLAY), ("vi", "02-ring"), ("zh", "04-key-value-store")]
)
@pytest.mark.timeout(300)
def test_a_reader_runs_the_chapter_and_plays_the_run_just_made(lab, language, chapter):
    address = lab(language)
    assert FIRST in address
    address = address.replace(FIRST, chapter)
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        page = chromium.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="light")
        page.goto(address)
        notebook = page.locator(".jp-Notebook:not(.lm-mod-hidden)").first
        notebook.wait_for(timeout=60_000)
        page.get_by_text("| Idle").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

        page.wait_for_function(DONE, timeout=180_000)
        assert page.locator(".jp-OutputArea-output", has_text="Traceback").all_text_contents() == []

        player = page.locator(".d2-player").first
        player.scroll_into_view_if_needed()
        head = player.locator(".d2-head").first
        before, clock = head.get_attribute("style"), player.locator(".d2-clock").first.text_content()
        player.get_by_role("button", name=PLAY[language], exact=True).click()
        player.locator(".d2-tile").first.wait_for(state="attached", timeout=8000)  # messages are under way
        page.wait_for_timeout(1000)
        assert head.get_attribute("style") != before
        assert player.locator(".d2-clock").first.text_content() != clock
        PICTURES.mkdir(exist_ok=True)
        page.screenshot(path=PICTURES / f"lab-{language}-{chapter}.png")
        chromium.close()
