"""Frames as bytes: sent by a channel, read by a channel, and headers of any kind."""

import socket
import struct
import threading
import zlib
from contextlib import suppress

from d2lps.kvstore.wire import HEADER, MAGIC, Channel, Op
from d2lps.kvstore.wire.frames import VERSION
from helpers.waits import LIVE


def ends(seconds=2.0):
    return tuple(Channel(end, seconds) for end in socket.socketpair())


def sent(*arguments, keys=None, whole=False, **more) -> bytes:
    """Return the bytes of a frame."""
    one, other = socket.socketpair()
    channel = Channel(one, 2)
    channel.keys, channel.covers_payload = keys, whole
    got, reader = [], threading.Thread(target=lambda: got.extend(iter(lambda: other.recv(1 << 20), b"")))
    reader.start()
    channel.send(*arguments, **more)
    channel.close()
    reader.join(LIVE)
    other.close()
    return b"".join(got)


def received(data: bytes, keys=None, whole=False):
    """(frame, payload) of these bytes, after which the other end hangs up."""
    one, other = socket.socketpair()
    channel = Channel(one, 2)
    channel.keys, channel.covers_payload = keys, whole
    writer = threading.Thread(target=lambda: (_all(other, data), other.close()))
    writer.start()
    try:
        frame = channel.receive()
        if frame.payload > 1 << 24:
            return frame, None
        room = bytearray(frame.payload)
        channel.into(frame, memoryview(room))
        return frame, bytes(room)
    finally:
        channel.close()
        writer.join(LIVE)


def _all(sock, data):
    with suppress(OSError):
        sock.sendall(data)


def head(magic=MAGIC, version=VERSION, op=Op.PUSH, flags=0, entries=0, table=0, payload=0, number=0) -> bytes:
    found = HEADER.pack(magic, version, op, flags, entries, table, payload, number, 0)[:-4]
    return found + struct.pack("<I", zlib.crc32(found))
