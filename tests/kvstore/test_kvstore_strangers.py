"""Who may not come in, and what is not executed: strangers by the thousand, forged frames, hostile bytes."""

import ast
import io
import json
import os
import pickle
import random
import re
import resource
import socket
import struct
import threading
import time
import zipfile
import zlib
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import breaking
from helpers.breaking import DEADLINE, MIB, SECRET, Beside, Between, Frames, closing, connected, store, tables
from test_kvstore import each
from test_kvstore_wire import head, sent

import d2lps.kvstore.server.connected
import d2lps.kvstore.server.server
from d2lps.kvstore import KVError, Refused
from d2lps.kvstore.server.rounds import Table
from d2lps.kvstore.server.server import STRANGERS, Server
from d2lps.kvstore.wire import ENTRY, HEADER, MAGIC, Broken, Channel, Entry, Op, handshake
from d2lps.kvstore.worker.line import INCARNATION, Line
from d2lps.kvstore.worker.request import Request

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")
ROOT = Path(__file__).parents[2]
CONNECTIONS, ABREAST = 10_000, 2
HTTP = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
TLS = bytes.fromhex("16030100f8010000f40303") + bytes(240)


# ---------------------------------------------------------------- who comes and says nothing, or something else


@pytest.mark.fault("F11", "slow-loris, HTTP, noise, half a greeting, as many as there are places")
def test_strangers_are_sent_away_and_the_others_are_served():
    servers = tables(workers=1)
    mine = store(servers, 0, 1)
    mine.init("w", torch.zeros(3))
    for data in (HTTP, TLS, os.urandom(5000), head(op=Op.STATE), head(op=Op.HELLO, table=4000), b"d2kv"):
        with socket.create_connection(servers[0].address) as stranger, suppress(OSError):
            stranger.sendall(data)
    slow = [socket.create_connection(servers[0].address) for _ in range(3 * STRANGERS)]
    for one in slow:
        with suppress(OSError):
            one.sendall(b"d")
    mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
    assert out.tolist() == [1.0] * 3 and len(servers[0]._guests) <= STRANGERS
    until = time.monotonic() + 8
    while servers[0]._guests and time.monotonic() < until:
        time.sleep(0.1)
    assert servers[0]._guests == {}
    for one in slow:
        one.close()
    mine.close()
    servers[0].close()


