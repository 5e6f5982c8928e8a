"""Which server holds what: large arrays are cut over all servers, small keys lie on a ring of hashes.

>>> place = Placement(3)
>>> [f"{part.server}: {part.start}–{part.stop}" for part in place.parts("weight", 3_000_000)]
['0: 0–1000000', '1: 1000000–2000000', '2: 2000000–3000000']
>>> [part.server for part in place.parts("bias", 10)] == [place.owner("bias")]
True
"""

import hashlib
from bisect import bisect
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from d2lps.kvstore.errors import Refused
from d2lps.messages import text

LARGE = 250_000  # elements from which on an array is cut
VIRTUAL = 256  # places of each server on the ring: the loads of servers differ by about 1/√256 of their mean


class Part(NamedTuple):
    """The elements ``start`` to ``stop`` of a key, which ``server`` holds."""

    key: "str | int"
    server: int
    start: int
    stop: int


class Placement:
    """Keys to servers.

    servers
        how many, or the numbers of those that are there.
    large
        elements from which on an array is cut into ranges over all servers, each as long as the others.
    virtual
        places of each server on the ring. Loads differ by about 1/√virtual of their mean. A server that joins k others
        takes 1/(k+1) of the small keys, from all of them alike, and none moves between the others: consistent hashing
        (Karger et al., STOC 1997), with virtual nodes as in Dynamo (DeCandia et al., SOSP 2007).

    The hash is SHA-256, the same in every process (Python's own is not).
    """

    def __init__(self, servers: "int | Iterable[int]", large: int = LARGE, virtual: int = VIRTUAL):
        if isinstance(servers, int) and not isinstance(servers, bool):
            servers = range(servers)
        try:
            self.servers = tuple(servers)
        except TypeError:
            self.servers = ()
        if not self.servers or len({*self.servers}) < len(self.servers):
            raise Refused(f"servers = {servers!r}: how many, 1 or more, or their different numbers")
        for name, value in (("large", large), ("virtual", virtual)):
            counted(name, value)
        self.large, self.virtual = large, virtual

    @cached_property
    def ring(self) -> tuple[tuple[int, int], ...]:
        """(place, server) in the order of the places, each from 0 up to 2⁶⁴."""
        return tuple(
            sorted(
                (_hash(f"server {server}, place {i}"), server) for server in self.servers for i in range(self.virtual)
            )
        )

    @cached_property
    def _places(self) -> list[int]:
        return [place for place, _ in self.ring]

    def owner(self, key: "str | int") -> int:
        """The server of a small key: the first one on the ring after the key's own place."""
        return self.ring[bisect(self._places, _hash(f"key {key!r}")) % len(self.ring)][1]

    def parts(self, key: "str | int", elements: int, width: int = 1) -> tuple[Part, ...]:
        """What each server holds of ``key``: a row of ``width`` elements is never cut, and no part is without any."""
        if elements < self.large:
            return (Part(key, self.owner(key), 0, elements),)
        n, rows = len(self.servers), elements // width
        cuts = pairwise(width * (rows * i // n) for i in range(n + 1))
        return tuple(Part(key, server, *cut) for server, cut in zip(self.servers, cuts, strict=True) if cut[0] < cut[1])

    def share(self, server: int) -> float:
        """The part of the ring that is ``server``'s, and thus of the small keys."""
        pairs = zip((self.ring[-1], *self.ring), self.ring, strict=False)
        return sum((here - before) % 2**64 for (before, _), (here, owner) in pairs if owner == server) / 2**64

    def __str__(self) -> str:
        lines = [text("placement.share", server=server, share=f"{self.share(server):.1%}") for server in self.servers]
        return "\n".join([*lines, text("placement.large", large=self.large, servers=len(self.servers))])


def counted(what: str, value: object) -> int:
    """A whole number from 1 on; Refused otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(f"{what} = {value!r}: a whole number, 1 or more")
    return value


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
