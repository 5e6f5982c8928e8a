"""The paths of messages over the lanes, so that those that meet can be told apart.

Messages that meet on a lane go side by side as far as it is wide, and then one behind the other.
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
REACH = 36.0  # so far from its cell a message takes on the cell's size


class MessagePath(NamedTuple):
    """Where one message travels: from the middle of its sender's cell to that of its receiver's.

    ``points`` are the corners of the line. The messages of a crowd start and arrive at the same moments; where a lane
    is too narrow for all side by side, they follow each other: this one keeps ``behind`` the first by so many units,
    and the last of them by ``last``. So the first waits at its end, and the others at their beginnings.
    """

    points: tuple[Point, ...]
    behind: float = 0.0
    last: float = 0.0

    def at(self, part: float) -> tuple[float, float, float]:
        """Where the message is when ``part`` (0 … 1) of its time has passed, and how much of the cell's size it has."""
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
    """The path of each message of ``motion``; ``widths``: how wide the messages of each key are drawn."""
    pitch = max(widths) + GAP
    length = max(TILE, pitch) + 6  # from one to the next, where they go behind each other
    abreast = max(1, int((layout.room + GAP) // pitch))
    hops = [[(link.src, link.dst) for link in trace.topology.route(m.src, m.dst)] for m in motion.messages]
    meeting: dict[tuple, list[int]] = defaultdict(list)
    for i, route in enumerate(hops):
        for hop in route:
            meeting[hop].append(i)
    seat: dict[tuple, tuple[int, int]] = {}
    for hop, members in meeting.items():
        taken = seats([motion.messages[i] for i in members])
        seat |= {(hop, i): mine for i, mine in zip(members, taken, strict=True)}
    rank = {node: i / max(1, len(trace.plan.nodes) - 1) for i, node in enumerate(trace.plan.nodes)}
    every = []
    for i, message in enumerate(motion.messages):
        aside, queue = [], (1, 0)
        for hop in hops[i]:
            mine, width = seat[hop, i]
            columns = min(abreast, width)
            aside.append((mine % columns - (columns - 1) / 2) * pitch)
            queue = max(queue, (-(-width // columns), mine // columns))
        start, end = (layout.cells[node][message.key].center for node in (message.src, message.dst))
        points = layout.route(hops[i], start, end, aside, rank[message.src])
        every.append(MessagePath(tuple(points), queue[1] * length, (queue[0] - 1) * length))
    return every


def seats(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """For each message its seat, and how many seats its crowd takes.

    Those under way at the same time have different seats. A crowd is what overlaps in time, directly or through
    others, to whatever steps it belongs: where no barrier stands between steps, they overlap too.
    """
    taken: list[tuple[int, list[float]]] = [(0, [])] * len(messages)
    free_from: list[float] = []  # of the seats of the present crowd
    for i in sorted(range(len(messages)), key=lambda i: messages[i].start):
        if messages[i].start >= max(free_from, default=0.0):
            free_from = []
        seat = next((k for k, end in enumerate(free_from) if end <= messages[i].start), len(free_from))
        free_from[seat : seat + 1] = [messages[i].end]
        taken[i] = seat, free_from
    return [(seat, len(crowd)) for seat, crowd in taken]
