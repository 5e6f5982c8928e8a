"""TLS between the hosts of a cluster: each end shows a certificate of one authority, and verifies the other's.

A process with a certificate of that authority belongs to the cluster, as a worker or a server. Names in certificates
are not checked, because a server listens wherever a worker was started: so the authority must sign for this cluster
only. A certificate that lists its uses must list both serverAuth and clientAuth. Revocation is not checked: use
certificates that expire soon.

Only TLS 1.3 is spoken, since both ends are of this package; every new connection is verified.
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
from d2lps.messages import why

BUFFER = 1 << 18  # bytes that are received at once
WELCOME = b"d"  # sent once the server has verified the certificate: in TLS 1.3 a worker is done before that


class Garbled(Refused):
    """The data of the other end is not TLS, or was changed on its way."""


class Certificates(NamedTuple):
    """Three PEM files: the certificate of this end, its key, and the authority of both ends' certificates."""

    certificate: str
    key: str
    authority: str


VARIABLES = {name: f"D2LPS_TLS_{name.upper()}" for name in Certificates._fields}


def validate_certificates(tls: Mapping | Certificates | None) -> Certificates | None:
    """Return the files that ``tls`` or, if that is None, the environment names, or None. Raises Refused."""
    if tls is None:
        paths = {name: path for name, variable in VARIABLES.items() if (path := os.environ.get(variable))}
        missing = [variable for name, variable in VARIABLES.items() if name not in paths]
        if paths and missing:
            raise Refused(f"{' and '.join(missing)} must also be set: TLS needs {', '.join(VARIABLES.values())}")
        return Certificates(**paths) if paths else None
    paths = tls._asdict() if isinstance(tls, Certificates) else tls
    if not isinstance(paths, Mapping) or {*paths} != {*VARIABLES}:
        raise Refused(f"tls = {tls!r} must name three PEM files: {{'certificate': …, 'key': …, 'authority': …}}")
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike):
            raise Refused(f"tls: {name} = {path!r} is not the path of a file")
    return Certificates(**{name: os.fspath(path) for name, path in paths.items()})


def context(files: Certificates, serving: bool) -> ssl.SSLContext:
    """Return the TLS context of one end. Raises Refused if a file is missing or invalid, or others can read the key."""
    for name, path in files._asdict().items():
        try:
            open(path, "rb").close()
        except OSError as error:
            raise Refused(
                f"the {name} in {path} cannot be read ({why(error)}): tls, or {VARIABLES[name]}, names the file"
            ) from None
    handshake.require_private(files.key, "key")
    # Not create_default_context: it checks host names, asks no worker for a certificate, falls back to the system's
    # authorities, and writes the keys of connections to the file of SSLKEYLOGFILE.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_REQUIRED
    if serving:
        tls.num_tickets = 0
    try:
        tls.load_cert_chain(files.certificate, files.key, password="")  # without one it would ask at the terminal
    except (OSError, ValueError) as error:
        raise Refused(
            f"{files.certificate} and {files.key} must be PEM files of a certificate and its key, without "
            f"a password ({_reason(error)})"
        ) from None
    try:
        tls.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        raise Refused(f"{files.authority} is not a PEM file of an authority's certificate ({_reason(error)})") from None
    return tls


def as_worker(channel: Channel, tls: ssl.SSLContext, seconds: float) -> None:
    """Use TLS on ``channel`` from here on. Raises Broken, Garbled, or Refused if a certificate is not accepted."""
    secured = Secured(channel.sock, tls, False)
    try:
        secured.handshake(time.monotonic() + seconds)
        if not secured.recv_into(memoryview(bytearray(1))):
            raise Broken("the connection was closed in the TLS handshake")
    except BlockingIOError:
        raise Broken(f"the TLS handshake did not end within {seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"the server's certificate is not accepted ({error.verify_message}): it must be valid today, and "
            "signed by the authority that this worker names"
        ) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason and any(word in reason for word in ("CERT", "UNKNOWN_CA", "EXPIRED", "REVOKED", "DENIED")):
            raise Refused(
                f"the server does not accept this worker's certificate ({_reason(error)}): it must be valid "
                "today, and signed by the authority that the server names"
            ) from None
        raise Garbled(
            f"the server does not answer in TLS ({_reason(error)}): all workers and servers must use it, or none"
        ) from None
    channel.sock = secured


