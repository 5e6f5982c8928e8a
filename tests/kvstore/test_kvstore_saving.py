"""A store in a file: training goes on with the same bits, and nothing that was changed is ever loaded."""

import fcntl
import hashlib
import json
import os
import threading
from contextlib import suppress

import pytest
import torch

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.carriers import leftovers
from d2lps.kvstore import Refused, checkpoint
from d2lps.train.by_store import each

RULES = [("sgd", {"lr": 0.1, "momentum": 0.9}), ("adagrad", {"lr": 0.1}), ("adam", {"lr": 0.1, "rescale_grad": "mean"})]
SHAPES = {"a": (7,), 3: (5, 3), "empty": (0,), "scalar": ()}


def began(store, dtype=torch.float32):
    store.init(list(SHAPES), [torch.ones(shape, dtype=dtype) for shape in SHAPES.values()])
    return [torch.empty(shape, dtype=dtype) for shape in SHAPES.values()]


def stepped(store, out, steps):
    for step in steps:
        gradients = [torch.full_like(value, (step + 1) / (store.rank + 2)) for value in out]
        store.pushpull(list(SHAPES), gradients, out=out)
    return [value.clone() for value in out]


@pytest.mark.parametrize("rule, numbers", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("before, after", [((1, 1), (1, 1)), ((2, 3), (2, 1)), ((3, 2), (3, 3))])
def test_training_goes_on_with_the_same_bits_on_any_number_of_servers(tmp_path, before, after, dtype, rule, numbers):
    path = tmp_path / "store"

    def whole(store):
        out = began(store, dtype)
        store.set_optimizer(rule, **numbers)
        stepped(store, out, range(3))
        store.save(path)
        return stepped(store, out, range(3, 6))

    def again(store):
        out = began(store, dtype)
        store.load(path)
        return stepped(store, out, range(3, 6))

    found = []
    for work, (workers, servers) in ((whole, before), (again, after)):
        with kvstore.cluster("dist_sync", workers, servers, placement=Placement(servers, large=4)) as stores:
            found += each(stores, work)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))


def test_a_local_store_goes_on_where_a_distributed_one_was(tmp_path):
    path = tmp_path / "store"
    with kvstore.cluster("dist_sync", 1, 2) as stores:
        out = began(stores[0])
        stores[0].set_optimizer("adam", lr=0.1)
        stepped(stores[0], out, range(3))
        stores[0].save(path)
        expected = stepped(stores[0], out, range(3, 6))
    store = kvstore.create("local")
    out = began(store)
    store.load(path)
    assert store.optimizer.rule == "adam"
    assert all(torch.equal(a, b) for a, b in zip(stepped(store, out, range(3, 6)), expected, strict=True))


@pytest.fixture
def saved(tmp_path):
    """(a store, the file that it was saved in, what it holds)"""
    store = kvstore.create("local")
    out = began(store)
    store.set_optimizer("adam", lr=0.1)
    stepped(store, out, range(2))
    store.save(tmp_path / "store")
    return store, tmp_path / "store", out


def holds(store, expected):
    out = [torch.empty(shape) for shape in SHAPES.values()]
    store.pull(list(SHAPES), out=out)
    return all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))


def test_a_file_that_is_cut_off_anywhere_is_refused(saved):
    store, path, values = saved
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Refused, match="store"):
            store.load(path)
    assert holds(store, values)


def test_a_file_with_a_changed_bit_is_refused(saved):
    store, path, values = saved
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(Refused, match="store"):
            store.load(path)
    assert holds(store, values)


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95nonsense", b"d2lps store 1\n" + b"\xff" * 60, b"x" * 1000])
def test_what_is_no_store_is_refused(saved, content):
    store, path, values = saved
    path.write_bytes(content)
    with pytest.raises(Refused, match=str(path)):
        store.load(path)
    assert holds(store, values)


