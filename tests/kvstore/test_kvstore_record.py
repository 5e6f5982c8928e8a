"""Records of servers: each push and pull is in the trace once, with its content."""

import threading
import time

import pytest
import torch
from helpers.stores import each
from helpers.waits import soon

from d2lps import Trace, draw
from d2lps.kvstore import Refused, WorkerLost, cluster
from d2lps.view.drawing.motion import follow
from d2lps.view.drawing.scene import Scene

SMALL, LARGE = 1000, 300_001  # elements: through sockets; cut over all servers, and in shared memory


def recorded(kind, workers, servers, elements, rounds=4, optimizer="sgd", slow=None, **options):
    """(the trace, the staleness of every pull) of so many rounds."""
    with cluster(kind, workers, servers, record=True, **options) as stores:

        def work(store):
            store.init("w", torch.zeros(elements))
            if optimizer:
                store.set_optimizer(optimizer, lr=0.1)
            value = torch.empty(elements)
            for _ in range(rounds):
                if store.rank == slow:
                    time.sleep(0.03)
                store.push("w", torch.ones(elements))
                store.pull("w", out=value)
            store.barrier()

        each(stores, work)
        return stores[-1].trace("w"), stores[0].staleness()


@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("elements", [SMALL, LARGE])
@pytest.mark.parametrize("workers, servers", [(1, 1), (3, 1), (2, 3)])
def test_a_synchronous_round_is_pushed_summed_and_pulled_once_by_each_worker(workers, servers, elements, optimizer):
    trace, stale = recorded("dist_sync", workers, servers, elements, optimizer=optimizer)
    parts = servers if elements == LARGE else 1
    ranks = [f"worker{i}" for i in range(workers)]
    pushes = [event for event in trace.events if event.op == "add"]
    pulls = [event for event in trace.events if event.op == "copy"]
    assert len(pushes) == len(pulls) == 4 * workers * parts
    assert len([event for event in trace.events if event.kind == "update"]) == (4 * parts if optimizer else 0)
    assert all(event.carries == (event.src,) for event in pushes)
    assert all(event.carries == tuple(ranks) for event in pulls)
    assert trace.bytes_sent("worker0") == trace.bytes_received("worker0") == 4 * 4 * elements
    assert [pull.behind for pull in stale] == [0] * 4 * workers
    assert trace.steps == 4 and trace.plan.steps == ((),) * 4


def test_the_picture_shows_who_is_in_every_round():
    trace, _ = recorded("dist_sync", 3, 1, SMALL)
    motion = follow(trace)
    assert [look.who for look in motion.cells_at(-1.0)] == [()] * 16, "no worker has anything before it began"
    assert all(look.who == (0, 1, 2) and look.complete and look.updated for look in motion.cells_at(trace.duration))
    assert {motion.looks[m.look].who for m in motion.messages if m.dst == "server0"} == {(0,), (1,), (2,)}
    assert "server0" in str(draw(trace))


@pytest.mark.parametrize("lost, servers", [("drop", 1), ("fail", 2)])
def test_a_lost_worker_is_in_the_trace_from_its_loss_and_waited_for_until_it_counts_as_lost(lost, servers):
    with cluster("dist_sync", 3, servers, record=True, lost=lost) as stores:
        for_all = threading.Barrier(3, timeout=30)

        def work(store):
            value = torch.zeros(LARGE)
            store.init("w", value)
            for step in range(2):
                if (store.rank, step) == (2, 1):
                    for_all.wait()
                    return stores.kill_worker(2)
                try:
                    store.push("w", torch.ones(LARGE))
                    if step == 0:
                        store.pull("w", out=value)
                    else:
                        for_all.wait()
                    store.pull("w", out=value)
                except WorkerLost:
                    return None

        each(stores, work)
        trace = stores[0].trace("w")
    gone = [event for event in trace.events if event.kind == "gone"]
    assert {event.src for event in gone} == {"worker2"} and gone[-1].end == trace.duration
    assert len(gone) == (2 if lost == "drop" else 1)
    assert gone[0].start >= max(e.end for e in trace.events if e.kind == "send" and e.src == "worker2")
    assert follow(trace).gone_at(trace.duration) == {2}
    waits = [sentence for _, sentence in Scene(trace).losses if "waiting for it: worker0, worker1" in sentence]
    assert len(waits) == 1
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_pull_is_staler_than_allowed(staleness):
    _, stale = recorded("dist_ssp", 3, 2, LARGE, rounds=6, slow=2, staleness=staleness)
    assert len(stale) == 18 and all(pull.behind <= staleness for pull in stale)
    assert max(pull.behind for pull in stale) == staleness, "the fast ones make use of it"


def test_an_asynchronous_pull_has_whatever_there_is():
    trace, stale = recorded("dist_async", 2, 1, SMALL, rounds=6, slow=1)
    assert max(pull.behind for pull in stale) > 1
    seen = [event.carries for event in trace.events if event.op == "copy" and event.dst == "worker0"]
    assert ("worker0",) in seen


def test_only_the_last_rounds_are_shown():
    with cluster("dist_sync", 1, 1, record=True) as stores:
        stores[0].init(["a", "b"], [torch.zeros(3)] * 2)
        for _ in range(5):
            stores[0].pushpull(["a", "b"], [torch.ones(3)] * 2)
        assert list(stores[0].trace("b", rounds=2).plan.share) == ["4", "5"]
        with pytest.raises(Refused, match="which key do you mean: 'a', 'b'"):
            stores[0].trace()
        with pytest.raises(Refused, match="key 'c' is not initialized"):
            stores[0].trace("c")
        with pytest.raises(Refused, match="rounds = 0"):
            stores[0].trace("a", rounds=0)


def test_what_was_not_recorded_or_not_yet_pushed_cannot_be_seen():
    with cluster("dist_sync", 1, 1) as stores:
        stores[0].init("w", torch.zeros(3))
        with pytest.raises(Refused, match="record=True"):
            stores[0].trace()
    with cluster("dist_sync", 1, 1, record=True) as stores:
        stores[0].init("w", torch.zeros(3))
        with pytest.raises(Refused, match="nothing has been pushed"):
            stores[0].trace()


def test_a_record_shows_what_the_new_primary_saw_after_a_takeover():
    with cluster("dist_sync", 1, 2, record=True, replicas=1, deadline=20) as stores:
        store = stores[0]
        store.init("w", torch.zeros(SMALL))
        store.set_optimizer("sgd", lr=0.1)
        (part, _), *_ = store._only("w").parts
        for number in range(4):
            if number == 2:
                stores.kill(part.server)
            store.push("w", torch.ones(SMALL))
            store.pull("w", out=torch.empty(SMALL))
        soon(lambda: len(store.staleness()) == 2)  # a pull is recorded once it has been sent, perhaps in another thread
        trace = store.trace("w")
        assert [pull.behind for pull in store.staleness()] == [0, 0]
    assert [event.op for event in trace.events] == ["add", "sgd", "copy"] * 2
