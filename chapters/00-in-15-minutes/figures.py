"""How the course begins: three ways to add up gradients, raced on the first page and in the README.

Without a word of any language, so that one file serves all three.
"""

import math
from pathlib import Path

from d2lps import Link, Topology, cost
from d2lps.algorithms import aggregate_at, ring, sharded
from d2lps.notebook.grading.course import chapter_module
from d2lps.topology import pcie_server
from d2lps.trace import Trace
from d2lps.units import show_seconds
from d2lps.view.drawing.motion import follow
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.scene import race as level
from d2lps.view.drawing.svg import sheet, tag, words, worker

films = chapter_module(Path(__file__).parent, "film")


def opening() -> dict[str, Trace]:
    """The race of this chapter: 200 MB on GPU 0, in shards and in a ring, on a server with two switches."""
    gpus, server = [f"gpu{i}" for i in range(4)], pcie_server(4, "12.5 GB/s", switches=2)
    plans = {"GPU 0": aggregate_at(gpus, "gpu0"), "shards": sharded(gpus), "ring": ring(gpus)}
    return {name: cost.shared(plan, server, "200 MB") for name, plan in plans.items()}


def moving_ring() -> str:
    """Four GPUs on a ring add up their gradients, moving, without times; if nothing moves, in the middle."""
    gpus = [f"gpu{i}" for i in range(4)]
    links = [Link(one, next_one, "12.5 GB/s") for one, next_one in zip(gpus, gpus[1:] + gpus[:1], strict=True)]
    scene = Scene(cost.shared(ring(gpus), Topology("ring", dict.fromkeys(gpus, "gpu"), links), "200 MB"))
    clock = films.Clock(scene.trace.duration, 0.42 * scene.trace.duration)
    (_, _, wide, high) = scene.view
    film = films.film(scene, clock=clock, x=0, y=0, width=wide, height=high)
    return sheet(wide, high, " → ".join([*gpus, gpus[0]]), film, looks=clock.style())


def race() -> str:
    """The race, moving, each run above its times; if nothing moves, at the moment that tells most of the quickest."""
    scenes = {name: Scene(trace, widest=76) for name, trace in opening().items()}
    level([*scenes.values()])
    traces = [scene.trace for scene in scenes.values()]
    quickest, longest = min(traces, key=lambda trace: trace.duration), max(trace.duration for trace in traces)
    clock = films.Clock(longest, follow(quickest).telling())
    tall = max(scene.view[3] for scene in scenes.values())
    blocks = (tag("rect", x=96 + 11 * i, y=24, width=11, height=8, **worker(i)) for i in range(2))
    x, parts, row = 14.0, [words("MB", 122, 32, "note", "soft", None), *blocks], 16.0  # the legend beside the links
    for name, scene in scenes.items():
        (_, _, w, h), trace = scene.view, scene.trace
        took = show_seconds(trace.duration)
        done = words(took, x + w - 10, 32, anchor="end", font_weight=700)
        parts.append(words(name, x + 10, 32, anchor="start", font_weight=700))
        parts.append(tag("g", done, **clock.seen([(trace.duration, math.inf)], still=True)))
        parts.append(films.film(scene, clock=clock, x=x, y=44 + tall - h, width=w, height=h))
        long, rows = (w - 64) * trace.duration / longest, row * len(trace.plan.nodes)
        parts.append(films.film_of_time(scene, clock=clock, x=x + 54, y=56 + tall, width=long, height=rows))
        parts += [
            words(node, x + 48, 56 + tall + row * (i + 0.5) + 4, "note", "soft", "end")
            for i, node in enumerate(trace.plan.nodes)
        ]
        end = "end" if long > 60 else "middle"
        parts.append(words(took, x + 54 + long, 72 + tall + rows, "note", "soft", end))
        x += w + 24
    names = ", ".join(f"{name} {show_seconds(scene.trace.duration)}" for name, scene in scenes.items())
    return sheet(x - 10, 56 + tall + row * 4 + 30, names, *parts, looks=clock.style(), style="--d2-zoom:1.5")
