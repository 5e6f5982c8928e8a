"""The cutting of a buffer into keys: exact fractions, and the one function that turns them into slices.

>>> slices(Share({"a": "1/3", "b": "2/3"}), 10)
{'a': slice(0, 3, None), 'b': slice(3, 10, None)}
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice

from d2lps.units import is_count


class Share(Mapping[str, Fraction]):
    """Key → fraction of the buffer: ordered, immutable, hashable. The caller makes sure that they add up to 1.

    Args:
        parts: The keys in the order in which they lie in the buffer.
    """

    def __init__(self, parts: Mapping[str, "Fraction | int | str"]):
        self._parts = {key: Fraction(part) for key, part in parts.items()}
        self._ratios = {key: part.as_integer_ratio() for key, part in self._parts.items()}

    def ratio(self, key: str) -> tuple[int, int]:
        """Return the fraction of a key as (numerator, denominator): unlike fractions, pairs of ints are hashed fast.

        Args:
            key: A key.

        Returns:
            In lowest terms.
        """
        return self._ratios[key]

    def __getitem__(self, key: str) -> Fraction:
        return self._parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __eq__(self, other: object) -> bool:
        # Unlike a dict: the order of the keys says where they lie in the buffer.
        return isinstance(other, Share) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash((len(self), *islice(self.items(), 2)))  # not of all keys, which may be a hundred million

    def __repr__(self) -> str:
        return "Share({" + ", ".join(f"{key!r}: '{part}'" for key, part in self.items()) + "})"

    def __str__(self) -> str:
        """Print ``g1 = g2 = 1/4``: adjacent keys of equal share are joined."""
        lines: list[tuple[list[str], Fraction]] = []
        for key, part in self.items():
            if lines and lines[-1][1] == part:
                lines[-1][0].append(key)
            else:
                lines.append(([key], part))
        return ", ".join(f"{' = '.join(keys)} = {part}" for keys, part in lines)


def slices(share: Mapping[str, Fraction], count: int) -> dict[str, slice]:
    """Return the slice of each key in a buffer of N elements: [⌊N·cᵢ⌋, ⌊N·cᵢ₊₁⌋), where cᵢ are the cumulative shares.

    The fractions are exact because floats lose elements: ⌊N·Σ1/n⌋ drops the last one for n = 6, 7, 10 and 13.

    Args:
        share: Key → its part of the buffer.
        count: The number of elements of the buffer, N.

    Returns:
        Slices one after the other, without gaps.

    Raises:
        ValueError: For a count that is not a whole number of 0 or more.
    """
    if not is_count(count):
        raise ValueError(f"a buffer of {count!r} elements: the number must be whole, 0 or more")
    cuts, total, start = {}, Fraction(0), 0
    for key, part in share.items():
        total += part
        stop = count * total.numerator // total.denominator
        cuts[key] = slice(start, stop)
        start = stop
    return cuts
