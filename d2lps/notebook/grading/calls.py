"""Call a learner's function with a deadline, and turn its errors into sentences.

The work runs in a daemon thread, and the caller waits for it with a deadline. This works in a notebook's kernel and in
any other thread, on Linux and macOS alike, uses no signals, and the wait ends even if the work hangs outside Python. An
endless Python loop is then stopped by an exception thrown into its thread; a thread that cannot be stopped this way
stays behind and ends with the process.

Play an answer as all ranks of a group, one after the other, in one process.
"""

import contextlib
import contextvars
import ctypes
import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from d2lps.messages import said, unmarked
from d2lps.notebook.grading.exercise import CAUGHT, FAILURES, Case, Ended, Failure, failure

THREADS = sys.platform != "emscripten"  # in a browser there are none, and the page itself stops what takes too long


WAITING = 10  # times the deadline, for work that waits and does not compute
TICK = 0.05  # seconds after which a waiting thread looks again


class Overtime(Exception):
    """The work was not done by its deadline; ``seconds`` is the one that it has missed."""

    def __init__(self, seconds: float):
        super().__init__(f"not done within {seconds:g} s")
        self.seconds = seconds


class Stopped(Ended):
    """The exception thrown into a thread after its deadline."""


def deadline(seconds: float, used: Callable[[], float] = time.process_time) -> Callable[[], float]:
    """Return a function that returns the seconds that were missed, or 0.0 as long as there is time.

    Work that computes has ``seconds`` of the processor, which is longer on a busy machine; work that only waits has ten
    times as long.

    Args:
        seconds: Counted from now.
        used: A clock of the processor time that the work has used.
    """
    began, used_before = time.monotonic(), used()

    def late() -> float:
        passed = time.monotonic() - began
        if passed > seconds and used() - used_before > seconds:
            return seconds
        return seconds * WAITING if passed > seconds * WAITING else 0.0

    return late


def within(seconds: float, work: Callable[[], object], used: Callable[[], float] = time.process_time) -> object:
    """Return or raise the outcome of ``work()``, if it is done by its :func:`deadline`.

    Args:
        seconds, used: As for :func:`deadline`.
        work: What is done, in a thread of its own.

    Raises:
        Overtime: If it was not done by then.
        Failure: If the work has caught one, and goes on.
    """
    if not THREADS:
        return work()
    outcome: dict[str, object] = {}
    CAUGHT.set(caught := [])

    def run() -> None:
        with contextlib.suppress(Stopped):  # a second one may come while the first is handled
            try:
                outcome["value"] = work()
            except BaseException as error:
                outcome["error"] = error

    # The copied context sends the output of the work to the right cell.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        late, missed = deadline(seconds, used), 0.0
        while not missed and not caught and thread.is_alive():
            thread.join(TICK)
            missed = late()
    finally:
        if unfinished := thread.is_alive():
            stop_thread(thread)
    if unfinished:
        raise caught[0] if caught else Overtime(missed)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def stop_thread(thread: threading.Thread) -> None:
    """Throw :class:`Stopped` into ``thread``, until it ends or has caught that five times."""
    for _ in range(5):  # a handler for everything may catch the first ones
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
        thread.join(0.1)
        if not thread.is_alive():
            return


def call(
    case: Case, function: Callable, *arguments: object, refused: type[BaseException] = Ended, none: bool = False
) -> object:
    """Call a function that a learner has written, and return its result.

    Args:
        case: The case whose label begins the sentence of a failure.
        function, *arguments: The function, and its arguments.
        refused (class of exceptions): Further ones that are passed on unchanged, because they say more themselves.
        none: True if the function may return None.

    Raises:
        Failure: If the function returns nothing, or raises anything else, including exit(); or the one that it caught.
    """
    token = FAILURES.set(made := [])
    try:
        result = function(*arguments)
    except (Ended, refused):
        raise
    except BaseException as error:  # even exit() in an answer must not end the notebook's kernel
        raise made[0] if made else _raised(case, function, error) from None
    finally:
        FAILURES.reset(token)
    if made:
        raise made[0]
    if result is None and not none:
        raise failure("nothing-returned", "nothing-returned", case)
    return result


def untouched(function: Callable) -> bool:
    """Return True for a function of Python that uses no name from outside, as a stub does."""
    code = getattr(function, "__code__", None)
    return code is not None and not (code.co_names or code.co_freevars)


def _raised(case: Case, function: Callable, error: BaseException) -> Failure:
    """Return a Failure with the error, and the last line of the function's own file in its traceback."""
    full = type(error).__name__ + (f": {error}" if str(error) else "")
    sentence = said(lambda language: unmarked(full, language).splitlines()[0][:200])  # cut separately in each language
    code, trace = getattr(inspect.unwrap(function), "__code__", None), error.__traceback__
    line = getattr(error, "answer_line", None)  # set if it was raised in another process
    while trace:
        if code and trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None:
        return failure("raised", "raised", case, error=sentence)
    return failure("raised", "raised-at", case, error=sentence, line=line)


class Waits(Stopped):
    """A rank cannot go on before another one has given something."""


def in_turns(ranks: int, act: Callable[[int, Callable], object]) -> tuple[dict[int, object], list[list]]:
    """Play ranks that exchange values in rounds.

    A rank that needs what another one gives is stopped, and played again from its beginning once that is known. So no
    answer can wait for ever.

    Args:
        ranks: Their number.
        act (callable (rank, give) → result): Plays one rank. It calls ``give(value)`` in each round, which returns the
            values of all ranks in this round; ``give(value, sources)`` returns those of some ranks alone, and waits for
            no other.

    Returns:
        (dict of int to object): The result of each rank; if they wait for one another, some are missing.
        (list of list): For each rank what it gave, round by round.

    Example:
        >>> in_turns(2, lambda rank, give: sum(give(rank + 1)))
        ({0: 3, 1: 3}, [[1], [2]])
        >>> in_turns(2, lambda rank, give: rank and give("alone"))
        ({0: 0}, [[], ['alone']])
    """
    known: list[list] = [[] for _ in range(ranks)]
    while True:
        results, grown = {}, False
        for rank in range(ranks):
            mine: list = []

            def give(value: object, sources: Sequence[int] = range(ranks), mine: list = mine) -> list:
                mine.append(value)
                if any(len(known[source]) < len(mine) for source in sources):
                    raise Waits
                return [known[source][len(mine) - 1] for source in sources]

            with suppress(Waits):
                results[rank] = act(rank, give)
            if len(mine) > len(known[rank]):
                known[rank], grown = mine, True
        if len(results) == ranks or not grown:
            return results, known