def test_a_place_that_cannot_be_written_or_read_is_refused_and_leaves_nothing(saved, tmp_path):
    store, path, _ = saved
    with pytest.raises(Refused, match="cannot be saved in .*nowhere"):
        store.save(tmp_path / "nowhere" / "store")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="cannot be saved"):
        store.save(tmp_path / "folder")
    with pytest.raises(Refused, match="cannot be read"):
        store.load(tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["folder", "store"]


def test_an_older_file_stays_until_the_new_one_is_complete(saved, monkeypatch):
    store, path, _ = saved
    whole = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(Refused, match="No space left"):
        store.save(path)
    assert path.read_bytes() == whole and os.listdir(path.parent) == ["store"]


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


def forge(path, header, payload=None):
    """A file whose header fits its own checksum, whatever it says; its tensors stay, or are others."""
    text = path.read_bytes()
    start = len(checkpoint.MAGIC) + checkpoint.LENGTH.size
    (length,) = checkpoint.LENGTH.unpack_from(text, len(checkpoint.MAGIC))
    if callable(header):
        header(said := json.loads(text[start + 32 : start + 32 + length]))
        if payload is not None:
            said["sha256"] = hashlib.sha256(payload).hexdigest()
        header = json.dumps(said).encode()
    digest = hashlib.sha256(header).digest()
    payload = text[start + 32 + length :] if payload is None else payload
    path.write_bytes(checkpoint.MAGIC + checkpoint.LENGTH.pack(len(header)) + digest + header + payload)


def first(**wrong):
    return lambda header: header["keys"][0].update(wrong)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"5",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
        first(key=True),
        first(key={}),
        first(key=3),  # which is there already
        first(shape=[-7]),
        first(shape="7"),
        first(shape=[7.0]),
        first(shape=[True]),
        first(shape=[10**18]),
        first(shape=[2**40, 2**40]),
        first(numbers={"steps": "many"}),
        first(numbers=[]),
        first(tensors={"value": 99}),
        first(tensors={"value": -1}),
        first(tensors={"value": True}),
        first(tensors={}),
        first(tensors={}, numbers={"value": 1}),
        first(numbers={"steps": -1}),
        lambda header: header.update(keys=5),
        lambda header: header.update(optimizer=[1]),
        lambda header: header.update(optimizer={"rule": ["sgd"], "numbers": {"lr": 1.0}}),
        lambda header: header.update(optimizer={"rule": "adam", "numbers": {"lr": 1.0, "beta1": 1}}),
        lambda header: header.update(optimizer={"rule": "sgd", "numbers": {"lr": float("inf")}}),
        lambda header: header.update(optimizer=None),  # and what it remembers is there
    ],
)
def test_what_is_written_by_something_else_is_refused(saved, header):
    store, path, values = saved
    forge(path, header)
    with pytest.raises(Refused, match=str(path)):
        store.load(path)
    assert holds(store, values)


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
    forge_in_place = first(shape=[(10**12 - 10**6) // 4])
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


@pytest.mark.parametrize("path", [None, "", "a\0b", 3, "/", ".", "\ud800", ["a"], b"\0"])
def test_what_is_no_path_is_refused(saved, path):
    store, _, values = saved
    for call in (store.save, store.load):
        with pytest.raises(Refused):
            call(path)
    assert holds(store, values)


def test_a_pipe_is_refused_without_a_wait(saved, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="is no store that d2lps saved"):
        saved[0].load(tmp_path / "pipe")


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


def test_a_load_that_is_refused_for_one_key_changes_none(tmp_path):
    path = tmp_path / "store"
    with kvstore.cluster("dist_sync", 2, 2) as stores:

        def work(store):
            store.init(["w", "v"], [torch.ones(3), torch.ones(3)])
            store.set_optimizer("sgd", lr=0.5)
            store.save(path)
            store.set_optimizer("sgd", lr=-1.0)
            out = [torch.empty(3), torch.empty(3)]
            store.pushpull(["w", "v"], [torch.ones(3)] * 2, out=out)
            if store.rank == 1:
                store.push("v", torch.ones(3))  # the round of v is open
            if store.rank == 0:
                with pytest.raises(Refused, match="key 'v' is in the midst of a round: load at a barrier"):
                    store.load(path)
                store.push("v", torch.ones(3))
            else:
                with suppress(Refused):  # it may hear why, too
                    store.load(path)
            store.pull(["w", "v"], out=out)
            return [value[0].item() for value in out]

        assert each(stores, work) == [[3.0, 5.0]] * 2


def test_only_worker_0_loads():
    from d2lps.kvstore.checkpoint import encode
    from d2lps.kvstore.wire import Op
    from d2lps.kvstore.worker.client import Request

    with kvstore.cluster("dist_sync", 2, 1) as stores:
        each(stores, lambda store: store.init("w", torch.zeros(3)))
        said, payload = encode({"value": torch.ones(3)})
        said |= {"part": 0, "load": 1, "rule": None, "rule_numbers": {}}
        line = stores[1].clients[0]
        with pytest.raises(Refused, match="worker 0 loads"):
            line.wait(line.ask(Request(Op.RESTORE, metadata=said, payload=payload)), threading.TIMEOUT_MAX)
        out = torch.empty(3)
        stores[1].pull("w", out=out)
        assert out.tolist() == [0, 0, 0]


def test_on_macos_the_disk_writes_its_own_cache_too(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(checkpoint.sys, "platform", "darwin")
    monkeypatch.setattr(checkpoint.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(checkpoint.fcntl, "fcntl", lambda descriptor, command: asked.append(command))
    checkpoint.folder_to_disk(tmp_path)
    assert asked == [51]

    def refused(*_):
        raise OSError("not here")

    flushed = []
    monkeypatch.setattr(checkpoint.fcntl, "fcntl", refused)
    monkeypatch.setattr(checkpoint.os, "fsync", flushed.append)
    checkpoint.folder_to_disk(tmp_path)
    assert len(flushed) == 1
