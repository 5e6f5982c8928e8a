"""``engine="mxnet"``: the store's words on the ps-lite of MXNet 1.9.1, with its scheduler and servers on loopback.

Every part of it is a process of its own (:mod:`d2lps.kvstore.pslite.node`); what is pushed and pulled lies in memory
that a worker and its process share, so that nothing is copied that MXNet itself would not have copied.
"""

import os
import threading
import weakref
from contextlib import suppress
from mmap import mmap

import torch
from torch import Tensor

from d2lps.kvstore.errors import KVError, Refused, WorkerLost
from d2lps.kvstore.gathering import STARTING, gathered
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.placement import counted
from d2lps.kvstore.pslite.fits import DTYPES, for_mxnet, holds, updates
from d2lps.kvstore.pslite.node import layout
from d2lps.kvstore.pslite.started import Nodes, free_port, needed, scheduler, server, worker
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.values import Given, KeySpec, each_of, fill, validate_key

KINDS = ("local", "device", "dist_sync", "dist_async")


class PsLiteStore(KVStore):
    """A store of MXNet. :func:`created` makes one.

    A call that does not return within the deadline raises Timeout, and where a process of it is gone ServerLost or
    WorkerLost; as MXNet cannot take a call back, the store is then at its end. A push returns when it is on its way:
    what becomes of it shows at the next pull. A second push of a key waits until the first is counted.
    """

    def __init__(self, kind: str, rank: int, num_workers: int, nodes: Nodes, meeting=None):
        super().__init__()
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self._nodes, self._meeting = nodes, meeting
        self._slots: dict[KeySpec, list[Tensor]] = {}  # the worker's view of what its process pushes and pulls
        self._numbers: dict[KeySpec, int] = {}
        self._busy: set[KeySpec] = set()  # pushed, and perhaps still being read
        self._updates: Optimizer | None = None
        self._calling = threading.Lock()
        self._end = weakref.finalize(self, _ended, nodes, meeting)

    @property
    def deadline(self) -> float:
        """Seconds that a call may take."""
        return self._nodes.deadline

    def barrier(self) -> None:
        if self._meeting:
            self._ask("barrier")

    def close(self) -> None:
        """Leave, with all other workers: MXNet's wait for each other here, and then its servers end."""
        self._end()
        self._slots.clear()

    def __exit__(self, error, *_) -> None:
        if error is not None:  # the others do not come to where MXNet would wait for them
            self._nodes.over = self._nodes.over or KVError(f"worker {self.rank} has left with {error.__name__}")
        self.close()

    def save(self, *_, **__) -> None:
        """Refused."""
        raise Refused(
            "MXNet saves no values of a store, and no optimizer states of a distributed one: pull the values "
            "and save them, or take engine='d2lps'"
        )

    load = save

    def trace(self, key=None, rounds: int = 8):
        """Refused."""
        raise Refused("MXNet tells no times of what it did: engine='d2lps' does")

    # ---- the words of the store

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        self._usable()
        for known, _ in fresh:
            holds(known, bool(self._meeting))
            updates(known, self._updates)
        self._agree([[validate_key(known.key), str(known.dtype), known.elements] for known, _ in fresh])
        with self._calling:
            for known, _ in fresh:
                # A number for each, the same everywhere: MXNet's own for words depend on each worker's order.
                self._numbers[known] = len(self._numbers)
            self._room("init", [known for known, _ in fresh], [value for _, value in fresh])

    def _push(self, keys: list[KeySpec], values: list[Given]) -> None:
        pushed = [(known, each_of(given)) for known, given in zip(keys, values, strict=True)]
        if self.type == "dist_async" and self._updates is None:
            raise Refused(
                "a server of MXNet's dist_async without an optimizer ends at the first push: set_optimizer first"
            )
        self._usable()
        with self._calling:
            if busy := [self._numbers[known] for known, _ in pushed if known in self._busy]:
                self._asked("settle", keys=busy)
            while short := [known for known, values in pushed if len(values) > len(self._slots[known])]:
                self._room("room", short)
            for known, values in pushed:
                # Copied, and not for the sake of this process alone. With one value per key MXNet keeps no buffer of
                # its own: it sends from the array that was pushed, and the next pull receives into that very array,
                # whatever its out=. Who pushes an unchanged array again would push the sum: 3, then 6, then 12.
                for slot, value in zip(self._slots[known], values):  # noqa: B905, slots may be more
                    slot.copy_(value.reshape(-1))
            self._busy.update(known for known, _ in pushed)
            self._asked(
                "push", keys=[self._numbers[known] for known, _ in pushed], counts=[len(values) for _, values in pushed]
            )

    def _pull(self, keys: list[KeySpec], outs: list[Given]) -> None:
        with self._calling:
            self._asked("pull", keys=[self._numbers[known] for known in keys])
            for known, into in zip(keys, outs, strict=True):
                self._busy.discard(known)  # MXNet does one after the other with each key
                fill(into, self._slots[known][0])

    def _pull_rows(self, asked) -> None:
        raise Refused(
            "MXNet gives rows of sparse values only, and these are dense: pull the key, or take engine='d2lps'"
        )

    def _set_optimizer(self, optimizer: Optimizer) -> None:
        for known in self._slots:
            updates(known, optimizer)
        name, numbers = for_mxnet(optimizer, self.num_workers if self.type == "dist_sync" else 1)
        if self.rank == 0:
            self._ask("optimizer", name=name, numbers=numbers)
        self.barrier()
        self._updates = optimizer

    # ---- with the others, and with this worker's process

    def _agree(self, mine: list) -> None:
        """All workers init the same: a server of MXNet would end where they do not."""
        if not self._meeting:
            return
        from d2lps.carriers.rendezvous import RankLost

        try:
            said = self._meeting.all_gather("init", mine)
        except RankLost as error:
            raise WorkerLost(str(error), error.ranks) from None
        for other, theirs in enumerate(said):
            if theirs != said[0]:
                raise Refused(
                    f"worker {other} has initialised {theirs}, worker 0 {said[0]}: all workers init the same "
                    "keys, with values alike"
                )

    def _room(self, do: str, keys: list[KeySpec], values: list[Tensor] = ()) -> None:
        """One more slot for each key, with these values, known to both processes."""
        starts, end = layout([known.elements * known.dtype.itemsize for known in keys])
        fd = os.memfd_create("d2lps")
        try:
            os.ftruncate(fd, end)
            memory = mmap(fd, end)
            slots = [
                torch.frombuffer(memory, dtype=known.dtype, count=known.elements, offset=start)
                for known, start in zip(keys, starts, strict=True)
            ]
            for slot, value in zip(slots, values):  # noqa: B905, none or all
                slot.copy_(value.reshape(-1))
            self._asked(
                do, keys=[[self._numbers[known], DTYPES[known.dtype], known.elements] for known in keys], fds=[fd]
            )
        finally:
            os.close(fd)
        for known, slot in zip(keys, slots, strict=True):
            self._slots.setdefault(known, []).append(slot)

    def _ask(self, do: str, **more) -> None:
        with self._calling:
            self._asked(do, **more)

    def _asked(self, do: str, **more) -> None:
        self._usable()
        self._nodes.ask(do, **more)

    def _usable(self) -> None:
        if not self._end.alive:
            raise Refused("this store is closed")


