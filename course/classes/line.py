"""A line between two processes on which they call each other's functions, each from several threads.

A frame is a line of JSON: its kind, its lane, and its values. Calls that run at the same time have different lanes.
One of the waiting threads reads for all of them, and puts frames of other lanes into their queues.
"""

import socket
import struct
import threading
import time
from collections import deque

from course.classes import values
from d2lps.notebook.grading.calls import Stopped

LARGEST = 1 << 25  # bytes of a frame
TICK = 0.05  # seconds after which a waiting thread checks again


class Gone(Stopped):
    """The other end is closed, silent or unreadable; ``reason`` names it."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Line:
    """One end of a line; ``quiet`` is the time in seconds that the other end may be silent while a thread waits."""

    def __init__(self, end: socket.socket, quiet: float = float("inf")):
        self.end, self.quiet = end, quiet
        timeval = struct.pack("ll", int(TICK), int(TICK % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._rest = bytearray()
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._boxes: dict[int, deque] = {}
        self._waiting: dict[int, threading.Semaphore] = {}  # lane → wakes its thread, while another reads
        self.gone: str | None = None

    def open(self, lane: int) -> None:
        """Keep frames of this lane until a thread waits for them."""
        self._boxes.setdefault(lane, deque())

    def close(self, lane: int) -> None:
        """Drop the frames of this lane."""
        self._boxes.pop(lane, None)

    def say(self, frame: list) -> None:
        """Send a frame of encoded values. Raises Gone."""
        data = values.ENCODE(frame).encode() + b"\n"
        try:
            with self._sending:
                self.end.sendall(data)
        except OSError:
            raise self._lost("ended") from None

    def wait(self, lane: int) -> list:
        """Return the next frame of a lane. Raises Gone."""
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
            if ready is None:  # be known to the reading thread; by then it may have stopped reading
                ready = self._waiting.setdefault(lane, threading.Semaphore(0))
                continue
            if not box:
                ready.acquire(timeout=TICK)
            if box:
                self._waiting.pop(lane, None)
                return box.popleft()
            self._require_in_time(until)

    def _read_until(self, lane: int, until: float) -> list:
        """Read until a frame for ``lane`` comes."""
        while True:
            frame = self._frame(until)
            to = frame[1]
            if to == lane:
                return frame
            if to not in self._boxes:
                self.on_new_lane(frame)
                continue
            self._boxes[to].append(frame)
            if len(self._boxes[to]) > 4:  # the other end waits for an answer to each frame
                raise self._lost("strange")
            if waiting := self._waiting.get(to):
                waiting.release()

    def on_new_lane(self, frame: list) -> None:
        """Take a frame for a lane that is not open; by default it is dropped."""

    def _frame(self, until: float) -> list:
        start = 0
        while True:
            end = self._rest.find(b"\n", start)
            if end >= 0:
                text = bytes(self._rest[:end])
                del self._rest[: end + 1]
                return self._parsed(text)
            if len(self._rest) > LARGEST:
                raise self._lost("large")
            start = len(self._rest)  # else a frame that comes byte by byte would be searched as often
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
