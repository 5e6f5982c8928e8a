"""A primary that is cut off from all but a worker: no pull gets a value that another primary has replaced."""

import time
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import pytest
import torch
from helpers.replicas import AnswersUnsure, AsksOnlyMembers, TrustsAnOldAnswer, made
from helpers.stores import each, until_whole

from d2lps.kvstore import Timeout, Unknown, cluster
from d2lps.kvstore.replication import FaultPlan, Part, Propose, Replica, View, broken
from d2lps.kvstore.replication.messages import Ack, Counted, Heartbeat, Join, Pull, Push, Send, Snapshot, Values

A, L, W = "a", "l", ("worker", 0)
SIZE = 4000
SHOWN = 5  # a seed that is known to show it
pytestmark = pytest.mark.fault("F5", "primary cut off from all but a worker")


# ---- in virtual time


def parted(seed: int) -> FaultPlan:
    """Workers compute for a while between two acts, and a server is cut off, alone or with workers, six times."""
    draw = Random(seed)
    rest = {"lost": draw.choice([0, 0.02]), "slow": draw.choice([0, 0.05])}
    troubles = [(draw.uniform(0, 0.3), "cut off from the register", draw.getrandbits(32)) for _ in range(6)]
    kind = draw.choice(["dist_async", "dist_ssp"])
    return FaultPlan(seed, kind, 2, 3, rounds=12, until=0.5, idle=0.1, troubles=tuple(sorted(troubles)), **rest)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 100))
def test_a_pull_has_all_that_anybody_had_heard_of_when_it_came(first):
    for seed in range(first, first + 100):
        assert broken(parted(seed)) is None, seed


@pytest.mark.parametrize("wrong", [AnswersUnsure, TrustsAnOldAnswer])
def test_an_unconfirmed_answer_is_detected(wrong):
    seeds = [SHOWN, *range(2_000)]
    assert any((broken(parted(seed), **made(wrong)) or "").startswith("I15") for seed in seeds)


# ---- message by message


def alone(of: type[Replica] = Replica) -> Replica:
    """A primary without a backup."""
    return of(A, View(1, (A,)), [Part(0, (0,), ())], 1, "dist_async")


def sent(by: Replica, *kinds: type) -> list:
    return [effect.message for effect in by.take() if isinstance(effect, Send) and isinstance(effect.message, kinds)]


@pytest.mark.parametrize("of, told", [(Replica, 0), (AsksOnlyMembers, 1)], ids=["right", "wrong"])
def test_a_possible_backup_is_asked_too(of, told):
    """The register took the view with it, and nobody has heard that: it may be the primary by now."""
    primary = alone(of)
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


def test_one_question_is_under_way_and_the_next_one_is_for_all_that_came_meanwhile():
    primary = Replica(A, View(1, (A, L)), [Part(0, (0,), ())], 1, "dist_async")
    for id in range(1, 5):
        primary.receive(W, Pull(1, id, 0, ((0, 0),)), 0.0)
    assert [each.turn for each in sent(primary, Heartbeat)] == [1]
    primary.receive(L, Ack(1, 0, 1), 0.0)
    said = sent(primary, Heartbeat, Values)
    assert [each.id for each in said if isinstance(each, Values)] == [1]
    assert [each.turn for each in said if isinstance(each, Heartbeat)] == [2]
    primary.receive(L, Ack(1, 0, 2), 0.0)
    assert [each.id for each in sent(primary, Values)] == [2, 3, 4]


def test_a_pull_of_its_own_push_needs_no_question():
    primary = Replica(A, View(1, (A, L)), [Part(0, (0,), ())], 1, "dist_async")
    since = primary.seq
    primary.receive(W, Push(1, 1, 0, 0, 1, "g"), 0.0)
    primary.receive(W, Pull(1, 2, 0, ((0, 1),), since), 0.0)
    assert not sent(primary, Heartbeat, Values)
    primary.receive(L, Ack(1, 1), 0.0)
    assert [type(each) for each in sent(primary, Counted, Values, Heartbeat)] == [Counted, Values]


def test_a_returning_learner_is_taught_again():
    """The snapshot is lost, and it still has what it had: what came since is not kept for it."""
    primary = alone()
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
    assert sent(primary, Counted), "nobody waits for it"


# ---- servers


@contextmanager
def unheard(servers, slot: int):
    """The primary of a slot is heard by no server, and hears nothing of new views."""
    at = servers.servers[servers.views[slot].members[0]].replicas[slot].store.slot
    register, at._register, lines = at._register, Away(), [*at._lines.values()]
    with ExitStack() as held:
        for line in lines:
            held.enter_context(line._sending)
        yield register
    at._register = register


def beginning(store):
    store.init("w", torch.zeros(SIZE))
    store.set_optimizer("sgd", lr=-1.0)
    store.pushpull("w", torch.ones(SIZE), out=torch.empty(SIZE))
    store.barrier()


class Away:
    """A register that cannot be reached."""

    def ask(self, slot, tell):
        pass

    def propose(self, slot, view, tell):
        pass


@pytest.mark.slow
def test_a_primary_cut_off_from_its_backup_gives_no_old_value():
    """What the backup says still comes, and its sign of life says nothing of whether it has taken over."""
    with cluster("dist_async", 2, 2, replicas=1, deadline=10.0, placement={"large": 1000}) as servers:
        each(servers, beginning)
        until_whole(servers)
        with unheard(servers, 1) as register:
            until = time.monotonic() + 20
            while servers.views[1].number == 1:
                assert time.monotonic() < until, "nobody takes over"
                time.sleep(0.005)
            servers[0].clients[1]._take_view(register.view(1))
            servers[0].push("w", torch.full((SIZE,), 100.0))
            each(servers, lambda store: store.barrier())
            servers[1].pull("w", out=(out := torch.empty(SIZE)))
            assert out.unique().tolist() == [102.0]


@pytest.mark.slow
def test_what_is_not_known_to_be_committed_is_not_said_to_be_counted():
    """Also where the pull of a pushpull is late: another primary would not know of the push."""
    with cluster("dist_async", 2, 2, replicas=1, deadline=0.5, placement={"large": 1000}) as servers:
        each(servers, beginning)
        until_whole(servers)
        with unheard(servers, 1), pytest.raises((Timeout, Unknown)) as error:
            servers[0].pushpull("w", torch.full((SIZE,), 100.0), out=torch.empty(SIZE))
        assert error.value.counted == () and error.value.unknown == ("w",)
        until_whole(servers)
        again(servers[0].pushpull, "w", torch.full((SIZE,), 100.0), torch.empty(SIZE))
        again(servers[1].pull, "w", out := torch.empty(SIZE))
        assert out.unique().tolist() == [102.0]


def again(call, *arguments) -> None:
    """Until it is done."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(Timeout, Unknown):
            return call(*arguments)
    raise AssertionError("it is never done")
