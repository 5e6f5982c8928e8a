"""Where the time of a step went: parts that add up to it, and who waited for whom.

Each moment of a step belongs to one part: to a product of matrices if one is under way, else to another kernel, else to
a message, else to a copy, else to waiting for data; what is left is idle. (Without a GPU, waiting for data comes first:
it consists of operators.) So messages count only while nothing else hides them. A message whose group has not all
arrived is no message yet: that time is ``waiting``, or ``bubble`` if it is a message between two stages.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from d2lps.profile.reading import Message, Profile

Spans = list[tuple[int, int]]  # of nanoseconds
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")  # end at one time for all


@dataclass
class Parts:
    """The parts of one step of one rank, in seconds.

    Args:
        rank, step: Whose.
        seconds: How long it took.
        parts: ``matrices``, ``others``, the kinds of exposed messages, ``waiting``, ``bubble``, ``copies``,
            ``loading`` and ``idle``: they add up to ``seconds``.
        hidden: Kind of message → how long it ran beside matrices or other kernels.
        waited: Another rank → how long this one waited for it.
        groups: Kind of message → the ranks of its group, if they are known.
    """

    rank: int
    step: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the same moments as spans that do not touch, in order."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > start:
            merged.append((start, end))
    return merged


def without(spans: Spans, others: Spans) -> Spans:
    """Return the moments of ``spans`` that are in no span of ``others``; both as :func:`union` returns them."""
    left, i = [], 0
    for start, end in spans:
        while i < len(others) and others[i][1] <= start:
            i += 1
        j = i
        while j < len(others) and others[j][0] < end:
            if others[j][0] > start:
                left.append((start, others[j][0]))
            start = max(start, others[j][1])
            j += 1
        if end > start:
            left.append((start, end))
    return left


def lasts(spans: Spans) -> float:
    """Return the seconds of spans."""
    return sum(end - start for start, end in spans) / 1e9


def matched(profiles: Sequence[Profile]) -> tuple[list[dict[int, Message]], dict[int, int]]:
    """Return the collectives of which two ranks or more were recorded, and how their clocks differ.

    Ranks call the collectives of a group in one order: the third of a step on one rank is the third on the others. Left
    out is what not all of them have equally often in a step, and what one has ended before another has begun: this is
    not the same collective, or no rank has waited for it.

    Returns:
        meetings (list of dicts): Rank → its message.
        clocks: Rank → the nanosecond that its profile has at a common moment.
    """
    meetings = _pairs(profiles)
    clocks = aligned(profiles, meetings)

    def at_once(meeting: dict[int, Message]) -> bool:
        begun = max(message.start - clocks[rank] for rank, message in meeting.items())
        return begun <= min(message.end - clocks[rank] for rank, message in meeting.items())

    return [meeting for meeting in meetings if at_once(meeting)], clocks


def _pairs(profiles: Sequence[Profile]) -> list[dict[int, Message]]:
    """Return rank → its message, for the messages that have the same place in a step on all ranks."""
    found: dict[tuple, dict[int, list[Message]]] = defaultdict(lambda: defaultdict(list))
    present = {profile.rank for profile in profiles}
    world = max(profile.world for profile in profiles)
    everyone = tuple(range(world)) or tuple(sorted(present))
    for profile in profiles:
        for number, (start, end) in profile.steps.items():
            for message in profile.messages:
                if start <= message.start < end:
                    ends = message.ends if message.collective == "p2p" else ()
                    key = number, message.group or everyone, message.role, message.collective, ends
                    found[key][profile.rank].append(message)
    meetings = []
    for (_, group, _, collective, ends), members in found.items():
        expected = present & {*group}
        alone = collective == "p2p" and not ends and len(group) > 2
        if len(expected) > 1 and members.keys() == expected and not alone and len({*map(len, members.values())}) == 1:
            meetings += [dict(zip(members, row, strict=True)) for row in zip(*members.values(), strict=True)]
    return meetings


def aligned(profiles: Sequence[Profile], meetings: Sequence[dict[int, Message]]) -> dict[int, int]:
    """Return rank → the nanosecond that its profile has at a common moment; ranks of one host share a clock.

    A collective ends on all its ranks at one time, so the median difference between their ends is that of the clocks.
    """
    base = {profile.rank: profile.base for profile in profiles}
    hosts = {profile.rank: profile.host or f"rank {profile.rank}" for profile in profiles}
    apart: dict[tuple[str, str], list[int]] = defaultdict(list)
    for meeting in meetings:
        if next(iter(meeting.values())).collective in TOGETHER:
            for one in meeting:
                for other in meeting:
                    if hosts[one] != hosts[other]:
                        apart[hosts[one], hosts[other]].append(
                            meeting[other].end + base[other] - meeting[one].end - base[one]
                        )
    ahead: dict[str, int] = {}
    for host in hosts.values():  # hosts that no collective joins keep their clocks
        todo = [] if host in ahead else [host]
        ahead.setdefault(host, 0)
        while todo:
            here = todo.pop(0)
            for (near, far), differences in apart.items():
                if near == here and far not in ahead:
                    ahead[far] = ahead[here] + round(median(differences))
                    todo.append(far)
    earliest = min(base.values())
    return {rank: ahead[host] - base[rank] + earliest for rank, host in hosts.items()}


def divide(profiles: Sequence[Profile]) -> list[Parts]:
    """Return the parts of each step of each rank.

    Args:
        profiles: As :func:`~d2lps.profile.read` returns them.

    Returns:
        By rank, then by step.
    """
    meetings, clocks = matched(profiles)
    last: dict[tuple[int, Message], tuple[int, int]] = {}  # rank and message → when the last one came, and who
    for meeting in meetings:
        came, who = max((message.start - clocks[rank], rank) for rank, message in meeting.items())
        for rank, message in meeting.items():
            last[rank, message] = came + clocks[rank], who
    return [
        _divided(profile, number, start, end, last)
        for profile in profiles
        for number, (start, end) in profile.steps.items()
    ]


def _divided(profile: Profile, number: int, start: int, end: int, last: dict) -> Parts:
    step = Parts(profile.rank, number, (end - start) / 1e9)
    covered: Spans = []

    def take(part: str, spans: Iterable[tuple[int, int]]) -> float:
        """Give the part what no part has so far, and return its seconds."""
        nonlocal covered
        fresh = without(union(spans), covered)
        covered = union([*covered, *fresh])
        if fresh:
            step.parts[part] = step.parts.get(part, 0.0) + lasts(fresh)
        return lasts(fresh)

    step.parts |= {"matrices": 0.0, "others": 0.0}
    if not profile.gpu:  # the operators that stack examples are part of the loading
        take("loading", profile.loading.within(start, end))
    take("matrices", profile.matrices.within(start, end))
    take("others", profile.others.within(start, end))
    computing = covered
    sent = [message for message in profile.messages if message.start < end and message.end > start]
    waits: dict[tuple[str, int], Spans] = defaultdict(list)
    moves: dict[str, Spans] = defaultdict(list)
    for message in sent:
        came, who = last.get((profile.rank, message), (message.start, profile.rank))
        here, there = max(message.start, start), min(message.end, end)
        came = min(max(came, here), there)
        waits["bubble" if message.collective == "p2p" else "waiting", who].append((here, came))
        moves[message.name].append((came, there))
        step.groups.setdefault(message.name, message.group)
    for name, spans in moves.items():
        step.hidden[name] = lasts(union(spans)) - lasts(without(union(spans), computing))
        take(name, spans)
    for (part, who), spans in waits.items():
        step.waited[who] = step.waited.get(who, 0.0) + take(part, spans)
    step.waited = {rank: seconds for rank, seconds in step.waited.items() if seconds}
    take("copies", profile.copies.within(start, end))
    take("loading", profile.loading.within(start, end))
    step.parts["idle"] = lasts(without([(start, end)], covered))
    return step
