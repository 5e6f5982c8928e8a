"""Threads that work with tensors, and end before the interpreter does.

Python stops daemon threads anywhere at exit; inside torch, that aborts the process.
"""

import threading
import time
import weakref
from collections.abc import Callable

SECONDS = 5.0  # the longest wait for all of them at exit

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
