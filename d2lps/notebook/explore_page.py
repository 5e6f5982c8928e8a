"""The report of ``explore`` below its sliders, and the page that replaces sliders without a kernel.

On that page the reader can choose among a few positions of the sliders. They are computed in advance and compressed
together, so that the page stays small; each slider moves alone, since there are too many combinations.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from d2lps.messages import LANGUAGES, html_language, language, named, only, text
from d2lps.notebook.predict import Bar, chart
from d2lps.trace import Trace
from d2lps.view.drawing import DrawingError
from d2lps.view.drawing.lanes import Lanes
from d2lps.view.drawing.motion import plan_of
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.theme import STYLE, THIN, styled
from d2lps.view.player import LOOKS, MODULE, data, sheet, staged, stills
from d2lps.view.tables import plan_table

CHOOSE = Path(__file__).with_name("explore.js").read_text("utf-8")
# Pictures of more messages than this, in all, would take too long: only numbers are shown.
MOST_MESSAGES = 600
LARGEST = 165_000  # bytes of a page, in English; positions that would make it larger are not offered


class Offer(NamedTuple):
    """A slider: name, words, current positions of all sliders, other positions (most instructive first), labels."""

    name: str
    says: str
    now: dict[str, Any]
    others: list[object]
    labels: dict[object, str]
    at_once: int = 1  # how many of the others are as instructive as the first


Content = Callable[[dict[str, Any]], dict]  # positions of all sliders → "report", and perhaps "data" and "stills"


def can_race(traces: dict[str, Trace]) -> bool:
    """Return True if there are messages to play, and not too many."""
    return 0 < sum(len(trace.events) for trace in traces.values()) <= MOST_MESSAGES


def report(traces: dict[str, Trace], refused: dict[str, str]) -> str:
    """Return times as bars, errors, and the folded plans, as HTML."""
    bars = {
        named(name): [Bar("model", text("table.shared"), 1e3 * trace.duration, "ms")] for name, trace in traces.items()
    }
    parts = [chart(bars)] if bars else []
    if traces and not can_race(traces):
        parts.append(f"<p>{escape(text('explore.too-many', most=MOST_MESSAGES))}</p>")
    parts += [f"<p>✗ {escape(f'{named(name)}: {why}'.removeprefix(': '))}</p>" for name, why in refused.items()]
    for name, trace in traces.items():
        summary = escape(text("explore.says-plan", name=named(name)))
        parts.append(f"<details><summary>{summary}</summary>{plan_table(plan_of(trace))}</details>")
    return f'<div class="d2lps-explore" lang="{html_language()}">{"".join(parts)}</div>'


LOOK = """.d2lps-explored>[role=group]{display:flex;flex-wrap:wrap;gap:4px 8px;align-items:center;margin:4px 0}
.d2lps-explored>[role=group]>span{min-width:9em}
@media (max-width:520px){.d2lps-explored>[role=group]>span{flex-basis:100%}}
.d2lps-explored [data-shows]{min-height:36px;padding:2px 14px;border:1px solid currentColor;border-radius:18px;
background:none;color:inherit;font:inherit;cursor:pointer}
.d2lps-explored [aria-pressed=true]{font-weight:700;box-shadow:inset 0 0 0 2px currentColor}
.d2-dials{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,200px),1fr));gap:4px 28px}
.d2-dials label{display:grid;grid-template-columns:auto 1fr;gap:0 10px}
.d2-dials output{font-weight:700;text-align:right}
.d2-dials input{grid-column:1/-1;width:100%;height:32px;margin:0;cursor:pointer;
accent-color:light-dark(#1952af,#7fb0ff)}
.d2-verdict p{margin:4px 0;font-size:15px;line-height:1.5}
@container (min-width:860px){
.d2-verdict~.d2-chosen .d2-runs{grid-template-columns:repeat(3,minmax(0,1fr))}
/* Runs of many nodes have room for their names and bytes. */
.d2-verdict~.d2-chosen .d2-player:has(>.d2-more) .d2-runs{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media print{.d2-dials{display:none}}
"""
LOOK += Path(__file__).with_name("bet.css").read_text("utf-8")


def page(offers: list[Offer], make: Content, cache: "dict[tuple, dict]", first: str = "") -> str:
    """Return the page: the content for the current positions, and buttons for other positions.

    ``cache`` stores the content of each position in each language; ``first`` is a bet, of :func:`bet`, that comes
    before.
    """

    def content(values: dict[str, object]) -> dict:
        key = (language(), *values.values())
        if key not in cache:
            cache[key] = make(values)
        return cache[key]

    offered = only(LANGUAGES[0], lambda: _offered(offers, content))  # the same for the readers of all languages
    now = content(offers[0].now)
    summary = now["report"]
    packed = [_packed(now), *(_packed(content(offers[i].now | {offers[i].name: value})) for i, value in offered)]
    numbers = {(offers[i].name, value): number for number, (i, value) in enumerate(offered, 1)}
    frame = len((LOOKS + LOOK + MODULE + CHOOSE + summary + "".join(packed)).encode())
    pictures = sheet(now["data"], now["stills"]) if "data" in now else ""  # shown until the script runs
    pictures = pictures if frame + len(pictures.encode()) <= LARGEST else ""
    rows = "".join(_row(offer, numbers) for offer in offers if any(name == offer.name for name, _ in numbers))
    name = "d2lps-" + hashlib.sha256("".join(packed).encode()).hexdigest()[:12]
    inside = (
        f'<p>{escape(text("explore.in-advance"))}</p>{rows}<div class="d2-chosen">{pictures}</div><div>{summary}</div>'
    )
    start = _starts(name, first)
    return (
        f'<div id="{name}" class="d2lps-explored{" d2-bets" * bool(first)}" lang="{html_language()}">'
        f"<style>{LOOKS}{LOOK}</style>{_after(first, inside)}"
        f'<script type="application/json">{json.dumps(packed)}</script></div>'
        f'<script type="module">{MODULE}\n{CHOOSE}\n{start}</script>'
    )


def bet(choices: dict[str, str], hero: str = "", beside: str = "") -> str:
    """Return what comes before a race: a question, and a card to bet on for each run.

    Args:
        choices: The name of each run, and a sentence about it.
        hero: A picture, as HTML.
        beside: What stands below the question, as HTML.
    """
    cards = "".join(
        f'<button type="button" value="{escape(name)}" disabled><b>{escape(name)}</b><span>{escape(says)}</span>'
        "<output></output></button>"
        for name, says in choices.items()
    )
    said = {key: escape(text(f"explore.bet-{key}", name="{name}")) for key in ("right", "wrong")}
    return (
        f'<div class="d2-opens">{hero}<div><button type="button" class="d2-ask">{escape(text("explore.bet"))}</button>'
        f'{beside}</div></div><div class="d2-cards" role="group" aria-label="{escape(text("explore.bet-on"))}">'
        f"<p>{escape(text('explore.bet-on'))}</p>{cards}</div>"
        f'<p class="d2-outcome" role="status" data-right="{said["right"]}" data-wrong="{said["wrong"]}"></p>'
    )


def _after(first: str, inside: str) -> str:
    """Return the content of a page, behind a bet if there is one."""
    return f'{first}<div class="d2-raced">{inside}</div>' if first else inside


def _starts(name: str, first: str) -> str:
    """Return the script that starts a page."""
    start = "bet" if first else "choose"
    return f"document.querySelectorAll('#{name}:not([data-plays])').forEach((root) => {start}(root, play));"


def dials(controls: dict, make: Content, more: str = "", first: str = "") -> tuple[str, dict[str, str]]:
    """Return the page whose sliders take all positions, and scripts with their contents.

    Args:
        controls (dict of str to widget): The sliders, each with its ``options`` and ``value``.
        make: Makes the content of one position of all sliders.
        more: The stem of scripts with the contents, one for each position of the first slider, which the page loads
            when they are needed; if empty, the page has all contents.
        first: A bet, of :func:`bet`, that comes before.

    Returns:
        HTML, and file name → JavaScript.
    """
    grid = product(*([value for _, value in control.options] for control in controls.values()))
    contents = [make(dict(zip(controls, values, strict=True))) for values in grid]
    rows, start = [], 0
    for control in controls.values():
        labels, at = [label for label, _ in control.options], control.index
        start = start * len(labels) + at
        look = f'min="0" max="{len(labels) - 1}" value="{at}" aria-valuetext="{escape(labels[at])}"'
        kept = f"data-labels='{escape(json.dumps(labels, ensure_ascii=False))}'"
        says = f"<span>{escape(control.description)}</span><output>{escape(labels[at])}</output>"
        rows.append(f'<label>{says}<input type="range" {look} {kept}></label>')
    now, packed = contents[start], [_packed(content) for content in contents]
    pictures = sheet(now["data"], now["stills"]) if "data" in now else ""
    inside = json.dumps({start: packed[start]} if more else packed)
    name = "d2lps-" + hashlib.sha256("".join(packed).encode()).hexdigest()[:12]
    per = len(packed) // len(next(iter(controls.values())).options)  # positions for each of the first slider
    body = (
        f'<div class="d2-dials">{"".join(rows)}</div><div class="d2-verdict">{now["report"]}</div>'
        f'<div class="d2-chosen">{pictures}</div>'
    )
    form = (
        f'<div id="{name}" class="d2lps-explored{" d2-bets" * bool(first)}" lang="{html_language()}" '
        f'data-more="{more}" data-per="{per}"><style>{LOOKS}{LOOK}</style>{_after(first, body)}'
        f'<script type="application/json">{inside}</script></div>'
        f'<script type="module">{MODULE}\n{CHOOSE}\n{_starts(name, first)}</script>'
    )
    files = {
        f"{more}-{at // per}.js": f"(window.d2Positions??={{}})[{at // per}]={json.dumps(packed[at : at + per])};\n"
        for at in range(0, len(packed), per)
    }
    return form, files if more else {}


def _offered(offers: list[Offer], content: Content) -> list[tuple[int, object]]:
    """Return the other positions that fit on a page: (number of the slider, value)."""
    first = content(offers[0].now)
    size = len((LOOKS + LOOK + MODULE + CHOOSE + first["report"] + _packed(first)).encode())
    size += 4000  # the buttons, and the sentence above them
    offered = []
    for turn in range(max(len(offer.others) for offer in offers)):  # the first of each slider, then the second …
        for i, offer in enumerate(offers):
            for value in offer.others[turn * offer.at_once : (turn + 1) * offer.at_once]:
                other = content(offer.now | {offer.name: value})
                more = len(_packed(other))
                if other != first and size + more <= LARGEST:
                    offered.append((i, value))
                    size += more + 4
    return offered


def raced(traces: dict[str, Trace], refused: dict[str, str]) -> dict:
    """Return the content of one position of the sliders of ``explore``: its report, and its race if it can be drawn."""
    if not can_race(traces):
        return {"report": report(traces, refused)}
    try:
        return {"report": report(traces, refused)} | pictured(traces)
    except DrawingError as error:
        return {"report": report(traces, refused | {"": str(error)})}


def pictured(traces: dict[str, Trace], scenes: "list[Scene] | list[Lanes] | None" = None) -> dict:
    """Return the data and pictures of a race; raise DrawingError if they cannot be drawn."""
    scenes, names = scenes or staged([*traces.values()]), [named(name) for name in traces]
    page = data.page(scenes, names)
    plain = [styled(still.replace(f"<style>{STYLE + THIN}</style>", "")) for still in stills(page, scenes)]
    return {"stills": plain, "data": page}


def _packed(content: dict) -> str:
    return base64.b64encode(zlib.compress(json.dumps(content, ensure_ascii=False).encode(), 9)).decode()


def _row(offer: Offer, numbers: dict[tuple[str, object], int]) -> str:
    """Return a slider as buttons: its current position, and the positions offered."""
    buttons = []
    for value, label in offer.labels.items():
        current = value == offer.now[offer.name]
        if current or (offer.name, value) in numbers:
            number, pressed = 0 if current else numbers[offer.name, value], str(current).lower()
            look = f'type="button" data-shows="{number}" aria-pressed="{pressed}"'
            buttons.append(f"<button {look}>{escape(label)}</button>")
    says = escape(offer.says)
    return f'<div role="group" aria-label="{says}"><span>{says}</span> {"".join(buttons)}</div>'
