"""Judge a sparse pull: which rows were asked of whom, and whether the rows wanted came back in their order."""

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from d2lps.course.grading.asked import Failure, failure
from d2lps.course.grading.attempt import called
from d2lps.course.grading.playing import size
from d2lps.messages import text


@dataclass(frozen=True)
class Sparse:
    """The table's rows are cut at ``cuts``, and ``rows`` are wanted."""

    rows: tuple[int, ...]
    cuts: tuple[int, ...]
    width: int = 16
    more: str = ""

    @property
    def label(self) -> str:
        return f"k = {len(self.cuts) - 1}{self.more}"

    @property
    def row_bytes(self) -> int:
        return 4 * self.width


def drawn(seed: int, cuts: tuple[int, ...], count: int) -> Sparse:
    """A case of ``count`` rows, some of them wanted several times."""
    draw = random.Random(seed)
    return Sparse(tuple(draw.choices(range(cuts[-1]), k=count)), cuts, more=f" ({seed})")


@dataclass
class Asked:
    """What was asked of each server, in order."""

    case: Sparse
    asks: list[tuple[int, list[int]]] = field(default_factory=list)
    refused: Failure | None = None

    def ask(self, server: object, rows: object):
        """The rows of that server's part; what is not there is refused."""
        case, cuts = self.case, self.case.cuts
        try:
            rows = [operator.index(row) for row in rows]
        except TypeError:
            self._refuse(failure("not-rows", "not-rows", case, type=type(rows).__name__))
        if not hasattr(server, "__index__") or not 0 <= operator.index(server) < len(cuts) - 1:
            self._refuse(failure("strange-server", "strange-server", case, server=repr(server), last=len(cuts) - 2))
        server = operator.index(server)
        own = cuts[server + 1] - cuts[server]
        for row in rows:
            if not 0 <= row < own:
                self._refuse(self._out(server, row, own))
        self.asks.append((server, rows))
        return table(case)[cuts[server] : cuts[server + 1]][rows]

    def _out(self, server: int, row: int, own: int) -> Failure:
        cuts = self.case.cuts
        whole = row in self.case.rows and cuts[server] <= row < cuts[server + 1]  # the table's number, on its server
        told = {"server": server, "row": row, "own": own, "first": cuts[server]}
        return failure("wrong-offset" if whole else "wrong-cut", "row-not-there", self.case, **told)

    def _refuse(self, found: Failure) -> None:
        self.refused = self.refused or found
        raise found

    def lines(self) -> list[str]:
        """What went from each server that was asked: a line for each message."""
        return [
            text("checks.who-was-asked", server=server, rows=_short(rows), size=size(len(rows) * self.case.row_bytes))
            for server, rows in self.asks[:8]
        ]


def table(case: Sparse):
    """Row r is full of r."""
    import torch

    return torch.arange(float(case.cuts[-1])).repeat_interleave(case.width).view(-1, case.width)


def judge(case: Sparse, answer: Callable, diagnose: Callable | None = None) -> dict[str, str]:
    """What fills the sentence for a right answer; raises Failure."""
    asked = Asked(case)
    try:
        found = called(case, answer, list(case.rows), list(case.cuts), asked.ask, refused=Failure)
    except Failure as error:
        raise asked.refused or error from None
    if asked.refused:
        raise asked.refused
    if not asked.asks:
        raise failure("todo", "nobody-asked", case)
    _values(case, asked, found)
    _bytes(case, asked)
    return _told(case, asked)


def _values(case: Sparse, asked: Asked, found: object) -> None:
    import torch

    wanted = torch.tensor(case.rows)
    shape = (len(case.rows), case.width)
    if not isinstance(found, torch.Tensor) or found.dim() != 2 or found.shape[1] != case.width:
        got = f"{tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise failure("not-rows-back", "not-rows-back", case, got=got, shape=shape)
    got = found.detach().cpu()[:, 0].tolist()
    if found.shape == shape and torch.equal(found.detach().cpu().double(), table(case)[wanted].double()):
        return
    told = {"got": _short([f"{row:g}" for row in got]), "right": _short(list(case.rows))}
    if sorted(got) == sorted(case.rows):
        raise _counted(case, asked, "order-lost", "rows-wrong", **told)
    if set(got) == set(case.rows):
        raise _counted(case, asked, "repeats-lost", "rows-wrong", **told)
    if set(case.rows) <= set(got):
        raise _counted(case, asked, "everything", "rows-wrong", **told)
    lost = "rows-lost" if set(got) <= set(case.rows) else "wrong-offset"
    raise _counted(case, asked, lost, "rows-wrong", **told)


def _bytes(case: Sparse, asked: Asked) -> None:
    wanted = set(case.rows)
    need = len(wanted) * case.row_bytes
    owners = {
        server
        for server, (start, stop) in enumerate(zip(case.cuts, case.cuts[1:], strict=False))
        if any(start <= row < stop for row in wanted)
    }
    travelled = [case.cuts[server] + row for server, rows in asked.asks for row in rows]
    told = {"got": size(len(travelled) * case.row_bytes), "enough": size(need), "messages": len(asked.asks)}
    if set(travelled) - wanted:
        raise _counted(case, asked, "everything", "too-many-rows", **told)
    idle = [server for server, rows in asked.asks if server not in owners]
    if idle:
        told = {"server": idle[0], "enough": len(owners), "got": len(asked.asks)}
        raise _counted(case, asked, "every-server", "asked-in-vain", **told)
    if len(travelled) > len(wanted) and len({server for server, _ in asked.asks}) == len(asked.asks):
        raise _counted(case, asked, "twice", "too-many-rows", **told)
    if len(asked.asks) > len(owners):
        raise _counted(case, asked, "row-by-row", "many-asks", got=len(asked.asks), enough=len(owners))


def _counted(case: Sparse, asked: Asked, mistake: str, sentence: str, **values: object) -> Failure:
    found = failure(mistake, sentence, case, **values)
    found.sentence = "\n".join([found.sentence, *asked.lines()])
    return found


def _told(case: Sparse, asked: Asked) -> dict[str, str]:
    rows = sum(len(rows) for _, rows in asked.asks)
    return {
        "wanted": str(len(case.rows)),
        "rows": str(rows),
        "messages": str(len(asked.asks)),
        "moved": size(rows * case.row_bytes),
        "whole": size(case.cuts[-1] * case.row_bytes),
    }


def _short(rows: list) -> str:
    return " ".join(map(str, rows[:12])) + (" …" if len(rows) > 12 else "")