class Crowd:
    """10 000 connections: half of them silent, the others drip, speak HTTP, TLS, noise, or half of a greeting.

    As many at once as files may be open here, and the others one after the other.
    """

    def __init__(self, address):
        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, CONNECTIONS + 2000), most))
        self.limit = soft, most
        self.address, self.chance = address, random.Random(1)
        self.most = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
        self.held, self.came, self.ended, self.lock = [], 0, threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self._come, args=(n,), daemon=True) for n in range(ABREAST)]
        for thread in (*self.threads, threading.Thread(target=self._drip, daemon=True)):
            thread.start()

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
                    one.send((b"d", HTTP, TLS, self.chance.randbytes(300), head(op=Op.HELLO, table=4000))[i // 2 % 5])

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


@pytest.mark.fault("F11", "10 000 connections: silent, a byte a second, HTTP, TLS, noise")
def test_ten_thousand_strangers_do_not_disturb_those_who_belong_here(recovery):
    def work(mine, crowd):
        mine.init("w", torch.zeros(10_000))
        out, seen, go_on = torch.empty(10_000), [], torch.ones(10_000)
        while len(seen) < 50 or go_on[0]:
            with recovery():
                mine.pushpull("w", torch.full((10_000,), 4.0**mine.rank), out=out)
            seen.append(out.unique().tolist())
            going = mine.rank and any(thread.is_alive() for thread in crowd.threads)  # what worker 1 sees is for both
            mine.pushpull("w", torch.full((10_000,), float(going)), out=go_on)
        return seen

    with Beside(secret=SECRET, handshake=1.0, deadline=10.0) as server:
        stores = [store([server], rank, secret=SECRET, deadline=10.0) for rank in range(2)]
        before = server("rss")
        with closing(*stores, Crowd(server.address)) as (*_, crowd):
            first, second = each(stores, work, crowd)
            assert first == second == [[5.0]] * len(first) and crowd.came == CONNECTIONS
            assert server("rss") - before < 64 * MIB
            until, here = time.monotonic() + 60, crowd.held
            while here and time.monotonic() < until:
                time.sleep(0.2)
                here = [one for one in here if not sent_away(one)]
            assert here == [], "strangers are still connected after the time of a handshake"
        assert server("ended") == []


def sent_away(one) -> bool:
    try:
        return not one.recv(1 << 16) or not one.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.fault("F11", "all places of strangers taken, again and again")
def test_a_worker_comes_in_although_strangers_hold_every_place(recovery):
    (server,) = tables(workers=1)
    ended = threading.Event()

    def silent():
        while not ended.is_set():
            with suppress(OSError), connected(server.address) as one:
                one.settimeout(0.5)
                while one.recv(1):
                    pass

    crowd = [threading.Thread(target=silent, daemon=True) for _ in range(2 * STRANGERS)]
    for thread in crowd:
        thread.start()
    time.sleep(0.5)
    try:
        with recovery(), closing(store([server], 0, 1)) as (mine,):
            mine.init("w", torch.zeros(3))
            mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3
    finally:
        ended.set()
        server.close()
        for thread in crowd:
            thread.join(5)


# ---------------------------------------------------------------- who says that it belongs here


class Recorder(Between):
    """Keeps what the worker says."""

    heard = b""

    def up(self, source, target):
        while data := source.recv(1 << 16):
            self.heard += data
            target.sendall(data)


@pytest.mark.fault("F11", "a worker's bytes played again, with and without a secret")
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_what_a_worker_said_is_refused_when_it_is_played_again(secret, made):
    (server,) = tables(workers=1, secret=secret)
    with closing(Recorder(server.address)) as (line,):
        mine = store([server], 0, 1, {0: line.here}, secret=secret)
        mine.init("w", torch.zeros(3))
        mine.pushpull("w", torch.ones(3))
        made.clear()
        with connected(server.address) as again:
            again.sendall(line.heard)
            answer = b"".join(iter(lambda: _some(again), b""))
        assert answer[5] == Op.CHALLENGE and len(answer) < 400, "more than a challenge came"
        assert made == [] and server.table.parts[0].rounds == [1]
        mine.pushpull("w", torch.full((3,), 4.0), out=(out := torch.empty(3)))
        assert out.tolist() == [4.0] * 3
        mine.close()
        server.close()


def _some(sock) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""


@pytest.fixture
def made(monkeypatch):
    """What a server makes for those who come: tensors, and an end for a worker."""

    class Torch:
        def __getattr__(self, name):
            if name in ("empty", "zeros", "tensor"):
                found.append(name)
            return getattr(torch, name)

    class Connected(d2lps.kvstore.server.connected.Connected):
        def __init__(self, *arguments):
            found.append("Connected")
            super().__init__(*arguments)

    found: list[str] = []
    monkeypatch.setattr(d2lps.kvstore.server.connected, "torch", Torch())
    monkeypatch.setattr(d2lps.kvstore.server.server, "Connected", Connected)
    return found


@pytest.mark.fault("F11", "wrong secret, no secret, another run, another rank, another role")
@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"secret": b"another secret of 32 bytes and so"}, "does not know the secret"),
        ({"secret": b""}, "does not know the secret"),
        ({"run": "another"}, "belongs to run 'another'"),
        ({"rank": 7}, "there is no worker 7"),
        ({"rank": -1}, "there is no worker -1"),
        ({"rank": True}, "there is no worker True"),
        ({"incarnation": 5}, "which incarnation"),
    ],
)
def test_who_does_not_belong_here_is_refused_before_anything_is_made(wrong, sentence, made, recovery):
    (server,) = tables(workers=2, secret=SECRET)
    right = {"rank": 1, "secret": SECRET, "run": "", "incarnation": "i"} | wrong
    with closing(server), recovery(), pytest.raises(Refused, match=sentence):
        Line(0, server.address, right.pop("rank"), deadline=DEADLINE, **right)
    assert made == [] and server.table.parts == []


@pytest.mark.fault("F11", "a server's proof given back as a worker's, no proof, a proof that is no text of ours")
@pytest.mark.parametrize(
    "proof",
    [
        lambda challenge: challenge["proof"],
        lambda challenge: "",
        lambda challenge: "é",
        lambda challenge: None,
        lambda challenge: ["a"],
    ],
)
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_proof_that_is_none_is_refused(proof, secret, made):
    (server,) = tables(secret=secret)
    with closing(Channel(connected(server.address), 2.0), server) as (channel, _):
        channel.send(Op.HELLO, said={"rank": 0, "run": "", "incarnation": "i", "nonce": "a" * 64})
        challenge = channel.receive().said
        channel.send(Op.PROOF, said={"proof": proof(challenge)})
        with pytest.raises(Broken):
            channel.receive()
    assert made == [] and server.table.parts == []


