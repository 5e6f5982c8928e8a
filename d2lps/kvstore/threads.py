"""Threads that work with tensors, and end before the interpreter does.

Python ends daemon threads where they are; in the midst of torch, that aborts the process.
"""

import threading
import time
import weakref
from collections.abc import Callable

SECONDS = 5.0  # at most, that the interpreter waits for all of them

_started: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def start(name: str, target: Callable, *arguments) -> threading.Thread:
    """Such a thread, at work. Raises RuntimeError where there can be none."""
    thread = threading.Thread(target=target, args=arguments, daemon=True, name=name)
    thread.start()
    _started.add(thread)
    return thread


def _wait() -> None:
    until = time.monotonic() + SECONDS
    for thread in list(_started):
        thread.join(max(0.0, until - time.monotonic()))


# What is made later ends sooner: by then stores and servers have been closed, and with them what the threads wait for.
weakref.finalize(start, _wait)
