"""A clock of the time in which this process ran, to measure how long others have been silent.

If a process is stopped, or gets no processor, the wall clock goes on while messages wait in its sockets. So a thread
reads the clock every ``PAUSE`` seconds, and at most twice that counts between two readings.
"""

import os
import threading
import time

PAUSE = 0.1  # seconds between two readings

_last = 0.0, 0.0  # the last reading: the clock, and the time in which this process ran
_reader: int | None = None  # the process that has a reading thread
_lock = threading.Lock()


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
