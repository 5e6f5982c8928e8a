"""How a buffer is cut into keys: exact fractions, one function that everybody uses.

>>> slices(Share({"a": "1/3", "b": "2/3"}), 10)
{'a': slice(0, 3, None), 'b': slice(3, 10, None)}
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from d2lps.units import is_count


class Share(Mapping[str, Fraction]):
    """Key → fraction of the buffer: in order, immutable, hashable. Who makes one sees to it that they add up to 1.

    Parameters
    ----------
    parts : mapping of str to Fraction, int or str
        The keys in the order in which they lie in the buffer.
    """

    def __init__(self, parts: Mapping[str, "Fraction | int | str"]):
        self._parts = {key: Fraction(part) for key, part in parts.items()}

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
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return "Share({" + ", ".join(f"{key!r}: '{part}'" for key, part in self.items()) + "})"

    def __str__(self) -> str:
        """``g1 = g2 = 1/4``: keys of equal share together."""
        lines: list[tuple[list[str], Fraction]] = []
        for key, part in self.items():
            if lines and lines[-1][1] == part:
                lines[-1][0].append(key)
            else:
                lines.append(([key], part))
        return ", ".join(f"{' = '.join(keys)} = {part}" for keys, part in lines)


def slices(share: Mapping[str, Fraction], count: int) -> dict[str, slice]:
    """Where each key lies in a buffer of ``count`` elements: key i is [⌊N·cᵢ⌋, ⌊N·cᵢ₊₁⌋) of the cumulative shares cᵢ.

    Exact fractions, because floats lose elements: ⌊N·Σ1/n⌋ drops the last one for n = 6, 7, 10 and 13.

    Parameters
    ----------
    share : mapping of str to Fraction
        Key → its part of the buffer.
    count : int
        How many elements the buffer has.

    Returns
    -------
    dict of str to slice
        One after the other, without gaps.

    Raises
    ------
    ValueError
        For a count that is no whole number of 0 or more.
    """
    if not is_count(count):
        raise ValueError(f"a buffer of {count!r} elements: it has a whole number of them, 0 or more")
    cuts, total, start = {}, Fraction(0), 0
    for key, part in share.items():
        total += part
        stop = count * total.numerator // total.denominator
        cuts[key] = slice(start, stop)
        start = stop
    return cuts
