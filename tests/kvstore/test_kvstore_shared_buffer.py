"""Large tensors of one host lie in memory that both ends share: only their places travel."""

import errno
import gc
import os
import time

import pytest
import torch
from helpers.stores import each, refuse_first_push, soon

from d2lps.carriers.tensors import TensorError
from d2lps.kvstore import Refused, cluster
from d2lps.kvstore.wire import BLOCK, NOTHING, Channel, Op
from d2lps.kvstore.wire.shared_buffer import SHARED, RemoteBuffer, SharedBuffer

LARGE = 1_200_007  # elements: of float32 more than a block, or is ever sent with others; no number of servers divides

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no anonymous files (memfd)")


def test_freed_shared_memory_is_reused():
    shared_buffer = SharedBuffer()
    first, other = shared_buffer.tensor(1000, torch.float32), shared_buffer.tensor(1000, torch.float64)
    where, piece = shared_buffer.offset(first), first[5:]
    assert where != shared_buffer.offset(other) and shared_buffer.offset(torch.ones(3)) is None
    del first
    gc.collect()
    assert shared_buffer.offset(shared_buffer.tensor(1000, torch.float32)) != where, "a piece of it is still here"
    del piece
    gc.collect()
    assert shared_buffer.offset(shared_buffer.tensor(1000, torch.float32)) == where


def test_what_is_in_use_outlives_who_lent_it():
    shared_buffer = SharedBuffer()
    mine = shared_buffer.tensor(SHARED, torch.float32)
    lent = RemoteBuffer(shared_buffer.lent, os.getpid())
    theirs = lent.tensor(shared_buffer.offset(mine), SHARED, torch.float32)
    shared_buffer.close()
    lent.close()
    mine.fill_(3)
    assert theirs.eq(3).all()
    del mine, theirs
    gc.collect()
    shared_buffer.close()
    lent.close()
    assert shared_buffer.tensor(SHARED, torch.float32) is None and lent.tensor(0, 1, torch.float32) is None


def test_there_is_no_more_room_than_the_machine_has():
    assert SharedBuffer().tensor(10**15, torch.float32) is None


WRONG = [{"path": path} for path in ("/etc/passwd", "/proc/1/fd/0", "/proc/self/fd/0", 3, None)]
WRONG += [{"nbytes": nbytes} for nbytes in (1 << 70, 1 << 62, -1)] + [{"inode": inode} for inode in (0, "7")]


@pytest.mark.parametrize("wrong", WRONG)
def test_nothing_is_opened_but_memory_of_the_other_end(wrong):
    with pytest.raises(TensorError):
        RemoteBuffer(SharedBuffer().lent | wrong, os.getpid())


def test_memory_that_could_shrink_is_not_borrowed():
    file = os.memfd_create("d2lps test")
    os.ftruncate(file, 1 << 16)
    said = {"path": f"/proc/{os.getpid()}/fd/{file}", "inode": os.fstat(file).st_ino, "nbytes": 1 << 16}
    with pytest.raises(TensorError, match="could shrink"):
        RemoteBuffer(said, os.getpid())
    os.close(file)


@pytest.mark.parametrize("offset, elements", [(-4096, 1), (7, 1), (1 << 50, 1), (0, 1 << 60)])
def test_no_byte_is_read_beside_the_lent_memory(offset, elements):
    assert RemoteBuffer(SharedBuffer().lent, os.getpid()).tensor(offset, elements, torch.float32) is None


@pytest.fixture
def passed(monkeypatch):
    """How many bytes of tensors pass through sockets, by what they are for."""
    found = {op: 0 for op in Op}
    send = Channel.send

    def counting(self, op, number=0, entries=(), metadata=None, payload=NOTHING, *where):
        found[op] += len(payload)
        return send(self, op, number, entries, metadata, payload, *where)

    monkeypatch.setattr(Channel, "send", counting)
    return found