@pytest.mark.fault("F11", "somebody who pretends to be the server")
@pytest.mark.parametrize("proof", ["", "é", "0" * 64, None, 5])
def test_a_server_that_does_not_know_the_secret_is_refused(proof):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            with suppress(OSError, Broken):
                channel = Channel(listener.accept()[0], 2.0)
                channel.receive()
                channel.send(Op.CHALLENGE, said={"nonce": "a" * 64, "proof": proof})
                channel.receive()

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        with pytest.raises(Refused, match="the server does not know the secret"):
            Line(0, listener.getsockname(), 0, secret=SECRET, deadline=1.0)
        thread.join(5)


def forged(op, said=None, entries=(), payload=b"") -> bytes:
    """A frame by one who can write into a connection and knows no key: all sums are right, the code is not."""
    return sent(op, 77, entries, said, memoryview(payload), keys=(bytes(32), bytes(32)), whole=True)


FORGED = {
    "optimizer": forged(Op.OPTIMIZER, {"rule": "sgd", "numbers": {"lr": 666.0}}),
    "optimizer and bytes": forged(Op.OPTIMIZER, {"rule": "sgd", "numbers": {"lr": 666.0}}, payload=bytes(8)),
    "goodbye": forged(Op.BYE),
    "goodbye and bytes": forged(Op.BYE, payload=bytes(8)),
    "barrier and bytes": forged(Op.BARRIER, {"round": 3}, payload=bytes(8)),
    "push": forged(Op.PUSH, entries=[Entry(0, 0, 1, 3, 2)], payload=bytes(12)),
    "init": forged(Op.INIT, {"name": "x", "dtype": 0, "elements": 3}, payload=bytes(12)),
}


@pytest.mark.fault("F11", "frames put into a worker's connection by one who has no key")
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_frame_changes_nothing(what, monkeypatch):
    monkeypatch.setattr("d2lps.kvstore.server.server.loopback", lambda address: False)  # as between hosts: all is coded
    monkeypatch.setattr("d2lps.kvstore.worker.line.loopback", lambda address: False)
    (server,) = tables(workers=1, secret=SECRET)
    pushes = count(1)
    between = Frames(
        server.address,
        lambda op, frame: [FORGED[what], frame] if op == Op.PUSHPULL and next(pushes) == 2 else [frame],
        coded=True,
    )
    mine = store([server], 0, 1, {0: between.here}, secret=SECRET)
    with closing(between, mine, server):
        mine.init("w", torch.zeros(3))
        out = torch.empty(3)
        for value in (1.0, 4.0):  # the second one comes after the forged frame
            mine.pushpull("w", torch.full((3,), value), out=out)
            assert out.tolist() == [value] * 3
        assert server.table.updates is None and len(server.table.parts) == 1 and server.table.live == {0}
        assert 3 not in server.table._barriers


# ---------------------------------------------------------------- who may come in, and asks for too much


@pytest.mark.fault("F13", "a worker that sends a server's commands")
@pytest.mark.parametrize("op", [Op.HELLO, Op.CHALLENGE, Op.PROOF, Op.WELCOME, Op.OK, Op.DATA, Op.ERROR])
def test_a_worker_may_not_command_a_server(op):
    servers = tables(workers=1)
    mine = store(servers, 0, 1)
    mine.init("w", torch.zeros(3))
    with closing(mine, *servers):
        with pytest.raises(Refused, match=f"a worker may not ask a server for {op.name}"):
            mine.lines[0].wait(mine.lines[0].ask(Request(op)), time.monotonic() + 5)
        mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3


@pytest.mark.fault("F13", "an optimizer that is code")
@pytest.mark.parametrize("rule", ["os.system", "__import__('os').system", "__class__", "RULES", "torch.optim.SGD"])
def test_an_optimizer_is_a_name_that_is_known(rule):
    (server,) = tables(workers=1)
    with closing(store([server], 0, 1), server) as (mine, _):
        line = mine.lines[0]
        for said in ({"rule": rule, "numbers": {"lr": 1.0}}, {"rule": "sgd", "numbers": {"lr": 1.0, rule: 1.0}}):
            with pytest.raises(Refused, match="there is no optimizer|has no number"):
                line.wait(line.ask(Request(Op.OPTIMIZER, said=said)), time.monotonic() + 5)
        assert server.table.updates is None


