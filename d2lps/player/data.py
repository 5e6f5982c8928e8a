"""What the ES module needs to move a picture: numbers in columns, and pieces of SVG. Plain JSON.

Times are whole numbers of ticks, a million for the whole trace.
"""

from collections.abc import Iterable
from functools import cache

from d2lps.drawing import origin, step_labels, still
from d2lps.drawing.scene import Scene
from d2lps.drawing.ways import TILE
from d2lps.text import text
from d2lps.units import show_seconds

TICKS = 1_000_000
WORDS = ("play", "pause", "restart", "back", "forward", "position", "speed", "keys")


def words() -> dict[str, str]:
    """The words on and around the controls, in the language in force."""
    fixed = {word: text(f"player.{word}") for word in WORDS}
    return fixed | {"clock": text("player.clock", now="{now}", end="{end}"),
                    "step": text("player.step", step="{step}", steps="{steps}")}  # fmt: skip


def run(scene: Scene, name: str) -> dict:
    """All that one trace's picture does, but not the picture itself."""
    trace, motion = scene.trace, scene.motion
    keys = {key: i for i, key in enumerate(trace.plan.share)}

    @cache
    def tick(time: float) -> int:
        return round(time / trace.duration * TICKS) if trace.duration else 0

    routes: dict[tuple, int] = {}
    for way in scene.ways:
        routes.setdefault(way.points, len(routes))
    messages = [
        (tick(m.start), tick(m.end), routes[way.points], keys[m.key], m.look, _tidy(way.behind), _tidy(way.last))
        for m, way in zip(motion.messages, scene.ways, strict=True)
    ]
    return {
        "name": name,
        "where": origin(trace),
        "width": scene.layout.width,
        "duration": trace.duration,
        "end": show_seconds(trace.duration),
        "steps": trace.steps,
        "begins": [tick(start) for start, _ in trace.step_times()],
        "edges": sorted({tick(time) for span in trace.step_times() for time in span}),
        "labels": [(number, round(middle, 4)) for number, middle in step_labels(trace)],
        "nodes": list(trace.plan.nodes),
        "workers": len(motion.contributors),
        "cell": [scene.slot, scene.hatch, scene.frame],
        "tile": [scene.sheet, scene.layer, scene.shading],
        "growth": [[round(size, 3) for size in pair] for pair in scene.growth],
        "levels": [round(scene.level(worker, TILE), 2) for worker in range(len(motion.contributors))],
        "looks": [[list(look.who), int(look.complete), int(look.updated)] for look in motion.looks],
        "first": list(motion.first),
        "changes": _columns((tick(c.time), *c[1:]) for c in motion.changes),
        "crowd": _columns((tick(c.time), *c[1:]) for c in motion.crowd),
        "shared": len(motion.sharing),
        "routes": [[_tidy(x) for point in route for x in point] for route in routes],
        "messages": _columns(messages),
    }


def picture(scene: Scene) -> str:
    """The still picture that the module takes its pieces from."""
    return still(scene, scene.motion.telling())


def _columns(rows: Iterable[tuple]) -> list[list]:
    return [list(column) for column in zip(*rows, strict=True)]


def _tidy(value: float) -> float:
    value = round(value, 1)
    return int(value) if value == int(value) else value
