"""What the servers of a store saw, as a trace: who pushed, which round that was, and what a pull had in it.

Nobody knew beforehand who would send when, so the plan of such a trace has no sends, and each event says whose
gradients it carries. A key of the trace is one push of every worker: ``"3"`` is everybody's third, ``"3.1"`` what
server 1 has of it.
"""

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import NamedTuple

from d2lps.kvstore.errors import Refused
from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.topology.graph import Link, Topology
from d2lps.trace import Event, Trace
from d2lps.units import Bandwidth

KEPT = 10_000  # of each kind: what came before is forgotten
PAGE = 1 << 20  # bytes in JSON that a server tells at once; a frame takes more
Place = tuple[int, int]  # a server, and the number that it has for a part of a key


class PushRecord(NamedTuple):
    """A push of worker ``rank``, its ``round``-th to ``part``: from when it began to arrive until it had arrived."""

    part: int
    rank: int
    round: int
    start: float
    end: float


class VersionRecord(NamedTuple):
    """A new ``version`` of ``part``, in which the pushes ``(rank, round)`` are new."""

    part: int
    version: int
    pushes: list
    start: float
    end: float


class PullRecord(NamedTuple):
    """A pull of worker ``rank``, which got ``version`` of ``part`` after ``round`` pushes of its own."""

    part: int
    rank: int
    round: int
    version: int
    start: float = 0.0
    end: float = 0.0


KINDS = {"pushes": PushRecord, "versions": VersionRecord, "pulls": PullRecord}
NAMES = {kind: name for name, kind in KINDS.items()}


class Record:
    """What one server saw, in the order of its monotonic clock."""

    def __init__(self):
        self._rows = {kind: deque(maxlen=KEPT) for kind in KINDS.values()}
        self._count = count()

    def add(self, row: PushRecord | VersionRecord | PullRecord) -> None:
        self._rows[type(row)].append((next(self._count), row))  # a deque needs no lock for that

    def as_metadata(self, rule: str | None, start: int = 0) -> dict:
        """A page of it, for a worker that asks: as much as fits from entry ``start`` on, and where the next begins."""
        page = {"rows": {name: [] for name in KINDS}, "rule": rule, "now": time.monotonic(), "next": None}
        room = PAGE
        for number, row in self._since(start):
            if room < 0:
                return page | {"next": number}
            page["rows"][NAMES[type(row)]].append(row)
            room -= len(json.dumps(row))
        return page

    def _since(self, start: int) -> list[tuple[int, NamedTuple]]:
        for _ in range(3):
            try:
                return sorted(each for rows in self._rows.values() for each in rows if each[0] >= start)
            except RuntimeError:  # another thread has added to it meanwhile
                continue
        raise Refused(text("store.too-much"))


class ServerRecord(NamedTuple):
    """What one server said of itself."""

    pushes: list[PushRecord]
    versions: list[VersionRecord]
    pulls: list[PullRecord]
    rule: str | None

    @classmethod
    def read(cls, pages: "Mapping | Sequence[Mapping]", ahead: float) -> "ServerRecord":
        """``pages``: what it told, one after the other; ``ahead``: seconds by which its clock is ahead of the first."""
        pages = [pages] if isinstance(pages, Mapping) else pages
        rows = {name: [kind(*row) for page in pages for row in page["rows"][name]] for name, kind in KINDS.items()}
        rows = {
            name: [row._replace(start=row.start - ahead, end=row.end - ahead) for row in rows[name]] for name in rows
        }
        return cls(**rows, rule=pages[-1]["rule"])

    def of(self, part: int) -> "ServerRecord":
        """What it says of one part: versions and pulls in their order."""
        pushes, versions, pulls = ([row for row in rows if row.part == part] for rows in self[:3])
        versions.sort(key=lambda row: row.version)
        return ServerRecord(pushes, versions, sorted(pulls, key=lambda row: row.start), self.rule)


