"""A server without replicas is a group of one: it adds large values while it serves others, and keeps few of them."""

import gc
import threading
import weakref

import pytest
import torch

from d2lps.kvstore.server.store import DEFERRED, SlotStore

LARGE, SMALL = DEFERRED // 4, 3  # elements of float32
PARTS = {"large": LARGE, "small": SMALL}


@pytest.fixture
def store():
    made = SlotStore("dist_sync", 2, deadline=10.0)
    for name, elements in PARTS.items():
        for rank in range(2):
            made.init(rank, name, elements, torch.float32, None if rank else torch.zeros(elements))
    return made


@pytest.fixture
def sums(store):
    """Sums of large values wait for the second event, after they have set the first one."""
    begun, may_end, add = threading.Event(), threading.Event(), store.slot.core.add

    def slow(total, gradient, last):
        if gradient.tensor.numel() == LARGE:
            begun.set()
            assert may_end.wait(10)
        return add(total, gradient, last)

    store.slot.core.add = slow
    yield begun, may_end
    may_end.set()


def push(store, rank, number, value):
    elements = [*PARTS.values()][number]
    assert store.admit(rank, number, elements, torch.float32, 1)
    store.push(rank, number, 1, torch.full((elements,), value))


def pulled(store, number):
    """The value after round 1 if it is there."""
    found = []
    store.pull(0, [(number, 1)], found.append)
    return found[0][0].value.value.unique().tolist() if found else None


def pushing(store, *arguments):
    thread = threading.Thread(target=push, args=(store, *arguments), daemon=True)
    thread.start()
    return thread


def test_other_keys_are_served_while_a_large_sum_is_made(store, sums):
    begun, may_end = sums
    slow = pushing(store, 0, 0, 1.0)
    assert begun.wait(10)
    push(store, 0, 1, 1.0), push(store, 1, 1, 4.0)
    assert pulled(store, 1) == [5.0] and pulled(store, 0) is None
    may_end.set()
    slow.join(10)
    push(store, 1, 0, 4.0)
    assert pulled(store, 0) == [5.0]


def test_a_push_that_completes_a_round_returns_after_the_round_has_closed(store, sums):
    begun, may_end = sums
    first = pushing(store, 0, 0, 1.0)
    assert begun.wait(10)
    last = pushing(store, 1, 0, 4.0)
    last.join(0.2)
    assert last.is_alive(), "an optimizer that is set now would step this round"
    may_end.set()
    first.join(10), last.join(10)
    assert not last.is_alive() and store.shards[0].version == 1 and pulled(store, 0) == [5.0]


@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_values_that_are_added_are_not_kept(elements):
    store, values, workers = SlotStore("dist_sync", 4), [], 4
    for rank in range(workers):
        store.init(rank, "w", elements, torch.float32, None if rank else torch.zeros(elements))
    for rank in range(workers - 1):
        value = torch.full((elements,), 4.0**rank)
        values.append(weakref.ref(value))
        store.push(rank, 0, 1, value)
    del value
    gc.collect()
    assert [value() is None for value in values] == [False, True, True]  # the sum lies where the first one was
