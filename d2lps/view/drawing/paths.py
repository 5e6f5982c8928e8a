"""The paths of messages over the lanes, such that messages that meet are distinguishable.

Messages that meet on a lane go side by side if it is wide enough, else one behind the other.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from d2lps.trace import Trace
from d2lps.view.drawing.layout import Layout
from d2lps.view.drawing.motion import Message, Motion
from d2lps.view.drawing.svg import Point

TILE = 20.0  # the height of a message
GAP = 2.5
REACH = 36.0  # the distance from its cell over which a message takes on the cell's size


class MessagePath(NamedTuple):
    """The way of one message, from the middle of its sender's cell to that of its receiver's.

    ``points`` are the corners of the line. The messages of a crowd start and arrive at the same moments; if a lane is
    too narrow for all side by side, they follow each other. ``behind`` is the distance of this message from the first,
    and ``last`` that of the last one. So the first waits at its end, and the others at their beginnings.
    """

    points: tuple[Point, ...]
    behind: float = 0.0
    last: float = 0.0

    def at(self, part: float) -> tuple[float, float, float]:
        """Return x and y at ``part`` (0 … 1) of its time, and how far the message has grown to its cell's size."""
        lengths = [math.dist(*pair) for pair in pairwise(self.points)]
        whole = sum(lengths) + self.last
        grown = max(0.0, 1 - min(part, 1 - part) * whole / REACH)
        left = min(max(0.0, part * whole - self.behind), sum(lengths))
        for ((ax, ay), (bx, by)), length in zip(pairwise(self.points), lengths, strict=True):
            if left <= length:
                return ax + (bx - ax) * left / (length or 1), ay + (by - ay) * left / (length or 1), grown
            left -= length
        return *self.points[-1], grown


def paths(trace: Trace, layout: Layout, motion: Motion, widths: Sequence[float]) -> list[MessagePath]:
    """Return the path of each message of ``motion``; ``widths`` has the width of the messages of each key."""
    pitch = max(widths) + GAP
    length = max(TILE, pitch) + 6  # from one message to the next behind it
    abreast = max(1, int((layout.room + GAP) // pitch))
    hops = [[(link.src, link.dst) for link in trace.topology.route(m.src, m.dst)] for m in motion.messages]
    meeting: dict[tuple, list[int]] = defaultdict(list)
    for i, route in enumerate(hops):
        for hop in route:
            meeting[hop].append(i)
    seat: dict[tuple, tuple[int, int]] = {}
    for hop, members in meeting.items():
        seat |= zip(((hop, i) for i in members), seats([motion.messages[i] for i in members]), strict=True)
    rank = {node: i / max(1, len(trace.plan.nodes) - 1) for i, node in enumerate(trace.plan.nodes)}
    every = []
    for i, message in enumerate(motion.messages):
        aside, queue = [], (1, 0)
        for hop in hops[i]:
            number, crowd = seat[hop, i]
            columns = min(abreast, crowd)
            aside.append((number % columns - (columns - 1) / 2) * pitch)
            queue = max(queue, (-(-crowd // columns), number // columns))
        start, end = (layout.cells[node][message.key].center for node in (message.src, message.dst))
        points = layout.route(hops[i], start, end, aside, rank[message.src])
        every.append(MessagePath(tuple(points), queue[1] * length, (queue[0] - 1) * length))
    return every


def seats(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return for each message its seat, and the number of seats of its crowd.

    Messages under way at the same time have different seats. A crowd is a set of messages that overlap in time,
    directly or through others, of any steps: without a barrier steps overlap too.
    """
    seated: list[tuple[int, list[float]]] = [(0, [])] * len(messages)
    crowd: list[float] = []  # the end of the last message on each seat of the present crowd
    for i in sorted(range(len(messages)), key=lambda i: messages[i].start):
        if messages[i].start >= max(crowd, default=0.0):
            crowd = []
        seat = next((k for k, end in enumerate(crowd) if end <= messages[i].start), len(crowd))
        crowd[seat : seat + 1] = [messages[i].end]
        seated[i] = seat, crowd
    return [(seat, len(crowd)) for seat, crowd in seated]
