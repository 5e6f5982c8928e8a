"""What a frame of the player costs: 16 nodes, 60 steps, in the system's Chromium without a GPU.

    python tests/benchmarks/player.py

Prints, for a ring and for everyone-to-everyone, the time to build the data, its size, and the script time per
frame (the frame function, wrapped with performance.now()).
"""

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.browser import launch  # noqa: E402

from d2lps import Plan, Send, cost, pcie_server, sharded
from d2lps.trace import Trace, pairs
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


def rings(count: int, rounds: int) -> Plan:
    """An all-reduce on a ring, ``rounds`` times, each for its part of the gradient."""
    nodes = [f"gpu{i}" for i in range(count)]
    keys = [[f"g{r}.{i}" for i in range(count)] for r in range(rounds)]
    steps = []
    for mine in keys:
        for shift, op in ((0, "add"), (1, "copy")):
            for s in range(count - 1):
                steps.append(
                    [
                        Send(node, nodes[(i + 1) % count], mine[(i + shift - s) % count], op)
                        for i, node in enumerate(nodes)
                    ]
                )
    share = {key: f"1/{count * rounds}" for mine in keys for key in mine}
    return Plan(nodes, share, steps)


def traces() -> dict[str, Trace]:
    """The cases, by name."""
    server = pcie_server(gpus=16)
    ring = cost.shared(rings(16, 2), server, "160 MB")
    everyone = sharded([f"gpu{i}" for i in range(16)])
    return {
        "ring, 16 nodes × 60 steps, on a switch": ring,
        "ring, 16 nodes × 60 steps, on a circle": replace(ring, origin="cpu ×16", topology=pairs(ring.plan)),
        "sharded, 16 nodes, 240 messages at once": cost.shared(everyone, server, "160 MB"),
    }


def frames(player: Player) -> list[float]:
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


def main() -> None:
    for name, trace in traces().items():
        begin = time.perf_counter()
        player = watch(trace)
        built = time.perf_counter() - begin
        size = len(player._repr_html_().encode())
        times = sorted(frames(player))
        print(
            f"{name}: built in {built:.2f} s, {size / 1000:.0f} kB of HTML, {len(times)} frames, script per frame "
            f"{statistics.median(times):.2f} ms median, {times[int(0.95 * len(times))]:.2f} ms at 95 %, "
            f"{times[-1]:.1f} ms at most"
        )


if __name__ == "__main__":
    main()
