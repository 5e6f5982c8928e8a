"""One rank's part of a program over NCCL: the tensors of each rank lie on a GPU of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from d2lps.carriers.background import Progress
from d2lps.carriers.base import Bound, Executed, Program


class Nccl:
    """The connections of one rank, on ``device``, to all others; ``progress`` has the step it is in."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, deadline: timedelta, progress: Progress, device: torch.device
    ):
        self._rank, self._device, self._progress, self._patience = rank, device, progress, 4 * deadline
        torch.cuda.set_device(device)
        if dist.is_initialized():
            self._group = dist.new_group(backend="nccl", timeout=deadline, device_id=device)
        else:
            dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=deadline, device_id=device)
            self._group = dist.group.WORLD
        # NCCL sets its connections up at the first exchange, in which all ranks must take part.
        dist.barrier(self._group, device_ids=[device.index])

    def load(self, program: Program, ranks: Mapping[str, int], hosts: Sequence[str]) -> Callable[[], Executed]:
        """Return a function that executes ``program``; ``ranks``: node → rank. NCCL finds the ``hosts`` itself."""
        return program.stepwise(partial(self._exchange, program, ranks), self._clock)

    def _exchange(
        self, program: Program, ranks: Mapping[str, int], step: int, sends: list[Bound]
    ) -> list[tuple[float, float]]:
        """Exchange all messages of a step at once, then write them in the order given."""
        self._progress.at(step)
        start, arrived, operations, others = self._clock(), {}, [], set()
        for sent, source, target in sends:
            src, dst = ranks[sent.reads.node], ranks[sent.writes.node]
            others |= {src, dst} - {self._rank}
            if src == dst:
                arrived[sent.index] = source
            elif source is None and target.numel():
                arrived[sent.index] = torch.empty_like(target, memory_format=torch.contiguous_format)
                operations.append(dist.P2POp(dist.irecv, arrived[sent.index], group=self._group, group_peer=src))
            elif target is None and source.numel():
                operations.append(dist.P2POp(dist.isend, source, group=self._group, group_peer=dst))
        self._progress.waiting = tuple(sorted(others))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for sent, _, target in sends:
            if sent.index in arrived:
                program.write(sent.begins, target, arrived[sent.index])
        return [(start, self._clock())] * len(sends)

    def _clock(self) -> float:
        torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Add up ``tensor`` over all ranks, in place."""
        dist.all_reduce(tensor, group=self._group)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        with self._progress.of():
            self._group.barrier().wait(self._patience)

    def abort(self) -> None:
        """Close all connections of this rank."""
        self._group._get_backend(self._device).abort()
