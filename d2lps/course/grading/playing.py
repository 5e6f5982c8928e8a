"""What the judges have in common that play programs and decode who is counted.

>>> digits(4**0 + 2 * 4**2, 3)
[1, 0, 2]
>>> digits(0.5, 3) is None
True
"""

from collections.abc import Callable

from d2lps.course.grading.attempt import called
from d2lps.course.grading.network import Closed
from d2lps.units import show_size


def calling(case: object, function: Callable, *arguments: object) -> object:
    """What ``function`` returns, which may be None; what it raises becomes a Failure."""

    def whole(*arguments):
        return (function(*arguments),)

    whole.__wrapped__ = function  # so that the line to blame is looked for there
    return called(case, whole, *arguments, refused=Closed)[0]


def digits(total: float, n: int) -> list[int] | None:
    """How often 4^0, …, 4^(n−1) are in ``total``; None if it is no such sum."""
    if not 0 <= total < 4**n or total != int(total):
        return None
    return [int(total) >> 2 * i & 3 for i in range(n)]


def size(nbytes: int) -> str:
    """A size as it stands in a sentence, with a no-break space before its unit."""
    return show_size(nbytes).replace(" ", "\u00a0")