@pytest.mark.fault("F11", "an address that others reach, without a secret")
def test_an_address_that_others_reach_needs_a_secret():
    with pytest.raises(Refused, match="a server at 0.0.0.0 can be reached from other hosts: put a secret"):
        Server(Table("dist_sync", 1), ("0.0.0.0", 0))
    with pytest.raises(Refused, match="is on another host: the secret of the run"):
        Line(0, ("192.0.2.1", 1), 0, deadline=0.2)


# ---------------------------------------------------------------- what is not executed


class Canary:
    def __init__(self, function, *arguments):
        self.asked = function, arguments

    def __reduce__(self):
        return self.asked


def hostile(canary: Path) -> dict[str, bytes]:
    """Bytes that make ``canary`` where somebody unpickles, loads, unpacks or evaluates them, or cost much to read."""
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


def texts(canary: Path) -> list:
    """What is said in each field that takes text or a number."""
    raw = hostile(canary)
    return [
        raw["code"].decode(),
        raw["shell"].decode(),
        raw["old pickle"].decode("latin-1"),
        raw["pickle"].decode("latin-1"),
        "\ud800",
        "\0",
        "é" * 64,
        "../../../etc/passwd",
        "%s%n{0.__class__}",
        10**4000,
        -1,
        2**63,
        2**64,
        1e308,
        float("nan"),
        float("inf"),
        True,
        None,
        [],
        {},
        ["a"],
        {"a": {}},
        nested(900),
    ]


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


def framed(op: int, table: bytes = b"", payload: bytes = b"", entries: int = 0) -> bytes:
    """A frame whose sums are right, with any bytes as its table and its payload."""
    found = HEADER.pack(MAGIC, 1, op, 0, entries, len(table), len(payload), 1, 0)[:-4]
    found += struct.pack("<I", zlib.crc32(found))
    if table:
        found += table + struct.pack("<I", zlib.crc32(table))
    return found + (payload + bytes(8) if payload else b"")


FIELDS = {
    Op.INIT: ("parts", "name", "dtype", "elements"),
    Op.OPTIMIZER: ("rule", "numbers", "lr", "rescale_grad"),
    Op.BARRIER: ("round",),
    Op.ROWS: ("part", "width", "round"),
    Op.READ: ("read",),
}
HELLO = {"rank": 1, "run": "", "incarnation": INCARNATION, "nonce": "a" * 64}
FORBIDDEN = (
    "pickle",
    "marshal",
    "exec",
    "compile",
    "code",
    "ctypes",
    "import",
    "os.",
    "subprocess",
    "shutil",
    "pty",
    "socket.connect",
    "socket.getaddrinfo",
    "open",
)
HARMLESS = re.compile(r"\('?/proc/\d+/fd/")  # memory that a worker lends


def attacks(canary):
    """(whether it comes after the handshake, its bytes)"""
    raw, said = hostile(canary), texts(canary)
    for data in raw.values():
        yield False, data
        for op in Op:
            yield False, framed(op, data[:4096])
        for field in ("rank", "run", "incarnation", "nonce", "memory"):
            yield False, framed(Op.HELLO, json.dumps(HELLO | {field: data[:2000].decode("latin-1")}).encode())
        for op in Op:
            yield True, framed(op, data)
            yield True, framed(op, ENTRY.pack(0, 6, 1, len(data), 1), data, 1)
            yield True, framed(op, b'{"dtype": 6, "parts": [["theirs", %d]]}' % len(data), data)
    for depth in range(950, 1000):  # more than can be written where it can just be read
        told = json.dumps(HELLO)[:-1].encode()
        yield False, framed(Op.HELLO, told + b', "x": ' + b"[" * depth + b"]" * depth + b"}")
    for value in said:
        for field in ("rank", "run", "incarnation", "nonce", "memory"):
            yield False, framed(Op.HELLO, json.dumps(HELLO | {field: value}).encode())
        for field in ("path", "inode", "nbytes"):
            memory = {"path": "/proc/1/fd/0", "inode": 1, "nbytes": 4096} | {field: value}
            yield False, framed(Op.HELLO, json.dumps(HELLO | {"memory": memory}).encode())
        for op in Op:
            for field in FIELDS.get(op, ("numbers",)):
                part = {"name": "theirs", "elements": 3} | {field: value}
                usual = {
                    "parts": [[part["name"], part["elements"]]],
                    "dtype": 0,
                    "rule": "sgd",
                    "part": 0,
                    "width": 1,
                    "round": 1,
                    "numbers": {"lr": 1.0, field: value},
                }
                yield True, framed(op, json.dumps(usual | {field: value}).encode())


