"""Frames over a socket: how they are sent, received and checked."""

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
from d2lps.kvstore.errors import Refused, server_text
from d2lps.kvstore.wire import frames
from d2lps.kvstore.wire.frames import CODED, ENTRY, HEADER, MAGIC, NOTHING, VERSION, Broken, Checksum, Entry, Frame, Op
from d2lps.kvstore.wire.shared_buffer import RemoteBuffer
from d2lps.messages import text

BLOCK = 4 << 20  # bytes that are received at once, and summed while they are in the cache


class Channel:
    """Frames over a connected stream socket. One thread may send while another receives.

    Args:
        sock: A connected stream socket; the channel closes it.
        seconds: The longest pause in the middle of a frame.

    Attributes:
        keys (tuple of bytes, or None): The keys of the codes for frames sent and received, 32 bytes each, once they are
            agreed.
        covers_payload (bool): True if the codes also cover the payloads.
        remote (RemoteBuffer, or None): Memory of the other end, if both are on one host.

    Example:
        >>> one, other = (Channel(end, seconds=5) for end in socket.socketpair())
        >>> one.send(Op.BARRIER, number=7, metadata={"round": 1})
        >>> other.receive().metadata
        {'round': 1}
        >>> one.close(), other.close()
        (None, None)
    """

    def __init__(self, sock: socket.socket, seconds: float):
        self.sock, self.covers_payload = sock, False
        self.keys: tuple[bytes, ...] | None = None
        self._sent = self._received = 0
        self.table, self.payload = frames.TABLE, frames.PAYLOAD  # most bytes; fewer until the other end is known
        self.remote: RemoteBuffer | None = None
        self._left: int | None = 0  # bytes of a payload that is not received yet; None if it was received in part
        sock.setblocking(True)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.patience(seconds)

    @property
    def peer(self) -> int | None:
        """The process at the other end of a Unix socket, as the kernel reports it."""
        if self.sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return None
        return struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    @property
    def roomy(self) -> bool:
        """True if a small frame can be sent without waiting."""
        with suppress(OSError, ValueError):  # it may be closed
            (ready := select.poll()).register(self.sock, select.POLLOUT)
            return bool(ready.poll(0))
        return False

    def borrow(self, lent: object) -> bool:
        """Open the memory of the other end, as :attr:`remote`.

        Args:
            lent: The path, inode and bytes that the other end has sent.

        Returns:
            True if it could be opened.
        """
        with suppress(TensorError):
            self.remote = RemoteBuffer(lent, self.peer) if isinstance(lent, dict) and self.peer else None
        return self.remote is not None

    def patience(self, seconds: float) -> None:
        """Set the longest pause of the socket.

        Args:
            seconds: More than 0.
        """
        # The kernel keeps the time: with a timeout of Python, MSG_WAITALL would not wait for all bytes.
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6) or 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, limit)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for it
        self.sock.close()

    # ---- sending

    def send(
        self,
        op: Op,
        number: int = 0,
        entries: "Sequence[Entry] | np.ndarray" = (),
        metadata: dict | None = None,
        payload: memoryview = NOTHING,
        shared: bool = False,
    ) -> None:
        """Send a frame.

        Args:
            op: The operation that it requests or answers.
            number: The number of the request, which its answer repeats.
            entries (sequence of Entry, or array of ``frames.ENTRIES``): The parts that it is about.
            metadata: The table as JSON, if there are no entries.
            payload: Bytes of tensors (:func:`raw`).
            shared: True if the payload has the offsets of tensors in shared memory.

        Raises:
            Refused: The frame is too long: nothing was sent, and the channel can still be used.
            Broken: The connection has ended, or the other end has received nothing for too long.
        """
        table = entries.tobytes() if isinstance(entries, np.ndarray) else b"".join(ENTRY.pack(*one) for one in entries)
        if metadata is not None:
            table = json.dumps(metadata, ensure_ascii=False).encode("utf-8", "surrogatepass")
        size = len(payload)
        if len(table) > frames.TABLE or size > frames.PAYLOAD:
            most = {"most_table": frames.TABLE, "most": frames.PAYLOAD}
            raise Refused(text("store.long-frame", table=len(table), size=size, **most))
        flags = (CODED if self.keys and (self.covers_payload or not size) else 0) | (frames.SHARED if shared else 0)
        head = HEADER.pack(MAGIC, VERSION, op, flags, len(entries), len(table), size, number, 0)[:-4]
        head += struct.pack("<I", zlib.crc32(head))
        if table:
            head += table + struct.pack("<I", zlib.crc32(table))
        code = self._code(0, self._sent)
        self._sent += 1
        if code:
            code.update(head)
        checksum, before = Checksum(), head
        for start in range(0, size, BLOCK):
            block = payload[start : start + BLOCK]
            checksum.add(block)
            if code and flags & CODED:
                code.update(block)
            self._write([before, block])
            before = b""
        last = checksum.digest() if size else b""
        if code:
            code.update(last)
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
            raise Broken("the other end has stopped receiving") from None
        except OSError as error:
            raise Broken(server_text("store.server.cut", why=error.strerror or error)) from None

    # ---- receiving

    def receive(self, idle: bool = False) -> Frame | None:
        """Receive the next frame without its payload, which :meth:`into` or :meth:`skip` must receive next.

        Args:
            idle: True to return None if nothing arrives within the patience.

        Returns:
            The frame, or None if nothing arrived.

        Raises:
            Broken: The data is not a valid frame, or the connection has ended.
        """
        head = bytearray(HEADER.size)
        if self._fill(memoryview(head), idle) is None:
            return None
        magic, version, op, flags, entries, size, payload, number, check = HEADER.unpack(head)
        if magic != MAGIC or zlib.crc32(head[:-4]) != check:
            raise Broken("the data is not a frame of a d2lps store, or was changed on its way")
        if version != VERSION:
            raise Broken(f"the other end uses version {version} of the protocol, this one {VERSION}")
        long = size > self.table or payload > self.payload or entries * ENTRY.size > size
        if long or op not in Op._value2member_map_ or payload and op not in frames.LADEN:
            raise Broken(f"a frame of op {op} with {entries} entries, {size} and {payload} bytes is not accepted")
        code = self._code(1, self._received)
        self._received += 1
        if code and not flags & CODED and (self.covers_payload or not payload):
            raise Broken("a frame without its code")
        if code:
            code.update(head)
        table = bytearray(size + 4 if size else 0)
        self._fill(memoryview(table))
        if code:
            code.update(table)
        if size and zlib.crc32(table[:-4]) != int.from_bytes(table[-4:], "little"):
            raise Broken("the table of a frame was changed on its way")
        self._left = payload
        self._open = code  # for the frame whose payload comes next
        if not payload:
            self._verify(code)
        if entries and entries * ENTRY.size != size:
            raise Broken("the table of a frame does not have the length of its entries")
        parts = [Entry(*fields) for fields in ENTRY.iter_unpack(bytes(table[:size]))] if entries else []
        metadata = _metadata(bytes(table[:size])) if size and not entries else {}
        return Frame(Op(op), number, parts, metadata, payload, flags)

    def into(self, frame: Frame, buffer: memoryview) -> None:
        """Receive the payload of a frame directly into its memory.

        Args:
            frame: The one that was received last.
            buffer: ``frame.payload`` bytes.

        Raises:
            Broken: Its checksum or code is wrong, or the connection has ended.
        """
        if len(buffer) != frame.payload:
            raise Broken(f"a payload of {frame.payload} bytes instead of {len(buffer)}")
        if not frame.payload:
            return
        code, checksum, self._left = self._open, Checksum(), None
        for start in range(0, len(buffer), BLOCK):
            block = buffer[start : start + BLOCK]
            self._fill(block)
            checksum.add(block)
            if code and frame.flags & CODED:
                code.update(block)
        tail = bytearray(8)
        self._fill(memoryview(tail))
        if code:
            code.update(tail)
        self._verify(code)
        if tail != checksum.digest():
            raise Broken("the tensors of a frame were changed on their way")
        self._left = 0

    def skip(self, frame: Frame) -> None:
        """Discard the payload of a frame, unless it was received.

        Args:
            frame: The one that was received last.

        Raises:
            Broken: A part of it was received, so the next bytes do not begin a frame.
        """
        if self._left is None:
            raise Broken("a payload was received only in part")
        if not self._left:
            return
        buffer, left, self._left = bytearray(min(frame.payload, BLOCK)), frame.payload + 8, None
        while left > 0:
            self._fill(memoryview(buffer)[: min(left, len(buffer))])
            left -= min(left, len(buffer))
        if self.keys:
            self._fill(memoryview(bytearray(32)))
        self._left = 0

    def _fill(self, view: memoryview, idle: bool = False) -> bool | None:
        """Receive until ``view`` is full."""
        done = 0
        while done < len(view):
            try:
                got = self.sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if idle and not done:
                    return None
                raise Broken(server_text("store.server.silent-within")) from None
            except OSError as error:
                raise Broken(server_text("store.server.cut", why=error.strerror or error)) from None
            if not got and idle and not done:
                raise Broken(server_text("store.server.closed"))
            if not got:
                raise Broken(server_text("store.server.closed-within"))
            done += got
        return True

    # ---- codes

    def _code(self, direction: int, number: int) -> "hmac.HMAC | None":
        """Start the code of the next frame in one direction; its number prevents a replay."""
        return hmac.new(self.keys[direction], number.to_bytes(8, "little"), "sha256") if self.keys else None

    def _verify(self, code: "hmac.HMAC | None") -> None:
        """Receive the code, and compare it."""
        if code is not None:
            received = bytearray(32)
            self._fill(memoryview(received))
            if not hmac.compare_digest(code.digest(), bytes(received)):
                raise Broken("the code of a frame is wrong: it was not made with this connection's key")


def _metadata(table: bytes) -> dict:
    try:
        metadata = json.loads(table)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise Broken("the table of a frame is not JSON") from None
    if not isinstance(metadata, dict):
        raise Broken("the table of a frame is not a JSON object")
    return metadata