@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 3), (3, 2)])
def test_a_large_key_does_not_pass_through_a_socket(workers, servers, optimizer, passed):
    def work(store):
        store.init("w", torch.zeros(LARGE))
        if optimizer:
            store.set_optimizer(optimizer, lr=1.0)
        out, seen = torch.empty(LARGE), []
        for step in range(4):
            store.pushpull("w", torch.full((LARGE,), 4.0**store.rank * (step + 1)), out=out)
            seen.append((out.min().item(), out.max().item()))
        return seen

    whole = sum(4.0**rank for rank in range(workers))
    with cluster("dist_sync", workers, servers) as stores:
        found = each(stores, work)
    if optimizer:
        expected = [-whole * sum(range(1, step + 2)) for step in range(4)]
    else:
        expected = [whole * (step + 1) for step in range(4)]
    assert found == [[(value, value) for value in expected]] * workers
    assert passed[Op.PUSHPULL] == 2 * passed[Op.DATA] == 4 * workers * servers * 16


@pytest.mark.parametrize("elements, options", [(LARGE, {"transport": "tcp"}), (100, {})])
def test_a_value_passes_through_the_socket_over_tcp_or_if_it_is_small(elements, options, passed):
    with cluster("dist_sync", 1, 1, **options) as stores:
        stores[0].init("w", torch.zeros(elements))
        stores[0].pushpull("w", torch.ones(elements))
    assert passed[Op.PUSHPULL] == passed[Op.DATA] == 4 * elements


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_push_may_be_followed_by_another_before_the_round_is_closed(kind):
    """The worker overwrites its memory for the next push, while a server may still wait to add the one before."""

    def work(store):
        store.init("w", torch.zeros(LARGE))
        store.set_optimizer("sgd", lr=1.0)
        gradient = torch.empty(LARGE)
        for step in range(6):
            time.sleep(0.02 * (store.rank == 0))
            store.push("w", gradient.fill_(4.0**store.rank * 16**step))
        store.barrier()
        store.pull("w", out=gradient)
        return gradient.min().item(), gradient.max().item()

    with cluster(kind, 2, 2) as stores:
        found = each(stores, work)
    total = -sum(5.0 * 16**step for step in range(6))
    assert found == [(total, total)] * 2


def test_what_is_pushed_again_does_not_overwrite_what_a_server_may_still_read(monkeypatch):
    refuse_first_push(monkeypatch, rank=1)
    with cluster("dist_sync", 2, 1, deadline=5) as stores:

        def work(store):
            store.init("w", torch.zeros(LARGE))
            if store.rank == 1:
                with pytest.raises(Refused, match="the first push of worker 1"):
                    store.push("w", torch.full((LARGE,), 64.0))
            out = torch.empty(LARGE)
            store.pushpull("w", torch.full((LARGE,), 4.0**store.rank), out=out)
            return out.min().item(), out.max().item()

        assert each(stores, work) == [(5.0, 5.0)] * 2


def test_a_reader_that_never_confirms_gets_bytes_by_socket(monkeypatch, passed):
    from d2lps.kvstore.worker.client import ServerClient

    monkeypatch.setattr(ServerClient, "_report_read", lambda self: None)
    with cluster("dist_sync", 1, 1) as stores:
        stores[0].init("w", torch.zeros(LARGE))
        for step in range(8):
            out = torch.empty(LARGE)
            stores[0].pushpull("w", torch.full((LARGE,), float(step)), out=out)
            assert out.eq(step).all()
    assert passed[Op.DATA] > 4 * LARGE
    assert BLOCK < 4 * LARGE


def test_what_was_shared_is_let_go_of(passed):
    def files():
        gc.collect()
        return sum(
            os.readlink(f"/proc/self/fd/{file}").startswith("/memfd")
            for file in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{file}")
        )

    before = files()
    for _ in range(3):
        with cluster("dist_sync", 1, 2) as stores:
            stores[0].init("w", torch.zeros(LARGE))
            stores[0].pushpull("w", torch.ones(LARGE))
        del stores
    soon(lambda: files() <= before)


def test_a_push_that_lies_nowhere_is_refused(monkeypatch):
    monkeypatch.setattr(SharedBuffer, "offset", lambda self, tensor: 1 << 50)
    with cluster("dist_sync", 1, 1) as stores:
        stores[0].init("w", torch.zeros(LARGE))
        with pytest.raises(Refused, match="lends no memory"):
            stores[0].push("w", torch.ones(LARGE))


def test_without_shared_memory_all_bytes_take_the_socket(monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refused)
    with cluster(workers=1) as (only,):
        only.init("w", torch.zeros(100_000))
        only.pushpull("w", torch.ones(100_000), out=(out := torch.empty(100_000)))
        assert (out == 1).all() and not only.clients[0].shares
