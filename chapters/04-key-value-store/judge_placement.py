"""Judge a placement of keys on servers: the same everywhere, even, and with few moves when a server joins or leaves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from d2lps.notebook.grading import Failure, call, elsewhere, failure

MOST, LEAST = 1.4, 0.6  # of the mean load: 64 places of each server on a ring stay within
Placed = Mapping[str, str]


@dataclass(frozen=True)
class PlacementCase:
    """``keys`` on ``servers``, and ``joins``, a server that may join them."""

    keys: tuple[str, ...]
    servers: tuple[str, ...]
    joins: str

    @property
    def label(self) -> str:
        return f"k = {len(self.servers)}"


def placement_case(k: int, keys: int = 2000, host: str = "server{}") -> PlacementCase:
    """The case of k servers; names count up, but for the one that joins."""
    names = tuple(f"layer{i // 40}.{('weight', 'bias')[i % 2]}.{i % 40 // 2}" for i in range(keys))
    return PlacementCase(names, tuple(host.format(i) for i in range(k)), host.format(k))


def judge(case: PlacementCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    keys, servers = case.keys, case.servers
    place = _place(case, answer, keys, servers)
    _require_the_same(case, answer, place)
    joined = _place(case, answer, keys, (*servers, case.joins))
    moved = [key for key in keys if joined[key] != place[key]]
    between = [key for key in moved if joined[key] != case.joins]
    if between:
        raise _moves(case, "joins", case.joins, between, moved, place, joined)
    for gone in servers if len(servers) > 1 else ():
        left = _place(case, answer, keys, tuple(server for server in servers if server != gone))
        moved_then = [key for key in keys if left[key] != place[key]]
        between = [key for key in moved_then if place[key] != gone]
        if between:
            by_number = _place(case, answer, keys, servers[::-1]) != place
            raise _moves(case, "leaves", gone, between, moved_then, place, left, "by-position" if by_number else None)
    turned = _place(case, answer, keys, servers[::-1])
    _require_same_place(case, "by-position", "servers-turned", place, turned)
    for placed, among in ((place, servers), (joined, (*servers, case.joins))):
        _require_even(case, placed, among)
    loads = _loads(place, servers)
    return {
        "most": f"{max(loads.values())}",
        "least": f"{min(loads.values())}",
        "moved": str(len(moved)),
        "keys": str(len(keys)),
        "share": f"{len(keys) / (len(servers) + 1):.0f}",
    }


def _place(case: PlacementCase, answer: Callable, keys: Sequence[str], servers: Sequence[str]) -> dict[str, str]:
    place = call(case, answer, list(keys), list(servers))
    if not isinstance(place, dict):
        raise failure("wrong-type", "not-a-dict", case, type=type(place).__name__)
    if not place:
        raise failure("todo", "no-place", case)
    for key in keys:
        if key not in place:
            raise failure("differs", "key-missing", case, key=key)
        if not isinstance(place[key], str) or place[key] not in servers:
            raise failure("differs", "server-strange", case, key=key, server=repr(place[key]))
    if len(place) > len(set(keys)):
        strange = next(key for key in place if key not in set(keys))
        raise failure("differs", "key-strange", case, key=repr(strange))
    return dict(place)


def _require_the_same(case: PlacementCase, answer: Callable, place: Placed) -> None:
    """Twice, in another process, and whatever other keys there are."""
    keys, servers = case.keys, case.servers
    _require_same_place(case, "differs", "place-changes", place, _place(case, answer, keys, servers))
    there = elsewhere(answer, list(keys), list(servers))
    if isinstance(there, dict):
        _require_same_place(case, "python-hash", "place-elsewhere", place, there)
    for some in (keys[::-1], keys[: len(keys) // 4]):
        _require_same_place(case, "depends-on-others", "place-of-some", place, _place(case, answer, some, servers))


def _require_same_place(case: PlacementCase, mistake: str, sentence: str, place: Placed, other: Placed) -> None:
    for key, server in other.items():
        if server != place[key]:
            raise failure(mistake, sentence, case, key=key, server=place[key], other=server)


def _moves(
    case: PlacementCase,
    what: str,
    server: str,
    between: Sequence[str],
    moved: Sequence[str],
    place: Placed,
    then: Placed,
    mistake: str | None = None,
) -> Failure:
    """Keys moved between servers that were there before and are there still."""
    mistake = mistake or ("modulo" if len(between) > len(case.keys) / 4 else "moves-between")
    counts = {"moved": len(moved), "keys": len(case.keys), "between": len(between)}
    key = between[0]
    return failure(mistake, f"server-{what}", case, server=server, key=key, old=place[key], new=then[key], **counts)


def _loads(place: Placed, servers: Sequence[str]) -> dict[str, int]:
    loads = dict.fromkeys(servers, 0)
    for server in place.values():
        loads[server] += 1
    return loads


def _require_even(case: PlacementCase, place: Placed, servers: Sequence[str]) -> None:
    loads, mean = _loads(place, servers), len(place) / len(servers)
    for server, load in sorted(loads.items(), key=lambda item: abs(item[1] - mean), reverse=True):
        if not LEAST * mean <= load <= MOST * mean:
            values = {"server": server, "load": load, "keys": len(place), "mean": f"{mean:.0f}", "among": len(servers)}
            raise failure("uneven", "uneven-load", case, **values)
