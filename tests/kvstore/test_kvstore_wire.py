"""Frames: sent ones arrive, wrong ones are refused before any allocation, thousands of nonsense too."""

import os
import random
import struct
import threading
import zlib

import pytest
import torch
from helpers.frames import ends, head, received, sent
from helpers.waits import LIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire import DTYPES, TABLE, Broken, Entry, Op, handshake, raw
from d2lps.kvstore.wire.frames import Checksum

KEYS = (b"k" * 32, b"k" * 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [0, 1, 7, 1000, 1_300_003])
@pytest.mark.parametrize("keys, whole", [(None, False), (KEYS, False), (KEYS, True)])
def test_what_is_sent_arrives(dtype, elements, keys, whole):
    value = torch.randint(0, 100, (elements,)).to(dtype)
    entry = Entry(3, DTYPES.index(dtype), 1, elements, 2**40)
    frame, payload = received(sent(Op.PUSH, 77, [entry], payload=raw(value), keys=keys, whole=whole), keys, whole)
    assert (frame.op, frame.number, frame.entries) == (Op.PUSH, 77, [entry])
    assert payload == bytes(raw(value))


def test_sent_frames_arrive():
    said = {"name": "trọng số 权重", "numbers": {"lr": 0.1}}
    frame, _ = received(sent(Op.OPTIMIZER, 1, metadata=said))
    assert frame.metadata == said and frame.payload == 0


@pytest.mark.parametrize(
    "data, sentence",
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n", "the data is not a frame of a d2lps store"),
        (head(version=9), "uses version 9"),
        (head(op=99), "a frame of op 99"),
        (head(table=TABLE + 1), "is not accepted"),
        (head(payload=1 << 40), "is not accepted"),
        (head(entries=5, table=24), "is not accepted"),
        (head(entries=1, table=48) + b"\0" * 52, "changed on its way"),
        (head(table=2) + b"[]" + struct.pack("<I", zlib.crc32(b"[]")), "not a JSON object"),
        (head(table=2) + b"\xff\xff" + struct.pack("<I", zlib.crc32(b"\xff\xff")), "not JSON"),
        (head(table=100_000) + b"[" * 100_000 + struct.pack("<I", zlib.crc32(b"[" * 100_000)), "not JSON"),
        (head()[:20], "in the middle of a frame"),
        (b"", "the connection was closed|in the middle"),
    ],
)
def test_what_is_no_frame_is_broken(data, sentence):
    with pytest.raises(Broken, match=sentence):
        received(data)


