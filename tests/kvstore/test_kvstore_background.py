"""A store is saved while training continues: the file has the values at the barrier, without later pushes."""

import ctypes
import os
import resource
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from helpers.ctrl_c import pressed
from helpers.ranks import FORKED
from helpers.scripts import torchrun
from helpers.stores import each, until_whole

from d2lps import kvstore
from d2lps.carriers import leftovers
from d2lps.kvstore import KVError, Refused, Timeout, checkpoint
from d2lps.kvstore.replication import Replica, View
from d2lps.kvstore.replication.messages import Begin, Do, Keep, Push
from d2lps.kvstore.together import Saving
from d2lps.kvstore.worker.client import ServerClient

KEYS, SIZES = ["w", 3, "empty"], (30_000, 7, 0)
RULES = {"sgd": {"lr": 0.1, "momentum": 0.9}, "adam": {"lr": 0.01}}
KINDS = [("local", 0), *((f"dist_{kind}", replicas) for kind in ("sync", "async", "ssp") for replicas in (0, 1))]


@contextmanager
def stores(kind="dist_sync", replicas=0, workers=2, **options):
    """The stores of so many workers, with what makes them where they are on servers."""
    if kind == "local":
        with kvstore.create("local") as store:
            yield (store,)
        return
    options = {"deadline": 10, "placement": {"large": 20_000}, "replicas": replicas} | options
    with kvstore.cluster(kind, workers, 3, **options) as servers:
        yield servers


def began(store, rule="sgd"):
    store.init(KEYS, [torch.ones(size) for size in SIZES])
    store.set_optimizer(rule, **RULES[rule])


def stepped(store, rounds):
    """The values after these; asynchronously all workers do them in turn, so that the bits are the same."""
    out = [torch.empty(size) for size in SIZES]
    for round_ in rounds:
        for turn in range(store.num_workers):
            drawn = torch.Generator().manual_seed(10 * round_ + store.rank)
            if store.rank == turn or store.type == "dist_sync":
                store.push(KEYS, [torch.randn(size, generator=drawn) for size in SIZES])
            if store.type == "dist_sync":
                break
            store.barrier()
    store.pull(KEYS, out=out)
    return out


@pytest.fixture
def held(monkeypatch):
    """Worker 0 does not begin to write before this event is set."""
    gate, write = threading.Event(), Saving._write

    def waiting(*arguments):
        assert gate.wait(20)
        write(*arguments)

    monkeypatch.setattr(Saving, "_write", waiting)
    yield gate
    gate.set()


def gone_on(path, rule, rounds):
    """Return the values of a local store that loads the file and takes one step with the sum of two pushes."""
    with kvstore.create("local") as store:
        began(store, rule)
        store.load(path)
        for round_ in rounds:
            drawn = [torch.Generator().manual_seed(10 * round_ + rank) for rank in range(2)]
            store.push(KEYS, [[torch.randn(size, generator=one) for one in drawn] for size in SIZES])
        out = [torch.empty(size) for size in SIZES]
        store.pull(KEYS, out=out)
        return out


def equal(some, others) -> bool:
    return all(map(torch.equal, some, others))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind, replicas", KINDS)
def test_a_save_has_the_values_at_the_barrier(kind, replicas, rule, tmp_path, held):
    """Value, memory and optimizer, while later steps change all of them; and the steps have the bits that they had."""
    path, also, expected = tmp_path / "saved", tmp_path / "also", None

    def work(store, background):
        began(store, rule)
        there = stepped(store, range(3))
        if not background:
            held.set()
            store.save(path)
            held.clear()
            return there, stepped(store, range(3, 6))
        said = store.save(also, background=True)
        after = stepped(store, range(3, 5))
        store.set_optimizer(rule, **RULES[rule] | {"lr": 9.0})
        store.set_optimizer(rule, **RULES[rule])
        after = stepped(store, range(5, 6))
        assert not said.done and not also.exists()
        store.barrier()
        held.set()
        said.wait()
        assert said.done
        return there, after

    for background in (False, True):
        with stores(kind, replicas) as made:
            found = each(made, work, background)
            for one in found:
                assert not isinstance(one, Exception), one
                assert equal(one[0], found[0][0]) and equal(one[1], found[0][1])
        if background:
            assert equal(found[0][0], expected[0]) and equal(found[0][1], expected[1])
        expected = found[0]
    assert also.read_bytes() == path.read_bytes(), "so all that is known of a file is known of this one"
    if kind == "dist_sync":
        assert equal(gone_on(also, rule, range(3, 6)), expected[1])


