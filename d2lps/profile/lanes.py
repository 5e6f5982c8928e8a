"""A step of a profile as a schedule: a node per stream, a task for what it did, and messages for its collectives."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from d2lps.messages import text
from d2lps.plan.acts import Send
from d2lps.profile.parts import Spans, matched, union, without
from d2lps.profile.reading import Message, Profile, ProfileError
from d2lps.schedule import Schedule, Task, Value

MOST = 400  # tasks of a lane: more cannot be told apart
LETTERS = {"matrices": "M", "others": "K", "copies": "C", "messages": "A"}


class Seen(NamedTuple):
    """A step as a schedule: for each of its acts, when it began and ended (seconds), and its bytes."""

    schedule: Schedule
    times: list[tuple[float, float, int]]


def seen(profiles: Sequence[Profile], step: int | None = None) -> Seen:
    """Return one step of all ranks, by one clock.

    Args:
        profiles: As :func:`~d2lps.profile.read` returns them.
        step: Its number; the middle one if left out.

    Returns:
        Tasks are ``M`` (products of matrices), ``K`` (other kernels), ``C`` (copies) and ``A`` (a message, with a
            number that all ranks of a collective share). As a profile does not say which way bytes went, each rank of a
            collective sends to the next one, from when the last came.

    Raises:
        ProfileError: If not all have this step.
    """
    common = sorted(set.intersection(*({*profile.steps} for profile in profiles)))
    number = common[len(common) // 2] if step is None and common else step
    if number is None or number not in common:
        raise ProfileError(text("profile.no-step", step=number, steps=" ".join(map(str, common)) or "–"))
    meetings, clocks = matched(profiles)
    begin = min(profile.steps[number][0] - clocks[profile.rank] for profile in profiles)
    rows: list[tuple[int, int, Task]] = []
    homes: dict[tuple[int, Message], tuple[str, str]] = {}  # rank and message → its lane and number
    shared = {(rank, message): i for i, meeting in enumerate(meetings) for rank, message in meeting.items()}
    numbers: dict[object, str] = {}
    nodes: list[str] = []
    for profile in profiles:
        offset, (start, end) = clocks[profile.rank] + begin, profile.steps[number]
        for name, lane in sorted(zip(profile.lanes, range(len(profile.lanes)), strict=True), key=_number):
            node, found = f"rank{profile.rank}/{name}", []
            for letter, spans in _shown(profile, lane, start, end).items():
                found += [(a - offset, b - offset, Task(node, letter, "")) for a, b in spans]
            for message in (each for each in profile.messages if each.lane == lane and start <= each.start < end):
                which = shared.get((profile.rank, message), (profile.rank, message))
                label = numbers.setdefault(which, str(len(numbers)))
                homes[profile.rank, message] = node, label
                found.append((message.start - offset, message.end - offset, Task(node, "A", label)))
            nodes += [node] if found else []
            rows += found
    sends: list[tuple[int, int, Send, int]] = []
    for meeting in meetings:
        if not all(pair in homes for pair in meeting.items()):
            continue
        came = max(message.start - clocks[rank] for rank, message in meeting.items()) - begin
        ring = sorted(meeting)
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            (src, label), (dst, _) = homes[one, meeting[one]], homes[other, meeting[other]]
            ends = max(came, meeting[other].end - clocks[other] - begin)
            sends.append((came, ends, Send(src, dst, f"A{label}.{one}", "copy"), meeting[one].nbytes))
    return _schedule(nodes, sorted(rows), sends)


def _number(named: tuple[str, int]) -> tuple[str, int]:
    """Return the parts of the name of a lane by which lanes are in order."""
    word = named[0].rstrip("0123456789")
    return word, int(named[0].removeprefix(word) or 1)


def _schedule(nodes: list[str], rows: list[tuple[int, int, Task]], sends: list[tuple[int, int, Send, int]]) -> Seen:
    acts: list[Task | Send] = [task for *_, task in rows]
    acts += [send for _, _, send, _ in sends]
    values = {send.key: Value(0) for _, _, send, _ in sends}
    holds = [(send.src, send.key) for _, _, send, _ in sends]
    times = [(start / 1e9, end / 1e9, 0) for start, end, _ in rows]
    times += [(start / 1e9, end / 1e9, nbytes) for start, end, _, nbytes in sends]
    return Seen(Schedule(nodes, values, acts, holds), times)


def _shown(profile: Profile, lane: int, start: int, end: int) -> dict[str, Spans]:
    """Return letter → spans of a lane that do not overlap; short ones become parts of their neighbors."""
    spans: dict[str, Spans] = {}
    covered: Spans = []
    for part in ("matrices", "others", "copies"):
        spans[LETTERS[part]] = without(union(getattr(profile, part).within(start, end, lane)), covered)
        covered = union([*covered, *spans[LETTERS[part]]])
    blocks = sorted((a, b, letter) for letter, found in spans.items() for a, b in found)
    fine = 0
    while len(blocks) > MOST:
        fine = 2 * fine or (end - start) // 4096 + 1
        blocks = _coarse(blocks, fine)
    drawn: dict[str, Spans] = defaultdict(list)
    for a, b, letter in blocks:
        drawn[letter].append((a, b))
    return drawn


def _coarse(blocks: list[tuple[int, int, str]], fine: int) -> list[tuple[int, int, str]]:
    """Merge blocks with less than ``fine`` nanoseconds between them; the letter that lasts longer names the whole."""
    groups: list[list[tuple[int, int, str]]] = []
    for block in blocks:
        last = groups[-1] if groups else []
        near = last and block[0] - last[-1][1] < fine
        short = near and (block[2] == last[-1][2] or block[1] - block[0] < fine or last[-1][1] - last[0][0] < fine)
        if short:
            last.append(block)
        else:
            groups.append([block])
    merged = []
    for group in groups:
        lasting: dict[str, int] = defaultdict(int)
        for a, b, letter in group:
            lasting[letter] += b - a
        merged.append((group[0][0], max(b for _, b, _ in group), max(lasting, key=lambda letter: lasting[letter])))
    return merged
