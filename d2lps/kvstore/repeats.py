"""Pushes that raised: what is remembered of them, so that the same call again counts every key once."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from d2lps.kvstore.errors import KVError
from d2lps.kvstore.values import Given, KeySpec, copied, same


class Raised(NamedTuple):
    """A push of ``keys`` that raised: what was pushed to those that are ``counted``, or may be."""

    keys: list[KeySpec]
    values: dict[KeySpec, list[Tensor]]
    counted: frozenset[KeySpec]


class Repeats:
    """The pushes of one store that raised, each until the next call that names one of its keys."""

    def __init__(self):
        self._raised: list[Raised] = []

    def remember(self, keys: list[KeySpec], values: list[Given], error: KVError) -> KVError:
        """What ``error`` says is counted of a push; it is returned."""
        counted, known = {*error.counted}, {*error.counted, *error.unknown}
        if counted:
            copies = {spec: copied(given) for spec, given in zip(keys, values, strict=True) if spec.key in known}
            done = frozenset(spec for spec in copies if spec.key in counted)
            self._raised.append(Raised(keys, copies, done))
        return error

    def again(self, keys: list[KeySpec], values: list[Given]) -> frozenset[KeySpec]:
        """Those of ``keys`` that count already, where this is the same push again."""
        counted: frozenset[KeySpec] = frozenset()
        for raised in self._named(keys):
            if raised.keys == keys and all(
                same(raised.values[spec], given)
                for spec, given in zip(keys, values, strict=True)
                if spec in raised.values
            ):
                counted = raised.counted
        return counted

    def forget(self, keys: Iterable[KeySpec]) -> None:
        """Let go of all that name one of ``keys``."""
        for raised in self._named(keys):
            self._raised.remove(raised)

    def _named(self, keys: Iterable[KeySpec]) -> list[Raised]:
        return [raised for raised in self._raised if not frozenset(raised.keys).isdisjoint(keys)]
