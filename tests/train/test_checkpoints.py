"""A training that is killed goes on from its last checkpoint, with the same bits; damaged files are passed over."""

import copy
import hashlib
import json
import math
import os
import random
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from helpers.ranks import FORKED
from helpers.waits import LIVE

from d2lps import kvstore, train
from d2lps.kvstore.errors import Refused
from d2lps.train import CheckpointError, Checkpoints
from d2lps.train.by_store import each, in_turn, work

UPDATE = "adam", {"lr": 0.01}
STEPS = 30


def trains(pipe, folder, servers, data):
    """A life, in a process of its own: it says each step that is done, and the weights in the end."""
    torch.set_num_threads(1)
    data = tuple(map(torch.from_numpy, data))
    net = train.small_cnn()  # once: its random weights come from what all threads draw from

    def one(store):
        own = {"after": None if store.rank else pipe.send, "checkpoints": Checkpoints(folder, store), "every": 4}
        return work(store, copy.deepcopy(net), data, 48, STEPS, UPDATE, **own)

    with kvstore.cluster("dist_sync", workers=2, servers=servers) as stores:
        worked, _ = each(stores, one)
    pipe.send(worked.weights.numpy().tobytes())


@pytest.fixture
def store():
    with kvstore.create("local") as made:
        made.init(["w", 3], [torch.zeros(4), torch.ones(2, 2)])
        yield made


def pulled(store, key="w"):
    out = torch.empty(4)
    store.pull(key, out=out)
    return out.tolist()


def test_training_ends_with_the_same_bits_after_a_kill_at_any_moment(tmp_path):
    """All of it: workers, servers, and whoever writes. The second life has another number of servers."""
    data = train.digits().train
    expected = in_turn(train.small_cnn(), data, 48, STEPS, UPDATE, workers=[1, 1])
    given = [part.numpy() for part in data]  # else each life would import what reads them
    draw, first = random.Random(7), []
    while True:
        pipe, theirs = FORKED.Pipe()
        process = FORKED.Process(target=trains, args=(theirs, tmp_path, 1 + len(first) % 2, given))
        process.start()
        theirs.close()
        until, steps = draw.randint(3, 11) + len(first), []  # later lives are longer, or a busy machine would never end
        with pipe, suppress(EOFError, OSError):
            while True:
                assert pipe.poll(60), f"nothing after step {steps[-1:]}"
                if isinstance(said := pipe.recv(), bytes):
                    weights = said
                    continue
                steps.append(said)
                if len(steps) == until:
                    time.sleep(draw.uniform(0, 0.01))  # somewhere within the next step, or within the save
                    process.kill()
        process.join(LIVE)
        first.append(steps[0])
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL and len(first) < 20, first
    assert len(first) >= 4 and first == sorted(first) and all(begun % 4 == 1 for begun in first), first
    assert weights == expected.weights.numpy().tobytes()


