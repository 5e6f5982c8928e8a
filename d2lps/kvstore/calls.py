"""Calls of a store, each of which runs in a thread of the store's own.

Ctrl-C can interrupt the thread that called between any two of its steps. It finds nothing half done there: that thread
only waits, and the thread that works ends its present step and stops. For the same reason several threads may call one
store: calls that name the same key run one after the other.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from contextlib import nullcontext, suppress
from queue import SimpleQueue

import torch

from d2lps.kvstore import threads
from d2lps.kvstore.errors import KVError, Refused, Timeout, as_known
from d2lps.messages import text

GRACE = 10.0  # seconds at most for which an interrupted call may go on with its present step


class Interrupted(KVError):
    """The error of a call whose caller does not wait for it any more."""


class Once:
    """An event that happens once. A thread that sets it, or waits for it, may be interrupted: no lock stays taken.

    A Condition is not safe in this way: Ctrl-C may come after its ``__enter__`` took the lock and before it returned.
    """

    def __init__(self):
        self._set, self._lock = False, threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._set = True
        with suppress(RuntimeError):  # it was set before
            self._lock.release()

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds, and return True if it has happened."""
        if not self._set and self._lock.acquire(timeout=max(0.0, seconds)):
            self.set()
        return self._set


class Call:
    """One call of a store. Each kind of call implements :meth:`work`.

    ``keys``: no other call with one of these runs at the same time. ``alone``: no other call with any key does.
    ``until``: the time by which it has to begin, set by :meth:`Calls.run`. ``stop``: ends the waiting of a call that is
    interrupted.
    """

    alone = False

    def __init__(self, keys: Collection[Hashable] = ()):
        self.keys, self.until = frozenset(keys), 0.0
        self.caller, self.interrupted, self.ended = threading.get_ident(), False, Once()
        self.stop: Callable[[], object] = bool
        self.result = self.error = self.follow = None
        self._begun, self._changing = False, threading.Lock()
        # Kernels of the caller write and read in the order of its stream: each thread has a stream of its own.
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def work(self):
        """Do it, in a thread of the store, and return the result."""
        raise NotImplementedError

    def repairs(self, unended: str) -> bool:
        """Return True if it may run although the last call named ``unended`` did not end."""
        return False

    def missed(self, done: bool) -> KVError | None:
        """Return an error with ``counted`` and ``unknown`` for a caller that was interrupted and got no result.

        ``done``: the call ended before the interruption reached it; otherwise it never began.
        """
        return None

    def begin(self) -> bool:
        """Return False if it was interrupted before it began."""
        with self._changing:
            self._begun = not self.interrupted
            return self._begun

    def do(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            self.result = self.work()

    def require_wanted(self) -> None:
        """Raise Interrupted if its caller does not wait for it any more."""
        if self.interrupted:
            raise Interrupted("the call was interrupted")

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Set the function that ends the waiting that begins now. Raises Interrupted."""
        self.stop = stop
        self.require_wanted()  # in this order: an interruption comes before this line, or finds ``stop``

    def interrupt(self) -> bool:
        """Make it end, wait until it has ended, and return True if it ever began."""
        until = time.monotonic() + GRACE
        while True:
            try:
                with self._changing:
                    self.interrupted = True
                self.stop()
                while self._begun and not self.ended.wait(0.05) and time.monotonic() < until:
                    pass
                return self._begun
            except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                continue


class Missed(Call):
    """A call that finds out what a call that was interrupted has done."""

    def __init__(self, call: Call, done: bool):
        super().__init__()
        self._call, self._done = call, done

    def work(self) -> KVError | None:
        return self._call.missed(self._done)

    def repairs(self, unended: str) -> bool:
        return True


class Calls:
    """The calls of one store. Those that name the same key run one after the other, all others at the same time.

    ``patience``: seconds that a call may wait for another.
    There is always one more thread than there are calls. It waits for the next call.
    """

    def __init__(self, name: str, patience: float):
        self._name, self._patience, self._process = name, patience, os.getpid()
        self.unended: str | None = None  # the name of a call of all workers that raised before it ended
        self._asked: deque[Call] = deque()
        self._signs: SimpleQueue[None] = SimpleQueue()  # one for each of them, and one at the end; more do no harm
        self._running: list[Call] = []
        self._waiting: list[Call] = []  # calls that have to be alone
        self._changed = threading.Condition()  # no caller takes it: Ctrl-C could come while it does
        self._idle: deque[None] = deque()  # one for each thread that waits; it needs no lock, which could stay taken
        self._mine = threading.local()
        self._open = True
        self._start()

    @property
    def current(self) -> Call:
        """In the thread of a call: that call."""
        return self._mine.call

    def run(self, call: Call):
        """Run ``call`` when no other call uses its keys, and return its result.

        An exception that interrupts it gets the attributes ``counted`` and ``unknown`` of a KVError.
        """
        self._require_open()
        call.until = time.monotonic() + self._patience
        try:
            self._ask(call)
            while not call.ended.wait(1.0):
                if not self._open and not call.interrupt():
                    raise Refused(text("store.closed"))
        except Refused:
            raise
        except BaseException as interruption:
            while True:
                try:
                    self._settle(call, interruption)
                    break
                except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                    continue
            raise
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            del call  # the traceback of the error would hold it, and with it the tensors

    def _require_open(self) -> None:
        if os.getpid() != self._process:  # the threads are in another process
            raise Refused(text("store.forked"))
        if not self._open:
            raise Refused(text("store.closed"))

    def _settle(self, call: Call, interruption: BaseException) -> None:
        """End an interrupted call, and note on ``interruption`` what it did. Can be repeated if interrupted itself."""
        begun, error = call.interrupt(), call.error
        asks = type(call).missed is not Call.missed
        if error is None and asks and self._open and (not begun or call.ended.is_set()):
            if call.follow is None:
                follow = Missed(call, begun)
                self._ask(follow)
                call.follow = follow
            until = time.monotonic() + GRACE
            while not call.follow.ended.wait(0.05) and time.monotonic() < until:
                pass
            error = call.follow.result
        with suppress(Exception):  # some exceptions take no attributes
            interruption.counted, interruption.unknown = getattr(error, "counted", ()), getattr(error, "unknown", ())

    def close(self) -> None:
        """Let running calls end; no other call begins."""
        self._open = False
        self._signs.put(None)

    def _ask(self, call: Call) -> None:
        self._asked.append(call)
        self._signs.put(None)

    # ---- the threads

    def _start(self) -> None:
        self._idle.append(None)  # before the thread exists: it may take a call at once
        try:
            threads.start(self._name, self._serve)
        except RuntimeError:
            with suppress(IndexError):
                self._idle.pop()
            raise

    def _serve(self) -> None:
        going = True
        while going:
            with suppress(BaseException):  # another thread interrupted this one between two calls: it goes on
                while going:
                    going = self._serve_next()
        self._signs.put(None)  # for the next thread

    def _serve_next(self) -> bool:
        """Do a call when there is one. Return False at the end."""
        call = self._next()
        if call is None:
            return self._open
        try:
            with suppress(IndexError):
                self._idle.pop()
            if not self._idle:
                with suppress(RuntimeError):  # no more threads can be started: the next call waits for this one
                    self._start()
            self._do(call)
        except BaseException as error:
            call.error = call.error or as_known(error)
        finally:
            call.ended.set()
            self._idle.append(None)
        return True

    def _next(self) -> Call | None:
        """Return the next call, if it is still there. An exception in a thread that waits costs a sign, not a call."""
        with suppress(BaseException):
            if not self._asked and self._open:
                self._signs.get()
        with suppress(IndexError):
            return self._asked.popleft()
        return None

    def _do(self, call: Call) -> None:
        try:
            if call.begin():
                self._take_turn(call)
                try:
                    self._mine.call = call
                    if self.unended and not call.repairs(self.unended):
                        raise Refused(text(f"store.unended.{self.unended}"))
                    call.do()
                finally:
                    self._mine.call = None
                    self._give_back(call)
        except BaseException as error:  # also one that another thread raised in this one: the call is not done
            call.error = as_known(error)
        finally:
            call.ended.set()

    def _take_turn(self, call: Call) -> None:
        with self._changed:
            if call.alone:
                self._waiting.append(call)
            try:
                while self._has_to_wait(call):
                    if time.monotonic() > call.until:
                        raise Timeout(text("store.busy", seconds=f"{self._patience:.3g}"))
                    self._changed.wait(0.05)
                    call.require_wanted()
            finally:
                if call.alone:
                    self._waiting.remove(call)
                    self._changed.notify_all()
            self._running.append(call)

    def _has_to_wait(self, call: Call) -> bool:
        if call.alone:  # also one of several that have to be alone
            return self._waiting[0] is not call or any(other.keys or other.alone for other in self._running)
        if not call.keys:
            return False
        return bool(self._waiting) or any(
            other.alone or not call.keys.isdisjoint(other.keys) for other in self._running
        )

    def _give_back(self, call: Call) -> None:
        with self._changed:
            self._running.remove(call)
            self._changed.notify_all()
