"""A refusal of a primary may be outdated: it asks its backup before it refuses."""

import threading
import time

import pytest
import torch
from helpers.replicas import RefusesUnsure
from helpers.stores import each, until_whole
from test_kvstore_parted import unheard

from d2lps.kvstore import Refused, cluster
from d2lps.kvstore.replication import Part, Replica, View
from d2lps.kvstore.replication.messages import Ack, Confirm, Done, Heartbeat, Join, Send

A, L, W = "a", "l", ("worker", 0)
SIZE = 4000


def taken_over(servers, slot: int, worker: int, register) -> None:
    """Wait until another server has a slot, and have a worker know it."""
    until = time.monotonic() + 20
    while servers.views[slot].number == 1:
        assert time.monotonic() < until, "nobody takes over"
        time.sleep(0.005)
    servers[worker].clients[slot]._take_view(register.view(slot))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dist_async", "dist_sync"])
def test_a_key_that_another_primary_has_may_be_pushed(kind):
    """Worker 1 begins it at the first primary, worker 0 gives its value to the next one."""
    with cluster(kind, 2, 2, replicas=1, deadline=10.0, placement={"large": 1000}) as servers:
        if kind == "dist_async":
            each(servers, lambda store: store.set_optimizer("sgd", lr=-1.0))
        until_whole(servers)
        beginning = threading.Thread(target=servers[1].init, args=("w", torch.zeros(SIZE)))
        beginning.start()
        core = servers.servers[1].replicas[1].store.slot.core
        until = time.monotonic() + 10
        while not core.names or core.commit < core.seq:
            assert time.monotonic() < until
            time.sleep(0.005)
        with unheard(servers, 1) as register:
            taken_over(servers, 1, 0, register)
            servers[0].init("w", torch.zeros(SIZE))
            beginning.join(10)
            assert each(servers, lambda store: store.push("w", torch.ones(SIZE))) == [None, None]
        servers[1].pull("w", out=(out := torch.empty(SIZE)))
        assert out.unique().tolist() == [2.0]


@pytest.mark.parametrize("of, told", [(Replica, 0), (RefusesUnsure, 1)], ids=["right", "wrong"])
def test_a_possibly_old_value_waits_for_the_backup(of, told):
    primary = of(A, View(1, (A, L)), [Part(0, (0,), ())], 1, "dist_sync")
    primary.receive(W, Confirm(1, 1, 0), 0.0)
    said = [effect.message for effect in primary.take() if isinstance(effect, Send)]
    assert [type(each) for each in said] == [Done if told else Heartbeat]
    if not told:
        primary.receive(L, Ack(1, 0), 0.0)
        assert not primary.take(), "that is no answer"
        primary.receive(L, Ack(1, 0, 1), 0.0)
        assert primary.take() == [Send(W, Done(1, 1, None))]


def test_a_primary_without_a_backup_says_it_at_once_and_who_may_be_one_is_asked():
    primary = Replica(A, View(1, (A,)), [Part(0, (0,), ())], 1, "dist_sync")
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


def test_what_is_refused_is_refused_soon():
    with cluster("dist_async", 1, 2, replicas=1) as servers:
        servers[0].init("w", torch.zeros(3))
        began = time.monotonic()
        with pytest.raises(Refused, match="set_optimizer before the first push"):
            servers[0].push("w", torch.ones(3))
        assert time.monotonic() - began < 5.0
