"""Unauthenticated peers are sent away, forged frames change nothing, and hostile bytes are never executed."""

import os
import re
import socket
import stat
import threading
import time
from contextlib import suppress
from itertools import count, islice

import pytest
import torch
from helpers import breaking, unauthenticated
from helpers.breaking import DEADLINE, MIB, SECRET, Beside, Frames, closing, connected, store, tables
from helpers.frames import head, sent
from helpers.stores import aside, each, soon
from helpers.unauthenticated import (
    CONNECTIONS,
    HTTP,
    TLS,
    Crowd,
    Recorder,
    after_a_greeting,
    attack,
    framed,
    instead_of_a_greeting,
    is_served,
    until_hung_up,
)
from helpers.waits import LIVE

from d2lps.kvstore import Refused, cluster
from d2lps.kvstore.server.server import UNAUTHENTICATED, Server
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import Broken, Channel, Entry, Op, handshake
from d2lps.kvstore.worker.client import Request, ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
made = unauthenticated.made
pytestmark = pytest.mark.usefixtures("nothing_left")
HALF_A_GREETING = head(op=Op.HELLO, table=4000)


# ---------------------------------------------------------------- peers that send nothing, or something else


@pytest.mark.fault("F11", "slow-loris, HTTP, noise, half a greeting, as many as there are places")
def test_unauthenticated_peers_are_sent_away_and_the_others_are_served(made, monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS", 1.0)
    (server,) = tables(workers=1)
    halves = [b"d", b""]
    with closing(server, store([server], 0, 1)) as (_, mine):
        mine.init("w", torch.zeros(3))
        made.clear()
        noise = [HTTP, TLS, os.urandom(5000), b"d2kv", b"\x16\x03\x01\xff\xff" + bytes(1 << 16)]
        for data in (
            *noise,
            framed(Op.STATE, b"{}"),
            framed(Op.HELLO, b"[" * 4000),
            head(op=Op.STATE),
            HALF_A_GREETING,
        ):
            with connected(server.address) as peer:
                until_hung_up(peer, data)
        slow = [connected(server.address) for _ in range(3 * UNAUTHENTICATED)]
        for number, one in enumerate(slow):
            with suppress(OSError):
                one.sendall(halves[number % len(halves)])
        assert made == [] and is_served(mine) and len(server._unauthenticated) <= UNAUTHENTICATED
        soon(lambda: not server._unauthenticated)
        for one in slow:
            one.close()


@pytest.mark.fault("F11", "10 000 connections: silent, a byte a second, HTTP, TLS, noise")  # here a tenth of them
def test_workers_are_not_disturbed_by_a_crowd_of_unauthenticated_peers(recovery):
    def work(mine, crowd):
        mine.init("w", torch.zeros(10_000))
        out, seen, go_on = torch.empty(10_000), [], torch.ones(10_000)
        while len(seen) < 50 or go_on[0]:
            with recovery():
                mine.pushpull("w", torch.full((10_000,), 4.0**mine.rank), out=out)
            seen.append(out.unique().tolist())
            going = mine.rank and crowd.coming  # what worker 1 sees is for both
            mine.pushpull("w", torch.full((10_000,), float(going)), out=go_on)
        return seen

    with Beside(secret=SECRET, handshake=1.0, deadline=10.0) as server:
        stores = [store([server], rank, secret=SECRET, deadline=10.0) for rank in range(2)]
        before = server("rss")
        with closing(*stores, Crowd(server.address, HALF_A_GREETING)) as (*_, crowd):
            first, second = each(stores, work, crowd)
            assert first == second == [[5.0]] * len(first) and crowd.came == CONNECTIONS
            assert server("rss") - before < 64 * MIB
            soon(lambda: all(map(unauthenticated.is_sent_away, crowd.held)))  # after the time of a handshake
        assert server("ended") == []


@pytest.mark.fault("F11", "all places of unauthenticated peers taken, again and again")
def test_worker_comes_in_although_unauthenticated_peers_hold_every_place(recovery):
    (server,) = tables(workers=1)
    ended = threading.Event()

    def silent():
        while not ended.is_set():
            with suppress(OSError), connected(server.address) as one:
                one.settimeout(0.5)
                while one.recv(1):
                    pass

    crowd = [aside(silent)[0] for _ in range(2 * UNAUTHENTICATED)]
    time.sleep(0.5)
    try:
        with recovery(), closing(store([server], 0, 1)) as (mine,):
            mine.init("w", torch.zeros(3))
            assert is_served(mine)
    finally:
        ended.set()
        server.close()
        for thread in crowd:
            thread.join(LIVE)


# ---------------------------------------------------------------- peers that pretend to be workers or servers


@pytest.mark.fault("F11", "a worker's bytes played again, with and without a secret")
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_replayed_messages_are_refused(secret, made):
    (server,) = tables(workers=1, secret=secret)
    with closing(Recorder(server.address)) as (line,):
        mine = store([server], 0, 1, {0: line.here}, secret=secret)
        mine.init("w", torch.zeros(3))
        mine.pushpull("w", torch.ones(3))
        made.clear()
        with connected(server.address) as again:
            again.sendall(bytes(line.from_worker))
            answer = b"".join(iter(lambda: _some(again), b""))
        assert answer[5] == Op.CHALLENGE and len(answer) < 400, "more than a challenge came"
        assert made == [] and server.store.shards[0].rounds == [1]
        mine.pushpull("w", torch.full((3,), 4.0), out=(out := torch.empty(3)))
        assert out.tolist() == [4.0] * 3
        mine.close()
        server.close()


def _some(sock) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""


@pytest.mark.fault("F11", "wrong secret, no secret, another run, another rank, another role")
@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"secret": b"another secret of 32 bytes and so"}, "does not know the secret"),
        ({"secret": b""}, "does not know the secret|may be another user's"),
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
        ServerClient(0, server.address, right.pop("rank"), deadline=DEADLINE, **right)
    assert made == [] and server.store.shards == []


