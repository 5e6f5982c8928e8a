"""The time in which this process ran: by it is told how long others have said nothing.

Where a process is stopped, or gets no processor, the clock goes on, and what others said lies in its sockets. So of the
time between two looks at the clock at most twice what was meant counts.
"""

import os
import threading
import time

PAUSE = 0.1  # seconds between two looks

_seen = 0.0, 0.0  # at the last look: the clock, and the time in which this process ran
_looking: int | None = None  # the process in which a thread looks
_lock = threading.Lock()


def own_time() -> float:
    """Seconds in which this process ran, from any moment on."""
    if _looking != os.getpid():
        _begin()
    at, own = _seen
    return own + min(time.monotonic() - at, 2 * PAUSE)


def _begin() -> None:
    """Also in a process that was forked: threads stay behind."""
    global _looking
    with _lock:
        if _looking != os.getpid():
            _look()
            threading.Thread(target=_go_on, daemon=True, name="d2lps own time").start()
            _looking = os.getpid()


def _look() -> None:
    global _seen
    now, (at, own) = time.monotonic(), _seen
    _seen = now, own + min(now - at, 2 * PAUSE)


def _go_on() -> None:
    while True:
        time.sleep(PAUSE)
        _look()


os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))
