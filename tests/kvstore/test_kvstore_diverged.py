"""A bit that flips in the memory of one server of a pair is found and named; where none flips, nothing is."""

import logging
import random
import time
from functools import partial

import pytest
import torch
from helpers.stores import each

from d2lps.kvstore import Diverged, cluster, codec
from d2lps.kvstore.replicas.coding import Held, digest
from d2lps.kvstore.replication import Replica, Schedule, World, broken
from d2lps.kvstore.replication.messages import Differ

SIZE = 3000
FOUND = 10.0  # seconds, on a machine that is busy, after which a difference that nobody has found is none


def flip(tensor: torch.Tensor) -> None:
    """A bit of one of its floats; of the lowest one steps to come may leave nothing."""
    tensor.view(torch.int32)[SIZE // 3] ^= 1 << 22


def flipped(servers, number: int, memory: bool) -> None:
    slot = servers.servers[number].replicas[0].store.slot
    with slot.lock:
        (held,) = [part.value for part in slot.core.parts]
        flip(held.memory["sgd"]["velocity"] if memory else held.value)


@pytest.mark.slow
@pytest.mark.fault("F16", "a float flipped in the memory of a primary, or of a backup")
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_flipped_bit_is_found_and_what_was_saved_mends_it(kind, number, memory, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(codec, "PIECE", 2000)  # which is not at its beginning, nor all of it
    caplog.set_level(logging.ERROR, "d2lps.kvstore.server")
    path, out = tmp_path / "saved", torch.empty(SIZE)
    with cluster(kind, 1, 2, replicas=1, placement={"large": 10_000}) as servers:
        (store,) = servers
        key = next(key for key in range(20) if servers.placement.parts(key, SIZE, 1)[0].server == 0)
        step = partial(store.pushpull, key, torch.ones(SIZE), out=out)
        store.init(key, torch.zeros(SIZE))
        store.set_optimizer("sgd", lr=0.1, momentum=0.9)
        step()
        store.save(path)
        right = out.clone()
        flipped(servers, number, memory)
        until = time.monotonic() + FOUND
        with pytest.raises(Diverged, match=f"servers 0 and 1 hold different bytes of {key} .slot 0.") as found:
            while time.monotonic() < until:
                step()
                time.sleep(0.02)
        assert (found.value.servers, found.value.keys) == ((0, 1), (key,))
        said = {record.getMessage() for record in caplog.records}
        assert said == {f"slot 0: servers 0 and 1 hold different bytes of key {key}"} and len(caplog.records) == 2
        with pytest.raises(Diverged):
            store.pull(key, out=out)
        with pytest.raises(Diverged):
            store.save(path)  # what was saved stays
        servers.kill(number)  # whoever is left knows it, too
        with pytest.raises(Diverged):
            store.pull(key, out=out)
        store.load(path)
        store.pull(key, out=out)
        assert torch.equal(out, right)
        step()


@pytest.mark.slow
def test_where_no_bit_flips_nothing_is_found(caplog, monkeypatch):
    """Also while optimizers and values change, what is saved is read, and a server is lost and replaced."""
    monkeypatch.setattr(codec, "PIECE", 500)
    found, compare = [], Replica._on_found
    monkeypatch.setattr(Replica, "_on_found", lambda *given: [found.append(given), compare(*given)])

    def work(store):
        store.init(["w", "v"], [torch.ones(SIZE), torch.ones(3)])
        out, rules = [torch.empty(SIZE), torch.empty(3)], ["adam", "sgd", "adagrad"]
        for round_ in range(60):
            if round_ % 20 == 0:
                store.set_optimizer(rules[round_ // 20], lr=0.1)
            if round_ == 30 and store.rank == 0:
                servers.kill(1), servers.restart(1)
            store.pushpull(["w", "v"], [torch.randn(SIZE), torch.randn(3)], out=out)
            time.sleep(0.01)
        return True

    with cluster("dist_sync", 2, 2, replicas=1, deadline=10, placement={"large": 2000}) as servers:
        assert each(servers, work) == [True, True]
    assert len(found) > 4 and caplog.records == []


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async", "dist_ssp"])
def test_whatever_goes_wrong_between_servers_they_do_not_differ(kind):
    """In virtual time: what is lost, doubled, late, crashed and cut off changes nothing on one of them alone."""
    differing, looked = [], []

    class Compared(Replica):
        def digest(self, value, at):
            looked.append(1)
            return hash(value), None

        def _command(self, command):
            differing.extend([command] if isinstance(command, Differ) else [])
            super()._command(command)

    for seed in range(60):
        assert broken(Schedule.drawn(seed, kind), replica=Compared) is None
    assert not differing and len(looked) > 300


def test_a_member_that_has_other_bytes_is_found_in_virtual_time():
    differing, draw = [], random.Random(5)

    class Flipping(Replica):
        spoilt = staticmethod(lambda part, value, members: value)

        def digest(self, value, at):
            return hash(value) + (self.name[1] == 1), None

        def _command(self, command):
            differing.extend([command.members] if isinstance(command, Differ) else [])
            super()._command(command)

    World(Schedule(draw.getrandbits(20), rounds=4, until=0.2), replica=Flipping).run()
    assert differing and {tuple(name[1] for name in members) for members in differing} == {(0, 1)}


def test_a_digest_covers_every_byte_and_every_number(monkeypatch):
    monkeypatch.setattr(codec, "PIECE", 64)

    def seen(held):
        found, at = [], 0
        while at is not None:
            number, at = digest(held, at)
            found.append(number)
        return found

    def made(steps=1):
        return Held(torch.ones(37), {"adam": {"first": torch.ones(37), "second": torch.ones(37), "steps": steps}})

    usual = seen(made())
    assert len(usual) == -(-3 * 37 * 4 // 64) and seen(made(2)) != usual
    for name, at in (("value", 0), ("value", 36), ("first", 20), ("second", 36)):
        held = made()
        (held.value if name == "value" else held.memory["adam"][name]).view(torch.uint8)[4 * at + 3] ^= 64
        assert sum(a != b for a, b in zip(seen(held), usual, strict=True)) == 1
    assert seen(None) == [0]
