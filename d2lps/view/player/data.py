"""What the ES module needs to move a picture: numbers in columns, and pieces of SVG. Plain JSON.

Times are whole numbers of ticks, a million for the whole trace.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from d2lps.messages import text
from d2lps.units import show_seconds
from d2lps.view.drawing.paths import REACH, TILE
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import origin, step_labels

TICKS = 1_000_000
WORDS = ("play", "pause", "restart", "back", "forward", "position", "speed", "keys")


def _words() -> dict[str, str]:
    """The words on and around the controls, in the language in force."""
    fixed = {word: text(f"player.{word}") for word in WORDS}
    return fixed | {
        "clock": text("player.clock", now="{now}", end="{end}"),
        "step": text("player.step", step="{step}", steps="{steps}"),
    }


def page(scenes: Sequence[Scene], names: Sequence[str]) -> dict:
    """All that the pictures do, but not the pictures themselves. What is true of several stands above them, once."""
    longest = max(scene.trace.duration for scene in scenes)
    runs = [_run(scene, name, longest) for scene, name in zip(scenes, names, strict=True)]
    label = text("player.label", what=", ".join(f"{run['name']} {run['where']}".strip() for run in runs))
    common = {run["where"] for run in runs} if len(runs) > 1 else set()
    where = common.pop() if len(common) == 1 else ""
    runs = [run | {"where": ""} for run in runs] if where else runs
    return {"words": _words() | {"label": label}, "where": where, "runs": runs}


def _run(scene: Scene, name: str, longest: float) -> dict:
    trace, motion = scene.trace, scene.motion
    keys = {key: i for i, key in enumerate(trace.plan.share)}

    @cache
    def tick(time: float) -> int:
        return round(time / trace.duration * TICKS) if trace.duration else 0

    routes: dict[tuple, int] = {}
    for path in scene.paths:
        routes.setdefault(path.points, len(routes))
    messages = [
        (tick(m.start), tick(m.end), routes[path.points], keys[m.key], m.look, _tidy(path.behind), _tidy(path.last))
        for m, path in zip(motion.messages, scene.paths, strict=True)
    ]
    return {
        "name": name,
        "where": origin(trace),
        "width": scene.layout.width,
        "duration": trace.duration,
        "end": show_seconds(trace.duration),
        "steps": trace.steps,
        "begins": [tick(start) for start, _ in trace.step_times()],
        "labels": [(number, round(middle, 4)) for number, middle in step_labels(trace, longest)],
        "nodes": list(trace.plan.nodes),
        "workers": len(motion.contributors),
        "cell": [scene.slot, scene.hatch, scene.frame],
        "tile": [scene.sheet, scene.layer, scene.shading],
        "reach": REACH,
        "growth": [[round(size, 3) for size in pair] for pair in scene.growth],
        "levels": [round(scene.level(worker, TILE), 2) for worker in range(len(motion.contributors))],
        "looks": [[list(look.who), int(look.complete), int(look.updated)] for look in motion.looks],
        "first": list(motion.first),
        "changes": _columns((tick(c.time), *c[1:]) for c in motion.changes),
        "crowd": _columns((tick(c.time), *c[1:]) for c in motion.crowd),
        "work": _columns((tick(c.time), *c[1:]) for c in motion.work),
        "routes": [[_tidy(x) for point in route for x in point] for route in routes],
        "messages": _columns(messages),
    }


def _columns(rows: Iterable[tuple]) -> list[list]:
    return [list(column) for column in zip(*rows, strict=True)]


def _tidy(value: float) -> float:
    value = round(value, 1)
    return int(value) if value == int(value) else value
