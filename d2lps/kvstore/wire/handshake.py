"""The handshake of a connection: both ends prove that they know the secret, without sending it.

The worker sends its rank and a nonce; the server answers with its own nonce and a proof; then the worker sends its
proof. Both proofs, and the keys of the connection, are HMACs over the whole exchange before them. Until both are
verified, frames have at most 4 KiB, the server keeps nothing, and everything must happen within ``SECONDS``.
"""

import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import Broken, Frame, Op
from d2lps.messages import why

SECONDS = 5.0  # for a handshake
VARIABLE, FILE = "D2LPS_SECRET", "D2LPS_SECRET_FILE"
SHORTEST = 16  # bytes of a secret


class Elsewhere(Broken):
    """The worker has to connect to another server."""


def read_secret() -> bytes | None:
    """Return the secret of the environment, or of the file that it names. Raises Refused if others can read it."""
    secret, path = os.fsencode(os.environ.get(VARIABLE, "")), os.environ.get(FILE, "")
    if not secret and not path:
        return None
    if not secret:
        try:
            if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
                raise Refused(f"others can read the secret in {path}: chmod 600 {path}")
            secret = Path(path).read_bytes().strip()
        except OSError as error:
            raise Refused(f"the secret in {path} cannot be read ({why(error)}): {FILE} names the file") from None
    if len(secret) < SHORTEST:
        raise Refused(f"the secret has {len(secret)} bytes, not {SHORTEST} or more: `openssl rand -hex 32` prints one")
    return secret


def connect(address: "tuple[str, int] | str", seconds: float, secret: bytes, hello: dict) -> tuple[Channel, dict]:
    """Connect to a server, and return the channel and its welcome. Raises OSError, Broken or Refused."""
    sock = new_socket(address)
    try:
        sock.settimeout(seconds)
        sock.connect(address)
        channel = Channel(sock, seconds)
        return channel, as_worker(channel, secret, hello, not loopback(address))
    except BaseException:
        sock.close()
        raise


def as_worker(channel: Channel, secret: bytes, hello: dict, whole: bool) -> dict:
    """Introduce this worker to a server, and return its welcome. Raises Broken, or Refused with the server's reason."""
    hello = hello | {"nonce": secrets.token_hex(32)}
    channel.send(Op.HELLO, metadata=hello)
    challenge = _next(channel, Op.CHALLENGE)
    exchange = _exchange(hello, challenge)
    if not _same(challenge.pop("proof", ""), _proof(secret, b"server", exchange)):
        raise Refused("the server does not know the secret of this run: it may belong to another run")
    channel.send(Op.PROOF, metadata={"proof": _proof(secret, b"worker", exchange)})
    channel.keys, channel.covers_payload = _keys(secret, exchange, b"worker", b"server"), whole and bool(secret)
    return _next(channel, Op.WELCOME)


def as_server(channel: Channel, secret: bytes, admit: Callable[[dict], dict], whole: bool) -> dict:
    """Let a worker introduce itself, and return its hello. ``admit(hello)`` is the welcome, or raises Refused.

    Raises Broken if the other end is not a worker of this run.
    """
    channel.table, channel.payload, before = 4096, 0, (channel.table, channel.payload)
    hello = _next(channel, Op.HELLO)
    if not (isinstance(hello.get("rank"), int) and isinstance(hello.get("nonce"), str) and len(hello["nonce"]) == 64):
        raise Broken("the first frame is not the hello of a worker")
    challenge = {"nonce": secrets.token_hex(32)}
    exchange = _exchange(hello, challenge)
    channel.send(Op.CHALLENGE, metadata=challenge | {"proof": _proof(secret, b"server", exchange)})
    if not _same(_next(channel, Op.PROOF).get("proof", ""), _proof(secret, b"worker", exchange)):
        raise Broken("the other end does not know the secret")
    channel.keys, channel.covers_payload = _keys(secret, exchange, b"server", b"worker"), whole and bool(secret)
    try:
        channel.send(Op.WELCOME, metadata=admit(hello))
    except (Elsewhere, Refused) as error:
        kind = "Elsewhere" if isinstance(error, Elsewhere) else "Refused"
        channel.send(Op.ERROR, metadata={"kind": kind, "sentence": str(error)})
        raise
    channel.table, channel.payload = before
    return hello


def _next(channel: Channel, op: Op) -> dict:
    frame: Frame = channel.receive()  # type: ignore[assignment]  # only an idle one returns None
    if frame.op == Op.ERROR and frame.metadata.get("kind") == "Elsewhere":
        raise Elsewhere(str(frame.metadata.get("sentence")))
    if frame.op == Op.ERROR:
        raise Refused(str(frame.metadata.get("sentence", "the server refuses this worker")))
    if frame.op != op or frame.payload:
        raise Broken(f"{frame.op.name} came instead of {op.name}")
    return frame.metadata


def _exchange(hello: dict, challenge: dict) -> bytes:
    """Return the hello and the challenge, without its proof, as bytes."""
    parts = [hello, {name: value for name, value in challenge.items() if name != "proof"}]
    return json.dumps(parts, sort_keys=True).encode()


def _same(received: object, proof: str) -> bool:
    return hmac.compare_digest(str(received).encode(errors="replace"), proof.encode())  # text must be ASCII


def _proof(secret: bytes, role: bytes, exchange: bytes) -> str:
    return hmac.digest(secret, b"d2lps proof of " + role + b"\0" + exchange, "sha256").hex()


def _keys(secret: bytes, exchange: bytes, mine: bytes, theirs: bytes) -> tuple[bytes, ...] | None:
    """Return the keys for frames sent and received; None if there is no secret."""
    keys = (hmac.digest(secret, b"d2lps key of " + role + b"\0" + exchange, "sha256") for role in (mine, theirs))
    return tuple(keys) if secret else None


def new_socket(address: "tuple[str, int] | str") -> socket.socket:
    """Return a socket of the family of ``address``: a Unix socket's path, or (host, port) of IPv4 or IPv6."""
    if isinstance(address, str):
        return socket.socket(socket.AF_UNIX)
    return socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)


def loopback(address: "tuple[str, int] | str") -> bool:
    """Return True if only this host can reach ``address``: a Unix socket's path, or (host, port)."""
    try:
        return isinstance(address, str) or ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return address[0] == "localhost"
