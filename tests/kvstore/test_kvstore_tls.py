"""TLS between the hosts of a store: the same sums, nothing to read on the wire, and a reason for each refusal."""

import socket
import ssl
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers import breaking, strangers
from helpers.breaking import DEADLINE, SECRET, Between, closing, connected, gone, store, tables
from helpers.scripts import forked
from helpers.stores import aside, each, until_whole
from helpers.strangers import Recorder, is_served
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import Refused, ServerLost
from d2lps.kvstore.server.lines import Peers
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import Broken, Channel, Entry, Op, handshake, raw, tls
from d2lps.kvstore.worker.client import ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
made, certificates = strangers.made, strangers.certificates
pytestmark = pytest.mark.usefixtures("nothing_left")
LARGE = 500_003  # elements: 4 MB of float64, and no whole number of records
OTHERS = {"certificate": "other.pem", "key": "other.key", "authority": "other-authority.pem"}


def sums(mine, rounds, elements=LARGE, done=lambda: None):
    """Return whether each round pulls the right sums, in which the digits in base 4 count the workers.

    ``done`` is called after each round.
    """
    ramp, out, seen = torch.arange(elements).fmod(64).to(torch.float64), torch.empty(elements).double(), []
    mine.init("w", torch.zeros(elements, dtype=torch.float64))
    mine.init("v", torch.zeros(3))
    for round_ in range(rounds):
        mine.pushpull("w", (ramp + round_) * 4.0**mine.rank, out=out)
        mine.pushpull("v", torch.full((3,), 4.0**mine.rank), out=(small := torch.empty(3)))
        seen.append(out.equal((ramp + round_) * 5) and small.tolist() == [5.0] * 3)
        done()
    return seen


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_sums_are_the_same(certificates, secret):
    with kvstore.cluster(workers=2, servers=2, transport="tcp", tls=certificates()._asdict(), secret=secret) as stores:
        assert each(stores, sums, 2) == [[True] * 2] * 2
        channels = [line._channel for mine in stores for line in mine.clients]
        assert {channel.sock._tls.version() for channel in channels} == {"TLSv1.3"}
        assert {channel.covers_payload for channel in channels} == {False}, "TLS and a code cover the same bytes"
        assert {channel.keys is not None for channel in channels} == {bool(secret)}


@pytest.mark.fault("F2", "server killed over TLS, with a copy, and another in its place")
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_servers_with_copies_speak_it_too(certificates, secret, monkeypatch):
    """To workers and to one another, also to a server that takes the place of one that was killed."""
    connect, spoken = Peers.connect, []

    def noting(peers, *arguments):
        channel = connect(peers, *arguments)
        spoken.append(channel.sock._tls.version())
        return channel

    monkeypatch.setattr(Peers, "connect", noting)
    options = {"transport": "tcp", "tls": certificates()._asdict(), "secret": secret, "replicas": 1, "deadline": 10}
    rounds = []

    def done():
        rounds.append(1)
        if len(rounds) == 2:
            stores.kill(0)
        elif len(rounds) == 6:
            stores.restart(0)

    with kvstore.cluster(workers=2, servers=2, **options) as stores:
        assert each(stores, sums, 6, 100_003, done) == [[True] * 6] * 2
        until_whole(stores)
        assert {line._channel.sock._tls.version() for mine in stores for line in mine.clients} == {"TLSv1.3"}
    assert len(spoken) > 2 and {*spoken} == {"TLSv1.3"}


