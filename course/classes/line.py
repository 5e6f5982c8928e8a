"""A line between two processes on which they call each other's functions, each from several threads.

A frame is a line of text. It begins with what it says and with its lane: calls that are under way at the same time go
on lanes of their own. Whoever waits reads for all; what is for another lane is put there.
"""

import socket
import threading
import time
from collections import deque

from course.classes import values
from d2lps.notebook.grading.calls import Stopped

LARGEST = 1 << 25  # bytes of a frame
GLANCE = 0.05  # seconds after which a wait looks up


class Gone(Stopped):
    """Nobody is at the other end any more, or it says what cannot be read; ``reason`` names it."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Line:
    """One end of a line.

    Parameters
    ----------
    end : socket
        Connected to the other end.
    quiet : float
        Seconds for which the other end may say nothing to somebody who waits.
    """

    def __init__(self, end: socket.socket, quiet: float = float("inf")):
        self.end, self.quiet = end, quiet
        seconds, microseconds = int(GLANCE), int(GLANCE % 1 * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds, microseconds))
        self._rest = bytearray()
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._boxes: dict[int, deque] = {}
        self._waiting: dict[int, threading.Semaphore] = {}  # lane → what wakes who waits on it while another reads
        self.gone: str | None = None

    def open(self, lane: int) -> None:
        """Frames of this lane are kept until somebody waits for them."""
        self._boxes.setdefault(lane, deque())

    def close(self, lane: int) -> None:
        """Nobody waits on this lane again."""
        self._boxes.pop(lane, None)

    def say(self, frame: list) -> None:
        """Send a frame whose values are written already. Raises Gone."""
        data = values.ENCODE(frame).encode() + b"\n"
        try:
            with self._sending:
                self.end.sendall(data)
        except OSError:
            raise Gone(self.gone or "ended") from None

    def wait(self, lane: int) -> list:
        """The next frame of a lane. Raises Gone."""
        until, box, ready = time.monotonic() + self.quiet, self._boxes[lane], None
        while True:
            if self._reading.acquire(blocking=False):
                try:
                    return box.popleft() if box else self._read_until(lane, until)
                finally:
                    self._waiting.pop(lane, None)
                    self._reading.release()
                    for other in list(self._waiting.values()):
                        other.release()
                        break
            if ready is None:  # whoever reads has to know of this one; then it may have stopped to read
                ready = self._waiting.setdefault(lane, threading.Semaphore(0))
                continue
            if not box:
                ready.acquire(timeout=GLANCE)
            if box:
                self._waiting.pop(lane, None)
                return box.popleft()
            self._require_in_time(until)

    def _read_until(self, lane: int, until: float) -> list:
        """Read until there is something for ``lane``."""
        while True:
            frame = self._frame(until)
            to = frame[1]
            if to == lane:
                return frame
            if to not in self._boxes:
                self.strange(frame)
                continue
            self._boxes[to].append(frame)
            if len(self._boxes[to]) > 4:  # whoever is at the other end waits for an answer to each
                raise self._lost("strange")
            if waiting := self._waiting.get(to):
                waiting.release()

    def strange(self, frame: list) -> None:
        """A frame came for a lane that is not open: nobody wants it."""

    def _frame(self, until: float) -> list:
        while True:
            end = self._rest.find(b"\n")
            if end >= 0:
                text = bytes(self._rest[:end])
                del self._rest[: end + 1]
                return self._parsed(text)
            if len(self._rest) > LARGEST:
                raise self._lost("large")
            try:
                data = self.end.recv(1 << 18)
            except BlockingIOError:
                self._require_in_time(until)
                continue
            except OSError:
                data = b""
            if not data:
                raise self._lost("ended")
            self._rest += data

    def _parsed(self, text: bytes) -> list:
        try:
            frame = values.DECODE(text.decode())
        except (ValueError, RecursionError):
            raise self._lost("strange") from None
        if not isinstance(frame, list) or len(frame) < 3 or type(frame[1]) is not int:
            raise self._lost("strange")
        return frame

    def _require_in_time(self, until: float) -> None:
        if self.gone:
            raise Gone(self.gone)
        if time.monotonic() > until:
            raise self._lost("quiet")

    def _lost(self, reason: str) -> Gone:
        self.gone = self.gone or reason
        return Gone(self.gone)


def _timeval(seconds: int, microseconds: int) -> bytes:
    import struct

    return struct.pack("ll", seconds, microseconds)
