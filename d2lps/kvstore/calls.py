"""Calls of a store: each runs in a thread of the store's own, and a push that is repeated counts once.

Follow ``store.push(key, value)``: it checks its arguments, and gives a :class:`Push` to :meth:`Calls.run`. That only
waits: Ctrl-C, which can interrupt the caller between any two of its steps, finds nothing half done there. A thread of
the store takes the call (``_serve_next``), waits for its turn (``_take_turn``: calls that name the same key run one
after the other, so several threads may call one store), and does it (``_do``): :meth:`Push.work` asks ``store._push``,
which for a distributed store is :meth:`d2lps.kvstore.worker.dist.DistStore._push`. After an interruption that thread
ends its present step and stops, and the caller learns which keys count.

A push that raises is remembered with its keys, as a :class:`FailedPush`: the same push again leaves out what counts
already, until another push or pull of one of its keys succeeds.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from d2lps.kvstore import threads
from d2lps.kvstore.errors import KVError, Refused, Timeout, as_known
from d2lps.kvstore.values import KeySpec, Value, digests
from d2lps.messages import text

UNENDED = ("set_optimizer", "save", "load")  # calls of all workers that may raise before they have ended
GRACE = 10.0  # seconds at most for which an interrupted call may go on with its present step


class Interrupted(KVError):
    """The error of a call whose caller does not wait for it any more."""


class Fate(Enum):
    """What became of a call that was interrupted. Only a call that is still running may change anything any more."""

    NEVER_BEGUN = "nothing of it was done"
    DONE = "it was done before the interruption reached it"
    FAILED = "it raised an error, which says what of it was done"
    STILL_RUNNING = "its present step takes longer than GRACE"


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
    """One call of a store.

    Args:
        work: Does it; without one, the class of the call has a method ``work``.
        specs: The keys that it pushes or pulls. No other call with one of them runs at the same time.
        turn: No other call of the same turn runs at the same time.

    Attributes:
        alone: Whether no other call with keys or a turn may run at the same time.
        repairs: Names of calls of all workers that may be unended before this call.
        missed: For a caller that was interrupted and got no result: a function that returns an error with ``counted``
            and ``unknown``. Its argument is True if the call ended before the interruption reached it; otherwise the
            call never began.
        until: The time by which it has to begin, set by :meth:`Calls.run`.
        stop: A function that ends the waiting of a call that is interrupted.
    """

    alone = False
    repairs: Collection[str] = ()
    missed: "Callable[[bool], KVError | None] | None" = None

    def __init__(self, work: Callable[[], object] | None = None, specs: Sequence[KeySpec] = (), turn: str = ""):
        if work is not None:
            self.work = work  # type: ignore[method-assign]
        self.specs, self.keys, self.until = specs, frozenset([turn] if turn else specs), 0.0
        self.caller, self.interrupted, self.ended = threading.get_ident(), False, Once()
        self.stop: Callable[[], object] = bool
        self.result: Any = None
        self.error: KVError | None = None
        self.follow: Call | None = None
        self.begun, self.changing = False, threading.Lock()
        # Kernels of the caller write and read in the order of its stream: each thread has a stream of its own.
        self.stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def work(self):
        """Do it, in a thread of the store, and return the result."""
        raise NotImplementedError

    def require_wanted(self) -> None:
        """Raise Interrupted if its caller does not wait for it any more."""
        if self.interrupted:
            raise Interrupted("the call was interrupted")

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Set the function that ends the waiting that begins now. Raises Interrupted."""
        self.stop = stop
        self.require_wanted()  # in this order: an interruption comes before this line, or finds ``stop``

    def interrupt(self) -> Fate:
        """Make it end, and wait until it has ended, at most for GRACE seconds. Can be repeated."""
        until = time.monotonic() + GRACE
        while True:
            try:
                with self.changing:
                    self.interrupted = True
                self.stop()
                while self.begun and not self.ended.wait(0.05) and time.monotonic() < until:
                    pass
                if self.error is not None:
                    return Fate.FAILED
                if not self.begun:
                    return Fate.NEVER_BEGUN
                return Fate.DONE if self.ended.is_set() else Fate.STILL_RUNNING
            except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                continue


class FailedPush:
    """A push of ``specs`` that raised: those that are ``counted``, and digests of the values that were pushed."""

    def __init__(self, specs: Sequence[KeySpec], values: "list[list[bytes]]", counted: set[KeySpec]):
        # Digests, because perhaps memory was short.
        self.specs, self.values, self.counted, self.forgotten = specs, values, counted, False


