"""One rank's part of a program in shared memory, worked out alike on all ranks from the plan.

A receiver reads its senders' memory and adds. The rank that has just made a complete sum also writes it out, block by
block while it is still in the cache, if no other rank touches those places. An operation waits only for the
operations it depends on: there is no barrier between steps.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from d2lps.carriers.base import BufferSlot, Executed, Operation, Program, Step, Timed
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.plan.acts import Send, Update

BLOCK = 1 << 21  # bytes that are read, added and written out before the next: small enough to stay in the cache
LINE = 8  # 64-bit words per rank in the table of progress, so that no two ranks write to one cache line


@dataclass(eq=False)
class Task:
    """Operations of ``rank`` on one key that need no further waiting once the tasks ``after`` (of others) are done."""

    rank: int
    number: int  # among the tasks of its rank
    operations: list[Operation]
    after: dict[int, int] = field(default_factory=dict)  # rank → how many of its tasks must be done


def tasks(steps: Iterable[Step], ranks: Mapping[str, int], private: Collection[str]) -> dict[int, list[Task]]:
    """Return the tasks of each rank; ``ranks``: node → rank; the memory of ``private`` nodes is seen by them alone."""
    by_rank: dict[int, list[Task]] = {rank: [] for rank in sorted(set(ranks.values()))}
    task_of: dict[Operation, Task] = {}
    last: dict[tuple[int, str], Task] = {}  # of a rank, on a key
    for operation in (each for step in steps for each in (*step.copies, *step.sends, *step.updates)):
        before = [task_of[earlier] for earlier in operation.after]
        source, rank, key = ranks[operation.reads.node], ranks[operation.writes.node], operation.writes.key
        plain = isinstance(operation.act, Send) and not operation.reads.spare
        # The rank that has just made a value writes it out, unless the operation depends on other ranks.
        if plain and operation.act.op == "copy" and operation.writes.node not in private:
            fresh = any(earlier.writes == operation.reads for earlier in operation.after)
            rank = source if fresh and all(task.rank == source for task in before) else rank
        task = last.get((rank, key))
        goes_on = plain and task is not None and isinstance(task.operations[0].act, Send)
        # Otherwise it would wait for another rank.
        if task is None or not goes_on or any(earlier.rank != rank for earlier in before):
            task = last[rank, key] = Task(rank, len(by_rank[rank]), [])
            by_rank[rank].append(task)
        task.operations.append(operation)
        task_of[operation] = task
        for earlier in before:
            if earlier.rank != rank:
                task.after[earlier.rank] = max(task.after.get(earlier.rank, 0), earlier.number + 1)
    return by_rank


class ProgressTable:
    """The progress of each rank, in memory that all see; a run counts on from the end of the run before."""

    def __init__(self, words: Tensor, rendezvous: Rendezvous):
        self._words, self._cells, self._rendezvous = words, memoryview(words.numpy()), rendezvous
        self._base = [0] * rendezvous.size
        self._lock = threading.Lock()
        self.step: int | None = None  # the step of the plan that this rank is in

    def advance(self, to: int) -> None:
        """Set the progress of this rank; a rank that reads it then sees all earlier writes."""
        self._in_order()
        rank = self._rendezvous.rank
        self._cells[LINE * rank] = self._base[rank] + to

    def reach(self, rank: int, to: int) -> None:
        """Wait until ``rank`` has made this much progress."""
        cell, need, looks, begin, before = LINE * rank, self._base[rank] + to, 0, time.monotonic(), None
        while self._cells[cell] < need:
            looks += 1
            if looks < 200:
                os.sched_yield()
                continue
            time.sleep(min(looks * 2.5e-7, 1e-3))  # the longer the wait, the longer the pauses
            if not looks % 64:
                self._rendezvous.watch(self.step, lambda: [rank] if self._cells[cell] < need else [])
                if (now := list(self._cells[::LINE])) != before:
                    begin, before = time.monotonic(), now  # a sign of life: some rank has made progress
                elif time.monotonic() - begin > self._rendezvous.deadline:
                    self._rendezvous.fail(self.step, [rank], "late")
        self._in_order()

    def _in_order(self) -> None:
        """Order the reads and writes before this call before those after it: a memory fence."""
        for _ in range(2):  # releasing a lock and taking one again makes the fence
            with self._lock:
                pass

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.step, everyone = None, range(self._rendezvous.size)
        self.advance(1)
        for rank in everyone:
            self.reach(rank, 1)
        self.finish(dict.fromkeys(everyone, 1))

    def finish(self, counts: Mapping[int, int]) -> None:
        """Let the next run count on from the end of this one."""
        for rank, count in counts.items():
            self._base[rank] += count


class SharedProgram:
    """The tasks of one rank, with the memory that each of their operations reads and writes.

    ``memory``: (node, True for its spare) → the buffer in which all ranks see its values. A ``private`` node has such
    a buffer besides the tensor that was given, its home.
    """

    def __init__(
        self,
        program: Program,
        by_rank: Mapping[int, list[Task]],
        rank: int,
        memory: Mapping[tuple[str, bool], Tensor],
        private: Collection[str],
    ):
        self._program, self._memory = program, memory
        self._counts = {other: len(tasks) + 2 for other, tasks in by_rank.items()}
        self._places: dict[BufferSlot, Tensor] = {}  # the buffer that has a part at this point, if not the one all see
        self._ends: dict[BufferSlot, tuple[Tensor, int]] = {}  # where it ends, and the step that puts it there
        self._stage: list[tuple[Tensor, Tensor]] = []  # (target, source) to copy before the first task
        self._unstage: list[tuple[Tensor, Tensor]] = []  # and after the last
        self._settle(private)
        self._tasks = [(task, self._blocks(task)) for task in by_rank[rank]]

    def _settle(self, private: Collection[str]) -> None:
        """Decide in which buffer each part of this rank's private nodes begins and ends.

        A part stays at home until it is written, unless it is read before that; its last write goes straight home,
        unless it is read afterwards. Otherwise it is copied to the buffer that all see at the start, and back at the
        end.
        """
        reads, writes, updated = _uses(self._program)
        for node in private & self._program.tensors.keys():
            home, seen = self._program.tensors[node], self._memory[node, False]
            for key, part in self._program.slices.items():
                slot = BufferSlot(node, key)
                read, written = reads.get(slot), writes.get(slot)
                begins = not read or written is not None and written[0] < read[0]
                ends = begins if not written else not read or read[-1] <= written[-1]
                if begins:
                    self._places[slot] = home
                else:
                    self._stage.append((seen[part], home[part]))
                if written and ends:
                    self._ends[slot] = home, written[-1]
                elif written or slot in updated and not ends:
                    self._unstage.append((home[part], seen[part]))

    def _blocks(self, task: Task) -> list[list[tuple]]:
        """Return the actions of a task, block by block: (operation, function, its tensors)."""
        whole = [(operation, *self._action(operation)) for operation in task.operations]
        if len(whole) == 1:
            return [whole]
        size = max(1, BLOCK // self._program.like.element_size())
        cut = [
            [(operation, function, blocks) for blocks in zip(*(t.split(size) for t in tensors), strict=True)]
            for operation, function, tensors in whole
        ]
        return [list(block) for block in zip(*cut, strict=True)]

    def _action(self, operation: Operation) -> tuple[Callable, tuple[Tensor, ...]]:
        """Return (function, its tensors) for one operation, given all that this rank does before it."""
        part = self._program.slices[operation.writes.key]
        source, value = self._buffer(operation.reads)[part], self._buffer(operation.writes)[part]
        if isinstance(operation.act, Update):
            return partial(self._program.update, operation.act), (value,)
        target = self._memory[operation.writes.node, operation.writes.spare]
        end, step = self._ends.get(operation.writes, (target, 0))
        if operation.step >= step:
            target = end
        self._places[operation.writes] = target
        if operation.begins:
            return Tensor.copy_, (target[part], source)
        return self._program.reduction.into, (target[part], value, source)

    def _buffer(self, slot: BufferSlot) -> Tensor:
        return self._places.get(slot, self._memory[slot.node, slot.spare])

    def execute(self, table: ProgressTable) -> Executed:
        """Execute all tasks once, in step with the other ranks."""
        table.step, begun = None, time.perf_counter()
        for target, source in self._stage:
            target.copy_(source)
        table.advance(1)
        for rank in self._counts:
            table.reach(rank, 1)
        spans: dict[Operation, list[float]] = {}
        for task, blocks in self._tasks:
            table.step = task.operations[0].step
            for rank, count in task.after.items():
                table.reach(rank, count + 1)
            for i, block in enumerate(blocks):
                if 0 < i < len(blocks) - 1:  # the start and end of an act lie in the first and the last block
                    for _, function, tensors in block:
                        function(*tensors)
                    continue
                for operation, function, tensors in block:
                    start = time.perf_counter()
                    function(*tensors)
                    spans.setdefault(operation, [start, start])[1] = time.perf_counter()
            table.advance(task.number + 2)
        table.advance(len(self._tasks) + 2)
        for rank, count in self._counts.items():
            table.reach(rank, count)
        for target, source in self._unstage:
            target.copy_(source)
        table.finish(self._counts)
        return Executed(begun, [Timed(acted.step, acted.index, *span) for acted, span in spans.items() if acted.act])


def _uses(program: Program) -> tuple[dict[BufferSlot, list[int]], dict[BufferSlot, list[int]], set[BufferSlot]]:
    """Return slot → the steps in which sends read it, slot → the steps in which they write it, and updated slots."""
    reads: dict[BufferSlot, list[int]] = {}
    writes: dict[BufferSlot, list[int]] = {}
    for step in program.steps:
        for operation in (*step.copies, *step.sends):
            reads.setdefault(operation.reads, []).append(operation.step)
            writes.setdefault(operation.writes, []).append(operation.step)
    return reads, writes, {operation.writes for step in program.steps for operation in step.updates}
