"""The words of a store, the same for every kind: those of MXNet's KVStore."""

import json
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from torch import Tensor, int64

from d2lps.kvstore.calls import Calls, Interrupted
from d2lps.kvstore.errors import KVError, Late, Refused, WorkerLost
from d2lps.kvstore.optimizers import Optimizer, of_mxnet
from d2lps.kvstore.repeats import Repeats
from d2lps.kvstore.saving import LONG, WAIT, Files
from d2lps.kvstore.values import (
    Given,
    Key,
    KeySpec,
    as_tensor,
    counted,
    each_of,
    paired,
    per_device,
    require_writable,
    validate_key,
)
from d2lps.messages import text

STORE, BARRIER, INIT = "store", "barrier", "init"  # what calls take for themselves that are about no key


class KVStore(Files):
    """What every store can do. ``create`` makes one.

    Keys are strings or whole numbers; a list of keys takes a list of values. A value is a tensor of torch, an array of
    NumPy or MXNet, or a list of them, one per device, which are summed in that order (by ``device`` each shard in an
    order of its own). Every call may raise one of
    :mod:`d2lps.kvstore.errors`, which says what becomes of a push that raises. After Ctrl-C a call changes nothing any
    more. Several threads may call one store: calls that name the same key come one after the other.

    Attributes
    ----------
    type : str
        The kind of the store.
    rank, num_workers : int
        Which worker this is, and how many there are.
    optimizer : Optimizer, or None
        What :meth:`set_optimizer` set.
    """

    type = ""
    rank, num_workers = 0, 1

    def __init__(self, name: str = "", patience: float = 30.0, forks: bool = False):
        self._keys: dict[Key, KeySpec] = {}
        self.optimizer: Optimizer | None = None
        self._patience = patience
        self._calls, self._repeats = Calls(f"d2lps store {name}".strip(), patience, forks), Repeats()
        self._met: dict[str, int] = {}  # how often all workers came together, by what for
        # What they did, where its caller was interrupted then, and has called nothing since: with the caller's thread.
        self._unheard: tuple | None = None
        self._told: tuple = (None, None)  # what this one did last for all, and what it has to tell of it
        weakref.finalize(self, self._calls.close)

    def init(self, key, value) -> None:
        """Give each key its first value. All workers call it, with the same keys; that of worker 0 counts.

        Parameters
        ----------
        key : str, int, or list of them
            Keys that are new.
        value : array, or list of arrays
            One for each key; its shape and dtype are the key's from now on.
        """
        fresh = []
        for each, given in paired(key, value):
            validate_key(each)
            first = as_tensor(per_device(given)[0], text("store.first-value", key=repr(each)))
            fresh.append((KeySpec(each, first), first))
        self._calls.run((INIT,), self._init_once, fresh, missed=partial(self._deinit, fresh))

    def push(self, key, value, priority: int = 0) -> None:
        """Add to each key. When it returns, the push is counted, once.

        Where it raises, ``error.counted`` and ``error.unknown`` name the keys whose push is counted, or may be; the
        same call again counts every key once. A key of ``error.unknown`` may be given alone: with the same value it
        counts once, with another one both count. Keys travel in the order given.

        Parameters
        ----------
        key : str, int, or list of them
            Initialised keys.
        value : array, or list of arrays
            For each key an array of its shape and dtype, or a list of them, one per device.
        priority : int
            Taken, as MXNet has it, and changes nothing: a push waits until it is counted, so none overtakes another.
        """
        keys, values = self._resolve(key, value, "pushed", as_tensor)
        self._calls.run(keys, self._count, keys, values, None, missed=partial(self._counted, keys, values))

    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Fill ``out`` with the value of each key.

        A synchronous store gives exactly the round that this worker has pushed, when it is complete.

        Parameters
        ----------
        key : str, int, or list of them
            Initialised keys.
        out : array, or list of arrays
            For each key one of its shape and dtype, or several that all get the same.
        priority, ignore_sparse : int, bool
            Taken, as MXNet has them, and change nothing.
        """
        keys, outs = self._resolve_outs(key, out)
        self._calls.run(keys, self._pull_once, keys, self._pull, keys, outs)

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Push, and pull into ``out``, or without one into the values that were pushed.

        A push that is refused is heard of at once. Where only the pull fails, ``error.counted`` names all keys, and the
        same call again pulls. Where it raises, nothing has been written into values that were pushed; but Ctrl-C may
        come when all is done: then what was pulled is there, and the same call again pushes none of it.

        Parameters
        ----------
        key : str, int, or list of them
            Initialised keys.
        value : array, or list of arrays
            As in :meth:`push`.
        out : array, or list of arrays, optional
            As in :meth:`pull`.
        priority : int
            Changes nothing.
        """
        keys, values = self._resolve(key, value, "pushed", as_tensor)
        _, outs = self._resolve_outs(key, value if out is None else out)
        self._calls.run(keys, self._count, keys, values, outs, missed=partial(self._counted, keys, values))

    def row_sparse_pull(self, key, out=None, priority: int = 0, row_ids=None) -> None:
        """Fill ``out`` with some rows of each key: only these travel.

        Parameters
        ----------
        key : str, int, or list of them
            Initialised keys.
        out : array, or list of arrays
            For each key one of shape ``(len(row_ids), *shape[1:])``, or several that all get the same.
        priority : int
            Changes nothing.
        row_ids : array, or list of arrays
            For each key which rows, in that order; a row may come twice.
        """
        if row_ids is None or out is None:
            raise Refused(text("store.rows-wanted"))
        wanted = []
        for (each, into), (_, rows) in zip(paired(key, out), paired(key, row_ids), strict=True):
            spec = self._spec(each)
            index = as_tensor(rows, text("store.of-key", role="row_ids", key=repr(each)))
            if index.is_floating_point():
                raise Refused(text("store.row-dtype", key=repr(each), dtype=index.dtype))
            index = index.reshape(-1).to("cpu", int64, copy=True)  # it may lie where something is pulled into
            count = spec.shape[0] if spec.shape else 0
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
                asked = {"least": int(index.min()), "most": int(index.max())}
                raise Refused(text("store.rows", key=repr(each), last=count - 1, **asked))
            for array in per_device(into):
                spec.validate(array, "out", (index.numel(), *spec.shape[1:]))
                require_writable(array, spec)
            if spec.elements:
                wanted.append((spec, per_device(into), index))
        keys = [spec for spec, _, _ in wanted]
        self._calls.run(keys, self._pull_once, keys, self._pull_rows, wanted)

    def set_optimizer(self, optimizer, **numbers) -> None:
        """From now on a push is the gradient of a step: ``set_optimizer("sgd", lr=0.1, momentum=0.9)``.

        All workers call it. Set again, the same rule goes on with what it remembers; another one begins anew.

        Parameters
        ----------
        optimizer : str, or an optimizer of MXNet
            ``"sgd"``, ``"adagrad"``, ``"adam"``, or one of MXNet of that kind.
        **numbers : float
            Those of the optimizer. ``rescale_grad``: a number that gradients are multiplied by, or ``"mean"``.
        """
        if not isinstance(optimizer, str):
            if numbers:
                raise Refused(text("store.mxnet-numbers"))
            optimizer, numbers = of_mxnet(optimizer)
        chosen = Optimizer.read(optimizer, numbers)
        for spec in self._keys.values():
            self._validate_steps(spec, chosen)
        self._call_together("optimizer", chosen, self._choose, chosen)

    def trace(self, key=None, rounds: int = 8):
        """What was seen of ``key``, as a Trace.

        Parameters
        ----------
        key : str or int, optional
            May be left out where there is one.
        rounds : int
            How many to show: the last ones.

        Returns
        -------
        Trace
            Who pushed and pulled what when.
        """
        raise Refused(text("store.no-trace", kind=repr(self.type)))

    @property
    def keys(self) -> tuple[Key, ...]:
        """Those that are initialized, in that order."""
        return tuple(self._keys)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self._call_together(BARRIER, BARRIER, self._meet_next)

    def _barrier(self) -> None:
        self.barrier()  # as MXNet's users call it

    def close(self) -> None:
        """Say goodbye; what this worker pushed stays. A save in the background is waited for, up to a deadline."""
        try:
            self._saving and self._saving._end(self._patience)
        finally:
            self._calls.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- the calls, in a thread of the store, once arguments are checked; each kind of store has its _init, _push,
    # _pull, _pull_rows, _set_optimizer, and, of what is saved, _keep and _restore

    def _init_once(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        self._go_on()
        for spec, _ in fresh:
            if spec.key in self._keys:
                raise Refused(text("store.init-twice", key=repr(spec.key)))
            if self.optimizer:
                self._validate_steps(spec, self.optimizer)
        self._init(fresh)
        self._keys |= {spec.key: spec for spec, _ in fresh}

    def _deinit(self, fresh: list[tuple[KeySpec, Tensor]], done: bool) -> None:
        """Whoever was interrupted may init again; on the servers the key stays as it is."""
        for spec, _ in fresh if done else ():
            self._keys.pop(spec.key, None)

    def _count(self, keys: list[KeySpec], values: list[Given], outs: list[Given] | None) -> None:
        self._go_on()
        again = self._repeats.again(keys, values)
        try:
            if outs is None:
                self._push(keys, values, again)
            else:
                self._pushpull(keys, values, outs, again)
        except KVError as error:
            if error.counted or error.unknown:  # else nothing has changed
                self._repeats.forget(keys)
                self._repeats.remember(keys, values, error)
            raise
        self._repeats.forget(keys)

    def _counted(self, keys: list[KeySpec], values: list[Given], done: bool) -> KVError:
        """What is counted of a push that was done before it could be interrupted, or had not begun."""
        error, counted = KVError(), keys if done else self._repeats.again(keys, values)
        error.counted = tuple(spec.key for spec in keys if spec in counted)
        if done:  # where what was pulled took its place, that is what comes again
            self._repeats.remember(keys, values, error)
        return error

    def _pushpull(self, keys: list[KeySpec], values: list[Given], outs: list[Given], again: Collection[KeySpec]):
        self._push(keys, values, again)
        with counted(keys):
            self._calls.current.require_wanted()  # what was pushed stays as it is, should it lie where that goes
            self._pull(keys, outs)

    def _pull_once(self, keys: list[KeySpec], pull: Callable, *arguments) -> None:
        self._go_on()
        pull(*arguments)
        self._repeats.forget(keys)

    def _choose(self, optimizer: Optimizer) -> None:
        self._set_optimizer(optimizer)
        self.optimizer = optimizer

    def _validate_steps(self, spec: KeySpec, optimizer: Optimizer) -> None:
        """Raises Refused where ``optimizer`` cannot step such a value."""
        optimizer.validate_dtype(spec.dtype, validate_key(spec.key))

    # ---- all workers together

    def _together(self, what: str, work: partial):
        """Worker 0 does ``work`` when all are here, and all hear what came of it: its result, as JSON, or Refused.

        Who was interrupted comes again to where it was: what is counted is how often it was done, not begun.
        """
        number, failure, note = self._met.get(what, 0) + 1, None, None
        self._meet(f"{what} begins", number)
        wanted = what, number, work.args
        if self.rank == 0 and self._told[0] == wanted:  # some may have heard of it, and gone on
            note = self._told[1]
        elif self.rank == 0:
            try:
                with self._coming(what, number):
                    note = json.dumps({"result": work()})
            except Interrupted:
                raise
            except Exception as error:  # whatever it is, the others do not wait in vain
                failure, note = error, json.dumps({"error": str(error)})
            self._told = wanted, note
        try:
            heard = self._hear(what, number, note)
        except KVError as error:
            raise (not isinstance(error, Interrupted) and failure) or error from None
        said = heard if self.rank else note  # its own: before it was interrupted, it may have said something else there
        if said is None:  # the others went on without worker 0, who does it
            raise WorkerLost(text("store.first-lost", what=what), (0,))
        outcome = json.loads(said)
        self._met[what] = number
        if "error" in outcome:
            raise failure or Refused(f"worker 0 could not {what}: {outcome['error']}")
        return outcome.get("result")

    def _coming(self, what: str, number: int) -> AbstractContextManager:
        """While worker 0 works in it, who waits for it is told that it goes on."""
        return nullcontext()

    def _hear(self, what: str, number: int, note: str | None) -> str | None:
        """As :meth:`_meet`; while worker 0 is at work, the others wait on."""
        for _ in range(LONG):
            with suppress(Late):
                return self._meet(what, number, note)
        return self._meet(what, number, note)

    def _call_together(self, what: str, said: object, work: Callable, *arguments) -> None:
        """``work``, of all workers, unless this one was interrupted when it was done: then the same again hears of it.

        ``said``: what makes it the same.
        """
        keys = (what,) if what in (BARRIER, WAIT) else (STORE,)
        if keys == (STORE,) and self.num_workers == 1:  # several would wait for each other's pushes
            keys = STORE, INIT, *self._keys.values()
        missed = partial(self._not_heard, what, said)
        self._calls.run(keys, self._unless_done, what, said, work, *arguments, missed=missed)

    def _unless_done(self, what: str, said: object, work: Callable, *arguments) -> None:
        unheard = self._unheard
        if unheard and unheard[1:] == (what, said):
            self._unheard = None
        else:
            self._go_on()
            work(*arguments)

    def _go_on(self) -> None:
        """A thread that calls something else knows what became of its last call; what others do says nothing of it."""
        if self._unheard and self._unheard[0] == self._calls.current.caller:
            self._unheard = None

    def _not_heard(self, what: str, said: object, done: bool) -> None:
        if done and self.num_workers > 1:  # who is alone can do it again
            self._unheard = self._calls.current.caller, what, said

    def _meet_next(self) -> None:
        number = self._met.get(BARRIER, 0) + 1
        self._meet(BARRIER, number)
        self._met[BARRIER] = number

    def _meet(self, what: str, number: int, note: str | None = None) -> str | None:
        """Wait for all workers; the note of worker 0."""
        return note

    # ---- arguments

    def _spec(self, key: Key) -> KeySpec:
        spec = self._keys.get(key) if type(key) in (str, int) else None  # to a dict, True and 1.0 are 1
        if spec is None:
            validate_key(key)
            raise Refused(text("store.no-init", key=repr(key)))
        return spec

    def _only(self, key: Key | None) -> KeySpec:
        """The key meant, which may be left out where there is one."""
        if key is None and len(self._keys) != 1:
            keys = ", ".join(map(repr, self.keys))
            raise Refused(text("store.which-key", keys=keys) if keys else text("store.no-keys"))
        return next(iter(self._keys.values())) if key is None else self._spec(key)

    def _resolve(self, key, arrays, role: str, convert: Callable | None = None) -> tuple[list[KeySpec], list[Given]]:
        """The keys, and what is pushed to, or filled with, each of them: checked, and converted where need be."""
        # No object is made for a key: of ten thousand, Python would look through everything for garbage, many times.
        keys, checked = [], []
        for each, given in paired(key, arrays):
            spec = self._spec(each)
            try:
                plain = spec.plain(given)
            except RuntimeError:  # a nested tensor has no shape
                plain = False
            if not plain:
                given = [convert(one, text(f"store.role.{role}")) if convert else one for one in per_device(given)]
                for one in given:
                    spec.validate(one, role)
            keys.append(spec)
            checked.append(given)
        return keys, checked

    def _resolve_outs(self, key, out) -> tuple[list[KeySpec], list[Given]]:
        if out is None:
            raise Refused(text("store.no-out"))
        keys, outs = self._resolve(key, out, "out")
        for spec, into in zip(keys, outs, strict=True):
            if type(into) is Tensor and into.is_contiguous() and not into.is_inference():
                continue  # as all are, where there are ten thousand
            for one in each_of(into):
                require_writable(one, spec)
        return keys, outs
