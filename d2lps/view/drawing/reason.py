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
from d2lps.view.drawing.traffic import Traffic

MOST = 0.9  # of the time: if places decide for longer, everything waits for them
FEW = 2  # places that are named


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
