"""The records of servers as a trace: the pushes, the versions that they made, and the pulls that read them.

Such a run has no plan of sends, so the plan of its trace is empty, and each event has the workers whose gradients it
carries. A key of the trace is one push of every worker: ``"3"`` is the third push of all workers, ``"3.1"`` the part of
it on server 1.
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

ROWS = 10_000  # the last rows of each kind that a server keeps
PAGE = 1 << 20  # bytes of JSON in an answer, less than the limit of a frame
Place = tuple[int, int]  # a server, and its number for a part of a key


class PushRecord(NamedTuple):
    """The ``round``-th push of worker ``rank`` to ``part``, when it began to arrive and had arrived, and its bytes."""

    part: int
    rank: int
    round: int
    start: float
    end: float
    nbytes: int = 0  # of a part that has no elements


class VersionRecord(NamedTuple):
    """A new ``version`` of ``part``, with the added pushes ``(rank, round)``."""

    part: int
    version: int
    pushes: list
    start: float
    end: float


class PullRecord(NamedTuple):
    """A pull of worker ``rank`` that got ``version`` of ``part``, or rows of it, after ``round`` of its pushes."""

    part: int
    rank: int
    round: int
    version: int
    start: float = 0.0
    end: float = 0.0
    nbytes: int | None = None  # of some rows; None: of the whole part


class LossRecord(NamedTuple):
    """The loss of worker ``rank``: silent from ``start`` on, it counted as lost from ``end`` on."""

    rank: int
    start: float
    end: float


KINDS = {"pushes": PushRecord, "versions": VersionRecord, "pulls": PullRecord, "losses": LossRecord}
NAMES = {kind: name for name, kind in KINDS.items()}


class Record:
    """The rows that one server has recorded, with times of its monotonic clock."""

    def __init__(self):
        self._rows = {kind: deque(maxlen=ROWS) for kind in KINDS.values()}
        self._count = count()

    def add(self, row: PushRecord | VersionRecord | PullRecord | LossRecord) -> None:
        self._rows[type(row)].append((next(self._count), row))  # a deque needs no lock

    def as_metadata(self, rule: str | None, start: int = 0) -> dict:
        """Return a page of rows as JSON, from row ``start`` on, and where the next page begins."""
        page = {"rows": {name: [] for name in KINDS}, "rule": rule, "now": time.monotonic(), "next": None}
        left = PAGE
        for number, row in self._since(start):
            if left < 0:
                return page | {"next": number}
            page["rows"][NAMES[type(row)]].append(row)
            left -= len(json.dumps(row))
        return page

    def _since(self, start: int) -> list[tuple[int, NamedTuple]]:
        for _ in range(3):
            try:
                return sorted(row for rows in self._rows.values() for row in rows if row[0] >= start)
            except RuntimeError:  # another thread has added a row
                continue
        raise Refused(text("store.too-much"))


class ServerRecord(NamedTuple):
    """The record of one server, as a worker reads it."""

    pushes: list[PushRecord]
    versions: list[VersionRecord]
    pulls: list[PullRecord]
    losses: list[LossRecord]
    rule: str | None

    @classmethod
    def read(cls, pages: Sequence[Mapping], ahead: float) -> "ServerRecord":
        """Join the ``pages`` of a server whose clock is ``ahead`` of the first server's by so many seconds."""
        rows = {name: [kind(*row) for page in pages for row in page["rows"][name]] for name, kind in KINDS.items()}
        for name in rows:
            rows[name] = [row._replace(start=row.start - ahead, end=row.end - ahead) for row in rows[name]]
        return cls(**rows, rule=pages[-1]["rule"])

    def of(self, part: int) -> "ServerRecord":
        """Return the record of one part, with its versions and pulls in order."""
        pushes, versions, pulls = ([row for row in rows if row.part == part] for rows in self[:3])
        versions.sort(key=lambda row: row.version)
        return ServerRecord(pushes, versions, sorted(pulls, key=lambda row: row.start), self.losses, self.rule)


