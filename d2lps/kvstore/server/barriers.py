"""Where the workers of a store wait for each other, by name and number."""

import math
import time
from collections import Counter

from d2lps.kvstore.errors import Refused

KEPT = 4  # of a name: who was interrupted may come again


class Barrier:
    """Who has come, and what worker 0 tells those who do."""

    def __init__(self):
        self._calls: Counter[int] = Counter()  # of each who came: who asks again waits twice for a while
        self.note: str | None = None
        self.expected = -math.inf  # when worker 0 last said that it is on its way

    @property
    def came(self) -> set[int]:
        return {*+self._calls}

    def leave(self, rank: int) -> None:
        """A worker does not wait any more: it has not come."""
        self._calls[rank] -= 1


class Barriers:
    """The last few of each name. Whoever calls has the lock that guards them."""

    def __init__(self):
        self._known: dict[str, dict[int, Barrier]] = {}

    def __contains__(self, which: tuple[str, int]) -> bool:
        name, number = which
        return number in self._known.get(name, ())

    def come(self, name: str, number: int, rank: int, note: str | None) -> Barrier:
        """A worker comes to a barrier. Raises Refused where that is long over."""
        barrier = self._barrier(name, number)
        barrier._calls[rank] += 1
        if rank == 0:
            barrier.note = note
        return barrier

    def expect(self, name: str, number: int) -> None:
        """Worker 0 is on its way to a barrier. Raises Refused where that is long over."""
        self._barrier(name, number).expected = time.monotonic()

    def _barrier(self, name: str, number: int) -> Barrier:
        known = self._known.setdefault(name, {})
        if known and number <= max(known) - KEPT:
            raise Refused(f"barrier {number} is long over: the last one is {max(known)}")
        barrier = known.setdefault(number, Barrier())
        for old in [each for each in known if each <= number - KEPT]:
            del known[old]
        return barrier
