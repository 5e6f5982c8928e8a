"""Processes of one host that see each other's memory: nothing is sent, everybody reads and adds where it lies.

    carrier = d2lps.SharedMemory()
    gradient = d2lps.SharedMemory.tensor(10_000_000)     # lives where the others can read it
    trace = d2lps.run(d2lps.sharded(carrier.names), gradient, carrier)

Ordinary tensors work as well; they are first copied to where the others can read them.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.carriers.execute import Timed, Work
from d2lps.carriers.job import Job, fits_one
from d2lps.carriers.ranks import Ranks
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.carriers.schedule import Schedule
from d2lps.carriers.segments import Place, Segment, apart, opened, place_of
from d2lps.carriers.tensors import TensorError

LINE = 8  # 64-bit words per rank in the table of progress, so that no two ranks write to one cache line


class SharedMemory(Ranks):
    """The carrier for processes of one host: ``SharedMemory()``, under torchrun or in a ``%%px`` cell.

    playing, deadline, store, rank, size
        as for :class:`Processes`.

    All ranks make their carriers in the same order. Raises ProcessesError where they are not on one host.
    """

    kind = "shared memory"

    def __init__(
        self,
        playing: Sequence[str] | None = None,
        *,
        deadline: float = 30.0,
        store: dist.Store | None = None,
        rank: int | None = None,
        size: int | None = None,
    ):
        self._result: Tensor | None = None
        self._kept: dict[str, Tensor] = {}  # node → the place where others read what lies in ordinary memory
        super().__init__(playing, deadline=deadline, store=store, rank=rank, size=size)
        if not self.one_host:
            raise ProcessesError("the ranks run on several hosts, which share no memory: take Processes()")
        table = self.common(LINE * self.size, torch.int64)
        self._table, self._progress = table, memoryview(table.numpy())
        self._base = [0] * self.size
        self._lock = threading.Lock()

    @staticmethod
    def tensor(given: "int | Tensor", dtype: torch.dtype = torch.float32) -> Tensor:
        """A flat tensor of so many elements, zero, or a copy of ``given``, in memory that other processes can read."""
        if isinstance(given, Tensor):
            flat = given.detach().reshape(-1)
            return SharedMemory.tensor(flat.numel(), flat.dtype).copy_(flat)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise TensorError(f"SharedMemory.tensor({given!r}): give a number of elements, or a tensor to copy")
        return Segment(given * dtype.itemsize).tensor(given, dtype)

    def common(self, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One tensor that all processes have: they all call this, and each gets the same memory."""
        with self.telling():
            mine = self.tensor(elements, dtype) if self.rank == 0 else None
            said = self.meeting.all("common", [f"{elements} elements of {dtype}", _told(mine)])
            for rank, (asked, _) in enumerate(said):
                if asked != said[0][0]:
                    raise TensorError(
                        f"rank {rank} asks for one tensor of {asked}, rank 0 for {said[0][0]}: all ask for the same"
                    )
            found = mine if mine is not None else self._found(said[0][1], dtype, 0)
            self.meeting.all("opened", None)  # by now everyone has it, and rank 0 may let it go
            return found

    def into(self, result: Tensor) -> "SharedMemory":
        """This carrier with one result for all: every key goes there, and all gradients stay as they are.

        ``result`` comes from :meth:`common`. For plans in which each key comes together at one node and stays there,
        such as ``reduce_scatter(nodes, direct=True)``.
        """
        if not isinstance(result, Tensor) or result.dim() != 1 or result.numel() and place_of(result) is None:
            raise TensorError(
                "the one result is a flat tensor in memory that all processes have: make it with carrier.common(…)"
            )
        found = copy.copy(self)
        found._result = result
        return found

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device]:
        return dict.fromkeys(nodes, torch.device("cpu"))

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.tensor(elements, dtype)

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        return f"shared memory ×{self.size}"

    def together(self) -> None:
        with self.telling():
            self.advance(1)
            for rank in range(self.size):
                self.reach(rank, 1, None)
        self.finish(dict.fromkeys(range(self.size), 1))

    def clock(self) -> float:
        return time.perf_counter()

    def prepared(self, work: Work) -> Callable[[], list[Timed]]:
        seen = {node: self._seen(node, tensor) for node, tensor in work.tensors.items()}
        private = [node for node in seen if seen[node] is not work.tensors[node]]
        trouble = None if self._result is None else fits_one(self._result, work)
        told = {node: _told(tensor) for node, tensor in seen.items()}
        said = self.meeting.all(
            "memory", {"trouble": trouble, "result": _told(self._result), "private": private, "places": told}
        )
        places = _agreed(said, work.like.element_size())
        all_private = frozenset(node for one in said for node in one["private"])
        ranks = self.ranks(work.plan)
        schedule = Schedule(work.plan, ranks, all_private)
        memory = seen | {
            node: self._found(places[node], work.like.dtype, ranks[node])
            for node in work.plan.nodes
            if node not in seen
        }
        for node in sorted(schedule.spares):  # room for what a step overwrites while others still read it
            memory[f"{node}'s spare"] = self.common(work.like.numel(), work.like.dtype)
        return Job(self, work, schedule, memory, self._result).go

    def _seen(self, node: str, tensor: Tensor) -> Tensor:
        """The tensor itself where others can read it, else a place for a copy."""
        if not tensor.numel() or place_of(tensor) is not None:
            return tensor
        kept = self._kept.get(node)
        if kept is None or (kept.numel(), kept.dtype) != (tensor.numel(), tensor.dtype):
            kept = self._kept[node] = self.tensor(tensor.numel(), tensor.dtype)
        return kept

    def _found(self, told: dict | None, dtype: torch.dtype, rank: int) -> Tensor:
        """What ``rank`` has told of. It goes with its process: who cannot open it asks whether that is still alive."""
        try:
            return torch.empty(0, dtype=dtype) if told is None else opened(Place(**told), dtype)
        except TensorError as error:
            return self.meeting.fail(None, [rank], "closed", str(error))

    def close(self) -> None:
        super().close()
        self._kept.clear()

    # ---- the table of progress: how many tasks each rank has done

    def advance(self, to: int) -> None:
        """Say that this rank has come so far; what it wrote before can be seen by who reads it."""
        self._in_order()
        self._progress[LINE * self.rank] = self._base[self.rank] + to

    def reach(self, rank: int, to: int, step: int | None) -> None:
        """Wait until ``rank`` has come so far."""
        cell, need, looks, begin, before = LINE * rank, self._base[rank] + to, 0, time.monotonic(), None
        while self._progress[cell] < need:
            looks += 1
            if looks < 200:
                os.sched_yield()
                continue
            time.sleep(min(looks * 2.5e-7, 1e-3))  # the longer it takes, the less often somebody has to look
            if not looks % 64:
                self.meeting.watch(step, lambda: [rank] if self._progress[cell] < need else [])
                if (now := list(self._progress[::LINE])) != before:
                    begin, before = time.monotonic(), now  # a sign of life: somebody has done something
                elif time.monotonic() - begin > self.deadline:
                    self.meeting.fail(step, [rank], "late")
        self._in_order()

    def _in_order(self) -> None:
        """What this process wrote before stands in memory before what it writes after; and so for what it reads."""
        for _ in range(2):  # to let a lock go and take one is what orders the two
            with self._lock:
                pass

    def finish(self, counts: Mapping[int, int]) -> None:
        """Begin the next run's count where this one's ends."""
        for rank, count in counts.items():
            self._base[rank] += count


def _told(tensor: Tensor | None) -> dict | None:
    """Where a tensor lies, as other processes are told; None where there is nothing to find."""
    return None if tensor is None or not tensor.numel() else asdict(place_of(tensor))


def _agreed(said: list[dict], width: int) -> dict[str, dict | None]:
    """Where each node's memory is. Raises TensorError, alike on all ranks, where what they say does not go together."""
    for rank, one in enumerate(said):
        if one["trouble"]:
            raise TensorError(one["trouble"])
        if one["result"] != said[0]["result"]:
            raise TensorError(
                f"rank {rank} has another result than rank 0: make it with carrier.common(…) and give it "
                "to carrier.into(…) on all ranks"
            )
    places = {node: place for one in said for node, place in one["places"].items()}
    named = places | {"the one result": said[0]["result"]}
    apart({name: Place(**place) for name, place in named.items() if place}, width)
    return places
