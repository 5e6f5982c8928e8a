"""The calls of a store, the same for every kind of store: those of MXNet's KVStore; and the stores of one process.

``local`` adds in main memory, ``device`` adds on the devices, by a plan.
"""

import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count

import torch
from torch import Tensor

from d2lps.algorithms import sharded
from d2lps.kvstore.calls import Call, Calls, Push
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Memory, Optimizer, State, remembered
from d2lps.kvstore.together import Load, Save, SetOptimizer
from d2lps.kvstore.values import (
    Key,
    KeySpec,
    Value,
    added,
    as_key,
    as_tensor,
    each_of,
    fill,
    in_rows,
    noted_as_counted,
    paired,
    per_device,
    require_writable,
    validate_key,
)
from d2lps.messages import text


class KVStore:
    """A key-value store. ``create`` makes one.

    Keys are strings or whole numbers, also those of NumPy; a list of keys takes a list of values. A value is a tensor
    of torch, an array of NumPy or MXNet, or a list of them, one per device, which are summed in that order (by
    ``device`` each shard in an order of its own). Every call may raise one of :mod:`d2lps.kvstore.errors`, which says
    what becomes of a push that raises. After Ctrl-C a call changes nothing any more. Several threads may call one
    store: calls that name the same key run one after the other, and save, load and set_optimizer run alone.

    Attributes:
        type (str): The kind of the store.
        rank, num_workers (int): The number of this worker, and how many there are.
        optimizer (Optimizer, or None): The one that :meth:`set_optimizer` set.
    """

    type = ""
    rank, num_workers = 0, 1

    def __init__(self, name: str = "", patience: float = 30.0):
        self._keys: dict[Key, KeySpec] = {}
        self.optimizer: Optimizer | None = None
        self._patience = patience
        self._calls = Calls(f"d2lps store {name}".strip(), patience)
        self._attempts = count(1)  # of calls of all workers, at worker 0
        self._barriers = 0  # how often all workers have met at barrier()
        self._passed: int | None = None  # the thread that was interrupted just as its barrier() was over
        weakref.finalize(self, self._calls.close)

    def init(self, key, value) -> None:
        """Give each key its first value. All workers call it, with the same keys; that of worker 0 counts.

        Args:
            key (str, int, or list of them): Keys that are new.
            value (array, or list of arrays): One for each key; its shape and dtype are the key's from now on.
        """
        fresh = []
        for name, first in paired(key, value):
            validate_key(name)
            first = as_tensor(per_device(first)[0], text("store.first-value", key=repr(name)))
            fresh.append((KeySpec(name, first), first))
        self._run(Init(self, fresh))

    def push(self, key, value, priority: int = 0) -> None:
        """Add to each key. When it returns, the push is counted, once.

        Where it raises, ``error.counted`` and ``error.unknown`` name the keys whose push is counted, or may be; the
        same call again counts every key once. A key of ``error.unknown`` may be given alone: with the same value it
        counts once, with another one both count. Keys travel in the order given.

        Args:
            key (str, int, or list of them): Initialised keys.
            value (array, or list of arrays): For each key an array of its shape and dtype, or a list of them, one per
                device. Of a sparse gradient, as of ``nn.Embedding(sparse=True)``, only the rows travel, each once, if
                it is alone (in no list) and its key is large or pushed alone; the servers add it as a dense one.
            priority: Taken, as MXNet has it, and changes nothing: a push waits until it is counted, so none overtakes
                another.
        """
        keys, values = self._resolve(key, value, "pushed")
        self._run(Push(self, keys, values))

    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Fill ``out`` with the value of each key.

        A synchronous store gives exactly the round that this worker has pushed, when it is complete.

        Args:
            key (str, int, or list of them): Initialised keys.
            out (array, or list of arrays): For each key one of its shape and dtype, or several that all get the same.
            priority, ignore_sparse: Taken, as MXNet has them, and change nothing.
        """
        keys, outs = self._resolve_outs(key, out)
        self._run(Call(lambda: self._pull(keys, outs), keys))

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Push, and pull into ``out``, or without one into the values that were pushed.

        A push that is refused is heard of at once. Where only the pull fails, ``error.counted`` names all keys, and the
        same call again pulls. Where it raises, nothing has been written into values that were pushed; but Ctrl-C may
        come when all is done: then what was pulled is there, and the same call again pushes none of it.

        Args:
            key (str, int, or list of them): Initialised keys.
            value (array, or list of arrays): As in :meth:`push`.
            out (array, or list of arrays, optional): As in :meth:`pull`.
            priority: Changes nothing.
        """
        keys, values = self._resolve(key, value, "pushed")
        _, outs = self._resolve_outs(key, value if out is None else out)
        self._run(Push(self, keys, values, outs))

    def row_sparse_pull(self, key, out=None, priority: int = 0, row_ids=None) -> None:
        """Fill ``out`` with some rows of each key: only these travel.

        Args:
            key (str, int, or list of them): Initialised keys.
            out (array, or list of arrays): For each key one of shape ``(len(row_ids), *shape[1:])``, or several that
                all get the same.
            priority: Changes nothing.
            row_ids (array, or list of arrays): For each key which rows, in that order; a row may come twice.
        """
        if row_ids is None or out is None:
            raise Refused(text("store.rows-wanted"))
        wanted = []
        for (name, into), (_, rows) in zip(paired(key, out), paired(key, row_ids), strict=True):
            spec = self._spec(name)
            index = as_tensor(rows, text("store.of-key", role="row_ids", key=repr(name)))
            if index.is_floating_point():
                raise Refused(text("store.row-dtype", key=repr(name), dtype=index.dtype))
            index = index.reshape(-1).to("cpu", torch.int64, copy=True)  # it may lie where something is pulled into
            count = spec.shape[0] if spec.shape else 0
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
                asked = {"least": int(index.min()), "most": int(index.max())}
                raise Refused(text("store.rows", key=repr(name), last=count - 1, **asked))
            for array in per_device(into):
                spec.validate(array, "out", (index.numel(), *spec.shape[1:]))
                require_writable(array, spec)
            if spec.elements:
                wanted.append((spec, per_device(into), index))
        self._run(Call(lambda: self._pull_rows(wanted), [spec for spec, _, _ in wanted]))

    def set_optimizer(self, optimizer, **numbers) -> None:
        """From now on a push is the gradient of a step: ``set_optimizer("sgd", lr=0.1, momentum=0.9)``.

        All workers call it. Set again, the same rule goes on with what it remembers; another one begins anew.

        Args:
            optimizer (str): ``"sgd"``, ``"adagrad"`` or ``"adam"``.
            **numbers (float): Those of the optimizer. ``rescale_grad``: a number that gradients are multiplied by, or
                ``"mean"``.
        """
        chosen = Optimizer.read(optimizer, numbers)
        for spec in self._keys.values():
            self._validate_steps(spec, chosen)
        self._run(SetOptimizer(self, chosen))

    def save(self, path, then: Callable[[], object] | None = None) -> None:
        """Write all keys, with the optimizer and its state, to a file. All workers call it; worker 0 writes.

        No worker pushes or pulls meanwhile; in the midst of a round it is refused. The older file stays until the new
        one is complete.

        Args:
            path (str or Path): The file.
            then: Called by worker 0 when the file is there, before the call returns on any worker.
        """
        self._run(Save(self, path, then))

    def load(self, path) -> None:
        """Read a file that :meth:`save` wrote into the keys, initialized as they were then. All workers call it.

        Worker 0 reads the file, and the optimizer is the one that was saved. No worker pushes or pulls meanwhile. A
        load that is refused has changed nothing. After any other error, and after Ctrl-C, the store refuses all calls
        but ``close`` until a load succeeds.

        Args:
            path (str or Path): A file that :meth:`save` wrote.
        """
        self._run(Load(self, path))

    def trace(self, key=None, rounds: int = 8):
        """What was seen of ``key``, as a Trace.

        Args:
            key (str or int, optional): May be left out where there is one.
            rounds: How many to show: the last ones.

        Returns:
            (Trace): All pushes and pulls with their workers and times.
        """
        raise Refused(text("store.no-trace", kind=repr(self.type)))

    @property
    def keys(self) -> tuple[Key, ...]:
        """Those that are initialized, in that order."""
        return tuple(self._keys)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self._run(Barrier(self))

    def _barrier(self) -> None:
        self.barrier()  # as MXNet's users call it

    def close(self) -> None:
        """Say goodbye; what this worker pushed stays."""
        self._calls.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self, call: Call):
        if self._passed == threading.get_ident() and not isinstance(call, Barrier):
            self._passed = None  # this thread has gone on: its next barrier is another one
        return self._calls.run(call)

    # ---- each kind of store implements these; they run in a thread of the store, once arguments are checked

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        """Give keys their first values."""
        raise NotImplementedError

    def _push(
        self, keys: list[KeySpec], values: list[Value], outs: list[Value] | None, retry: Collection[KeySpec]
    ) -> None:
        """Push, and pull into ``outs`` if there are some. The keys of ``retry`` are counted already."""
        raise NotImplementedError

    def _pull(self, keys: list[KeySpec], outs: list[Value]) -> None:
        """Fill ``outs``."""
        raise NotImplementedError

    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        """Fill arrays with rows: for each key the arrays and the numbers of the rows."""
        raise NotImplementedError

    def _choose(self, optimizer: Optimizer, number: int) -> None:
        """Set the optimizer of all servers, as worker 0; a later one has a higher ``number``."""
        raise NotImplementedError

    def _states(self) -> Iterator[tuple[KeySpec, State]]:
        """Yield the state of each key, as worker 0, while no worker pushes."""
        raise NotImplementedError

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None, number: int) -> None:
        """Replace the states of all keys and the optimizer on all servers, as worker 0. Refused: on none of them."""
        raise NotImplementedError

    def _confirm(self, number: int) -> None:
        """Raise an error unless all servers that this worker uses have load ``number``."""

    def _settle(self) -> None:
        """Find out whether pushes count of which that is not known."""

    def _next_number(self, name: str) -> int:
        """Return the number of the call ``name`` of all workers that comes next: the last one that was over, plus 1."""
        return 1

    def _meet(self, name: str, number: int, note: str | None = None) -> str | None:
        """Wait for all workers at barrier ``number`` of that name. Return the note of worker 0."""
        return note

    def _coming(self, name: str, number: int) -> AbstractContextManager:
        """Tell those who wait at a barrier, while the block runs, that worker 0 is at work and will come."""
        return nullcontext()

    def _pull_after_push(self, keys: list[KeySpec], outs: list[Value]) -> None:
        with noted_as_counted(keys):
            self._calls.current.require_wanted()  # else what was pushed stays as it is, if it lies where that goes
            self._pull(keys, outs)

    def _validate_steps(self, spec: KeySpec, optimizer: Optimizer) -> None:
        """Raise Refused if ``optimizer`` cannot step such a value."""
        optimizer.validate_dtype(spec.dtype, validate_key(spec.key))

    # ---- arguments

    def _spec(self, key: Key) -> KeySpec:
        spec = self._keys.get(key) if type(key) in (str, int) else None  # to a dict, True and 1.0 are 1
        if spec is None:
            validate_key(key)
            raise Refused(text("store.no-init", key=repr(key)))
        return spec

    def _only(self, key: Key | None) -> KeySpec:
        """Return the key, which may be left out if there is one only."""
        if key is None and len(self._keys) != 1:
            keys = ", ".join(map(repr, self.keys))
            raise Refused(text("store.which-key", keys=keys) if keys else text("store.no-keys"))
        return next(iter(self._keys.values())) if key is None else self._spec(as_key(key))

    def _resolve(self, key, arrays, role: str) -> tuple[list[KeySpec], list[Value]]:
        """Return the keys and their arrays: checked, and pushed ones converted if necessary."""
        # No object is made per key: with ten thousand of them Python would collect garbage many times.
        keys, checked = [], []
        for name, value in paired(key, arrays):
            spec = self._spec(name)
            try:
                plain = spec.plain(value)
            except RuntimeError:  # a nested tensor has no shape
                plain = False
            if not plain:
                value = [spec.as_pushed(one) if role == "pushed" else one for one in per_device(value)]
                if role == "pushed" and len(value) > 1:
                    value = [one.to_dense() if one.is_sparse else one for one in value]
                for one in value if role != "pushed" or not in_rows(value) else ():
                    spec.validate(one, role)
            keys.append(spec)
            checked.append(value)
        return keys, checked

    def _resolve_outs(self, key, out) -> tuple[list[KeySpec], list[Value]]:
        if out is None:
            raise Refused(text("store.no-out"))
        keys, outs = self._resolve(key, out, "out")
        for spec, into in zip(keys, outs, strict=True):
            if type(into) is Tensor and into.is_contiguous() and not into.is_inference():
                continue  # the usual case, which has to be fast
            for one in each_of(into):
                require_writable(one, spec)
        return keys, outs


