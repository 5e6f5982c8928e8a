"""A prediction on a page where there is no kernel: the same fields, judged by a script, which has all words from here.

What was guessed is kept by the reader's browser. Where no script runs, only the question is seen.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path

from d2lps.messages import html_language, named, text
from d2lps.units import SECONDS

ASK = Path(__file__).with_name("predict.js").read_text("utf-8")
WORDS = (
    *("you", "colon", "commit", "again", "yours", "right", "above", "below", "wrong", "empty", "no-number", "comma"),
    *("with-unit", "with-words", "negative", "too-small-unit", "too-large-unit", "outside"),
)
# What the script fills in: each stands in the sentences as it stands in the messages.
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


def form(name: str, asked: Mapping[str, str], within: tuple[float, float], near: float) -> str:
    """The question, and what a script makes fields of.

    Parameters
    ----------
    name, asked
        As :func:`d2lps.predict` takes them.
    within : tuple of float
        Between which numbers a guess can be meant.
    near : float
        A guess is right within this part of the answer.

    Returns
    -------
    str
        HTML in the language in force.
    """
    low, high = within
    data = {
        "name": name,
        "asked": [*asked.items()],  # in this order: a script would put numbers before other names
        "units": [*asked.values()],
        "names": [named(what) for what in asked],
        "within": [low, high if math.isfinite(high) else None],
        "never_zero": [unit in SECONDS for unit in asked.values()],
        "near": near,
        "words": {key: text(f"predict.{key}", **LATER) for key in WORDS} | {"between": text("list.between")},
    }
    own = "d2lps-" + hashlib.sha256(json.dumps(data, ensure_ascii=False).encode()).hexdigest()[:12]
    rows = "".join(_row(named(what), unit, f"{own}-{at}") for at, (what, unit) in enumerate(asked.items()))
    button = f'<button type="submit">{escape(text("predict.commit"))}</button>'
    data["form"] = f"<form novalidate>{rows}{button}</form>"
    start = f"document.querySelectorAll('#{own}:not([data-asks])').forEach((each) => ask(each));"
    none = f'<span role="status">{escape(text("predict.none"))}</span>'
    return (
        f'<div id="{own}" class="d2lps-asked" lang="{html_language()}"><style>{LOOK}</style>'
        f"<p>{escape(question(asked))} {none}</p>{as_data(data)}</div>"
        f'<script type="module">{ASK}\n{start}</script>'
    )


def question(asked: Mapping[str, str]) -> str:
    """What is asked, in a sentence."""
    each = [f"{named(what)} ({unit})" if unit else named(what) for what, unit in asked.items()]
    return text("predict.ask", what=text("list.between").join(each))


def as_data(value: object) -> str:
    """What a script of the page finds beside itself."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{content}</script>'


def _row(name: str, unit: str, id: str) -> str:
    field = f'<input type="text" autocomplete="off" spellcheck="false" aria-describedby="{id}">'
    return (
        f"<label><span>{escape(name)}</span>{field}<span>{escape(unit)}</span></label>"
        f'<p data-error id="{id}" aria-live="polite"></p>'
    )
