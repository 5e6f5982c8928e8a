"""A worker's connection as its server has it: what comes is read in one thread, what is answered written in another."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.record import Pulled
from d2lps.kvstore.wire import Broken, Channel, Frame, Op

if TYPE_CHECKING:
    from d2lps.kvstore.server.server import Server

ANSWERS, SMALL = 16, 1024  # that a worker has not taken yet; bytes of a payload that is sent without ado


class Answering:
    """Worker ``rank`` at ``channel``. ``handlers``: what is done with each frame that it may send."""

    handlers: dict[Op, Callable[[Frame], object]]

    def __init__(self, server: "Server", channel: Channel, rank: int, incarnation: str):
        self.server, self.channel, self.rank, self.incarnation = server, channel, rank, incarnation
        self.table, self.heard, self.open = server.table, time.monotonic(), True
        self.working = False  # who waits here for others says nothing meanwhile, and is not lost
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._why, self._silent = "its connection has ended", False

    def close(self) -> None:
        self.open = False
        self._answers.put(None)
        self.channel.close()

    def end(self, why: str) -> None:
        self._why, self._silent = why, True
        self.close()

    def run(self) -> None:
        threading.Thread(target=self._write, daemon=True, name=f"d2lps answers to worker {self.rank}").start()
        left = False
        try:
            while not left and (frame := self._next()):
                left = frame.op == Op.BYE
                self.working = True
                self._handle(frame)
                self.heard, self.working = time.monotonic(), False
        except Broken as error:
            self._why = str(error) if self.open else self._why
        except Exception:
            self._why, self._silent = "the server failed at what it asked for", True  # it would fail again
            raise
        finally:  # whatever ends it, the others must not wait for it
            if left:
                self._ok(frame.number)
                time.sleep(0.01)
            self.close()
            self.channel.lent and self.channel.lent.close()  # which nobody but this thread uses
            self.server.gone(self, "it said goodbye" if left else self._why, left, self._silent)

    def _next(self) -> Frame | None:
        while self.open:
            if self._answers.qsize() > ANSWERS:  # what it asks for beyond stays in the socket
                time.sleep(0.005)
            elif (frame := self.channel.receive(idle=True)) is not None:
                self.heard = time.monotonic()
                return frame
        return None

    def _write(self) -> None:
        pause = self.table.deadline / 4
        while self.open:
            try:
                answer = self._answers.get(timeout=pause)
            except queue.Empty:
                answer = ((Op.ALIVE, 0), [])
            if answer is None:
                continue
            with self._sending:
                sent = self._send(*answer)
            if not sent:
                return

    def _send(self, frame: tuple, pulls: Iterable[Pulled]) -> bool:
        start = time.monotonic()
        try:
            self.channel.send(*frame)
        except Broken:
            self.channel.close()
            return False
        self._remember(pulls, start, time.monotonic())
        return True

    def _remember(self, pulls: Iterable[Pulled], start: float, end: float) -> None:
        for pull in pulls if self.table.record else ():
            self.table.record.add(pull._replace(start=start, end=end))

    def _answer(self, *frame, pulls: Sequence[Pulled] = ()) -> None:
        # What is small goes out at once, where nobody need wait for it: to wake another thread takes longer.
        small = len(frame) < 5 or len(frame[4]) <= SMALL
        if small and self._answers.empty() and self._sending.acquire(blocking=False):
            try:
                if self.channel.roomy:
                    self._send(frame, pulls)
                    return
            finally:
                self._sending.release()
        self._answers.put((frame, pulls))

    def _handle(self, frame: Frame) -> None:
        handler = self.handlers.get(frame.op)
        if handler is None:
            self.channel.skip(frame)
            if frame.op in (Op.ALIVE, Op.BYE):
                return
            self._error(frame.number, Refused(f"a worker may not ask a server for {frame.op.name}"))
            return
        try:
            handler(frame)
        except KVError as error:
            self._error(frame.number, error)

    def _error(self, number: int, error: KVError, counted: bool = False) -> None:
        said = {"kind": type(error).__name__, "sentence": str(error), "ranks": list(getattr(error, "ranks", ()))}
        self._answer(Op.ERROR, number, (), said | {"counted": counted})

    def _ok(self, number: int, said: dict | None = None) -> None:
        self._answer(Op.OK, number, (), said)
