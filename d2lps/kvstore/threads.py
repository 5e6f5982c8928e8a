"""Threads that work with tensors and end before the interpreter does, and a clock of the time in which they could run.

Python stops daemon threads anywhere at exit; inside torch, that aborts the process. So it first waits for those of
:func:`start`.

:func:`own_time` measures how long others have been silent. If a process is stopped, or gets no processor, the wall
clock goes on while messages wait in its sockets. So a thread reads the clock every ``PAUSE`` seconds, and at most twice
that counts between two readings.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable

SECONDS = 5.0  # the longest wait for all threads at exit
HEARTBEAT, POLL = 1 / 4, 1 / 8  # of a deadline: between two heartbeats, and between two looks at what has come, at most
PAUSE = 0.1  # seconds between two readings

_last = 0.0, 0.0  # the last reading: the clock, and the time in which this process ran
_reader: int | None = None  # the process that has a reading thread
_lock = threading.Lock()

_started: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def start(name: str, target: Callable, *arguments) -> threading.Thread:
    """Start such a thread, and return it. Raises RuntimeError if no thread can be started."""
    thread = threading.Thread(target=target, args=arguments, daemon=True, name=name)
    thread.start()
    _started.add(thread)
    return thread


def _wait() -> None:
    until = time.monotonic() + SECONDS
    for thread in list(_started):
        thread.join(max(0.0, until - time.monotonic()))


# Later finalizers run first: by then stores and servers, on which the threads wait, are closed.
weakref.finalize(start, _wait)


# ---- the clock


def own_time() -> float:
    """Return the seconds in which this process ran, from an arbitrary start."""
    if _reader != os.getpid():
        _start()
    at, elapsed = _last
    return elapsed + min(time.monotonic() - at, 2 * PAUSE)


def _start() -> None:
    """Start the reading thread: a forked process has none."""
    global _reader
    with _lock:
        if _reader != os.getpid():
            _read()
            threading.Thread(target=_keep_reading, daemon=True, name="d2lps own time").start()
            _reader = os.getpid()


def _read() -> None:
    global _last
    now, (at, elapsed) = time.monotonic(), _last
    _last = now, elapsed + min(now - at, 2 * PAUSE)


def _keep_reading() -> None:
    while True:
        time.sleep(PAUSE)
        _read()


os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))
