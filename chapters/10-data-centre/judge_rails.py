"""Judge rings on rails: no hop between hosts changes the rail, and no two rings send or receive by the same card."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure


@dataclass(frozen=True)
class RailCase:
    """The GPUs of each host; the i-th GPU of a host has its card on rail i."""

    label: str
    hosts: tuple[tuple[str, ...], ...]


def crossings(case: RailCase, order: list[str]) -> list[tuple[str, str]]:
    """Return the hops of a ring from host to host that change the rail, and so pass the spine."""
    rail = {gpu: i for host in case.hosts for i, gpu in enumerate(host)}
    return [(a, b) for a, b in exits(case, order) if rail[a] != rail[b]]


def exits(case: RailCase, order: list[str]) -> list[tuple[str, str]]:
    """Return the hops of a ring from one host to another."""
    home = {gpu: h for h, host in enumerate(case.hosts) for gpu in host}
    return [(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True) if home[a] != home[b]]


def judge(case: RailCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    rings = [
        _order(case, k, call(case, answer, [list(host) for host in case.hosts], k)) for k in range(len(case.hosts[0]))
    ]
    for k, order in reversed([*enumerate(rings)]):  # ring 0 of a wrong answer often looks like the flat ring
        _require_rails(case, k, order)
    for way, end in (("rails-sends", 0), ("rails-receives", 1)):
        used: dict[str, int] = {}
        for k, order in enumerate(rings):
            for hop in exits(case, order):
                if (other := used.setdefault(hop[end], k)) != k:
                    raise failure("same-card", way, case, first=other, second=k, gpu=hop[end])
    flat = [gpu for host in case.hosts for gpu in host]
    return {"order": " ".join(rings[0]), "flat": str(len(crossings(case, flat)))}


def _require_rails(case: RailCase, k: int, order: list[str]) -> None:
    away = Counter(next(h for h, host in enumerate(case.hosts) if a in host) for a, _ in exits(case, order))
    for host, times in away.items():
        if times > 1:
            raise failure("torn", "rails-torn", case, ring=k, host=" ".join(case.hosts[host]), got=times)
    if crossing := crossings(case, order):
        last, first = ({host[i] for host in case.hosts} for i in (-1, 0))
        mistake = "flat" if all(a in last and b in first for a, b in crossing) else "crosses"
        if len(crossing) == 1 < len(exits(case, order)):
            mistake = "closing"
        src, dst = crossing[0]
        raise failure(mistake, "rails-spine", case, ring=k, src=src, dst=dst, got=len(crossing))


def _order(case: RailCase, k: int, result: object) -> list[str]:
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise failure("wrong-type", "rails-not-a-list", case, ring=k, type=type(result).__name__)
    order, known = list(result), [gpu for host in case.hosts for gpu in host]
    if not order:
        raise failure("todo", "rails-nothing", case, ring=k)
    for gpu in order:
        if not isinstance(gpu, str) or gpu not in known:
            raise failure("differs", "rails-strange", case, ring=k, gpu=repr(gpu)[:40])
        if order.count(gpu) > 1:
            raise failure("differs", "rails-twice", case, ring=k, gpu=gpu)
    for gpu in known:
        if gpu not in order:
            raise failure("missing", "rails-missing", case, ring=k, gpu=gpu)
    return order


def _case(hosts: int, gpus: int, stride: int = 1) -> RailCase:
    """Return a case whose names say nothing about rails if ``stride`` is not 1."""
    number = [i * stride % (hosts * gpus) for i in range(hosts * gpus)]
    names = [f"h{i // gpus}g{i % gpus}" if stride == 1 else f"card{number[i]}" for i in range(hosts * gpus)]
    return RailCase(
        f"n = {hosts * gpus}, {hosts} × {gpus}", tuple(tuple(names[h * gpus : (h + 1) * gpus]) for h in range(hosts))
    )


CASES = (
    _case(2, 2),
    _case(4, 8),
    _case(2, 3, 5),
    _case(6, 4, 7),
    _case(1, 4),
    _case(4, 2, 3),
    _case(4, 1),
    _case(8, 8),
)