@pytest.mark.fault("F12", "pickles, object arrays, bombs, deep and huge JSON in every op and field, at every port")
def test_nothing_that_a_peer_sends_is_executed(tmp_path):
    canary = tmp_path / "canary"
    addresses = [("127.0.0.1", 0), os.path.join(os.environ["TMPDIR"], "server")]
    with Beside("dist_async", 2, addresses, lost="drop", deadline=10.0, handshake=2.0) as server:
        for number, address in enumerate(server.addresses):
            server.address, server.number = address, 0
            with closing(store([server], 0, 2, kind="dist_async", deadline=10.0)) as (mine,):
                with closing(store([server], 1, 2, kind="dist_async", deadline=10.0)) as (other,):
                    each((mine, other), prepared)
                    other.lines[0]._open = False  # its place is the attacker's from here on
                    other.lines[0]._channel.close()
                    for _ in range(2):
                        mine.push("w", torch.ones(3))
                    server("heard")
                    for inside, data in attacks(canary):
                        attack(address, inside, data)
                    mine.push("w", torch.ones(3))
                heard, ends = server("heard"), server("ended")
                server("try")
            state = server("state")[number]
            assert state[0] == ([3.0] * 3, [3, 0]), "a push was lost, or another one counted"
            assert not canary.exists()
            assert [
                (event, what)
                for event, what in heard
                if event.startswith(FORBIDDEN) and not (event == "open" and HARMLESS.match(what))
            ] == []
            assert any(event == "compile" for event, _ in server("heard")), "the hook hears nothing"
            assert ends == [], "threads of the server ended unexpectedly"


def prepared(mine) -> None:
    mine.init("w", torch.zeros(3))
    mine.set_optimizer("sgd", lr=-1.0)


def attack(address, inside: bool, data: bytes) -> None:
    """As one who greets properly, or not at all, and then sends these bytes; until the server hangs up or answers."""
    with suppress(OSError, KVError), closing(Channel(connected(address), 0.2)) as (channel,):
        if inside:
            handshake.as_worker(channel, b"", {"rank": 1, "run": "", "incarnation": INCARNATION}, False)
        channel.sock.sendall(data)
        channel.sock.shutdown(socket.SHUT_WR)
        while channel.sock.recv(1 << 16):
            pass


# ---------------------------------------------------------------- what does not stand in the source


def calls(tree: ast.AST):
    """(dotted name, the call) of each call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def executes(source: str) -> list[str]:
    """What in this source could execute what it reads."""
    tree = ast.parse(source)
    barred = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
    found = [name for name in imported(tree) if name.split(".")[0] in barred or re.search("_object(_list)?$", name)]
    for name, call in calls(tree):
        last, options = name.split(".")[-1], {each.arg: ast.unparse(each.value) for each in call.keywords}
        wrong = name in ("eval", "exec", "builtins.eval", "builtins.exec", "__import__", "yaml.load")
        wrong |= bool(re.search("_object(_list)?$", last)) and last != "py_object"
        wrong |= name == "torch.load" and options.get("weights_only") != "True"
        wrong |= "allow_pickle" in options and options["allow_pickle"] != "False"
        wrong |= last in ("read_pickle", "unsafe_load")
        found += [name] * wrong
    return found


@pytest.mark.fault("F12", "the source: pickle, eval, exec, torch.load, np.load, object collectives")
@pytest.mark.parametrize("path", sorted((ROOT / "d2lps").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_the_package_executes_what_it_reads(path):
    assert executes(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import shelve as s",
        "eval(x)",
        "exec(x)",
        "import marshal.x",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "dist.broadcast_object_list(x)",
        "dist.all_gather_object(a, b)",
        "from torch.distributed import scatter_object_list",
        "yaml.load(x)",
    ],
)
def test_that_would_be_noticed(source):
    assert executes(source)


@pytest.mark.fault("F15", "the source: clocks that jump")
@pytest.mark.parametrize("folder", ["kvstore", "carriers"])
def test_deadlines_are_kept_on_the_monotonic_clock(folder):
    for path in sorted((ROOT / "d2lps" / folder).glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        names = {*imported(tree)} | {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert [name for name in names if re.search(r"^time\.time|\.(utc)?now$", name)] == [], path
