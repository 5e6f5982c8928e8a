"""A process per node, joined by torch.distributed: gloo between processors, NCCL between GPUs.

Under ``torchrun --nproc-per-node=4 script.py``, or in a notebook in a ``%%px`` cell after ``d2lps.ranks(4)``:

    carrier = d2lps.Processes()
    plan = d2lps.ring(carrier.names)
    trace = d2lps.run(plan, gradient, carrier)     # rank 0 gets the whole run, the others their part
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.carriers import gloo
from d2lps.carriers.background import Worker
from d2lps.carriers.execute import Message, Timed, Work, as_they_stood, stepwise
from d2lps.carriers.ranks import Ranks
from d2lps.carriers.rendezvous import POLL, ProcessesError, wait


class Processes(Ranks):
    """The carrier for several processes: ``Processes()``, under torchrun or in a ``%%px`` cell.

    playing
        the nodes that this process plays; if left out, process i plays the plan's node i.
    backend
        ``"gloo"`` (tensors in main memory) or ``"nccl"`` (each rank's tensors on a GPU of its own); if left
        out, NCCL where every host has a GPU for each of its ranks, else gloo.
    deadline
        seconds without a sign of life after which a rank is given up, by all others, with a RankLost.
    store, rank, size
        where the processes meet, instead of what torchrun says; the store should outlive all of them.

    All ranks make their carriers in the same order. After a RankLost, or Ctrl-C, all make new ones.
    """

    kind = "processes"

    def __init__(
        self,
        playing: Sequence[str] | None = None,
        *,
        backend: str | None = None,
        deadline: float = 30.0,
        store: dist.Store | None = None,
        rank: int | None = None,
        size: int | None = None,
    ):
        if backend not in (None, "gloo", "nccl"):
            raise ProcessesError(f"backend = {backend!r}: write 'gloo' or 'nccl'")
        super().__init__(playing, deadline=deadline, store=store, rank=rank, size=size)
        self._worker, self._progress, self._group = Worker(), gloo.Progress(), None
        self.backend, self.device = self._chosen(backend)
        self._group = self._watched(self._connected)

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        return dict.fromkeys(nodes, self.device)

    def prepared(self, work: Work) -> Callable[[], list[Timed]]:
        played = self.ranks(work.plan)
        if self.backend == "nccl":
            carried = partial(self._stepwise, work, played)
        else:
            program = gloo.compiled(work, played)
            carried = partial(gloo.carried, program, self._group, self._progress, self._patience)
        return lambda: self._watched(lambda: self._begun(carried))

    def together(self) -> None:
        self._watched(partial(gloo.met, self._group, self._progress, self._patience))

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        return f"{self.backend} ×{self.size}"

    def close(self) -> None:
        super().close()
        self._abort()
        self._worker.end()

    def _stepwise(self, work: Work, played: Mapping[str, int]) -> list[Timed]:
        self._played = played
        return stepwise(self, work)

    def exchange(self, messages: list[Message]) -> list[tuple[float, float]]:
        """One step over NCCL: everything at once, then the writes in the order given."""
        self._progress.step, self._progress.since = (self._progress.step or 0) + 1, time.monotonic()
        sources, start = as_they_stood(messages), self.clock()
        arrived, operations = {}, []
        for i, (message, source) in enumerate(zip(messages, sources, strict=True)):
            src, dst = self._played[message.send.src], self._played[message.send.dst]
            if src == dst:
                arrived[i] = source
            elif message.source is None and message.target.numel():
                arrived[i] = torch.empty_like(message.target)
                operations.append(dist.P2POp(dist.irecv, arrived[i], group=self._group, group_peer=src))
            elif message.target is None and source.numel():
                operations.append(dist.P2POp(dist.isend, source.contiguous(), group=self._group, group_peer=dst))
        others = {self._played[node] for message in messages for node in message.send[:2]} - {self.rank}
        self._progress.waiting = tuple(sorted(others))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for i, message in enumerate(messages):
            if i in arrived:
                message.write(arrived[i])
        return [(start, self.clock())] * len(messages)

    def _begun(self, work: Callable[[], list[Timed]]) -> list[Timed]:
        with torch.no_grad():
            self.begun = self.clock()
            return work()

    @property
    def _patience(self) -> float:
        """How long gloo waits by itself: longer than the deadline, which is kept by the thread that watches."""
        return 4 * self.deadline

    def _watched(self, work: Callable):
        """Do ``work`` in the other thread and watch over it: its deadline, the other ranks, Ctrl-C."""
        progress = self._progress
        try:
            with self.telling(lambda: progress.step):
                progress.at(None)
                done = self._worker.do(work)
                while not done.wait(POLL / 2):
                    self.meeting.watch(progress.step)
                    if time.monotonic() - progress.since > self.deadline:
                        self.meeting.fail(progress.step, progress.waiting, "late")
                if isinstance(done.error, gloo.Closed):
                    self.meeting.fail(progress.step, done.error.ranks, "closed", str(done.error))
                if done.error is not None:
                    raise done.error
                return done.result
        finally:
            if self.meeting.over:
                self._abort()

    def _abort(self) -> None:
        group, self._group = self._group, None
        if group is not None and self.backend == "nccl":
            group._get_backend(self.device).abort()
        elif group is not None:
            gloo.abort(group)

    def _chosen(self, backend: str | None) -> tuple[str, torch.device]:
        """The backend that all ranks can use, and this rank's device."""
        host = self.members[self.rank]["host"]
        local = [rank for rank, member in enumerate(self.members) if member["host"] == host]
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        offers = self.meeting.all("backend", {"asked": backend, "ranks": len(local), "gpus": gpus})
        asked = {offer["asked"] for offer in offers} - {None}
        if len(asked) > 1:
            raise ProcessesError("some ranks ask for gloo and some for nccl: give the same backend on all")
        enough = all(offer["gpus"] >= offer["ranks"] for offer in offers)
        found = asked.pop() if asked else "nccl" if enough else "gloo"
        if found == "gloo":
            return found, torch.device("cpu")
        for rank, offer in enumerate(offers):
            if offer["gpus"] < offer["ranks"]:
                raise ProcessesError(
                    f"NCCL wants a GPU of its own for every rank, and the host of rank {rank} has "
                    f"{offer['gpus']} for {offer['ranks']}: start fewer ranks, or take "
                    "backend='gloo'"
                )
        return found, torch.device("cuda", local.index(self.rank))

    def _connected(self) -> dist.ProcessGroup:
        if self.backend == "gloo":
            with self._progress.of():
                return dist.ProcessGroupGloo(self.store, self.rank, self.size, wait(self._patience))
        torch.cuda.set_device(self.device)
        if dist.is_initialized():
            group = dist.new_group(backend="nccl", timeout=wait(self.deadline), device_id=self.device)
        else:
            dist.init_process_group(
                "nccl",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=wait(self.deadline),
                device_id=self.device,
            )
            group = dist.group.WORLD
        # NCCL sets its connections up at the first exchange, in which all ranks must take part.
        dist.barrier(group, device_ids=[self.device.index])
        return group