def test_a_server_with_a_certificate_of_another_authority_is_no_copy(certificates):
    options = {"transport": "tcp", "tls": certificates()._asdict(), "replicas": 1}
    with kvstore.cluster(workers=1, servers=2, **options) as stores:
        (mine,) = stores
        mine.init("w", torch.zeros(3))
        name = stores.servers[1].replicas[0].name
        wrong = stores.servers[0].replicas[1].store.slot._peers._replace(certificates=certificates(**OTHERS))
        with pytest.raises((Broken, Refused, OSError, tls.Garbled)):
            wrong.connect(0, (9, "stranger", ("127.0.0.1", 1)), name)
        assert is_served(mine)


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_an_address_that_others_reach_needs_no_secret_but_asks_for_one_that_is_given(certificates, secret):
    server = Server(SlotStore("dist_sync", 1), ("0.0.0.0", 0), secret=secret, certificates=certificates())
    here = "127.0.0.1", server.address[1]
    with closing(store([server], 0, 1, {0: here}, certificates=certificates(), secret=secret), server) as (mine, _):
        mine.init("w", torch.zeros(3))
        assert is_served(mine)
        if secret:
            with pytest.raises(Refused, match="does not know the secret"):
                ServerClient(0, here, 0, certificates=certificates(), deadline=DEADLINE)


