"""Call somebody else's function: not for ever, and whatever it raises becomes a sentence.

The work is done in a daemon thread, and the caller waits for it with a deadline. This holds in a notebook's
kernel and in any other thread, on Linux and macOS alike, takes no signal away from anybody, and the wait
ends even where the work hangs outside Python. An endless Python loop is then stopped by an exception
thrown into its thread; what cannot be stopped that way stays behind and ends with the process.
"""

import contextlib
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Callable

from d2lps.messages import said, unmarked
from d2lps.notebook.grading.exercise import Case, Failure, failure


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
            stop_thread(thread)
    if late:
        raise Overtime(f"not done within {seconds:g} s")
    if "error" in done:
        raise done["error"]
    return done["value"]


def stop_thread(thread: threading.Thread) -> None:
    """Throw :class:`Stopped` into ``thread``, until it ends or has caught that five times."""
    for _ in range(5):  # a handler for everything may catch the first ones
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
        thread.join(0.1)
        if not thread.is_alive():
            return


def call(
    case: Case, function: Callable, *arguments: object, refused: type[BaseException] = Stopped, none: bool = False
) -> object:
    """Call what a learner has written.

    Parameters
    ----------
    case : Case
        Whose label the sentence of a failure begins with.
    function, *arguments
        What is called, and with what.
    refused : class of exceptions
        What is raised on as it is: it tells more itself.
    none : bool
        Whether the function may return None.

    Returns
    -------
    object
        What the function returns.

    Raises
    ------
    Failure
        If the function returns nothing, or raises anything else, exit() included.
    """
    try:
        result = function(*arguments)
    except (Stopped, refused):
        raise
    except BaseException as error:  # nor must exit() in an answer end the notebook's kernel
        raise _raised(case, function, error) from None
    if result is None and not none:
        raise failure("nothing-returned", "nothing-returned", case)
    return result


def _raised(case: Case, function: Callable, error: BaseException) -> Failure:
    """Names the error, and the last line of the function's own file that it went through."""
    whole = type(error).__name__ + (f": {error}" if str(error) else "")
    what = said(lambda language: unmarked(whole, language).splitlines()[0][:200])  # cut in each language by itself
    code, at = getattr(inspect.unwrap(function), "__code__", None), error.__traceback__
    line = getattr(error, "answer_line", None)  # where it was raised in another process
    while at:
        if code and at.tb_frame.f_code.co_filename == code.co_filename:
            line = at.tb_lineno
        at = at.tb_next
    if line is None:
        return failure("raised", "raised", case, error=what)
    return failure("raised", "raised-at", case, error=what, line=line)
