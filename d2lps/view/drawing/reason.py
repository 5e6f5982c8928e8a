"""Why a run takes as long as it does: how many links work on average, and for which of them everything waits.

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

from itertools import pairwise

from d2lps.messages import text
from d2lps.topology import Link
from d2lps.view.drawing.traffic import Traffic

MOST = 0.9  # of the time: a place, or one after the other, for which everything waits
FEW = 2  # of them are named


def mean_full(load: Traffic, duration: float) -> float:
    """How many links pass all that they can, on average over the run."""
    seconds = sum((change.after - change.before) * (duration - change.time) for change in load.full)
    return seconds / duration if duration else 0.0


def awaited(load: Traffic, duration: float) -> list["Link | str"]:
    """The places that decide, one after the other, all the time or nearly so; none where the work is spread."""
    if _decided(load, duration) < MOST * duration:
        return []
    places = [place for place, seconds in _decisions(load, duration) if place >= 0 < seconds]
    return [load.motion.sharing[place] for place in dict.fromkeys(places)]


def _decided(load: Traffic, duration: float) -> float:
    """For how many seconds some place decides."""
    return sum(seconds for place, seconds in _decisions(load, duration) if place >= 0)


def _decisions(load: Traffic, duration: float) -> list[tuple[int, float]]:
    """Which place decides (-1: none), one after the other, and for how many seconds."""
    turns = [(0.0, -1), *((change.time, change.after) for change in load.deciding), (duration, -1)]
    return [(place, end - start) for (start, place), (end, _) in pairwise(turns)]


def place_name(resource: "Link | str") -> str:
    """What a link, or a node that is a limit itself, is called."""
    return f"{resource.src}→{resource.dst}" if isinstance(resource, Link) else resource


def reason(load: Traffic, duration: float) -> tuple[str, str]:
    """How many links work on average, and what is waited for, as sentences; empty where neither can be said."""
    if not load.links or not duration:
        return "", ""
    mean = mean_full(load, duration)
    average = text("draw.mean-full", full=round(mean) if mean >= 10 else f"{mean:.2g}", links=load.links)
    names = [place_name(place) for place in awaited(load, duration)]
    if not names:
        return average, text("draw.spread") if _decided(load, duration) <= (1 - MOST) * duration else ""
    places = text("draw.then", first=names[0], second=names[1]) if len(names) == FEW else ", ".join(names[:FEW])
    return average, text("draw.awaited", places=places + (" …" if len(names) > FEW else ""))
