"""Wrong ways to replicate, named by the omitted step: the simulation must notice each."""

from d2lps.kvstore.replication import PartState, Replica, Requests, View
from d2lps.kvstore.replication.messages import (
    Ack,
    Add,
    Begin,
    Choose,
    Counted,
    Done,
    Facts,
    Load,
    Lose,
    Lost,
    Pass,
    Propose,
    Snapshot,
)
from d2lps.kvstore.replication.world import Register


class AnswersEarly(Replica):
    def _quorum(self):
        return []


class CountsAgain(Replica):
    """A repeated push is a new one."""

    def _on_push(self, worker, push, now):
        part = self.parts[push.part]
        if self.kind == "dist_sync":
            if push.round <= part.version and self._accepts(worker, push):
                self._rounds[push.part].waiting[push.rank] = push.gradient
        elif push.round <= part.rounds[push.rank] and self._accepts(worker, push):
            self._command(Add(push.part, ((push.rank, push.round),), self.add(None, push.gradient, True)))
        super()._on_push(worker, push, now)


class TakesAsItComes(Replica):
    def _next(self, current):
        return next(iter(current.waiting), None)


class SendsNoRounds(Replica):
    """Its snapshot does not say who counts already."""

    def _send(self, to, message):
        if isinstance(message, Snapshot):
            parts = tuple(PartState(part.version, (0,) * len(part.rounds), part.value) for part in message.parts)
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

    def _quorum(self):
        return [*self.view.members[1:]]


class ProposesTooSoon(Replica):
    """A learner that lacks what is committed is made the backup."""

    def _lead(self, now):
        has = self._acked.get(self.learner, -1)
        if self.joining and has >= 0:
            self._propose((self.name, self.learner))
        super()._lead(now)


class IsOneMoreBehind(Replica):
    def _is_readable(self, rank, index, number):
        return super()._is_readable(rank, index, number - 1 if self.kind == "dist_ssp" else number)


class GoesBack(Replica):
    """A learner takes an older snapshot after it has acknowledged more."""

    def _on_snapshot(self, src, snapshot, now):
        if self.name not in self.view.members:
            self.follows = False
        super()._on_snapshot(src, snapshot, now)


class AnswersInAnyView(Replica):
    """It never asks whether it is still the primary, nor whom a worker takes for it."""

    def _accepts(self, worker, request):
        return super()._accepts(worker, request._replace(view=self.view.number))


class AnswersUnsure(Replica):
    """It answers a pull without asking whether it is the primary still."""

    def _is_confirmed(self, index, since, turn):
        return True


class TrustsAnOldAnswer(Replica):
    """What was asked before the pull came will do."""

    def _is_confirmed(self, index, since, turn):
        return super()._is_confirmed(index, since - 1, turn - 1)


class RefusesUnsure(Replica):
    """Its knowledge counts as the truth."""

    def _on_confirm(self, worker, confirm, now):
        self._send(worker, Done(confirm.view, confirm.id, None))


class AsksOnlyMembers(Replica):
    """Not who may have become the backup meanwhile."""

    def _is_confirmed(self, index, since, turn):
        joining, self.joining = self.joining, False
        try:
            return super()._is_confirmed(index, since, turn)
        finally:
            self.joining = joining


class LosesInSecret(Replica):
    """It does not tell its backup that a worker is lost."""

    def _command(self, command):
        if isinstance(command, Lose):
            self.live -= {command.rank}
            self.lost_at[command.rank] = 0
        else:
            super()._command(command)


class BeginsInSecret(Replica):
    """Its backup does not hear of a part's first value."""

    secret = Begin

    def _command(self, command):
        if isinstance(command, self.secret):
            self._execute(command)
            self.committed = [*self.parts] if isinstance(command, Begin | Load) else self.committed
        else:
            super()._command(command)


class ChoosesInSecret(BeginsInSecret):
    """Nor of the optimizer."""

    secret = Choose


class PassesInSecret(BeginsInSecret):
    """Nor that all have come to a barrier: who has passed it does not come again."""

    secret = Pass


class LoadsInSecret(BeginsInSecret):
    """Nor of what is loaded."""

    secret = Load


class DoesAgain(Replica):
    """What is asked for again is done again, also when it is long over."""

    def _is_done(self, command):
        return isinstance(command, Begin) and super()._is_done(command)


class PassesEarly(Replica):
    """The last one at a barrier gets the news at once that all have come."""

    def _on_meet(self, worker, meet, now):
        super()._on_meet(worker, meet, now)
        passed = self.passed.get(meet.name, {}).get(meet.number)
        if passed and self.is_primary and meet.view == self.view.number:
            self._send(worker, Done(meet.view, meet.id, passed.note))


class SendsNoFacts(Replica):
    """Its snapshot has parts, and nothing else."""

    def _send(self, to, message):
        if isinstance(message, Snapshot):
            message = message._replace(facts=Facts(message.facts.names))
        super()._send(to, message)


class CountsTwoRoundsAhead(Replica):
    """A push counts before the round before it is committed: its worker keeps one of each part."""

    def _push_to_round(self, worker, push):
        if push.round <= self.parts[push.part].version + 1:
            self._send(worker, Counted(self.view.number, push.id))
        super()._push_to_round(worker, push)


class TellsOfLossEarly(Replica):
    """A worker hears that it is lost before that is committed."""

    def _accepts(self, worker, request):
        if self.is_primary and request.view == self.view.number and request.rank not in self.live:
            self._send(worker, Lost(self.view.number, request.id))
        return super()._accepts(worker, request)


class ForgetsWhatItFollowed(Replica):
    """A learner that hears nothing for a while begins from nothing."""

    def tick(self, now):
        members = self.view.members
        if self.name not in members and members and self._is_silent(members[0], now):
            self.follows = False
        super().tick(now)


class AlwaysPromotes(Replica):
    """A server that gets no message makes itself the primary, member or not."""

    def tick(self, now):
        members = self.view.members
        if members and self.name not in members and self.follows and self._is_silent(members[0], now):
            self.effects.append(Propose(self.view.number + 1, (self.name,)))
        super().tick(now)


class TakesOldCommands(Replica):
    """It does what an earlier primary said: a message that was four views late."""

    def _is_current(self, src, view, now):
        return super()._is_current(src, view, now) or True


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
            self.world.promises.check_members()
        super().receive(src, message, now)


KINDS = {Replica: "replica", Requests: "requests", Register: "register"}
WRONG = [
    each
    for each in [*globals().values()]
    if isinstance(each, type) and issubclass(each, (*KINDS,)) and each.__module__ == __name__
]
# Random schedules show these too rarely: separate tests provoke them.
TOO_RARE = {TakesOldCommands, AnswersInAnyView, TellsOfLossEarly, CountsTwoRoundsAhead}
TOO_RARE |= {AnswersUnsure, TrustsAnOldAnswer, AsksOnlyMembers, RefusesUnsure}


def made(wrong: type) -> dict[str, type]:
    """Return the arguments of a World, with ``wrong`` in its place."""
    return {next(name for kind, name in KINDS.items() if issubclass(wrong, kind)): wrong}
