"""One rank's part of a program in shared memory: who does what when everybody sees everything, and where it lies.

A receiver adds what it reads from its senders' memory; a sum that is complete is written out by who has just made
it, block by block while it is still in the cache, where nobody else is touching those places. An operation waits
only for those that it comes after: there is no barrier between steps. All ranks work this out alike, from the plan.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from d2lps.carriers.base import Executed, Operation, Program, Slot, Step, Timed
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.plan.acts import Send, Update

BLOCK = 1 << 21  # bytes that are read, added and written out before the next: they stay in the cache, and are few
LINE = 8  # 64-bit words per rank in the table of progress, so that no two ranks write to one cache line


@dataclass(eq=False)
class Task:
    """What ``rank`` does to one key without asking anybody, once the tasks ``after`` (of other ranks) are done."""

    rank: int
    number: int  # among the tasks of its rank
    operations: list[Operation]
    after: dict[int, int] = field(default_factory=dict)  # rank → how many of its tasks must be done


def tasks(steps: Iterable[Step], ranks: Mapping[str, int], private: Collection[str]) -> dict[int, list[Task]]:
    """The tasks of each rank, where ``ranks`` plays the nodes and the memory of ``private`` nodes is their own."""
    by_rank: dict[int, list[Task]] = {rank: [] for rank in sorted(set(ranks.values()))}
    task_of: dict[Operation, Task] = {}
    last: dict[tuple[int, str], Task] = {}  # of a rank, on a key
    for done in (done for step in steps for done in (*step.kept, *step.sends, *step.updates)):
        before = [task_of[earlier] for earlier in done.after]
        source, rank, key = ranks[done.reads.node], ranks[done.writes.node], done.writes.key
        plain = isinstance(done.act, Send) and not done.reads.spare
        # Who has just made a value writes it out, if the target's place is nobody else's business.
        if plain and done.act.op == "copy" and done.writes.node not in private:
            made = any(earlier.writes == done.reads for earlier in done.after)
            rank = source if made and all(task.rank == source for task in before) else rank
        task = last.get((rank, key))
        goes_on = plain and task and isinstance(task.operations[0].act, Send)
        if not goes_on or any(earlier.rank != rank for earlier in before):  # it would wait for somebody new
            task = last[rank, key] = Task(rank, len(by_rank[rank]), [])
            by_rank[rank].append(task)
        task.operations.append(done)
        task_of[done] = task
        for earlier in before:
            if earlier.rank != rank:
                task.after[earlier.rank] = max(task.after.get(earlier.rank, 0), earlier.number + 1)
    return by_rank


class ProgressTable:
    """How far each rank has come, in memory that all see: a run's count begins where the one before it ended."""

    def __init__(self, words: Tensor, rendezvous: Rendezvous):
        self._words, self._cells, self._rendezvous = words, memoryview(words.numpy()), rendezvous
        self._base = [0] * rendezvous.size
        self._lock = threading.Lock()
        self.step: int | None = None  # of the plan, in which this rank is

    def advance(self, to: int) -> None:
        """Say that this rank has come so far; what it wrote before can be seen by who reads it."""
        self._in_order()
        rank = self._rendezvous.rank
        self._cells[LINE * rank] = self._base[rank] + to

    def reach(self, rank: int, to: int) -> None:
        """Wait until ``rank`` has come so far."""
        cell, need, looks, begin, before = LINE * rank, self._base[rank] + to, 0, time.monotonic(), None
        while self._cells[cell] < need:
            looks += 1
            if looks < 200:
                os.sched_yield()
                continue
            time.sleep(min(looks * 2.5e-7, 1e-3))  # the longer it takes, the less often somebody has to look
            if not looks % 64:
                self._rendezvous.watch(self.step, lambda: [rank] if self._cells[cell] < need else [])
                if (now := list(self._cells[::LINE])) != before:
                    begin, before = time.monotonic(), now  # a sign of life: somebody has done something
                elif time.monotonic() - begin > self._rendezvous.deadline:
                    self._rendezvous.fail(self.step, [rank], "late")
        self._in_order()

    def _in_order(self) -> None:
        """What this process wrote before stands in memory before what it writes after; and so for what it reads."""
        for _ in range(2):  # to let a lock go and take one is what orders the two
            with self._lock:
                pass

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.step, everyone = None, range(self._rendezvous.size)
        self.advance(1)
        for rank in everyone:
            self.reach(rank, 1)
        self.finish(dict.fromkeys(everyone, 1))

    def finish(self, counts: Mapping[int, int]) -> None:
        """Begin the next count where this one ends."""
        for rank, count in counts.items():
            self._base[rank] += count