def trace(
    kind: str, workers: int, servers: Mapping[int, ServerRecord], sizes: Mapping[Place, int], rounds: int
) -> Trace:
    """Return the trace of the last ``rounds`` of one key; ``sizes`` are the bytes of its parts."""
    records = {(server, number): servers[server].of(number) for server, number in sizes}
    shown = sorted({row.round for record in records.values() for row in record.pushes})[-rounds:]
    if not shown:
        raise Refused(text("store.nothing-pushed"))
    total, events = sum(sizes.values()), []

    def name(clock: int, server: int) -> str:
        return f"{clock}.{server}" if len(sizes) > 1 else str(clock)

    share = {
        name(clock, server): Fraction(nbytes, total * len(shown))
        for clock in shown
        for (server, _), nbytes in sizes.items()
    }
    for (server, number), nbytes in sizes.items():
        names = {clock: name(clock, server) for clock in shown}
        events += _events(f"server{server}", nbytes, records[server, number], names)
    first = min(event.start for event in events)
    events += _losses([row for record in records.values() for row in record.losses], first, events, shown[0])
    step = {clock: i for i, clock in enumerate(shown, 1)}
    events = [
        replace(e, step=step[e.step], start=e.start - first, end=e.end - first, key=e.key or next(iter(share)))
        for e in events
    ]
    events.sort(key=lambda event: (event.start, event.end))
    ranks, nodes = [f"worker{i}" for i in range(workers)], [f"server{server}" for server, _ in sizes]
    ends = [pair for rank in ranks for server in nodes for pair in ((rank, server), (server, rank))]
    links = tuple(Link(*pair, Bandwidth("inf")) for pair in ends)
    topology = Topology("pairs", dict.fromkeys([*ranks, *nodes], "machine"), links)
    plan = Plan([*ranks, *nodes], share, [[] for _ in shown], holds=ranks, wants=[])
    return Trace(kind, plan, topology, total * len(shown), tuple(events))


def _events(server: str, nbytes: int, record: ServerRecord, names: Mapping[int, str]) -> list[Event]:
    """Return the events of one part, with rounds as steps and times of the server; ``names`` are those of rounds."""
    events = []

    def add(kind: str, clock: int, row, src: str, dst: str, op: str, size: float, *carried: int) -> None:
        carries = tuple(f"worker{rank}" for rank in carried) or None
        events.append(Event(kind, clock, row.start, row.end, src, dst, names[clock], op, size, carries))

    for row in record.pushes:
        if row.round in names:
            add("send", row.round, row, f"worker{row.rank}", server, "add", row.nbytes, row.rank)
    inside: dict[int, dict[int, list[int]]] = {0: {}}  # version → round → ranks whose pushes are in it
    for row in record.versions:
        before = inside.get(row.version - 1, inside[max(inside)])
        inside[row.version] = now = {clock: list(ranks) for clock, ranks in before.items()}
        for rank, clock in row.pushes:
            now.setdefault(clock, []).append(rank)
        clock = max((clock for _, clock in row.pushes), default=None)
        if record.rule and clock in names:
            add("update", clock, row, server, server, record.rule, nbytes)
    last: dict[int, dict[int, list[int]]] = {}  # rank → contents of its last pull
    for row in record.pulls:
        now, before = inside.get(row.version, {}), last.get(row.rank, {})
        visible = [clock for clock in now if clock in names]
        news = [clock for clock in visible if now[clock] != before.get(clock)] or visible[-1:]
        last[row.rank] = now
        size = (nbytes if row.nbytes is None else row.nbytes) / max(1, len(news))
        for clock in sorted(news):  # one message, shown as the rounds that are new in it
            add("send", clock, row, server, f"worker{row.rank}", "copy", size, *sorted(now[clock]))
    return events


def _losses(rows: Sequence[LossRecord], first: float, events: Sequence[Event], clock: int) -> list[Event]:
    """Return two events per lost worker: it is waited for, and then, until the end of the trace, no longer."""
    found: dict[int, LossRecord] = {}
    for row in sorted(rows, key=lambda row: row.start):  # each server notices it
        found.setdefault(row.rank, row)
    until, gone = max([*(e.end for e in events), *(row.end for row in found.values())]), []
    for row in found.values():
        for start, end in ((row.start, row.end), (row.end, until)):
            if max(start, first) < end:
                node = f"worker{row.rank}"
                gone.append(Event("gone", clock, max(start, first), end, node, node, "", "gone", 0))
    return gone


class Pull(NamedTuple):
    """A pull of worker ``rank`` after ``clock`` pushes of its own: it had the first ``seen[i]`` pushes of worker i."""

    rank: int
    clock: int
    seen: tuple[int, ...]

    @property
    def behind(self) -> int:
        """The number of pushes by which the slowest worker was behind."""
        return self.clock - min(self.seen)


def pulls(workers: int, servers: Mapping[int, ServerRecord], places: Sequence[Place]) -> list[Pull]:
    """Return the pulls of a key, each over all its parts, in the order of their answers."""
    seen: dict[tuple[int, int], tuple[float, list[int]]] = {}  # (rank, round) → its end, and its pushes by worker
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
