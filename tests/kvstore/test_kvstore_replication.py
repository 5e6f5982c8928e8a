"""The rules of replication: no schedule of faults breaks a promise, and a wrong way to replicate breaks one."""

import sys
from dataclasses import replace
from random import Random

import pytest
from helpers.replicas import (
    TOO_RARE,
    WRONG,
    AnswersEarly,
    AnswersInAnyView,
    AnswersUnsure,
    AsksOnlyMembers,
    CountsTwoRoundsAhead,
    RefusesUnsure,
    TakesOldCommands,
    TellsOfLossEarly,
    TrustsAnOldAnswer,
    made,
)
from helpers.simulation import broken, lines, main, shrunk

from d2lps.kvstore.replication import FaultPlan, PartState, Propose, Replica, Requests, View, World, story
from d2lps.kvstore.replication.messages import (
    Ack,
    AddUp,
    Apply,
    Confirm,
    Counted,
    Done,
    Heartbeat,
    Join,
    Lose,
    Lost,
    Meet,
    Pull,
    Push,
    Send,
    Snapshot,
    Summed,
    Values,
)

A, B, L, W = "a", "b", "l", ("worker", 0)
PARTED = pytest.mark.fault("F5", "primary cut off from all but a worker")


FOUND = {"DoesAgain": 810, "LosesInSecret": 2270, "ProposesTooSoon": 334}  # a seed that is known to show it


@pytest.mark.parametrize(
    "kind, changes",
    [
        (None, {}),
        ("dist_sync", {"late": True}),  # sums come late
        (None, {"joint": True, "parts": 2}),  # workers pull several parts at once
    ],
)
def test_no_schedule_breaks_a_promise(kind, changes):
    """I1 to I15, at every message: see ``World``. ``make simulate`` plays many more schedules."""
    seeds = [*range(500), *FOUND.values()]  # nearly each wrong way below would be noticed
    plans = [replace(FaultPlan.drawn(seed, kind), **changes) for seed in seeds]
    assert {World(plan).run() for plan in plans} == {"done", "lost"}  # lost: the few in which both members died


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async", "dist_ssp"])
def test_schedules_are_hard(kind):
    """Else that nothing breaks would say nothing."""
    worlds = [World(FaultPlan.drawn(seed, kind)) for seed in range(60)]
    ends = [world.run() for world in worlds]
    assert ends.count("done") > 50
    assert sum(world.crashes for world in worlds) > 40 and sum(world.view.number > 2 for world in worlds) > 20
    assert max(world.view.number for world in worlds) > 5, "views change again and again"


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong not in TOO_RARE], ids=lambda wrong: wrong.__name__)
def test_a_wrong_way_breaks_one(wrong):
    seeds = [FOUND.get(wrong.__name__, 0), *range(10_000)]
    assert any(broken(FaultPlan.drawn(seed), **made(wrong)) for seed in seeds)


def test_a_seed_is_the_same_run_twice():
    def run(seed):
        world = World(FaultPlan.drawn(seed), recorded=True)
        return world.run(), world.deliveries, world.count

    assert run(11) == run(11) != run(12)


def test_a_schedule_that_breaks_a_promise_is_made_simple():
    schedule = FaultPlan.drawn(1)
    simple = shrunk(schedule, **made(AnswersEarly))
    assert broken(simple, **made(AnswersEarly)) and not broken(simple)
    assert not simple.troubles and (simple.parts, simple.torn, simple.skew) == (1, 0.0, 0.0)


