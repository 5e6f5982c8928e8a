"""Files: each is complete, or the older one stays; a file of another model, or a changed one, is refused."""

import fcntl
import hashlib
import itertools
import json
import os
import resource
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch
from helpers.ranks import FORKED
from helpers.scripts import forked
from helpers.stores import each, pulled
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.carriers import leftovers
from d2lps.kvstore import Refused, checkpoint
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.worker.client import ServerClient

KEYS, SIZES = ["w", 3, "empty"], (30_000, 7, 0)
SHAPES = {"a": (7,), 3: (5, 3), "empty": (0,), "scalar": ()}
RULES = {"sgd": {"lr": 0.1, "momentum": 0.9}, "adam": {"lr": 0.01}, "adagrad": {"lr": 0.1, "rescale_grad": "mean"}}
KINDS = [("local", 0), ("dist_sync", 0), ("dist_sync", 1), ("dist_async", 1), ("dist_ssp", 0)]


@contextmanager
def stores(kind="dist_sync", replicas=0, workers=2, servers=3, **options):
    """The stores of so many workers, with what makes them if they are on servers."""
    if kind == "local":
        with kvstore.create("local") as store:
            yield (store,)
        return
    options = {"deadline": 10, "placement": {"large": 20_000}, "replicas": replicas} | options
    with kvstore.cluster(kind, workers, servers, **options) as made:
        yield made


def equal(some, others) -> bool:
    return all(map(torch.equal, some, others))


# ---------------------------------------------------------------- a file that is complete, and any other


def began_small(store, dtype=torch.float32):
    store.init(list(SHAPES), [torch.ones(shape, dtype=dtype) for shape in SHAPES.values()])
    return [torch.empty(shape, dtype=dtype) for shape in SHAPES.values()]


def stepped_small(store, out, steps):
    for step in steps:
        gradients = [torch.full_like(value, (step + 1) / (store.rank + 2)) for value in out]
        store.pushpull(list(SHAPES), gradients, out=out)
    return [value.clone() for value in out]


@pytest.mark.parametrize("rule, dtype", [("sgd", torch.float32), ("adam", torch.float16), ("adagrad", torch.float32)])
@pytest.mark.parametrize(
    "before, after",
    [
        (("dist_sync", 0, 1, 1), ("local",)),
        (("dist_sync", 1, 2, 3), ("dist_sync", 0, 2, 1)),
        (("dist_sync", 0, 3, 2), ("dist_sync", 1, 3, 3)),
    ],
)
def test_training_goes_on_with_the_same_bits_on_any_number_of_servers(tmp_path, before, after, dtype, rule):
    path = tmp_path / "store"

    def first(store):
        out = began_small(store, dtype)
        store.set_optimizer(rule, **RULES[rule])
        stepped_small(store, out, range(3))
        store.save(path)
        return stepped_small(store, out, range(3, 6))

    def second(store):
        out = began_small(store, dtype)
        store.load(path)
        assert store.optimizer.rule == rule
        return stepped_small(store, out, range(3, 6))

    found = []
    for work, where in ((first, before), (second, after)):
        with stores(*where, placement={"large": 4}) as made:
            found += each(made, work)
    assert all(equal(found[0], one) for one in found[1:])


@pytest.fixture
def saved(tmp_path):
    """(a store, the file that it was saved in, its values)"""
    store = kvstore.create("local")
    out = began_small(store)
    store.set_optimizer("adam", lr=0.1)
    stepped_small(store, out, range(2))
    store.save(tmp_path / "store")
    return store, tmp_path / "store", out


def holds(store, expected):
    store.pull(list(SHAPES), out=(out := [torch.empty(shape) for shape in SHAPES.values()]))
    return equal(out, expected)


@pytest.mark.fault("F9", "every byte of a file from replicas changed, or cut off there")
def test_a_file_with_one_wrong_byte_or_too_few_is_refused(tmp_path):
    path = tmp_path / "store"
    with stores(replicas=1, workers=1, placement={"large": 4}) as (store,):
        store.init("w", torch.ones(7))
        store.set_optimizer("adam", lr=0.1)
        store.pushpull("w", torch.ones(7), out=(out := torch.empty(7)))
        store.save(path)
        whole = path.read_bytes()
        for at in range(len(whole)):
            for data in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
                path.write_bytes(data)
                for read in (checkpoint.read, *[store.load] * (at % 20 == 0)):
                    with pytest.raises(Refused, match="store"):
                        read(path)
        assert pulled(store, "w", 7) == out.unique().tolist()
        path.write_bytes(whole)
        store.load(path)


