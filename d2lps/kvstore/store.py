"""The words of a store, the same for every kind: those of MXNet's KVStore."""

from d2lps.kvstore import saving
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import Given, Key, Known, each_of, lies, named, paired, put, several, tensor


class KVStore:
    """What every store can do. ``create`` makes one.

    Keys are strings or whole numbers; a list of keys takes a list of values. A value is a tensor of torch, an array of
    NumPy or MXNet, or a list of them, one per device, which are summed in that order.
    """

    type = ""
    rank, num_workers = 0, 1

    def __init__(self):
        self._keys: dict[Key, Known] = {}
        self.optimizer: Optimizer | None = None

    def init(self, key, value) -> None:
        """Give each key its first value. All workers call it, with the same keys; that of worker 0 counts."""
        fresh = []
        for each, given in paired(key, value):
            first = tensor(several(given)[0], f"the first value of key {each!r}")
            named(each)
            if each in self._keys:
                raise Refused(f"key {each!r} is initialised already: pull it, or push to it")
            fresh.append((Known(each, first), first))
        self._init(fresh)
        self._keys |= {known.key: known for known, _ in fresh}

    def push(self, key, value, priority: int = 0) -> None:
        """Add to each key. When it returns, the push is counted, once; what raises anything but Unknown is not.

        Keys travel in the order given. ``priority`` is taken, as MXNet has it, and changes nothing: a push waits until
        it is counted, so none overtakes another.
        """
        self._push(*self._pushed(key, value))

    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Fill ``out`` (per key one array, or several that all get the same) with the value of each key.

        A synchronous store gives exactly the round that this worker has pushed, when it is complete.
        """
        self._pull(*self._pulled(key, out))

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Push, and pull into ``out``, or without one into the values that were pushed.

        A push that is refused is heard of at once. An error that speaks of the pull comes when the push is counted.
        """
        keys, values = self._pushed(key, value)
        self._pushpull(keys, values, self._pulled(key, value if out is None else out)[1])

    def row_sparse_pull(self, key, out=None, priority: int = 0, row_ids=None) -> None:
        """Fill ``out`` with the rows ``row_ids`` of each key, in that order: only these travel."""
        if row_ids is None or out is None:
            raise Refused("row_sparse_pull wants out and row_ids: which rows, and where to put them")
        found = []
        for (each, into), (_, rows) in zip(paired(key, out), paired(key, row_ids), strict=True):
            known = self._known(each)
            index = tensor(rows, f"row_ids of key {each!r}").reshape(-1).long().cpu()
            count = known.shape[0] if known.shape else 0
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
                raise Refused(
                    f"key {each!r} has rows 0 to {count - 1}; row_ids has {int(index.min())} to {int(index.max())}"
                )
            for one in several(into):
                known.check(one, "out", (index.numel(), *known.shape[1:]))
            found.append((known, several(into), index))
        self._rows(found)

    def set_optimizer(self, optimizer, **numbers) -> None:
        """From now on a push is the gradient of a step: ``set_optimizer("sgd", lr=0.1, momentum=0.9)``.

        Optimizers: sgd, adagrad, adam, by name and numbers, or an optimizer of MXNet of that kind. ``rescale_grad``: a
        number that gradients are multiplied by, or ``"mean"``. All workers call it.
        """
        if not isinstance(optimizer, str):
            if numbers:
                raise Refused("an optimizer of MXNet brings its own numbers: give it, or a name and numbers")
            optimizer, numbers = of_mxnet(optimizer)
        found = Optimizer.read(optimizer, numbers)
        self._optimizer(found)
        self.optimizer = found

    def save(self, path) -> None:
        """Write all keys, with the optimizer and what it remembers, to a file. All workers call it; worker 0 writes.

        Raises Refused where it cannot be written; what was there before is there still.
        """
        self.barrier()  # all that was pushed before is in it
        try:
            if self.rank == 0:
                states = {known.key: (known.shape, state) for known, state in self._states()}
                saving.write(path, saving.Saved(states, self.optimizer))
        finally:
            self.barrier()

    def load(self, path) -> None:
        """What :meth:`save` wrote, into the keys that were initialised as they were then. All workers call it.

        Worker 0 reads the file, and the optimizer is the one that was saved. Raises Refused, and nothing has changed,
        where the file is not as it was written or has other keys.
        """
        self.barrier()
        try:
            if self.rank == 0:
                saved = saving.read(path)
                saving.fits(saved, {key: (known.shape, known.dtype) for key, known in self._keys.items()}, path)
                self._restore([(self._keys[key], state) for key, (_, state) in saved.keys.items()], saved.optimizer)
                self.optimizer = saved.optimizer
        finally:
            self.barrier()

    def trace(self, key=None, rounds: int = 8):
        """What was seen of ``key``, as a Trace. Raises Refused where this store has none."""
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

    # ---- arguments

    def _known(self, key: Key) -> Known:
        known = None if isinstance(key, (bool, float)) else self._keys.get(key)  # to a dict, True and 1.0 are 1
        if known is None:
            named(key)
            raise Refused(f"key {key!r} is not initialised: init it first, on all workers")
        return known

    def _one(self, key: Key | None) -> Known:
        """The key meant, which may be left out where there is one."""
        if key is None and len(self._keys) != 1:
            raise Refused(f"which key: {', '.join(map(repr, self.keys)) or 'none is initialised yet'}")
        return next(iter(self._keys.values())) if key is None else self._known(key)

    def _pushed(self, key, value) -> tuple[list[Known], list[Given]]:
        """The keys, and what is pushed to each."""
        # No object is made for a key: of ten thousand, Python would look through everything for garbage, many times.
        keys, values = [], []
        for each, given in paired(key, value):
            known = self._known(each)
            if not known.plain(given):
                given = [tensor(one, "what is pushed") for one in several(given)]
                for one in given:
                    known.check(one, "what is pushed")
            keys.append(known)
            values.append(given)
        return keys, values

    def _pulled(self, key, out) -> tuple[list[Known], list[Given]]:
        """The keys, and what is to be filled with each."""
        if out is None:
            raise Refused("pull wants out=…: an array of the key's shape to be filled")
        keys, outs = [], []
        for each, into in paired(key, out):
            known = self._known(each)
            if not known.plain(into):
                into = several(into)
                for one in into:
                    known.check(one, "out")
            keys.append(known)
            outs.append(into)
        return keys, outs

    def _pushpull(self, keys: list[Known], values: list[Given], outs: list[Given]) -> None:
        self._push(keys, values)
        self._pull(keys, outs)


