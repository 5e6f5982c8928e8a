"""The data with which the ES module moves a picture: numbers in columns, and pieces of SVG, as plain JSON.

Times are whole numbers of ticks, a million for the whole trace.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

from d2lps.messages import html_language, text
from d2lps.schedule import Schedule
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.lanes import GAUGE, WIDE, Lanes, source
from d2lps.view.drawing.legend import marks
from d2lps.view.drawing.links import STATES
from d2lps.view.drawing.motion import REACH, TILE, Change
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import described, origin, step_labels
from d2lps.view.drawing.theme import COLORS
from d2lps.view.drawing.traffic import awaited, gauges, mean_full, place_name, reason

TICKS = 1_000_000
WORDS = ("play", "pause", "restart", "back", "forward", "position", "speed", "zoom", "keys", "details")


def _words() -> dict[str, str]:
    """Return the words on and around the controls, in the language in force."""
    fixed = {word: text(f"player.{word}") for word in WORDS}
    return fixed | {
        "clock": text("player.clock", now="{now}", end="{end}"),
        "step": text("player.step", step="{step}", steps="{steps}"),
        "full": text("draw.full", full="{full}", links="{links}"),
        "togo": text("draw.to-go", place="{place}", size="{size}"),
        "message": text("player.message", **{name: f"{{{name}}}" for name in ("way", "key", "size", "start", "end")}),
        "sharing": text("player.sharing", count="{count}"),
        "node": text("player.node", **{name: f"{{{name}}}" for name in ("node", "out", "in")}),
        "legend": text("legend.title"),
    }


def _lanes_words(streams: bool) -> dict[str, str]:
    """Return the words that the trace of a schedule has instead."""
    holds = {name: f"{{{name}}}" for name in ("node", "now", "peak", "limit")}
    return {
        "full": text("lanes.busy" if streams else "lanes.computing", full="{full}", links="{links}"),
        "memory": text("lanes.held"),
        "holds": text("lanes.holds", **holds),
        "limited": text("lanes.limited", **holds),
        "task": text("lanes.task", label="{label}", start="{start}", end="{end}"),
    }


def page(scenes: Sequence[Scene | Lanes], names: Sequence[str], name: str = "", zoom: bool = False) -> dict:
    """Return the data that move the pictures. Words that are the same for all runs are above them, once."""
    longest = max(scene.trace.duration for scene in scenes)
    first = scenes[0]
    runs = [
        _lanes(scene, name, longest) if isinstance(scene, Lanes) else _run(scene, name, longest)
        for scene, name in zip(scenes, names, strict=True)
    ]
    order = sorted(runs, key=lambda run: run["duration"])
    for run in runs:
        run["finish"] = _finish(run, order)
    unit, words = _unit(float(first.peak)), _lanes_words(first.streams) if isinstance(first, Lanes) else {}
    origins = [run.pop("origin") for run in runs]
    labels = [f"{run['name']} {said}".strip() for run, said in zip(runs, origins, strict=True)]
    label = text("player.label", what=", ".join(labels))
    common = {run["where"] for run in runs} if len(runs) > 1 else set()
    where = common.pop() if len(common) == 1 else ""
    runs = [run | {"where": ""} for run in runs] if where else runs
    return {
        "name": name,
        "zoom": zoom,
        "lang": html_language(),
        "words": _words() | {"label": label, "numbers": text("player.numbers", unit=unit[0])} | words,
        "where": where,
        "peak": 0 if isinstance(first, Lanes) else first.peak,  # of the backlogs beside links
        "unit": unit,
        "legend": [*marks(scenes), *(("", said) for said in _places(scenes, origins))],
        "states": STATES,
        "palette": len(COLORS),
        "runs": runs,
    }


def _places(scenes: Sequence[Scene | Lanes], origins: Sequence[str]) -> list[str]:
    """Return the topologies of the runs for the end of the legend, with the bytes if all have as many."""
    said = origins if len({*origins}) == 1 else [" · ".join(source(scene.trace)) for scene in scenes]
    return [each for each in dict.fromkeys(said) if " · " in each]


def _said(trace: Trace, otherwise: str) -> str:
    """Return the sentence that says what the times of a run are; of a measured one, ``otherwise``."""
    if trace.measured or trace.origin not in ("shared", "ideal"):
        return otherwise
    return text("player.scheduled" if isinstance(trace.plan, Schedule) else f"player.{trace.origin}")


def _finish(run: dict, order: Sequence[dict]) -> str:
    """Return the time of a run and its lead over the slowest; for the fastest of several also over the next one."""
    *others, slowest = order
    rivals = [others[1], slowest] if run is order[0] and others[1:] else [slowest]
    leads = [(ratio, other["name"]) for other in rivals if (ratio := _ratio(other, run))]
    if not leads:
        return run["end"]
    (ratio, name), *more = leads
    if not more:
        return text("player.finish", time=run["end"], ratio=ratio, name=name)
    (most, last) = more[0]
    return text("player.finish-first", time=run["end"], ratio=ratio, name=name, most=most, last=last)


def _ratio(slow: dict, fast: dict) -> str:
    """Return the ratio of two durations; empty if they are nearly equal, or 0."""
    ratio = slow["duration"] / fast["duration"] if fast["duration"] else 1.0
    return "" if ratio < 1.005 else f"{ratio:.2g}" if ratio < 99.5 else str(round(ratio))


def _unit(peak: float) -> tuple[str, float]:
    """Return the unit of all backlogs, which suits the largest one, so that their numbers are comparable."""
    unit = show_size(peak).split(" ")[1]
    return unit, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}[unit]


def _run(scene: Scene, name: str, longest: float) -> dict:
    trace, motion, load = scene.trace, scene.motion, scene.load
    keys = {key: i for i, key in enumerate(scene.plan.share)}

    @cache
    def tick(time: float) -> int:
        return round(time / trace.duration * TICKS) if trace.duration else 0

    routes: dict[tuple, int] = {}
    for path in scene.paths:
        routes.setdefault(path.points, len(routes))
    nodes = {node: i for i, node in enumerate(trace.plan.nodes)}
    ways: dict[tuple, int] = {}
    sizes: dict[float, int] = {}
    messages = []
    for m, path, passed in zip(motion.messages, scene.paths, load.places, strict=True):
        way = ways.setdefault((nodes[m.src], nodes[m.dst], passed), len(ways))
        looks = routes[path.points], keys[m.key], m.look, _tidy(path.behind), _tidy(path.last)
        messages.append((tick(m.start), tick(m.end), *looks, way, sizes.setdefault(m.nbytes, len(sizes))))
    return {
        "name": name,
        "where": _said(trace, origin(trace)),
        "origin": origin(trace),
        "described": described(scene, name or origin(trace)),
        "view": scene.view,
        "high": scene.layout.height,
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
        "work": _columns((tick(c.time), *c[1:]) for c in motion.work),
        "gone": _columns((tick(c.time), *c[1:]) for c in motion.gone),
        "routes": [[_tidy(x) for point in route for x in point] for route in routes],
        # A column of zeros is left out.
        "messages": [column if any(column) else [] for column in _columns(messages)],
        "keys": list(keys),
        "ways": [[src, dst, list(passed)] for src, dst, passed in ways],
        "sizes": list(sizes),
        "colors": [motion.color(node) for node in nodes],
        "places": [place_name(resource) for resource in motion.sharing],
        "links": load.links,
        "states": _columns((tick(c.time), *c[1:]) for c in load.states),
        "full": _columns((tick(c.time), *c[1:]) for c in _counted(load.full)),
        "deciding": _columns((tick(c.time), *c[1:]) for c in load.deciding),
        "mean": round(mean_full(load, trace.duration), 4),
        "reason": (reason(load, trace.duration)[0], scene.losses[-1][1])
        if scene.losses
        else reason(load, trace.duration),
        "awaited": bool(scene.losses or awaited(load, trace.duration)),
        "losses": _columns(
            (tick(time), 0, before, after)
            for (_, before), (time, after) in zip([(0.0, ""), *scene.losses], scene.losses, strict=False)
        ),
        "long": round(gauges(scene.layout, load)[1], 1),
        "label_level": scene.label_level,
    }


# What the picture of a plan's trace has, and a table of lanes has not.
WITHOUT = {
    **{name: [] for name in "first changes work gone routes messages keys ways sizes levels looks growth".split()},
    **{name: [] for name in "colors places states deciding labels".split()},
    **{"cell": [[], [], []], "tile": [], "reach": 1, "workers": 0, "long": 1, "label_level": 0, "awaited": False},
}


def _lanes(scene: Lanes, name: str, longest: float) -> dict:
    """Return the data of the trace of a schedule: its steps are the moments at which tasks start."""
    duration, nodes = scene.duration, {node: i for i, node in enumerate(scene.nodes)}

    def tick(time: float) -> int:
        return round(time / duration * TICKS) if duration else 0

    memory = [
        (tick(time), nodes[node], before, after)
        for node, times in scene.memory.items()
        for (_, before), (time, after) in zip([(0, 0), *times], times, strict=False)
    ]
    working = [Change(time, 0, int(change < 0), int(change > 0)) for time, change in scene.working()]
    titles: dict[str, int] = {}
    blocks = [
        (tick(b.start), tick(b.end), 2 * b.row + b.network, titles.setdefault(b.title, len(titles)))
        for b in (*scene.tasks, *scene.messages)
    ]
    letters = []
    for block, label, least, color in scene.letters():
        x, wide = scene.spot(block)
        top, high = scene.level(block)
        if wide * duration >= 7 * longest:  # wide enough for a letter on a broad screen
            place = _tidy(x / WIDE * 100), _tidy(top), round(wide / WIDE * 100, 2), _tidy(high)
            letters.append([*place, label, least, color])
    return WITHOUT | {
        "name": name,
        "where": scene.heading() if scene.slots else _said(scene.trace, scene.heading(timed=False)),
        "origin": scene.heading(timed=False),
        "described": described(scene, name or scene.heading(timed=False)),
        "view": [-1, 0, GAUGE + 2, scene.height],
        "high": scene.height,
        "duration": duration,
        "end": show_seconds(duration),
        "steps": len(scene.starts),
        "begins": [tick(start) for start in scene.starts],
        "nodes": list(nodes),
        "links": len(scene.trace.plan.nodes),
        "full": _columns((tick(c.time), *c[1:]) for c in _counted(working)),
        "mean": round(1 - scene.trace.bubble(), 4) if scene.bubble() else 0,
        "reason": [scene.bubble(), ""],
        "ideal": scene.bubble(relative=True),
        "row": scene.row,
        "gauge": [GAUGE, scene.peak],
        "memory": _columns(sorted(memory)),
        "peaks": list(scene.peaks.values()),
        "limits": [scene.limits.get(node) for node in nodes],
        "blocks": _columns(blocks),
        "titles": list(titles),
        "letters": letters,
    }


def _counted(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes of the number of places whose state is 1."""
    count = 0
    for time, group in groupby(changes, key=lambda change: change.time):
        more = sum(change.after - change.before for change in group)
        if more:
            yield Change(time, 0, count, count + more)
        count += more


def _columns(rows: Iterable[tuple]) -> list[list]:
    return [list(column) for column in zip(*rows, strict=True)]


def _tidy(value: float) -> float:
    value = round(value, 1)
    return int(value) if value == int(value) else value