def ends(certificates, seconds=2.0):
    """Both ends of a connection with TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = Channel(connected(listener.getsockname()), seconds)
        far = Channel(listener.accept()[0], seconds)
    server = threading.Thread(target=tls.as_server, args=(far, tls.context(certificates(), True)))
    server.start()
    tls.as_worker(near, tls.context(certificates(), False), 5.0)
    server.join(LIVE)
    return near, far


def test_one_thread_sends_while_another_receives(certificates):
    """Both ways at once, frames of all sizes."""
    values = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in [0, 1, 16_383, 16_385, 3_000_000, 7] * 3]

    def send(channel):
        for number, value in enumerate(values):
            channel.send(Op.PUSH, number, [Entry(0, 6, 0, len(value), 1)], payload=raw(value))

    def receive(channel):
        for number, value in enumerate(values):
            frame, room = channel.receive(), torch.empty_like(value)
            channel.into(frame, raw(room))
            assert frame.number == number and room.equal(value)
        return "right"

    with closing(*ends(certificates, 5.0)) as pair, ThreadPoolExecutor(4) as pool:
        found = [pool.submit(what, end) for end in pair for what in (send, receive)]
        assert [future.result(60) for future in found] == [None, "right"] * 2


class Slow:
    """A socket that sends nothing until ``go_on`` is set."""

    def __init__(self, sock):
        self.recv_into, self._sock, self.begun, self.go_on = sock.recv_into, sock, threading.Event(), threading.Event()

    def send(self, data):
        self.begun.set()
        self.go_on.wait(LIVE)
        return self._sock.send(data)


def test_a_blocked_send_does_not_block_receiving(certificates, patience=5.0):
    with closing(*ends(certificates, 20.0)) as (near, far):
        near.sock._sock = slow = Slow(near.sock._sock)
        sender, _ = aside(near.send, Op.ALIVE, 5)
        assert slow.begun.wait(LIVE)
        far.send(Op.ALIVE, 7)
        receiver, got = aside(lambda: near.receive().number)
        receiver.join(patience)
        meanwhile = list(got)
        slow.go_on.set()
        assert far.receive().number == 5
        sender.join(LIVE), receiver.join(LIVE)
    assert meanwhile == [7]


def test_a_stalled_peer_is_noticed(certificates):
    with closing(*ends(certificates, 0.3)) as (near, far):
        assert near.receive(idle=True) is None
        with pytest.raises(Broken, match="fell silent"):
            near.receive()
        with pytest.raises(Broken, match="has stopped receiving"):
            for _ in range(100):
                near.send(Op.PUSH, 1, payload=memoryview(bytes(1 << 20)))
    with closing(*ends(certificates)) as (near, far):
        far.close()
        with pytest.raises(Broken, match="was closed"):
            near.receive(idle=True)


def test_a_farewell_of_tls_ends_a_connection(certificates):
    with closing(*ends(certificates)) as (near, far):
        with suppress(ssl.SSLWantReadError):
            far.sock._tls.unwrap()
        far.sock._flush()
        with pytest.raises(Broken, match="was closed"):
            near.receive(idle=True)


@pytest.mark.fault("F11", "a listener on the wire")
@pytest.mark.parametrize("secured", [True, False])
def test_nothing_can_be_read_on_the_wire(certificates, secured):
    """``secured`` = False: without TLS it can, so this would be noticed."""
    shown = certificates() if secured else None
    (server,) = tables(workers=1, secret=b"" if secured else SECRET, certificates=shown)
    pattern = "a name that no other process knows"
    with closing(Recorder(server.address)) as (line,):
        mine = store([server], 0, 1, {0: line.here}, certificates=shown)
        with closing(mine, server):
            mine.init(pattern, torch.zeros(1000))
            mine.pushpull(pattern, torch.full((1000,), 1234.5), out=(out := torch.empty(1000)))
            assert out.tolist() == [1234.5] * 1000
        heard = bytes(line.from_worker + line.from_server)
    assert len(heard) > 8000
    for known in (pattern.encode(), bytes(raw(torch.full((4,), 1234.5))), b"d2kv", b"incarnation", b"nonce"):
        assert (known in heard) is not secured, known


# ---------------------------------------------------------------- refused connections


NOT_TRUSTED = "the server's certificate is not accepted .*(self-signed certificate in|unable to get local issuer)"
CERTIFICATES = [  # the server's, the worker's, and what the worker reads
    ({}, OTHERS, NOT_TRUSTED),
    (OTHERS, {}, NOT_TRUSTED),
    ({}, OTHERS | {"authority": "authority.pem"}, "does not accept this worker's certificate .*unknown ca"),
    ({}, {"certificate": "expired.pem"}, "does not accept this worker's certificate .*certificate expired"),
    ({"certificate": "expired.pem"}, {}, "the server's certificate is not accepted .certificate has expired"),
]


@pytest.mark.fault("F11", "TLS: another authority's certificate, an expired one, either end's")
@pytest.mark.parametrize("theirs, mine, sentence", CERTIFICATES, ids=range(len(CERTIFICATES)))
def test_another_certificate_is_sent_away(certificates, theirs, mine, sentence, made, recovery):
    (server,) = tables(workers=1, certificates=certificates(**theirs))
    with closing(server):
        with recovery(), pytest.raises(Refused, match=sentence):
            ServerClient(0, server.address, 0, deadline=DEADLINE, certificates=certificates(**mine))
        assert made == [] and server.store.shards == [] and not server.busy


@pytest.mark.fault("F11", "TLS: no certificate")
def test_a_peer_without_certificate_is_refused(certificates, made):
    (server,) = tables(workers=1, certificates=certificates())
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname = False
    without.load_verify_locations(certificates().authority)
    with closing(server, Channel(connected(server.address), DEADLINE)) as (_, channel):
        with pytest.raises(Refused, match="does not accept this worker's certificate .*certificate required"):
            tls.as_worker(channel, without, DEADLINE)
        assert made == [] and not server.busy


@pytest.mark.fault("F11", "TLS of an older version")
def test_older_versions_are_not_spoken(certificates):
    (server,) = tables(workers=1, certificates=certificates())
    older = tls.context(certificates(), False)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    with closing(server), connected(server.address) as sock, pytest.raises(ssl.SSLError, match="(?i)protocol.version"):
        older.wrap_socket(sock)


@pytest.mark.fault("F11", "no TLS where it is spoken, TLS where it is not, a server that is none of ours")
def test_both_ends_speak_tls_or_neither_does(certificates, recovery):
    (secured,), (plain,) = tables(workers=1, certificates=certificates()), tables(workers=1, secret=SECRET)
    with closing(secured, plain), socket.create_server(("127.0.0.1", 0)) as listener:
        with recovery(), pytest.raises(Refused, match="this server uses TLS: name the files.*D2LPS_TLS_KEY"):
            ServerClient(0, secured.address, 0, secret=SECRET, deadline=DEADLINE)
        with recovery(), pytest.raises(ServerLost, match="reached .the connection was closed in the TLS handshake"):
            ServerClient(0, plain.address, 0, deadline=1.0, certificates=certificates())
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")).start()
        with recovery(), pytest.raises(Refused, match="the server does not answer in TLS .wrong version number"):
            ServerClient(0, listener.getsockname(), 0, deadline=DEADLINE, certificates=certificates())
        with closing(store([secured], 0, 1, certificates=certificates())) as (mine,):  # nothing has happened to it
            mine.init("w", torch.zeros(3))
            assert is_served(mine)


@pytest.mark.fault("F11", "a server that says a byte now and then in the TLS handshake, or nothing")
@pytest.mark.parametrize("data", [b"", b"\x16\x03\x03\x40\x00" + bytes(100)])
def test_a_worker_does_not_wait_for_a_slow_handshake(certificates, data, monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS", 0.5)
    ended = threading.Event()

    def drip(sock):
        with sock, suppress(OSError):
            for byte in data:
                sock.sendall(bytes([byte]))
                if ended.wait(0.1):
                    return
            ended.wait()

    def accept():
        with suppress(OSError):
            while True:
                aside(drip, listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        aside(accept)
        with pytest.raises(ServerLost, match="the TLS handshake did not end within"):
            ServerClient(0, listener.getsockname(), 0, deadline=1.0, certificates=certificates())
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


class Flipping(Between):
    """Changes a bit of what a server says on the connections ``wrong``, so many bytes after its beginning."""

    def __init__(self, address, after, wrong):
        self.after, self.wrong, self.count, self.flipped = after, wrong, 0, 0
        super().__init__(address)

    def down(self, source, target):
        self.count += 1
        left = self.after if self.count in self.wrong else None
        while data := bytearray(source.recv(1 << 16)):
            if left is not None and left < len(data):
                data[left] ^= 1
                left, self.flipped = None, self.flipped + 1
            elif left is not None:
                left -= len(data)
            target.sendall(data)


@pytest.mark.parametrize("after", [60, 300])  # in the clear, and encrypted
def test_a_tls_handshake_that_is_changed_on_its_way_is_made_again(certificates, after):
    (server,) = tables(workers=1, certificates=certificates())
    between = Flipping(server.address, after, wrong=(2, 3))
    with closing(store([server], 0, 1, {0: between.here}, certificates=certificates()), between, server) as (only, *_):
        only.init("w", torch.zeros(3))
        only.clients[0]._channel.close()
        only.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
        assert (between.flipped, out.tolist()) == (2, [1.0] * 3)


# ---------------------------------------------------------------- files


UNREADABLE = [
    ({"certificate": "none.pem"}, "the certificate in .*none.pem cannot be read .No such file.*D2LPS_TLS_CERTIFICATE"),
    ({"key": "none.key"}, "the key in .*none.key cannot be read .No such file.*D2LPS_TLS_KEY"),
    ({"authority": "none.pem"}, "the authority in .*none.pem cannot be read .No such file.*D2LPS_TLS_AUTHORITY"),
    ({"key": "other.key"}, "node.pem and .*other.key must be PEM files of a certificate and its key"),
    ({"key": "locked.key"}, "node.pem and .*locked.key must be PEM files .* without a password"),
    ({"certificate": "README.md"}, "README.md and .* must be PEM files"),
    ({"authority": "README.md"}, "README.md is not a PEM file of an authority's certificate"),
    ({"authority": "node.key"}, "node.key is not a PEM file of an authority's certificate"),
    ({"authority": ""}, "the authority in .* cannot be read"),
]


@pytest.mark.parametrize("wrong, sentence", UNREADABLE)
def test_files_that_will_not_do_are_refused(certificates, wrong, sentence):
    shown = certificates(**wrong)
    for make in (lambda: tables(certificates=shown), lambda: ServerClient(0, ("127.0.0.1", 1), 0, certificates=shown)):
        with pytest.raises(Refused, match=sentence):
            make()


def test_a_key_that_others_can_read_is_refused(certificates, tmp_path):
    key = tmp_path / "node.key"
    key.write_bytes(Path(certificates().key).read_bytes())
    for mode in (0o640, 0o604):
        key.chmod(mode)
        with pytest.raises(Refused, match="others can read the key in .*node.key: chmod 600"):
            tls.context(certificates()._replace(key=str(key)), True)
    key.chmod(0o600)
    assert tls.context(certificates()._replace(key=str(key)), True)


NOT_THREE = [{}, {"certificate": "a", "key": "b"}, "a.pem", True, ["a", "b", "c"]]
NOT_THREE += [{"certificate": "a", "key": "b", "authority": "c", "more": "d"}]


def test_tls_without_three_files_or_without_tcp_is_refused(certificates, tmp_path):
    for wrong in NOT_THREE:
        with pytest.raises(Refused, match="must name three PEM files"):
            kvstore.cluster(transport="tcp", tls=wrong)
    with pytest.raises(Refused, match="tls: key = 5 is not the path of a file"):
        tls.validate_certificates(certificates()._asdict() | {"key": 5})
    paths = {name: Path(path) for name, path in certificates()._asdict().items()}
    assert tls.validate_certificates(paths) == tls.validate_certificates(certificates()) == certificates()
    with pytest.raises(Refused, match="tls is for transport='tcp'"):
        kvstore.cluster(tls=certificates())
    with pytest.raises(Refused, match="speaks no TLS: a Unix socket is this user's own"):
        Server(SlotStore("dist_sync", 1), str(tmp_path / "server"), certificates=certificates())


def test_the_environment_names_them_all_or_none(certificates, monkeypatch):
    for variable in tls.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    assert tls.validate_certificates(None) is None
    monkeypatch.setenv("D2LPS_TLS_KEY", certificates().key)
    with pytest.raises(Refused, match="D2LPS_TLS_CERTIFICATE and D2LPS_TLS_AUTHORITY must also be set"):
        tls.validate_certificates(None)
    monkeypatch.setenv("D2LPS_TLS_CERTIFICATE", certificates().certificate)
    monkeypatch.setenv("D2LPS_TLS_AUTHORITY", certificates().authority)
    assert tls.validate_certificates(None) == certificates()


# ---------------------------------------------------------------- workers in processes of their own


SCRIPT = """
import os, torch
from d2lps import kvstore
from d2lps.carriers import ranks
from d2lps.kvstore.wire.tls import Secured
{before}
def say(*what):  # in one piece: the others write to the same pipe
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

