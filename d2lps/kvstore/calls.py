"""The calls of a store, each done in a thread of the store's own.

Ctrl-C is raised in the thread that called, between any two of its steps. There it finds nothing half done: that thread
only waits, and the one that works ends what it is at in order, and stops. So several threads may call one store, too:
what names the same key waits for its turn.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor

from d2lps.kvstore.errors import KVError, Refused, Timeout

FORKED = "this store belongs to the process that this one was forked from: make a store in this process"
CLOSED = "this store is closed"
THREADS = 256  # that may call at once; they are made as they are needed
GRACE = 10.0  # seconds at most for which an interrupted call may end what it is at


class Interrupted(KVError):
    """What a call ends with whose caller does not wait for it any more."""


class Call:
    """One call, which takes ``keys`` for itself; ``stop``: what ends its waiting when it is interrupted."""

    def __init__(self, keys: Collection[Hashable]):
        self.keys, self.interrupted, self.over = keys, False, False
        self.stop: Callable[[], object] = bool
        self.result = self.error = None
        self.ended = threading.Lock()
        self.ended.acquire()
        self._begun, self._changing = False, threading.Lock()

    def begin(self) -> bool:
        """False where it was interrupted before it began."""
        with self._changing:
            self._begun = not self.interrupted
            return self._begun

    def require_wanted(self) -> None:
        """Raises Interrupted where nobody waits for it any more."""
        if self.interrupted:
            raise Interrupted("the call was interrupted")

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Say how to end the waiting that begins now. Raises Interrupted."""
        self.stop = stop
        self.require_wanted()  # after that: an interruption comes before, or finds it

    def interrupt(self) -> None:
        """Have it end as soon as it can."""
        with self._changing:
            self.interrupted = True
        self.stop()

    def end(self) -> bool:
        """Wait until it has ended, if it ever began, which is the answer."""
        until = time.monotonic() + GRACE
        while self._begun and not self.over and time.monotonic() < until:
            try:
                self.ended.acquire(timeout=0.05)
            except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                continue
        return self._begun


class Calls:
    """The calls of one store. ``patience``: seconds that one may wait for another of the same key."""

    def __init__(self, name: str, patience: float):
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._patience, self._process = patience, os.getpid()
        self._running: list[Call] = []
        self._changed = threading.Condition()
        self._mine = threading.local()

    @property
    def current(self) -> Call:
        """In the thread of a call: that call."""
        return self._mine.call

    def run(self, keys: Collection[Hashable], work: Callable, *arguments, missed: Callable | None = None):
        """What ``work(*arguments)`` gives, when no other call of one of ``keys`` is at work.

        What interrupts it gets ``counted`` and ``unknown`` as a KVError has them; ``missed()`` gives these where the
        call was done before it could be interrupted.
        """
        if os.getpid() != self._process:
            raise Refused(FORKED)  # before its threads are asked, which are not here
        call = Call(keys)
        try:
            self._submit(call, work, arguments)
            call.ended.acquire()
        except KVError:
            raise
        except BaseException as interruption:
            call.interrupt()
            with self._changed:  # where it waits for its turn
                self._changed.notify_all()
            done = call.end() and call.error is None
            error = missed() if done and missed else call.error
            interruption.counted = getattr(error, "counted", ())
            interruption.unknown = getattr(error, "unknown", ())
            raise
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            del call  # which the error's traceback would hold, and with it the tensors

    def close(self) -> None:
        self.threads.shutdown(wait=False)

    def _submit(self, call: Call, work: Callable, arguments: tuple) -> None:
        try:
            self.threads.submit(self._work, call, work, arguments)
        except RuntimeError:
            raise Refused(CLOSED) from None

    def _work(self, call: Call, work: Callable, arguments: tuple) -> None:
        try:
            if call.begin():
                self._take(call)
                try:
                    self._mine.call = call
                    call.result = work(*arguments)
                finally:
                    self._mine.call = None
                    self._give_back(call)
        except BaseException as error:
            call.error = error
        finally:
            call.over = True
            call.ended.release()

    def _take(self, call: Call) -> None:
        def free() -> bool:
            return call.interrupted or not any(self._meet(call, other) for other in self._running)

        with self._changed:
            if not self._changed.wait_for(free, self._patience):
                raise Timeout(f"another thread has been at work on the same key for {self._patience:.3g} s")
            call.require_wanted()
            self._running.append(call)

    def _give_back(self, call: Call) -> None:
        with self._changed:
            self._running.remove(call)
            self._changed.notify_all()

    @staticmethod
    def _meet(one: Call, other: Call) -> bool:
        return not frozenset(one.keys).isdisjoint(other.keys)