@pytest.mark.slow
@pytest.mark.fault("F2", "server killed while its store is saved in the background")
def test_the_backup_continues_after_its_server_is_killed_during_a_read(tmp_path, monkeypatch):
    """It has kept the same, and goes on with it, whoever takes the place of the dead one."""
    monkeypatch.setattr(checkpoint, "PIECE", 1000)
    ask, asked, killed = ServerClient.ask, [], []

    def killing(client, request):
        if request.metadata and "from" in request.metadata:
            asked.append(client.number)
            if asked.count(1) == 8 and client.number == 1 and not killed:
                killed.append(made.kill(1))
        return ask(client, request)

    monkeypatch.setattr(ServerClient, "ask", killing)
    ends = {}

    def work(store, background):
        began(store, "adam")
        stepped(store, range(3))
        said = store.save(tmp_path / str(background), background=background)
        after = stepped(store, range(3, 6))
        said and said.wait()
        return after

    for background in (True, False):
        with stores(replicas=int(background)) as made:
            ends[background], other = each(made, work, background)
            assert equal(ends[background], other)
        assert killed
    assert equal(ends[True], ends[False])
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_a_repeated_keep_takes_one_snapshot():
    """An answer may be lost, and what is asked again may come late."""
    replica = Replica("a", View(1, ("a",)), (), 1, "dist_sync")
    said = [Begin("w", None, ()), Keep(1, True), Push(0, 0, 0, 0, 1, "gradient"), Keep(1, True), Keep(1, False)]
    seen = []
    for number, each_ in enumerate([*said, Keep(1, True), Keep(2, True), Keep(1, False)]):
        request = each_._replace(view=1, id=number) if isinstance(each_, Push) else Do(1, number, 0, each_)
        replica.receive(("worker", 0), request, 0.0)
        seen.append((replica.kept.number, [part.version for part in replica.kept.parts]))
    assert seen == [(0, []), (1, [0]), (1, [0]), (1, [0]), (1, []), (1, []), (2, [1]), (2, [1])]


@pytest.mark.slow
def test_a_snapshot_is_lost_with_both_of_its_servers(tmp_path, held):
    """A newcomer has what is there now, not what was: that save fails, and the next one does not."""
    path = tmp_path / "saved"

    def work(store):
        began(store)
        store.save(path)
        before = path.read_bytes()
        stepped(store, range(1))
        held.clear()
        said = store.save(path, background=True)
        if store.rank == 0:
            for number in range(3):
                made.kill(number)
                while any(number in view.members for view in made.views):
                    time.sleep(0.005)  # until the others go on without it
                made.restart(number)
                until_whole(made)
        store.barrier()
        held.set()
        with pytest.raises(Refused, match="what was kept for save 3 is not here any more: save again"):
            said.wait()
        assert path.read_bytes() == before
        store.save(path)
        return path.read_bytes() != before

    held.set()
    with stores(replicas=1) as made:
        assert each(made, work) == [True, True]


@pytest.mark.parametrize("kind, replicas", [("local", 0), ("dist_sync", 0), ("dist_async", 1)])
def test_a_failed_save_is_raised_by_wait_or_the_next_save(kind, replicas, tmp_path, monkeypatch):
    path, fsync = tmp_path / "saved", os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    def work(store):
        began(store)
        store.save(path)
        before = path.read_bytes()
        stepped(store, range(1))
        store.barrier()
        if store.rank == 0:
            monkeypatch.setattr(checkpoint.os, "fsync", full)
        store.barrier()
        said = store.save(path, background=True)
        for _ in range(2):
            with pytest.raises(Refused, match="No space left"):
                said.wait()
        assert said.done
        store.save(path, background=True)
        with pytest.raises(Refused, match=r"the earlier save in .* failed: .*No space left.* call save again"):
            store.save(path)
        store.barrier()
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["saved"]
        if store.rank == 0:
            monkeypatch.setattr(checkpoint.os, "fsync", fsync)
        store.barrier()
        store.save(path, background=True).wait()
        return path.read_bytes() != before

    with stores(kind, replicas) as made:
        assert all(found is True for found in each(made, work))


@pytest.mark.parametrize("path", [None, "", "a\0b", "/", "/nowhere/at/all/saved"])
def test_an_unwritable_path_is_refused_at_once(path):
    def work(store):
        began(store)
        with pytest.raises(Refused, match="is no path|cannot be saved in"):
            store.save(path, background=True)
        stepped(store, range(1))
        return True

    with stores() as made:
        assert each(made, work) == [True, True]


