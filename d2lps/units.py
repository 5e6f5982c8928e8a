"""Bits are not bytes, and one way is not both ways: quantities with their units.

Inside d2lps a bandwidth is bytes per second *in one direction*, a size is bytes, a time is seconds.
People write ``"16 GB/s"``, ``"400 Mbit/s"``, ``"160 MB"``, ``"10 us"``; this module reads and prints that.

>>> bandwidth("16 GB/s") == 2 * bandwidth("64 Gbit/s")
True
>>> print(bandwidth("400 Mbit/s"))
50 MB/s
>>> size("160 MB")
160000000
>>> show_seconds(0.0075)
'7.5 ms'
"""

import math
import re
from fractions import Fraction
from numbers import Integral, Real

from d2lps.messages import text
from d2lps.messages.raised import Brief

PREFIXES = {prefix: 1000**i for i, prefix in enumerate(["", "k", "M", "G", "T", "P"])} | {"K": 1000}
PREFIXES |= {prefix: 1024**i for i, prefix in enumerate(["Ki", "Mi", "Gi", "Ti"], 1)}
SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "µs": 10**6, "μs": 10**6, "ns": 10**9}  # so many in a second
FEW = 1000  # bytes: so few, without a unit, are a slip of the pen
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]{1,3})?)\s*(.*?)\s*")
_UNIT = re.compile(r"(|Ki|Mi|Gi|Ti|[kKMGTP])(B|bit|b)(ps|/s|)")


class UnitError(Brief, ValueError):
    """A quantity without its unit, with an ambiguous one, or out of range."""


class Bandwidth(float):
    """Bytes per second in one direction: a float that knows its unit. Made by :func:`bandwidth`."""

    def __str__(self) -> str:
        return "unlimited" if math.isinf(self) else show_size(float(self)) + "/s"

    def __repr__(self) -> str:
        return f"bandwidth('{self}')"


def bandwidth(value: "str | Bandwidth") -> Bandwidth:
    """Bytes per second, one way, from ``"16 GB/s"`` or ``"128 Gbit/s"``.

    Parameters
    ----------
    value : str or Bandwidth
        A bare number is refused, because nobody could tell bits from bytes; a number that is known to be bytes per
        second is passed as ``Bandwidth(number)``.

    Returns
    -------
    Bandwidth
        More than 0, and perhaps infinite.

    Raises
    ------
    UnitError
        For what has no unit, an ambiguous one, or is not positive.
    """
    if not isinstance(value, str | Bandwidth):
        raise UnitError(text("unit.no-unit", what=_name("bandwidth"), value=repr(value), write=_write("bandwidth")))
    rate = value if isinstance(value, Bandwidth) else Bandwidth(_float("bandwidth", value, _parse("bandwidth", value)))
    if not rate > 0:
        raise UnitError(text("unit.not-positive", value=repr(value)))
    return rate


def size(value: "str | int") -> int:
    """A number of bytes.

    Parameters
    ----------
    value : str or int
        ``"160 MB"``, ``"4 MiB"``, or an int already in bytes.

    Returns
    -------
    int
        0 or more.

    Raises
    ------
    UnitError
        For what is no whole number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise UnitError(text("unit.not-a-size", value=repr(value)))
    count = _parse("size", value) if isinstance(value, str) else value
    _float("size", value, Fraction(count))
    if count < 0:
        raise UnitError(text("unit.negative", value=repr(value)))
    if isinstance(count, Fraction) and count.denominator != 1:
        raise UnitError(text("unit.not-whole", value=repr(value)))
    return int(count)


def meant_size(value: "str | int") -> int:
    """As :func:`size`, for what people write by hand: there a bare 160 means 160 MB more often than 160 bytes.

    Parameters
    ----------
    value : str or int
        ``"160 MB"``, ``"160 B"``, or an int of bytes: 0, or 1000 and more.

    Returns
    -------
    int
        0 or more.

    Raises
    ------
    UnitError
        For a smaller int, and what is no whole number of bytes.
    """
    count = size(value)
    if not isinstance(value, str) and 0 < count < FEW:
        raise UnitError(text("unit.few-bytes", value=count))
    return count


def seconds(value: "str | float") -> float:
    """A time in seconds.

    Parameters
    ----------
    value : str or float
        ``"10 us"``, ``"7.5 ms"``, or a number of seconds.

    Returns
    -------
    float
        0 or more, and finite.

    Raises
    ------
    UnitError
        For what is no such time.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        time = float(value)
    else:
        number, unit = _split("time", value)
        if unit not in SECONDS:
            raise UnitError(text("unit.no-time", value=repr(value)))
        time = _float("time", value, number / SECONDS[unit])
    if not 0 <= time < math.inf:
        raise UnitError(text("unit.not-a-time", value=repr(value)))
    return time


