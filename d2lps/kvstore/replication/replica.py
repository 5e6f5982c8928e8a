"""One server's part in a slot: primary, backup, or neither. Messages and moments come in, effects go out.

The primary does a command at once, hands it to the backup, and commits it when the backup has done it, too. Alone it
commits at once. Whoever hears nothing from the other for a while proposes a view without it; the register takes one
proposal. A server that is no member asks the primary for everything, follows it, and becomes the backup once it has
caught up.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from d2lps.kvstore.replication.commands import Part
from d2lps.kvstore.replication.messages import (
    Ack,
    Add,
    Apply,
    Ask,
    Counted,
    Do,
    Done,
    Heartbeat,
    Join,
    Lose,
    Lost,
    Meet,
    Name,
    Pass,
    Propose,
    Push,
    Send,
    Snapshot,
    View,
)
from d2lps.kvstore.replication.reading import Reading

NEAR = 16  # commands that a learner may still lack when it is made the backup: they never stop coming


class Replica(Reading):
    """A server's part in a slot.

    Parameters
    ----------
    name : hashable
        Its own, another one after each start.
    view : View
        The one that it knows; a member of it must have ``parts`` as they are at its beginning.
    parts : iterable of Part
        As they are at first.
    workers : int
        How many there are; ranks count from 0.
    kind : str
        ``"dist_sync"``, ``"dist_async"`` or ``"dist_ssp"``.
    staleness : int
        Of ``"dist_ssp"``.
    patience : float
        Seconds of silence after which another server is taken for dead. To be wrong costs a catch-up, and no bits.
    add, publish, copied : callable
        ``add([gradient, …])`` in order of the ranks is the sum of a round; ``publish(value, sum, count, optimizer)``
        the next value, where the sum is of so many pushes. What they get is not to be changed, but for what only an
        optimizer reads of a value: of that, ``copied(value)`` has its own.
    """

    def __init__(
        self,
        name: Name,
        view: View,
        parts: Iterable[Part],
        workers: int,
        kind: str,
        staleness: int = 0,
        patience: float = 1.0,
        add: Callable = tuple,
        publish: Callable = lambda value, total, count, optimizer: (*value, total),
        copied: Callable = lambda value: value,
    ):
        super().__init__(parts, workers, publish, copied)
        self.name, self.view, self.kind, self.staleness, self.patience = name, view, kind, staleness, patience
        self.add = add
        self.follows = name in view.members  # whether it has what a member has, up to seq
        self.log: dict[int, NamedTuple] = {}  # commands by number: what not all who follow have done
        self.effects: list = []
        self._reset()

    def _reset(self) -> None:
        """Forget what only the primary of one view knows."""
        self.committed, self.commit = list(self.parts), self.seq
        self._done: dict[int, list[tuple[int, Part]]] = {}  # by command: parts as it left them, until it is committed
        self._arrived: list[dict[int, Any]] = [{} for _ in self.parts]  # of the open round: rank → gradient
        self._read_nothing()
        self._meets: dict[tuple[str, int], dict[tuple[Name, int], Meet]] = {}  # that wait, by barrier
        self._answers: dict[tuple[Name, int], tuple[int, NamedTuple]] = {}  # until which command is committed, and then
        self._acked: dict[Name, int] = {}
        self._heard: dict[Name, float] = {}
        self.learner: Name | None = None  # who follows and is no member
        self.joining = False  # whether it is about to be the backup: what is committed from here on, it has
        self._offered = False  # whether it has been proposed
        self._proposed = False

    def arrived(self, index: int) -> Collection[int]:
        """Of the open round of a part: the ranks that have pushed."""
        return self._arrived[index].keys() if index < len(self._arrived) else ()

    def met(self, name: str, number: int) -> set[int]:
        """The ranks that wait at a barrier."""
        return {meet.rank for meet in self._meets.get((name, number), {}).values()}

    def withdraw(self, rank: int, name: str) -> None:
        """Let a worker wait at no barrier of that name any more."""
        for (other, _), waiting in self._meets.items():
            for worker, id in [key for key, meet in waiting.items() if other == name and meet.rank == rank]:
                del waiting[worker, id]

    def take(self) -> list:
        """The effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def receive(self, src: Name, message: NamedTuple, now: float) -> None:
        """A message from a server, a worker or the register, at ``now`` of this server's own clock."""
        getattr(self, self._on[type(message)])(src, message, now)

    def tick(self, now: float) -> None:
        """To be called several times within ``patience``."""
        if self.is_primary:
            self._lead(now)
        elif self.name in self.view.members:
            if self._silent(self.view.members[0], now):
                self._propose((self.name,))
                self.effects.append(Ask())  # the answer may have been lost
        else:
            self.effects.append(Ask())
            primary = self.view.members[0] if self.view.members else self.name
            if primary != self.name and (not self.follows or self._silent(primary, now)):
                self._heard[primary] = now
                self._send(primary, Join(self.view.number))

    def hear(self, other: Name, now: float) -> None:
        """A sign of life of another server, whatever it says."""
        self._heard[other] = now

    def suspect(self, other: Name) -> None:
        """It is known by other means that another server is dead: the next tick finds it silent."""
        self._heard[other] = float("-inf")

    def repeat(self, follower: Name) -> None:
        """Say again what a follower has not acknowledged."""
        self._send(follower, Heartbeat(self.view, self._questions))
        for seq in range(self._acked.get(follower, 0) + 1, self.seq + 1):
            if seq in self.log:
                self._send(follower, Apply(self.view, seq, self.log[seq]))

    def _lead(self, now: float) -> None:
        if any([self._silent(member, now) for member in self.view.members[1:]]):
            self._propose((self.name,))
        if self.learner is not None and not self._offered and self._silent(self.learner, now):
            self.learner, self.joining = None, False
            self._advance()
            self._look_again()
        if self._proposed:
            self.effects.append(Ask())
        for follower in self.followers:
            self.repeat(follower)
        self._compare()
        has = -1 if self.learner is None else self._acked.get(self.learner, -1)
        if 0 <= has < self.seq and has + 1 not in self.log:  # it had been given up, and its snapshot was lost
            self._send(self.learner, Snapshot(self.view, self.seq, *self._given_over()))
        elif has >= 0 and has >= self.seq - NEAR and len(self.view.members) == 1:
            # From here on nothing is committed without it, until it is known whether it has become the backup.
            self.joining = True
        if self.joining and has >= self.commit:
            self._offered = True
            self._propose((self.name, self.learner))

    def _silent(self, other: Name, now: float) -> bool:
        return now - self._heard.setdefault(other, now) > self.patience

    # Views.

    def _propose(self, members: tuple[Name, ...]) -> None:
        if not self._proposed:
            self._proposed = True
            self.effects.append(Propose(self.view.number + 1, members))

    def _adopt(self, view: View, now: float) -> None:
        if view.number <= self.view.number:
            return
        led, was_member = self.is_primary, self.name in self.view.members
        self.view, self._proposed = view, False
        stranger = view.members[0] == self.name and not was_member
        if stranger or not self.follows or self.name not in view.members:
            # A view makes no member of who does not follow; who was put out may have done what never happened.
            self.follows = False
            self.log = {}
            self._reset()
        elif self.is_primary and led:
            self.learner, self.joining, self._offered = None, False, False  # it is the backup now, or was not taken
            self._acked = {member: self._acked.get(member, 0) for member in view.members[1:]}
            self._heard |= dict.fromkeys(view.members[1:], now)
            self._advance()
            self._look_again()
        else:
            self.log = {}
            self._reset()  # a new primary: all that it has done is committed, and open rounds begin again
            self._heard = dict.fromkeys(set(view.members) - {self.name}, now)
            if self.is_primary:
                for rank in sorted(self.live):
                    self._send(("worker", rank), view)

    def _hear(self, src: Name, view: View, now: float) -> bool:
        """Whether a message of a primary is of this view; if it is of an older one, its sender is told."""
        if view.number < self.view.number:
            self._send(src, self.view)
            return False
        self._adopt(view, now)
        self._heard[src] = now
        return True

    # Commands.

    def _command(self, command: NamedTuple) -> None:
        self.seq += 1
        self._do(command)
        self.log[self.seq] = command
        for follower in self.followers:
            self._send(follower, Apply(self.view, self.seq, command))
        self._advance()

    def _changed(self, index: int, part: Part) -> None:
        if self.is_primary:
            if index == len(self.committed):
                self.committed.append(part._replace(value=None))
                self._arrived.append({})
            self._done.setdefault(self.seq, []).append((index, part))

    @property
    def followers(self) -> list[Name]:
        """Who is told of every command: the other members, and who learns."""
        return [*self.view.members[1:], *([self.learner] if self.learner is not None else [])]

    def _needed(self) -> list[Name]:
        """Whose acknowledgement makes a command committed."""
        return [*self.view.members[1:], *([self.learner] if self.joining else [])]

    def _advance(self) -> None:
        """Commit what all have done, and answer whom that allows to be answered."""
        upto, changed = min([self._acked.get(other, 0) for other in self._needed()], default=self.seq), set()
        while self.commit < upto:
            self.commit += 1
            for index, part in self._done.pop(self.commit, ()):
                self.committed[index] = part
                changed.add(index)
        self._trim()
        while self._answers:  # their commands come in order
            (worker, id), (seq, answer) = next(iter(self._answers.items()))
            if seq > self.commit:
                break
            del self._answers[worker, id]
            self._send(worker, answer)
        for index in sorted(changed):
            self._answer_pulls(index)

    def _trim(self) -> None:
        """Forget the commands that all who follow have done."""
        keep = min([self._acked.get(follower, 0) for follower in self.followers], default=self.seq)
        while self.log and (first := next(iter(self.log))) <= keep:
            del self.log[first]

    # Workers.

    def _on_push(self, worker: Name, push: Push, now: float) -> None:
        if not self._is_mine(worker, push) or push.part >= len(self.parts):
            return
        if self.kind == "dist_sync":
            self._push_to_round(worker, push)
        elif push.round > self.parts[push.part].rounds[push.rank]:
            if push.round == self.parts[push.part].rounds[push.rank] + 1:
                self._answer_at(self.seq + 1, worker, Counted(self.view.number, push.id))
                self._command(Add(push.part, ((push.rank, push.round),), self.add([push.gradient])))
        elif push.round > self.committed[push.part].rounds[push.rank]:
            # A repetition of what is done, and not yet committed.
            self._answer_at(self.seq, worker, Counted(self.view.number, push.id))
        else:
            self._send(worker, Counted(self.view.number, push.id))

    def _push_to_round(self, worker: Name, push: Push) -> None:
        """It is counted here at once: it cannot wait for the round, which may wait for the worker's next push.

        Only the round before has to be committed: so a worker keeps one push of each part, to push it again.
        """
        open_round, counted = self.parts[push.part].version + 1, Counted(self.view.number, push.id)
        if push.round <= self.committed[push.part].version + 1:
            self._send(worker, counted)
        elif push.round <= open_round:
            self._answer_at(self.seq, worker, counted)
        if push.round == open_round:
            self._arrived[push.part].setdefault(push.rank, push.gradient)
            self._close(push.part)

    def _answer_at(self, seq: int, worker: Name, answer: NamedTuple) -> None:
        """Once all commands up to ``seq`` are committed."""
        self._answers.pop((worker, answer.id), None)
        self._answers[worker, answer.id] = seq, answer

    def _close(self, index: int) -> None:
        """End the round for which all have pushed: one sum, in order of the ranks, so that its bits do not vary."""
        arrived = self._arrived[index]
        if arrived and self.live <= arrived.keys() and not self.over:
            self._arrived[index] = {}
            ranks, number = self._in_order(arrived), self.parts[index].version + 1
            total = self.add([arrived[rank] for rank in ranks])
            self._command(Add(index, tuple((rank, number) for rank in ranks), total))

    def _in_order(self, arrived: dict[int, Any]) -> list[int]:
        return sorted(arrived)

    def _on_do(self, worker: Name, do: Do, now: float) -> None:
        if self._is_mine(worker, do):
            if not self._is_done(do.command):
                self._command(do.command)
            self._answer_at(self.seq, worker, Done(self.view.number, do.id, self._outcome(do.command)))
            self._advance()

    def _on_meet(self, worker: Name, meet: Meet, now: float) -> None:
        if self._is_mine(worker, meet):
            self._meets.setdefault((meet.name, meet.number), {})[worker, meet.id] = meet
            self._gather(meet.name, meet.number)

    def _gather(self, name: str, number: int) -> None:
        """All have come to a barrier: that is a command, as who has passed it never comes again."""
        came = self._meets[name, number]
        passed = self._passed(name, number)
        if not passed and self.live <= {meet.rank for meet in came.values()} and not self.over:
            notes = [meet.note for meet in came.values() if meet.rank == 0]  # the last one counts
            self._command(passed := Pass(name, number, notes[-1] if notes else None))
        if passed:
            for worker, id in self._meets.pop((name, number)):
                self._answer_at(self.seq, worker, Done(self.view.number, id, passed.note))
            self._advance()

    def forget(self, worker: Name, id: int) -> None:
        """Nobody waits for the answer to this request any more: as if it had not come."""
        self._answers.pop((worker, id), None)
        for waiting in (*self._pulls.values(), *self._meets.values()):
            waiting.pop((worker, id), None)

    def _is_mine(self, worker: Name, request: NamedTuple) -> bool:
        """Whether to answer it; a worker of an older view is told the view, one that is lost hears so."""
        if not (self.is_primary and request.view == self.view.number):
            if request.view > self.view.number:
                self.effects.append(Ask())
            else:
                self._send(worker, self.view)
            return False
        if request.rank not in self.live:
            if self.lost_at.get(request.rank, 0) <= self.commit:  # else the next primary might count it after all
                self._send(worker, Lost(self.view.number, request.id))
            return False
        return True

    def _on_lose(self, src: Name, lose: Lose, now: float) -> None:
        if self.is_primary and lose.rank in self.live:
            self._command(lose)
            if self.kind == "dist_sync":
                for index in range(len(self.parts)):
                    self._close(index)
            for index in [*self._pulls]:
                self._answer_pulls(index)
            for name, number in [*self._meets]:
                self._gather(name, number)

    # The primary, as its backup and its learner hear it.

    def _on_apply(self, src: Name, apply: Apply, now: float) -> None:
        if self._hear(src, apply.view, now) and self.follows and not self.is_primary:
            if apply.seq == self.seq + 1:
                self.seq = apply.seq
                self._do(apply.command)
            self._send(src, Ack(apply.view.number, self.seq))

    def _on_heartbeat(self, src: Name, heartbeat: Heartbeat, now: float) -> None:
        if self._hear(src, heartbeat.view, now) and self.follows:
            self._send(src, Ack(heartbeat.view.number, self.seq, heartbeat.turn))

    def _on_snapshot(self, src: Name, snapshot: Snapshot, now: float) -> None:
        if not self._hear(src, snapshot.view, now) or self.name in self.view.members:
            return
        if self.follows and snapshot.seq < self.seq:
            return  # what was acknowledged may have been committed: it is not forgotten again
        self.seq, self.follows = snapshot.seq, True
        self._take_over(snapshot.parts, snapshot.facts)
        self._reset()
        self._heard[src] = now
        self._send(src, Ack(snapshot.view.number, self.seq))

    def _on_ack(self, src: Name, ack: Ack, now: float) -> None:
        if self.is_primary and ack.view == self.view.number and src in self.followers:
            self._heard[src] = now
            self._acked[src] = max(self._acked.get(src, 0), ack.seq)
            self._advance()
            self._hear_answer(src, ack)

    def _on_join(self, src: Name, join: Join, now: float) -> None:
        if not self.is_primary:
            if self.view.number > join.view:
                self._send(src, self.view)
        elif len(self.view.members) == 1 and not self.joining and self.learner in (None, src):
            self.learner, self._heard[src] = src, now
            self._acked.setdefault(src, -1)
            self._send(src, Snapshot(self.view, self.seq, *self._given_over()))

    def _on_view(self, src: Name, view: View, now: float) -> None:
        if src == "register":
            self._proposed = False
        self._adopt(view, now)

    def _send(self, to: Name, message: NamedTuple) -> None:
        self.effects.append(Send(to, message))

    _on = Reading._on | {
        Push: "_on_push",
        Do: "_on_do",
        Meet: "_on_meet",
        Lose: "_on_lose",
        Apply: "_on_apply",
        Heartbeat: "_on_heartbeat",
        Snapshot: "_on_snapshot",
        Ack: "_on_ack",
        Join: "_on_join",
        View: "_on_view",
    }
