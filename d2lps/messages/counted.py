"""A note of how far a long loop has come; other modules read and show it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

Round = TypeVar("Round")


class Reached(NamedTuple):
    """The number of rounds of the outermost loop that are ``done``, ``of`` all its rounds."""

    done: int
    of: int


reached: Reached | None = None


def counted(rounds: Iterable[Round], of: int) -> Iterator[Round]:
    """Yield ``rounds`` and count them in ``reached``; of nested loops only the outermost is counted.

    >>> from d2lps.messages import counted
    >>> [(letter, *counted.reached) for letter in counted.counted("ab", of=2)]
    [('a', 0, 2), ('b', 1, 2)]
    """
    global reached
    if reached is not None:
        yield from rounds
        return
    try:
        for done, item in enumerate(rounds):
            reached = Reached(done, of)
            yield item
    finally:
        reached = None