# ---- calls that an interruption may reach when they are done


class Init(Call):
    """Give new keys their first values."""

    def __init__(self, store: KVStore, fresh: list[tuple[KeySpec, Tensor]]):
        super().__init__(turn="init")
        self.store, self.fresh = store, fresh

    def work(self) -> None:
        store = self.store
        for spec, _ in self.fresh:
            if spec.key in store._keys:
                raise Refused(text("store.init-twice", key=repr(spec.key)))
            if store.optimizer:
                store._validate_steps(spec, store.optimizer)
        store._init(self.fresh)
        store._keys |= {spec.key: spec for spec, _ in self.fresh}

    def missed(self, done: bool) -> None:
        for spec, _ in self.fresh if done else ():  # its caller may init again; on the servers the key stays as it is
            self.store._keys.pop(spec.key, None)


class Barrier(Call):
    """Wait for all workers."""

    def __init__(self, store: KVStore):
        super().__init__(turn="barrier")
        self.store = store

    def work(self) -> None:
        store = self.store
        if store._passed == self.caller:  # it was interrupted as it passed this barrier
            store._passed = None
            return
        store._meet("barrier", store._barriers + 1)
        store._barriers += 1

    def missed(self, done: bool) -> None:
        if done and self.store.num_workers > 1:
            self.store._passed = self.caller