def test_one_is_written_after_the_other(tmp_path, held):
    def work(store):
        began(store)
        first, after = store.save(tmp_path / "first", background=True, then=lambda: done.append("first")), []
        stepped(store, range(1))
        if store.rank == 0:
            threading.Timer(0.2, held.set).start()
        second = store.save(tmp_path / "second", background=True, then=lambda: done.append("second"))
        assert store.rank or first.done, "it has waited"
        second.wait()
        first.wait()  # also later
        return first.done, after

    done = []
    with stores() as made:
        assert each(made, work) == [(True, [])] * 2
    assert done == ["first", "second"]


def test_a_wait_that_timed_out_may_be_repeated(tmp_path, held):
    def work(store):
        began(store)
        said = store.save(tmp_path / "saved", background=True)
        with pytest.raises(Timeout, match="is still being saved in .*saved: wait longer"):
            said.wait(0.1)
        with pytest.raises(Refused, match="deadline"):
            said.wait(-1)
        assert store.rank or not said.done
        store.barrier()
        held.set()
        said.wait(5)
        return said.done

    with stores() as made:
        assert each(made, work) == [True, True]


def test_close_waits_for_it(tmp_path, held):
    with kvstore.create("local") as store:
        began(store)
        store.save(tmp_path / "saved", background=True)
        threading.Timer(0.1, held.set).start()
    assert equal(gone_on(tmp_path / "saved", "sgd", ()), [torch.ones(size) for size in SIZES])


@pytest.mark.slow
def test_who_does_not_write_need_not_wait_to_close(tmp_path, held):
    def work(store):
        began(store)
        said, begun = store.save(tmp_path / "saved", background=True), time.monotonic()
        if store.rank == 0:
            threading.Timer(0.5, held.set).start()
        store.close()
        return said.done, time.monotonic() - begun < 0.4

    with stores(deadline=30) as made:
        assert each(made, work) == [(True, False), (False, True)]
    assert equal(gone_on(tmp_path / "saved", "sgd", ()), [torch.ones(size) for size in SIZES])


def test_ctrl_c_ends_the_waiting_and_not_the_save(tmp_path, held):
    with kvstore.create("local") as store:
        began(store)
        said = store.save(tmp_path / "saved", background=True)
        with pressed(), pytest.raises(KeyboardInterrupt):
            said.wait()
        assert not said.done
        stepped(store, range(1))
        held.set()
        said.wait()
    assert equal(gone_on(tmp_path / "saved", "sgd", ()), [torch.ones(size) for size in SIZES])


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_close_gives_up_what_does_not_end_and_the_older_file_stays(replicas, tmp_path, held):
    path = tmp_path / "saved"
    held.set()
    with stores(replicas=replicas, workers=1, deadline=0.5) as (store,):
        began(store)
        store.save(path)
        before = path.read_bytes()
        stepped(store, range(1))
        held.clear()
        said, begun = store.save(path, background=True), time.monotonic()
        store.close()
        assert 0.5 < time.monotonic() - begun < 5 and not said.done
        held.set()
        assert said._over.wait(5)
        with pytest.raises(Refused, match="closed"):
            said.wait()
        assert isinstance(said._error, KVError) and "closed" in str(said._error)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["saved"]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_worker_lost_meanwhile_does_not_end_a_save(replicas, tmp_path, held):
    """The others are told of the loss by the call that needs it; the file is what it was to be."""

    def work(store):
        began(store)
        there = stepped(store, range(2))
        said = store.save(tmp_path / "saved", background=True)
        if store.rank == 1:
            for client in store.clients:  # as a process that is killed
                client._open = False
                client._channel.close()
            return there
        with pytest.raises(KVError, match="worker 1"):
            stepped(store, range(2, 5))
        held.set()
        assert said._over.wait(10) and said._error is None
        return there

    with stores(replicas=replicas, deadline=1) as made:
        there, _ = each(made, work)
    assert equal(gone_on(tmp_path / "saved", "sgd", ()), there)


@pytest.mark.slow
def test_worker_0_that_is_lost_leaves_the_older_file(tmp_path, held):
    path = tmp_path / "saved"

    def work(store):
        began(store)
        store.save(path)
        before = path.read_bytes()
        stepped(store, range(1))
        store.barrier()
        held.clear()
        said = store.save(path, background=True)
        if store.rank == 0:
            for client in store.clients:
                client._open = False
                client._channel.close()
            return before
        with pytest.raises(KVError, match="worker 0"):
            said.wait()
        return path.read_bytes()

    held.set()
    with stores(deadline=1) as made:
        before, after = each(made, work)
        assert before == after
        until = time.monotonic() + 5
        while any(server.store.slot.core.kept.here for server in made.servers):
            assert time.monotonic() < until, "nobody reads it any more"
            time.sleep(0.01)
        held.set()


