"""The calls of a store, each done in a thread of the store's own.

Ctrl-C is raised in the thread that called, between any two of its steps. There it finds nothing half done: that thread
only waits, and the one that works ends what it is at in order, and stops. So several threads may call one store, too:
what names the same key waits for its turn.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue

import torch

from d2lps.kvstore import threads
from d2lps.kvstore.errors import KVError, Refused, Timeout, as_known
from d2lps.messages import text

PAUSE = 0.01  # seconds between two tries
GRACE = 10.0  # seconds at most for which an interrupted call may end what it is at


class Interrupted(KVError):
    """What a call ends with whose caller does not wait for it any more."""


class Once:
    """An event that comes once. Whoever sets it, or waits, may be interrupted: it has no lock that stays taken.

    A Condition has: Ctrl-C may come when its ``__enter__`` has taken the lock, and has not returned.
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

    def wait(self, seconds: float, meanwhile: Callable[[], object] | None = None) -> bool:
        """Whether it comes within so many seconds; ``meanwhile`` is done again and again."""
        until = time.monotonic() + seconds
        while meanwhile and not self.wait(min(PAUSE, seconds)) and time.monotonic() < until:
            meanwhile()
        if not self._set and self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            self.set()
        return self._set


class Call:
    """One call, which takes ``keys`` for itself, and has time ``until`` then.

    ``stop``: what ends its waiting when it is interrupted; ``follow``: what was asked after it was.
    """

    def __init__(self, keys: Collection[Hashable], work: Callable, arguments: tuple, until: float = 0.0):
        self.keys, self._work, self._arguments, self.until = keys, work, arguments, until
        self.caller, self.interrupted, self.ended = threading.get_ident(), False, Once()
        self.stop: Callable[[], object] = bool
        self.result = self.error = self.follow = None
        self._begun, self._changing = False, threading.Lock()
        # What the caller's kernels write and read comes in its order: a thread has a stream of its own.
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def begin(self) -> bool:
        """False where it was interrupted before it began."""
        with self._changing:
            self._begun = not self.interrupted
            return self._begun

    def do(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            self.result = self._work(*self._arguments)

    def require_wanted(self) -> None:
        """Raises Interrupted where nobody waits for it any more."""
        if self.interrupted:
            raise Interrupted("the call was interrupted")

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Say how to end the waiting that begins now. Raises Interrupted."""
        self.stop = stop
        self.require_wanted()  # after that: an interruption comes before, or finds it

    def interrupt(self) -> bool:
        """Have it end, wait until it has, and say whether it ever began."""
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


class Calls:
    """The calls of one store, side by side; of those that name the same key, one after the other.

    ``patience``: seconds that one may wait for another; ``forks``: whether a child that is forked may go on with it.
    One thread more than there are calls waits for the next.
    """

    def __init__(self, name: str, patience: float, forks: bool = False):
        self._name, self._patience, self._forks, self._process = name, patience, forks, os.getpid()
        self._asked: deque[Call] = deque()
        self._signs: SimpleQueue[None] = SimpleQueue()  # one for each of them, and one at the end; some more do no harm
        self._running: list[tuple[Call, frozenset]] = []  # with what each has taken
        self._changed = threading.Condition()  # which no caller takes: it would be interrupted there
        self._idle: deque[None] = deque()  # one for each thread that waits; without a lock, which could stay taken
        self._mine = threading.local()
        self._open = True
        self._start()

    @property
    def current(self) -> Call:
        """In the thread of a call: that call."""
        return self._mine.call

    def run(self, keys: Collection[Hashable], work: Callable, *arguments, missed: Callable | None = None):
        """What ``work(*arguments)`` gives, when no other call of one of ``keys`` is at work.

        What interrupts it gets ``counted`` and ``unknown`` as a KVError has them; ``missed(done)`` gives an error that
        has them where the call was done before it could be interrupted, or had not begun.
        """
        if os.getpid() != self._process:  # its threads are not here
            if not self._forks:
                raise Refused(text("store.forked"))
            if self._open:
                self.__init__(self._name, self._patience, self._forks)
        if not self._open:
            raise Refused(text("store.closed"))
        call = Call(keys, work, arguments, time.monotonic() + self._patience)
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
                    self._settle(call, missed, interruption)
                    break
                except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                    continue
            raise
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            del call  # which the error's traceback would hold, and with it the tensors

    def _settle(self, call: Call, missed: Callable | None, interruption: BaseException) -> None:
        """End an interrupted call, and say what became of it; if that is interrupted, too, it can be done again."""
        begun, error = call.interrupt(), call.error
        if error is None and missed and self._open and (not begun or call.ended.is_set()):
            if call.follow is None:
                follow = Call((), missed, (begun,))
                self._ask(follow)
                call.follow = follow
            until = time.monotonic() + GRACE
            while not call.follow.ended.wait(0.05) and time.monotonic() < until:
                pass
            error = call.follow.result
        with suppress(Exception):  # there are some that take no attributes
            interruption.counted, interruption.unknown = getattr(error, "counted", ()), getattr(error, "unknown", ())

    def close(self) -> None:
        """Those that are at work end; no other begins."""
        self._open = False
        self._signs.put(None)

    def _ask(self, call: Call) -> None:
        self._asked.append(call)
        self._signs.put(None)

    def _start(self) -> None:
        self._idle.append(None)  # before it is there: it may take a call at once
        try:
            threads.start(self._name, self._serve)
        except RuntimeError:
            with suppress(IndexError):
                self._idle.pop()
            raise

    def _serve(self) -> None:
        going = True
        while going:
            with suppress(BaseException):  # whoever struck this thread from without, between two calls: it goes on
                while going:
                    going = self._serve_next()
        self._signs.put(None)  # for the next thread

    def _serve_next(self) -> bool:
        """Do a call, when there is one; False at the end."""
        call = self._next()
        if call is None:
            return self._open
        try:
            with suppress(IndexError):
                self._idle.pop()
            if not self._idle:
                with suppress(RuntimeError):  # no thread is left: what is asked next waits for this one
                    self._start()
            self._do(call)
        except BaseException as error:
            call.error = call.error or as_known(error)
        finally:
            call.ended.set()
            self._idle.append(None)
        return True

    def _next(self) -> Call | None:
        """The next call, if it is still there. What strikes a thread that waits takes a sign with it, and no call."""
        with suppress(BaseException):
            if not self._asked and self._open:
                self._signs.get()
        with suppress(IndexError):
            return self._asked.popleft()
        return None

    def _do(self, call: Call) -> None:
        try:
            if call.begin():
                taken = self._take(call, call.keys)
                try:
                    self._mine.call = call
                    call.do()
                finally:
                    self._mine.call = None
                    self._give_back(taken)
        except BaseException as error:  # whoever struck this thread: the call is not done
            call.error = as_known(error)
        finally:
            call.ended.set()

    @contextmanager
    def taking(self, keys: Collection[Hashable]) -> Iterator[None]:
        """In the thread of a call: take these keys, too, for a while. Raises Timeout, Interrupted."""
        taken = self._take(self.current, frozenset(keys).difference(self.current.keys))
        try:
            yield
        finally:
            self._give_back(taken)

    def _take(self, call: Call, keys: Collection[Hashable]) -> tuple[Call, frozenset]:
        taken = call, frozenset(keys)
        with self._changed:
            while any(not taken[1].isdisjoint(theirs) for _, theirs in self._running):
                if time.monotonic() > call.until:
                    raise Timeout(text("store.busy", seconds=f"{self._patience:.3g}"))
                self._changed.wait(0.05)
                call.require_wanted()
            self._running.append(taken)
        return taken

    def _give_back(self, taken: tuple[Call, frozenset]) -> None:
        with self._changed:
            self._running.remove(taken)
            self._changed.notify_all()
