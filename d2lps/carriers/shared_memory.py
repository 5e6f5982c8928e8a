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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.carriers.meeting import POLL, ProcessesError
from d2lps.carriers.ranks import Ranks
from d2lps.carriers.schedule import Act, Schedule, Task
from d2lps.carriers.segments import Place, Segment, opened, place_of
from d2lps.execute import Timed, Work
from d2lps.plan import Plan
from d2lps.steps import Update, sends
from d2lps.tensors import TensorError

BLOCK = 1 << 17  # bytes that are read, added and written out before the next: they stay in a core's own cache
LINE = 8  # 64-bit words per rank in the table of progress, so that no two ranks write to one cache line


class SharedMemory(Ranks):
    """The carrier for processes of one host: ``SharedMemory()``, under torchrun or in a ``%%px`` cell.

    playing, deadline, store, rank, size
        as for :class:`Processes`.

    All ranks make their carriers in the same order. Raises ProcessesError where they are not on one host.
    """

    kind = "shared memory"

    def __init__(self, playing: Sequence[str] | None = None, *, deadline: float = 30.0,
                 store: dist.Store | None = None, rank: int | None = None, size: int | None = None):  # fmt: skip
        super().__init__(playing, deadline=deadline, store=store, rank=rank, size=size)
        if not self.one_host:
            raise ProcessesError("the ranks run on several hosts, which share no memory: take Processes()")
        self._result: Tensor | None = None
        self._kept: dict[str, Tensor] = {}  # node → the place where others read what lies in ordinary memory
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
        mine = self.tensor(max(elements, 1), dtype) if self.rank == 0 else None
        said = self.meeting.all("common", asdict(place_of(mine)) if mine is not None else None)
        found = mine if mine is not None else opened(Place(**said[0]), dtype)
        self.meeting.all("opened", None)
        return found[:elements]

    def into(self, result: Tensor) -> "SharedMemory":
        """This carrier with one result for all: every key goes to ``result`` (from :meth:`common`), gradients stay as they are.

        For plans in which every key is wanted by one node, such as ``reduce_scatter(nodes, direct=True)``.
        """
        if result.numel() and place_of(result) is None:
            raise TensorError("the one result must lie in memory that all processes have: make it with carrier.common(…)")
        found = copy.copy(self)
        found._result = result
        return found

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        return f"shared memory ×{self.size}"

    def clock(self) -> float:
        return time.perf_counter()

    def ready(self, work: Work) -> Callable[[], list[Timed]]:
        plan, ranks = work.plan, self.ranks(work.plan)
        if work.like.device.type != "cpu":
            raise TensorError(f"the tensors are on {work.like.device}: SharedMemory is for main memory; take Processes()")
        self._fits_result(work)
        seen = {node: self._seen(node, tensor) for node, tensor in work.tensors.items()}
        mine = {node: {"place": asdict(place_of(view)) if view.numel() else None, "private": view is not work.tensors[node]}
                for node, view in seen.items()}  # fmt: skip
        said = {node: one for ranked in self.meeting.all("memory", mine) for node, one in ranked.items()}
        private = frozenset(node for node, one in said.items() if one["private"])
        schedule = Schedule(plan, ranks, private)
        memory = {node: seen[node] if node in seen else opened(Place(**said[node]["place"]), work.like.dtype)
                  if said[node]["place"] else work.like[:0] for node in plan.nodes}  # fmt: skip
        memory |= self._spares(schedule, work)
        return _Job(self, work, schedule, memory, private).go

    def _fits_result(self, work: Work) -> None:
        if self._result is None:
            return
        result, like = self._result, work.like
        if (result.numel(), result.dtype) != (like.numel(), like.dtype):
            raise TensorError(f"the one result has {result.numel()} elements of {result.dtype}, the gradients "
                              f"{like.numel()} of {like.dtype}")  # fmt: skip
        wanted = [key for _, key, _ in work.plan.wants]
        read = {(send.src, send.key) for step in work.plan.steps for send in sends(step)}
        several = next((k for n, k, _ in work.plan.wants if wanted.count(k) > 1 or (n, k) in read and _written(work.plan, n, k)), None)
        if several:
            raise TensorError(f"key {several} is wanted by several nodes, or read after it is complete: one result is for "
                              "plans in which one node wants each key, such as reduce_scatter(nodes, direct=True)")  # fmt: skip

    def _seen(self, node: str, tensor: Tensor) -> Tensor:
        """The tensor itself where others can read it, else a place for a copy."""
        if not tensor.numel() or place_of(tensor) is not None:
            return tensor
        kept = self._kept.get(node)
        if kept is None or (kept.numel(), kept.dtype) != (tensor.numel(), tensor.dtype):
            kept = self._kept[node] = self.tensor(tensor.numel(), tensor.dtype)
        return kept

    def _spares(self, schedule: Schedule, work: Work) -> dict[str, Tensor]:
        """Room for what a step overwrites while others still read it."""
        like, found = work.like, {}
        for node in sorted(schedule.spares):
            found[f"{node}'s spare"] = self.common(like.numel(), like.dtype)
        return found

    # ---- the table of progress: how many tasks each rank has done

    def advance(self, to: int) -> None:
        """Say that this rank has come so far; what it wrote before can be seen by who reads it."""
        with self._lock:  # releasing and taking a lock orders the writes before it with the one that follows
            pass
        with self._lock:
            self._progress[LINE * self.rank] = self._base[self.rank] + to

    def reach(self, rank: int, to: int, step: int | None) -> None:
        """Wait until ``rank`` has come so far."""
        cell, need, looks, begin = LINE * rank, self._base[rank] + to, 0, time.monotonic()
        while self._progress[cell] < need:
            looks += 1
            if looks < 200:
                os.sched_yield()
                continue
            time.sleep(5e-5)
            if not looks % 64:
                self.meeting.watch(step, [rank])
                if time.monotonic() - begin > self.deadline:
                    self.meeting.fail(step, [rank], "late")

    def finish(self, counts: Mapping[int, int]) -> None:
        """Begin the next run's count where this one's ends."""
        for rank, count in counts.items():
            self._base[rank] += count


