"""Quantities with their units, read and printed: bits are not bytes, and one way is not both ways.

Inside d2lps a bandwidth is bytes per second *in one direction*, a size is bytes, a time is seconds.
People write ``"16 GB/s"``, ``"400 Mbit/s"``, ``"160 MB"``, ``"10 us"``; only this module reads and prints such text.

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
from typing import TypeGuard

from d2lps.messages import text
from d2lps.messages.raised import Brief

PREFIXES = {prefix: 1000**i for i, prefix in enumerate(["", "k", "M", "G", "T", "P"])} | {"K": 1000}
PREFIXES |= {prefix: 1024**i for i, prefix in enumerate(["Ki", "Mi", "Gi", "Ti"], 1)}
SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "µs": 10**6, "μs": 10**6, "ns": 10**9}  # how many make a second
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FEW = 1000  # bytes: a smaller number without a unit is a slip of the pen
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]{1,3})?)\s*(.*?)\s*")
_UNIT = re.compile(r"(|Ki|Mi|Gi|Ti|[kKMGTP])(B|bit|b)(ps|/s|)")


class UnitError(Brief, ValueError):
    """A quantity without its unit, with an ambiguous one, or out of range."""


class Bandwidth(float):
    """Bytes per second in one direction: a float that prints with its unit. Made by :func:`bandwidth`."""

    def __str__(self) -> str:
        return "unlimited" if math.isinf(self) else show_size(float(self)) + "/s"

    def __repr__(self) -> str:
        return f"bandwidth('{self}')"


def bandwidth(value: "str | Bandwidth") -> Bandwidth:
    """Read bytes per second, one way, from ``"16 GB/s"`` or ``"128 Gbit/s"``; the result is positive, maybe infinite.

    A bare number could mean bits or bytes, so it raises UnitError, as do an ambiguous unit and a rate that is not
    positive. Pass a number of bytes per second as ``Bandwidth(number)``.
    """
    if not isinstance(value, str | Bandwidth):
        raise UnitError(text("unit.no-unit", what=_name("bandwidth"), value=repr(value), write=_example("bandwidth")))
    rate = value if isinstance(value, Bandwidth) else Bandwidth(_float("bandwidth", value, _parse("bandwidth", value)))
    if not rate > 0:
        raise UnitError(text("unit.not-positive", value=repr(value)))
    return rate


def size(value: "str | int | None") -> int:
    """Read a number of bytes, 0 or more, from ``"160 MB"``, ``"4 MiB"`` or an int; raise UnitError otherwise."""
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise UnitError(text("unit.not-a-size", value=repr(value)))
    count = _parse("size", value) if isinstance(value, str) else value
    _float("size", value, Fraction(count))
    if count < 0:
        raise UnitError(text("unit.negative", value=repr(value)))
    if isinstance(count, Fraction) and count.denominator != 1:
        raise UnitError(text("unit.not-whole", value=repr(value)))
    return int(count)


def meant_size(value: "str | int | None") -> int:
    """Read a size as :func:`size` does, but raise UnitError for an int from 1 to 999.

    People who write a bare 160 by hand mean 160 MB more often than 160 bytes; ``"160 B"`` is accepted.
    """
    count = size(value)
    if not isinstance(value, str) and 0 < count < FEW:
        raise UnitError(text("unit.few-bytes", value=count))
    return count


def seconds(value: object) -> float:
    """Read a finite time in seconds, 0 or more, from ``"10 us"`` or a number; raise UnitError otherwise."""
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


def flops(value: float) -> float:
    """Read a finite rate of computing, in FLOP per second and more than 0; raise UnitError otherwise."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise UnitError(text("unit.not-a-rate", value=repr(value)))
    return float(value)


