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
from itertools import pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.units import is_count

LARGE = 250_000  # elements from which on an array is cut
VIRTUAL = 256  # places of each server on the ring: the loads of servers differ by about 1/√256 of their mean


class PlacementError(Brief, ValueError):
    """Numbers of which no placement can be made."""


class Part(NamedTuple):
    """The elements ``start`` to ``stop`` of a key, which ``server`` holds.

    Attributes
    ----------
    key : str or int
        The key.
    server : int
        The number of the server.
    start, stop : int
        Elements of the flat array, as a slice has them.
    """

    key: "str | int"
    server: int
    start: int
    stop: int


class Placement:
    """Keys to servers.

    A server that joins k others takes 1/(k+1) of the small keys, from all of them alike, and none moves between the
    others: consistent hashing, with virtual nodes as in Dynamo. The hash is SHA-256, the same in every process
    (Python's own is not).

    Parameters
    ----------
    servers : int or iterable of int
        How many, or the numbers of those that are there.
    large : int
        Elements from which on an array is cut into ranges over all servers, each as long as the others.
    virtual : int
        Places of each server on the ring. Loads differ by about 1/√virtual of their mean.

    Attributes
    ----------
    ring : tuple of (int, int)
        (place, server) in the order of the places, each from 0 up to 2⁶⁴.

    Raises
    ------
    PlacementError
        Where one of them is no such number.

    References
    ----------
    Karger et al., "Consistent hashing and random trees", STOC 1997; DeCandia et al., "Dynamo", SOSP 2007.

    Examples
    --------
    >>> four, five = Placement(4), Placement(5)
    >>> moved = [key for key in range(1000) if four.owner(key) != five.owner(key)]
    >>> {five.owner(key) for key in moved}, len(moved)
    ({4}, 172)
    """

    def __init__(self, servers: "int | Iterable[int]", large: int = LARGE, virtual: int = VIRTUAL):
        if is_count(servers):
            servers = range(servers)
        try:
            self.servers = tuple(servers)
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
        """The server of a small key: the first one on the ring after the key's own place.

        Parameters
        ----------
        key : str or int
            The key; 3 and "3" are two keys.

        Returns
        -------
        int
            The number of the server.
        """
        return self.ring[bisect(self._places, _hash(f"key {key!r}")) % len(self.ring)][1]

    def parts(self, key: "str | int", elements: int, width: int = 1) -> tuple[Part, ...]:
        """What each server holds of ``key``: a row of ``width`` elements is never cut, and no part is without any.

        Parameters
        ----------
        key : str or int
            The key.
        elements : int
            How many the whole array has.
        width : int
            How many a row has.

        Returns
        -------
        tuple of Part
            In the order of the array, each as long as the others, to a row.
        """
        if elements < self.large:
            return (Part(key, self.owner(key), 0, elements),)
        n, rows = len(self.servers), elements // width
        cuts = pairwise(width * (rows * i // n) for i in range(n + 1))
        return tuple(Part(key, server, *cut) for server, cut in zip(self.servers, cuts, strict=True) if cut[0] < cut[1])

    def share(self, server: int) -> float:
        """The part of the ring that is ``server``'s, and thus of the small keys.

        Parameters
        ----------
        server : int
            Its number.

        Returns
        -------
        float
            From 0 to 1; those of all servers make 1.
        """
        pairs = zip((self.ring[-1], *self.ring), self.ring, strict=False)
        return sum((here - before) % 2**64 for (before, _), (here, owner) in pairs if owner == server) / 2**64

    def __str__(self) -> str:
        lines = [text("placement.share", server=server, share=f"{self.share(server):.1%}") for server in self.servers]
        return "\n".join([*lines, text("placement.large", large=self.large, servers=len(self.servers))])


def require_count(what: str, value: object) -> int:
    """``value``, a whole number from 1 on. Raises PlacementError, which names ``what``, otherwise."""
    if not is_count(value, least=1):
        raise PlacementError(text("placement.count", what=what, value=repr(value)))
    return value


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
