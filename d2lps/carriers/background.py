"""A thread that waits in torch's stead: a wait inside torch holds signals back and has no deadline that helps."""

import queue
import threading
import time
import weakref
from collections.abc import Callable


class Done(threading.Event):
    """Set when the work is done: with a ``result`` or an ``error``."""

    result = None
    error: BaseException | None = None


class BackgroundThread:
    """Does one thing after another in a thread of its own, which never keeps the interpreter from leaving."""

    def __init__(self):
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), daemon=True, name="d2lps carrier")
        self._thread.start()
        self._end = weakref.finalize(self, self._jobs.put, None)  # at the latest when nobody has this object any more

    def do(self, work: Callable[[], object]) -> Done:
        """Begin ``work`` as soon as what was asked for before is done."""
        done = Done()
        self._jobs.put((work, done))
        return done

    def end(self, patience: float = 1.0) -> None:
        """Let the thread go, once it has done what it was asked for, and wait for that, yet not for ever."""
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


class Closed(ConnectionError):
    """A connection broke: that to one of ``ranks``, if it is known."""

    def __init__(self, ranks: tuple[int, ...], why: str):
        super().__init__(why)
        self.ranks = ranks


class Progress:
    """How far a background thread has come, for who watches over it; ``with progress.of(ranks):`` is a wait for them.

    A wait in which torch says that something broke raises Closed.
    """

    step: int | None = None
    waiting: tuple[int, ...] = ()
    since = 0.0

    def at(self, step: int | None) -> None:
        """A step begins, or something that is no step of a plan."""
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
