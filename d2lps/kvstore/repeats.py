"""Pushes that raised an error, remembered so that the same call again counts every key once."""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from d2lps.kvstore.errors import KVError
from d2lps.kvstore.values import Given, KeySpec, digests


class FailedPush(NamedTuple):
    """A push of ``keys`` that raised: digests of what was pushed, and the keys that are ``counted``."""

    keys: list[KeySpec]
    values: list[list[bytes]]  # digests only: perhaps it raised because memory was short
    counted: frozenset[KeySpec]


class Repeats:
    """The pushes of one store that raised, each until another push or pull of one of its keys succeeds.

    Several threads may use it at the same time: each step is one operation of a dict.
    """

    def __init__(self):
        self._failed: dict[int, FailedPush] = {}  # in their order
        self._numbers = count(1)

    def remember(self, keys: list[KeySpec], values: list[Given], error: KVError) -> None:
        """Remember a push and the keys that ``error`` calls counted."""
        if error.counted or error.unknown:
            done = frozenset(spec for spec in keys if spec.key in {*error.counted})
            self._failed[next(self._numbers)] = FailedPush(keys, [*map(digests, values)], done)

    def counted(self, keys: list[KeySpec], values: list[Given]) -> frozenset[KeySpec]:
        """Return those of ``keys`` that count already, if this is the same push again."""
        counted: frozenset[KeySpec] = frozenset()
        for _, failed in self._naming(keys):
            if failed.keys == keys and failed.values == [*map(digests, values)]:
                counted = failed.counted
        return counted

    def count(self, keys: Iterable[KeySpec]) -> None:
        """Note that ``keys``, of which this was not known, are counted."""
        done = frozenset(keys)
        for number, failed in self._naming(done):
            self._failed[number] = failed._replace(counted=failed.counted | done.intersection(failed.keys))

    def forget(self, keys: Iterable[KeySpec]) -> None:
        """Forget all pushes that name one of ``keys``."""
        for number, _ in self._naming(keys):
            self._failed.pop(number, None)

    def clear(self) -> None:
        """Forget all pushes."""
        self._failed.clear()

    def _naming(self, keys: Iterable[KeySpec]) -> list[tuple[int, FailedPush]]:
        keys = frozenset(keys)
        return [(number, failed) for number, failed in [*self._failed.items()] if not keys.isdisjoint(failed.keys)]