def forge(path, header, payload=None):
    """Write a file whose header fits its own checksum, whatever it says; its tensors stay, or are others."""
    text = path.read_bytes()
    start = len(checkpoint.MAGIC) + checkpoint.LENGTH.size
    (length,) = checkpoint.LENGTH.unpack_from(text, len(checkpoint.MAGIC))
    if callable(header):
        header(said := json.loads(text[start + 32 : start + 32 + length]))
        if payload is not None:
            said["sha256"] = hashlib.sha256(payload).hexdigest()
        header = json.dumps(said).encode()
    payload = text[start + 32 + length :] if payload is None else payload
    digest = hashlib.sha256(header).digest()
    path.write_bytes(checkpoint.MAGIC + checkpoint.LENGTH.pack(len(header)) + digest + header + payload)


CONTENTS = [b"", b"\x80\x04\x95nonsense", b"d2lps store 1\n" + b"\xff" * 60, b"x" * 1000]
HEADERS = [b"[]", b"5", b"[" * 100_000, b'{"a":' * 100_000, b"{}"]
OF_A_KEY = {
    "key": [True, {}, 3],  # 3 is there already
    "shape": [[-7], "7", [7.0], [True], [10**18], [2**40, 2**40]],
    "numbers": [{"steps": "many"}, [], {"steps": -1}],
    "tensors": [{"value": 99}, {"value": -1}, {"value": True}, {}],
}
OPTIMIZERS = [[1], None]  # none, but the state of one is there
OPTIMIZERS += [{"rule": ["sgd"], "numbers": {"lr": 1.0}}, {"rule": "adam", "numbers": {"lr": 1.0, "beta1": 1}}]
OPTIMIZERS += [{"rule": "sgd", "numbers": {"lr": float("inf")}}]
WRONG = [{"keys": 5}, *({"optimizer": optimizer} for optimizer in OPTIMIZERS)]


def of_first_key(**wrong):
    return lambda header: header["keys"][0].update(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *CONTENTS,
        *((header,) for header in HEADERS),
        *((of_first_key(**{name: value}),) for name, values in OF_A_KEY.items() for value in values),
        (of_first_key(tensors={}, numbers={"value": 1}),),
        *((lambda header, wrong=wrong: header.update(wrong),) for wrong in WRONG),
    ],
    ids=itertools.count(),
)
def test_a_file_that_something_else_has_written_is_refused(saved, wrong):
    store, path, values = saved
    if isinstance(wrong, bytes):
        path.write_bytes(wrong)
    else:
        forge(path, *wrong)
    with pytest.raises(Refused, match=str(path)):
        store.load(path)
    assert holds(store, values)


@pytest.mark.parametrize(
    "shapes, sentence",
    [
        ({"a": (7,), 3: (5, 3), "empty": (0,)}, "has key 'scalar', which is not initialized"),
        ({**SHAPES, "more": (2,)}, "lacks key 'more'"),
        ({**SHAPES, 3: (3, 5)}, r"key 3 has shape \(5, 3\)"),
    ],
)
def test_other_keys_than_were_saved_are_refused(saved, shapes, sentence):
    store = kvstore.create("local")
    store.init(list(shapes), [torch.zeros(shape) for shape in shapes.values()])
    with pytest.raises(Refused, match=sentence):
        store.load(saved[1])


def test_state_of_another_optimizer_is_refused(saved):
    store, path, values = saved
    whole = path.read_bytes()
    for dtype, nbytes in ((7, 1), (1, 8)):  # int8, float64

        def wrong(header, dtype=dtype):
            header["keys"] = [header["keys"][0] | {"tensors": {"value": 0, "velocity": dtype}, "numbers": {}}]
            header["optimizer"] = {"rule": "sgd", "numbers": {"lr": 0.1, "momentum": 0.9}}

        path.write_bytes(whole)
        forge(path, wrong, bytes(7 * (4 + nbytes)))
        with pytest.raises(Refused, match="key 'a' has velocity, which is not the state of sgd"):
            checkpoint.read(path)
    assert holds(store, values)