@pytest.mark.fault("F11", "a server's proof given back as a worker's, no proof, a proof that is no text of ours")
@pytest.mark.parametrize("proof", ["the server's", "", "é", None, ["a"]])
def test_a_proof_that_is_none_is_refused(proof, made):
    (server,) = tables(secret=SECRET)
    with closing(Channel(connected(server.address), 2.0), server) as (channel, _):
        channel.send(Op.HELLO, metadata={"rank": 0, "run": "", "incarnation": "i", "nonce": "a" * 64})
        challenge = channel.receive().metadata
        channel.send(Op.PROOF, metadata={"proof": challenge["proof"] if proof == "the server's" else proof})
        with pytest.raises(Broken):
            channel.receive()
    assert made == [] and server.store.shards == []


@pytest.mark.fault("F11", "another program that pretends to be the server")
@pytest.mark.parametrize("proof", ["", "é", "0" * 64, None, 5])
def test_a_server_that_does_not_know_the_secret_is_refused(proof):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            with suppress(OSError, Broken):
                channel = Channel(listener.accept()[0], 2.0)
                channel.receive()
                channel.send(Op.CHALLENGE, metadata={"nonce": "a" * 64, "proof": proof})
                channel.receive()

        thread, _ = aside(pretend)
        with pytest.raises(Refused, match="the server does not know the secret"):
            ServerClient(0, listener.getsockname(), 0, secret=SECRET, deadline=1.0)
        thread.join(LIVE)


def forged(op, metadata=None, entries=(), payload=b"") -> bytes:
    """Return a frame by an attacker who can write into a connection but has no key: only the code is wrong."""
    return sent(op, 77, entries, metadata, memoryview(payload), keys=(bytes(32), bytes(32)), whole=True)


FORGED = {
    "optimizer": forged(Op.OPTIMIZER, {"rule": "sgd", "numbers": {"lr": 666.0}}),
    "goodbye": forged(Op.BYE),
    "barrier and bytes": forged(Op.BARRIER, {"round": 3}, payload=bytes(8)),
    "push": forged(Op.PUSH, entries=[Entry(0, 0, 0, 3, 2)], payload=bytes(12)),
}


@pytest.mark.fault("F11", "frames put into a worker's connection by one who has no key")
@pytest.mark.alone  # a worker that is cut off has a second to connect again
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_frame_changes_nothing(what, monkeypatch):
    monkeypatch.setattr("d2lps.kvstore.server.server.loopback", lambda address: False)  # as between hosts: all is coded
    monkeypatch.setattr("d2lps.kvstore.wire.handshake.loopback", lambda address: False)
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
        assert server.store.updates is None and len(server.store.shards) == 1 and server.store.live == {0}
        assert not server.store.slot.core.met("", 3)


# ---------------------------------------------------------------- workers that ask for too much


@pytest.mark.fault("F13", "a worker that sends a server's commands")
@pytest.mark.parametrize("op", [Op.HELLO, Op.CHALLENGE, Op.PROOF, Op.WELCOME, Op.OK, Op.DATA, Op.ERROR])
def test_a_worker_may_not_command_a_server(op):
    servers = tables(workers=1)
    mine = store(servers, 0, 1)
    mine.init("w", torch.zeros(3))
    with closing(mine, *servers):
        with pytest.raises(Refused, match=f"a worker may not ask a server for {op.name}"):
            mine.clients[0].wait(mine.clients[0].ask(Request(op)), time.monotonic() + 5)
        assert is_served(mine)


