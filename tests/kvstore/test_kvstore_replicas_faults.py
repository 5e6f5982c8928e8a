"""Faults of the servers of a slot at the worst moments: between any two messages, or between the two servers."""

import threading
import time

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import cluster
from d2lps.kvstore.replication import Replica
from d2lps.kvstore.replication.messages import Ack, Apply, Do, Meet, Pull, Push
from d2lps.kvstore.server import lines
from d2lps.kvstore.server.slot import Slot
from d2lps.kvstore.wire.frames import Broken

COUNTED = (Push, Pull, Do, Meet, Apply, Ack)
SIZE, ROUNDS = 4000, 3


def work(store):
    """Some rounds, from the first value to the last; asynchronously, all that was counted."""
    synchronous = store.type == "dist_sync"
    store.init("w", torch.zeros(SIZE, dtype=torch.float64))
    store.set_optimizer("sgd", **({"lr": 0.1, "momentum": 0.9} if synchronous else {"lr": -1.0}))
    out = torch.empty(SIZE, dtype=torch.float64)
    for round_ in range(ROUNDS):
        drawn = torch.Generator().manual_seed(10 * round_ + store.rank)
        pushed = torch.randn(SIZE, generator=drawn, dtype=torch.float64)
        store.push("w", pushed if synchronous else torch.full((SIZE,), 1000.0**store.rank, dtype=torch.float64))
        if round_ != 1:
            store.pull("w", out=out)
    store.barrier()
    store.pull("w", out=out)
    return out


def made(kind="dist_sync", replicas=1, **options):
    return cluster(kind, 2, 2, replicas=replicas, deadline=10, placement={"large": 1000}, **options)


def wanted(kind: str) -> torch.Tensor:
    with made(kind, 0) as servers:
        return each(servers, work)[0]


class Killed:
    """Server 0 is killed at its ``at``-th message: before it does anything about it, or after, and nobody hears."""

    def __init__(self, monkeypatch, at: int, when: str):
        self.count, self.servers, lock = 0, None, threading.Lock()
        receive = Replica.receive

        def counting(replica, src, message, now):
            number = 0
            if replica.name[0] == 0 and isinstance(message, COUNTED) and self.servers:
                with lock:
                    self.count += 1
                    number = self.count
            if number == at and not self._whole():
                number = 0  # on a machine that stood still for a second, the other one was put out just before
            if number == at and when == "before":
                self.servers.kill(0)
                raise Broken("killed")
            receive(replica, src, message, now)
            if number == at:
                self.servers.kill(0)
                raise Broken("killed")

        monkeypatch.setattr(Replica, "receive", counting)

    def _whole(self) -> bool:
        return all(len(view.members) == 2 for view in self.servers.views)


@pytest.mark.slow(10)
@pytest.mark.fault("F2", "server killed between any two messages")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_server_is_killed_at_every_message(kind, when, monkeypatch):
    right, at, step = wanted(kind), 1, 3
    while True:
        with monkeypatch.context() as patched, made(kind) as servers:
            killed = Killed(patched, at, when)
            killed.servers = servers
            for end in each(servers, work):
                assert isinstance(end, torch.Tensor) and torch.equal(end, right), (at, end)
            if killed.count < at:
                break  # it lived to the end
        at += step
    assert at > 20, "there were many moments to be killed at"


@pytest.mark.slow
@pytest.mark.fault("F5", "servers cut off from one another, and healed")
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_of_two_that_are_cut_off_one_goes_on(kind, monkeypatch):
    """Both live, and workers reach both: each thinks that the other is dead, and the register takes one's word."""
    right, healed, send = wanted(kind), threading.Event(), lines.Line._send
    with made(kind) as servers:
        until_whole(servers)
        monkeypatch.setattr(lines.Line, "_send", lambda line, said: healed.is_set() and send(line, said))
        threading.Timer(1.6, healed.set).start()
        for end in each(servers, work):
            assert torch.equal(end, right)
        until_whole(servers)  # who was put out has come back as a backup
        assert all(view.number > 2 for view in servers.views)
        for slot in range(2):
            leading = [host for host in servers.servers if host.replicas[slot].store.slot.leads]
            assert [host.number for host in leading] == [servers.views[slot].members[0]]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_a_backup_that_learns_late_that_it_is_one_has_missed_nothing(seconds, monkeypatch):
    """What came before the register answered was let go, and counted as sent: the first call waited in vain."""
    look, until = Slot.look, time.monotonic() + seconds
    monkeypatch.setattr(
        Slot, "look", lambda slot: slot.name[0] == 1 and slot.number == 0 and time.monotonic() < until or look(slot)
    )
    with cluster(workers=1, servers=2, replicas=1, deadline=5) as (store,):
        for key in range(8):  # some of which lie on each
            store.init(key, torch.ones(3))
        store.pushpull(0, torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3


@pytest.mark.slow
def test_a_command_dropped_by_a_backup_is_sent_again(monkeypatch):
    """Whatever else goes on between the two meanwhile."""
    hear, dropped = Slot.hear, []

    def forgetful(slot, other, messages):
        messages = [*messages]
        if len(dropped) < 3:
            dropped.extend(each for each in messages if isinstance(each, Apply))
            messages = [each for each in messages if not isinstance(each, Apply)]
        hear(slot, other, messages)

    monkeypatch.setattr(Slot, "hear", forgetful)
    with cluster(workers=1, servers=2, replicas=1, deadline=10) as (store,):
        for key in range(8):
            store.init(key, torch.ones(3))
    assert len(dropped) >= 3


@pytest.mark.slow
@pytest.mark.fault("F4", "backup that lags")
def test_a_backup_that_lags_costs_time_and_nothing_else(monkeypatch):
    right, hear = wanted("dist_sync"), Slot.hear

    def lagging(slot, other, messages):
        if slot.name[0] == 1 and any(isinstance(message, Apply) for message in messages):
            time.sleep(0.1)
        hear(slot, other, messages)

    monkeypatch.setattr(Slot, "hear", lagging)
    with made() as servers:
        for end in each(servers, work):
            assert torch.equal(end, right)
        assert {view.number for view in servers.views} == {1}, "it was never taken for dead"


def test_members_have_the_same_bits_in_the_end():
    with made() as servers:
        each(servers, work)
        time.sleep(0.3)
        for slot in range(2):
            one, other = (host.replicas[slot].store.slot.core for host in servers.servers)
            assert one.seq == other.seq == max(one.commit, other.commit) > ROUNDS
            for mine, theirs in zip(one.parts, other.parts, strict=True):
                assert mine[:2] == theirs[:2] and torch.equal(mine.value.value, theirs.value.value)
                assert mine.value.memory.keys() == theirs.value.memory.keys() == {"sgd"}
                velocity = [held.memory["sgd"]["velocity"] for held in (mine.value, theirs.value)]
                assert torch.equal(*velocity)
