"""TLS between the hosts of a cluster: each end shows a certificate of one authority, and asks the other for its own.

Whoever has a certificate of that authority belongs to the cluster, worker or server. No name in it is looked at: a
server is known by its number and listens wherever a worker was started, so the authority signs for this cluster alone.
A certificate that names its uses names both, serverAuth and clientAuth. What was revoked is not asked for: whoever
has to leave is kept out by certificates that do not last long.

It is TLS 1.3, nothing else, as both ends are of this package; a connection that is made again is verified again.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import MAGIC, Broken, Op

ROOM = 1 << 18  # bytes that are received at once
WELCOME = b"d"  # in TLS 1.3 a worker is done before the server has looked at its certificate: this says that it has


class Garbled(Refused):
    """What the other end says is no TLS; or it was changed on its way, where it has been TLS before."""


class Certificates(NamedTuple):
    """Three PEM files: what this end shows, the key to it, and the authority that both ends' certificates are of."""

    certificate: str
    key: str
    authority: str


VARIABLES = {name: f"D2LPS_TLS_{name.upper()}" for name in Certificates._fields}


def validate_certificates(tls: Mapping | Certificates | None) -> Certificates | None:
    """The files that ``tls`` names or, where it is None, the environment; None where neither does. Raises Refused."""
    if tls is None:
        paths = {name: path for name, variable in VARIABLES.items() if (path := os.environ.get(variable))}
        missing = [variable for name, variable in VARIABLES.items() if name not in paths]
        if paths and missing:
            raise Refused(f"{' and '.join(missing)} must be set, too: TLS needs {', '.join(VARIABLES.values())}")
        return Certificates(**paths) if paths else None
    paths = tls._asdict() if isinstance(tls, Certificates) else tls
    if not isinstance(paths, Mapping) or {*paths} != {*VARIABLES}:
        raise Refused(f"tls = {tls!r}: it names three PEM files, {{'certificate': …, 'key': …, 'authority': …}}")
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike):
            raise Refused(f"tls: {name} = {path!r} is no path of a file")
    return Certificates(**{name: os.fspath(path) for name, path in paths.items()})


def context(files: Certificates, serving: bool) -> ssl.SSLContext:
    """What one end shows and asks for. Raises Refused where a file is missing, wrong, or a key that others can read."""
    for name, path in files._asdict().items():
        try:
            open(path, "rb").close()
        except OSError as error:
            raise Refused(
                f"the {name} in {path} cannot be read ({error.strerror}): tls, or {VARIABLES[name]}, names the file"
            ) from None
    handshake.require_private(files.key, "key")
    # Not create_default_context: it looks at host names, asks no worker for a certificate, takes the system's own
    # authorities where none is named, and writes the keys of connections to where SSLKEYLOGFILE says.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_REQUIRED
    if serving:
        tls.num_tickets = 0
    try:
        tls.load_cert_chain(files.certificate, files.key, password="")  # it would ask at the terminal otherwise
    except (OSError, ValueError) as error:
        raise Refused(
            f"{files.certificate} and {files.key} are no PEM files of a certificate and of its key, without "
            f"a password ({_reason(error)})"
        ) from None
    try:
        tls.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        raise Refused(f"{files.authority} is no PEM file of an authority's certificate ({_reason(error)})") from None
    return tls


def as_worker(channel: Channel, tls: ssl.SSLContext, seconds: float) -> None:
    """Speak TLS over ``channel`` from here on. Raises Broken, or Refused: Garbled, or a certificate."""
    secured = Secured(channel.sock, tls, False)
    try:
        secured.handshake(time.monotonic() + seconds)
        if not secured.recv_into(memoryview(bytearray(1))):
            raise Broken("it hung up in the TLS handshake")
    except BlockingIOError:
        raise Broken(f"it has not finished the TLS handshake within {seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"the server's certificate is not accepted ({error.verify_message}): it must be valid today, and "
            "of the authority that this worker names"
        ) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason and any(word in reason for word in ("CERT", "UNKNOWN_CA", "EXPIRED", "REVOKED", "DENIED")):
            raise Refused(
                f"the server does not accept this worker's certificate ({_reason(error)}): it must be valid "
                "today, and of the authority that the server names"
            ) from None
        raise Garbled(
            f"what the server says is no TLS ({_reason(error)}): all workers and servers speak it, or none does"
        ) from None
    channel.sock = secured


