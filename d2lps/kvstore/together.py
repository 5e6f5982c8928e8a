"""Calls of all workers: set the optimizer, save, and load.

While one of them runs, no worker pushes or pulls: each worker waits until the calls of its other threads have ended,
and all meet at a barrier. Then worker 0 does the work, and tells the others at a second barrier what came of it. What
is refused has changed nothing. After any other error this store refuses all calls, until the call is repeated with
success, or a load is: meanwhile only some servers may have done what was asked.
"""

import copy
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

from d2lps.carriers.rendezvous import require_seconds
from d2lps.kvstore import checkpoint, threads
from d2lps.kvstore.calls import GRACE, UNENDED, Call, Interrupted, forget
from d2lps.kvstore.errors import KVError, Late, Refused, Timeout, WorkerLost, as_known
from d2lps.kvstore.optimizers import Optimizer, State
from d2lps.kvstore.values import KeySpec
from d2lps.messages import text

LONG = 19  # deadlines more that the others wait for worker 0 while it works


class Together(Call):
    """A call of all workers, with no other call of theirs at the same time.

    ``store`` is a :class:`~d2lps.kvstore.store.KVStore`. Each kind of call implements :meth:`lead`, which only
    worker 0 does, and may implement :meth:`follow_up`, which all do.
    """

    name = ""  # of the method
    alone = True

    def __init__(self, store):
        super().__init__()
        self.store, self.repairs = store, (self.name,)
        self._led = False  # worker 0 may have begun to work
        self._outcome: dict | None = None  # as worker 0 told it to all

    def lead(self, number: int) -> object:
        """Do the work, and return what the others need of it, as JSON. Each attempt has a higher ``number``."""
        raise NotImplementedError

    def confirm(self, result: object) -> None:
        """Make sure that this worker uses no server on which the work was not done."""

    def follow_up(self, result: object) -> object:
        """Take over what worker 0 has returned. Return the result of the call."""

    def missed(self, done: bool) -> None:
        if done:
            self.store._calls.unended = self.name

    def work(self):
        calls = self.store._calls
        before, calls.unended = calls.unended, self.name
        try:
            result = self._work()
            self.confirm(result)
        except KVError as error:
            if self._is_harmless(error):
                calls.unended = None if self._outcome and self._outcome.get("consistent") else before
            raise
        calls.unended = None
        return self.follow_up(result)

    def _is_harmless(self, error: KVError) -> bool:
        """Return True if no server has changed anything, or will."""
        return isinstance(error, Refused) or isinstance(error, WorkerLost) and 0 in error.ranks and not self._led

    def _work(self) -> object:
        store, note, failure = self.store, None, None
        store._settle()
        number = store._next_number(self.name)  # the same again if the last one was not over
        if store._meet(f"{self.name} begins", number, "here" if store.rank == 0 else None) is None:
            raise WorkerLost(text("store.first-lost", call=self.name), (0,))
        self._led = True
        if store.rank == 0:
            try:
                with store._coming(self.name, number):
                    note = json.dumps({"result": self.lead(next(store._attempts))})
            except Interrupted:
                raise
            except Exception as error:  # whatever it is, the others are not to wait in vain
                failure = as_known(error)
                kind = {"refused": isinstance(failure, Refused), "consistent": failure.consistent}
                note = json.dumps({"error": str(failure)} | kind)
        try:
            note = wait_for_first(store, self.name, number, note)
        except KVError as error:
            raise (not isinstance(error, Interrupted) and failure) or error from None
        if note is None:  # the others go on without worker 0
            raise WorkerLost(text("store.first-lost", call=self.name), (0,))
        self._outcome = outcome = json.loads(note)
        if "error" in outcome:
            kind = Refused if outcome["refused"] else KVError
            raise failure or kind(text("store.first-failed", call=self.name, why=outcome["error"]))
        return outcome.get("result")


def wait_for_first(store, name: str, number: int, note: str | None) -> str | None:
    """Wait for all workers, and longer than a deadline while worker 0 works. Return the note of worker 0."""
    for _ in range(LONG):
        try:
            return store._meet(name, number, note)
        except Late:
            continue
    return store._meet(name, number, note)


class SetOptimizer(Together):
    """Set the optimizer on all servers."""

    name = "set_optimizer"

    def __init__(self, store, optimizer: Optimizer):
        super().__init__(store)
        self.optimizer = optimizer

    def lead(self, number: int) -> None:
        self.store._choose(self.optimizer, number)

    def follow_up(self, result: object) -> None:
        self.store.optimizer = self.optimizer


class Load(Together):
    """Read a file into all servers: each makes its parts ready, and takes them when all servers have theirs."""

    name = "load"

    def __init__(self, store, path):
        super().__init__(store)
        self.path, self.repairs = path, UNENDED

    def lead(self, number: int) -> dict:
        specs = self.store._keys
        saved = checkpoint.read(self.path, {key: (spec.shape, spec.dtype) for key, spec in specs.items()})
        self.store._restore([(specs[key], state) for key, (_, state) in saved.keys.items()], saved.optimizer, number)
        optimizer = saved.optimizer
        return {"number": number, "optimizer": optimizer and [optimizer.rule, optimizer.as_read]}

    def confirm(self, result: dict) -> None:
        self.store._confirm(result["number"])

    def follow_up(self, result: dict) -> None:
        optimizer = result["optimizer"]
        self.store.optimizer = optimizer and Optimizer.read(*optimizer)
        forget(self.store._keys.values())  # what was counted is gone


