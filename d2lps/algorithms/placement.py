"""The placement of keys on servers: large arrays are cut over all servers, small keys lie on a ring of hashes.

>>> place = Placement(3)
>>> [f"{part.server}: {part.start}–{part.stop}" for part in place.parts("weight", 3_000_000)]
['0: 0–1000000', '1: 1000000–2000000', '2: 2000000–3000000']
>>> [part.server for part in place.parts("bias", 10)] == [place.owner("bias")]
True
"""

import hashlib
from bisect import bisect
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.units import is_count

LARGE = 250_000  # elements: arrays at least this long are cut
VIRTUAL = 256  # places of each server on the ring: the loads of servers differ by about 1/√256 of their mean


class PlacementError(Brief, ValueError):
    """Invalid numbers for a placement."""


class Part(NamedTuple):
    """The elements ``start`` to ``stop`` (as in a slice of the flat array) of ``key`` that ``server`` holds."""

    key: "str | int"
    server: int
    start: int
    stop: int


class Placement:
    """The placement of keys on servers, by consistent hashing with virtual nodes as in Dynamo.

    A server that joins k others takes 1/(k+1) of the small keys, equally from all of them, and no key moves between the
    others. The hash is SHA-256, which is the same in every process (Python's own is not).

    Args:
        servers: The number of servers, or the numbers of the present ones.
        large: Arrays with at least this many elements are cut into equally long ranges over all servers.
        virtual: Places of each server on the ring. Loads differ by about 1/√virtual of their mean.

    Attributes:
        ring (tuple of (int, int)): (place, server) in the order of the places, each from 0 up to 2⁶⁴.

    Raises:
        PlacementError: For invalid numbers.

    Source: Karger et al., "Consistent hashing and random trees", STOC 1997; DeCandia et al., "Dynamo", SOSP 2007.

    Example:
        >>> four, five = Placement(4), Placement(5)
        >>> moved = [key for key in range(1000) if four.owner(key) != five.owner(key)]
        >>> {five.owner(key) for key in moved}, len(moved)
        ({4}, 172)
    """

    def __init__(self, servers: "int | Iterable[int]", large: int = LARGE, virtual: int = VIRTUAL):
        numbers: Any = range(servers) if is_count(servers) else servers  # type: ignore[arg-type]
        try:
            self.servers = tuple(numbers)
        except TypeError:
            self.servers = ()
        if not self.servers or len({*self.servers}) < len(self.servers):
            raise PlacementError(text("placement.servers", servers=repr(servers)))
        for name, value in (("large", large), ("virtual", virtual)):
            require_count(name, value)
        self.large, self.virtual = large, virtual
        places = ((_hash(f"server {server}, place {i}"), server) for server in self.servers for i in range(virtual))
        self.ring: tuple[tuple[int, int], ...] = tuple(sorted(places))
        self._places = [place for place, _ in self.ring]

    def owner(self, key: "str | int") -> int:
        """Return the server of a small key: the first one on the ring after it.

        Args:
            key: The key; 3 and "3" differ.

        Returns:
            The number of the server.
        """
        key = _plain(key)
        return self.ring[bisect(self._places, _hash(f"key {key!r}")) % len(self.ring)][1]

    def parts(self, key: "str | int", elements: int, width: int = 1) -> tuple[Part, ...]:
        """Return the parts of a key, in their order.

        No row is cut, no part is empty, and the lengths of the parts differ by at most one row.

        Args:
            key: The key.
            elements: The elements of its array.
            width: The elements of a row.

        Returns:
            The parts, each with its server and its elements.
        """
        key = _plain(key)
        if elements < self.large:
            return (Part(key, self.owner(key), 0, elements),)
        n, rows = len(self.servers), elements // width
        cuts = pairwise(width * (rows * i // n) for i in range(n + 1))
        return tuple(Part(key, server, *cut) for server, cut in zip(self.servers, cuts, strict=True) if cut[0] < cut[1])

    def share(self, server: int) -> float:
        """Return the fraction of the ring, and thus of the small keys, that a server has.

        Args:
            server: Its number.

        Returns:
            A fraction, 0 to 1.
        """
        pairs = zip((self.ring[-1], *self.ring), self.ring, strict=False)
        return sum((here - before) % 2**64 for (before, _), (here, owner) in pairs if owner == server) / 2**64

    def __str__(self) -> str:
        lines = [text("placement.share", server=server, share=f"{self.share(server):.1%}") for server in self.servers]
        return "\n".join([*lines, text("placement.large", large=self.large, servers=len(self.servers))])


def require_count(name: str, value: Any, least: int = 1, error: type[Exception] = PlacementError) -> int:
    """Return ``value`` if it is a whole number of ``least`` or more; else raise ``error`` with the ``name``."""
    if not is_count(value, least):
        raise error(text("placement.count", what=name, value=repr(value), least=least))
    return value


def _plain(key: Any) -> "str | int":
    """Return a number of NumPy as an int: its repr, which is hashed, differs between versions."""
    return key.item() if hasattr(key, "item") else key


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
