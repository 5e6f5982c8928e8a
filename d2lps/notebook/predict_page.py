"""The numbers that a reader enters, and a prediction on a page without a kernel, where a script has the same rules.

:func:`number` accepts an entry if it is plausible, else refuses it in a sentence, and never changes it. A page gets
``RULES`` and :func:`unit_rules` for predict.js; the reader's browser stores the guess. Without scripts the page shows
only the question.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from html import escape
from numbers import Real
from pathlib import Path

from d2lps.messages import html_language, named, text
from d2lps.units import SECONDS, show_number

RULES = {
    "replace": {"−": "-", "。": "."},  # a typographic minus, a Chinese full stop
    "spaced": r"(\d) (?=\d{3}(?!\d))",  # the space of thousands, as in 668 100
    "comma": r"\d,\d",
    "number": r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(.*)",  # in any case; what follows it is refused
}
_NUMBER = re.compile(RULES["number"], re.IGNORECASE)
ASK = Path(__file__).with_name("predict.js").read_text("utf-8")
WORDS = (
    *("you", "colon", "commit", "again", "yours", "right", "above", "below", "wrong", "log", "empty", "no-number"),
    *("comma", "with-unit", "with-words", "negative", "too-small-unit", "too-large-unit", "outside"),
)
# Placeholders that the script fills in; here they stay as they are in the messages.
LATER = {
    name: f"{{{name}}}"
    for name in ("what", "entry", "unit", "quantity", "meant", "intended", "low", "high", "guess", "factor")
}
LOOK = """.d2lps-asked form{display:grid;grid-template-columns:fit-content(50%) 7em 1fr;gap:6px .7em;margin:.5em 0}
.d2lps-asked form>*{grid-column:1/-1}
.d2lps-asked label{display:grid;grid-template-columns:subgrid;align-items:center}
.d2lps-asked :is(input,button){box-sizing:border-box;min-height:36px;border:1px solid currentColor;background:none;
color:inherit;font:inherit}
.d2lps-asked input{width:100%;border-radius:6px;padding:2px 8px}
.d2lps-asked input:read-only{border-style:dashed}
.d2lps-asked button{justify-self:start;border-radius:18px;padding:2px 14px;cursor:pointer}
.d2lps-asked [data-error]{margin:0}.d2lps-asked [data-error]:empty{display:none}
@media print{.d2lps-asked form{display:block}.d2lps-asked form>:not([role=status]),
.d2lps-asked:not([data-guessed]) [role=status]{display:none}}"""


class PredictionError(ValueError):
    """A guess is not plausible, or a prediction cannot be made.

    Attributes:
        reason: The sentence's key under ``predict`` in the messages, such as ``"negative"``.
    """

    def __init__(self, reason: str, **values: object):
        self.reason = reason
        super().__init__(text(f"predict.{reason}", **values))


def unit_rules(unit: str) -> dict[str, object]:
    """Return the rules for a unit: if zero is refused, and (reason, factor, divisor) of slips to another unit."""
    slips = [("too-small-unit", 1000, 1), ("too-large-unit", 1, 1000)]
    return {"never_zero": unit in SECONDS, "slips": slips if unit not in ("", "%") else []}


def number(name: str, entry: object, unit: str, low: float = 0, high: float = math.inf) -> float:
    """Return the number that was entered for ``name`` in ``unit``, if it is between ``low`` and ``high``.

    Raises:
        PredictionError: If the entry is not just a number, is negative, or out of range, perhaps because another unit
            was meant.
    """
    shown, rules = str(entry)[:40], unit_rules(unit)
    values = {"what": name, "entry": shown, "unit": unit, "quantity": f"{shown} {unit}".strip()}
    value = _number(entry, values)
    if value < 0 or (value == 0 and rules["never_zero"]):
        raise PredictionError("negative", **values)
    if low <= value <= high:
        return value
    # A factor of 1000 is probably a slip of the unit: ask instead of judging.
    for reason, factor, divisor in rules["slips"]:
        if low <= (meant := value * factor / divisor) <= high:
            raise PredictionError(reason, **values, meant=number_text(meant, ""), intended=number_text(meant, unit))
    raise PredictionError("outside", **values, low=number_text(low, unit), high=number_text(high, unit))


def number_text(value: float | None, unit: str) -> str:
    """Write a number with its unit, in at most four digits; – for None."""
    if value is None:
        return "–"
    return show_number(value) + (unit if unit == "%" else f" {unit}" if unit else "")


def _number(entry: object, values: dict[str, str]) -> float:
    if isinstance(entry, Real) and not isinstance(entry, bool):
        value, rest = float(entry), ""
    else:
        written = unicodedata.normalize("NFKC", entry).strip() if isinstance(entry, str) else ""
        for sign, plain in RULES["replace"].items():
            written = written.replace(sign, plain)
        written = re.sub(RULES["spaced"], r"\1", written)
        if not written:
            raise PredictionError("empty", **values)
        if re.search(RULES["comma"], written):
            raise PredictionError("comma", **values)
        match = _NUMBER.fullmatch(written)
        if not match:
            raise PredictionError("no-number", **values)
        value, rest = float(match[1]), match[2]
    if not math.isfinite(value):
        raise PredictionError("no-number", **values)
    if rest:
        raise PredictionError("with-unit" if values["unit"] else "with-words", **values)
    return value


def form(name: str, asked: Mapping[str, str], within: tuple[float, float], near: float) -> str:
    """Return the question as HTML in the current language, with the data from which a script makes fields.

    Args:
        name, asked: As for :func:`d2lps.predict`.
        within: The range of plausible guesses.
        near: The relative error within which a guess is right.
    """
    low, high = within
    data = {
        "name": name,
        "asked": [*asked.items()],  # as a list, because a script would put numbers before other names
        "units": [*asked.values()],
        "names": [named(item) for item in asked],
        "within": [low, high if math.isfinite(high) else None],
        "rules": RULES | {"units": [unit_rules(unit) for unit in asked.values()]},
        "near": near,
        "words": {key: text(f"predict.{key}", **LATER) for key in WORDS} | {"between": text("list.between")},
    }
    id = "d2lps-" + hashlib.sha256(json.dumps(data, ensure_ascii=False).encode()).hexdigest()[:12]
    rows = "".join(_row(named(item), unit, f"{id}-{at}") for at, (item, unit) in enumerate(asked.items()))
    button = f'<button type="submit">{escape(text("predict.commit"))}</button>'
    data["form"] = f"<form novalidate>{rows}{button}</form>"
    start = f"document.querySelectorAll('#{id}:not([data-asks])').forEach((root) => ask(root));"
    none = f'<span role="status">{escape(text("predict.none"))}</span>'
    return (
        f'<div id="{id}" class="d2lps-asked" lang="{html_language()}"><style>{LOOK}</style>'
        f"<p>{escape(question(asked))} {none}</p>{as_data(data)}</div>"
        f'<script type="module">{ASK}\n{start}</script>'
    )


def question(asked: Mapping[str, str]) -> str:
    """Return the question in a sentence."""
    items = [f"{named(item)} ({unit})" if unit else named(item) for item, unit in asked.items()]
    return text("predict.ask", what=text("list.between").join(items))


def as_data(value: object) -> str:
    """Return an element with data for a script of the page."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{content}</script>'


def _row(name: str, unit: str, id: str) -> str:
    field = f'<input type="text" autocomplete="off" spellcheck="false" aria-describedby="{id}">'
    return (
        f"<label><span>{escape(name)}</span>{field}<span>{escape(unit)}</span></label>"
        f'<p data-error id="{id}" aria-live="polite"></p>'
    )
