"""Barriers, by name and number, where the workers of a store wait for each other."""

import math
import time
from collections.abc import Collection

from d2lps.kvstore.errors import Refused

KEPT = 4  # barriers of one name: a worker that was interrupted may come again


class Barrier:
    """The workers that have come, and the note of worker 0."""

    def __init__(self):
        self._waiting: dict[object, int] = {}  # calls that wait, and their workers
        self.note: str | None = None
        self.expected = -math.inf  # when worker 0 last said that it is on its way
        self.passed = False

    @property
    def came(self) -> set[int]:
        return {*self._waiting.values()}

    def come(self, rank: int, note: str | None) -> object:
        """Let a worker come. Returns its call, for :meth:`leave`."""
        call = object()
        self._waiting[call] = rank
        if rank == 0:
            self.note = note
        return call

    def leave(self, call: object) -> None:
        """Count a call as not having come: it does not wait any more."""
        self._waiting.pop(call, None)

    def passes(self, live: Collection[int]) -> bool:
        """Return True if all workers that are ``live`` have come, now or before."""
        self.passed = self.passed or self.came >= live
        return self.passed


class Barriers:
    """The last few barriers of each name. The caller holds the lock that guards them."""

    def __init__(self):
        self._known: dict[str, dict[int, Barrier]] = {}

    def __contains__(self, which: tuple[str, int]) -> bool:
        name, number = which
        return number in self._known.get(name, ())

    def last(self, name: str, rank: int) -> int:
        """Return the number of the last barrier that all have passed, 0 if there is none; at later ones a worker has
        not come: it was interrupted there.
        """
        known = self._known.get(name, {})
        for barrier in known.values():
            if not barrier.passed:
                barrier._waiting = {call: other for call, other in barrier._waiting.items() if other != rank}
        return max((number for number, barrier in known.items() if barrier.passed), default=0)

    def expect(self, name: str, number: int) -> None:
        """Note that worker 0 is on its way to a barrier. Raises Refused if that is long over."""
        self.find(name, number).expected = time.monotonic()

    def find(self, name: str, number: int) -> Barrier:
        """Return a barrier, which may be new. Raises Refused if it is long over."""
        known = self._known.setdefault(name, {})
        if known and number <= max(known) - KEPT:
            raise Refused(f"barrier {number} is long over: the last one is {max(known)}")
        barrier = known.setdefault(number, Barrier())
        for old in [other for other in known if other <= number - KEPT]:
            del known[old]
        return barrier