def test_simulation_prints_the_played_schedules(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulation", "50", "--seed", "7"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("50 schedules, no promise broken: {'done': ")


def test_simulation_prints_the_simplest_schedule_that_breaks_a_promise(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulation", "50"])
    monkeypatch.setattr(World.__init__, "__defaults__", (AnswersEarly, *World.__init__.__defaults__[1:]))
    assert main() == 1
    *_, last = capsys.readouterr().out.partition("the simplest schedule that breaks it: FaultPlan(seed=")
    assert "what happened before:" in last and " ms  worker0 → server0  Push(" in last


def test_a_recorded_run_is_a_trace_for_the_player():
    world = World(FaultPlan.drawn(11), recorded=True)
    world.run()
    trace = story.trace(world)
    assert world.crashes == 2 and trace.steps == world.schedule.rounds
    pushes = {(event.src, event.step) for event in trace.events if event.op == "add"}
    assert pushes == {(f"worker{rank}", round) for rank in range(3) for round in range(1, trace.steps + 1)}
    answers = [event for event in trace.events if event.dst.startswith("worker")]
    assert {event.carries for event in answers} == {("worker0", "worker1", "worker2")}
    assert len([*lines(world)]) == len(world.deliveries)
    deaths = {(event.src, event.start) for event in trace.events if event.kind == "gone"}
    assert deaths and deaths <= {(story.shown(name), time) for time, name in world.deaths}


SHOWN = 5  # a seed that is known to show it


def parted(seed: int) -> FaultPlan:
    """Workers compute for a while between two acts, and a server is cut off, alone or with workers, six times."""
    draw = Random(seed)
    rest = {"lost": draw.choice([0, 0.02]), "slow": draw.choice([0, 0.05])}
    troubles = [(draw.uniform(0, 0.3), "cut off from the register", draw.getrandbits(32)) for _ in range(6)]
    kind = draw.choice(["dist_async", "dist_ssp"])
    return FaultPlan(seed, kind, 2, 3, rounds=12, until=0.5, idle=0.1, troubles=tuple(sorted(troubles)), **rest)


@PARTED
def test_a_pull_has_all_that_anybody_had_heard_of_when_it_came():
    for seed in range(100):
        assert broken(parted(seed)) is None, seed


@PARTED
@pytest.mark.parametrize("wrong", [AnswersUnsure, TrustsAnOldAnswer])
def test_an_unconfirmed_answer_is_detected(wrong):
    seeds = [SHOWN, *range(2_000)]
    assert any((broken(parted(seed), **made(wrong)) or "").startswith("I15") for seed in seeds)


def replica(name, members=(A, B), kind="dist_sync", workers=1, of=Replica) -> Replica:
    return of(name, View(1, members), [PartState(0, (0,) * workers, ())], workers, kind)


def sent(by: Replica | Requests, *kinds: type) -> list:
    """Return the messages of these kinds that it has sent since the last time, and forget the rest."""
    return [effect.message for effect in by.take() if isinstance(effect, Send) and isinstance(effect.message, kinds)]


def test_a_removed_server_answers_no_request():
    a = replica(A)
    a.receive("register", View(2, (B,)), 0.0)
    a.receive(W, Pull(2, 1, 0, ((0, 0),)), 0.0)
    assert sent(a, Values) == [] and not a.is_primary


@pytest.mark.parametrize("of, told", [(Replica, 0), (TellsOfLossEarly, 1)], ids=["right", "wrong"])
def test_a_lost_worker_is_told_only_after_the_backup_knows(of, told):
    a = replica(A, workers=2, of=of)
    a.receive("detector", Lose(0), 0.0)
    a.receive(W, Push(1, 1, 0, 0, 1, "g"), 0.0)
    assert len(sent(a, Lost)) == told
    a.receive(B, Ack(1, 1), 0.0)
    a.receive(W, Push(1, 1, 0, 0, 1, "g"), 0.0)
    assert sent(a, Lost)


@pytest.mark.parametrize("of, told", [(Replica, 0), (AnswersInAnyView, 1)], ids=["right", "wrong"])
def test_a_worker_that_knows_of_a_newer_primary_is_not_answered(of, told):
    a = replica(A, of=of)
    a.receive(W, Push(2, 1, 0, 0, 1, "g"), 0.0)
    assert len(sent(a, Counted)) == told


@pytest.mark.parametrize("of, told", [(Replica, 0), (CountsTwoRoundsAhead, 1)], ids=["right", "wrong"])
def test_a_push_counts_when_the_round_before_is_committed(of, told):
    """So a worker keeps one push of each part, to push it again."""
    a = replica(A, of=of)
    a.receive(W, Push(1, 1, 0, 0, 1, "first"), 0.0)
    sent(a, Counted)
    a.receive(W, Push(1, 2, 0, 0, 2, "second"), 0.0)
    assert len(sent(a, Counted)) == told
    a.receive(B, Ack(1, 1), 0.0)
    assert Counted(1, 2) in [effect.message for effect in a.take() if isinstance(effect, Send)] or told


@pytest.mark.parametrize("kind, done", [(Replica, 2), (TakesOldCommands, 3)], ids=["right", "wrong"])
def test_a_command_of_a_deposed_primary_is_not_done(kind, done):
    """It comes four views late, with the very number that is next: only its view tells that it never happened."""
    a, b = replica(A, kind="dist_async", of=kind), replica(B, kind="dist_async", of=kind)

    def heard(by: Replica, src: str, messages: list) -> None:
        for message in messages:
            by.receive(src, message, 0.0)

    def adopt(view: View) -> None:
        for each in (a, b):
            each.receive("register", view, 0.0)
            each.take()

    def rejoined(primary: Replica, learner: Replica, number: int) -> None:
        primary.receive(learner.name, Join(number), 0.0)
        heard(learner, primary.name, sent(primary, Snapshot))
        heard(primary, learner.name, sent(learner, Ack))
        primary.tick(0.0)
        adopt(View(number + 1, (primary.name, learner.name)))

    a.receive(W, Push(1, 1, 0, 0, 1, "first"), 0.0)
    heard(b, A, sent(a, Apply))
    heard(a, B, sent(b, Ack))
    a.receive(W, Push(1, 2, 0, 0, 2, "second"), 0.0)
    late = sent(a, Apply)  # stays on the way
    adopt(View(2, (B,)))
    rejoined(b, a, 2)
    adopt(View(4, (A,)))
    rejoined(a, b, 4)
    before = b.seq
    heard(b, A, late)
    assert b.seq - before == done - 2 and a.parts[0].rounds == (1,)


def test_a_push_counts_when_the_late_sum_of_its_round_is_there():
    """Else its worker could ask for an optimizer that this round is not to be stepped by."""
    a = replica(A, members=(A,), workers=2)
    a.defers = lambda gradient: True

    def taken() -> tuple[list, list]:
        effects = a.take()
        return [each for each in effects if isinstance(each, AddUp)], [
            each.to for each in effects if type(each) is Send
        ]

    for rank in (1, 0):
        a.receive(("worker", rank), Push(1, rank, rank, 0, 1, rank), 0.0)
    (first,), told = taken()
    assert first.gradient == 0 and told == [("worker", 1)]
    a.receive(A, Summed(0, first.round, (0,)), 0.0)
    (second,), told = taken()
    assert second.gradient == 1 and second.round.complete and told == [] and a.parts[0].version == 0
    a.receive(A, Summed(0, second.round, (0, 1)), 0.0)
    assert taken() == ([], [("worker", 0)]) and a.parts[0].value == ((0, 1),)


def test_a_late_sum_of_a_round_that_has_begun_anew_is_dropped():
    b = replica(B)
    b.defers = lambda gradient: True
    b.receive("register", View(2, (B,)), 0.0)
    b.receive(W, Push(2, 1, 0, 0, 1, "g"), 0.0)
    (late,) = [effect for effect in b.take() if isinstance(effect, AddUp)]
    b.receive("register", View(3, (A,)), 0.0)
    b.receive(B, Summed(0, late.round, ("g",)), 0.0)
    assert b.parts[0].version == 0 and b.take() == []


def test_the_last_note_of_worker_0_at_a_barrier_counts():
    """It was interrupted as it waited for worker 1, and has done something else for all since."""
    a = replica(A, members=(A,), workers=2)
    for worker, id, note in ((0, 1, "before"), (0, 2, "since"), (1, 1, None)):
        a.receive(("worker", worker), Meet(1, id, worker, "load", 1, note), 0.0)
    assert {done.answer for done in sent(a, Done)} == {"since"}


def test_a_push_without_an_answer_counts_as_one_with_an_answer():
    """The store gives the pushes of a frame to the rules at once, and answers the frame."""
    one, other = (replica(A, members=(A,), workers=2) for _ in range(2))
    for id, (rank, number) in enumerate([(1, 1), (1, 1), (0, 2), (0, 1), (1, 2), (0, 2)]):  # one comes twice, one early
        one.receive(("worker", rank), Push(1, id, rank, 0, number, (rank, number)), 0.0)
        other.push(rank, [(0, number, (rank, number))])
        assert one.parts == other.parts and one.arrived(0) == other.arrived(0)
    assert other.parts[0].value == (((0, 1), (1, 1)), ((0, 2), (1, 2)))


def test_a_pull_of_several_parts_is_answered_once_each_part_as_it_was_when_it_became_readable():
    a = Replica(A, View(1, (A,)), [PartState(0, (0,), ())] * 2, 1, "dist_sync")
    a.receive(W, Pull(1, 1, 0, ((0, 1), (1, 1))), 0.0)
    for id, (part, number) in enumerate([(0, 1), (0, 2), (1, 1)], 2):
        assert sent(a, Values) == [] and a.unread(W, 1) == [[0, 1], [1], [1]][id - 2]
        a.receive(W, Push(1, id, 0, part, number, (part, number)), 0.0)
    first, second = PartState(1, (1,), (((0, 1),),)), PartState(1, (1,), (((1, 1),),))
    assert sent(a, Values) == [Values(1, 1, ((0, first), (1, second)))] and a.unread(W, 1) == []


def test_a_pull_that_is_forgotten_waits_for_no_part():
    a = Replica(A, View(1, (A,)), [PartState(0, (0,), ())] * 2, 1, "dist_sync")
    for id in (1, 2):
        a.receive(W, Pull(1, id, 0, ((0, 1), (1, 1))), 0.0)
    a.forget(W, 1)
    for part in (0, 1):
        a.receive(W, Push(1, 3 + part, 0, part, 1, "g"), 0.0)
    assert [values.id for values in sent(a, Values)] == [2]


def test_a_pull_of_a_part_without_a_value_is_answered_although_another_part_is_awaited():
    a = Replica(A, View(1, (A,)), [PartState(0, (0,), None), PartState(0, (0,), ())], 1, "dist_sync")
    a.receive(W, Pull(1, 1, 0, ((0, 0), (1, 1))), 0.0)
    assert sent(a, Values) == [Values(1, 1, ((0, a.parts[0]),))]
    a.receive(W, Push(1, 2, 0, 1, 1, "g"), 0.0)
    assert sent(a, Values) == []


# ---------------------------------------------------------------- what a primary asks its backup before it answers


@PARTED
@pytest.mark.parametrize("of, told", [(Replica, 0), (AsksOnlyMembers, 1)], ids=["right", "wrong"])
def test_a_possible_backup_is_asked_too(of, told):
    """The register took the view with it, and no server has heard that: it may be the primary by now."""
    primary = replica(A, (A,), "dist_async", of=of)
    primary.receive(L, Join(1), 0.0)
    primary.receive(L, Ack(1, 0), 0.0)
    primary.tick(0.0)
    assert Propose(2, (A, L)) in primary.take()
    primary.receive(W, Pull(1, 1, 0, ((0, 0),)), 0.0)
    said = sent(primary, Values, Heartbeat)
    assert len([each for each in said if isinstance(each, Values)]) == told
    if not told:
        assert said == [Heartbeat(View(1, (A,)), 1)]
        primary.receive(L, Ack(1, 0), 0.0)
        assert not sent(primary, Values), "that is no answer"
        primary.receive(L, Ack(1, 0, 1), 0.0)
        assert len(sent(primary, Values)) == 1


@PARTED
def test_one_question_is_under_way_and_the_next_one_is_for_all_that_came_meanwhile():
    primary = replica(A, (A, L), "dist_async")
    for id in range(1, 5):
        primary.receive(W, Pull(1, id, 0, ((0, 0),)), 0.0)
    assert [each.turn for each in sent(primary, Heartbeat)] == [1]
    primary.receive(L, Ack(1, 0, 1), 0.0)
    assert [getattr(each, "id", None) or each.turn for each in sent(primary, Values, Heartbeat)] == [1, 2]
    primary.receive(L, Ack(1, 0, 2), 0.0)
    assert [each.id for each in sent(primary, Values)] == [2, 3, 4]


@PARTED
def test_a_pull_of_its_own_push_needs_no_question():
    primary = replica(A, (A, L), "dist_async")
    since = primary.seq
    primary.receive(W, Push(1, 1, 0, 0, 1, "g"), 0.0)
    primary.receive(W, Pull(1, 2, 0, ((0, 1),), since), 0.0)
    assert not sent(primary, Heartbeat, Values)
    primary.receive(L, Ack(1, 1), 0.0)
    assert [type(each) for each in sent(primary, Counted, Values, Heartbeat)] == [Counted, Values]


@PARTED
def test_a_returning_learner_is_taught_again():
    """The snapshot is lost, and it still has what it had: what came since is not kept for it."""
    primary = replica(A, (A,), "dist_async")
    primary.receive(L, Join(1), 0.0)
    primary.receive(L, Ack(1, 0), 0.0)
    primary.tick(5.0)
    assert primary.learner is None, "it has been silent"
    primary.receive(W, Push(1, 1, 0, 0, 1, "g"), 5.0)
    primary.receive(L, Join(1), 5.0)
    sent(primary, Snapshot)  # is lost
    primary.receive(L, Ack(1, 0), 5.1)
    primary.tick(5.1)
    assert [each.seq for each in sent(primary, Snapshot)] == [1] and not primary.joining
    primary.receive(W, Push(1, 2, 0, 0, 2, "g"), 5.2)
    assert sent(primary, Counted), "no call waits for it"


@pytest.mark.parametrize("of, told", [(Replica, 0), (RefusesUnsure, 1)], ids=["right", "wrong"])
def test_a_refusal_waits_for_the_backup(of, told):
    primary = replica(A, (A, L), of=of)
    primary.receive(W, Confirm(1, 1, 0), 0.0)
    said = [effect.message for effect in primary.take() if isinstance(effect, Send)]
    assert [type(each) for each in said] == [Done if told else Heartbeat]
    if not told:
        primary.receive(L, Ack(1, 0), 0.0)
        assert not primary.take(), "that is no answer"
        primary.receive(L, Ack(1, 0, 1), 0.0)
        assert primary.take() == [Send(W, Done(1, 1, None))]


def test_a_primary_without_a_backup_refuses_at_once_and_asks_a_possible_one():
    primary = replica(A, (A,))
    primary.receive(W, Confirm(1, 1, 0), 0.0)
    assert primary.take() == [Send(W, Done(1, 1, None))]
    primary.receive(L, Join(1), 0.0)
    primary.receive(L, Ack(1, 0), 0.0)
    primary.tick(0.0)
    primary.take()
    primary.receive(W, Confirm(1, 2, 0), 0.0)
    assert primary.take() == [Send(L, Heartbeat(View(1, (A,)), 1))]
    primary.receive("register", View(2, (A,)), 0.0)
    assert Send(W, Done(2, 2, None)) in primary.take(), "it was not taken"