def _ended(nodes: Nodes, meeting) -> None:
    if not nodes.over:
        with suppress(KVError):  # the others have gone, or do not come: nothing keeps this one
            nodes.ask("leave")
    nodes.end()
    if meeting:
        meeting.close()


def created(kind: str, servers: int | None = None, *, deadline: float = 30.0, **more) -> PsLiteStore:
    """A store of MXNet: ``local``, ``device``, or as one of the workers that torchrun or ``d2lps.ranks`` started.

    servers
        how many, processes on this machine; as many as workers by default.
    deadline
        seconds that a call may take; MXNet has none.

    All workers call it, with the same options, on one machine that they do not share with strangers: MXNet knows no
    secret, and its servers run what they are sent. Raises Refused, also where MXNet is missing; KVError where it does
    not start; NoRanks where this process is no worker.

    >>> import torch
    >>> with created("local") as store:  # doctest: +SKIP
    ...     store.init("w", torch.zeros(2))
    ...     store.pushpull("w", [torch.ones(2), torch.ones(2)], out=(out := torch.empty(2)))
    >>> out  # doctest: +SKIP
    tensor([2., 2.])
    """
    if kind not in KINDS:
        raise Refused(f"kind = {kind!r}: MXNet has {', '.join(KINDS)}")
    if more or servers is not None and not kind.startswith("dist"):
        raise Refused(f"a store of MXNet of kind {kind!r} has no option {', '.join(more) or 'servers'}")
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 < deadline < 1e6:
        raise Refused(f"deadline = {deadline!r}: seconds, more than 0")
    needed()
    if not kind.startswith("dist"):
        nodes = Nodes(0, deadline)
        try:
            nodes.start(worker(kind, 0))
            nodes.hello(STARTING)
        except BaseException:
            nodes.end(0.0)
            raise
        return PsLiteStore(kind, 0, 1, nodes)
    return _joined(kind, servers, deadline)


def _joined(kind: str, servers: int | None, deadline: float) -> PsLiteStore:
    workers = gathered("pslite", {"kind": kind, "servers": servers, "deadline": deadline}, deadline)
    meeting, rank, size = workers.meeting, workers.rank, workers.size
    nodes = Nodes(rank, deadline)
    try:
        for other, host in enumerate(workers.hosts):
            if host != workers.hosts[0]:
                raise Refused(
                    f"worker {other} is on another machine than worker 0: engine='mxnet' is for one machine, "
                    "on its loopback interface"
                )
        count = counted("servers", size if servers is None else servers)
        port = meeting.all_gather("port", free_port() if rank == 0 else None)[0]
        if rank == 0:
            nodes.start(scheduler(port, size, count))
            for number in range(count):
                nodes.start(server(number, port, size, count))
        nodes.start(worker(kind, rank, port, size, count))
        for other, pids in enumerate(meeting.all_gather("pids", nodes.pids())):
            if other != rank:
                nodes.watch(pids)
        error = None
        try:
            nodes.hello(workers.patience)
        except KVError as found:
            error = found
        said = meeting.all_gather("connected", error and str(error))
        if error:
            raise error
        for other, sentence in enumerate(said):
            if sentence:
                raise Refused(f"worker {other} could not start: {sentence}")
    except BaseException:
        nodes.end(0.0)
        meeting.close()
        raise
    return PsLiteStore(kind, rank, size, nodes, meeting)
