"""What ``explore`` shows besides its sliders, and the page that stands for them where there is no kernel.

On that page a few positions of the sliders can be chosen. They have been worked out in advance and are packed
together, so that the page stays small; each slider is moved alone, since all positions together would be too many.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

from d2lps.messages import LANGUAGES, html_language, language, named, only, text
from d2lps.notebook.reveal import Bar, chart
from d2lps.trace import Trace
from d2lps.view.drawing import DrawingError
from d2lps.view.drawing.theme import STYLE, THIN
from d2lps.view.player import LOOKS, MODULE, data, sheet, staged, stills
from d2lps.view.tables import plan_table

CHOOSE = Path(__file__).with_name("explore.js").read_text("utf-8")
# Pictures of more messages than this, in all, take longer to make than a reader waits for: numbers alone then.
MOST_MESSAGES = 600
LARGEST = 136_000  # bytes of a page, in English; what would make it larger is not offered


class Offer(NamedTuple):
    """A slider: its name and words, where all sliders stand, other positions (the most telling first), all labels."""

    name: str
    says: str
    now: dict[str, object]
    others: list[object]
    labels: dict[object, str]
    at_once: int = 1  # how many of the others are as telling as the first


Run = Callable[[dict[str, object]], tuple[dict[str, Trace], dict[str, str]]]


def can_race(traces: dict[str, Trace]) -> bool:
    """Whether there is something to play, and not too much."""
    return 0 < sum(len(trace.events) for trace in traces.values()) <= MOST_MESSAGES


def told(traces: dict[str, Trace], refused: dict[str, str]) -> str:
    """Times as bars, refusals, and the plans, folded."""
    bars = {
        named(name): [Bar("model", text("table.shared"), 1e3 * trace.duration, "ms")] for name, trace in traces.items()
    }
    parts = [chart(bars)] if bars else []
    if traces and not can_race(traces):
        parts.append(f"<p>{escape(text('explore.too-many', most=MOST_MESSAGES))}</p>")
    parts += [f"<p>✗ {escape(f'{named(name)}: {why}'.removeprefix(': '))}</p>" for name, why in refused.items()]
    for name, trace in traces.items():
        summary = escape(text("explore.says-plan", name=named(name)))
        parts.append(f"<details><summary>{summary}</summary>{plan_table(trace.plan)}</details>")
    return f'<div class="d2lps-explore" lang="{html_language()}">{"".join(parts)}</div>'


LOOK = """.d2lps-explored>[role=group]{display:flex;flex-wrap:wrap;gap:4px 8px;align-items:center;margin:4px 0}
.d2lps-explored>[role=group]>span{min-width:9em}
@media (max-width:520px){.d2lps-explored>[role=group]>span{flex-basis:100%}}
.d2lps-explored [data-shows]{min-height:36px;padding:2px 14px;border:1px solid currentColor;border-radius:18px;
background:none;color:inherit;font:inherit;cursor:pointer}
.d2lps-explored [aria-pressed=true]{font-weight:700;box-shadow:inset 0 0 0 2px currentColor}"""


def page(offers: list[Offer], run: Run, made: "dict[tuple, dict]") -> str:
    """The page: the race where the sliders stand, and buttons for other positions.

    ``made`` remembers what was shown of each position in each language.
    """

    def shown(values: dict[str, object]) -> dict:
        key = (language(), *values.values())
        if key not in made:
            made[key] = _shown(*run(values))
        return made[key]

    had = only(LANGUAGES[0], lambda: _offered(offers, run, shown))  # the same for the readers of all languages
    now = run(offers[0].now)
    first = shown(offers[0].now)
    packed = [_packed(first), *(_packed(shown(offers[i].now | {offers[i].name: value})) for i, value in had)]
    numbers = {(offers[i].name, value): number for number, (i, value) in enumerate(had, 1)}
    frame = len((LOOKS + LOOK + MODULE + CHOOSE + told(*now) + "".join(packed)).encode())
    pictures = (
        sheet(first["data"], first["stills"]) if "data" in first else ""
    )  # they stand there only until the script shows them
    pictures = pictures if frame + len(pictures.encode()) <= LARGEST else ""
    rows = "".join(_row(offer, numbers) for offer in offers if any(name == offer.name for name, _ in numbers))
    name = "d2lps-" + hashlib.sha256("".join(packed).encode()).hexdigest()[:12]
    start = f"document.querySelectorAll('#{name}:not([data-plays])').forEach((each) => choose(each, play));"
    return (
        f'<div id="{name}" class="d2lps-explored" lang="{html_language()}"><style>{LOOKS}{LOOK}</style>'
        f"<p>{escape(text('explore.in-advance'))}</p>{rows}"
        f'<div class="d2-chosen">{pictures}</div><div>{told(*now)}</div>'
        f'<script type="application/json">{json.dumps(packed)}</script></div>'
        f'<script type="module">{MODULE}\n{CHOOSE}\n{start}</script>'
    )


def _offered(offers: list[Offer], run: Run, shown: Callable[[dict], dict]) -> list[tuple[int, object]]:
    """Which other positions fit on a page: the number of each slider, and the value."""
    now = offers[0].now
    first = shown(now)
    size = len((LOOKS + LOOK + MODULE + CHOOSE + told(*run(now)) + _packed(first)).encode())
    size += 4000  # the buttons, and the sentence above them
    had = []
    for turn in range(max(len(offer.others) for offer in offers)):  # the first of each slider, then the second …
        for i, offer in enumerate(offers):
            for value in offer.others[turn * offer.at_once : (turn + 1) * offer.at_once]:
                other = shown(offer.now | {offer.name: value})
                more = len(_packed(other))
                if other != first and size + more <= LARGEST:
                    had.append((i, value))
                    size += more + 4
    return had


def _shown(traces: dict[str, Trace], refused: dict[str, str]) -> dict:
    """One position of the sliders: its race, if it can be seen, and what is told of it."""
    if not can_race(traces):
        return {"told": told(traces, refused)}
    try:
        scenes = staged([*traces.values()])
    except DrawingError as error:
        return {"told": told(traces, refused | {"": str(error)})}
    names = [named(name) for name in traces]
    page = data.page(scenes, names)
    plain = [each.replace(f"<style>{STYLE + THIN}</style>", "") for each in stills(page, scenes)]
    return {"told": told(traces, refused), "stills": plain, "data": page}


def _packed(shown: dict) -> str:
    return base64.b64encode(zlib.compress(json.dumps(shown, ensure_ascii=False).encode(), 9)).decode()


def _row(offer: Offer, had: dict[tuple[str, object], int]) -> str:
    """A slider as buttons: where it stands, and where it can be moved."""
    buttons = []
    for value, label in offer.labels.items():
        stands = value == offer.now[offer.name]
        if stands or (offer.name, value) in had:
            number, pressed = 0 if stands else had[offer.name, value], str(stands).lower()
            look = f'type="button" data-shows="{number}" aria-pressed="{pressed}"'
            buttons.append(f"<button {look}>{escape(label)}</button>")
    says = escape(offer.says)
    return f'<div role="group" aria-label="{says}"><span>{says}</span> {"".join(buttons)}</div>'