try:
    store = kvstore.create("dist_sync", servers=2, joining=60.0, deadline=2.0)
    say("pids", *[server.process.pid for server in store.started])
    store.init("w", torch.zeros(400_000))
    for _ in range(3):
        store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=(out := torch.empty(400_000)))
    say(store.rank, out.unique().tolist(), {{isinstance(line._channel.sock, Secured) for line in store.clients}})
    store.close()
except kvstore.KVError as error:
    say(type(error).__name__, error)
"""
HOSTS = "ranks.host = lambda: os.environ['RANK']  # as if each were on a host of its own"


def workers(folder, before, **environment):
    """Return the lines that two workers in processes of their own print."""
    script = folder / "work.py"
    script.write_text(SCRIPT.format(before=textwrap.dedent(before)))
    lines = sorted(sum(forked(script, 2, without=("D2LPS_SECRET", "D2LPS_TLS"), **environment), []))
    assert gone([int(pid) for line in lines if line.startswith("pids") for pid in line.split()[1:]]), "a server is left"
    return [line for line in lines if not line.startswith("pids")]


def variables(shown) -> dict[str, str]:
    return {tls.VARIABLES[name]: path for name, path in shown._asdict().items()}


@pytest.mark.parametrize("before, secured", [(HOSTS, True), ("", False)])
def test_workers_speak_it_between_hosts(certificates, tmp_path, before, secured):
    said = workers(tmp_path, before, **variables(certificates()))
    assert said == [f"{rank} [5.0] {{{secured}}}" for rank in range(2)]


@pytest.mark.parametrize(
    "change, sentence",
    [
        ("os.environ['D2LPS_TLS_KEY'] += '.none'", "Refused worker 1 could not start its server: the key in"),
        (f"[os.environ.pop(n) for n in {list(tls.VARIABLES.values())!r}]", "all workers must ask for the same store"),
    ],
)
def test_all_workers_are_refused_if_one_has_other_certificates(certificates, tmp_path, change, sentence):
    said = workers(tmp_path, f"{HOSTS}\nif os.environ['RANK'] == '1': {change}", **variables(certificates()))
    assert len(said) == 2 and all(sentence in line for line in said), said