def _written(plan: Plan, node: str, key: str) -> bool:
    return any(send.dst == node and send.key == key for step in plan.steps for send in sends(step))


class _Job:
    """One prepared run: this rank's tasks with the memory that each act reads and writes."""

    def __init__(self, carrier: SharedMemory, work: Work, schedule: Schedule, memory: Mapping[str, Tensor], private):
        self.carrier, self.schedule = carrier, schedule
        self.work = replace(work, tensors={node: memory[node] for node in work.tensors})
        self.memory, self.reduction, self.parts = memory, work.reduction, work.parts
        self.tasks = schedule.tasks[carrier.rank]
        self.counts = {rank: len(tasks) + 2 for rank, tasks in schedule.tasks.items()}
        own = {node: work.tensors[node] for node in work.tensors if node in private}
        self.moved: dict[tuple[str, str], Tensor] = {}  # where a part lies, if not in its node's memory
        self.stage, self.leave = self._copies(work.plan, own)
        self.steps = [(task, self._blocks(task)) for task in self.tasks]

    def _copies(self, plan: Plan, own: Mapping[str, Tensor]) -> tuple[list, list]:
        """(target, source) of what others must find before, and of what must be brought home after."""
        parts, result = self.parts, self.carrier._result
        last_read, first_read, written, arrives = {}, set(), set(), {}
        for number, step in enumerate(plan.steps, 1):
            for send in sends(step):
                last_read[send.src, send.key] = number
                if (send.src, send.key) not in written:
                    first_read.add((send.src, send.key))
            written |= {(send.dst, send.key) for send in sends(step)}
            arrives |= {(send.dst, send.key): (number, send.op) for send in sends(step)}
        stage, leave = [], []
        for node, tensor in own.items():
            for key, part in parts.items():
                home, seen = tensor[part], self.memory[node][part]
                if (node, key) in plan.holds and (node, key) not in first_read:
                    self.moved[node, key] = home  # nobody else reads it before it is written
                elif (node, key) in plan.holds:
                    stage.append((seen, home))
        self.home = {}
        for node, key, state in plan.wants:
            if node not in self.work.tensors:
                continue
            part = parts[key]
            if result is not None:
                self.home[node, key] = result[part]
            elif node in own:
                number, op = arrives.get((node, key), (0, "add"))
                if op == "copy" and state == "sum" and last_read.get((node, key), 0) <= number:
                    self.home[node, key] = own[node][part]  # the last thing that happens to it: straight home
                elif number or state == "updated":
                    leave.append((own[node][part], self.memory[node][part]))
        if result is not None:
            leave += [(self.home[place], self.memory[place[0]][parts[place[1]]])
                      for place in self.home if place not in arrives]  # fmt: skip
            leave = [(target, self.moved.get(place, source)) for (target, source), place in
                     zip(leave, [p for p in self.home if p not in arrives], strict=True)]  # fmt: skip
        self.last = {place: number for place, (number, _) in arrives.items()}
        return stage, leave

    def _blocks(self, task: Task) -> list[list[tuple]]:
        """What a task does, block by block: (which act, what to do, with what)."""
        part = self.parts[task.key]
        if task.snapshot:
            return [[(None, Tensor.copy_, (self.memory[f"{task.snapshot}'s spare"][part], self.memory[task.snapshot][part]))]]
        if any(isinstance(act.act, Update) for act in task.acts):
            return [[(act, self.work.update, (act.act,)) for act in task.acts]]
        whole = [(act, *self._act(act, part)) for act in task.acts]
        size = BLOCK // max(1, self.work.like.element_size()) if len(whole) > 1 else part.stop - part.start
        cut = [[(act, what, blocks) for blocks in zip(*(tensor.split(max(1, size)) for tensor in tensors), strict=True)]
               for act, what, tensors in whole]  # fmt: skip
        return [list(block) for block in zip(*cut, strict=True)]

    def _act(self, act: Act, part: slice) -> tuple[Callable, tuple[Tensor, ...]]:
        src, dst, key, _ = act.act
        source = self.memory[f"{src}'s spare" if act.spare else src][part] if act.spare else \
            self.moved.get((src, key), self.memory[src][part])
        own = self.moved.get((dst, key), self.memory[dst][part])
        target = self.memory[dst][part]
        if (dst, key) in self.home and (self.carrier._result is not None or act.step == self.last[dst, key]):
            target = self.home[dst, key]
        self.moved[dst, key] = target
        if act.begins:
            return Tensor.copy_, (target, source)
        return self.reduction.into, (target, own, source)

    def go(self) -> list[Timed]:
        carrier = self.carrier
        carrier.meeting.usable()
        step = None
        try:
            carrier.begun = begin = time.perf_counter()
            for target, source in self.stage:
                target.copy_(source)
            carrier.advance(1)
            for rank in self.counts:
                carrier.reach(rank, 1, None)
            spans: dict[tuple[int, int], list[float]] = {}
            for task, blocks in self.steps:
                step = task.acts[0].step if task.acts else step
                for rank, count in task.after.items():
                    carrier.reach(rank, count + 1, step)
                for block in blocks:
                    for act, what, tensors in block:
                        start = time.perf_counter()
                        what(*tensors)
                        if act is not None:
                            spans.setdefault((act.step, act.index), [start, start])[1] = time.perf_counter()
                carrier.advance(task.number + 2)
            carrier.advance(len(self.tasks) + 2)
            for rank, count in self.counts.items():
                carrier.reach(rank, count, step)
            for target, source in self.leave:
                target.copy_(source)
        except KeyboardInterrupt:
            carrier.meeting.interrupted(step)
            raise
        carrier.finish(self.counts)
        return [Timed(*place, start - begin, end - begin) for place, (start, end) in spans.items()]