@pytest.mark.fault("F13", "an optimizer that is code")
@pytest.mark.parametrize("rule", ["os.system", "__import__('os').system", "__class__", "RULES", "torch.optim.SGD"])
def test_an_optimizer_is_a_name_that_is_known(rule):
    (server,) = tables(workers=1)
    with closing(store([server], 0, 1), server) as (mine, _):
        line = mine.clients[0]
        for said in ({"rule": rule, "numbers": {"lr": 1.0}}, {"rule": "sgd", "numbers": {"lr": 1.0, rule: 1.0}}):
            with pytest.raises(Refused, match="there is no optimizer|has no number"):
                line.wait(line.ask(Request(Op.OPTIMIZER, metadata=said)), time.monotonic() + 5)
        assert server.store.updates is None


@pytest.mark.fault("F11", "an address that others reach, without a secret")
def test_an_address_that_others_reach_needs_a_secret():
    with pytest.raises(Refused, match="a server at 0.0.0.0 can be reached from other hosts: put a secret"):
        Server(SlotStore("dist_sync", 1), ("0.0.0.0", 0))
    with pytest.raises(Refused, match="a server at 127.0.0.1 can be reached by other users of this machine: put a se"):
        Server(SlotStore("dist_sync", 1))
    with pytest.raises(Refused, match="is on another host: the secret of the run"):
        ServerClient(0, ("192.0.2.1", 1), 0, deadline=0.2)
    with pytest.raises(Refused, match="may be another user's: the secret of the run"):
        ServerClient(0, ("127.0.0.1", 1), 0, deadline=0.2)


@pytest.mark.fault("F11", "another user of this machine at a Unix socket, with umask 000")
def test_a_socket_belongs_to_this_user_whatever_the_umask():
    before = os.umask(0)
    try:
        (server,) = tables(workers=1)
    finally:
        os.umask(before)
    with closing(server):
        assert stat.S_IMODE(os.stat(server.address).st_mode) == 0o600
        with closing(store([server], 0, 1)) as (mine,):
            mine.init("w", torch.zeros(3))
            assert is_served(mine)


@pytest.mark.fault("F11", "another user of this machine at a cluster on the loopback interface")
def test_a_cluster_on_the_loopback_interface_has_a_secret_of_its_own():
    with cluster(workers=1, transport="tcp") as stores:
        (server,) = stores.servers
        with pytest.raises(Refused, match="does not know the secret"):
            ServerClient(0, server.address, 0, secret=SECRET, run=server.run, deadline=DEADLINE)
        stores[0].init("w", torch.zeros(3))
        assert is_served(stores[0])


# ---------------------------------------------------------------- no execution


# What a server does not ask its interpreter for while it is attacked, and what it may: to open memory that is lent.
FORBIDDEN = "pickle marshal exec compile code ctypes import os. subprocess shutil pty open".split()
FORBIDDEN += ["socket.connect", "socket.getaddrinfo"]
MEMORY_THAT_IS_LENT = re.compile(r"\('?/proc/\d+/fd/")


def is_forbidden(event: str, arguments: str) -> bool:
    """Return whether an event of ``sys.addaudithook`` may not happen."""
    return event.startswith(tuple(FORBIDDEN)) and not (event == "open" and MEMORY_THAT_IS_LENT.match(arguments))


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
                    other.clients[0]._open = False  # its place is the attacker's from here on
                    other.clients[0]._channel.close()
                    for _ in range(2):
                        mine.push("w", torch.ones(3))
                    server("heard")
                    for data in islice(instead_of_a_greeting(canary), number, None, 2):  # every other one at each port
                        attack(address, data, greets=False)
                    for data in islice(after_a_greeting(canary), number, None, 2):
                        attack(address, data, greets=True)
                    mine.push("w", torch.ones(3))
                heard, ends = server("heard"), server("ended")
                server("try")
            values, pushes = server("state")[number][0]
            assert (values, pushes) == ([3.0] * 3, [3, 0]), "a push was lost, or another one counted"
            assert not canary.exists()
            assert [event for event in heard if is_forbidden(*event)] == []
            assert any(event == "compile" for event, _ in server("heard")), "the hook hears nothing"
            assert ends == [], "threads of the server ended unexpectedly"


def prepared(mine) -> None:
    mine.init("w", torch.zeros(3))
    mine.set_optimizer("sgd", lr=-1.0)
