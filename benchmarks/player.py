"""Measure a frame of the player: 16 nodes, 60 steps, in the system's Chromium without a GPU.

Prints, for a ring and for everyone-to-everyone, the time to build the data, its size, and the script time per
frame (the frame function, wrapped with performance.now()); and of the race of chapter 01 the size of its saved page,
and after how long a browser first paints it.
"""

import statistics
import tempfile
import time
from pathlib import Path

from helpers.browser import launch
from helpers.traces import heavy
from playwright.sync_api import sync_playwright

from benchmarks.common import Run
from d2lps import opening
from d2lps.view.player import Player, watch

WRAP = """
const ask = window.requestAnimationFrame.bind(window);
window.times = [];
window.requestAnimationFrame = (frame) => ask((stamp) => {
  const begin = performance.now();
  frame(stamp);
  window.times.push(performance.now() - begin);
});
"""


def script_times(player: Player) -> list[float]:
    """Milliseconds of script in each frame of one whole performance."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = player.save(Path(folder) / "run.html")
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1000, "height": 1100})
        page.add_init_script(WRAP)
        page.goto(page_path.as_uri())
        page.get_by_role("button", name="Play").click()
        page.get_by_role("button", name="Pause").wait_for()
        page.get_by_role("button", name="Play").wait_for(timeout=60_000)
        times = page.evaluate("times")
        browser.close()
    return times


def first_paint(player: Player, turns: int) -> float:
    """Milliseconds until a saved page is first painted: the median of some turns."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path, browser, times = player.save(Path(folder) / "race.html"), launch(playwright), []
        for _ in range(turns):
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(page_path.as_uri())
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
            times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            page.close()
        browser.close()
    return statistics.median(times)


def frames(run: Run) -> None:
    race = opening("01")
    size = len(race._repr_html_().encode())
    painted = first_paint(race, 1 if run.quick else 5)
    print(f"the race of chapter 01: {size / 1000:.0f} kB, first painted after {painted:.0f} ms")
    for name, trace in [*heavy().items()][-1 if run.quick else 0 :]:
        begin = time.perf_counter()
        player = watch(trace)
        built = time.perf_counter() - begin
        size = len(player._repr_html_().encode())
        times = sorted(script_times(player))
        print(
            f"{name}: built in {built:.2f} s, {size / 1000:.0f} kB of HTML, {len(times)} frames, script per frame "
            f"{statistics.median(times):.2f} ms median, {times[int(0.95 * len(times))]:.2f} ms at 95 %, "
            f"{times[-1]:.1f} ms at most"
        )
