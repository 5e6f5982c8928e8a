"""One rank's part of a run in shared memory: its tasks, with the memory that each of their acts reads and writes."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from d2lps.carriers.execute import Timed, Work
from d2lps.carriers.schedule import Act, Place, Schedule, Task
from d2lps.plan.acts import Update, sends, updates
from d2lps.plan.plan import Plan

if TYPE_CHECKING:
    from d2lps.carriers.shared_memory import SharedMemory

BLOCK = 1 << 21  # bytes that are read, added and written out before the next: they stay in the cache, and are few


class Job:
    """The tasks of ``carrier``'s rank, done once by every ``go()``.

    ``memory``: node → the buffer in which all ranks see its values. For a ``private`` node that is one beside the
    tensor that was given, its home. With a ``result`` every wanted part ends there, and the tensors stay as they are.
    """

    def __init__(
        self,
        carrier: "SharedMemory",
        work: Work,
        schedule: Schedule,
        memory: Mapping[str, Tensor],
        result: Tensor | None,
    ):
        self.carrier, self.work, self.schedule, self.memory = carrier, work, schedule, memory
        self.parts = work.parts
        self.counts = {rank: len(tasks) + 2 for rank, tasks in schedule.tasks.items()}
        self.lies: dict[Place, Tensor] = {}  # the buffer in which a part lies by now, if not that which all see
        self.ends: dict[Place, tuple[Tensor, int]] = {}  # the buffer in which it ends, and the step that puts it there
        self.stage: list[tuple[Tensor, Tensor]] = []  # (target, source) of what is copied before the first task
        self.leave: list[tuple[Tensor, Tensor]] = []  # and after the last
        self._settle(work.plan, schedule.private)
        if result is not None:
            self._settle_in(result, work.plan)
        self.tasks = [(task, self._blocks(task)) for task in schedule.tasks[carrier.rank]]

    def _settle(self, plan: Plan, private: Collection[str]) -> None:
        """Where each part of this rank's private nodes begins and ends.

        It stays at home until it is written, unless it is read before that; and the last time it is written straight
        home, unless it is read after that. Otherwise it is copied to where all see it, and back.
        """
        reads, writes, updated = _uses(plan)
        for node, home in ((node, home) for node, home in self.work.tensors.items() if node in private):
            for key, part in self.parts.items():
                place, seen = (node, key), self.memory[node]
                read, written = reads.get(place), writes.get(place)
                begins = not read or bool(written) and written[0] < read[0]
                ends = begins if not written else not read or read[-1] <= written[-1]
                if begins:
                    self.lies[place] = home
                else:
                    self.stage.append((seen[part], home[part]))
                if written and ends:
                    self.ends[place] = home, written[-1]
                elif written or place in updated and not ends:
                    self.leave.append((home[part], seen[part]))

    def _settle_in(self, result: Tensor, plan: Plan) -> None:
        """What comes together at this rank's nodes does so in ``result``, where nobody reads it: see ``fits_one``."""
        _, writes, updated = _uses(plan)
        for node, key in {*(want[:2] for want in plan.wants), *writes, *updated}:
            if node in self.work.tensors:
                self.ends[node, key] = result, 0
                if (node, key) not in writes:
                    part = self.parts[key]
                    self.stage.append((result[part], self.work.tensors[node][part]))
                    self.lies[node, key] = result

    def _blocks(self, task: Task) -> list[list[tuple]]:
        """What a task does, block by block: (which act, what to do, with what)."""
        part, node = self.parts[task.key], task.snapshot
        if node:
            return [[(None, Tensor.copy_, (self.memory[f"{node}'s spare"][part], self.memory[node][part]))]]
        whole = [(act, *self._done(act, part)) for act in task.acts]
        if len(whole) == 1:
            return [whole]
        size = max(1, BLOCK // self.work.like.element_size())
        cut = [
            [(act, what, blocks) for blocks in zip(*(tensor.split(size) for tensor in tensors), strict=True)]
            for act, what, tensors in whole
        ]
        return [list(block) for block in zip(*cut, strict=True)]

    def _done(self, act: Act, part: slice) -> tuple[Callable, tuple]:
        """(what to do, with what) for one act, after all that this rank does before it."""
        if isinstance(act.act, Update):
            node, key = act.act[:2]
            there = replace(self.work, tensors={node: self._buffer(node, key)})
            there.parts = self.parts  # which need not be worked out again
            return there.update, (act.act,)
        src, dst, key, _ = act.act
        source = self.memory[f"{src}'s spare"] if act.spare else self._buffer(src, key)
        own, target = self._buffer(dst, key), self.memory[dst]
        end, step = self.ends.get((dst, key), (target, 0))
        if act.step >= step:
            target = end
        self.lies[dst, key] = target
        if act.begins:
            return Tensor.copy_, (target[part], source[part])
        return self.work.reduction.into, (target[part], own[part], source[part])

    def _buffer(self, node: str, key: str) -> Tensor:
        return self.lies.get((node, key), self.memory[node])

    def go(self) -> list[Timed]:
        """Do it all once, in step with the other ranks."""
        carrier, step = self.carrier, None
        with carrier.telling(lambda: step):
            carrier.begun = begin = time.perf_counter()
            for target, source in self.stage:
                target.copy_(source)
            carrier.advance(1)
            for rank in self.counts:
                carrier.reach(rank, 1, None)
            spans: dict[tuple[int, int], list[float]] = {}
            for task, blocks in self.tasks:
                step = task.step
                for rank, count in task.after.items():
                    carrier.reach(rank, count + 1, step)
                for i, block in enumerate(blocks):
                    if 0 < i < len(blocks) - 1:  # when an act began and ended, the first and the last block tell
                        for _, what, tensors in block:
                            what(*tensors)
                        continue
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
        carrier.finish(self.counts)
        return [Timed(*place, start - begin, end - begin) for place, (start, end) in spans.items()]


def _uses(plan: Plan) -> tuple[dict[Place, list[int]], dict[Place, list[int]], set[Place]]:
    """In which steps sends read each place, in which they write it; and the places that are updated."""
    reads, writes, updated = {}, {}, set()
    for number, step in enumerate(plan.steps, 1):
        for send in sends(step):
            reads.setdefault((send.src, send.key), []).append(number)
            writes.setdefault((send.dst, send.key), []).append(number)
        updated |= {(act.node, act.key) for act in updates(step)}
    return reads, writes, updated


def fits_one(result: Tensor, work: Work) -> str | None:
    """Why ``result`` cannot be the one result of ``work``; None if it can."""
    mine, theirs = (f"{tensor.numel()} elements of {tensor.dtype}" for tensor in (result, work.like))
    if mine != theirs:
        return f"the one result has {mine}, the gradients {theirs}"
    _, writes, updated = _uses(work.plan)
    where: dict[str, str] = {}
    for node, key in (*(want[:2] for want in work.plan.wants), *writes, *updated):
        if where.setdefault(key, node) != node:
            return (
                f"{where[key]} and {node} both want or write key {key}: one result is for plans in which each key "
                "comes together at one node and stays there, as in reduce_scatter(nodes, direct=True)"
            )
    return None
