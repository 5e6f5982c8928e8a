"""Long sequences that are described rather than stored: a ring of 1024 nodes has two million sends.

>>> squares = Lazy(lambda t: [t * t], range(10**9))
>>> len(squares), squares[10], squares[3:5] == ((9,), (16,))
(1000000000, (100,), True)
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

LARGE = 64  # plans of more nodes are kept lazily where their algorithm can, and are checked on request only


class Described(Sequence):
    """An immutable sequence that is not stored. Equal to any tuple, and any other of its like, of equal items.

    ``span`` has the numbers of its items, ``item(t)`` makes that of number t; what has equal descriptions is equal.
    """

    span: range
    description: tuple | None = None

    def __len__(self) -> int:
        return len(self.span)

    def __getitem__(self, where):
        return replace(self, span=self.span[where]) if isinstance(where, slice) else self.item(self.span[where])

    def __iter__(self) -> Iterator:
        return map(self.item, self.span)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described | tuple):
            return NotImplemented
        if isinstance(other, type(self)) and self.description and self.description == other.description:
            return True
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))  # that of the equal tuple, though it costs the whole of it

    def __repr__(self) -> str:
        return f"<{len(self)} items, made when they are asked for>"


@dataclass(frozen=True, eq=False, repr=False)
class Lazy(Described):
    """The steps of an algorithm, ``step(t)`` for every t of ``span``, each made anew whenever it is asked for.

    alike
        tells of t, by a hashable, which steps need to be looked at only once: they have the same one and send between
        the same pairs, the same shares by the same ops, in the same order. If left out, no step is like another.
    call
        the algorithm and its arguments, which make a plan of these steps: by this they are compared and pickled.
    """

    step: Callable[[int], Sequence]
    span: range
    alike: Callable[[int], Hashable] = int
    call: tuple | None = None

    @property
    def description(self) -> tuple | None:
        return self.call and (self.call, self.span)

    def item(self, t: int) -> tuple:
        return tuple(self.step(t))

    def kind(self, i: int) -> Hashable:
        """What ``alike`` says of step i."""
        return self.alike(self.span[i])

    def __reduce__(self):
        return (_steps, self.description) if self.call else (tuple, ([*self],))


def _steps(call: tuple, span: range) -> Lazy:
    algorithm, *arguments = call
    return replace(algorithm(*arguments).steps, span=span)


@dataclass(frozen=True, eq=False, repr=False)
class Product(Described):
    """Every (node, *row), node by node: what all nodes hold, or want, of all keys."""

    nodes: tuple[str, ...]
    rows: tuple[tuple, ...]
    span: range

    @property
    def description(self) -> tuple:
        return self.nodes, self.rows, self.span

    def item(self, t: int) -> tuple:
        return self.nodes[t // len(self.rows)], *self.rows[t % len(self.rows)]