class Save(Together):
    """Write a file of all keys: servers keep their values as they are now, and a thread of worker 0 writes them.

    In the background the call ends as soon as they keep them; otherwise when the file is complete.
    """

    name = "save"

    def __init__(self, store, path, background: bool, then: Callable[[], object]):
        super().__init__(store)
        self.path, self.background, self.then = path, background, then

    def lead(self, number: int) -> int:
        store, before = self.store, self.store._saving
        if before and not before._wait_over(LONG * store._patience, self):
            raise Timeout(text("store.still-saving", path=before.path))
        if before and before._error and not before._reported:
            before._reported = True
            raise Refused(text("store.not-saved", path=before.path, why=before._error))
        checkpoint.require_place(self.path)
        saving = Saving(store, self.path, number)
        saving._begin(store._take_snapshot(number, saving), self.then)
        if self.background:
            store._saving = saving
            return number
        try:
            saving._wait_over(math.inf, self)
        except Interrupted:
            saving._abandon()
            saving._over.wait(GRACE)  # nothing is written once the call has raised
            raise
        if saving._error:
            raise saving._error
        return number

    def follow_up(self, number: int) -> "Saving | None":
        if not self.background:
            return None
        if self.store.rank:
            if self.store._saving:
                self.store._saving._over.set()  # worker 0 has waited for it
            self.store._saving = Saving(self.store, self.path, number)
        return self.store._saving

    def _is_harmless(self, error: KVError) -> bool:
        """Return True also if worker 0 has stopped: all others may go on, as a save changes nothing."""
        stopped = self._outcome is not None or isinstance(error, WorkerLost) and 0 in error.ranks
        return stopped or super()._is_harmless(error)


class Saving:
    """A save in the background, as ``store.save(path, background=True)`` returns it.

    Attributes:
        path (str or Path): The file.
    """

    def __init__(self, store, path, number: int):
        self.path, self._store, self._number, self._process = path, store, number, os.getpid()
        self._over, self._unwanted = threading.Event(), False
        self._writes = False  # it is this worker that writes
        self._error: KVError | None = None
        self._reported = False  # the user of the store knows the error
        self._waits = 0  # calls of wait() that all workers ended with Timeout

    @property
    def done(self) -> bool:
        """Whether it is over, with success or not. Worker 0 writes and knows; the others know when they have waited."""
        return self._over.is_set()

    def wait(self, deadline: float | None = None) -> None:
        """Wait until the file is on the disk. All workers call it, and all raise the error if there was one.

        Args:
            deadline: Seconds after which it raises Timeout while the save goes on; by default twenty deadlines of the
                store.
        """
        seconds = LONG * self._store._patience if deadline is None else require_seconds("deadline", deadline, Refused)
        if self._store._saving is not self:  # a later save has waited for this one, and raised its error
            return
        self._store._calls.run(WaitForSave(self._store, self, seconds))

    def _begin(self, states: Iterator[tuple[KeySpec, State]], then: Callable[[], object]) -> None:
        """Start the thread that writes ``states``, and calls ``then`` when the file is there."""
        self._writes = True
        threads.start(f"d2lps saves {self.path}", self._write, states, self._store.optimizer, then)

    def _write(self, states: Iterator[tuple[KeySpec, State]], optimizer: Optimizer | None, then: Callable) -> None:
        try:
            keys = {spec.key: (spec.shape, state) for spec, state in states}
            self._require_wanted()
            checkpoint.write(self.path, checkpoint.Checkpoint(keys, optimizer))
            then()
        except BaseException as error:
            self._error = as_known(error)
        finally:
            self._over.set()

    def _require_wanted(self) -> None:
        if self._unwanted:
            raise Refused(text("store.closed-meanwhile"))

    def _wait_over(self, seconds: float, call: Call) -> bool:
        """Wait until it is over, within a call that may be interrupted."""
        until = time.monotonic() + seconds
        while not self._over.wait(min(0.05, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            call.require_wanted()
        return True

    def _abandon(self, seconds: float = 0.0) -> None:
        """Wait so many seconds for its end. After that nothing is read for it, and no file is begun."""
        if self._writes and os.getpid() == self._process:
            try:
                self._over.wait(seconds)
            finally:
                self._unwanted = True


class WaitForSave(Call):
    """Wait, with all workers, until a save in the background is over."""

    def __init__(self, store, saving: Saving, seconds: float):
        super().__init__(turn="wait")
        self.store, self.saving, self.seconds = store, saving, seconds

    def work(self) -> None:
        store, saving, note = self.store, self.saving, None
        number = saving._number << 16 | saving._waits  # the same until all have heard the outcome
        if store.rank == 0:
            with store._coming("saved", number):
                over = saving._wait_over(self.seconds, self)
            note = json.dumps({"over": over, "error": saving._error and str(saving._error)})
        note = wait_for_first(store, "saved", number, note)
        if note is None:
            raise WorkerLost(text("store.first-lost", call="save"), (0,))
        outcome = json.loads(note)
        if not outcome["over"]:
            saving._waits += 1
            raise Timeout(text("store.still-saving", path=saving.path))
        saving._over.set()
        if outcome["error"]:
            saving._reported = True
            raise copy.copy(saving._error) or Refused(outcome["error"])
