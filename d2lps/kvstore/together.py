"""Calls of all workers: set the optimizer, save, and load.

While one of them runs, no worker pushes or pulls: each worker waits until the calls of its other threads have ended,
and all meet at a barrier. Then worker 0 does the work, and tells the others at a second barrier what came of it. What
is refused has changed nothing. After any other error this store refuses all calls, until the call is repeated with
success, or a load is: meanwhile only some servers may have done what was asked.
"""

import json
from collections.abc import Callable
from typing import Any

from d2lps.kvstore import checkpoint
from d2lps.kvstore.calls import UNENDED, Call, Interrupted, forget
from d2lps.kvstore.errors import KVError, Late, Refused, WorkerLost, as_known
from d2lps.kvstore.optimizers import Optimizer
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

    def confirm(self, result: Any) -> None:
        """Make sure that this worker uses no server on which the work was not done."""

    def follow_up(self, result: Any) -> object:
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
            error_type = Refused if outcome["refused"] else KVError
            raise failure or error_type(text("store.first-failed", call=self.name, why=outcome["error"]))
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
    """Write a file of all keys: worker 0 reads them from the servers, and writes them."""

    name = "save"

    def __init__(self, store, path, then: Callable[[], object] | None):
        super().__init__(store)
        self.path, self.then = path, then

    def lead(self, number: int) -> None:
        checkpoint.require_place(self.path)
        keys = {spec.key: (spec.shape, state) for spec, state in self.store._states()}
        self.require_wanted()
        checkpoint.write(self.path, checkpoint.Checkpoint(keys, self.store.optimizer))
        if self.then:
            self.then()

    def _is_harmless(self, error: KVError) -> bool:
        """Return True also if worker 0 has stopped: all others may go on, as a save changes nothing."""
        stopped = self._outcome is not None or isinstance(error, WorkerLost) and 0 in error.ranks
        return stopped or super()._is_harmless(error)
