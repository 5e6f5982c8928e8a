"""What the servers of a store saw, as a trace: who pushed, which round that was, and what a pull had in it.

Nobody knew beforehand who would send when, so the plan of such a trace has no sends, and each event says whose
gradients it carries. A key of the trace is one push of every worker: ``"3"`` is everybody's third, ``"3.1"`` what
server 1 has of it.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from d2lps.kvstore.errors import Refused
from d2lps.plan.plan import Plan
from d2lps.topology.graph import Link, Topology
from d2lps.trace import Event, Trace
from d2lps.units import Bandwidth

KEPT = 10_000  # of each kind: what came before is forgotten


class Pushed(NamedTuple):
    """A push of worker ``rank``, its ``round``-th to ``part``: from when it began to arrive until it had arrived."""

    part: int
    rank: int
    round: int
    start: float
    end: float


class Published(NamedTuple):
    """A new ``version`` of ``part``, in which the pushes ``(rank, round)`` are new."""

    part: int
    version: int
    pushes: list
    start: float
    end: float


class Pulled(NamedTuple):
    """A pull of worker ``rank``, which got ``version`` of ``part`` after ``round`` pushes of its own."""

    part: int
    rank: int
    round: int
    version: int
    start: float
    end: float


class Record:
    """What one server saw, in the order of its monotonic clock."""

    def __init__(self):
        self._seen = {kind: deque(maxlen=KEPT) for kind in (Pushed, Published, Pulled)}

    def add(self, what: "Pushed | Published | Pulled") -> None:
        self._seen[type(what)].append(what)  # a deque needs no lock for that

    def said(self, rule: str | None) -> dict:
        """All of it, for a worker that asks."""
        for _ in range(3):
            try:
                seen = {kind.__name__: [list(each) for each in rows] for kind, rows in self._seen.items()}
                return {"seen": seen, "rule": rule, "now": time.monotonic()}
            except RuntimeError:  # another thread has added to it meanwhile
                continue
        raise Refused("too much is going on to tell it: ask once the workers have come to a barrier")


class Seen(NamedTuple):
    """What one server said of itself."""

    pushed: list[Pushed]
    published: list[Published]
    pulled: list[Pulled]
    rule: str | None

    @classmethod
    def read(cls, said: Mapping, later: float) -> "Seen":
        """``later``: seconds by which this server's clock is ahead of the first one's."""
        rows = []
        for kind in (Pushed, Published, Pulled):
            found = [kind(*row) for row in said["seen"][kind.__name__]]
            rows.append([row._replace(start=row.start - later, end=row.end - later) for row in found])
        return cls(*rows, said["rule"])


def trace(kind: str, workers: int, seen: Mapping[int, Seen], sizes: Mapping[tuple[int, int], int], most: int) -> Trace:
    """The trace of one key.

    seen
        server → what it saw.
    sizes
        (server, its number for it) → bytes of each part of the key.
    most
        how many rounds to show: the last ones.
    """
    pushed = {where: [row for row in seen[where[0]].pushed if row.part == where[1]] for where in sizes}
    rounds = sorted({row.round for rows in pushed.values() for row in rows})[-most:]
    if not rounds:
        raise Refused("nothing has been pushed to this key yet: there is nothing to see")
    several = len(sizes) > 1
    names = {
        (server, number, clock): f"{clock}.{server}" if several else str(clock)
        for clock in rounds
        for server, number in sizes
    }
    total = sum(sizes.values())
    share = {name: Fraction(sizes[server, number], total * len(rounds)) for (server, number, _), name in names.items()}
    ranks, servers = [f"worker{i}" for i in range(workers)], [f"server{server}" for server, _ in sizes]
    events = [
        event
        for where, nbytes in sizes.items()
        for event in _events(where, nbytes, seen[where[0]], pushed[where], names)
    ]
    first = min(event.start for event in events)
    step = {clock: i for i, clock in enumerate(rounds, 1)}
    moved = sorted(
        (replace(event, step=step[event.step], start=event.start - first, end=event.end - first) for event in events),
        key=lambda event: (event.start, event.end),
    )
    links = tuple(
        Link(*ends, Bandwidth("inf"))
        for rank in ranks
        for server in servers
        for ends in ((rank, server), (server, rank))
    )
    topology = Topology("pairs", dict.fromkeys([*ranks, *servers], "machine"), links)
    plan = Plan([*ranks, *servers], share, [[] for _ in rounds], holds=ranks, wants=[])
    return Trace(kind, plan, topology, total * len(rounds), tuple(moved))


def _events(where: tuple[int, int], nbytes: int, seen: Seen, pushed: list[Pushed], names: Mapping) -> list[Event]:
    """What happened to one part; steps are rounds still, and times those of the servers."""
    server, mine = f"server{where[0]}", {clock: name for (*place, clock), name in names.items() if (*place,) == where}
    found = [
        Event(
            "send",
            row.round,
            row.start,
            row.end,
            f"worker{row.rank}",
            server,
            mine[row.round],
            "add",
            nbytes,
            (f"worker{row.rank}",),
        )
        for row in pushed
        if row.round in mine
    ]
    inside: dict[int, dict[int, list[int]]] = {0: {}}  # version → round → whose pushes are in it
    for row in sorted((row for row in seen.published if row.part == where[1]), key=lambda row: row.version):
        before = inside.get(row.version - 1, inside[max(inside)])
        inside[row.version] = now = {clock: list(ranks) for clock, ranks in before.items()}
        for rank, clock in row.pushes:
            now.setdefault(clock, []).append(rank)
        clock = max((clock for _, clock in row.pushes), default=None)
        if seen.rule and clock in mine:
            found.append(Event("update", clock, row.start, row.end, server, server, mine[clock], seen.rule, nbytes))
    had: dict[int, dict[int, list[int]]] = {}
    for row in sorted((row for row in seen.pulled if row.part == where[1]), key=lambda row: row.start):
        now = inside.get(row.version, {})
        news = [clock for clock in now if clock in mine and now[clock] != had.get(row.rank, {}).get(clock)]
        news = news or [clock for clock in now if clock in mine][-1:]
        had[row.rank] = now
        for clock in sorted(news):  # one message, shown as what is new in it
            found.append(
                Event(
                    "send",
                    clock,
                    row.start,
                    row.end,
                    server,
                    f"worker{row.rank}",
                    mine[clock],
                    "copy",
                    nbytes / len(news),
                    tuple(f"worker{rank}" for rank in sorted(now[clock])),
                )
            )
    return found


class Pull(NamedTuple):
    """What worker ``rank`` saw after ``clock`` pushes of its own: ``seen[i]`` pushes of worker i, all up to there."""

    rank: int
    clock: int
    seen: tuple[int, ...]

    @property
    def behind(self) -> int:
        """By how many pushes the one that it had seen least of was behind it."""
        return self.clock - min(self.seen)


def pulls(workers: int, seen: Mapping[int, Seen], where: Sequence[tuple[int, int]]) -> list[Pull]:
    """What every pull of a key had seen, over all its parts, in the order in which they were answered."""
    found: dict[tuple[int, int], tuple[float, list[int]]] = {}
    for server, number in where:
        counts, versions = [0] * workers, {0: [0] * workers}
        for row in sorted((row for row in seen[server].published if row.part == number), key=lambda row: row.version):
            for rank, clock in row.pushes:
                counts[rank] = max(counts[rank], clock)
            versions[row.version] = list(counts)
        for row in seen[server].pulled:
            if row.part == number and row.version in versions:
                end, least = found.get((row.rank, row.round), (row.end, versions[row.version]))
                least = [min(pair) for pair in zip(least, versions[row.version], strict=True)]
                found[row.rank, row.round] = max(end, row.end), least
    ordered = sorted(found.items(), key=lambda item: item[1][0])
    return [Pull(rank, clock, tuple(least)) for (rank, clock), (_, least) in ordered]
