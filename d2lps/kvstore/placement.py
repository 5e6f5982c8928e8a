"""The placement of :mod:`d2lps.algorithms.placement`, with errors of the store."""

from collections.abc import Iterable

from d2lps.algorithms import placement
from d2lps.algorithms.placement import LARGE, VIRTUAL
from d2lps.kvstore.errors import Refused


class Placement(placement.Placement):
    __doc__ = (placement.Placement.__doc__ or "").replace("PlacementError", "Refused")

    def __init__(self, servers: "int | Iterable[int]", large: int = LARGE, virtual: int = VIRTUAL):
        try:
            super().__init__(servers, large, virtual)
        except placement.PlacementError as error:
            raise Refused(str(error)) from None


def require_count(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of ``least`` or more. Raises Refused."""
    try:
        return placement.require_count(name, value, least)
    except placement.PlacementError as error:
        raise Refused(str(error)) from None