@pytest.mark.fault("F7", "every bit of a frame flipped")
@pytest.mark.parametrize("keys, whole", [(None, False), ((b"k" * 32, b"k" * 32), True)])
def test_every_flipped_bit_is_noticed(keys, whole):
    value = torch.arange(50, dtype=torch.float32)
    right = sent(Op.PUSH, 5, [Entry(1, 0, 1, 50, 1)], payload=raw(value), keys=keys, whole=whole)
    for place in range(0, 8 * len(right), 7):
        wrong = bytearray(right)
        wrong[place // 8] ^= 1 << place % 8
        with pytest.raises(Broken):
            received(bytes(wrong), keys, whole)


@pytest.mark.fault("F7", "every frame cut off anywhere")
def test_every_shortened_frame_is_noticed():
    right = sent(Op.PUSH, 5, [Entry(1, 0, 1, 50, 1)], payload=raw(torch.ones(50)))
    for length in range(0, len(right), 5):
        with pytest.raises(Broken):
            received(right[:length])


def test_a_frame_that_is_played_again_is_noticed():
    keys = (b"k" * 32, b"k" * 32)
    once = sent(Op.BARRIER, 5, metadata={"round": 1}, keys=keys)
    one, other = ends()
    one.keys = keys
    other.sock.sendall(once + once)
    assert one.receive().metadata == {"round": 1}
    with pytest.raises(Broken, match="code of a frame is wrong"):
        one.receive()


def test_blocks_that_change_places_are_noticed():
    a, b = memoryview(os.urandom(64)), memoryview(os.urandom(64))
    one, other = Checksum(), Checksum()
    for words, order in ((one, (a, b)), (other, (b, a))):
        for block in order:
            words.add(block)
    assert one.sum != other.sum


EXAMPLES = int(os.environ.get("D2LPS_EXAMPLES", "40"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.binary(max_size=200))
@pytest.mark.fault("F7", "thousands of frames of nonsense")
def test_frames_of_nonsense_are_broken_or_harmless(seed, noise):
    """50 frames for each example: changed, cut, lengthened or made up; a right one comes out only where it was sent."""
    chance = random.Random(seed)
    for _ in range(50):
        value = torch.ones(chance.choice([0, 1, 9]))
        right = sent(
            chance.choice(list(Op)),
            chance.getrandbits(64),
            [Entry(chance.getrandbits(32), 0, 1, 9, 1)],
            payload=raw(value),
        )
        wrong = bytearray(right)
        for _ in range(chance.randint(1, 4)):
            kind, place = chance.randint(0, 3), chance.randrange(len(wrong)) if wrong else 0
            if kind == 0 and wrong:
                wrong[place] = chance.getrandbits(8)
            elif kind == 1:
                del wrong[place:]
            elif kind == 2:
                wrong[place:place] = noise
            else:
                lengths = {name: chance.getrandbits(bits) for name, bits in (("op", 8), ("entries", 8), ("table", 10))}
                wrong = bytearray(head(payload=chance.getrandbits(40), **lengths)) + noise
        try:
            frame, payload = received(bytes(wrong))
        except Broken:
            continue
        assert payload is None or bytes(wrong).startswith(right) or len(payload) == frame.payload


# ---------------------------------------------------------------- who is there


def welcome(hello):
    return {"kind": "dist_sync"}


def full(hello):
    raise Refused("there is a worker 0 already")


def meet(server_secret, worker_secret, hello=None, admit=welcome):
    """(what the server's end came to, what the worker's end came to)"""
    one, other = ends()
    found = []

    def serve():
        try:
            found.append(handshake.as_server(one, server_secret, admit, True))
        except (Broken, Refused) as error:
            found.append(error)
            one.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        hello = hello or {"rank": 0, "run": "r", "incarnation": "i"}
        worker = handshake.as_worker(other, worker_secret, hello, True)
    except (Broken, Refused) as error:
        worker = error
        other.close()
    server.join(LIVE)
    return found[0], worker, one, other


def test_both_ends_prove_that_they_know_the_secret():
    hello, welcome, one, other = meet(b"s" * 32, b"s" * 32)
    assert (hello["rank"], welcome) == (0, {"kind": "dist_sync"})
    other.send(Op.PUSH, 1, [Entry(0, 0, 1, 4, 1)], payload=raw(torch.ones(4)))
    room = torch.empty(4)
    one.into(one.receive(), raw(room))
    assert room.tolist() == [1] * 4


@pytest.mark.parametrize("server, worker", [(b"s" * 32, b"t" * 32), (b"s" * 32, b""), (b"", b"t" * 32)])
def test_another_secret_is_sent_away(server, worker):
    found, error, _, _ = meet(server, worker)
    assert isinstance(found, Broken) and isinstance(error, Refused) and "secret" in str(error)


def test_a_refused_peer_gets_the_reason():
    found, error, _, _ = meet(b"", b"", admit=full)
    assert isinstance(found, Refused) and str(error) == "there is a worker 0 already"


def test_nothing_large_is_taken_from_an_unauthenticated_peer():
    one, other = ends()
    other.sock.sendall(head(op=Op.HELLO, table=5000))
    with pytest.raises(Broken, match="is not accepted"):
        handshake.as_server(one, b"", welcome, False)


def test_a_secret_that_others_can_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv(handshake.VARIABLE, raising=False)
    monkeypatch.delenv(handshake.FILE, raising=False)
    assert handshake.read_secret() is None
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    monkeypatch.setenv(handshake.FILE, str(file))
    file.chmod(0o644)
    with pytest.raises(Refused, match="others can read the secret in .*: chmod 600"):
        handshake.read_secret()
    file.chmod(0o600)
    assert handshake.read_secret() == b"0123456789abcdef"
    monkeypatch.setitem(os.environb, handshake.VARIABLE.encode(), secret := bytes(range(200, 240)))
    assert handshake.read_secret() == secret  # of any bytes
    monkeypatch.delenv(handshake.VARIABLE)
    file.write_text("short")
    with pytest.raises(Refused, match="the secret has 5 bytes, not 16 or more"):
        handshake.read_secret()
    monkeypatch.setenv(handshake.FILE, str(tmp_path / "none"))
    with pytest.raises(Refused, match="cannot be read"):
        handshake.read_secret()
