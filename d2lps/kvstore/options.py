"""Checks of the options of a distributed store, before anything is started."""

from collections.abc import Mapping

from d2lps.carriers.rendezvous import require_seconds
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.placement import Placement
from d2lps.messages import text

JOINING = 8.0  # the shortest default, in seconds: Python and torch take some time to start


def validate_deadline(deadline: object, name: str = "deadline") -> float:
    """Return seconds as a float. Raises Refused, with the option's ``name``, if they are not a positive number."""
    return require_seconds(name, deadline, Refused)


def validate_joining(joining: object, deadline: float) -> float:
    """Return the given or default seconds for all workers and servers to start. Raises Refused."""
    return max(deadline, JOINING) if joining is None else validate_deadline(joining, "joining")


def validate_staleness(staleness: object) -> int:
    """Return a number of pushes. Raises Refused."""
    if type(staleness) is not int or not 0 <= staleness < 1 << 53:  # JSON has no larger integers
        raise Refused(text("store.staleness", value=repr(staleness)))
    return staleness


def validate_placement(placement: Placement | Mapping | None, servers: int) -> Placement:
    """Return the given or default placement of keys on so many servers. Raises Refused."""
    if isinstance(placement, Placement):
        if not {*placement.servers} <= {*range(servers)}:
            raise Refused(text("store.placement-over", given=placement.servers, last=servers - 1))
        return placement
    if placement is not None and (not isinstance(placement, Mapping) or {*placement} - {"large", "virtual"}):
        raise Refused(text("store.placement", given=repr(placement)))
    return Placement(servers, **placement or {})


def validate_replicas(replicas: object, servers: int) -> int:
    """Return how many servers may be lost at once, 0 or 1. Raises Refused."""
    if type(replicas) is not int or replicas not in (0, 1):
        raise Refused(text("store.replicas", value=repr(replicas)))
    if replicas and servers < 2:
        raise Refused(text("store.replicas-servers"))
    return replicas
