"""A thread that calls torch: a wait inside torch blocks signals, and its own deadline does not help."""

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable


class Done(threading.Event):
    """An event that is set when the work is done, with its ``result`` or ``error``."""

    result = None
    error: BaseException | None = None


class BackgroundThread:
    """A thread that runs jobs one after another and never keeps the interpreter from exiting."""

    def __init__(self):
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), daemon=True, name="d2lps carrier")
        self._thread.start()
        self._end = weakref.finalize(self, self._jobs.put, None)  # called when this object is collected, at the latest

    def do(self, work: Callable[[], object]) -> Done:
        """Run ``work`` after all earlier jobs."""
        done = Done()
        self._jobs.put((work, done))
        return done

    def end(self, patience: float = 1.0) -> None:
        """End the thread after the jobs it has, and wait for that at most ``patience`` seconds."""
        self._end()
        self._thread.join(patience)


def _work(jobs: queue.SimpleQueue) -> None:
    while job := jobs.get():
        work, done = job
        try:
            done.result = work()
        except BaseException as error:
            done.error = error
        done.set()
        del job, work, done


def keep_forever(thing: object) -> None:
    """Never destroy an object of torch: in a forked child its threads do not exist, and its end would crash or hang."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Closed(ConnectionError):
    """A broken connection: to one of ``ranks``, if that is known."""

    def __init__(self, ranks: tuple[int, ...], why: str):
        super().__init__(why)
        self.ranks = ranks


class Progress:
    """The progress of a background thread, for the thread that watches it.

    Inside ``with progress.of(*ranks):`` the thread waits for these ranks; a RuntimeError of torch becomes Closed.
    """

    step: int | None = None
    waiting: tuple[int, ...] = ()
    since = 0.0

    def at(self, step: int | None) -> None:
        """Note that a step begins; None stands for work outside all steps."""
        self.step, self.waiting, self.since = step, (), time.monotonic()

    def of(self, *ranks: int) -> "Progress":
        self.waiting = ranks
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, _, error: BaseException | None, __) -> None:
        if isinstance(error, RuntimeError):
            raise Closed(self.waiting, str(error)) from error
        self.since = time.monotonic()
