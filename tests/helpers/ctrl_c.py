"""Ctrl-C in this process, as a reader presses it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pressed(after: float = 0.2) -> Iterator[None]:
    """So many seconds later, and every 5 s again: an interpreter that collects garbage just then ignores it."""
    heard = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it

    def press():
        wait = after
        while not heard.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 5.0

    threading.Thread(target=press, daemon=True).start()
    try:
        yield
    finally:
        heard.set()
        signal.signal(signal.SIGINT, before)
