"""The legend: an entry for each mark that a picture uses, and for no other."""

import re
from collections.abc import Sequence
from pathlib import Path
from unicodedata import east_asian_width

from d2lps.messages import text
from d2lps.plan import sends
from d2lps.topology import Link
from d2lps.units import show_size
from d2lps.view.drawing import lanes
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import area, corners, escape, hatch, line, rect, shift, stroke, tag, words, worker
from d2lps.view.drawing.theme import LIGHT
from d2lps.view.drawing.traffic import BUSY, FULL

LOOKS = (Path(__file__).parent / "legend.css").read_text("utf-8")  # of a legend in HTML
WIDE, HIGH = 26.0, 16.0  # the size of a mark
LINE = 17.0


def marks(shown: Sequence[Scene | lanes.Lanes]) -> list[tuple[str, str]]:
    """Return (mark, meaning) for all that is ever ``shown``; a mark is a piece of SVG of 26 × 16."""
    if tables := [scene for scene in shown if isinstance(scene, lanes.Lanes)]:
        return lanes.marks(tables)
    scenes = [scene for scene in shown if isinstance(scene, Scene)]
    looks = [look for scene in scenes for look in scene.motion.looks if look.who]
    messages = [message for scene in scenes for message in scene.motion.messages]
    updates = [event for scene in scenes for event in scene.trace.events if event.kind == "update"]
    are_lanes = [[isinstance(place, Link) for place in scene.motion.sharing] for scene in scenes]
    states = {
        c.after for scene, is_lane in zip(scenes, are_lanes, strict=True) for c in scene.load.states if is_lane[c.place]
    }
    senders = {scene.motion.color(m.src) for scene in scenes for m in scene.motion.messages}
    folded = any(scene.layout.widths for scene in scenes)
    added = any(each.op == "add" for scene in scenes for step in scene.plan.steps for each in sends(step))
    entries = {
        "worker": (looks and added, _cell()),
        "sender": (looks and not added, _cell()),
        "complete": (any(look.complete for look in looks), _cell() + tag("path", d=CELL, **stroke("done", 1.5))),
        "updated": (
            any(look.updated for look in looks),
            _cell() + tag("path", d=hatch(6, 1, 14, 14, 5), **stroke("new")),
        ),
        "working": (
            any(event.start < event.end for event in updates),
            tag("g", tag("rect", x=4, y=2, width=18, height=12, rx=3, **area("box", 2.5, "ink")), class_="d2-working"),
        ),
        "message": (messages, tag("path", d=rect(7, 2, 12, 12), **area("tile", 1)) + _slots(8.5, 3.5, 9, 3, 1)),
        "idle": (messages, _lane("lane", "", 1.2)),
        "busy": (BUSY in states, _lane("flow", "d2-busy", 2.75)),
        "full": (FULL in states, _lane("flow", "d2-busy d2-fast", 6)),
        "decides": (any(c.after >= 0 for scene in scenes for c in scene.load.deciding), _lane("warm", "d2-decides", 8)),
        "merged": (folded, words("×", 13, 13)),
        "load": (folded, _lane("flow", "d2-busy d2-fast", 6)),
        "backlog": (messages, "".join(tag("path", d=rect(2 + 11 * i, 5, 11, 6), **worker(i)) for i in range(2))),
        "timeline": (
            messages,
            tag("path", d=rect(1, 1, 14, 6), **worker(0)) + tag("path", d=rect(11, 9, 14, 6), **worker(1)),
        ),
        "server": (min(senders, default=0) < 0, tag("path", d=rect(3, 5, 20, 6), **area("soft"))),
        "gone": (any(scene.mortal for scene in scenes), _dead()),
        "update": (updates, tag("path", d=rect(9, 5, 8, 6), **area("ink"))),
    }
    unit = show_size(scenes[0].peak).split(" ")[1] if scenes else ""
    return [(mark, text(f"legend.{name}", unit=unit)) for name, (used, mark) in entries.items() if used]


def listed(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend as an HTML list."""
    icon = '<svg viewBox="0 0 26 16" aria-hidden="true">{}</svg>'
    return f"<ul>{''.join(f'<li>{icon.format(mark)}{escape(sentence)}</li>' for mark, sentence in entries)}</ul>"


def folded(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend as HTML that the reader unfolds; on paper it is open."""
    summary = tag("summary", escape(text("legend.title")))
    inside = tag("style", LOOKS) + tag("details", summary + listed(entries), class_="d2-legend")
    return tag("div", inside, class_="d2lps d2-below")


CELL = rect(6, 1, 14, 14)


def _slots(x: float, y: float, width: float, height: float, count: int) -> str:
    return "".join(tag("path", d=rect(x, y + (2 - i) * height, width, height), **worker(i)) for i in range(count))


def _cell() -> str:
    return tag("path", d=CELL, **area("well")) + _slots(6, 1, 14, 14 / 3, 3)


def _dead() -> str:
    box = tag("rect", x=4, y=1, width=18, height=14, rx=3, **area("box", 1))
    cross = tag("path", d=line((4, 1), (22, 15)) + line((22, 1), (4, 15)), **stroke("done", 2))
    return tag("g", box + cross, class_="d2-gone")


def _lane(color: str, state: str, width: float) -> str:
    """Draw a lane in that state, with its head."""
    look = stroke("lane", width, color) | ({} if state else {"stroke_dasharray": "5 3"})
    head = corners((20, 8), (15, 5), (15, 11))
    tip = tag("path", d=head, class_="d2-tip", fill=LIGHT["paper" if width > 3 else color])
    return tag("g", tag("path", d=line((0, 8), (26, 8)), **look) + tip, class_=state or None, style="--d2-wide:5.5")


def draw_legend(
    scenes: Sequence[Scene | lanes.Lanes], x: float, y: float, room: float, letter: float, columns: int = 1
) -> tuple[str, float]:
    """Return the legend from (x, y) on, at most ``room`` broad, and its height; ``letter`` is the width of a letter."""
    return draw_entries(marks(scenes), x, y, room, letter, columns)


def draw_entries(
    entries: Sequence[tuple[str, str]], x: float, y: float, room: float, letter: float, columns: int = 1
) -> tuple[str, float]:
    """Return a legend of (mark, meaning) like :func:`draw_legend`."""
    parts, ends = [], [y]
    long = -(-len(entries) // columns)
    for i, (mark, sentence) in enumerate(entries):
        if i and i % long == 0:
            ends.append(y)
        left, top = x + i // long * room / columns, ends.pop()
        parts.append(tag("g", mark, transform=shift(left, top)))
        for part in wrap(sentence, (room / columns - WIDE - 8) / letter):
            parts.append(words(part, left + WIDE + 8, top + 12, "note", "soft", None))
            top += LINE - 4
        ends.append(top + 4)
    return tag("g", "".join(parts), class_="d2-legend"), max(ends) - y


def wrap(sentence: str, letters: float) -> list[str]:
    """Break a sentence into lines of at most that many letters; Chinese, written without spaces, breaks anywhere.

    >>> wrap("a link in use", 9), wrap("正在传输的链路", 6)
    (['a link in', 'use'], ['正在传', '输的链', '路'])
    """
    lines = [""]
    for piece in re.findall(r"[\u2e80-\uffef][，。；：、）]?|[^\s\u2e80-\uffef]+| ", sentence):
        if _letters(lines[-1] + piece.strip()) > letters and lines[-1]:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.strip()
    return [line.strip() for line in lines]


def _letters(sentence: str) -> int:
    """Return the length of a sentence in letters; a Chinese letter is as broad as two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in sentence)
