"""When a pull is answered: what it asks for is committed, and no other server can have been the primary when it came.

A primary that is cut off hears of no new view. So it asks whoever takes part in its commits, one question for all pulls
that wait: the answer, in its own view, says that there was no other primary when it was asked. No clock is trusted.
Whatever else is said of what may be old, as that a key has no value, waits for such an answer, too (``Stand``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from d2lps.kvstore.replication.commands import Part
from d2lps.kvstore.replication.comparing import Comparing
from d2lps.kvstore.replication.messages import Ack, Done, Heartbeat, Name, Pull, Stand, Value


class Waiting(NamedTuple):
    """A pull, and what was last said when its call began: command ``since``; the question after that is ``turn``."""

    pull: Pull
    since: int
    turn: int


class Reading(Comparing):
    """What a replica does about pulls, and about what may be old."""

    kind: str
    staleness: int
    committed: list[Part]
    _acked: dict[Name, int]
    live: frozenset[int]
    _needed: Callable[[], list[Name]]
    _is_mine: Callable[[Name, NamedTuple], bool]

    def _read_nothing(self) -> None:
        self._pulls: dict[int, dict[tuple[Name, int], Waiting]] = {}  # that wait, by part
        self._stands: dict[tuple[Name, int], int] = {}  # questions of workers, each with the own one that answers it
        self._unsure: dict[int, Any] = {}  # parts whose pulls wait for nothing but an answer, in order
        self._questions, self._replies = 0, {}  # the last question; by server the last one that it has answered

    def _on_pull(self, worker: Name, pull: Pull, now: float) -> None:
        if self._is_mine(worker, pull) and pull.part < len(self.parts):
            since = self.seq if pull.since is None else pull.since
            asked = Waiting(pull, since, self._questions + 1)
            self._pulls.setdefault(pull.part, {}).setdefault((worker, pull.id), asked)
            self._answer_pulls(pull.part)

    def _on_stand(self, worker: Name, stand: Stand, now: float) -> None:
        if self._is_mine(worker, stand):
            self._stands[worker, stand.id] = self._questions + 1
            self._answer_stands()

    def _answer_stands(self) -> None:
        for (worker, id), turn in [*self._stands.items()]:
            if all(self._replies.get(other, 0) >= turn for other in self._needed()):
                del self._stands[worker, id]
                self._send(worker, Done(self.view.number, id, None))
        if self._stands:
            self._ask_others()

    def _answer_pulls(self, index: int) -> None:
        waiting = self._pulls.get(index, {})
        for (worker, id), asked in [*waiting.items()]:
            if asked.pull.rank not in self.live:
                del waiting[worker, id]  # rounds may have closed without it: where it asks again, it hears so
            elif self._readable(asked.pull):
                if self._is_sure(asked):
                    del waiting[worker, id]
                    self._send(worker, Value(self.view.number, id, index, *self.committed[index]))
                else:
                    self._unsure[index] = True
                    self._ask_others()

    def _readable(self, pull: Pull) -> bool:
        part = self.committed[pull.part]
        if self.kind == "dist_sync":
            return part.version >= pull.round
        if part.rounds[pull.rank] < pull.round:
            return False  # its own pushes are to be in it
        behind = self.staleness if self.kind == "dist_ssp" else pull.round
        return all(part.rounds[rank] >= pull.round - behind for rank in self.live)

    def _is_sure(self, asked: Waiting) -> bool:
        """Whether all others have answered what was said after the call began: a question, or a command.

        Synchronously that is not asked: a round is the same everywhere, and who loads asks every slot itself.
        """
        if self.kind == "dist_sync" and self.committed[asked.pull.part].value is not None:
            return True
        return all(
            self._replies.get(other, 0) >= asked.turn or self._acked.get(other, -1) > asked.since
            for other in self._needed()
        )

    def _ask_others(self) -> None:
        """The next question, where none is under way."""
        others = self._needed()
        if all(self._replies.get(other, 0) >= self._questions for other in others):
            self._questions += 1
            for other in others:
                self._send(other, Heartbeat(self.view, self._questions))

    def _hear_answer(self, src: Name, ack: Ack) -> None:
        if ack.turn > self._replies.get(src, 0):
            self._replies[src] = ack.turn
            self._look_again()

    def _look_again(self) -> None:
        """Others take part, or have answered."""
        unsure, self._unsure = self._unsure, {}
        for index in unsure:
            self._answer_pulls(index)
        self._answer_stands()

    _on = Comparing._on | {Pull: "_on_pull", Stand: "_on_stand"}
