"""Options of a distributed store, checked at the door, before anything is started."""

from collections.abc import Mapping

from d2lps.carriers.rendezvous import require_seconds
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.placement import Placement
from d2lps.messages import text

JOINING = 8.0  # seconds in which workers and servers come together, at least: Python and torch take some to start


def validate_deadline(deadline: object, what: str = "deadline") -> float:
    """It as a number of Python's. Raises Refused, which names ``what``, unless it is a number of seconds."""
    return require_seconds(what, deadline, Refused)


def validate_joining(joining: object, deadline: float) -> float:
    """Seconds for all to come together, as asked for or by default. Raises Refused."""
    return max(deadline, JOINING) if joining is None else validate_deadline(joining, "joining")


def validate_staleness(staleness: object) -> int:
    """It, where it is a number of pushes. Raises Refused."""
    if type(staleness) is not int or not 0 <= staleness < 1 << 53:  # JSON has no larger ones
        raise Refused(text("store.staleness", value=repr(staleness)))
    return staleness


def validate_placement(placement: Placement | Mapping | None, servers: int) -> Placement:
    """Where keys lie among so many servers, as asked for or by default. Raises Refused."""
    if isinstance(placement, Placement):
        if not {*placement.servers} <= {*range(servers)}:
            raise Refused(text("store.placement-over", given=placement.servers, last=servers - 1))
        return placement
    if placement is not None and (not isinstance(placement, Mapping) or {*placement} - {"large", "virtual"}):
        raise Refused(text("store.placement", given=repr(placement)))
    return Placement(servers, **placement or {})


def validate_replicas(replicas: object, servers: int, record: bool) -> int:
    """How many servers may be lost at once, 0 or 1. Raises Refused."""
    if type(replicas) is not int or replicas not in (0, 1):
        raise Refused(text("store.replicas", value=repr(replicas)))
    if replicas and servers < 2:
        raise Refused(text("store.replicas-servers"))
    if replicas and record:
        raise Refused(text("store.replicas-record"))
    return replicas
