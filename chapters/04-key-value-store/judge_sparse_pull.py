"""Judge a sparse pull: the rows requested from each server, and if the rows wanted came back in their order."""

import operator
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, size_text


@dataclass(frozen=True)
class RowsCase:
    """The table's rows are cut at ``cuts``, and ``rows`` are wanted."""

    rows: tuple[int, ...]
    cuts: tuple[int, ...]
    width: int = 16
    more: str = ""

    @property
    def label(self) -> str:
        return f"k = {len(self.cuts) - 1}{self.more}"

    def size_of(self, rows: Collection[int]) -> str:
        """Return the size of so many rows in float32, as text."""
        return size_text(4 * self.width * len(rows))


def drawn_case(seed: int, cuts: tuple[int, ...], count: int) -> RowsCase:
    """A case of ``count`` rows, some of them wanted several times."""
    draw = random.Random(seed)
    return RowsCase(tuple(draw.choices(range(cuts[-1]), k=count)), cuts, more=f" ({seed})")


@dataclass
class Servers:
    """They give rows of their parts, and record the requests in order."""

    case: RowsCase
    asks: list[tuple[int, list[int]]] = field(default_factory=list)

    def ask(self, server: object, rows: object):
        """Return rows of that server's part; refuse missing ones."""
        case, cuts = self.case, self.case.cuts
        try:
            rows = [operator.index(row) for row in rows]
        except TypeError:
            raise failure("wrong-type", "not-rows", case, type=type(rows).__name__) from None
        if not hasattr(server, "__index__") or not 0 <= operator.index(server) < len(cuts) - 1:
            raise failure("differs", "strange-server", case, server=repr(server), last=len(cuts) - 2)
        server = operator.index(server)
        own = cuts[server + 1] - cuts[server]
        for row in rows:
            if not 0 <= row < own:
                raise self._out(server, row, own)
        self.asks.append((server, rows))
        return table(case)[cuts[server] : cuts[server + 1]][rows]

    def _out(self, server: int, row: int, own: int) -> Failure:
        cuts = self.case.cuts
        whole = row in self.case.rows and cuts[server] <= row < cuts[server + 1]  # the table's number, on its server
        mistake = "wrong-offset" if whole else "wrong-cut"
        return failure(mistake, "row-not-there", self.case, server=server, row=row, own=own, first=cuts[server])

    def lines(self) -> list[str]:
        """Return the messages of each server, a line for each."""
        return [
            text("checks.who-was-asked", server=server, rows=_short(rows), size=self.case.size_of(rows))
            for server, rows in self.asks[:8]
        ]


def table(case: RowsCase):
    """Row r is full of r."""
    return torch.arange(float(case.cuts[-1])).repeat_interleave(case.width).view(-1, case.width)


def judge(case: RowsCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    servers = Servers(case)
    result = call(case, answer, list(case.rows), list(case.cuts), servers.ask)
    if case.rows and not servers.asks:
        raise failure("todo", "nobody-asked", case)
    _require_rows(case, servers, result)
    _require_few_bytes(case, servers)
    return _traffic(case, servers)


def _require_rows(case: RowsCase, servers: Servers, result: object) -> None:
    wanted = torch.tensor(case.rows)
    shape = (len(case.rows), case.width)
    if not case.rows and isinstance(result, torch.Tensor) and not result.numel():
        return  # the width of a row does not matter
    if not isinstance(result, torch.Tensor) or result.dim() != 2 or result.shape[1] != case.width:
        got = f"{tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise failure("wrong-type", "not-rows-back", case, got=got, shape=shape)
    got = list(map(_row, result.detach().cpu().tolist()))
    if result.shape == shape and torch.equal(result.detach().cpu().double(), table(case)[wanted].double()):
        return
    right = list(map(str, case.rows))
    mistake = "order-lost" if sorted(got) == sorted(right) else "differs"
    same = next((at for at, (one, other) in enumerate(zip(got, right, strict=False)) if one != other), len(right))
    shown = [["…"] * (same > 8) + each[max(0, same - 8) :] for each in (got, right)]  # up to the first that differs
    raise _counted(case, servers, mistake, "rows-wrong", got=_short(shown[0]), right=_short(shown[1]))


def _require_few_bytes(case: RowsCase, servers: Servers) -> None:
    wanted = set(case.rows)
    owners = {
        server
        for server, (start, stop) in enumerate(zip(case.cuts, case.cuts[1:], strict=False))
        if any(start <= row < stop for row in wanted)
    }
    travelled = [case.cuts[server] + row for server, rows in servers.asks for row in rows]
    sizes = {"got": case.size_of(travelled), "enough": case.size_of(wanted), "messages": len(servers.asks)}
    if set(travelled) - wanted:
        raise _counted(case, servers, "everything", "too-many-rows", **sizes)
    idle = [server for server, rows in servers.asks if server not in owners]
    if idle:
        got, enough = len(servers.asks), len(owners)
        raise _counted(case, servers, "every-server", "asked-in-vain", server=idle[0], got=got, enough=enough)
    if len(travelled) > len(wanted) and len({server for server, _ in servers.asks}) == len(servers.asks):
        raise _counted(case, servers, "twice", "too-many-rows", **sizes)
    if len(servers.asks) > len(owners):
        raise _counted(case, servers, "row-by-row", "many-asks", got=len(servers.asks), enough=len(owners))


def _counted(case: RowsCase, servers: Servers, mistake: str, sentence: str, **values: object) -> Failure:
    counted = failure(mistake, sentence, case, **values)
    counted.sentence = "\n".join([counted.sentence, *servers.lines()])
    return counted


def _traffic(case: RowsCase, servers: Servers) -> dict[str, str]:
    rows = [row for _, rows in servers.asks for row in rows]
    return {
        "wanted": str(len(case.rows)),
        "rows": str(len(rows)),
        "messages": str(len(servers.asks)),
        "moved": case.size_of(rows),
        "whole": case.size_of(range(case.cuts[-1])),
    }


def _row(row: list[float]) -> str:
    """Return the number of which a row is full, or the least and the greatest."""
    return "…".join(f"{each:.17g}" for each in sorted({min(row), max(row)}))


def _short(rows: list) -> str:
    return " ".join(map(str, rows[:12])) + (" …" if len(rows) > 12 else "")