def test_the_newest_is_gone_back_to_and_two_stay(store, tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder", store)
    assert checkpoints.resume() is None
    for steps in (10, 20, 30):
        store.push("w", torch.full((4,), float(steps)))
        checkpoints.save(steps, own={"epoch": steps // 10, "rate": 0.5, "mask": torch.arange(3), "names": ["a", None]})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-20", "step-30"]
    store.push("w", torch.full((4,), 99.0))
    steps, own = checkpoints.resume()
    assert (steps, pulled(store)) == (30, [30.0] * 4)
    assert own["mask"].tolist() == [0, 1, 2] and own["epoch"] == 3 and own["names"] == ["a", None]


def test_keys_without_elements_come_back_on_another_number_of_servers(tmp_path):
    keys, shapes = ["w", "none", "row"], [(5,), (0,), (0, 7)]
    for servers in (1, 3):
        with kvstore.cluster("dist_sync", workers=1, servers=servers, placement={"large": 2}) as (made,):
            made.init(keys, [torch.zeros(shape) for shape in shapes])
            made.set_optimizer("adam", lr=0.01)
            checkpoints, outs = Checkpoints(tmp_path, made), [torch.ones(shape) for shape in shapes]
            assert (checkpoints.resume() is None) == (servers == 1)
            if servers == 1:
                made.push(keys, outs)
                checkpoints.save(1)
            made.pull(keys, out=outs)
            assert outs[0].tolist() == pytest.approx([-0.01] * 5) and [out.shape for out in outs[1:]] == shapes[1:]


def saves(checkpoints, *counts):
    """Save at these numbers of steps; the key then holds 1 for the first save, 2 for the second, and so on."""
    for value, steps in enumerate(counts, 1):
        checkpoints.store.push("w", torch.full((4,), float(value)))
        checkpoints.save(steps)


def found(checkpoints):
    """Return the number of steps and the value that a resumed training has."""
    return checkpoints.resume().steps, pulled(checkpoints.store)[0]


@pytest.mark.parametrize(
    "counts, keep, left",
    [
        ([100, 200, 10], 2, ["step-10", "step-200"]),
        ([100, 200, 10], 1, ["step-10"]),
        ([100, 200, 150, 160], 2, ["step-150", "step-160"]),
        ([9, 10, 8, 9], 3, ["step-10", "step-8", "step-9"]),
        ([10, 20, 20], 2, ["step-10", "step-20"]),
        ([10, 20, 10], 2, ["step-10", "step-20"]),
        ([10, 10], 1, ["step-10"]),
        ([0, 0, 0], 2, ["step-0"]),
    ],
)
def test_the_checkpoint_written_last_counts_whatever_its_number_of_steps(store, tmp_path, counts, keep, left):
    checkpoints = Checkpoints(tmp_path, store, keep)
    saves(checkpoints, *counts)
    assert found(checkpoints) == (counts[-1], float(len(counts)))
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_second_training_in_the_folder_keeps_its_own_checkpoints(store, tmp_path):
    saves(Checkpoints(tmp_path, store), 100, 200)
    saves(Checkpoints(tmp_path, store), 10)
    assert found(Checkpoints(tmp_path, store)) == (10, 1.0)
    saves(Checkpoints(tmp_path, store), 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-20"]


def test_clocks_do_not_decide_which_checkpoint_is_the_newest(store, tmp_path):
    checkpoints = Checkpoints(tmp_path, store)
    saves(checkpoints, 20, 10)
    for path in [*(tmp_path / "step-10").iterdir(), tmp_path / "step-10"]:
        os.utime(path, (0, 0))
    assert found(checkpoints) == (10, 2.0)
    saves(checkpoints, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-5"]


def test_a_manifest_without_an_order_is_older_than_one_with_an_order(store, tmp_path):
    checkpoints = Checkpoints(tmp_path, store, keep=3)
    saves(checkpoints, 10, 9)
    for path in tmp_path.glob("*/manifest.json"):
        manifest = json.loads(path.read_text().splitlines()[0])
        del manifest["order"]
        content = json.dumps(manifest)
        path.write_text(f"{content}\n{hashlib.sha256(content.encode()).hexdigest()}")
    assert found(checkpoints) == (10, 1.0)
    saves(checkpoints, 8)
    assert found(checkpoints) == (8, 1.0)


def test_a_damaged_manifest_takes_the_place_of_no_whole_checkpoint(store, tmp_path):
    checkpoints = Checkpoints(tmp_path, store)
    saves(checkpoints, 10, 20)
    (tmp_path / "step-20" / "manifest.json").unlink()
    saves(checkpoints, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-30"]


@pytest.mark.parametrize("at", [0, 1])
def test_a_save_of_the_same_number_that_stops_halfway_leaves_the_one_before(store, tmp_path, monkeypatch, at):
    checkpoints, renames = Checkpoints(tmp_path, store, keep=1), []

    def rename(old, new, rename=os.rename):
        renames.append(new)
        if len(renames) == 1 + at:
            raise OSError("stopped here")
        rename(old, new)

    saves(checkpoints, 10)
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CheckpointError, match="stopped here"):
        saves(checkpoints, 10)
    assert found(checkpoints) == (10, 1.0)
    saves(checkpoints, 11, 10)
    assert found(checkpoints) == (10, 2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]


@pytest.mark.parametrize(
    "steps", [10, np.int64(10), np.uint8(10), np.array(10), torch.tensor(10), torch.tensor(10, dtype=torch.int32)]
)
def test_any_whole_number_is_a_number_of_steps(store, tmp_path, steps):
    Checkpoints(tmp_path, store).save(steps)
    resumed = Checkpoints(tmp_path, store).resume()
    assert resumed.steps == 10 and type(resumed.steps) is int


WRONG = [10.0, 10.5, -1, True, "10", "final", "../10", None, [10], math.nan, 1e400]
WRONG += [np.float64(10), np.bool_(True), np.array([10]), torch.tensor(10.0), torch.tensor(True), torch.tensor([10])]


@pytest.mark.parametrize("steps", WRONG, ids=repr)
def test_other_numbers_of_steps_are_refused_before_anything_is_written(store, tmp_path, steps):
    checkpoints = Checkpoints(tmp_path / "made", store)
    with pytest.raises(Refused, match=r"steps = .*: it must be a whole number, 0 or more"):
        checkpoints.save(steps)
    assert not (tmp_path / "made").exists()


def test_a_wrong_number_of_steps_makes_no_worker_wait(tmp_path):
    def one(store):
        store.init("w", torch.zeros(1))
        checkpoints = Checkpoints(tmp_path, store)
        checkpoints.save(1)
        with pytest.raises(Refused, match=r"steps = 2\.0"):
            checkpoints.save(2.0)
        return checkpoints.resume().steps

    with kvstore.cluster("dist_sync", workers=2, deadline=20) as stores:
        assert each(stores, one) == [1, 1]


def test_a_tilde_is_the_home_folder(store, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Checkpoints("~/run", store).save(1)
    store.save("~/file")
    store.load("~/file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
    assert Checkpoints(tmp_path / "run", store).resume().steps == 1


def test_random_numbers_go_on_where_they_were(store, tmp_path):
    def drawn():
        return (
            torch.rand(3).tolist(),
            np.random.rand(3).tolist(),
            [random.random() for _ in range(3)],
            random.gauss(0, 1),
        )

    checkpoints = Checkpoints(tmp_path, store)
    checkpoints.save(1)
    expected = drawn()
    assert drawn() != expected
    checkpoints.resume()
    assert drawn() == expected


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def changed(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["store", "rank-0", "manifest.json"])
@pytest.mark.parametrize("damage", [cut, changed, os.unlink], ids=lambda damage: damage.__name__)
def test_what_is_damaged_is_passed_over(store, tmp_path, name, damage):
    checkpoints = Checkpoints(tmp_path, store)
    for steps in (10, 20):
        store.push("w", torch.full((4,), float(steps)))
        checkpoints.save(steps)
    damage(tmp_path / "step-20" / name)
    assert (checkpoints.resume().steps, pulled(store)) == (10, [10.0] * 4)
    store.push("w", torch.full((4,), 21.0))
    checkpoints.save(20)  # in its place
    assert (checkpoints.resume().steps, pulled(store)) == (20, [21.0] * 4)


@pytest.mark.fault("F9", "every byte of a manifest changed, or cut off there")
def test_a_manifest_with_one_wrong_byte_or_too_few_is_none(store, tmp_path):
    checkpoints = Checkpoints(tmp_path, store)
    checkpoints.save(10)
    path = tmp_path / "step-10" / "manifest.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
            path.write_bytes(data)
            assert checkpoints.resume() is None, (at, data)
    path.write_bytes(whole)
    assert checkpoints.resume().steps == 10


def test_what_was_not_finished_is_no_checkpoint(store, tmp_path):
    checkpoints = Checkpoints(tmp_path, store)
    checkpoints.save(10)
    os.rename(tmp_path / "step-10", tmp_path / ".step-10")
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-30").write_text("no folder")
    assert checkpoints.resume() is None
    checkpoints.save(10)
    assert checkpoints.resume().steps == 10


def test_of_another_model_or_other_workers_is_refused_and_nothing_has_changed(store, tmp_path):
    Checkpoints(tmp_path, store).save(10)
    with kvstore.create("local") as other:
        other.init("w", torch.full((5,), 7.0))
        with pytest.raises(CheckpointError, match=r"step-10 does not belong to this training: .* has key 3"):
            Checkpoints(tmp_path, other).resume()
        other.pull("w", out=(out := torch.empty(5)))
        assert out.tolist() == [7.0] * 5
    path = tmp_path / "step-10" / "manifest.json"
    said = json.dumps(json.loads(path.read_text().splitlines()[0]) | {"workers": 4})
    path.write_text(f"{said}\n{hashlib.sha256(said.encode()).hexdigest()}")
    with pytest.raises(CheckpointError, match=r"step-10 was written by 4 workers, but there are 1: start as many"):
        Checkpoints(tmp_path, store).resume()


@pytest.mark.parametrize("own", [lambda: 0, {"it": object()}, [{1, 2}, open]])
def test_an_invalid_checkpoint_is_refused_and_the_last_one_stays(store, tmp_path, own):
    checkpoints = Checkpoints(tmp_path, store)
    checkpoints.save(10)
    with pytest.raises(
        CheckpointError, match=r"own = a \w+ contains values that a checkpoint cannot keep: give numbers"
    ):
        checkpoints.save(20, own)
    assert checkpoints.resume().steps == 10


def test_an_unwritable_folder_is_named_to_all_workers(tmp_path):
    (tmp_path / "file").write_text("")

    def one(store):
        store.init("w", torch.zeros(1))
        try:
            Checkpoints(tmp_path / "file" / "in", store).save(1)
        except (CheckpointError, Refused) as error:
            return str(error)

    with kvstore.cluster("dist_sync", workers=2) as stores:
        said = each(stores, one)
    assert "cannot be" in said[0] and "file" in said[0] and said[1], said


def test_a_failed_write_of_one_worker_is_reported_to_all(tmp_path):
    def one(store):
        store.init("w", torch.zeros(1))
        checkpoints = Checkpoints(tmp_path, store)
        checkpoints.save(1)
        try:
            checkpoints.save(2, own=object() if store.rank == 1 else None)
        except CheckpointError as error:
            return str(error), checkpoints.resume().steps

    with kvstore.cluster("dist_sync", workers=2) as stores:
        (first, steps), (second, also) = each(stores, one)
    assert "another worker" in first and "own = a object" in second and steps == also == 1


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "2"])
def test_keep_is_a_count(store, tmp_path, keep):
    with pytest.raises(Refused, match="keep"):
        Checkpoints(tmp_path, store, keep=keep)


def test_a_training_that_is_over_has_nothing_to_do(tmp_path):
    def run():
        with kvstore.create("local") as store, train.deterministic():
            checkpoints = Checkpoints(tmp_path, store)
            return work(store, train.small_cnn(), train.digits().train, 32, 4, UPDATE, checkpoints=checkpoints, every=2)

    first, second = run(), run()
    assert len(first.losses) == 4 and second.losses == [] and torch.equal(first.weights, second.weights)