def is_count(value: object, least: int = 0, most: float = math.inf) -> bool:
    """Whether it is a whole number in a range: ``True`` is none, and neither is 2.0.

    Parameters
    ----------
    value : object
        Whatever was given for it.
    least, most : int
        The range, with both its ends.

    Returns
    -------
    bool
        False for whatever is no such number.

    Examples
    --------
    >>> is_count(2), is_count(0, least=1), is_count(True), is_count("2")
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def show_size(count: float) -> str:
    """Bytes in decimal units, at most four digits: ``160 MB``, ``7.5 kB``, ``12 B``.

    Parameters
    ----------
    count : float
        Bytes.

    Returns
    -------
    str
        With its unit.
    """
    return _show(count, [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)], "B")


def show_seconds(time: float) -> str:
    """A time in the unit that suits it: ``60 ms``, ``7.5 ms``, ``42 µs``.

    Parameters
    ----------
    time : float
        Seconds.

    Returns
    -------
    str
        With its unit.
    """
    return _show(time, [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)], "s")


def _show(value: float, units: list[tuple[str, float]], base: str) -> str:
    rounded = float(f"{value:.4g}")  # first, so that 999.96 ms becomes 1 s and not 1000 ms
    if not rounded:
        return f"0 {base}"
    name, factor = next((unit for unit in units if abs(rounded) >= unit[1]), units[-1])
    return f"{float(f'{rounded / factor:.4g}'):g} {name}"


def _split(what: str, value: object) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    try:
        return Fraction(match[1]), match[2]
    except (TypeError, ValueError):
        example = {"bandwidth": "16 GB/s", "size": "160 MB", "time": "7.5 ms"}[what]
        sentence = text("unit.not-a-quantity", what=_name(what), value=repr(value), example=example)
        raise UnitError(sentence) from None


def _float(what: str, value: object, number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        raise UnitError(text("unit.too-large", what=_name(what), value=repr(value))) from None


def _parse(what: str, value: str) -> Fraction:
    """Bytes, or bytes per second for a bandwidth, exactly."""
    number, unit = _split(what, value)
    per_second = "/s" if what == "bandwidth" else ""
    match = _UNIT.fullmatch(unit)
    if not match:
        said = {"what": _name(what), "value": repr(value), "write": _write(what)}
        raise UnitError(text("unit.unknown-unit", unit=repr(unit), **said) if unit else text("unit.no-unit", **said))
    prefix, letter, rate = match.groups()
    count = number * PREFIXES[prefix] / (1 if letter == "B" else 8)
    if letter == "b":
        written, per = f"{_float(what, value, number):g}", "/s" if rate else ""
        read, in_bytes = f"{written} {prefix}bit{per}", f"{show_size(_float(what, value, count))}{per}"
        meant = {"bits": read, "equal": in_bytes, "bytes": f"{written} {prefix}B{per}"}
        raise UnitError(text("unit.ambiguous", what=_name(what), value=repr(value), **meant))
    if bool(rate) != bool(per_second):
        said = {"value": repr(value), "write": _write(what)}
        raise UnitError(text("unit.per-second", **said) if per_second else text("unit.not-per-second", **said))
    return count


def _name(what: str) -> str:
    return text(f"unit.name.{what}")


def _write(what: str) -> str:
    """What would be right."""
    return text(f"unit.write.{what}")