def forget(specs: Iterable[KeySpec]) -> None:
    """Forget all failed pushes that name one of ``specs``."""
    for spec in specs:
        if spec.failed is not None:
            spec.failed.forgotten, spec.failed = True, None


class Push(Call):
    """Push, and pull if there are ``outs``. Repeated after an error, it counts once for each key."""

    def __init__(self, store, specs: list[KeySpec], values: list[Value], outs: list[Value] | None = None):
        super().__init__(specs=specs)
        self.store, self.values, self.outs = store, values, outs

    def work(self) -> None:
        try:
            self.store._push(self.specs, self.values, self.outs, self._counted())
        except KVError as error:
            if error.counted or error.unknown:  # else nothing has changed
                self._remember(error.counted)
            raise

    def _counted(self) -> frozenset[KeySpec]:
        """Return the keys that count already, if this is the failed push of its keys again."""
        failed = self.specs[0].failed if self.specs else None
        if failed is None or failed.forgotten or failed.specs != self.specs:
            return frozenset()
        return frozenset(failed.counted if failed.values == [*map(digests, self.values)] else ())

    def _remember(self, keys: Collection) -> None:
        """Remember this push as a failed one, of which these ``keys`` count."""
        forget(self.specs)
        keys = {*keys}
        counted = {spec for spec in self.specs if spec.key in keys}
        failed = FailedPush(self.specs, [*map(digests, self.values)], counted)
        for spec in self.specs:
            spec.failed = failed

    def missed(self, done: bool) -> KVError:
        error, counted = KVError(), {*self.specs} if done else self._counted()
        error.counted = tuple(spec.key for spec in self.specs if spec in counted)
        if done:  # if what was pulled replaced the values, the same call again has the new ones
            self._remember(error.counted)
        return error


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
        """Run ``call`` when no other call uses its keys, and return its result, or raise its error.

        If its caller is interrupted, as by Ctrl-C, the call has ended, or ends with its present step, when this raises
        that exception, which has the attributes ``counted`` and ``unknown`` of a KVError.
        """
        if os.getpid() != self._process:  # the threads are in another process
            raise Refused(text("store.forked"))
        if not self._open:
            raise Refused(text("store.closed"))
        call.until = time.monotonic() + self._patience
        try:
            self._ask(call)
            while not call.ended.wait(1.0):
                if not self._open and call.interrupt() is Fate.NEVER_BEGUN:
                    raise Refused(text("store.closed"))
        except Refused:
            raise
        except BaseException as interruption:
            settled = False
            while not settled:
                try:
                    self._settle(call, interruption)
                    settled = True
                except BaseException:  # a second Ctrl-C changes nothing: the first one is about to be raised
                    pass
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                del call  # the traceback of the error would hold it, and with it the tensors
        return call.result

    def _settle(self, call: Call, interruption: BaseException) -> None:
        """End an interrupted call, and note on ``interruption`` what it did. Can be repeated if interrupted itself."""
        fate = call.interrupt()
        error = call.error
        if fate in (Fate.NEVER_BEGUN, Fate.DONE) and call.missed and self._open:
            error = self._missed(call, partial(call.missed, fate is Fate.DONE))
        with suppress(Exception):  # some exceptions take no attributes
            for name in ("counted", "unknown"):
                setattr(interruption, name, getattr(error, name, ()))

    def _missed(self, call: Call, missed: Callable[[], KVError | None]) -> KVError | None:
        """Have a thread of the store do ``missed``, once, and return its error; None if that takes too long."""
        if (follow := call.follow) is None:
            follow = Call(missed)
            follow.repairs = UNENDED
            self._ask(follow)
            call.follow = follow
        until = time.monotonic() + GRACE
        while not follow.ended.wait(0.05) and time.monotonic() < until:
            pass
        return follow.result

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
            with call.changing:
                call.begun = not call.interrupted
            if not call.begun:
                return
            self._take_turn(call)
            try:
                self._mine.call = call
                if self.unended and self.unended not in call.repairs:
                    raise Refused(text(f"store.unended.{self.unended}"))
                with torch.cuda.stream(call.stream) if call.stream else nullcontext():
                    call.result = call.work()
                forget(call.specs)
            finally:
                self._mine.call = None
                with self._changed:
                    self._running.remove(call)
                    self._changed.notify_all()
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
        return bool(call.keys) and (
            bool(self._waiting) or any(other.alone or not call.keys.isdisjoint(other.keys) for other in self._running)
        )
