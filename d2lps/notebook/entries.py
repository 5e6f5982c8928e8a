"""What a reader enters as a number: taken if it can be meant, else refused in a sentence, never changed silently."""

import math
import re
import unicodedata
from numbers import Real

from d2lps.messages import text
from d2lps.units import SECONDS

_ENTRY = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(.*)", re.IGNORECASE)


class PredictionError(ValueError):
    """A guess that cannot be meant, or a prediction that cannot be made.

    Attributes
    ----------
    reason : str
        The sentence's key under ``predict`` in the messages, such as ``"negative"``.
    """

    def __init__(self, reason: str, **values: object):
        self.reason = reason
        super().__init__(text(f"predict.{reason}", **values))


def number(what: str, entry: object, unit: str, low: float = 0, high: float = math.inf) -> float:
    """The number that was entered for ``what``, if it can be one of ``unit`` between ``low`` and ``high``.

    Raises
    ------
    PredictionError
        For what is no number alone, is negative, or lies elsewhere, perhaps because another unit was meant.
    """
    shown = str(entry)[:40]
    said = {"what": what, "entry": shown, "unit": unit, "quantity": f"{shown} {unit}".strip()}
    value = _alone(entry, said)
    if value < 0 or (value == 0 and unit in SECONDS):
        raise PredictionError("negative", **said)
    if low <= value <= high:
        return value
    # A factor of 1000 is a slip of the unit: better asked about than judged.
    slips = [("too-small-unit", value * 1000), ("too-large-unit", value / 1000)]
    for reason, meant in slips if unit not in ("", "%") else ():
        if low <= meant <= high:
            raise PredictionError(reason, **said, meant=number_text(meant, ""), intended=number_text(meant, unit))
    raise PredictionError("outside", **said, low=number_text(low, unit), high=number_text(high, unit))


def number_text(value: float | None, unit: str) -> str:
    """A number with its unit, at most four digits; – where there is none."""
    if value is None:
        return "–"
    return f"{value:.4g}" + (unit if unit == "%" else f" {unit}" if unit else "")


def _alone(entry: object, said: dict[str, str]) -> float:
    if isinstance(entry, Real) and not isinstance(entry, bool):
        value, rest = float(entry), ""
    else:
        # Digits and signs of any keyboard: a minus may be that of typography, a point that of a Chinese sentence.
        written = unicodedata.normalize("NFKC", entry).strip() if isinstance(entry, str) else ""
        written = written.replace("−", "-").replace("。", ".")
        if not written:
            raise PredictionError("empty", **said)
        if re.search(r"\d,\d", written):
            raise PredictionError("comma", **said)
        match = _ENTRY.fullmatch(written)
        if not match:
            raise PredictionError("no-number", **said)
        value, rest = float(match[1]), match[2]
    if not math.isfinite(value):
        raise PredictionError("no-number", **said)
    if rest:
        raise PredictionError("with-unit" if said["unit"] else "with-words", **said)
    return value
