"""The lower half of a picture: a row per node with the messages it sends (above) and receives (below), over time.

Its width is time and can be stretched: 1000 units for the whole trace, without text.
"""

import math
from collections import defaultdict
from itertools import accumulate

from d2lps.trace import Event, Predicted, Trace
from d2lps.view.drawing.motion import SERVER, Message, Motion, seats
from d2lps.view.drawing.svg import area, fine, rect, tag, worker
from d2lps.view.drawing.theme import LIGHT

WIDE, TALL = 1000, 20  # the width of the whole, and the height of a row
UPDATE, GONE = -2, -3  # instead of the number of a color, like SERVER


def timeline(trace: Trace, motion: Motion, at: float, moved: str = "", **place: object) -> str:
    """Draw the timeline, with the play-head at a moment, or ``moved`` by the CSS class of that name."""
    nodes, scale = trace.plan.nodes, WIDE / (trace.duration or 1)
    height, parts = TALL * len(nodes), []
    runs = step_runs(trace)
    for (number, *_), (start, end) in zip(runs, _alone([(start, end) for _, start, end in runs]), strict=True):
        if number % 2 and start < end:
            span = {"x": fine(start * scale), "y": 0, "width": fine((end - start) * scale)}
            parts.append(tag("rect", **span, height=height, **area("band")))
    for (row, color, thin), pieces in sorted(_blocks(trace, motion, scale).items()):
        plain = {SERVER: "soft", UPDATE: "ink", GONE: "well"}.get(color)
        look = area(plain) if plain else worker(color) | ({"style": "--d2-rim:0"} if thin else {})
        parts.append(tag("path", d="".join(pieces), transform=f"translate(0 {row * TALL})", **look))
    head = {
        "class_": f"d2-head d2-ink {moved}".strip(),
        "fill": LIGHT["ink"],
        "transform": f"translate({fine(at * scale)} 0)",
    }
    parts.append(tag("rect", x=-1, width=2, y=0, height=height, **head))
    look = {"class_": "d2-time", "viewBox": f"0 0 {WIDE} {height}", "preserveAspectRatio": "none"}
    return tag("svg", "".join(parts), **look, **place)


def step_runs(trace: Trace) -> list[tuple[int, float, float]]:
    """Return (number, start, end) of each step; one that is done again after a death has a run each time.

    Messages of a step may also be far from it in time, such as copies for a disk or a new server: they are no run.
    So a step ends where another step's message, or the return of a dead node, lies between two of its own. It goes on
    with further gradients, and begins again with gradients that were sent before.
    """
    spans = [(number, *span) for number, span in enumerate(trace.step_times(), 1)]
    if not mortal(trace):
        return spans
    sent = [event for event in trace.events if event.kind != "gone"]
    runs: list[tuple[int, float, float]] = []
    for number in range(1, trace.steps + 1):
        parts: list[list[Event]] = []
        until = 0.0
        seen: set[tuple[str, str]] = set()
        for event in sorted((event for event in sent if event.step == number), key=lambda event: event.start):
            apart = event.start > until and any(
                until <= (other.end if other.kind == "gone" else other.start) and other.end <= event.start
                for other in trace.events
                if other.step != number or other.kind == "gone"
            )
            if apart or not parts:
                parts.append([])
            parts[-1].append(event)
            until = max(until, event.end)
        for part in parts:
            start, end = min(event.start for event in part), max(event.end for event in part)
            added = {(event.src, event.key) for event in part if event.op == "add"}
            if part is parts[0] or added & seen:
                runs.append((number, start, end))
            elif added:
                runs[-1] = (*runs[-1][:2], end)
            seen |= added
    return sorted(runs, key=lambda run: run[1])


def mortal(trace: Trace) -> bool:
    """Return True if a node dies."""
    return not isinstance(trace.events, Predicted) and any(event.kind == "gone" for event in trace.events)


def _alone(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the part of each step's span that overlaps neither an earlier nor a later step."""
    ended = [0.0, *accumulate((end for _, end in spans), max)]
    began = [*accumulate((start for start, _ in reversed(spans)), min)][::-1][1:] + [math.inf]
    return [
        (max(start, before), min(end, after)) for (start, end), before, after in zip(spans, ended, began, strict=False)
    ]


def _blocks(trace: Trace, motion: Motion, scale: float) -> dict[tuple[int, int, bool], list[str]]:
    """Return (row, sender's color, thin) → pieces of a path. Simultaneous messages share the height of a lane."""
    rows = {node: i for i, node in enumerate(trace.plan.nodes)}
    lanes: dict[tuple, list[Message]] = defaultdict(list)
    for message in motion.messages:
        lanes[message.src, 1.5].append(message)
        lanes[message.dst, TALL / 2 + 0.5].append(message)
    blocks: dict[tuple[int, int, bool], list[str]] = defaultdict(list)
    for (node, top), members in lanes.items():
        for message, (seat, crowd) in zip(members, seats(members), strict=True):
            high = (TALL / 2 - 2) / crowd
            x, w = message.start * scale, max(0.6, (message.end - message.start) * scale - 0.8)
            blocks[rows[node], motion.color(message.src), crowd > 2].append(rect(x, top + seat * high, w, high))
    for event in trace.events:
        if event.kind == "update":
            w = max(3.0, (event.end - event.start) * scale)
            x = min(event.start * scale, WIDE - w)
            blocks[rows[event.dst], UPDATE, False].append(rect(x, TALL / 2 - 3, w, 6))
        elif event.kind == "gone":
            x, w = event.start * scale, (event.end - event.start) * scale
            blocks[rows[event.dst], GONE, False].append(rect(x, 0, w, TALL))
    return blocks
