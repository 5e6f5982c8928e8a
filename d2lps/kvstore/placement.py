"""Which server holds what, as :mod:`d2lps.algorithms.placement` says; what it cannot take, the store refuses."""

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


def require_count(what: str, value: object) -> int:
    """A whole number from 1 on; Refused otherwise."""
    try:
        return placement.require_count(what, value)
    except placement.PlacementError as error:
        raise Refused(str(error)) from None
