"""A process per node, joined by torch.distributed: gloo between processors, NCCL between GPUs.

Under ``torchrun --local-addr=127.0.0.1 --nproc-per-node=4 script.py``, or in a notebook in a ``%%px`` cell after
``d2lps.ranks(4)``:

    carrier = d2lps.Processes()
    plan = d2lps.ring(carrier.names)
    trace = d2lps.run(plan, gradient, carrier)     # rank 0 gets the whole run, the others their part
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from d2lps.carriers.background import BackgroundThread, Closed, Progress, keep_forever
from d2lps.carriers.base import Executed, Program
from d2lps.carriers.gloo import Gloo
from d2lps.carriers.nccl import Nccl
from d2lps.carriers.ranks import Ranks, own_address
from d2lps.carriers.rendezvous import DEADLINE, POLL, ProcessesError, RankLost, wait
from d2lps.messages import text


class Processes(Ranks):
    """The carrier for several processes: ``Processes()``, under torchrun or in a ``%%px`` cell.

    All ranks make their carriers in the same order, one for each thread that runs plans: a run that finds another
    thread's run under way is refused, and ends that one, too. After a RankLost, or Ctrl-C, all make new carriers.

    Args:
        playing: the nodes that this process plays; if left out, the node of its own name (``rank0``, or its nodes in a
            cluster, such as ``host1/gpu3``). If no process has the name of a node, process i plays the plan's node i.
        backend: ``"gloo"`` (tensors in main memory) or ``"nccl"`` (each rank's tensors on a GPU of its own); if left
            out, NCCL if every host has a GPU for each of its ranks, else gloo.
        deadline: seconds without a sign of life after which the other ranks give up a rank, with a RankLost.
        store: the store in which the processes meet, instead of torchrun's; it should outlive all of them.
        rank, size: with a store: the number of this process, from 0, and the number of processes.

    Raises:
        ProcessesError: if this is not one of several processes, or their arguments do not fit together.
        RankLost: if one of them does not come.
    """

    kind = "processes"
    _connections: Any = None  # a Gloo or an Nccl

    def __init__(
        self,
        playing: Sequence[str] | None = None,
        *,
        backend: str | None = None,
        deadline: float = DEADLINE,
        store: dist.Store | None = None,
        rank: int | None = None,
        size: int | None = None,
    ):
        if backend not in (None, "gloo", "nccl"):
            raise ProcessesError(text("processes.backend", backend=repr(backend)))
        super().__init__(playing, deadline=deadline, store=store, rank=rank, size=size)
        self._thread, self._progress = BackgroundThread(), Progress()
        self.backend, self.device = self._agreed_backend(backend)
        self._connections = self._watched(self._connect)
        # The first rank to finish might close at once, and cut off ranks that are still connecting.
        self.rendezvous.all_gather("connected", None)

    def load(self, program: Program) -> Callable[[], Executed]:
        with self.telling():
            hosts = [member["host"] for member in self.members]
            execute = torch.no_grad()(self._connections.load(program, self.ranks(program.plan), hosts))
        return lambda: self._watched(execute)

    def exchange(self, work: Callable, *refusals: type[Exception]):
        """Call ``work`` with the :class:`~d2lps.carriers.gloo.Messages` of this rank, in a thread that is watched.

        All ranks call it. A rank that dies or stalls meanwhile is named by all others.

        Args:
            work: Called with the messages.
            *refusals: Classes of errors that all ranks raise, with the same sentence, if the work of one rank raises
                them.

        Returns:
            (object): Its result.

        Raises:
            RankLost: If a rank is lost meanwhile.
        """
        try:
            return self._watched(lambda: work(self._connections.messages()))
        except RankLost as lost:
            for kind in refusals:
                if lost.refusal and lost.refusal[0] == kind.__name__:
                    raise kind(lost.refusal[1]) from lost
            raise

    def prepare(self, program: Program, ranks: Mapping[str, int]) -> Callable[[], Executed]:
        """Return a function that executes a program on some of the ranks; they call it inside :meth:`exchange`.

        Args:
            program: The part of this rank.
            ranks: Node → rank, for all nodes of the plan.

        Returns:
            Executes the program, and returns the times of its acts.
        """
        return self._connections.load(program, ranks, [member["host"] for member in self.members])

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Add up the tensors of all processes, in place, by the all-reduce of the backend.

        Args:
            tensor: That of this process.
        """
        self._watched(lambda: self._connections.all_reduce(tensor))

    def barrier(self) -> None:
        self._watched(lambda: self._connections.barrier())

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def close(self) -> None:
        super().close()
        self._abort()
        self._thread.end()

    def disown(self) -> None:
        super().disown()
        keep_forever(self._connections)
        self._connections = None

    def _watched(self, work: Callable):
        """Do ``work`` in the other thread, and watch its deadline, the other ranks and Ctrl-C meanwhile."""
        progress = self._progress
        try:
            with self.telling(lambda: progress.step):
                progress.at(None)
                done = self._thread.do(work)
                while not done.wait(POLL / 2):
                    self.rendezvous.watch(progress.step)
                    if time.monotonic() - progress.since > self.deadline:
                        self.rendezvous.fail(progress.step, progress.waiting, "late")
                if isinstance(done.error, Closed):
                    self.rendezvous.fail(progress.step, done.error.ranks, "closed", str(done.error))
                if done.error is not None:
                    raise done.error
                return done.result
        finally:
            if self.rendezvous.over:
                self._abort()

    def _abort(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.abort()

    def _agreed_backend(self, backend: str | None) -> tuple[str, torch.device]:
        """Return the backend that all ranks can use, and this rank's device."""
        host = self.members[self.rank]["host"]
        local = [rank for rank, member in enumerate(self.members) if member["host"] == host]
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        offers = self.rendezvous.all_gather("backend", {"asked": backend, "ranks": len(local), "gpus": gpus})
        wishes = {offer["asked"] for offer in offers} - {None}
        if len(wishes) > 1:
            raise ProcessesError(text("processes.backends"))
        enough = all(offer["gpus"] >= offer["ranks"] for offer in offers)
        agreed = wishes.pop() if wishes else "nccl" if enough else "gloo"
        if agreed == "gloo":
            return agreed, torch.device("cpu")
        for rank, offer in enumerate(offers):
            if offer["gpus"] < offer["ranks"]:
                raise ProcessesError(text("processes.few-gpus", rank=rank, gpus=offer["gpus"], ranks=offer["ranks"]))
        return agreed, torch.device("cuda", local.index(self.rank))

    def _connect(self) -> Gloo | Nccl:
        # Longer than the deadline, which the watching thread enforces: gloo must not give up first.
        if self.backend == "gloo":
            address = None if self.one_host or "GLOO_SOCKET_IFNAME" in os.environ else _address_of_ipv6()
            return Gloo(self.store, self.rank, self.size, wait(4 * self.deadline), self._progress, address)
        return Nccl(self.store, self.rank, self.size, wait(self.deadline), self._progress, self.device)


def _address_of_ipv6() -> str | None:
    """Return the address of this host if it reaches the others over IPv6 only, where gloo would listen on loopback."""
    with suppress(KeyError, OSError):  # without MASTER_ADDR the store was given
        return address if ":" in (address := own_address()) else None
    return None