# ---- the stores of one process


class LocalStore(KVStore):
    """The store ``local``: values of several devices are summed in main memory, in the order given."""

    type = "local"

    def __init__(self):
        super().__init__()
        self._values: dict[KeySpec, Tensor] = {}
        self._memory: dict[KeySpec, Memory] = {}  # the state of the optimizer

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        for spec, value in fresh:
            self._values[spec], self._memory[spec] = added([value]).clone(), {}

    def _push(
        self, keys: list[KeySpec], values: list[Value], outs: list[Value] | None, retry: Collection[KeySpec]
    ) -> None:
        done = [spec for spec in keys if spec in retry]
        with noted_as_counted(done):
            for spec, value in zip(keys, values, strict=True):
                if spec not in retry:
                    self._values[spec] = self._added(spec, value)
                    done.append(spec)
        if outs is not None:
            self._pull_after_push(keys, outs)

    def _added(self, spec: KeySpec, value: Value) -> Tensor:
        total = self._sum(value)
        if self.optimizer is None:
            return total
        before = self._values[spec]
        return self.optimizer.stepped(before, total, self._memory[spec], 1, torch.empty_like(before))

    def _sum(self, value: Value) -> Tensor:
        total = added(value)
        return total if in_rows(value) or total.data_ptr() != each_of(value)[0].data_ptr() else total.clone()

    @torch.inference_mode()  # as ``out`` may have been made there
    def _pull(self, keys: list[KeySpec], outs: list[Value]) -> None:
        for spec, into in zip(keys, outs, strict=True):
            fill(into, self._values[spec])

    @torch.inference_mode()
    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        for spec, outs, index in wanted:
            fill(outs, self._values[spec].view(-1, spec.width)[index].reshape(-1))

    def _choose(self, optimizer: Optimizer, number: int) -> None:
        """Do nothing: the state of a key is looked at in its next step."""

    def _states(self) -> Iterator[tuple[KeySpec, State]]:
        for spec in self._keys.values():
            yield spec, {"value": self._values[spec]} | remembered(self.optimizer, self._memory[spec])

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None, number: int) -> None:
        for spec, state in states:
            state = {name: item.clone() if isinstance(item, Tensor) else item for name, item in state.items()}
            self._values[spec] = state.pop("value")
            self._memory[spec] = {optimizer.rule: state} if optimizer and state else {}


class DeviceStore(LocalStore):
    """The store ``device``: as ``local``, but each device sums a shard (``sharded``).

    :meth:`trace` returns the run of the last push of several values.
    """

    type = "device"
    _summed = None

    def trace(self, key=None, rounds: int = 8):
        if self._summed is None:
            raise Refused(text("store.nothing-summed"))
        return self._summed

    def _sum(self, value: Value) -> Tensor:
        values = each_of(value)
        if len(values) == 1:
            return super()._sum(value)
        from d2lps.carriers.execute import run
        from d2lps.carriers.here import Here

        names = [f"device{i}" for i in range(len(values))]
        buffers = {name: value.reshape(-1).clone() for name, value in zip(names, values, strict=True)}
        carrier = Here({name: buffer.device for name, buffer in buffers.items()})
        self._summed = run(sharded(names), buffers, carrier)
        return buffers[names[0]].cpu()