def as_server(channel: Channel, tls: ssl.SSLContext) -> None:
    """Use TLS on ``channel`` from here on. Raises Broken, after it has sent a worker without TLS the reason."""
    if channel.sock.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL) == MAGIC:
        channel.table, channel.payload = 4096, 0
        channel.receive()
        sentence = "this server uses TLS: name the files of a certificate, its key and its authority as tls, or in "
        channel.send(Op.ERROR, metadata={"kind": "Refused", "sentence": sentence + ", ".join(VARIABLES.values())})
        raise Broken("the worker does not use TLS")
    secured = Secured(channel.sock, tls, True)
    try:
        secured.handshake(time.monotonic() + handshake.SECONDS)
    except ssl.SSLError as error:
        raise Broken(f"the other end has no TLS, or no certificate of this cluster ({_reason(error)})") from None
    secured.sendmsg([WELCOME])
    channel.sock = secured


class Secured:
    """A socket for a :class:`~d2lps.kvstore.wire.Channel` that uses TLS.

    One thread may send while another receives, which ``ssl.SSLSocket`` does not allow: TLS works between two buffers in
    memory, under a lock, and threads wait for the network without the lock. As with a plain socket, the kernel keeps
    the time: BlockingIOError is raised if the other end pauses for too long.
    """

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, serving: bool):
        self._sock, self._in, self._out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._in, self._out, server_side=serving)
        self._lock = threading.Lock()
        self._buffer = memoryview(bytearray(1 << 12))  # more after the handshake
        self.family, self.fileno, self.setsockopt = sock.family, sock.fileno, sock.setsockopt
        # No close_notify of TLS: a frame has its length, so a truncated one is detected without it.
        self.shutdown, self.close = sock.shutdown, sock.close

    def handshake(self, until: float) -> None:
        """Do the handshake. Raises ssl.SSLError, Broken if the connection ends, and BlockingIOError if it is slow."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
            finally:
                with suppress(OSError):  # an end that receives nothing sends nothing either, which shows below
                    self._flush()  # also the alert after a failure
            if time.monotonic() > until:  # also if single bytes still arrive
                raise BlockingIOError
            if not self._received():
                raise Broken("the connection was closed in the TLS handshake: does it use TLS?")
        self._buffer = memoryview(bytearray(BUFFER))

    def sendmsg(self, pieces: Sequence) -> int:
        """Send all of ``pieces``, and return their bytes. Only one thread may send, or records would be mixed up."""
        with self._lock:
            for piece in map(memoryview, pieces):
                done = 0
                while done < len(piece):  # a record at a time
                    done += self._tls.write(piece[done:])
        self._flush()
        return sum(map(len, pieces))

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """Receive until ``view`` is full, as with MSG_WAITALL: fewer bytes only if the other end stops."""
        done = 0
        while True:
            with self._lock, suppress(ssl.SSLWantReadError):
                while done < len(view) and (got := self._tls.read(len(view) - done, view[done:])):
                    done += got
                return done  # it is full, or the other end has closed TLS
            try:
                if not self._received():
                    return done
            except BlockingIOError:
                if done:
                    return done
                raise

    def _received(self) -> int:
        got = self._sock.recv_into(self._buffer)
        with self._lock:
            self._in.write(self._buffer[:got])
        return got

    def _flush(self) -> None:
        with self._lock:
            data = memoryview(self._out.read())
        while data:
            data = data[self._sock.send(data) :]


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason in words, or that of the system."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else why(error)
