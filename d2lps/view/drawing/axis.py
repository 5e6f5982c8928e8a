"""The axis of time below the rows of a still: runs of one race share it, so that a shorter run is a shorter line."""

from collections.abc import Sequence

from d2lps.units import show_seconds
from d2lps.view.drawing.svg import area, tag, words

LETTER, GAP = 6.6, 8.0  # the width of a letter on the axis, and the least distance of two words


def shared_part(scene, beside: Sequence) -> float:
    """Return the part of the axis that a run takes: 1 for the longest of those ``beside`` it, and for one alone."""
    longest = max((each.trace.duration for each in (scene, *beside)), default=0.0)
    return scene.trace.duration / longest if scene.trace.duration else 1.0


def ended(left: float, top: float, room: float, length: float, height: float) -> str:
    """Draw the rest of the axis, after the end of a run that is shorter than another one."""
    if length >= room:
        return ""
    rest = tag("rect", x=left, y=top, width=room, height=height, **area("box", 0))
    return rest + tag("rect", x=left + length, y=top, width=2, height=height, **area("ink"))


def axis(at: float | None, end: float, left: float, length: float, room: float, y: float) -> list[str]:
    """Write the moment below the play-head, if there is one, and the ends of the run where they have room.

    The run takes ``length`` of the ``room``.
    """
    parts, taken, last = [], left, show_seconds(end)  # up to `taken` there are words
    if at is not None:
        half = LETTER * len(show_seconds(at)) / 2
        x = min(max(left + (length * at / end if end else length), left + half), left + room - half)
        parts.append(words(show_seconds(at), x, y, "note", "ink", font_weight=600))
        taken = x + half + GAP
    if at is None or taken - 2 * (half + GAP) >= left + LETTER:
        parts.append(words("0", left, y, "note", "soft", None))
        taken = max(taken, left + LETTER + GAP)
    right = max(taken + LETTER * len(last), left + length)
    if (at is None or at < end) and right <= left + room + 1:
        parts.append(words(last, right, y, "note", "soft", "end"))
    return parts