def fill(outs: Given, found) -> None:
    """The flat value into every one of ``outs`` that does not hold it already."""
    for out in each_of(outs):
        here = lies(out)
        if here is None or here.data_ptr() != found.data_ptr():
            put(out, found)


def of_mxnet(optimizer) -> tuple[str, dict]:
    """(name, numbers) of an optimizer of MXNet."""
    # AdaGrad is not among them: MXNet takes ε into the root, and decays weights otherwise.
    kinds = {
        "SGD": ("sgd", {"momentum": "momentum"}),
        "Adam": ("adam", {"beta1": "beta1", "beta2": "beta2", "epsilon": "eps"}),
    }
    kind = type(optimizer).__name__
    if kind not in kinds or not hasattr(optimizer, "learning_rate"):
        raise Refused(
            f"set_optimizer({kind}): give a name and numbers, set_optimizer('sgd', lr=0.1), or MXNet's "
            f"{', '.join(kinds)}"
        )
    for what in ("lr_scheduler", "clip_gradient"):
        if getattr(optimizer, what, None) is not None:
            raise Refused(
                f"set_optimizer({kind}) with {what}: a server steps with numbers that stay as they are; "
                "set_optimizer again to change one"
            )
    factors = [*getattr(optimizer, "lr_mult", {}).values(), *getattr(optimizer, "wd_mult", {}).values()]
    if any(factor != 1 for factor in factors) or getattr(optimizer, "param_dict", None):
        raise Refused(f"set_optimizer({kind}) with lr_mult or wd_mult: a server has the same numbers for all keys")
    name, numbers = kinds[kind]
    more = {"wd": "weight_decay", "rescale_grad": "rescale_grad"} | numbers
    found = {ours: float(getattr(optimizer, theirs)) for theirs, ours in more.items() if hasattr(optimizer, theirs)}
    return name, {"lr": float(optimizer.learning_rate)} | found
