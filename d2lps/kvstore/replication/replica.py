"""One server's part in a slot: primary, backup, or neither. Messages and moments come in, effects go out.

The primary does a command at once, hands it to the backup, and commits it when the backup has done it, too. Alone it
commits at once. Whoever hears nothing from the other for a while proposes a view without it; the register takes one
proposal. A server that is no member asks the primary for everything, follows it, and becomes the backup once it has
caught up.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from d2lps.kvstore.replication.messages import (
    Ack,
    Add,
    Apply,
    Ask,
    Counted,
    Heartbeat,
    Join,
    Lose,
    Lost,
    Name,
    Propose,
    Pull,
    Push,
    Send,
    Snapshot,
    Value,
    View,
)


class Part(NamedTuple):
    """A part of a key, never changed: its version, how many pushes of each rank are in it, and what they made of it."""

    version: int
    rounds: tuple[int, ...]
    value: Any


class Replica:
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
    add, publish : callable
        ``add([gradient, …])`` in order of the ranks is the sum of a round; ``publish(value, sum)`` the next value. What
        they get is not to be changed.
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
        publish: Callable = lambda value, total: (*value, total),
    ):
        self.name, self.view, self.kind, self.staleness, self.patience = name, view, kind, staleness, patience
        self.add, self.publish = add, publish
        self.parts, self.live, self.seq = list(parts), frozenset(range(workers)), 0
        self.follows = name in view.members  # whether it has what a member has, up to seq
        self._left: dict[int, int] = {}  # rank → the command that says it is lost
        self.log: dict[int, Add | Lose] = {}  # by number: what not all who follow have done
        self.effects: list = []
        self._begin()

    def _begin(self) -> None:
        """Forget what only the primary of one view knows."""
        self.committed, self.commit = list(self.parts), self.seq
        self._done: dict[int, tuple[int, Part]] = {}  # by number: a part as the command left it, until it is committed
        self._arrived: list[dict[int, Any]] = [{} for _ in self.parts]  # of the open round: rank → gradient
        self._pulls: dict[tuple[Name, int], Pull] = {}  # that wait
        self._pushes: dict[tuple[Name, int], int] = {}  # that wait: until which command is committed
        self._acked: dict[Name, int] = {}
        self._heard: dict[Name, float] = {}
        self.learner: Name | None = None  # who follows and is no member
        self.joining = False  # whether the learner has been proposed as backup
        self._proposed = False

    @property
    def is_primary(self) -> bool:
        return self.view.members[:1] == (self.name,) and self.follows

    def take(self) -> list:
        """The effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def receive(self, src: Name, message: NamedTuple, now: float) -> None:
        """A message from a server, a worker or the register, at ``now`` of this server's own clock."""
        getattr(self, self._on[type(message)])(src, message, now)

    # What time brings.

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

    def _lead(self, now: float) -> None:
        if any([self._silent(member, now) for member in self.view.members[1:]]):
            self._propose((self.name,))
        if self.learner is not None and not self.joining and self._silent(self.learner, now):
            self.learner = None
            self._trim()
        if self._proposed:
            self.effects.append(Ask())
        for follower in self._followers():
            self._send(follower, Heartbeat(self.view))
            for seq in range(self._acked.get(follower, 0) + 1, self.seq + 1):
                if seq in self.log:
                    self._send(follower, Apply(self.view, seq, self.log[seq]))
        caught_up = self.learner is not None and self._acked.get(self.learner) == self.seq
        if caught_up and len(self.view.members) == 1:
            # From here on nothing is committed without it, until it is known whether it has become the backup.
            self.joining = True
        if self.joining:
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
            self._begin()
        elif self.is_primary and led:
            self.learner, self.joining = None, False  # it is the backup now, or was not taken
            self._acked = {member: self._acked.get(member, 0) for member in view.members[1:]}
            self._heard |= dict.fromkeys(view.members[1:], now)
            self._advance()
        else:
            self.log = {}
            self._begin()  # a new primary: all that it has done is committed, and open rounds begin again
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

    def _command(self, command: Add | Lose) -> None:
        self.seq += 1
        self._do(command)
        self.log[self.seq] = command
        for follower in self._followers():
            self._send(follower, Apply(self.view, self.seq, command))
        self._advance()

    def _do(self, command: Add | Lose) -> None:
        if isinstance(command, Lose):
            self.live -= {command.rank}
            self._left[command.rank] = self.seq
            return
        part, rounds = self.parts[command.part], dict(command.pushes)
        rounds = tuple(rounds.get(rank, had) for rank, had in enumerate(part.rounds))
        part = Part(part.version + 1, rounds, self.publish(part.value, command.total))
        self.parts[command.part] = part
        if self.is_primary:
            self._done[self.seq] = command.part, part

    def _followers(self) -> list[Name]:
        return [*self.view.members[1:], *([self.learner] if self.learner is not None else [])]

    def _needed(self) -> list[Name]:
        """Whose acknowledgement makes a command committed."""
        return [*self.view.members[1:], *([self.learner] if self.joining else [])]

    def _advance(self) -> None:
        """Commit what all have done, and answer whom that allows to be answered."""
        upto = min([self._acked.get(other, 0) for other in self._needed()], default=self.seq)
        while self.commit < upto:
            self.commit += 1
            if self.commit in self._done:
                index, part = self._done.pop(self.commit)
                self.committed[index] = part
        self._trim()
        for (worker, id), seq in [*self._pushes.items()]:
            if seq <= self.commit:
                del self._pushes[worker, id]
                self._send(worker, Counted(self.view.number, id))
        for (worker, id), pull in [*self._pulls.items()]:
            if self._readable(pull):
                del self._pulls[worker, id]
                self._send(worker, Value(self.view.number, id, pull.part, *self.committed[pull.part]))

    def _trim(self) -> None:
        """Forget the commands that all who follow have done."""
        keep = min([self._acked.get(follower, 0) for follower in self._followers()], default=self.seq)
        for seq in [seq for seq in self.log if seq <= keep]:
            del self.log[seq]

    def _readable(self, pull: Pull) -> bool:
        part = self.committed[pull.part]
        if self.kind == "dist_sync":
            return part.version >= pull.round
        if part.rounds[pull.rank] < pull.round:
            return False  # its own pushes are to be in it
        behind = self.staleness if self.kind == "dist_ssp" else pull.round
        return all(part.rounds[rank] >= pull.round - behind for rank in self.live)

    # Workers.

    def _on_push(self, worker: Name, push: Push, now: float) -> None:
        if not self._is_mine(worker, push):
            return
        if self.kind == "dist_sync":
            self._push_to_round(worker, push)
        elif push.round > self.parts[push.part].rounds[push.rank]:
            if push.round == self.parts[push.part].rounds[push.rank] + 1:
                self._pushes[worker, push.id] = self.seq + 1
                self._command(Add(push.part, ((push.rank, push.round),), self.add([push.gradient])))
        elif push.round > self.committed[push.part].rounds[push.rank]:
            self._pushes[worker, push.id] = self.seq  # a repetition of what is done, and not yet committed
        else:
            self._send(worker, Counted(self.view.number, push.id))

    def _push_to_round(self, worker: Name, push: Push) -> None:
        """It is counted here at once: it cannot wait for the round, which may wait for the worker's next push."""
        open_round = self.parts[push.part].version + 1
        if push.round <= open_round:
            self._send(worker, Counted(self.view.number, push.id))
        if push.round == open_round:
            self._arrived[push.part].setdefault(push.rank, push.gradient)
            self._close()

    def _close(self) -> None:
        """End the rounds for which all have pushed: one sum, in order of the ranks, so that its bits do not vary."""
        for index, arrived in enumerate(self._arrived):
            if arrived and self.live <= arrived.keys():
                self._arrived[index] = {}
                ranks, number = self._in_order(arrived), self.parts[index].version + 1
                total = self.add([arrived[rank] for rank in ranks])
                self._command(Add(index, tuple((rank, number) for rank in ranks), total))

    def _in_order(self, arrived: dict[int, Any]) -> list[int]:
        return sorted(arrived)

    def _on_pull(self, worker: Name, pull: Pull, now: float) -> None:
        if self._is_mine(worker, pull):
            self._pulls[worker, pull.id] = pull
            self._advance()

    def _is_mine(self, worker: Name, request: Push | Pull) -> bool:
        """Whether to answer it; a worker of an older view is told the view, one that is lost hears so."""
        if not (self.is_primary and request.view == self.view.number):
            if request.view > self.view.number:
                self.effects.append(Ask())
            else:
                self._send(worker, self.view)
            return False
        if request.rank not in self.live:
            if self._left.get(request.rank, 0) <= self.commit:  # else the next primary might count it after all
                self._send(worker, Lost(self.view.number, request.id))
            return False
        return True

    def _on_lose(self, src: Name, lose: Lose, now: float) -> None:
        if self.is_primary and lose.rank in self.live and len(self.live) > 1:
            self._command(lose)
            self._close()

    # The primary, as its backup and its learner hear it.

    def _on_apply(self, src: Name, apply: Apply, now: float) -> None:
        if self._hear(src, apply.view, now) and self.follows and not self.is_primary:
            if apply.seq == self.seq + 1:
                self.seq = apply.seq
                self._do(apply.command)
            self._send(src, Ack(apply.view.number, self.seq))

    def _on_heartbeat(self, src: Name, heartbeat: Heartbeat, now: float) -> None:
        if self._hear(src, heartbeat.view, now) and self.follows:
            self._send(src, Ack(heartbeat.view.number, self.seq))

    def _on_snapshot(self, src: Name, snapshot: Snapshot, now: float) -> None:
        if not self._hear(src, snapshot.view, now) or self.name in self.view.members:
            return
        if self.follows and snapshot.seq < self.seq:
            return  # what was acknowledged may have been committed: it is not forgotten again
        self.parts, self.seq, self.live = list(snapshot.parts), snapshot.seq, snapshot.live
        self.follows = True
        self._begin()
        self._heard[src] = now
        self._send(src, Ack(snapshot.view.number, self.seq))

    # Those who follow, as the primary hears them.

    def _on_ack(self, src: Name, ack: Ack, now: float) -> None:
        if self.is_primary and ack.view == self.view.number and src in self._followers():
            self._heard[src] = now
            self._acked[src] = max(self._acked.get(src, 0), ack.seq)
            self._advance()

    def _on_join(self, src: Name, join: Join, now: float) -> None:
        if not self.is_primary:
            if self.view.number > join.view:
                self._send(src, self.view)
        elif len(self.view.members) == 1 and not self.joining and self.learner in (None, src):
            self.learner, self._heard[src] = src, now
            self._acked.setdefault(src, -1)
            self._send(src, Snapshot(self.view, self.seq, tuple(self.parts), self.live))

    def _on_view(self, src: Name, view: View, now: float) -> None:
        if src == "register":
            self._proposed = False
        self._adopt(view, now)

    def _send(self, to: Name, message: NamedTuple) -> None:
        self.effects.append(Send(to, message))

    _on = {
        Push: "_on_push",
        Pull: "_on_pull",
        Lose: "_on_lose",
        Apply: "_on_apply",
        Heartbeat: "_on_heartbeat",
        Snapshot: "_on_snapshot",
        Ack: "_on_ack",
        Join: "_on_join",
        View: "_on_view",
    }
