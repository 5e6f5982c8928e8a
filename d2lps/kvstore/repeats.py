"""Pushes that raised: what is remembered of them, so that the same call again counts every key once."""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from d2lps.kvstore.errors import KVError
from d2lps.kvstore.values import Given, KeySpec, digests


class Raised(NamedTuple):
    """A push of ``keys`` that raised, what was pushed, and those that are ``counted``."""

    keys: list[KeySpec]
    values: list[list[bytes]]  # their digests: memory may have been what was lacking
    counted: frozenset[KeySpec]


class Repeats:
    """The pushes of one store that raised, each until another push or pull of one of its keys is done.

    Several threads may ask at once: each step is one of a dict.
    """

    def __init__(self):
        self._raised: dict[int, Raised] = {}  # in their order
        self._numbers = count(1)

    def remember(self, keys: list[KeySpec], values: list[Given], error: KVError) -> KVError:
        """What ``error`` says is counted of a push; it is returned."""
        if error.counted or error.unknown:
            done = frozenset(spec for spec in keys if spec.key in {*error.counted})
            self._raised[next(self._numbers)] = Raised(keys, [*map(digests, values)], done)
        return error

    def again(self, keys: list[KeySpec], values: list[Given]) -> frozenset[KeySpec]:
        """Those of ``keys`` that count already, where this is the same push again."""
        counted: frozenset[KeySpec] = frozenset()
        for _, raised in self._named(keys):
            if raised.keys == keys and raised.values == [*map(digests, values)]:
                counted = raised.counted
        return counted

    def count(self, keys: Iterable[KeySpec]) -> None:
        """Of ``keys`` it was not known whether they are counted, and now they are."""
        done = frozenset(keys)
        for number, raised in self._named(done):
            self._raised[number] = raised._replace(counted=raised.counted | done.intersection(raised.keys))

    def forget(self, keys: Iterable[KeySpec]) -> None:
        """Let go of all that name one of ``keys``."""
        for number, _ in self._named(keys):
            self._raised.pop(number, None)

    def mark(self) -> int:
        """What raises from here on stays: for :meth:`forget_before`."""
        return next(self._numbers)

    def forget_before(self, mark: int) -> None:
        """Let go of those that had raised at that mark."""
        for number in [*self._raised]:
            if number < mark:
                self._raised.pop(number, None)

    def _named(self, keys: Iterable[KeySpec]) -> list[tuple[int, Raised]]:
        keys = frozenset(keys)
        return [each for each in [*self._raised.items()] if not keys.isdisjoint(each[1].keys)]
