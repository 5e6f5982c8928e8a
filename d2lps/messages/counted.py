"""How far a long loop has come, for whoever wants to show it. Here it is only written down."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

Each = TypeVar("Each")


class Reached(NamedTuple):
    """How many rounds of the outermost loop are done, and of how many."""

    done: int
    of: int


reached: Reached | None = None


def counted(rounds: Iterable[Each], of: int) -> Iterator[Each]:
    """The same rounds; of loops within each other the outermost is counted.

    >>> from d2lps.messages import counted
    >>> [(each, *counted.reached) for each in counted.counted("ab", of=2)]
    [('a', 0, 2), ('b', 1, 2)]
    """
    global reached
    if reached is not None:
        yield from rounds
        return
    try:
        for done, each in enumerate(rounds):
            reached = Reached(done, of)
            yield each
    finally:
        reached = None