def test_a_file_that_says_more_than_there_is_costs_no_memory(saved):
    store, path, values = saved
    os.truncate(path, 10**12)  # 1 TB, of which nothing is on the disk
    with pytest.raises(Refused, match="bytes of tensors where .* belong"):
        store.load(path)
    forge_in_place = of_first_key(shape=[(10**12 - 10**6) // 4])
    path.unlink()
    store.save(path)
    kept = {"a": ((7,), torch.float32)}
    forge(path, forge_in_place)
    text = path.read_bytes()
    (length,) = checkpoint.LENGTH.unpack_from(text, len(checkpoint.MAGIC))
    start = len(checkpoint.MAGIC) + checkpoint.LENGTH.size + 32 + length
    _, size = checkpoint._entries(json.loads(text[start - length : start]))
    os.truncate(path, start + size)  # now it has what it says
    with pytest.raises(Refused, match="which is not initialized"):
        checkpoint.read(path, kept)
    assert holds(store, values)


def test_leftovers_of_a_killed_process_are_removed(saved, tmp_path):
    store, path, _ = saved
    for call in (store.save, store.load):
        (left := tmp_path / f"{leftovers.PREFIX}0123").write_bytes(b"half of a store")
        with open(left, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)  # by one who still writes, on another host
            call(path)
            assert left.exists()
        call(path)
        assert not left.exists()


@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_a_place_that_cannot_be_written_or_read_is_refused_at_once_and_leaves_nothing(kind, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    def work(store):
        began(store)
        for path in (None, "", "a\0b", 3, "/", ".", ["a"], b"\0", "\ud800"):
            for call in (store.save, store.load):
                with pytest.raises(Refused):
                    call(path)
        for path in ("/nowhere/at/all/saved", tmp_path / "folder"):
            with pytest.raises(Refused, match="cannot be saved in"):
                store.save(path)
        with pytest.raises(Refused, match="it is there, and no file"):
            store.save(tmp_path / "pipe")
        for path, sentence in (("none", "cannot be read"), ("pipe", "is no store that d2lps saved")):
            with pytest.raises(Refused, match=sentence):
                store.load(tmp_path / path)
        stepped(store, range(1))
        return sorted(os.listdir(tmp_path))

    with stores(kind) as made:
        assert all(found == ["folder", "pipe"] for found in each(made, work))


def test_other_files_beside_a_saved_store_stay_and_its_name_may_be_long(tmp_path):
    store, mine = kvstore.create("local"), tmp_path / ".store.20240101"
    began(store)
    mine.write_text("a copy of mine")
    for path in (tmp_path / "store", tmp_path / ("x" * 255)):
        store.save(path)
        store.load(path)
    assert {*os.listdir(tmp_path)} == {"store", "x" * 255, mine.name}
    (usual := tmp_path / "usual").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_threads_that_save_to_one_path_do_not_disturb_each_other(tmp_path):
    def save(_):
        with kvstore.create("local") as store:
            began(store)
            for _ in range(50):
                store.save(tmp_path / "store")
            store.load(tmp_path / "store")

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(save, range(3))] == [None] * 3
    assert os.listdir(tmp_path) == ["store"]


def test_the_disk_writes_its_own_cache_too_on_macos(tmp_path, monkeypatch):
    asked, flushed = [], []
    monkeypatch.setattr(checkpoint.sys, "platform", "darwin")
    monkeypatch.setattr(checkpoint.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(checkpoint.os, "fsync", flushed.append)
    for refusal in (None, OSError("not here")):

        def full_fsync(descriptor, command, refusal=refusal):
            asked.append(command)
            if refusal:
                raise refusal

        monkeypatch.setattr(checkpoint.fcntl, "fcntl", full_fsync)
        checkpoint.folder_to_disk(tmp_path)
    assert (asked, len(flushed)) == ([51, 51], 1)


# ---------------------------------------------------------------- the values in a file


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


def saved_and_stepped(store, path):
    """Save a store that has begun, do a round, and return the bytes of the file."""
    began(store)
    store.save(path)
    saved = path.read_bytes()
    stepped(store, range(1))
    return saved


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


@pytest.mark.parametrize("kind, replicas", KINDS)
def test_file_has_the_values_that_all_workers_pulled(kind, replicas, tmp_path):
    path = tmp_path / "saved"

    def work(store):
        began(store, "adam")
        there = stepped(store, range(3))
        store.save(path)
        return there, stepped(store, range(3, 6))

    with stores(kind, replicas) as made:
        found = each(made, work)
    assert all(equal(gone_on(path, "adam", ()), there) for there, _ in found)
    if kind == "dist_sync":
        assert equal(gone_on(path, "adam", range(3, 6)), found[0][1])


@pytest.mark.fault("F2", "server killed while its store is saved")
def test_save_continues_at_the_backup_of_a_killed_server(tmp_path, monkeypatch):
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

    def work(store, replicas):
        began(store, "adam")
        stepped(store, range(3))
        if not replicas:
            monkeypatch.setattr(ServerClient, "ask", ask)
        store.save(tmp_path / str(replicas))
        return stepped(store, range(3, 6))

    for replicas in (1, 0):
        with stores(replicas=replicas) as made:
            ends[replicas], other = each(made, work, replicas)
            assert equal(ends[replicas], other)
        assert killed
    assert equal(ends[1], ends[0])
    assert (tmp_path / "1").read_bytes() == (tmp_path / "0").read_bytes()


def test_state_that_a_push_has_changed_since_the_save_began_is_refused():
    """So a worker that one server has given up, and another not yet, tears no file."""
    server = SlotStore("dist_async", workers=2)
    number = server.init(0, "w", 1, torch.float32, torch.zeros(1))
    server.set_optimizer(0, Optimizer.read("sgd", {"lr": 1.0}))
    versions = server.versions(0)
    layout, payload = server.state(0, number, versions[number], 0)
    assert checkpoint.decode(layout, payload)["value"].tolist() == [0.0]
    server.push(1, [(number, 1, torch.ones(1))])
    with pytest.raises(Refused, match="key w has changed since this save began: save again"):
        server.state(0, number, versions[number], 0)
    layout, payload = server.state(0, number, server.versions(0)[number], 0)
    assert checkpoint.decode(layout, payload)["value"].tolist() == [-1.0]


@pytest.mark.parametrize("kind, replicas", [("local", 0), ("dist_sync", 1)])
def test_failed_save_leaves_the_older_file_and_may_be_repeated(kind, replicas, tmp_path, monkeypatch):
    path, fsync = tmp_path / "saved", os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    def work(store):
        def fsync_is(function):
            store.barrier()
            if store.rank == 0:
                monkeypatch.setattr(checkpoint.os, "fsync", function)
            store.barrier()

        before = saved_and_stepped(store, path)
        fsync_is(full)
        with pytest.raises(Refused, match="No space left"):
            store.save(path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["saved"]
        fsync_is(fsync)
        store.save(path)
        return path.read_bytes() != before

    with stores(kind, replicas) as made:
        assert all(found is True for found in each(made, work))


# ---------------------------------------------------------------- the disk, and kill -9


def saves(pipe, path, prepare, *arguments):
    """In a process of its own: a store is saved, changed, and saved once more."""
    torch.set_num_threads(1)
    with kvstore.create("local") as store:
        began(store)
        store.save(path)
        stepped(store, range(1))
        prepare(path, *arguments)
        try:
            store.save(path)
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
    process.join(LIVE)
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


@pytest.mark.fault("F8", "killed at every step of a save")
@pytest.mark.parametrize(
    "step, number", [*((step, signal.SIGKILL) for step in [*STEPS, None]), ("write", signal.SIGTERM)]
)
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

folder = pathlib.Path(os.environ["FOLDER"])
first = pathlib.Path(sys.argv[0] + ".pid")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
flush = checkpoint.to_disk

def slow(descriptor):
    (folder / "begun").touch()
    time.sleep(3)
    flush(descriptor)

def fails():
    while not (folder / "begun").exists():
        time.sleep(0.01)
    os.kill(int(first.read_text()), signal.SIGTERM)  # as torchrun would do
    os._exit(1)

if os.environ["RANK"] == "0":
    first.write_text(str(os.getpid()))
with kvstore.create("dist_sync", servers=1, joining=60.0) as store:
    store.init("w", torch.zeros(100_000))
    store.save(folder / "saved")
    store.push("w", torch.ones(100_000))
    if store.rank == 0:
        checkpoint.to_disk = slow
    else:
        threading.Thread(target=fails, daemon=True).start()
    store.save(folder / "saved")
"""


@pytest.mark.fault("F8", "worker 0 ended by torchrun, during a save, because another worker has failed")
def test_worker_that_is_told_to_exit_leaves_the_old_file_or_the_new_one(tmp_path):
    (script := tmp_path / "script.py").write_text(ENDED)
    (folder := tmp_path / "files").mkdir()
    forked(script, 2, FOLDER=str(folder))
    with kvstore.create("local") as store:
        store.init("w", torch.full((100_000,), 5.0))
        store.load(folder / "saved")
        store.pull("w", out=(out := torch.empty(100_000)))
    assert out.unique().tolist() in [[0.0], [2.0]]
    assert sorted(os.listdir(folder)) == ["begun", "saved"], "what the dead one left is gone"


def limited(path, nbytes):
    """No file may be longer."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.fault("F8", "a file that may not be so long")
def test_a_file_that_cannot_grow_leaves_the_old_one(tmp_path, old_and_new):
    path, (old, new) = tmp_path / "saved", old_and_new
    for nbytes in (10, len(new) - 1):
        said, code = in_a_process(path, limited, nbytes)
        assert "cannot be saved" in said and "File too large" in said and code == 0
        assert path.read_bytes() == old and os.listdir(tmp_path) == ["saved"]