class SharedProgram:
    """The tasks of one rank, with the memory that each of their operations reads and writes.

    ``memory``: (node, whether its spare) → the buffer in which all ranks see its values. For a ``private`` node that is
    one beside the tensor that was given, its home. With a ``result`` every wanted part ends there, and the tensors stay
    as they are.
    """

    def __init__(
        self,
        program: Program,
        by_rank: Mapping[int, list[Task]],
        rank: int,
        memory: Mapping[tuple[str, bool], Tensor],
        private: Collection[str],
        result: Tensor | None,
    ):
        self._program, self._memory = program, memory
        self._counts = {other: len(tasks) + 2 for other, tasks in by_rank.items()}
        self._lies: dict[Slot, Tensor] = {}  # the buffer in which a part lies by now, if not that which all see
        self._ends: dict[Slot, tuple[Tensor, int]] = {}  # the buffer in which it ends, and the step that puts it there
        self._stage: list[tuple[Tensor, Tensor]] = []  # (target, source) of what is copied before the first task
        self._leave: list[tuple[Tensor, Tensor]] = []  # and after the last
        self._settle(private, result)
        self._tasks = [(task, self._blocks(task)) for task in by_rank[rank]]

    def _settle(self, private: Collection[str], result: Tensor | None) -> None:
        """Where each part of this rank's nodes begins and ends, if that is not where all see it.

        That of a private node stays at home until it is written, unless it is read before that; and the last time it
        is written straight home, unless it is read after that. Otherwise it is copied to where all see it, and back.
        What comes together in the one ``result``, where nobody reads it (see :func:`misfit`), does so from the first.
        """
        reads, writes, updated = _uses(self._program)
        gathered = (
            {*(Slot(*want[:2]) for want in self._program.plan.wants), *writes, *updated} if result is not None else ()
        )
        for node, home in self._program.tensors.items():
            for key, part in self._program.slices.items():
                slot, seen = Slot(node, key), self._memory[node, False]
                read, written = reads.get(slot), writes.get(slot)
                begins = not read or bool(written) and written[0] < read[0]
                ends = begins if not written else not read or read[-1] <= written[-1]
                if node in private and begins:
                    self._lies[slot] = home
                elif node in private:
                    self._stage.append((seen[part], home[part]))
                if slot in gathered:
                    self._ends[slot] = result, 0
                    if not written:
                        self._stage.append((result[part], home[part]))
                        self._lies[slot] = result
                elif node in private and written and ends:
                    self._ends[slot] = home, written[-1]
                elif node in private and (written or slot in updated and not ends):
                    self._leave.append((home[part], seen[part]))

    def _blocks(self, task: Task) -> list[list[tuple]]:
        """What a task does, block by block: (operation, what to do, with what)."""
        whole = [(done, *self._action(done)) for done in task.operations]
        if len(whole) == 1:
            return [whole]
        size = max(1, BLOCK // self._program.like.element_size())
        cut = [
            [(done, what, blocks) for blocks in zip(*(tensor.split(size) for tensor in tensors), strict=True)]
            for done, what, tensors in whole
        ]
        return [list(block) for block in zip(*cut, strict=True)]

    def _action(self, done: Operation) -> tuple[Callable, tuple[Tensor, ...]]:
        """(what to do, with what) for one operation, after all that this rank does before it."""
        part = self._program.slices[done.writes.key]
        source, own = self._buffer(done.reads)[part], self._buffer(done.writes)[part]
        if isinstance(done.act, Update):
            return partial(self._program.update, done.act), (own,)
        target = self._memory[done.writes.node, done.writes.spare]
        end, step = self._ends.get(done.writes, (target, 0))
        if done.step >= step:
            target = end
        self._lies[done.writes] = target
        if done.begins:
            return Tensor.copy_, (target[part], source)
        return self._program.reduction.into, (target[part], own, source)

    def _buffer(self, slot: Slot) -> Tensor:
        return self._lies.get(slot, self._memory[slot.node, slot.spare])

    def execute(self, table: ProgressTable) -> Executed:
        """Do it all once, in step with the other ranks."""
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
                if 0 < i < len(blocks) - 1:  # when an act began and ended, the first and the last block tell
                    for _, what, tensors in block:
                        what(*tensors)
                    continue
                for done, what, tensors in block:
                    start = time.perf_counter()
                    what(*tensors)
                    spans.setdefault(done, [start, start])[1] = time.perf_counter()
            table.advance(task.number + 2)
        table.advance(len(self._tasks) + 2)
        for rank, count in self._counts.items():
            table.reach(rank, count)
        for target, source in self._leave:
            target.copy_(source)
        table.finish(self._counts)
        return Executed(begun, [Timed(done.step, done.index, *span) for done, span in spans.items() if done.act])


def _uses(program: Program) -> tuple[dict[Slot, list[int]], dict[Slot, list[int]], set[Slot]]:
    """In which steps each slot is read to be sent, in which what is sent is written there; and which are updated."""
    reads, writes = {}, {}
    for step in program.steps:
        for done in (*step.kept, *step.sends):
            reads.setdefault(done.reads, []).append(done.step)
            writes.setdefault(done.writes, []).append(done.step)
    return reads, writes, {done.writes for step in program.steps for done in step.updates}


def misfit(result: Tensor, program: Program) -> str | None:
    """Why ``result`` cannot be the one result of ``program``; None if it can."""
    mine, theirs = (f"{tensor.numel()} elements of {tensor.dtype}" for tensor in (result, program.like))
    if mine != theirs:
        return f"the one result has {mine}, the gradients {theirs}"
    _, writes, updated = _uses(program)
    where: dict[str, str] = {}
    for node, key, *_ in (*program.plan.wants, *(slot for slot in writes if not slot.spare), *updated):
        if where.setdefault(key, node) != node:
            return (
                f"{where[key]} and {node} both want or write key {key}: one result is for plans in which each key "
                "comes together at one node and stays there, as in reduce_scatter(nodes, direct=True)"
            )
    return None
