"""Each guard of the store is taken away in turn, and a check must notice: so the checks are worth what they say."""

from itertools import permutations

import pytest
import test_kvstore_rounds as rounds_
import test_kvstore_strangers as strangers
import test_kvstore_wire as wire_
import torch
from helpers import breaking
from helpers.breaking import Frames, closing, mutate, store, tables
from test_kvstore import each

from d2lps.kvstore import wire
from d2lps.kvstore.server.rounds import ShardStore
from d2lps.kvstore.wire import Channel, Op, handshake
from d2lps.kvstore.wire.frames import Checksum

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")
KEYS = (b"k" * 32, b"k" * 32)


def frames_twice():
    """Every frame twice, asynchronously: a push that counts twice cannot be missed."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.set_optimizer("sgd", lr=-1.0)
        for _ in range(3):
            mine.push("w", torch.full((3,), 4.0**mine.rank))
        mine.barrier()
        mine.pull("w", out=(out := torch.empty(3)))
        return out.tolist()

    (server,) = tables("dist_async")
    between = [Frames(server.address, lambda op, frame: [frame] * (2 if op == Op.PUSH else 1)) for _ in range(2)]
    stores = [store([server], rank, addresses={0: between[rank].here}, kind="dist_async") for rank in range(2)]
    with closing(*stores, server, *between):
        assert each(stores, work) == [[15.0] * 3] * 2


def sum_flipped():
    """A payload of which one bit is another, and nothing else."""
    right = bytearray(wire_.sent(Op.PUSH, 5, [wire.Entry(1, 0, 1, 50, 1)], payload=wire.raw(torch.ones(50))))
    right[-100] ^= 1
    with pytest.raises(wire.Broken):
        wire_.received(bytes(right))


def forged():
    """A frame with another key's code, its sums right."""
    with pytest.raises(wire.Broken):
        wire_.received(strangers.forged(Op.BARRIER, {"round": 1}), KEYS, True)


def in_order():
    """Large numbers that cancel leave what was added after them: another order, another sum."""
    values = [torch.tensor([1e8, 1.0, -1e8, 0.1]).roll(rank) for rank in range(4)]
    for order in permutations(range(4)):
        held = rounds_.table(workers=4)
        for rank in order:
            rounds_.push(held, rank, 1, values[rank].clone())
        assert rounds_.pull(held, 0, 1).value.equal(((values[0] + values[1]) + values[2]) + values[3])


def another_secret():
    found, _, *ends = wire_.meet(b"s" * 32, b"t" * 32)
    with closing(*ends):
        assert isinstance(found, wire.Broken)


MUTANTS = {
    "a push counts as often as it comes": (
        frames_twice,
        [
            (ShardStore, "push", [("if round_ <= shard.rounds[rank]:\n", "if False:\n")]),
            (
                ShardStore,
                "admit",
                [
                    ("if round_ <= shard.rounds[rank]:\n", "if False:\n"),
                    ("if round_ > shard.rounds[rank] + 1:\n", "if False:\n"),
                ],
            ),
        ],
    ),
    "a push does not wait for the round before": (
        rounds_.test_a_second_push_waits_for_its_round_and_says_whose_is_missing,
        [(ShardStore, "admit", [('if self.kind == "dist_sync" and shard.version < round_ - 1:\n', "if False:\n")])],
    ),
    "a header's CRC is not looked at": (
        lambda: wire_.test_every_flipped_bit_is_noticed(None, False),
        [(Channel, "receive", [("or zlib.crc32(head[:-4]) != check", "")])],
    ),
    "a table's CRC is not looked at": (
        lambda: wire_.test_every_flipped_bit_is_noticed(None, False),
        [(Channel, "receive", [('zlib.crc32(table[:-4]) != int.from_bytes(table[-4:], "little")', "False")])],
    ),
    "a payload's sum is not looked at": (sum_flipped, [(Channel, "into", [("tail != checksum.digest()", "False")])]),
    "a payload's sum does not know places": (
        wire_.test_blocks_that_change_places_are_noticed,
        [(Checksum, "add", [("self.sum * 31", "self.sum")])],
    ),
    "a code is not looked at": (
        forged,
        [(Channel, "_verify", [("not hmac.compare_digest(code.digest(), bytes(received))", "False")])],
    ),
    "a code does not count frames": (
        wire_.test_a_frame_that_is_played_again_is_noticed,
        [(Channel, "_code", [('number.to_bytes(8, "little")', 'b""')])],
    ),
    "the order of the ranks does not count": (
        in_order,
        [
            (
                ShardStore,
                "_merge",
                [("range(self.workers)", "[*shard.arrived, *({*range(self.workers)} - {*shard.arrived})]")],
            )
        ],
    ),
    "a proof can be made without the secret": (
        another_secret,
        [(handshake, "_proof", [("hmac.new(secret,", 'hmac.new(b"",')])],
    ),
}


@pytest.mark.fault("O", "a guard taken away: dedupe, order, waiting, CRC, sum, code, proof")
@pytest.mark.parametrize("what", MUTANTS)
def test_a_check_notices_that_a_guard_is_gone(what, monkeypatch):
    check, changes = MUTANTS[what]
    check()
    for owner, name, pairs in changes:
        mutate(monkeypatch, owner, name, *pairs)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
