"""Read a number that a reader enters: accept it if it is plausible, else refuse it in a sentence; never change it.

``RULES`` and :func:`unit_rules` are also given to a page without a kernel, where predict.js applies them.
"""

import math
import re
import unicodedata
from numbers import Real

from d2lps.messages import text
from d2lps.units import SECONDS, show_number

RULES = {
    "replace": {"−": "-", "。": "."},  # a typographic minus, a Chinese full stop
    "spaced": r"(\d) (?=\d{3}(?!\d))",  # the space of thousands, as in 668 100
    "comma": r"\d,\d",
    "number": r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(.*)",  # in any case; what follows it is refused
}
_NUMBER = re.compile(RULES["number"], re.IGNORECASE)


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
