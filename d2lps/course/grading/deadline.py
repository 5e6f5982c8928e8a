"""Run somebody else's function, but not for ever.

The work is done in a daemon thread, and the caller waits for it with a deadline. This holds in a notebook's
kernel and in any other thread, on Linux and macOS alike, takes no signal away from anybody, and the wait
ends even where the work hangs outside Python. An endless Python loop is then stopped by an exception
thrown into its thread; what cannot be stopped that way stays behind and ends with the process.
"""

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable


class Overtime(Exception):
    """The work was not done when its deadline came."""


class Stopped(BaseException):
    """Thrown into a thread whose deadline is over; not an Exception, so that few handlers catch it."""


def within(seconds: float, work: Callable[[], object]) -> object:
    """What ``work()`` returns, or raises, if it is done within ``seconds``; raises Overtime otherwise."""
    done: dict[str, object] = {}

    def run() -> None:
        with contextlib.suppress(Stopped):  # a second one may come while the first is handled
            try:
                done["value"] = work()
            except BaseException as error:
                done["error"] = error

    # The copied context sends what the work prints to the cell that asked for it.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        late = thread.is_alive()
        if late:
            _stop(thread)
    if late:
        raise Overtime(f"not done within {seconds:g} s")
    if "error" in done:
        raise done["error"]
    return done["value"]


def _stop(thread: threading.Thread) -> None:
    for _ in range(5):  # a handler for everything may catch the first ones
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
        thread.join(0.1)
        if not thread.is_alive():
            return
