"""Unauthenticated peers of a store and their bytes: silent crowds, noise, and bytes that are meant to be executed.

``instead_of_a_greeting(…)`` and ``after_a_greeting(…)`` are the bytes of an attacker who knows the protocol;
``attack(…)`` sends them.
"""

import io
import json
import os
import pickle
import random
import resource
import socket
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import d2lps.kvstore.server.server
import d2lps.kvstore.server.session
from d2lps.kvstore import KVError
from d2lps.kvstore.wire import ENTRY, HEADER, MAGIC, Channel, Op, handshake
from d2lps.kvstore.worker.client import INCARNATION
from helpers.breaking import MIB, SECRET, Between, closing, connected

HTTP = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
TLS = bytes.fromhex("16030100f8010000f40303") + bytes(240)  # the beginning of its handshake
CONNECTIONS = 1000 if "D2LPS_EXAMPLES" not in os.environ else 10_000  # of a crowd: all of them for the table of faults
ABREAST = 2  # threads in which it comes
ME = {"rank": 1, "run": "", "incarnation": INCARNATION}  # what worker 1 says of itself
HELLO = ME | {"nonce": "a" * 64}


def framed(op: int, table: bytes = b"", payload: bytes = b"", entries: int = 0) -> bytes:
    """Return a frame whose header and table have the right sums, with any bytes as its table and its payload."""
    frame = HEADER.pack(MAGIC, 1, op, 0, entries, len(table), len(payload), 1, 0)[:-4]
    frame += struct.pack("<I", zlib.crc32(frame))
    if table:
        frame += table + struct.pack("<I", zlib.crc32(table))
    return frame + (payload + bytes(8) if payload else b"")


def in_json(op: int, said: dict) -> bytes:
    """Return a frame with ``said`` as its table."""
    return framed(op, json.dumps(said).encode())


# ---------------------------------------------------------------- unauthenticated peers


class Crowd:
    """Many connections: half of them silent, the others drip, speak HTTP, TLS, noise, or half of a greeting.

    As many at once as files may be open here, and the others one after the other. ``half``: half of a greeting.
    """

    def __init__(self, address, half: bytes):
        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, CONNECTIONS + 2000), most))
        self.limit = soft, most
        self.address, self.half, self.chance = address, half, random.Random(1)
        self.most = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
        self.held, self.came, self.ended, self.lock = [], 0, threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self._come, args=(n,), daemon=True) for n in range(ABREAST)]
        for thread in (*self.threads, threading.Thread(target=self._drip, daemon=True)):
            thread.start()

    @property
    def coming(self) -> bool:
        """Return whether some have not connected yet."""
        return any(thread.is_alive() for thread in self.threads)

    def _come(self, n):
        for i in range(n, CONNECTIONS, ABREAST):
            if self.ended.wait(0.0005):  # or the kernel puts them off for a second, and they are no crowd any more
                return
            with suppress(OSError):
                one = connected(self.address)
                one.setblocking(False)
                with self.lock:
                    self.came += 1
                    self.held.append(one)
                    over = self.held.pop(0) if len(self.held) > self.most else None
                if over:
                    over.close()
                if i % 2:
                    one.send((b"d", HTTP, TLS, self.chance.randbytes(300), self.half)[i // 2 % 5])

    def _drip(self):
        while not self.ended.wait(1.0):
            for one in list(self.held):
                with suppress(OSError):
                    one.send(b"d")

    def close(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(20)
        for one in self.held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)


def is_sent_away(one) -> bool:
    """Return whether the server has hung up on this connection, without waiting."""
    try:
        return not one.recv(1 << 16) or not one.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


def until_hung_up(one, data: bytes) -> None:
    """Send ``data``, and listen until the server hangs up."""
    with suppress(OSError):
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        while one.recv(1 << 16):
            pass


def is_served(mine) -> bool:
    """Return whether a single worker pulls what it pushes to its key "w"."""
    mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
    return out.tolist() == [1.0] * 3


class Recorder(Between):
    """A proxy that keeps the bytes that worker and server send to each other."""

    def __init__(self, address):
        self.from_worker, self.from_server = bytearray(), bytearray()
        super().__init__(address)

    def up(self, source, target):
        self._keep(self.from_worker, source, target)

    def down(self, source, target):
        self._keep(self.from_server, source, target)

    def _keep(self, record, source, target):
        while data := source.recv(1 << 16):
            record += data
            target.sendall(data)


@pytest.fixture
def made(monkeypatch):
    """Record the names of what a server makes for a connection: tensors, and the session of a worker."""
    names: list[str] = []

    class Torch:
        def __getattr__(self, name):
            if name in ("empty", "zeros", "tensor"):
                names.append(name)
            return getattr(torch, name)

    class WorkerSession(d2lps.kvstore.server.session.WorkerSession):
        def __init__(self, *arguments):
            names.append("WorkerSession")
            super().__init__(*arguments)

    monkeypatch.setattr(d2lps.kvstore.server.session, "torch", Torch())
    monkeypatch.setattr(d2lps.kvstore.server.server, "WorkerSession", WorkerSession)
    return names


# ---------------------------------------------------------------- malicious or costly input


class Canary:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(canary: Path) -> dict[str, bytes]:
    """Return bytes that make ``canary`` when they are unpickled, loaded or evaluated, or that cost much to read."""
    touch = f"open({str(canary)!r}, 'w').close()"
    array, bomb = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Canary(exec, touch)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100 * MIB))
    return {
        "pickle": pickle.dumps(Canary(os.system, f"touch {canary}")),
        "old pickle": pickle.dumps(Canary(os.system, f"touch {canary}"), 0),
        "like cloudpickle": pickle.dumps(Canary(eval, f"(lambda: {touch})()")),
        "array of objects": array.getvalue(),
        "zip bomb": bomb.getvalue(),
        "gzip bomb": zlib.compress(bytes(100 * MIB), 9),
        "deep JSON": b"[" * 1000,
        "deeper JSON": b'{"rank":' * 600,
        "deep and closed JSON": b"[" * 994 + b"]" * 994,
        "huge number": b'{"rank": ' + b"9" * 4000 + b"}",
        "huge power": b'{"rank": 1e999999, "round": -1e999999, "nonce": NaN}',
        "code": touch.encode(),
        "shell": f"$(touch {canary}); `touch {canary}` | touch {canary}".encode(),
    }