def trace(
    kind: str, workers: int, servers: Mapping[int, ServerRecord], sizes: Mapping[Place, int], rounds: int
) -> Trace:
    """The trace of one key: its last ``rounds``. ``sizes``: bytes of each part of it."""
    records = {(server, number): servers[server].of(number) for server, number in sizes}
    shown = sorted({row.round for record in records.values() for row in record.pushes})[-rounds:]
    if not shown:
        raise Refused(text("store.nothing-pushed"))
    names = {
        place: {clock: f"{clock}.{place[0]}" if len(sizes) > 1 else str(clock) for clock in shown} for place in sizes
    }
    total = sum(sizes.values())
    share = {
        names[place][clock]: Fraction(nbytes, total * len(shown)) for clock in shown for place, nbytes in sizes.items()
    }
    events = [
        event
        for place, nbytes in sizes.items()
        for event in _events(f"server{place[0]}", nbytes, records[place], names[place])
    ]
    first = min(event.start for event in events)
    step = {clock: i for i, clock in enumerate(shown, 1)}
    events = [replace(each, step=step[each.step], start=each.start - first, end=each.end - first) for each in events]
    events.sort(key=lambda event: (event.start, event.end))
    ranks, nodes = [f"worker{i}" for i in range(workers)], [f"server{server}" for server, _ in sizes]
    ends = [pair for rank in ranks for server in nodes for pair in ((rank, server), (server, rank))]
    links = tuple(Link(*pair, Bandwidth("inf")) for pair in ends)
    topology = Topology("pairs", dict.fromkeys([*ranks, *nodes], "machine"), links)
    plan = Plan([*ranks, *nodes], share, [[] for _ in shown], holds=ranks, wants=[])
    return Trace(kind, plan, topology, total * len(shown), tuple(events))


def _events(server: str, nbytes: int, record: ServerRecord, names: Mapping[int, str]) -> list[Event]:
    """What happened to one part; steps are rounds still, and times those of the servers. ``names``: of the rounds."""
    events = []

    def add(kind: str, clock: int, row, src: str, dst: str, op: str, size: float, *carried: int) -> None:
        carries = tuple(f"worker{rank}" for rank in carried) or None
        events.append(Event(kind, clock, row.start, row.end, src, dst, names[clock], op, size, carries))

    for row in record.pushes:
        if row.round in names:
            add("send", row.round, row, f"worker{row.rank}", server, "add", nbytes, row.rank)
    inside: dict[int, dict[int, list[int]]] = {0: {}}  # version → round → whose pushes are in it
    for row in record.versions:
        before = inside.get(row.version - 1, inside[max(inside)])
        inside[row.version] = now = {clock: list(ranks) for clock, ranks in before.items()}
        for rank, clock in row.pushes:
            now.setdefault(clock, []).append(rank)
        clock = max((clock for _, clock in row.pushes), default=None)
        if record.rule and clock in names:
            add("update", clock, row, server, server, record.rule, nbytes)
    had: dict[int, dict[int, list[int]]] = {}
    for row in record.pulls:
        now, before = inside.get(row.version, {}), had.get(row.rank, {})
        visible = [clock for clock in now if clock in names]
        news = [clock for clock in visible if now[clock] != before.get(clock)] or visible[-1:]
        had[row.rank] = now
        for clock in sorted(news):  # one message, shown as what is new in it
            add("send", clock, row, server, f"worker{row.rank}", "copy", nbytes / len(news), *sorted(now[clock]))
    return events


class Pull(NamedTuple):
    """What worker ``rank`` saw after ``clock`` pushes of its own: ``seen[i]`` pushes of worker i, all up to there."""

    rank: int
    clock: int
    seen: tuple[int, ...]

    @property
    def behind(self) -> int:
        """By how many pushes the one that it had seen least of was behind it."""
        return self.clock - min(self.seen)


def pulls(workers: int, servers: Mapping[int, ServerRecord], places: Sequence[Place]) -> list[Pull]:
    """What every pull of a key had seen, over all its parts, in the order in which they were answered."""
    seen: dict[tuple[int, int], tuple[float, list[int]]] = {}  # (rank, round) → when it ended, pushes by worker
    for server, number in places:
        record = servers[server].of(number)
        counts, versions = [0] * workers, {0: [0] * workers}
        for row in record.versions:
            for rank, clock in row.pushes:
                counts[rank] = max(counts[rank], clock)
            versions[row.version] = list(counts)
        for row in record.pulls:
            if row.version in versions:
                end, least = seen.get((row.rank, row.round), (row.end, versions[row.version]))
                least = [min(pair) for pair in zip(least, versions[row.version], strict=True)]
                seen[row.rank, row.round] = max(end, row.end), least
    ordered = sorted(seen.items(), key=lambda item: item[1][0])
    return [Pull(rank, clock, tuple(least)) for (rank, clock), (_, least) in ordered]
