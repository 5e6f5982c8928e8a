"""Long sequences that are described rather than stored: a ring of 1024 nodes has two million sends.

>>> squares = Lazy(lambda t: [t * t], range(10**9))
>>> len(squares), squares[10], squares[3:5] == ((9,), (16,))
(1000000000, (100,), True)
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from d2lps.plan.share import Share

LARGE = 64  # plans of more nodes are lazy if their algorithm allows it, and are checked on request only


class Described(Sequence):
    """An immutable sequence that is not stored. It equals any tuple or Described of equal items.

    ``span`` has the numbers of the items, and ``item(t)`` makes item t. Sequences with equal descriptions are equal.
    """

    span: range

    @property
    def description(self) -> tuple | None:
        """All from which the items follow: sequences with equal descriptions are equal. None if there is none."""
        return None

    def item(self, t: int) -> object:
        """Make item t."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.span)

    def __getitem__(self, index):
        return replace(self, span=self.span[index]) if isinstance(index, slice) else self.item(self.span[index])

    def __iter__(self) -> Iterator:
        return map(self.item, self.span)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described | tuple):
            return NotImplemented
        if isinstance(other, type(self)) and self.description and self.description == other.description:
            return True
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))  # the hash of the equal tuple, though that makes every item

    def __repr__(self) -> str:
        return f"<{len(self)} items, made when they are asked for>"


@dataclass(frozen=True, eq=False, repr=False)
class Lazy(Described):
    """The steps of an algorithm, ``step(t)`` for every t of ``span``, each made anew on every access.

    alike
        maps t to a hashable. Steps with the same hashable send the same shares between the same pairs by the same ops
        in the same order, so their cost is computed only once. If left out, no step is like another.
    call
        the algorithm and its arguments, which make a plan of these steps; used to compare and pickle the sequence.
    joined
        maps t to (sender, receiver, op, number of sends) if all keys have one size and each sender one receiver:
        the cost of a step is then computed without making its sends.
    around
        maps t to (places, op, number of sends) if all keys have one size and every node sends to the node so many
        places after it (cyclic), in the order of the nodes if it sends only one key: on a topology that looks the same
        from many nodes, the cost of a step is then computed from a few of its sends.
    """

    step: Callable[[int], Sequence]
    span: range
    alike: Callable[[int], Hashable] = int
    call: tuple | None = None
    joined: Callable[[int], Sequence] | None = None
    around: Callable[[int], tuple[int, str, int]] | None = None

    @property
    def description(self) -> tuple | None:
        return self.call and (self.call, self.span)

    def item(self, t: int) -> tuple:
        return tuple(self.step(t))

    def kind(self, i: int) -> Hashable:
        """Return the hashable that ``alike`` gives for step i."""
        return self.alike(self.span[i])

    def groups(self, i: int) -> Sequence | None:
        """Return what ``joined`` gives for step i; None if the messages of a step are not joined."""
        return self.joined and self.joined(self.span[i])

    def turns(self, i: int) -> tuple[int, str, int] | None:
        """Return what ``around`` gives for step i; None if the nodes do not all do the same."""
        return self.around and self.around(self.span[i])

    def __reduce__(self):
        return (_steps, self.description) if self.call else (tuple, ([*self],))


def _steps(call: tuple, span: range) -> Lazy:
    algorithm, *arguments = call
    return replace(algorithm(*arguments).steps, span=span)


@dataclass(frozen=True, eq=False, repr=False)
class Product(Described):
    """Every (node, *row), node by node: the keys that all nodes hold or want."""

    nodes: tuple[str, ...]
    rows: tuple[tuple, ...]
    span: range

    @property
    def description(self) -> tuple:
        return self.nodes, self.rows, self.span

    def item(self, t: int) -> tuple:
        return self.nodes[t // len(self.rows)], *self.rows[t % len(self.rows)]

    def __iter__(self) -> Iterator:
        if len(self.span) < len(self.nodes) * len(self.rows):
            return super().__iter__()
        return ((node, *row) for node in self.nodes for row in self.rows)  # five times as fast


class Grid(Share):
    """The shares of the n² keys ``g1.1`` … ``gn.n``: all are equal, and none is stored."""

    def __init__(self, key: str, n: int):
        self.key, self.n, self._part = key, n, Fraction(1, n * n)
        self._numbers = {str(i + 1): i for i in range(n)}

    def name(self, i: int, j: int) -> str:
        """Return the name of key (i, j), both counted from 0."""
        return f"{self.key}{i + 1}.{j + 1}"

    def __getitem__(self, key: str) -> Fraction:
        first, dot, second = key.removeprefix(self.key).partition(".")
        if not key.startswith(self.key) or not dot or not {first, second} <= self._numbers.keys():
            raise KeyError(key)
        return self._part

    def ratio(self, key: str) -> tuple[int, int]:
        return self[key].as_integer_ratio()

    def __iter__(self) -> Iterator[str]:
        return (self.name(i, j) for i in range(self.n) for j in range(self.n))

    def __len__(self) -> int:
        return self.n * self.n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and (self.key, self.n) == (other.key, other.n) or super().__eq__(other)

    __hash__ = Share.__hash__


@dataclass(frozen=True, eq=False, repr=False)
class Cells(Described):
    """Every (node, key) of a :class:`Grid`: node i has ``gi.1`` … ``gi.n``. Wanted: (node, key, "sum"), ``g1.i`` …"""

    nodes: tuple[str, ...]
    share: Grid
    wanted: bool
    span: range

    @property
    def description(self) -> tuple:
        return self.nodes, self.share, self.wanted, self.span

    def item(self, t: int) -> tuple:
        i, j = divmod(t, len(self.nodes))
        return (self.nodes[i], self.share.name(j, i), "sum") if self.wanted else (self.nodes[i], self.share.name(i, j))
