"""Frames over a socket, each checked before anything comes of it."""

import hmac
import json
import select
import socket
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from d2lps.carriers.tensors import TensorError
from d2lps.kvstore.wire.arena import Lent
from d2lps.kvstore.wire.frames import (
    CODED,
    ENTRY,
    HEADER,
    LADEN,
    MAGIC,
    NOTHING,
    PAYLOAD,
    SHARED,
    TABLE,
    VERSION,
    Broken,
    Entry,
    Frame,
    Op,
)
from d2lps.kvstore.wire.words import Words

BLOCK = 4 << 20  # bytes that are received, and summed while they are still in the cache


class Channel:
    """Frames over a connected stream socket. One thread may send while another receives.

    ``seconds``: how long the socket may stand still in the middle of a frame. ``keys``: for the two directions
    (sent, received), 32 bytes each, once they are agreed; ``whole``: whether they also cover the payload.
    """

    def __init__(self, sock: socket.socket, seconds: float):
        self.sock, self.keys, self.whole = sock, None, False
        self._sent = self._received = 0
        self.table, self.payload = TABLE, PAYLOAD  # less before it is known who is there
        self.lent: Lent | None = None  # memory of the other end, where both are on one host
        sock.setblocking(True)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.patience(seconds)

    @property
    def peer(self) -> int | None:
        """The process at the other end of a Unix socket, as the kernel says."""
        if self.sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return None
        return struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    @property
    def roomy(self) -> bool:
        """Whether a small frame can be sent without waiting."""
        with suppress(OSError, ValueError):  # it may be closed
            (ready := select.poll()).register(self.sock, select.POLLOUT)
            return bool(ready.poll(0))
        return False

    def borrow(self, said: object) -> bool:
        """Whether what the other end says it lends can be used: :attr:`lent` from now on."""
        with suppress(TensorError):
            self.lent = Lent(said, self.peer) if isinstance(said, dict) and self.peer else None
        return self.lent is not None

    def patience(self, seconds: float) -> None:
        # The kernel keeps the time: a timeout of Python's own would make the socket return whatever is there.
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, limit)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # which also wakes a thread that waits in it
        self.sock.close()

    # ---- sending

    def send(
        self,
        op: Op,
        number: int = 0,
        entries: "Sequence[Entry] | np.ndarray" = (),
        said: dict | None = None,
        payload: memoryview = NOTHING,
        shared: bool = False,
    ) -> None:
        many = isinstance(entries, np.ndarray)
        table = entries.tobytes() if many else b"".join(ENTRY.pack(*entry) for entry in entries)
        if said is not None:
            table = json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")
        size = len(payload)
        flags = (CODED if self.keys and (self.whole or not size) else 0) | (SHARED if shared else 0)
        head = HEADER.pack(MAGIC, VERSION, op, flags, len(entries), len(table), size, number, 0)[:-4]
        head += struct.pack("<I", zlib.crc32(head))
        if table:
            head += table + struct.pack("<I", zlib.crc32(table))
        code = self._code(0, self._sent)
        self._sent += 1
        code and code.update(head)
        words, before = Words(), head
        for start in range(0, size, BLOCK):
            block = payload[start : start + BLOCK]
            words.add(block)
            if flags & CODED:
                code.update(block)
            self._write([before, block])
            before = b""
        last = words.sum.to_bytes(8, "little") if size else b""
        code and code.update(last)
        self._write([before, last, code.digest() if code else b""])

    def _write(self, pieces: list) -> None:
        pieces = [memoryview(piece) for piece in pieces if len(piece)]
        try:
            while pieces:
                sent = self.sock.sendmsg(pieces)
                while pieces and sent >= len(pieces[0]):
                    sent -= len(pieces.pop(0))
                if pieces:
                    pieces[0] = pieces[0][sent:]
        except BlockingIOError:
            raise Broken("the other end takes nothing any more") from None
        except OSError as error:
            raise Broken(f"the connection has ended ({error.strerror or error})") from None

    # ---- receiving

    def receive(self, idle: bool = False) -> Frame | None:
        """The next frame, without its payload. ``idle``: None where nothing comes within the patience."""
        head = bytearray(HEADER.size)
        if self._fill(memoryview(head), idle) is None:
            return None
        magic, version, op, flags, entries, size, payload, number, check = HEADER.unpack(head)
        if magic != MAGIC or zlib.crc32(head[:-4]) != check:
            raise Broken("this is no frame of a d2lps store, or it was changed on its way")
        if version != VERSION:
            raise Broken(f"the other end speaks version {version} of the protocol, this one {VERSION}")
        long = size > self.table or payload > self.payload or entries * ENTRY.size > size
        if long or op not in Op._value2member_map_ or payload and op not in LADEN:
            raise Broken(f"a frame of op {op} with {entries} entries, {size} and {payload} bytes: more than is taken")
        code = self._code(1, self._received)
        self._received += 1
        if code and not flags & CODED and (self.whole or not payload):
            raise Broken("a frame without its code")
        code and code.update(head)
        table = bytearray(size + 4 if size else 0)
        self._fill(memoryview(table))
        code and code.update(table)
        if size and zlib.crc32(table[:-4]) != int.from_bytes(table[-4:], "little"):
            raise Broken("the table of a frame was changed on its way")
        self._open = code  # of the frame whose payload comes next
        if not payload:
            self._coded(code)
        found, said = [], {}
        if entries:
            if entries * ENTRY.size != size:
                raise Broken("the table of a frame has not the length of its entries")
            found = [Entry(*each) for each in ENTRY.iter_unpack(bytes(table[:size]))]
        elif size:
            said = _said(bytes(table[:size]))
        return Frame(Op(op), number, found, said, payload, flags)

    def into(self, frame: Frame, room: memoryview) -> None:
        """The payload of ``frame`` straight into ``room``. Raises Broken where its sum is wrong."""
        if len(room) != frame.payload:
            raise Broken(f"{frame.payload} bytes came where {len(room)} belong")
        if not frame.payload:
            return
        code, words = self._open, Words()
        for start in range(0, len(room), BLOCK):
            block = room[start : start + BLOCK]
            self._fill(block)
            words.add(block)
            if code and frame.flags & CODED:
                code.update(block)
        tail = bytearray(8)
        self._fill(memoryview(tail))
        code and code.update(tail)
        self._coded(code)
        if int.from_bytes(tail, "little") != words.sum:
            raise Broken("the tensors of a frame were changed on their way")

    def skip(self, frame: Frame) -> None:
        """Take the payload of ``frame`` out of the socket, and let it go."""
        room, left = bytearray(min(frame.payload, BLOCK)), frame.payload + (8 if frame.payload else 0)
        while left > 0:
            self._fill(memoryview(room)[: min(left, len(room))])
            left -= min(left, len(room))
        if frame.payload and self.keys:
            self._fill(memoryview(bytearray(32)))

    def _fill(self, view: memoryview, idle: bool = False) -> bool | None:
        """Receive until ``view`` is full."""
        done = 0
        while done < len(view):
            try:
                got = self.sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if idle and not done:
                    return None
                raise Broken("the other end fell silent in the middle of a frame") from None
            except OSError as error:
                raise Broken(f"the connection has ended ({error.strerror or error})") from None
            if not got:
                raise Broken("the connection was closed" if idle and not done else "it ended in the middle of a frame")
            done += got
        return True

    # ---- codes

    def _code(self, direction: int, number: int) -> "hmac.HMAC | None":
        """What covers the next frame in one direction; its number keeps a frame from being played again."""
        return hmac.new(self.keys[direction], number.to_bytes(8, "little"), "sha256") if self.keys else None

    def _coded(self, code: "hmac.HMAC | None") -> None:
        if code is not None:
            given = bytearray(32)
            self._fill(memoryview(given))
            if not hmac.compare_digest(code.digest(), bytes(given)):
                raise Broken("the code of a frame is wrong: it was not made with this connection's key")


def _said(table: bytes) -> dict:
    try:
        found = json.loads(table)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise Broken("the table of a frame is no JSON") from None
    if not isinstance(found, dict):
        raise Broken("the table of a frame is no JSON object")
    return found
