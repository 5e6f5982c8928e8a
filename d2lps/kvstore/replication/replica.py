"""The rules of one server of a slot, which is its primary, its backup, or neither: messages in, effects out.

The primary executes a command, sends it to the backup, and commits it when the backup has acknowledged it; without a
backup it commits at once. A member that receives nothing from the other for ``patience`` seconds proposes a view
without it, and the register accepts one proposal per view number. A server that is not a member is a learner: it asks
the primary for a snapshot, follows its commands, and becomes the backup once it has caught up.

A primary that is cut off does not learn of a new view, so it does not answer an asynchronous pull on its own authority:
it asks the servers that take part in its commits to confirm it, once for all waiting pulls. An answer from its own view
proves that no other primary existed when it asked. A synchronous pull needs no confirmation, because a committed round
is the same on every server. No clock is trusted.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.replication.commands import PartState, State, named
from d2lps.kvstore.replication.messages import Apply, Ask, Counted, Done, Heartbeat, Name, Send, Snapshot, View

NEAR = 16  # commands that a learner may lack when it is proposed as the backup: new ones keep coming


class PendingPull:
    """A pull with the ``parts`` that could be read until now, and what proves that this server was still the primary
    when the worker's call began.

    Either an acknowledgement of a command after ``since``, or an answer to confirmation ``turn``, is enough.
    """

    __slots__ = "left", "parts", "pull", "since", "turn", "worker"

    def __init__(self, worker: Name, pull: m.Pull, since: int, turn: int):
        self.worker, self.pull, self.since, self.turn = worker, pull, since, turn
        self.parts: list[PartState | None] = [None] * len(pull.wanted)
        self.left = len(pull.wanted)  # parts that are still missing


class Round:
    """The open round of a part: the pushes that wait to be added, and the sum of the others, in order of the ranks."""

    __slots__ = "adding", "complete", "held", "summed", "total", "waiting"

    def __init__(self):
        self.waiting: dict[int, Any] = {}  # rank → gradient
        self.summed: list[int] = []
        self.total: Any = None
        self.complete = False  # the last push is in the sum, or is being added
        self.adding = False  # a sum is under way outside the rules
        self.held: list[tuple[Name, Counted]] = []  # answers to the push that completes it, until it is closed

    @property
    def ranks(self) -> set[int]:
        """The workers that have pushed."""
        return {*self.waiting, *self.summed}


class Replica(State):
    """One server of a slot. A message ``X`` is taken by the method ``_on_x``.

    Args:
        name: Its name, a new one after each start.
        view: The view that it knows; a member of it must have ``parts`` as they are at the beginning of the view.
        parts, workers: The initial parts, and the number of workers; ranks count from 0.
        kind, staleness: ``"dist_sync"``, ``"dist_async"`` or ``"dist_ssp"``, and the bound of the last.
        patience: Seconds of silence after which another server is suspected. A wrong suspicion costs a catch-up, and no
            data.
        add, publish, copied: ``add(total, gradient, last)`` is the sum of one more gradient; ``total`` is None for the
            first, and ``gradient`` is None if the sum is to be made the ``last`` one without another gradient.
            ``publish(value, add, optimizer)`` is the next value, from the command ``add``. It may not change its
            arguments, except the optimizer's state in a value, of which ``copied(value)`` has a copy.

    Attributes:
        defers: ``defers(gradient)`` is True if it takes long to add it. Then the effect AddUp asks for the sum, and the
            message Summed brings it; other requests are served meanwhile.
    """

    defers: Callable[[Any], bool] = staticmethod(lambda gradient: False)

    def __init__(
        self,
        name: Name,
        view: View,
        parts: Iterable[PartState],
        workers: int,
        kind: str,
        staleness: int = 0,
        patience: float = 1.0,
        add: Callable = lambda total, gradient, last: (*(total or ()), *(() if gradient is None else (gradient,))),
        publish: Callable = lambda value, add, optimizer: (*value, add.total),
        copied: Callable = lambda value: value,
    ):
        super().__init__(parts, workers, publish, copied)
        self.name, self.view, self.kind, self.staleness, self.patience = name, view, kind, staleness, patience
        self.add = add
        self.follows = name in view.members  # it has executed all commands up to seq
        self.log: dict[int, m.Command] = {}  # number → command that a follower may lack
        self.effects: list = []
        self._reset()

    def _reset(self) -> None:
        """Forget what only the primary of one view knows."""
        self.committed, self.commit = list(self.parts), self.seq
        self._uncommitted: deque[tuple[int, int, PartState]] = deque()  # a command, and a part that it changed
        self._rounds = [Round() for _ in self.parts]  # the open ones
        self._pending: dict[tuple[Name, int], PendingPull] = {}  # the pulls that wait
        self._pulls: dict[int, list[tuple[PendingPull, int]]] = {}  # by part: those that wait for it, and its place
        self._meets: dict[tuple[str, int], dict[tuple[Name, int], m.Meet]] = {}  # waiting workers by barrier
        self._answers: dict[tuple[Name, int], tuple[int, m.Answer]] = {}  # held back until a command is committed
        self._acked: dict[Name, int] = {}  # follower → last command that it acknowledged
        self._last_heard: dict[Name, float] = {}
        self._last_turn = 0  # the last confirmation asked for
        self._confirmed_turn: dict[Name, int] = {}  # by server the last one answered
        self._confirms: dict[tuple[Name, int], int] = {}  # requests of workers → the confirmation that answers them
        self._unconfirmed: dict[int, None] = {}  # parts with pulls that wait only for a confirmation, in order
        self.learner: Name | None = None  # a server that follows and is not a member
        self.joining = False  # the learner is about to be the backup: it must acknowledge all commits from here on
        self._learner_proposed = False
        self._proposing = False

    @property
    def is_primary(self) -> bool:
        """True if it is the first member of the view that it knows, and has the state that a member needs."""
        members = self.view.members
        return bool(members) and members[0] == self.name and self.follows

    @property
    def followers(self) -> tuple[Name, ...]:
        """The servers to which every command is sent: the other members, and the learner."""
        others = self.view.members[1:]
        return others if self.learner is None else (*others, self.learner)

    def _quorum(self) -> tuple[Name, ...]:
        """Return the other servers that must all acknowledge a command before it is committed."""
        others = self.view.members[1:]
        return (*others, self.learner) if self.joining else others

    def arrived(self, index: int) -> Collection[int]:
        """Return the ranks that have pushed to the open round of a part."""
        return self._rounds[index].ranks if index < len(self._rounds) else ()

    def counted(self, rank: int, index: int) -> int:
        """Return how many pushes of a worker to a part are counted, also in the open round of the primary."""
        part, current = self.parts[index], self._rounds[index]
        return part.version + 1 if rank in current.waiting or rank in current.summed else part.rounds[rank]

    def completing(self, index: int) -> bool:
        """Return True if all have pushed to the open round of a part, and their sum is under way."""
        current = self._rounds[index]
        return current.adding and self.live <= current.ranks and not self.over

    def met(self, name: str, number: int) -> set[int]:
        """Return the ranks that wait at a barrier."""
        return {meet.rank for meet in self._meets.get((name, number), {}).values()}

    def withdraw(self, rank: int, name: str) -> None:
        """Let a worker wait at no barrier of that name any more."""
        for (other, _), waiting in self._meets.items():
            for worker, id in [key for key, meet in waiting.items() if other == name and meet.rank == rank]:
                del waiting[worker, id]

    def take(self) -> list:
        """Return the effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def receive(self, src: Name, message: NamedTuple, now: float) -> None:
        """Take a message of a server, a worker or the register, at ``now`` of this server's own clock."""
        getattr(self, named("_on_", type(message)))(src, message, now)

    def _send(self, to: Name, message: NamedTuple) -> None:
        self.effects.append(Send(to, message))

    # Time.

    def tick(self, now: float) -> None:
        """Repeat what may have been lost, and suspect silent servers; call this several times within ``patience``."""
        if self.is_primary:
            self._lead(now)
        elif self.name in self.view.members:
            if self._is_silent(self.view.members[0], now):
                self._propose((self.name,))
                self.effects.append(Ask())  # the answer may have been lost
        else:
            self.effects.append(Ask())
            primary = self.view.members[0] if self.view.members else self.name
            if primary != self.name and (not self.follows or self._is_silent(primary, now)):
                self._last_heard[primary] = now
                self._send(primary, m.Join(self.view.number))

    def hear(self, other: Name, now: float) -> None:
        """Note that another server was alive at ``now``."""
        self._last_heard[other] = now

    def suspect(self, other: Name) -> None:
        """Take another server for dead: the next tick finds it silent."""
        self._last_heard[other] = float("-inf")

    def repeat(self, follower: Name) -> None:
        """Send again the commands that a follower has not acknowledged."""
        self._send(follower, Heartbeat(self.view, self._last_turn))
        for seq in range(self._acked.get(follower, 0) + 1, self.seq + 1):
            if seq in self.log:
                self._send(follower, Apply(self.view, seq, self.log[seq]))

    def _lead(self, now: float) -> None:
        if any([self._is_silent(member, now) for member in self.view.members[1:]]):
            self._propose((self.name,))
        if self.learner is not None and not self._learner_proposed and self._is_silent(self.learner, now):
            self.learner, self.joining = None, False
            self._advance()
            self._answer_unconfirmed()
        if self._proposing:
            self.effects.append(Ask())
        for follower in self.followers:
            self.repeat(follower)
        acked = -1 if self.learner is None else self._acked.get(self.learner, -1)
        if 0 <= acked < self.seq and acked + 1 not in self.log:  # it had been dropped, and its snapshot was lost
            self._send(self.learner, Snapshot(self.view, self.seq, *self._snapshot()))
        elif acked >= 0 and acked >= self.seq - NEAR and len(self.view.members) == 1:
            # From here on it must acknowledge every commit, until it is known if it has become the backup.
            self.joining = True
        if self.joining and acked >= self.commit:
            self._learner_proposed = True
            self._propose((self.name, self.learner))

    def _is_silent(self, other: Name, now: float) -> bool:
        return now - self._last_heard.setdefault(other, now) > self.patience

    # Views.

    def _propose(self, members: tuple[Name, ...]) -> None:
        if not self._proposing:
            self._proposing = True
            self.effects.append(m.Propose(self.view.number + 1, members))

    def _adopt(self, view: View, now: float) -> None:
        if view.number <= self.view.number:
            return
        was_primary, was_member = self.is_primary, self.name in self.view.members
        self.view, self._proposing = view, False
        outsider = view.members[0] == self.name and not was_member
        if outsider or not self.follows or self.name not in view.members:
            # A view cannot make a member of a server that does not follow. One that was removed may have executed
            # commands that were never committed.
            self.follows = False
            self.log = {}
            self._reset()
        elif self.is_primary and was_primary:
            # The learner is the backup now, or was not accepted.
            self.learner, self.joining, self._learner_proposed = None, False, False
            self._acked = {member: self._acked.get(member, 0) for member in view.members[1:]}
            self._last_heard |= dict.fromkeys(view.members[1:], now)
            self._advance()
            self._answer_unconfirmed()
        else:
            self.log = {}
            self._reset()  # a new primary: all that it has executed is committed, and open rounds begin again
            self._last_heard = dict.fromkeys(set(view.members) - {self.name}, now)
            if self.is_primary:
                for rank in sorted(self.live):
                    self._send(("worker", rank), view)

    def _on_view(self, src: Name, view: View, now: float) -> None:
        if src == "register":
            self._proposing = False
        self._adopt(view, now)

    # Commands.

    def _command(self, command: m.Command) -> None:
        """Execute a new command as the primary, and send it to the followers."""
        self.seq += 1
        self._execute(command)
        if followers := self.followers:
            self.log[self.seq] = command
            for follower in followers:
                self._send(follower, Apply(self.view, self.seq, command))
            self._advance()
        elif self._uncommitted or self._answers or self.log:
            self._advance()
        else:  # it is alone, and _changed has committed the part
            self.commit = self.seq

    def _changed(self, index: int, part: PartState) -> None:
        if self.is_primary:
            if index == len(self.committed):
                self.committed.append(part._replace(value=None))
                self._rounds.append(Round())
            if self.followers or self._uncommitted:
                self._uncommitted.append((self.seq, index, part))
                return
            self.committed[index] = part
            if self._pulls.get(index):
                self._answer_pulls(index)

    def _advance(self) -> None:
        """Commit the commands that the quorum has acknowledged, and send the answers that waited for them."""
        quorum, changed = self._quorum(), []
        upto = min([self._acked.get(other, 0) for other in quorum]) if quorum else self.seq
        self.commit = max(self.commit, upto)
        while self._uncommitted and self._uncommitted[0][0] <= upto:
            _, index, part = self._uncommitted.popleft()
            self.committed[index] = part
            if self._pulls.get(index):
                changed.append(index)
        if self.log:
            keep = min([self._acked.get(follower, 0) for follower in self.followers], default=self.seq)
            while self.log and (first := next(iter(self.log))) <= keep:
                del self.log[first]
        while self._answers:  # in order of their commands
            (worker, id), (seq, answer) = next(iter(self._answers.items()))
            if seq > self.commit:
                break
            del self._answers[worker, id]
            self._send(worker, answer)
        for index in sorted({*changed}) if changed else ():
            self._answer_pulls(index)

    def _answer_at(self, seq: int, worker: Name, answer: m.Answer) -> None:
        """Send an answer once all commands up to ``seq`` are committed."""
        self._answers.pop((worker, answer.id), None)
        self._answers[worker, answer.id] = seq, answer

    # Requests of workers to the primary.

    def _accepts(self, worker: Name, request: m.Request) -> bool:
        """Return True if the request is to be answered; else tell the worker the view, or that it is lost."""
        if not (self.is_primary and request.view == self.view.number):
            if request.view > self.view.number:
                self.effects.append(Ask())
            else:
                self._send(worker, self.view)
            return False
        if request.rank not in self.live:
            if self.lost_at.get(request.rank, 0) <= self.commit:  # else the next primary might count it after all
                self._send(worker, m.Lost(self.view.number, request.id))
            return False
        return True

    def forget(self, worker: Name, id: int) -> None:
        """Drop a request as if it had not come: its answer is not wanted any more."""
        self._answers.pop((worker, id), None)
        if pending := self._pending.pop((worker, id), None):
            self._drop(pending)
        for waiting in self._meets.values():
            waiting.pop((worker, id), None)

    def push(self, rank: int, pushes: Iterable[tuple[int, int, Any]]) -> None:
        """Count pushes of a live worker, (part, number, gradient) each; the caller answers them.

        One that is counted already, or that does not come next, changes nothing.
        """
        synchronous = self.kind == "dist_sync"
        for index, number, gradient in pushes:
            part, current = self.parts[index], self._rounds[index]
            if not synchronous:
                if number == part.rounds[rank] + 1:
                    self._command(m.Add(index, ((rank, number),), self.add(None, gradient, True)))
            elif number == part.version + 1 and rank not in current.waiting and rank not in current.summed:
                current.waiting[rank] = gradient
                self._close(index)

    def _on_push(self, worker: Name, push: m.Push, now: float) -> None:
        if not self._accepts(worker, push) or push.part >= len(self.parts):
            return
        if self.kind == "dist_sync":
            self._push_to_round(worker, push)
        elif push.round > self.parts[push.part].rounds[push.rank]:
            if push.round == self.parts[push.part].rounds[push.rank] + 1:
                self._answer_at(self.seq + 1, worker, Counted(self.view.number, push.id))
                self.push(push.rank, [(push.part, push.round, push.gradient)])
        elif push.round > self.committed[push.part].rounds[push.rank]:  # a repetition, executed but not yet committed
            self._answer_at(self.seq, worker, Counted(self.view.number, push.id))
        else:
            self._send(worker, Counted(self.view.number, push.id))

    def _push_to_round(self, worker: Name, push: m.Push) -> None:
        """Count a push before its round closes, because the round may wait for this worker's next push.

        Only the round before it has to be committed, so a worker keeps one push of each part to push it again.
        """
        open_round, counted = self.parts[push.part].version + 1, Counted(self.view.number, push.id)
        current = self._rounds[push.part]
        slow = current.adding or self.defers(push.gradient)
        if push.round == open_round and slow and self.live <= current.ranks | {push.rank} and not self.over:
            current.held.append((worker, counted))  # what this worker asks for next comes after the round
        elif push.round <= open_round:
            self._answer_push(push.part, push.round, worker, counted)
        self.push(push.rank, [(push.part, push.round, push.gradient)])

    def _answer_push(self, part: int, number: int, worker: Name, counted: Counted) -> None:
        if number <= self.committed[part].version + 1:
            self._send(worker, counted)
        else:
            self._answer_at(self.seq, worker, counted)

    def _close(self, index: int) -> None:
        """Add what comes next in order of the ranks, so that the bits do not vary; close the round after the last."""
        current, live = self._rounds[index], self.live
        if self.over:
            return
        waiting, summed = current.waiting, current.summed
        while waiting and not current.adding and (rank := self._next(current)) is not None:
            gradient = waiting.pop(rank)
            summed.append(rank)
            current.complete = not waiting and len(summed) >= len(live) and live.issubset(summed)
            if self.defers(gradient):
                current.adding = True
                self.effects.append(m.AddUp(index, current, gradient))
            else:
                current.total = self.add(current.total, gradient, current.complete)
        if current.adding or not summed:
            return
        if not current.complete:
            if not live.issubset(summed):
                return
            current.total = self.add(current.total, None, True)  # a worker for which it waited is lost
        number, total = self.parts[index].version + 1, current.total
        pushes = tuple([(rank, number) for rank in summed])
        summed.clear()
        current.total, current.complete = None, False
        if current.held:
            held, current.held = current.held, []
            for worker, counted in held:
                self._answer_push(index, number, worker, counted)
        self._command(m.Add(index, pushes, total))

    def _next(self, current: Round) -> int | None:
        """Return the worker whose push is to be added next, or None if that has not come."""
        for rank in range(self.workers):
            if rank in current.waiting:
                return rank
            if rank in self.live and rank not in current.summed:
                return None
        return None

    def _on_summed(self, src: Name, summed: m.Summed, now: float) -> None:
        current = summed.round
        if current is self._rounds[summed.part] and current.adding:  # else the round has begun anew, in another view
            current.adding, current.total = False, summed.total
            self._close(summed.part)

    def _on_do(self, worker: Name, do: m.Do, now: float) -> None:
        if self._accepts(worker, do):
            if not self._is_done(do.command):
                self._command(do.command)
            number_of_part = self.names[do.command.name] if isinstance(do.command, m.Begin) else None
            self._answer_at(self.seq, worker, Done(self.view.number, do.id, number_of_part))
            self._advance()

    def _on_meet(self, worker: Name, meet: m.Meet, now: float) -> None:
        if self._accepts(worker, meet):
            self._meets.setdefault((meet.name, meet.number), {})[worker, meet.id] = meet
            self._gather(meet.name, meet.number)

    def _gather(self, name: str, number: int) -> None:
        """Open a barrier to which all have come, by a command: a worker that has passed it never comes again."""
        waiting = self._meets[name, number]
        passed = self.passed.get(name, {}).get(number)
        if not passed and self.live <= {meet.rank for meet in waiting.values()} and not self.over:
            notes = [meet.note for meet in waiting.values() if meet.rank == 0]  # the last one counts
            self._command(passed := m.Pass(name, number, notes[-1] if notes else None))
        if passed:
            for worker, id in self._meets.pop((name, number)):
                self._answer_at(self.seq, worker, Done(self.view.number, id, passed.note))
            self._advance()

    def _on_lose(self, src: Name, lose: m.Lose, now: float) -> None:
        if self.is_primary and lose.rank in self.live:
            self._command(lose)
            if self.kind == "dist_sync":
                for index in range(len(self.parts)):
                    self._close(index)
            for index in [*self._pulls]:
                self._answer_pulls(index)
            for name, number in [*self._meets]:
                self._gather(name, number)

    # Reads: a pull is answered when its values are committed and, unless it is synchronous, this server is confirmed as
    # the primary.

    def unread(self, worker: Name, id: int) -> list[int]:
        """Return the places of the parts that a waiting pull still lacks."""
        pending = self._pending.get((worker, id))
        return [place for place, part in enumerate(pending.parts) if part is None] if pending else []

    def _on_pull(self, worker: Name, pull: m.Pull, now: float) -> None:
        if not self._accepts(worker, pull) or max(pull.wanted)[0] >= len(self.parts):
            return
        since = self.seq if pull.since is None else pull.since
        pending = PendingPull(worker, pull, since, self._last_turn + 1)
        if self._pending.setdefault((worker, pull.id), pending) is not pending:  # it has come before
            for index in {index for index, _ in pull.wanted}:
                self._answer_pulls(index)
            return
        for place, (index, _) in enumerate(pull.wanted):
            if not self._gives(pending, index, place):
                self._pulls.setdefault(index, []).append((pending, place))
        self._answer(pending)

    def _answer_pulls(self, index: int) -> None:
        """Give a part to the pulls that wait for it, and answer those that have all their parts."""
        waiting, left = self._pulls.pop(index, ()), []
        for pending, place in waiting:
            if pending.pull.rank not in self.live:
                # Rounds may have closed without it: it learns that when it asks again.
                self._pending.pop((pending.worker, pending.pull.id), None)
            elif self._gives(pending, index, place):
                self._answer(pending)
            else:
                left.append((pending, place))
        if left:
            self._pulls[index] = left

    def _gives(self, pending: PendingPull, index: int, place: int) -> bool:
        """Give a part to a pull if it may be read; if only a confirmation is missing, ask for one."""
        rank, number = pending.pull.rank, pending.pull.wanted[place][1]
        if not self._is_readable(rank, index, number):
            return False
        if not self._is_confirmed(index, pending.since, pending.turn):
            self._unconfirmed[index] = None
            self._ask_quorum()
            return False
        pending.parts[place] = part = self.committed[index]
        if part.value is None:  # then there is nothing to wait for
            pending.left = 0
        elif pending.left:
            pending.left -= 1
        return True

    def _answer(self, pending: PendingPull) -> None:
        if not pending.left and self._pending.pop((pending.worker, pending.pull.id), None) is not None:
            wanted = pending.pull.wanted
            read = [(index, part) for (index, _), part in zip(wanted, pending.parts, strict=True) if part is not None]
            self._send(pending.worker, m.Values(self.view.number, pending.pull.id, tuple(read)))
            if len(read) < len(wanted):
                self._drop(pending)

    def _drop(self, pending: PendingPull) -> None:
        """Let a pull wait for no part any more."""
        for index, _ in pending.pull.wanted:
            if index in self._pulls:
                self._pulls[index] = [waiting for waiting in self._pulls[index] if waiting[0] is not pending]

    def _is_readable(self, rank: int, index: int, number: int) -> bool:
        part = self.committed[index]
        if self.kind == "dist_sync":
            return part.version >= number
        if part.rounds[rank] < number:
            return False  # a worker reads its own pushes
        behind = self.staleness if self.kind == "dist_ssp" else number
        return all(part.rounds[other] >= number - behind for other in self.live)

    def _is_confirmed(self, index: int, since: int, turn: int) -> bool:
        """Return True if the quorum has answered a confirmation or a command from after the call began.

        A synchronous pull needs none: a round is the same everywhere, and a load asks every slot itself.
        """
        if self.kind == "dist_sync" and self.committed[index].value is not None:
            return True
        return all(
            self._confirmed_turn.get(other, 0) >= turn or self._acked.get(other, -1) > since for other in self._quorum()
        )

    def _on_confirm(self, worker: Name, confirm: m.Confirm, now: float) -> None:
        if self._accepts(worker, confirm):
            self._confirms[worker, confirm.id] = self._last_turn + 1
            self._answer_confirms()

    def _answer_confirms(self) -> None:
        for (worker, id), turn in [*self._confirms.items()]:
            if all(self._confirmed_turn.get(other, 0) >= turn for other in self._quorum()):
                del self._confirms[worker, id]
                self._send(worker, Done(self.view.number, id, None))
        if self._confirms:
            self._ask_quorum()

    def _ask_quorum(self) -> None:
        """Ask for the next confirmation, unless one is under way."""
        quorum = self._quorum()
        if all(self._confirmed_turn.get(other, 0) >= self._last_turn for other in quorum):
            self._last_turn += 1
            for other in quorum:
                self._send(other, Heartbeat(self.view, self._last_turn))

    def _answer_unconfirmed(self) -> None:
        """Look again at all that waits for a confirmation: one has come, or the quorum has changed."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for index in unconfirmed:
            self._answer_pulls(index)
        self._answer_confirms()

    # Between the primary and its followers.

    def _is_current(self, src: Name, view: View, now: float) -> bool:
        """Return True if a primary's message is of this view or a newer one; if it is older, tell the sender."""
        if view.number < self.view.number:
            self._send(src, self.view)
            return False
        self._adopt(view, now)
        self._last_heard[src] = now
        return True

    def _on_apply(self, src: Name, apply: Apply, now: float) -> None:
        if self._is_current(src, apply.view, now) and self.follows and not self.is_primary:
            if apply.seq == self.seq + 1:
                self.seq = apply.seq
                self._execute(apply.command)
            self._send(src, m.Ack(apply.view.number, self.seq))

    def _on_heartbeat(self, src: Name, heartbeat: Heartbeat, now: float) -> None:
        if self._is_current(src, heartbeat.view, now) and self.follows:
            self._send(src, m.Ack(heartbeat.view.number, self.seq, heartbeat.turn))

    def _on_snapshot(self, src: Name, snapshot: Snapshot, now: float) -> None:
        if not self._is_current(src, snapshot.view, now) or self.name in self.view.members:
            return
        if self.follows and snapshot.seq < self.seq:
            return  # an older snapshot would drop commands that were acknowledged, and may be committed
        self.seq, self.follows = snapshot.seq, True
        self._restore(snapshot.parts, snapshot.facts)
        self._reset()
        self._last_heard[src] = now
        self._send(src, m.Ack(snapshot.view.number, self.seq))

    def _on_ack(self, src: Name, ack: m.Ack, now: float) -> None:
        if self.is_primary and ack.view == self.view.number and src in self.followers:
            self._last_heard[src] = now
            self._acked[src] = max(self._acked.get(src, 0), ack.seq)
            self._advance()
            if ack.turn > self._confirmed_turn.get(src, 0):
                self._confirmed_turn[src] = ack.turn
                self._answer_unconfirmed()

    def _on_join(self, src: Name, join: m.Join, now: float) -> None:
        if not self.is_primary:
            if self.view.number > join.view:
                self._send(src, self.view)
        elif len(self.view.members) == 1 and not self.joining and self.learner in (None, src):
            self.learner, self._last_heard[src] = src, now
            self._acked.setdefault(src, -1)
            self._send(src, Snapshot(self.view, self.seq, *self._snapshot()))
