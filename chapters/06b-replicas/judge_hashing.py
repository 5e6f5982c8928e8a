"""Judge which servers hold the copies of each key: on hosts of their own, evenly, and with few moves."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from d2lps.notebook.grading import call, elsewhere, failure

MOST, LEAST = 1.4, 0.6  # of the mean load
LEAVE = 4  # so many of the servers leave, one at a time
HEIRS = 0.55  # of the keys of a server that is gone may fall to one other, where there are enough others
Placed = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class HashingCase:
    """``keys`` on the servers of ``hosts`` (server → host), each with so many ``replicas``; and who may join."""

    keys: tuple[str, ...]
    hosts: tuple[tuple[str, str], ...]
    replicas: int
    joins: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        return f"k = {len(self.hosts)}, hosts = {len({host for _, host in self.hosts})}, replicas = {self.replicas}"


NAMES = "fir oak ash10 elm birch ash1 yew larch alder pine".split()  # no numbers in order, and one begins another
NAMES += [f"{name}{i}" for i in (7, 23, 5) for name in NAMES]


def hashing_case(hosts: int, each: int, replicas: int, keys: int = 1000, more: int = 0) -> HashingCase:
    """Return a case with this many hosts, ``each`` servers per host, and so many ``more`` on the first one.

    One server may join on a host of its own, and another one on the first host.
    """
    parameters = tuple(f"layer{i // 40}.{('weight', 'bias')[i % 2]}.{i % 40 // 2}" for i in range(keys))
    on = [i % hosts + 9 for i in range(hosts * each)] + [9] * more
    servers = tuple((name, f"host{i}") for name, i in zip(NAMES, on, strict=False))
    joins = (NAMES[len(servers)], f"host{hosts + 9}"), (NAMES[len(servers) + 1], "host9")
    return HashingCase(parameters, servers, replicas, joins)


def judge(case: HashingCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    hosts = dict(case.hosts)
    place = _place(case, answer, case.keys, hosts)
    _require_the_same(case, answer, place, hosts)
    moved = []
    for server, host in case.joins:
        more = hosts | {server: host}
        joined = _place(case, answer, case.keys, more)
        moved.append(_require_few_moves(case, "joins", server, place, joined, answer))
        _require_even(case, joined, more)
    if len(hosts) > 1:
        for gone in list(hosts)[:LEAVE]:
            rest = {server: host for server, host in hosts.items() if server != gone}
            if len(set(rest.values())) > case.replicas:
                left = _place(case, answer, case.keys, rest)
                _require_few_moves(case, "leaves", gone, place, left, answer)
    _require_same_place(case, "by-position", "copies-turned", place, _turned(case, answer))
    _require_even(case, place, hosts)
    _require_heirs(case, place, hosts)
    copies = Counter(server for servers in place.values() for server in servers)
    return {
        "copies": str(len(place) * (case.replicas + 1)),
        "least": str(min(copies.values())),
        "most": str(max(copies.values())),
        "moved": str(moved[0]),
        "share": f"{len(place) * (case.replicas + 1) / (len(hosts) + 1):.0f}",
    }


def _place(case: HashingCase, answer: Callable, keys: Sequence[str], hosts: Mapping[str, str]) -> Placed:
    place = call(case, answer, list(keys), dict(hosts), case.replicas)
    if not isinstance(place, dict):
        raise failure("wrong-type", "not-a-dict-of-lists", case, type=type(place).__name__)
    if not place:
        raise failure("todo", "no-place", case)
    for key in keys:
        if key not in place:
            raise failure("differs", "key-missing", case, key=key)
        _require_copies(case, key, place[key], hosts)
    if len(place) > len(set(keys)):
        strange = next(key for key in place if key not in set(keys))
        raise failure("differs", "key-strange", case, key=repr(strange))
    return {key: tuple(place[key]) for key in keys}


def _require_copies(case: HashingCase, key: str, servers: object, hosts: Mapping[str, str]) -> None:
    """A list of r + 1 different servers on as many hosts."""
    if not isinstance(servers, list | tuple):
        raise failure("wrong-type", "copies-no-list", case, key=key, type=type(servers).__name__)
    for server in servers:
        if not isinstance(server, str) or server not in hosts:
            raise failure("differs", "server-strange", case, key=key, server=repr(server)[:60])
    values = {"key": key, "servers": ", ".join(servers), "wanted": case.replicas + 1}
    if len(set(servers)) < len(servers):
        raise failure("same-server", "copies-same-server", case, **values)
    on = [hosts[server] for server in servers]
    if len(set(on)) < len(on):
        raise failure("same-host", "copies-same-host", case, hosts=", ".join(on), **values)
    if len(servers) != case.replicas + 1:
        raise failure("differs", "copies-count", case, got=len(servers), **values)


def _require_the_same(case: HashingCase, answer: Callable, place: Placed, hosts: Mapping[str, str]) -> None:
    """Twice, in another process, and whatever other keys there are."""
    there = elsewhere(answer, list(case.keys), dict(hosts), case.replicas)
    if isinstance(there, dict):
        _require_same_place(case, "python-hash", "copies-elsewhere", place, there)
    for some in (case.keys[::-1], case.keys[: len(case.keys) // 4]):
        _require_same_place(case, "differs", "copies-of-some", place, _place(case, answer, some, hosts))


def _require_same_place(case: HashingCase, mistake: str, sentence: str, place: Placed, other: Placed) -> None:
    for key, servers in other.items():
        if tuple(servers) != place[key]:
            values = {"servers": ", ".join(place[key]), "other": ", ".join(servers)}
            raise failure(mistake, sentence, case, key=key, **values)


def _require_few_moves(case: HashingCase, what: str, server: str, place: Placed, then: Placed, answer: Callable) -> int:
    """Only copies that ``server`` takes over or gives up have moved, and who stays keeps its order; how many have."""
    moved, between = 0, []
    for key, before in place.items():
        after = then[key]
        new, gone = set(after) - set(before), set(before) - set(after)
        moved += len(new)
        one = new if what == "joins" else gone  # who has to be the server itself
        if one - {server} or len(new) > 1:
            between.append(key)
    values = {"server": server, "moved": moved, "copies": len(place) * (case.replicas + 1)}
    if between:
        many, key = len(between) > len(case.keys) / 3, between[0]
        mistake = "modulo" if many else "differs"
        if what == "leaves" and _turned(case, answer) != place:
            mistake = "by-position"
        elif not many:
            _require_heirs(case, place, dict(case.hosts))
        values |= {"key": key, "old": ", ".join(place[key]), "new": ", ".join(then[key]), "between": len(between)}
        raise failure(mistake, f"copies-{what}", case, **values)
    for key, before in place.items():
        stay = [[each for each in one if each in other] for one, other in ((before, then[key]), (then[key], before))]
        if stay[0] != stay[1]:
            shown = {"server": server, "old": ", ".join(before), "new": ", ".join(then[key])}
            raise failure("differs", "copies-reordered", case, key=key, **shown)
    return moved


def _turned(case: HashingCase, answer: Callable) -> Placed:
    """With the same servers in another order."""
    return _place(case, answer, case.keys, dict(reversed(case.hosts)))


def _require_even(case: HashingCase, place: Placed, hosts: Mapping[str, str]) -> None:
    """Copies in all, and keys of which a server is the first, if every host has as many servers."""
    if len(set(Counter(hosts.values()).values())) > 1:
        return
    kinds = {"uneven-copies": range(case.replicas + 1), "uneven-primaries": range(1)}
    for sentence, which in kinds.items():
        loads = Counter(dict.fromkeys(hosts, 0))
        loads.update(servers[i] for servers in place.values() for i in which)
        mean = len(place) * len(which) / len(hosts)
        server, load = max(loads.items(), key=lambda item: abs(item[1] - mean))
        if not LEAST * mean <= load <= MOST * mean:
            raise failure("uneven", sentence, case, server=server, load=load, mean=f"{mean:.0f}", among=len(hosts))


def _require_heirs(case: HashingCase, place: Placed, hosts: Mapping[str, str]) -> None:
    """Raise Failure unless the keys of a dead server go to many others."""
    if not case.replicas or len(set(hosts.values())) < 4:
        return
    heirs = {server: Counter() for server in hosts}
    for first, second, *_ in place.values():
        heirs[first][second] += 1
    for server, others in heirs.items():
        heir, count = others.most_common(1)[0]
        if count > HEIRS * others.total():
            raise failure("one-heir", "one-heir", case, server=server, heir=heir, load=count, all=others.total())