def test_a_child_that_is_forked_has_nothing_to_do_with_it(tmp_path, held):
    with kvstore.create("local") as store:
        began(store)
        said = store.save(tmp_path / "saved", background=True)
        if not (child := os.fork()):
            status = 1
            with suppress(BaseException):
                with pytest.raises(Refused, match="forked"):
                    said.wait()
                store.close()
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not (tmp_path / "saved").exists()
        held.set()
        said.wait()
    assert (tmp_path / "saved").exists()


# ---------------------------------------------------------------- the disk, and kill -9


@pytest.mark.fault("F9", "every byte of a file from replicas changed, or cut off there")
def test_a_file_from_replicas_with_one_wrong_byte_or_too_few_is_refused(tmp_path):
    path, out = tmp_path / "saved", torch.empty(7)
    with stores(replicas=1, workers=1, placement={"large": 4}) as (store,):
        store.init("w", torch.ones(7))
        store.set_optimizer("adam", lr=0.1)
        store.pushpull("w", torch.ones(7), out=out)
        store.save(path, background=True).wait()
        right, whole = out.clone(), path.read_bytes()
        for at in range(len(whole)):
            for data in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
                path.write_bytes(data)
                with pytest.raises(Refused, match="saved"):
                    checkpoint.read(path)
                if at % 20 == 0:
                    with pytest.raises(Refused, match="saved"):
                        store.load(path)
        store.pull("w", out=out)
        assert torch.equal(out, right)
        path.write_bytes(whole)
        store.load(path)


def saves(pipe, path, prepare, *arguments):
    """In a process of its own: a store is saved, changed, and saved in the background once more."""
    torch.set_num_threads(1)
    with kvstore.create("local") as store:
        began(store)
        store.save(path)
        stepped(store, range(1))
        prepare(path, *arguments)
        said = store.save(path, background=True)
        try:
            said.wait()
            pipe.send("saved")
        except Refused as error:
            pipe.send(str(error))


def in_a_process(path, prepare, *arguments):
    """Return its output, None if it is killed, and its exit code."""
    pipe, theirs = FORKED.Pipe()
    process = FORKED.Process(target=saves, args=(theirs, path, prepare, *arguments))
    process.start()
    theirs.close()
    with pipe:
        said = None
        with suppress(EOFError):
            said = pipe.recv() if pipe.poll(30) else "nothing"
    process.join(30)
    return said, process.exitcode


STEPS = ["open", "write", "fsync", "replace", "fsync of the folder"]


def killed_at(path, step, number=signal.SIGKILL):
    """As the file is made, written, flushed or renamed, or its name is flushed: before that is done."""
    flush, held_, flushed = os.fsync, leftovers.held, []

    def die(*_, **__):
        os.kill(os.getpid(), number)

    def fsync(descriptor):
        flushed.append(descriptor)
        if (step, len(flushed)) in (("fsync", 1), ("fsync of the folder", 2)):
            die()
        flush(descriptor)

    def half(*given):
        """What is written to it ends the process, when something of it is in the file."""
        place, descriptor = held_(*given)
        reading, writing = os.pipe()

        def pump():
            os.write(descriptor, os.read(reading, 5000))
            die()

        threading.Thread(target=pump, daemon=True).start()
        return place, writing

    os.fsync = fsync
    if step == "open":
        leftovers.held = die
    elif step == "write":
        leftovers.held = half
    elif step == "replace":
        os.replace = die


@pytest.fixture(scope="module")
def old_and_new(tmp_path_factory):
    """The states of the file before and after."""
    path = tmp_path_factory.mktemp("files") / "saved"
    with kvstore.create("local") as store:
        began(store)
        store.save(path)
        old = path.read_bytes()
        stepped(store, range(1))
        store.save(path)
    return old, path.read_bytes()


@pytest.mark.slow(4)
@pytest.mark.fault("F8", "killed at every step of a save in the background")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("step", [*STEPS, None])
def test_killed_at_any_step_the_old_file_is_there_or_the_new_one(step, number, tmp_path, old_and_new):
    path, (old, new) = tmp_path / "saved", old_and_new
    said, code = in_a_process(path, killed_at, step, number)
    assert (said, code) == (("saved", 0) if step is None else (None, -number))
    assert path.read_bytes() == (new if step in ("fsync of the folder", None) else old)
    with kvstore.create("local") as store:
        began(store)
        store.load(path)
        store.save(path)
    assert os.listdir(tmp_path) == ["saved"], "what the dead one left is gone"