def values_for_a_field(canary: Path) -> list:
    """Return values to put into each field that takes text or a number."""
    data = hostile(canary)
    nested: list = []
    for _ in range(900):
        nested = [nested]
    texts = [data["code"].decode(), data["shell"].decode(), data["old pickle"].decode("latin-1")]
    texts += [data["pickle"].decode("latin-1"), "\ud800", "\0", "é" * 64, "../../../etc/passwd", "%s%n{0.__class__}"]
    numbers = [10**4000, -1, 2**63, 2**64, 1e308, float("nan"), float("inf")]
    return [*texts, *numbers, True, None, [], {}, ["a"], {"a": {}}, nested]


FIELDS_OF_A_GREETING = "rank", "run", "incarnation", "nonce", "memory"
FIELDS = {
    Op.INIT: ("parts", "name", "dtype", "elements"),
    Op.OPTIMIZER: ("rule", "numbers", "lr", "rescale_grad"),
    Op.BARRIER: ("round",),
    Op.ROWS: ("part", "width", "round"),
    Op.READ: ("read",),
}


def instead_of_a_greeting(canary: Path) -> Iterator[bytes]:
    """Yield hostile bytes bare, as the table of each op, and in each field of a greeting; JSON of critical depths."""
    for data in hostile(canary).values():
        yield data
        for op in Op:
            yield framed(op, data[:4096])
        for field in FIELDS_OF_A_GREETING:
            yield in_json(Op.HELLO, HELLO | {field: data[:2000].decode("latin-1")})
    for depth in range(950, 1000):  # more than can be written where it can just be read
        yield framed(Op.HELLO, json.dumps(HELLO)[:-1].encode() + b', "x": ' + b"[" * depth + b"]" * depth + b"}")
    for value in values_for_a_field(canary):
        for field in FIELDS_OF_A_GREETING:
            yield in_json(Op.HELLO, HELLO | {field: value})
        for field in ("path", "inode", "nbytes"):
            memory = {"path": "/proc/1/fd/0", "inode": 1, "nbytes": 4096} | {field: value}
            yield in_json(Op.HELLO, HELLO | {"memory": memory})


def after_a_greeting(canary: Path) -> Iterator[bytes]:
    """Yield hostile bytes as the table and the payload of each op, and in each of its fields."""
    for data in hostile(canary).values():
        for op in Op:
            yield framed(op, data)
            yield framed(op, ENTRY.pack(0, 6, 1, len(data), 1), data, 1)
            yield framed(op, b'{"dtype": 6, "parts": [["theirs", %d]]}' % len(data), data)
    for value in values_for_a_field(canary):
        for op in Op:
            for field in FIELDS.get(op, ("numbers",)):
                part = {"name": "theirs", "elements": 3} | {field: value}
                usual = {"parts": [[part["name"], part["elements"]]], "dtype": 0, "rule": "sgd"}
                usual |= {"part": 0, "width": 1, "round": 1, "numbers": {"lr": 1.0, field: value}}
                yield in_json(op, usual | {field: value})


def attack(address, data: bytes, greets: bool) -> None:
    """Connect, greet properly or not at all, and send these bytes until the server hangs up or answers."""
    with suppress(OSError, KVError), closing(Channel(connected(address), 0.2)) as (channel,):
        if greets:
            handshake.as_worker(channel, b"" if isinstance(address, str) else SECRET, ME, False)
        until_hung_up(channel.sock, data)