def is_count(value: object, least: int = 0, most: float = math.inf) -> TypeGuard[int]:
    """Return True if ``value`` is an int from ``least`` to ``most``, both included; ``True`` and 2.0 are not.

    >>> is_count(2), is_count(0, least=1), is_count(True), is_count("2")
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def show_number(value: float, digits: int = 4) -> str:
    """Print a number as prose does: ``0.25``, ``1024``, ``668 100`` with no-break spaces, ``2.1·10⁹``, ``6·10⁻⁸``.

    >>> show_number(2.128e9), show_number(1e26), show_number(1010, 3), show_number(-math.inf)
    ('2.128·10⁹', '10²⁶', '1010', '-inf')
    """
    short = f"{value:.{digits}g}"
    mantissa, _, power = short.partition("e")
    if not power:
        whole, *part = short.split(".")
        return ".".join([show_integer(int(whole)), *part]) if 9999 < abs(value) < math.inf else short
    if 0 < int(power) < 9:
        return show_integer(int(float(short)))
    factor = {"1": "", "-1": "-"}.get(mantissa, f"{mantissa}·")
    return factor + "10" + str(int(power)).translate(RAISED)


def show_integer(value: int) -> str:
    """Print an integer as prose does: ``1024``, but ``131 072`` with no-break spaces.

    >>> show_integer(-1024), show_integer(131072) == "131\\u00a0072"
    ('-1024', True)
    """
    return f"{value:,}".replace(",", "\u00a0" if abs(value) > 9999 else "")


def show_error(error: float, bound: float | None = None) -> str:
    """Print a rounding error as ``< 10⁻⁵``, since its digits depend on the processor; a larger error in two digits.

    ``bound`` leaves room for every processor: by default 10⁻⁵, which suits 32 bits; ``1e-12`` suits 64.

    >>> show_error(3e-7), show_error(0.2857), show_error(0.0, 1e-12)
    ('< 10⁻⁵', '0.29', '< 10⁻¹²')
    """
    bound = 1e-5 if bound is None else bound
    return f"< {show_number(bound)}" if abs(error) < bound else show_number(error, 2)


def show_size(count: "float | Fraction", digits: int = 4) -> str:
    """Print bytes in decimal units with at most four digits, or so many: ``160 MB``, ``7.5 kB``, ``12 B``."""
    return _show(float(count), [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)], "B", digits)


def show_seconds(time: float, digits: int = 4) -> str:
    """Print seconds in the unit that suits them: ``60 ms``, ``7.5 ms``, ``42 µs``."""
    return _show(time, [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)], "s", digits)


def _show(value: float, units: list[tuple[str, float]], base: str, digits: int) -> str:
    rounded = float(f"{value:.{digits}g}")  # first, so that 999.96 ms becomes 1 s and not 1000 ms
    if not rounded:
        return f"0 {base}"
    name, factor = next((unit for unit in units if abs(rounded) >= unit[1]), units[-1])
    return f"{show_number(rounded / factor, digits)} {name}"


def _split(quantity: str, value: object) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(value.replace("\u00a0", "")) if isinstance(value, str) else None
    try:
        return Fraction(match[1]), match[2]  # type: ignore[index]  # a TypeError, as for other input
    except (TypeError, ValueError):
        example = {"bandwidth": "16 GB/s", "size": "160 MB", "time": "7.5 ms"}[quantity]
        sentence = text("unit.not-a-quantity", what=_name(quantity), value=repr(value), example=example)
        raise UnitError(sentence) from None


def _float(quantity: str, value: object, number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        raise UnitError(text("unit.too-large", what=_name(quantity), value=repr(value))) from None


def _parse(quantity: str, value: str) -> Fraction:
    """Return the exact number of bytes, or of bytes per second for a bandwidth."""
    number, unit = _split(quantity, value)
    is_rate = quantity == "bandwidth"
    match = _UNIT.fullmatch(unit)
    if not match:
        words = {"what": _name(quantity), "value": repr(value), "write": _example(quantity)}
        raise UnitError(text("unit.unknown-unit", unit=repr(unit), **words) if unit else text("unit.no-unit", **words))
    prefix, letter, per_second = match.groups()
    count = number * PREFIXES[prefix] / (1 if letter == "B" else 8)
    if letter == "b":
        amount, per = value.strip().removesuffix(unit).strip(), "/s" if per_second else ""
        as_bits, in_bytes = f"{amount} {prefix}bit{per}", f"{show_size(_float(quantity, value, count))}{per}"
        readings = {"bits": as_bits, "equal": in_bytes, "bytes": f"{amount} {prefix}B{per}"}
        raise UnitError(text("unit.ambiguous", what=_name(quantity), value=repr(value), **readings))
    if bool(per_second) != is_rate:
        words = {"value": repr(value), "write": _example(quantity)}
        raise UnitError(text("unit.per-second", **words) if is_rate else text("unit.not-per-second", **words))
    return count


def _name(quantity: str) -> str:
    return text(f"unit.name.{quantity}")


def _example(quantity: str) -> str:
    return text(f"unit.write.{quantity}")
