"""Options of a distributed store, checked at the door, before anything is started."""

from collections.abc import Mapping

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.placement import Placement


def validate_deadline(deadline: object) -> None:
    """Raises Refused unless it is a number of seconds."""
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 < deadline < 1e6:
        raise Refused(f"deadline = {deadline!r}: seconds, more than 0")


def validate_placement(placement: Placement | Mapping | None, servers: int) -> Placement:
    """Where keys lie among so many servers, as asked for or by default. Raises Refused."""
    if isinstance(placement, Placement):
        if not {*placement.servers} <= {*range(servers)}:
            raise Refused(f"placement is over servers {placement.servers}, where there are 0 to {servers - 1}")
        return placement
    if placement is not None and (not isinstance(placement, Mapping) or {*placement} - {"large", "virtual"}):
        raise Refused(f"placement = {placement!r}: a Placement, or its numbers {{'large': …, 'virtual': …}}")
    return Placement(servers, **placement or {})