def as_server(channel: Channel, tls: ssl.SSLContext) -> None:
    """Speak TLS over ``channel`` from here on. Raises Broken; a worker without TLS is told so before that."""
    if channel.sock.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL) == MAGIC:
        channel.table, channel.payload = 4096, 0
        channel.receive()
        said = "this server speaks TLS: name the files of a certificate, its key and its authority as tls, or in "
        channel.send(Op.ERROR, metadata={"kind": "Refused", "sentence": said + ", ".join(VARIABLES.values())})
        raise Broken("a worker without TLS")
    secured = Secured(channel.sock, tls, True)
    try:
        secured.handshake(time.monotonic() + handshake.SECONDS)
    except ssl.SSLError as error:
        raise Broken(f"no TLS, or no certificate of this cluster ({_reason(error)})") from None
    secured.sendmsg([WELCOME])
    channel.sock = secured


class Secured:
    """What a :class:`~d2lps.kvstore.wire.Channel` needs of a socket, with TLS in it.

    One thread may send while another receives, which ``ssl.SSLSocket`` does not allow: here TLS is between two buffers
    in memory, under a lock, and whoever waits for the network waits outside it. How long, the kernel says, as it does
    for the socket alone: BlockingIOError where the other end stands still.
    """

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, serving: bool):
        self._sock, self._in, self._out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._in, self._out, server_side=serving)
        self._lock = threading.Lock()
        self._room = memoryview(bytearray(1 << 12))  # more once it is known who is there
        self.family, self.fileno, self.setsockopt = sock.family, sock.fileno, sock.setsockopt
        # No farewell of TLS: a frame says how long it is, so that one which is cut off is noticed without it.
        self.shutdown, self.close = sock.shutdown, sock.close

    def handshake(self, until: float) -> None:
        """Raises ssl.SSLError, Broken where the other end hangs up, and BlockingIOError where it is too slow."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
            finally:
                with suppress(OSError):  # who takes nothing any more says nothing either, which shows below
                    self._flush()  # also why it has failed
            if time.monotonic() > until:  # who sends a byte now and then is no better
                raise BlockingIOError
            if not self._received():
                raise Broken("it hung up in the TLS handshake: does it speak TLS?")
        self._room = memoryview(bytearray(ROOM))

    def sendmsg(self, pieces: Sequence) -> int:
        """Send all of ``pieces``: how many bytes that is. One thread at a time, or records would change places."""
        with self._lock:
            for piece in map(memoryview, pieces):
                done = 0
                while done < len(piece):  # a record at a time
                    done += self._tls.write(piece[done:])
        self._flush()
        return sum(map(len, pieces))

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """Receive until ``view`` is full, as with MSG_WAITALL: fewer bytes only where the other end stops."""
        done = 0
        while True:
            with self._lock, suppress(ssl.SSLWantReadError):
                while done < len(view) and (got := self._tls.read(len(view) - done, view[done:])):
                    done += got
                return done  # it is full, or the other end has said farewell
            try:
                if not self._received():
                    return done
            except BlockingIOError:
                if done:
                    return done
                raise

    def _received(self) -> int:
        got = self._sock.recv_into(self._room)
        with self._lock:
            self._in.write(self._room[:got])
        return got

    def _flush(self) -> None:
        with self._lock:
            data = memoryview(self._out.read())
        while data:
            data = data[self._sock.send(data) :]


def _reason(error: Exception) -> str:
    """In words: OpenSSL's own, where it has some."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else getattr(error, "strerror", None) or str(error)
