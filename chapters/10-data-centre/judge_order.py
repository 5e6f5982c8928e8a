"""Judge an order of hosts on a ring: of each rack one flow leaves and one enters, and none if it is the only rack."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure


@dataclass(frozen=True)
class OrderCase:
    """The rack of each host, in the order in which the learner gets them."""

    label: str
    hosts: tuple[tuple[str, str], ...]

    @property
    def racks(self) -> list[str]:
        return list(dict.fromkeys(rack for _, rack in self.hosts))


def most_leaving(case: OrderCase, order: list[str]) -> int:
    """Return how many flows of the ring leave the rack that most of them leave; as many enter it."""
    rack = dict(case.hosts)
    hops = zip(order, order[1:] + order[:1], strict=True)
    return max(Counter(rack[a] for a, b in hops if rack[a] != rack[b]).values(), default=0)


def judge(case: OrderCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    order = _order(case, call(case, answer, dict(case.hosts)))
    flows, enough = most_leaving(case, order), int(len(case.racks) > 1)
    if flows > enough:
        raise failure(_mistake(case, order), "hosts-flows", case, got=flows, enough=enough, order=" ".join(order))
    return {"order": " ".join(order), "worst": str(most_leaving(case, [host for host, _ in case.hosts]))}


def _order(case: OrderCase, result: object) -> list[str]:
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise failure("wrong-type", "hosts-not-a-list", case, type=type(result).__name__)
    order, known = list(result), dict(case.hosts)
    if not order:
        raise failure("todo", "hosts-nothing", case)
    for host in order:
        try:
            there = host in known
        except TypeError:
            there = False
        if not there:
            raise failure("differs", "hosts-strange", case, host=repr(host)[:40])
        if order.count(host) > 1:
            raise failure("twice", "hosts-twice", case, host=host)
    for host in known:
        if host not in order:
            raise failure("differs", "hosts-missing", case, host=host)
    return order


def _mistake(case: OrderCase, order: list[str]) -> str:
    rack = dict(case.hosts)
    crossing = [rack[a] != rack[b] for a, b in zip(order, order[1:] + order[:1], strict=True)]
    return "alternating" if all(crossing) else "torn"


def _case(label: str, racks: str, names: Iterable[str] = ()) -> OrderCase:
    """Return a case with a host for each letter, which is the name of its rack."""
    names = list(names) or [f"host{i}" for i in range(len(racks))]
    return OrderCase(
        f"n = {len(racks)}, {label}", tuple((name, f"rack-{letter}") for name, letter in zip(names, racks, strict=True))
    )


CASES = (
    _case("4 + 4", "abababab"),
    _case("4 + 4 (2)", "baabbaab", ["h7", "h3", "h5", "h0", "h2", "h6", "h1", "h4"]),
    _case("3 + 3 + 2", "abcabcab"),
    _case("1 + 5", "bbabbb"),
    _case("4 + 2 + 3 + 1 + 5", "eadbcaeaecbeaec", [f"node{(7 * i) % 15}" for i in range(15)]),
    _case("5", "aaaaa"),
    _case("1 + 1", "ba"),
    _case("1", "z", ["alone"]),
    _case("16 + 16", "ab" * 16),
)
