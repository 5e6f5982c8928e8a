"""Long sequences that are described rather than stored: a ring of 1024 nodes has two million sends.

>>> powers = Lazy(pow, (2,), range(10**9))
>>> len(powers), powers[10], powers[3:6] == (8, 16, 32)
(1000000000, 1024, True)
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

LARGE = 64  # plans of more nodes are kept lazily where their algorithm can, and are checked on request only


class Described(Sequence):
    """An immutable sequence that is not stored. Equal to any tuple, and any other of its like, of equal items."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))  # that of the equal tuple, though it costs the whole of it

    def __repr__(self) -> str:
        return f"<{len(self)} items, made when they are asked for>"


@dataclass(frozen=True, eq=False, repr=False)
class Lazy(Described):
    """The sequence of ``make(*args, t)`` for every t of ``span``, made anew whenever it is asked for.

    ``make`` and ``alike`` are functions of a module, so that pickle finds them.

    alike
        ``alike(*args, t)`` tells, by a hashable, which items need to be looked at only once; if left out, all do.
        Steps of a plan with the same one send between the same pairs, the same shares by the same ops, in the
        same order.
    """

    make: Callable
    args: tuple
    span: range
    alike: Callable[..., Hashable] | None = None

    def kind(self, i: int) -> Hashable:
        """What ``alike`` says of item i."""
        return self.alike(*self.args, self.span[i]) if self.alike else self.span[i]

    def __len__(self) -> int:
        return len(self.span)

    def __getitem__(self, where):
        if isinstance(where, slice):
            return Lazy(self.make, self.args, self.span[where], self.alike)
        return self.make(*self.args, self.span[where])

    def __iter__(self) -> Iterator:
        return (self.make(*self.args, t) for t in self.span)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Lazy) and (self.make, self.args, self.span) == (other.make, other.args, other.span):
            return True
        return super().__eq__(other)

    __hash__ = Described.__hash__
