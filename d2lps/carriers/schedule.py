"""Who does what when all processes see all memory: a plan as tasks, and what each must wait for.

A receiver adds what it reads from its senders' memory; a sum that is complete is written out by who
has just made it, block by block while it is still in the cache, where nobody else is touching those
places. Keys are independent of each other, so a task waits only for tasks on its own key: there is no
barrier between steps. All processes work this out alike, from the plan alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from d2lps.plan.acts import Send, Update, updates
from d2lps.plan.checking import begun
from d2lps.plan.plan import Plan

Place = tuple[str, str]  # (node, key)


@dataclass(eq=False)
class Act:
    """One act of a plan; ``spare``: its source is overwritten in this very step, so a copy made before is read."""

    step: int
    index: int
    act: Send | Update
    begins: bool = False
    spare: bool = False


@dataclass(eq=False)
class Task:
    """What ``rank`` does to one key without asking anybody, once the tasks ``after`` (of other ranks) are done."""

    rank: int
    number: int  # among the tasks of its rank
    step: int  # that of its first act
    key: str
    acts: list[Act]
    snapshot: str | None = None  # the node whose part is first copied to its spare place
    after: dict[int, int] = field(default_factory=dict)  # rank → how many of its tasks must be done

    def needs(self, other: "Task | None") -> None:
        if other is not None and other.rank != self.rank:
            self.after[other.rank] = max(self.after.get(other.rank, 0), other.number + 1)


class Schedule:
    """The tasks of ``plan`` by rank, where ``ranks`` plays its nodes and ``private`` nodes' memory is their own."""

    def __init__(self, plan: Plan, ranks: Mapping[str, int], private: frozenset[str] = frozenset()):
        self.plan, self.ranks, self.private = plan, ranks, private
        self.tasks: dict[int, list[Task]] = {rank: [] for rank in sorted(set(ranks.values()))}
        self._wrote: dict[Place, Task] = {}
        self._read: dict[Place, list[Task]] = {}
        self._last: dict[tuple[int, str], Task] = {}
        for number, (step, sent) in enumerate(zip(plan.steps, begun(plan), strict=True), 1):
            self._sends(number, sent)
            for index, act in enumerate(updates(step), len(sent)):
                task = self._task(ranks[act.node], number, act.key, [Act(number, index, act)])
                self._writes(task, act.node)

    @property
    def spares(self) -> set[str]:
        """The nodes that need a spare place."""
        return {task.snapshot for tasks in self.tasks.values() for task in tasks if task.snapshot}

    def _sends(self, number: int, sent: list[tuple[Send, bool]]) -> None:
        written = {(send.dst, send.key) for send, _ in sent}
        clash = dict.fromkeys((send.src, send.key) for send, _ in sent if (send.src, send.key) in written)
        for node, key in clash:
            task = self._task(self.ranks[node], number, key, [], snapshot=node)
            self._reads(task, node)
            self._writes(task, f"{node}'s spare")
        for index, (send, begins) in enumerate(sent):
            act = Act(number, index, send, begins, (send.src, send.key) in clash)
            source = f"{send.src}'s spare" if act.spare else send.src
            rank = self.ranks[send.src] if self._pushed(send, act) else self.ranks[send.dst]
            task = self._joined(rank, send, act) or self._task(rank, number, send.key, [act])
            self._reads(task, source)
            self._writes(task, send.dst)

    def _pushed(self, send: Send, act: Act) -> bool:
        """Whether the sender writes it out: it has just made it, and the target's place is nobody else's business."""
        made = self._wrote.get((send.src, send.key))
        rank = self.ranks[send.src]
        return (
            send.op == "copy"
            and not act.spare
            and send.dst not in self.private
            and made is not None
            and made.rank == rank
            and self._alone(rank, send.dst, send.key)
        )

    def _alone(self, rank: int, node: str, key: str) -> bool:
        before = [self._wrote.get((node, key)), *self._read.get((node, key), ())]
        return all(task is None or task.rank == rank for task in before)

    def _joined(self, rank: int, send: Send, act: Act) -> Task | None:
        """The last task of ``rank`` on this key, if this act can be done with it: it waits for nobody new."""
        last = self._last.get((rank, send.key))
        if last is None or last.snapshot or act.spare or isinstance(last.acts[0].act, Update):
            return None
        # Sources that others wrote must have been waited for by that task: those of the same step, or held before.
        made = self._wrote.get((send.src, send.key))
        fits = made is None or made.rank == rank
        if not fits or not self._alone(rank, send.dst, send.key):
            return None
        last.acts.append(act)
        return last

    def _task(self, rank: int, step: int, key: str, acts: list[Act], snapshot: str | None = None) -> Task:
        task = Task(rank, len(self.tasks[rank]), step, key, acts, snapshot)
        self.tasks[rank].append(task)
        self._last[rank, key] = task
        return task

    def _reads(self, task: Task, node: str) -> None:
        task.needs(self._wrote.get((node, task.key)))
        self._read.setdefault((node, task.key), []).append(task)

    def _writes(self, task: Task, node: str) -> None:
        task.needs(self._wrote.get((node, task.key)))
        for reader in self._read.pop((node, task.key), ()):
            task.needs(reader)
        self._wrote[node, task.key] = task
