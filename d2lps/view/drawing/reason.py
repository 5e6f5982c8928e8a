"""The reason for the duration of a run: the mean number of full links, and the places for which everything waits.

>>> from d2lps import aggregate_at, cost, pcie_server, sharded
>>> from d2lps.view.drawing.motion import follow
>>> from d2lps.view.drawing.traffic import traffic
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> for plan in aggregate_at(gpus, "gpu0"), sharded(gpus):
...     trace = cost.shared(plan, pcie_server(), "160 MB")
...     load = traffic(trace, follow(trace))
...     mean_full(load, trace.duration), [place.dst for place in awaited(load, trace.duration)]
(1.0, ['gpu0', 'switch'])
(8.0, [])
"""

from collections import defaultdict
from itertools import pairwise

from d2lps.messages import text
from d2lps.topology import Link
from d2lps.trace import Trace
from d2lps.view.drawing.motion import Motion
from d2lps.view.drawing.traffic import Traffic

MOST = 0.9  # of the time: if places decide for longer, everything waits for them
FEW = 2  # places that are named
SOME = 4  # nodes that are named


def mean_full(load: Traffic, duration: float) -> float:
    """Return the number of full links, on average over the run."""
    seconds = sum((change.after - change.before) * (duration - change.time) for change in load.full)
    return seconds / duration if duration else 0.0


def awaited(load: Traffic, duration: float) -> list["Link | str"]:
    """Return the places that decide, one after the other, nearly all the time; none if the work is spread."""
    if _decided(load, duration) < MOST * duration:
        return []
    places = [place for place, seconds in _decisions(load, duration) if place >= 0 < seconds]
    return [load.motion.sharing[place] for place in dict.fromkeys(places)]


def _decided(load: Traffic, duration: float) -> float:
    """Return the seconds for which some place decides."""
    return sum(seconds for place, seconds in _decisions(load, duration) if place >= 0)


def _decisions(load: Traffic, duration: float) -> list[tuple[int, float]]:
    """Return (place that decides, -1 for none or -n for n links together; seconds), one after the other."""
    turns = [(0.0, -1), *((change.time, change.after) for change in load.deciding), (duration, -1)]
    return [(place, end - start) for (start, place), (end, _) in pairwise(turns)]


def place_name(resource: "Link | str") -> str:
    """Return the name of a link, or of a node that is itself a limit."""
    return f"{resource.src}→{resource.dst}" if isinstance(resource, Link) else resource


def reason(load: Traffic, duration: float) -> tuple[str, str]:
    """Return two sentences: the mean number of full links, and the places that are waited for; empty if unknown."""
    if not load.motion.sharing or not duration:
        return "", ""
    mean = mean_full(load, duration)
    shown = round(mean) if mean >= 10 else f"{mean:.2g}"
    average = text("draw.mean-full", full=shown, links=load.links) if load.links else ""
    names = [place_name(place) for place in awaited(load, duration)]
    if not names:
        held = defaultdict(float)
        for place, seconds in _decisions(load, duration):
            held[place] += seconds
        longest = max(held, key=held.get)
        if longest < -1 and held[longest] >= MOST * duration:
            return average, text("draw.tied", count=-longest)
        return average, text("draw.spread") if _decided(load, duration) <= (1 - MOST) * duration else ""
    places = text("draw.then", first=names[0], second=names[1]) if len(names) == FEW else ", ".join(names[:FEW])
    return average, text("draw.awaited", places=places + (" …" if len(names) > FEW else ""))


def losses(trace: Trace, motion: Motion) -> list[tuple[float, str]]:
    """Return (moment, the sentence from then on) about the dead and those that wait for them; none if no node dies.

    The wait for a node is the longest time without a message after its death. If its death is two events, the others
    have given it up when the first ends.
    """
    if not motion.gone:
        return []
    deaths, done = [e for e in trace.events if e.kind == "gone"], [e for e in trace.events if e.kind != "gone"]
    until, silent = 0.0, []
    for start, end in sorted([*((e.start, e.end) for e in done), (trace.duration, trace.duration)]):
        silent += [(until, start)] if start > until else []
        until = max(until, end)
    waits = []
    for death in deaths:
        spans = [(max(start, death.start), min(end, death.end)) for start, end in silent]
        start, end = max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
        given_up = any(other.src == death.src and other.end == death.start for other in deaths)
        waits += [(start, end, death.src)] if start < end and not given_up else []
    found = []
    for time in sorted({c.time for c in motion.gone} | {time for *span, _ in waits for time in span}):
        dead = [trace.plan.nodes[i] for i in sorted(motion.gone_at(time))]
        missed = [node for start, end, node in waits if start <= time < end]
        known = {node for e in done if e.start < time for node in (e.src, e.dst)}
        who = [node for node in trace.plan.nodes if node in known and node not in dead]
        names = {"dead": _list(missed or dead), "who": _list(who)}
        found.append((time, text("draw.waiting" if missed and who else "draw.dead", **names) if dead else ""))
    return found


def _list(names: list[str]) -> str:
    return text("list.comma").join(names[:SOME]) + " …" * (len(names) > SOME)
