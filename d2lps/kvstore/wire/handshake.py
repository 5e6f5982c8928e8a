"""Who is at the other end: both ends show that they know the secret, and neither says it.

The worker says who it is and a number used once; the server answers with one of its own and a proof; then the worker
proves, too. Both proofs, and the keys of the connection, are HMACs over all that was said before. Until then frames
are at most 4 KiB, nothing is kept, and it must be over within some seconds.
"""

import hmac
import ipaddress
import json
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import Broken, Frame, Op

SECONDS = 5.0  # for a handshake
VARIABLE, FILE = "D2LPS_SECRET", "D2LPS_SECRET_FILE"
SHORTEST = 16  # bytes of a secret


class Elsewhere(Broken):
    """Another server is the one for workers now."""


def read_secret() -> bytes | None:
    """The secret in the environment, or in the file that is named there. Raises Refused where others can read it."""
    secret, path = os.fsencode(os.environ.get(VARIABLE, "")), os.environ.get(FILE)
    if not secret and not path:
        return None
    if not secret:
        try:
            require_private(path, "secret")
            secret = Path(path).read_bytes().strip()
        except OSError as error:
            raise Refused(f"the secret in {path} cannot be read ({error.strerror}): {FILE} names the file") from None
    if len(secret) < SHORTEST:
        raise Refused(f"the secret has {len(secret)} bytes: {SHORTEST} or more, such as `openssl rand -hex 32` prints")
    return secret


def require_private(path: str, what: str) -> None:
    """Raises Refused where others can read ``what``, which lies in the file ``path``."""
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise Refused(f"others can read the {what} in {path}: chmod 600 {path}")


def as_worker(channel: Channel, secret: bytes, hello: dict, whole: bool) -> dict:
    """Present this worker to a server; what the server says of itself. Raises Broken, or Refused with its reason."""
    said = hello | {"nonce": secrets.token_hex(32)}
    channel.send(Op.HELLO, metadata=said)
    challenge = _next(channel, Op.CHALLENGE)
    talk = _talk(said, challenge)
    if not _same(challenge.pop("proof", ""), _proof(secret, b"server", talk)):
        raise Refused("the server does not know the secret of this run: it belongs to another run, or is none of ours")
    channel.send(Op.PROOF, metadata={"proof": _proof(secret, b"worker", talk)})
    channel.keys, channel.covers_payload = _keys(secret, talk, b"worker", b"server"), whole and bool(secret)
    return _next(channel, Op.WELCOME)


def as_server(channel: Channel, secret: bytes, admit: Callable[[dict], dict], whole: bool) -> dict:
    """Hear a worker out; what it says of itself. ``admit(hello)`` is the welcome, or raises Refused.

    Raises Broken where it is none of ours: nothing is told to it but that.
    """
    channel.table, channel.payload, before = 4096, 0, (channel.table, channel.payload)
    hello = _next(channel, Op.HELLO)
    if not (isinstance(hello.get("rank"), int) and isinstance(hello.get("nonce"), str) and len(hello["nonce"]) == 64):
        raise Broken("no greeting of a worker")
    challenge = {"nonce": secrets.token_hex(32)}
    talk = _talk(hello, challenge)
    channel.send(Op.CHALLENGE, metadata=challenge | {"proof": _proof(secret, b"server", talk)})
    if not _same(_next(channel, Op.PROOF).get("proof", ""), _proof(secret, b"worker", talk)):
        raise Broken("the other end does not know the secret")
    channel.keys, channel.covers_payload = _keys(secret, talk, b"server", b"worker"), whole and bool(secret)
    try:
        channel.send(Op.WELCOME, metadata=admit(hello))
    except Elsewhere as error:
        channel.send(Op.ERROR, metadata={"kind": "Elsewhere", "sentence": str(error)})
        raise
    except Refused as error:
        channel.send(Op.ERROR, metadata={"kind": "Refused", "sentence": str(error)})
        raise
    channel.table, channel.payload = before
    return hello


def _next(channel: Channel, op: Op) -> dict:
    frame: Frame = channel.receive()
    if frame.op == Op.ERROR and frame.metadata.get("kind") == "Elsewhere":
        raise Elsewhere(str(frame.metadata.get("sentence")))
    if frame.op == Op.ERROR:
        raise Refused(str(frame.metadata.get("sentence", "the server refuses this worker")))
    if frame.op != op or frame.payload:
        raise Broken(f"{frame.op.name} came where {op.name} belongs")
    return frame.metadata


def _talk(hello: dict, challenge: dict) -> bytes:
    """All that was said, in one form: order and nonces included."""
    heard = [hello, {name: value for name, value in challenge.items() if name != "proof"}]
    return json.dumps(heard, sort_keys=True).encode()


def _same(given: object, proof: str) -> bool:
    return hmac.compare_digest(str(given).encode(errors="replace"), proof.encode())  # as text it must be ASCII


def _proof(secret: bytes, role: bytes, talk: bytes) -> str:
    return hmac.digest(secret, b"d2lps proof of " + role + b"\0" + talk, "sha256").hex()


def _keys(secret: bytes, talk: bytes, mine: bytes, theirs: bytes) -> tuple[bytes, bytes] | None:
    """(what covers what I send, what covers what I receive); None where there is no secret."""
    keys = (hmac.digest(secret, b"d2lps key of " + role + b"\0" + talk, "sha256") for role in (mine, theirs))
    return tuple(keys) if secret else None


def loopback(address: "tuple[str, int] | str") -> bool:
    """Whether only this host can reach ``address``: a Unix socket's path, or (host, port)."""
    try:
        return isinstance(address, str) or ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return address[0] == "localhost"
