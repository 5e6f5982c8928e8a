"""The words of a store, the same for every kind: those of MXNet's KVStore."""

from collections.abc import Callable

from d2lps.kvstore import checkpoint
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer, of_mxnet
from d2lps.kvstore.values import Given, Key, KeySpec, as_tensor, paired, per_device, validate_key


class KVStore:
    """What every store can do. ``create`` makes one.

    Keys are strings or whole numbers; a list of keys takes a list of values. A value is a tensor of torch, an array of
    NumPy or MXNet, or a list of them, one per device, which are summed in that order. Every call may raise one of
    :mod:`d2lps.kvstore.errors`.

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

    def __init__(self):
        self._keys: dict[Key, KeySpec] = {}
        self.optimizer: Optimizer | None = None

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
            first = as_tensor(per_device(given)[0], f"the first value of key {each!r}")
            validate_key(each)
            if each in self._keys:
                raise Refused(f"key {each!r} is initialised already: pull it, or push to it")
            fresh.append((KeySpec(each, first), first))
        self._init(fresh)
        self._keys |= {spec.key: spec for spec, _ in fresh}

    def push(self, key, value, priority: int = 0) -> None:
        """Add to each key. When it returns, the push is counted, once; what raises anything but Unknown is not.

        Keys travel in the order given.

        Parameters
        ----------
        key : str, int, or list of them
            Initialised keys.
        value : array, or list of arrays
            For each key an array of its shape and dtype, or a list of them, one per device.
        priority : int
            Taken, as MXNet has it, and changes nothing: a push waits until it is counted, so none overtakes another.
        """
        keys, values = self._resolve(key, value, "what is pushed", as_tensor)
        self._push(keys, values)

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
        self._pull(keys, outs)

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Push, and pull into ``out``, or without one into the values that were pushed.

        A push that is refused is heard of at once. An error that speaks of the pull comes when the push is counted.

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
        keys, values = self._resolve(key, value, "what is pushed", as_tensor)
        _, outs = self._resolve_outs(key, value if out is None else out)
        self._pushpull(keys, values, outs)

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
            raise Refused("row_sparse_pull wants out and row_ids: which rows, and where to put them")
        wanted = []
        for (each, into), (_, rows) in zip(paired(key, out), paired(key, row_ids), strict=True):
            spec = self._spec(each)
            index = as_tensor(rows, f"row_ids of key {each!r}").reshape(-1).long().cpu()
            count = spec.shape[0] if spec.shape else 0
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
                raise Refused(
                    f"key {each!r} has rows 0 to {count - 1}; row_ids has {int(index.min())} to {int(index.max())}"
                )
            for array in per_device(into):
                spec.validate(array, "out", (index.numel(), *spec.shape[1:]))
            wanted.append((spec, per_device(into), index))
        self._pull_rows(wanted)

    def set_optimizer(self, optimizer, **numbers) -> None:
        """From now on a push is the gradient of a step: ``set_optimizer("sgd", lr=0.1, momentum=0.9)``.

        All workers call it.

        Parameters
        ----------
        optimizer : str, or an optimizer of MXNet
            ``"sgd"``, ``"adagrad"``, ``"adam"``, or one of MXNet of that kind.
        **numbers : float
            Those of the optimizer. ``rescale_grad``: a number that gradients are multiplied by, or ``"mean"``.
        """
        if not isinstance(optimizer, str):
            if numbers:
                raise Refused("an optimizer of MXNet brings its own numbers: give it, or a name and numbers")
            optimizer, numbers = of_mxnet(optimizer)
        chosen = Optimizer.read(optimizer, numbers)
        self._set_optimizer(chosen)
        self.optimizer = chosen

    def save(self, path) -> None:
        """Write all keys, with the optimizer and what it remembers, to a file. All workers call it; worker 0 writes.

        Parameters
        ----------
        path : str or Path
            Where; what was there before stays until the new file is complete.
        """
        self.barrier()  # all that was pushed before is in it
        try:
            if self.rank == 0:
                states = {spec.key: (spec.shape, state) for spec, state in self._states()}
                checkpoint.write(path, checkpoint.Checkpoint(states, self.optimizer))
        finally:
            self.barrier()

    def load(self, path) -> None:
        """What :meth:`save` wrote, into the keys that were initialised as they were then. All workers call it.

        Worker 0 reads the file, and the optimizer is the one that was saved. What is refused has changed nothing.

        Parameters
        ----------
        path : str or Path
            A file that :meth:`save` wrote.
        """
        self.barrier()
        try:
            if self.rank == 0:
                saved = checkpoint.read(path)
                saved.validate({key: (spec.shape, spec.dtype) for key, spec in self._keys.items()}, path)
                self._restore([(self._keys[key], state) for key, (_, state) in saved.keys.items()], saved.optimizer)
                self.optimizer = saved.optimizer
        finally:
            self.barrier()

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
        raise Refused(f"a store of kind {self.type!r} has no trace: device and the distributed ones have")

    @property
    def keys(self) -> tuple[Key, ...]:
        """Those that are initialised, in that order."""
        return tuple(self._keys)

    def barrier(self) -> None:
        """Wait until every worker is here."""

    def _barrier(self) -> None:
        self.barrier()  # as MXNet's users call it

    def close(self) -> None:
        """Say goodbye; what this worker pushed stays."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- what each kind of store does once arguments are checked: _init, _push, _pull, _pull_rows, _set_optimizer, and
    # of what was saved _states and _restore

    def _pushpull(self, keys: list[KeySpec], values: list[Given], outs: list[Given]) -> None:
        self._push(keys, values)
        self._pull(keys, outs)

    # ---- arguments

    def _spec(self, key: Key) -> KeySpec:
        spec = None if isinstance(key, (bool, float)) else self._keys.get(key)  # to a dict, True and 1.0 are 1
        if spec is None:
            validate_key(key)
            raise Refused(f"key {key!r} is not initialised: init it first, on all workers")
        return spec

    def _only(self, key: Key | None) -> KeySpec:
        """The key meant, which may be left out where there is one."""
        if key is None and len(self._keys) != 1:
            raise Refused(f"which key: {', '.join(map(repr, self.keys)) or 'none is initialised yet'}")
        return next(iter(self._keys.values())) if key is None else self._spec(key)

    def _resolve(self, key, arrays, role: str, convert: Callable | None = None) -> tuple[list[KeySpec], list[Given]]:
        """The keys, and what is pushed to, or filled with, each of them: checked, and converted where need be."""
        # No object is made for a key: of ten thousand, Python would look through everything for garbage, many times.
        keys, checked = [], []
        for each, given in paired(key, arrays):
            spec = self._spec(each)
            if not spec.plain(given):
                given = [convert(one, role) if convert else one for one in per_device(given)]
                for one in given:
                    spec.validate(one, role)
            keys.append(spec)
            checked.append(given)
        return keys, checked

    def _resolve_outs(self, key, out) -> tuple[list[KeySpec], list[Given]]:
        if out is None:
            raise Refused("pull wants out=…: an array of the key's shape to be filled")
        return self._resolve(key, out, "out")
