"""Connections between servers of a slot: messages arrive in order, once, or are lost with the connection."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore import threads
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.replication import View
from d2lps.kvstore.replication.messages import Ack, Add, Apply, Heartbeat, Join, Name, Snapshot
from d2lps.kvstore.server.coding import MESSAGES, Piece, buffers, decode, encode, split
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import DTYPES, NOTHING, Broken, Frame, Op, as_bytes, raw

PULSE = 0.1  # seconds between heartbeats
STILL = 5.0  # seconds that a connection may stand still, at most
SMALL = 1 << 14  # bytes that are sent without waking a thread
MOST, BYTES = 512, 1 << 18  # messages, and bytes of their tensors, in one frame; larger tensors travel in pieces


class Peers(NamedTuple):
    """The data with which servers of a run connect to each other."""

    run: str
    secret: bytes = b""

    def connect(self, slot: int, mine: Name, other: Name) -> Channel:
        """Return a connection to ``other``. Raises OSError, Broken or Refused."""
        hello = {"rank": -1, "run": self.run, "slot": slot, "server": mine}
        channel, _ = handshake.connect(other[2], 1.0, self.secret, hello)
        channel.patience(STILL)
        return channel


def refused(other: Name) -> bool:
    """Return True if no server listens there any more."""
    address = other[2]
    try:
        with handshake.new_socket(address) as sock:
            sock.settimeout(1.0)
            sock.connect(address)
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False


class PeerConnection:
    """A connection from this server to another one: a thread sends the messages that are put, and heartbeats.

    ``connect()`` returns a channel; ``opened(connection)`` is called for each before anything is sent;
    ``refused()`` is called when it ends because no server listens there any more.
    """

    def __init__(self, connect: Callable[[], Channel], opened: Callable, refused: Callable):
        self._connect, self._opened, self._refused = connect, opened, refused
        self._queue: deque[NamedTuple] = deque()
        self._wanted, self._sending = threading.Condition(), threading.Lock()
        self._ready = False  # there is a connection, and opened() has been called
        self._channel: Channel | None = None
        self._sent: tuple[int, int] = (0, 0)  # the view and number of the last command that was put
        self._when = 0.0  # commands were last sent
        self._snapshots = 0  # on their way
        self._commands = 0  # in the queue
        self.open = True
        threads.start("d2lps connection between servers", self._run)

    def put(self, message: NamedTuple) -> None:
        """Send a message at the next :meth:`pump`, unless it is on its way already."""
        with self._wanted:
            last = self._queue[-1] if self._queue else None
            if isinstance(message, Apply):
                if self._is_under_way(message):
                    return
                self._sent = message.view.number, message.seq
                self._commands += 1
            elif isinstance(message, Snapshot):
                if self._snapshots:
                    return
                self._snapshots += 1
            elif isinstance(message, Ack) and isinstance(last, Ack) and last.view == message.view:
                message = message._replace(turn=max(message.turn, last.turn))
                self._queue.pop()  # the new one replaces it
            elif isinstance(message, Heartbeat | Join | View) and message == last:
                return
            self._queue.append(message)

    def pump(self) -> None:
        """Send the messages that were put: at once if they are small, as to wake a thread takes longer."""
        if self._ready and self._sending.acquire(blocking=False):
            try:
                with self._wanted:
                    small = sum(map(_size, self._queue)) <= SMALL
                    messages = self._taken() if small and self._channel.roomy else []
                if messages:
                    self._send(messages)
            except Broken:
                self._channel.close()  # the thread will find out
            finally:
                self._sending.release()
        with self._wanted:
            if self._queue:
                self._wanted.notify()

    def _is_under_way(self, apply: Apply) -> bool:
        view, seq = self._sent
        lately = self._commands or time.monotonic() - self._when < 1.0
        return view == apply.view.number and apply.seq <= seq and lately

    def begin(self) -> None:
        """Prepare for a new connection: commands that were sent over the last one are to be sent again."""
        with self._wanted:
            self._queue = deque(message for message in self._queue if not isinstance(message, Apply))
            self._sent, self._commands = (0, 0), 0
            self._snapshots = sum(isinstance(message, Snapshot) for message in self._queue)

    @property
    def idle(self) -> bool:
        return not self._queue

    def close(self) -> None:
        self.open = False
        if self._channel:
            self._channel.close()
        with self._wanted:
            self._queue.clear()
            self._wanted.notify()

    def _run(self) -> None:
        gone = False
        try:
            while self.open:
                self._channel = self._connect()
                self._opened(self)
                self._ready = True
                with suppress(Broken):
                    while self.open:
                        self._pass_on()
                self._ready = False
                self._channel.close()
        except (ConnectionRefusedError, FileNotFoundError):
            gone = True
        except (OSError, Refused):
            pass  # it may listen later; others notice that it is silent
        finally:
            self.open = False
            if self._channel:
                self._channel.close()
            if gone:
                self._refused()

    def _pass_on(self) -> None:
        with self._wanted:
            if not self._queue:
                self._wanted.wait(PULSE)
        with self._sending:
            with self._wanted:
                messages = self._taken()
            self._send(messages)

    def _taken(self) -> list[NamedTuple]:
        taken = [self._queue.popleft() for _ in range(min(MOST, len(self._queue)))]
        self._commands -= sum(isinstance(message, Apply) for message in taken)
        return taken

    def _send(self, messages: list[NamedTuple]) -> None:
        if not messages:
            self._channel.send(Op.ALIVE)
            return
        if any(isinstance(message, Apply) for message in messages):
            self._when = time.monotonic()
        said, tensors = [], []
        for message in messages:
            for part in split(message):
                said.append(encode(part, tensors))
                if tensors and tensors[-1].nbytes > BYTES or len(tensors) >= MOST or type(part) is Piece:
                    self._say(said, tensors)
                    said, tensors = [], []
            if isinstance(message, Snapshot):
                with self._wanted:
                    self._snapshots -= 1
        if said:
            self._say(said, tensors)

    def _say(self, said: list, tensors: list[Tensor]) -> None:
        """Send one frame; or one that announces tensors, and then these in pieces, each of which is a heartbeat."""
        flat = [as_bytes(each) for each in tensors if each.numel()]
        large = sum(map(len, flat)) > BYTES
        whole = flat[0] if len(flat) == 1 else torch.cat(flat) if flat and not large else None
        metadata = {
            "said": said,
            "tensors": [[DTYPES.index(each.dtype), each.numel()] for each in tensors],
            "large": large,
        }
        self._channel.send(Op.PEER, metadata=metadata, payload=NOTHING if large or whole is None else raw(whole))
        for each in flat if large else ():
            for start in range(0, len(each), BYTES):
                self._channel.send(Op.PEER, payload=raw(each[start : start + BYTES]))
                self._when = time.monotonic()


def _size(message: NamedTuple) -> int:
    """Return about how many bytes a message takes on the wire."""
    if isinstance(message, Apply):
        total = getattr(message.command, "total", None)
        return 256 + (total.nbytes if total is not None else 0 if isinstance(message.command, Add) else SMALL)
    return SMALL if isinstance(message, Snapshot) else 64


def hear(channel: Channel, frame: Frame, alive: Callable[[], object]) -> Iterator[NamedTuple]:
    """Yield the messages of a frame and its pieces. Raises Broken. ``alive`` is called as bytes come."""
    try:
        said, tensors = frame.metadata["said"], buffers(frame.metadata["tensors"])
        if frame.metadata["large"]:
            for each in tensors:
                view = as_bytes(each) if each.numel() else each
                for start in range(0, len(view), BYTES):
                    piece = channel.receive()
                    channel.into(piece, raw(view[start : start + BYTES]))
                    alive()
        else:
            whole = torch.empty(frame.payload, dtype=torch.uint8)
            channel.into(frame, raw(whole))
            start = 0
            for each in tensors:
                if each.numel():
                    as_bytes(each).copy_(whole[start : start + each.nbytes])
                start += each.nbytes
        those = iter(tensors)
        messages = [decode(each, those) for each in said]
        if not {*map(type, messages)} <= {*MESSAGES}:
            raise ValueError("it is of no kind of message")
        yield from messages
    except Broken:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, StopIteration) as error:
        raise Broken(f"a server says what is no message ({error})") from None


def begins_snapshot(frame: Frame) -> bool:
    """Return True if a piece of a snapshot is in a frame: a learner need not ask again while that comes."""
    return any(isinstance(said, dict) and Piece.__name__ in said for said in frame.metadata.get("said", ()))


class Snapshots:
    """Joins the pieces of a snapshot."""

    def __init__(self):
        self._parts, self._names = [], []
        self.coming = False

    def whole(self, message: NamedTuple) -> tuple | None:
        """Return the message, or None if more pieces are to come."""
        self.coming = isinstance(message, Piece)
        if self.coming:
            self._parts += message.parts
            self._names += message.names
            return None
        if isinstance(message, Snapshot):
            facts = message.facts._replace(names=tuple(self._names))
            message = message._replace(parts=tuple(self._parts), facts=facts)
            self._parts, self._names = [], []
        return message
