"""Judge a push of rows: play servers that count each number once, lose messages and answers, and count bytes."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index

from d2lps.notebook.grading import call, failure, unlike

MOST = 200  # attempts for one message
FAILING = ((1, "answer"), (1, "message"))  # an answer that tries only a few times gives up


@dataclass(frozen=True)
class PushCase:
    """``rows``, with a gradient for each; the table is cut at ``cuts``. ``lost``: what gets lost at which server."""

    label: str
    rows: tuple[int, ...]
    gradients: tuple[float, ...]
    cuts: tuple[int, ...]
    number: int = 1
    lost: tuple[tuple[int, str], ...] = ()

    @property
    def sums(self) -> dict[int, float]:
        sums: Counter = Counter()
        for row, gradient in zip(self.rows, self.gradients, strict=True):
            sums[row] += gradient
        return dict(sums)

    @property
    def owners(self) -> set[int]:
        return {self.server(row) for row in self.rows}

    def server(self, row: int) -> int:
        return next(i for i, end in enumerate(self.cuts[1:]) if row < end)


@dataclass
class Servers:
    """They count a message by its number, once; ``messages``: the distinct ones that were sent to each."""

    case: PushCase
    messages: dict[int, list[tuple]] = field(default_factory=dict)
    counted: dict[tuple[int, int], tuple] = field(default_factory=dict)
    table: Counter = field(default_factory=Counter)
    attempts: Counter = field(default_factory=Counter)
    answered: set[int] = field(default_factory=set)

    def send(self, server: object, number: object, rows: object, values: object) -> None:
        """Count what arrives. Raises TimeoutError if the message, or the answer to it, is lost."""
        server, message = self._read(server, number, rows, values)
        sent = self.messages.setdefault(server, [])
        if message not in sent:
            sent.append(message)
        self.attempts[server] += 1
        lost = [how for other, how in self.case.lost if other == server]
        now = lost[self.attempts[server] - 1] if self.attempts[server] <= len(lost) else ""
        if now != "message" and (server, message[0]) not in self.counted:
            self.counted[server, message[0]] = message
            for row, value in zip(*message[1:], strict=True):
                self.table[self.case.cuts[server] + row] += value
        self.answered.discard(server)
        if now:
            raise TimeoutError(f"server {server}")
        self.answered.add(server)

    def _read(self, server: object, number: object, rows: object, values: object) -> tuple[int, tuple]:
        case = self.case
        with suppress(TypeError):
            server = index(server)
        if not isinstance(server, int) or not 0 <= server < len(case.cuts) - 1:
            raise failure("differs", "push-server", case, server=repr(server)[:40], last=len(case.cuts) - 2)
        try:
            number, rows, values = index(number), [*map(index, rows)], [*map(float, values)]
        except (TypeError, ValueError):
            raise failure("wrong-type", "push-types", case, server=server) from None
        if len(rows) != len(values):
            raise failure("differs", "push-lengths", case, server=server, rows=len(rows), values=len(values))
        own = case.cuts[server + 1] - case.cuts[server]
        for row in rows:
            if not 0 <= row < own:
                first = case.cuts[server]
                raise failure("wrong-offset", "push-row", case, server=server, row=row, own=own, first=first)
        if self.attempts[server] >= MOST:
            raise failure("row-by-row", "push-endless", case, server=server, got=self.attempts[server])
        return server, (number, tuple(rows), tuple(values))


def judge(case: PushCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    servers, gave_up = Servers(case), []

    def attempt(*arguments: object) -> None:
        try:
            answer(*arguments)
        except TimeoutError as error:
            gave_up.append(error)

    given = case.number, list(case.rows), list(case.gradients), list(case.cuts), servers.send
    call(case, attempt, *given, none=True)
    if gave_up or {*servers.messages} - servers.answered:
        raise failure("gives-up", "push-gave-up", case)
    _require_messages(case, servers)
    _require_sums(case, servers)
    return {
        "rows": str(sum(len(sent[0][1]) for sent in servers.messages.values())),
        "ids": str(len(case.rows)),
        "messages": str(len(servers.messages)),
        "servers": str(len(case.cuts) - 1),
    }


def _require_messages(case: PushCase, servers: Servers) -> None:
    if any(case.sums.values()) and not servers.messages:
        raise failure("todo", "push-nothing", case)
    for server, sent in sorted(servers.messages.items()):
        numbers = {number for number, *_ in sent}
        if len({message[1:] for message in sent}) == 1 and len(sent) > 1:
            raise failure("other-number", "push-numbers", case, server=server, numbers=_short(sorted(numbers)))
        if server not in case.owners:
            raise failure("other-rows", "push-in-vain", case, server=server)
        if len(sent) > 1:
            raise failure("row-by-row", "push-messages", case, server=server, got=len(sent))
        if numbers != {case.number}:
            raise failure("other-number", "push-number", case, server=server, got=sent[0][0], right=case.number)
        rows = sent[0][1]
        wanted = {row - case.cuts[server] for row in case.rows if case.server(row) == server}
        if {*rows} - wanted:
            raise failure("other-rows", "push-rows", case, server=server, got=len(rows), right=len(wanted))
        if len({*rows}) < len(rows):
            raise failure("repeated", "push-rows", case, server=server, got=len(rows), right=len(wanted))
    sent = {case.cuts[server] + row for server, (message,) in servers.messages.items() for row in message[1]}
    if left_out := {*case.rows} - sent:
        raise failure("other-rows", "push-left-out", case, row=min(left_out))


def _require_sums(case: PushCase, servers: Servers) -> None:
    for row, value in case.sums.items():
        got = servers.table[row]
        if not math.isclose(got, value, rel_tol=1e-5, abs_tol=1e-9):  # a sum in 32 bits is right, one in 16 is not
            shown = unlike(got, value, digits=9)
            raise failure("wrong-sum", "push-sum", case, row=row, got=shown[0], right=shown[1])


def _short(numbers: list) -> str:
    return ", ".join(map(str, numbers[:6]))


CASES = (
    PushCase("k = 2", (5, 0, 5, 7), (0.3, 2.0, 4097.0, -8.5), (0, 4, 8), 3),
    PushCase("k = 1, n = 1", (2,), (1e-3,), (0, 3), 1),
    PushCase("k = 3, n = 6", (9, 0, 9, 4, 0, 9), (1.1, 2.0, 4.0, 8.0, 16.0, 32.0), (0, 1, 7, 10), 12),
    PushCase("k = 5, n = 3", (11, 10, 11), (-1.0, 0.0, 1.0), (0, 2, 5, 9, 11, 12), 2),
    PushCase("k = 3, n = 0", (), (), (0, 4, 8, 9), 4),
    PushCase("k = 2, n = 3", (6, 1, 6), (2.0, 1.0, 5.0), (0, 4, 8), 7, ((1, "message"),)),
    PushCase("k = 2, n = 4", (6, 1, 6, 2), (2.5, 1.0, 5.0, 3.0), (0, 4, 8), 8, ((0, "answer"), *6 * FAILING)),
)
