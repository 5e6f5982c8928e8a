"""A store and its files: what is saved, now or while training goes on, and loaded."""

import copy
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from d2lps.kvstore import checkpoint, threads
from d2lps.kvstore.calls import Calls
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, Timeout, as_known
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.options import validate_deadline
from d2lps.kvstore.repeats import Repeats
from d2lps.kvstore.values import Key, KeySpec
from d2lps.messages import text

LONG = 19  # deadlines more that the others wait for worker 0, while it is at work
WAIT = "finish a save"  # what workers come together for who wait for one


class Saving:
    """A save that goes on in the background: what ``store.save(path, background=True)`` returns.

    Attributes
    ----------
    path : str or Path
        The file.
    """

    def __init__(self, path, wait: Callable[["Saving", float | None], None]):
        self.path, self._wait, self._process = path, wait, os.getpid()
        self._over, self._ends = threading.Event(), False
        self._here = False  # whether it is this worker that writes
        self._error: KVError | None = None
        self._heard = False  # whether the store's user has been told of the error

    @property
    def done(self) -> bool:
        """Whether it is over, well or not: worker 0, who writes, knows; the others know it when they have waited."""
        return self._over.is_set()

    def wait(self, deadline: float | None = None) -> None:
        """Until the file is on the disk. All workers call it; what went wrong is raised by all of them.

        Parameters
        ----------
        deadline : float, optional
            Seconds after which it raises Timeout, and the save goes on; by default twenty deadlines of the store.
        """
        if os.getpid() != self._process:  # its thread is not here
            raise Refused(text("store.forked"))
        self._wait(self, deadline)

    def _begin(self, states: Iterable[tuple[KeySpec, State]], optimizer: Optimizer | None, then: Callable) -> None:
        self._here = True
        threads.start(f"d2lps saves {self.path}", self._write, states, optimizer, then)

    def _write(self, states: Iterable[tuple[KeySpec, State]], optimizer: Optimizer | None, then: Callable) -> None:
        try:
            _write(self.path, states, optimizer)
            then()
        except BaseException as error:
            self._error = as_known(error)
        finally:
            self._over.set()

    def _require_wanted(self) -> None:
        if self._ends:
            raise Refused(text("store.closed-meanwhile"))

    def _end(self, seconds: float) -> None:
        """Its store is about to be closed: wait for it, and then give it up."""
        if self._here and os.getpid() == self._process:
            try:
                self._over.wait(seconds)
            finally:
                self._ends = True


class Files:
    """What a store does with files. Of each kind of store are ``_keep`` and ``_restore``."""

    rank: int
    optimizer: Optimizer | None
    _keys: dict[Key, KeySpec]
    _calls: Calls
    _repeats: Repeats
    _patience: float
    _together: Callable
    _call_together: Callable
    _saving: Saving | None = None  # the last one in the background
    _keep: Callable[[Callable | None], Iterator[tuple[KeySpec, State]]]
    _restore: Callable[[list[tuple[KeySpec, State]], Optimizer | None], object]

    def save(self, path, background: bool = False, then: Callable[[], object] = bool) -> Saving | None:
        """Write all keys, with the optimizer and what it remembers, to a file. All workers call it; worker 0 writes.

        While it does, the others wait for it, up to twenty deadlines; or with ``background`` all go on at once, and
        what is written is what was there when they came. Until the file is complete, the older one stays. One is
        written after the other: the next save waits for the one before, and raises what went wrong with it, unless
        its ``wait`` has done so; then the same again saves. ``close`` waits up to a deadline.

        Parameters
        ----------
        path : str or Path
            Where; what was there before stays until the new file is complete.
        background : bool
            Whether to return as soon as all is known that is to be written. Servers have what is written twice then,
            until it is, and so does worker 0.
        then : callable
            What worker 0 does when the file is there, before the save is over.

        Returns
        -------
        Saving or None
            In the background: what can be waited for.
        """
        self._call_together("save", (str(path), background), self._begin_saving, path, background, then)
        return self._saving if background else None

    def load(self, path) -> None:
        """What :meth:`save` wrote, into the keys that were initialized as they were then. All workers call it.

        Worker 0 reads the file, and the optimizer is the one that was saved. What is refused has changed nothing. What
        another thread pushes as it begins comes before it or after it, each key with all its parts; what it pulls as
        it ends is of before it or of after it, each key whole.

        Parameters
        ----------
        path : str or Path
            A file that :meth:`save` wrote.
        """
        self._call_together("load", str(path), self._load, path)

    # ---- in a thread of the store

    def _begin_saving(self, path, background: bool, then: Callable[[], object]) -> None:
        self._together("save", partial(self._save, path, background, then))
        if background and self.rank:  # worker 0 has it since it began
            self._saving = Saving(path, self._wait_for)

    def _save(self, path, background: bool, then: Callable[[], object]) -> None:
        """Worker 0's part of it."""
        if self._saving and not self._is_over(self._saving, LONG * self._patience):
            raise Timeout(text("store.still-saving", path=self._saving.path))
        if self._saving and self._saving._error and not self._saving._heard:
            self._saving._heard = True
            raise Refused(text("store.not-saved", path=self._saving.path, why=self._saving._error))
        if not background:
            _write(path, self._keep(None), self.optimizer)
            then()
            return
        checkpoint.require_place(path)
        saving = Saving(path, self._wait_for)
        states = self._keep(saving._require_wanted)
        saving._begin(states, self.optimizer, then)
        self._saving = saving

    def _is_over(self, saving: Saving, seconds: float) -> bool:
        """Whether it is, within so many seconds; one of the process that this one was forked from is nobody's."""
        if saving._process != os.getpid():
            return True
        waited = 0.0
        while not saving._over.wait(min(0.05, max(0.0, seconds - waited))) and waited < seconds:
            self._calls.current.require_wanted()
            waited += 0.05
        return saving.done

    def _wait_for(self, saving: Saving, deadline: float | None) -> None:
        seconds = LONG * self._patience if deadline is None else validate_deadline(deadline)
        self._call_together(WAIT, saving, self._hear_of, saving, seconds)

    def _hear_of(self, saving: Saving, seconds: float) -> None:
        over, why = self._together(WAIT, partial(self._tell_of, saving, seconds))
        if not over:
            raise Timeout(text("store.still-saving", path=saving.path))
        saving._over.set()
        if why:
            saving._heard = True
            raise copy.copy(saving._error) or Refused(why)

    def _tell_of(self, saving: Saving, seconds: float) -> tuple[bool, str | None]:
        """What worker 0 tells the others: whether it is over, and what went wrong."""
        return self._is_over(saving, seconds), saving._error and str(saving._error)

    def _load(self, path) -> list | None:
        began = self._repeats.mark()
        chosen, staged = self._together("load", partial(self._read, path))
        self.optimizer = chosen and Optimizer.read(*chosen)
        self._repeats.forget_before(began)  # what was counted is gone; what raises from here on may count after it
        return staged

    def _read(self, path) -> tuple:
        saved = checkpoint.read(path, {key: (spec.shape, spec.dtype) for key, spec in self._keys.items()})
        staged = self._restore([(self._keys[key], state) for key, (_, state) in saved.keys.items()], saved.optimizer)
        return saved.optimizer and [saved.optimizer.rule, saved.optimizer.as_read], staged


def _write(path, states: Iterable[tuple[KeySpec, State]], optimizer: Optimizer | None) -> None:
    keys = {spec.key: (spec.shape, state) for spec, state in states}
    checkpoint.write(path, checkpoint.Checkpoint(keys, optimizer))