ENDED = """
import os, pathlib, signal, sys, threading, time
import torch
from d2lps import kvstore
from d2lps.kvstore import checkpoint

how, background, folder = sys.argv[1], sys.argv[2] == "background", pathlib.Path(sys.argv[3])
if how == "exits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
flush = checkpoint.to_disk

def slow(descriptor):
    (folder / "begun").touch()
    time.sleep(3)
    flush(descriptor)

def fails():
    while not (folder / "begun").exists():
        time.sleep(0.01)
    os._exit(1)

with kvstore.create("dist_sync", joining=60.0) as store:
    store.init("w", torch.zeros(100_000))
    store.save(folder / "saved")
    store.push("w", torch.ones(100_000))
    if store.rank == 0:
        checkpoint.to_disk = slow
    else:
        threading.Thread(target=fails, daemon=True).start()
    saving = store.save(folder / "saved", background=background)
    background and saving.wait()
"""


@pytest.mark.slow(15)
@pytest.mark.fault("F8", "worker 0 ended by torchrun, during a save, because another worker has failed")
@pytest.mark.parametrize("how", ["dies", "exits"])
@pytest.mark.parametrize("place", ["foreground", "background"])
def test_ended_by_torchrun_the_old_file_is_there_or_the_new_one(how, place, tmp_path):
    (tmp_path / "script.py").write_text(ENDED)
    (folder := tmp_path / "files").mkdir()
    assert torchrun(tmp_path / "script.py", 2, arguments=[how, place, str(folder)]).returncode != 0
    with kvstore.create("local") as store:
        store.init("w", torch.full((100_000,), 5.0))
        store.load(folder / "saved")
        store.pull("w", out=(out := torch.empty(100_000)))
    assert out.unique().tolist() in ([[0.0]] if how == "dies" else [[0.0], [2.0]])
    assert sorted(os.listdir(folder)) == ["begun", "saved"], "what the dead one left is gone"


def limited(path, nbytes):
    """No file may be longer."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.slow(2)
@pytest.mark.fault("F8", "a file that may not be so long, in the background")
def test_a_file_that_cannot_grow_leaves_the_old_one(tmp_path, old_and_new):
    path, (old, new) = tmp_path / "saved", old_and_new
    for nbytes in (10, len(new) - 1):
        said, code = in_a_process(path, limited, nbytes)
        assert "cannot be saved" in said and "File too large" in said and code == 0
        assert path.read_bytes() == old and os.listdir(tmp_path) == ["saved"]


def on_a_small_disk(pipe, folder, room):
    """In a namespace of its own: a disk that has no room for two files."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    new_user, new_mounts = 0x10000000, 0x20000
    try:
        if libc.unshare(new_user | new_mounts):
            raise OSError(ctypes.get_errno(), "no namespace")
        for name, said in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(said)
        if libc.mount(b"d2lps", folder.encode(), b"tmpfs", 0, b"size=%d" % room):
            raise OSError(ctypes.get_errno(), "no disk")
    except OSError as error:
        pipe.send(("no disk", str(error)))
        return
    path = os.path.join(folder, "saved")
    with ExitStack() as last:
        store = last.enter_context(kvstore.create("local"))
        began(store)
        store.save(path)
        with open(path, "rb") as file:
            old = file.read()
        stepped(store, range(1))
        said = store.save(path, background=True)
        try:
            said.wait()
            found = "saved"
        except Refused as error:
            found = str(error)
        with open(path, "rb") as file:
            pipe.send((found, file.read() == old and os.listdir(folder) == ["saved"]))


@pytest.mark.slow(1)
@pytest.mark.fault("F8", "a disk that is full, in the background")
def test_a_disk_that_is_full_leaves_the_old_one(tmp_path, old_and_new):
    pipe, theirs = FORKED.Pipe()
    room = sum(map(len, old_and_new)) - 8192
    process = FORKED.Process(target=on_a_small_disk, args=(theirs, str(tmp_path), room))
    process.start()
    theirs.close()
    with pipe:
        assert pipe.poll(30)
        said, whole = pipe.recv()
    process.join(30)
    if said == "no disk":
        pytest.skip(f"this machine mounts none ({whole})")
    assert "No space left on device" in said and whole is True
