"""Wrong ways to replicate, each by what it does not do: the simulation has to notice every one."""

from d2lps.kvstore.replication import Part, Replica, Requests, View
from d2lps.kvstore.replication.messages import Ack, Add, Counted, Lose, Lost, Propose, Snapshot
from d2lps.kvstore.replication.world import Register


class AnswersEarly(Replica):
    def _needed(self):
        return []


class CountsAgain(Replica):
    """A repeated push is a new one."""

    def _on_push(self, worker, push, now):
        part = self.parts[push.part]
        if self.kind == "dist_sync":
            if push.round <= part.version and self._is_mine(worker, push):
                self._arrived[push.part][push.rank] = push.gradient
        elif push.round <= part.rounds[push.rank] and self._is_mine(worker, push):
            self._command(Add(push.part, ((push.rank, push.round),), self.add([push.gradient])))
        super()._on_push(worker, push, now)


class TakesAsItComes(Replica):
    def _in_order(self, arrived):
        return list(arrived)


class SendsNoRounds(Replica):
    """Its snapshot does not say who counts already."""

    def _send(self, to, message):
        if isinstance(message, Snapshot):
            parts = tuple(Part(part.version, (0,) * len(part.rounds), part.value) for part in message.parts)
            message = message._replace(parts=parts)
        super()._send(to, message)


class AcknowledgesAnything(Replica):
    """The number of the command that came, not of the last that was done in order."""

    def _on_apply(self, src, apply, now):
        super()._on_apply(src, apply, now)
        self._send(src, Ack(apply.view.number, apply.seq))


class SkipsGaps(Replica):
    def _on_apply(self, src, apply, now):
        if apply.seq > self.seq:
            self.seq = apply.seq - 1
        super()._on_apply(src, apply, now)


class CommitsWithoutTheLearner(Replica):
    """While it is not known whether the learner has become the backup."""

    def _needed(self):
        return [*self.view.members[1:]]


class IsOneMoreBehind(Replica):
    def _readable(self, pull):
        return super()._readable(pull._replace(round=pull.round - 1) if self.kind == "dist_ssp" else pull)


class GoesBack(Replica):
    """A learner takes an older snapshot after it has acknowledged more."""

    def _on_snapshot(self, src, snapshot, now):
        if self.name not in self.view.members:
            self.follows = False
        super()._on_snapshot(src, snapshot, now)


class AnswersInAnyView(Replica):
    """It never asks whether it is still the primary, nor whom a worker takes for it."""

    def _is_mine(self, worker, request):
        return super()._is_mine(worker, request._replace(view=self.view.number))


class LosesInSecret(Replica):
    """It does not tell its backup that a worker is lost."""

    def _command(self, command):
        if isinstance(command, Lose):
            self.live -= {command.rank}
            self.lost_at[command.rank] = 0
        else:
            super()._command(command)


class TellsOfLossEarly(Replica):
    """A worker hears that it is lost before that is committed."""

    def _is_mine(self, worker, request):
        if self.is_primary and request.view == self.view.number and request.rank not in self.live:
            self._send(worker, Lost(self.view.number, request.id))
        return super()._is_mine(worker, request)


class ForgetsWhatItFollowed(Replica):
    """A learner that hears nothing for a while begins from nothing."""

    def tick(self, now):
        members = self.view.members
        if self.name not in members and members and self._silent(members[0], now):
            self.follows = False
        super().tick(now)


class AlwaysPromotes(Replica):
    """Whoever hears nothing makes itself the primary, member or not."""

    def tick(self, now):
        members = self.view.members
        if members and self.name not in members and self.follows and self._silent(members[0], now):
            self.effects.append(Propose(self.view.number + 1, (self.name,)))
        super().tick(now)


class TakesOldCommands(Replica):
    """It does what an earlier primary said: a message that was four views late."""

    def _hear(self, src, view, now):
        return super()._hear(src, view, now) or True


class SendsNothingAgain(Requests):
    def _adopt(self, view):
        if view.number > self.view.number:
            self.view = view
            for id in self.waiting:
                self._send(id)


class KeepsTooShort(Requests):
    """A push that counts in an open round is dropped, though the round may begin anew."""

    def receive(self, message):
        request = super().receive(message)
        if isinstance(message, Counted) and request:
            self.kept.pop((request.part, request.round), None)
        return request


class TakesEveryProposal(Register):
    """It does not compare before it sets."""

    def receive(self, src, message, now):
        if isinstance(message, Propose) and message.number == self.view.number:
            self.view = View(*message)
            self.world.check_members()
        super().receive(src, message, now)


KINDS = {Replica: "replica", Requests: "requests", Register: "register"}
WRONG = [each for kind in KINDS for each in kind.__subclasses__() if each.__module__ == __name__]
TOO_RARE = TakesOldCommands  # it takes a message that is four views late: a test of its own makes one


def made(wrong: type) -> dict[str, type]:
    """What a World takes, with ``wrong`` in its place."""
    return {KINDS[wrong.__base__]: wrong}
