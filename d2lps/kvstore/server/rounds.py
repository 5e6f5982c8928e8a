"""What a server holds, and when a round closes. No sockets: whoever calls is a thread that speaks for one worker.

A **round** of a key is one push of every worker. It counts workers, not messages: a push carries its number, and one
that has been counted is answered again, not counted again. The sum is taken in the order of the ranks, whatever
order the pushes come in, so it is the same bits for any number of servers. A value that has been published is never
changed: what is being pulled while the next round closes stays whole.
"""

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import Published, Record
from d2lps.kvstore.server.held import Held, Pending, Reply, Waiting, answer, until, workers
from d2lps.kvstore.values import finite

KINDS = ("dist_sync", "dist_async", "dist_ssp")
NAN = ("propagate", "reject", "skip")
LOST = ("fail", "drop")


class Table:
    """All parts of one server, for ``workers`` workers.

    kind
        ``"dist_sync"``: a pull gets exactly the round that its worker has pushed; ``"dist_async"``: every push is
        applied as it comes; ``"dist_ssp"``: the same, and a worker in its clock c (c pushes of the key are done)
        waits until every worker's pushes of the clocks up to c−s−1 are in, s = ``staleness``.
    nan
        what is done with a push that is not finite: ``"propagate"`` it, ``"reject"`` it (an error to that worker,
        who may push again), or ``"skip"`` the whole round for all.
    lost
        what a lost worker does to the others: ``"fail"`` (all calls raise WorkerLost), or ``"drop"`` (rounds close
        over those who are left, and ``counted`` says how many that were).
    record
        whether to remember who pushed and pulled what when (:mod:`d2lps.kvstore.record`).
    """

    def __init__(
        self,
        kind: str,
        workers: int,
        *,
        staleness: int = 0,
        nan: str = "propagate",
        lost: str = "fail",
        deadline: float = 30.0,
        record: bool = False,
    ):
        for what, value, known in (("kind", kind, KINDS), ("nan", nan, NAN), ("lost", lost, LOST)):
            if value not in known:
                raise Refused(f"{what} = {value!r}: it is one of {', '.join(known)}")
        self.kind, self.workers, self.staleness, self.nan, self.lost = kind, workers, staleness, nan, lost
        self.deadline, self.record = deadline, Record() if record else None
        self.live = set(range(workers))
        self.failed = self.left = None  # WorkerLost: for all, or for who still pushes
        self.parts: list[Held] = []
        self.updates: Optimizer | None = None
        self.make = lambda elements, dtype: torch.empty(elements, dtype=dtype)  # room for a value
        self._names: dict[str, int] = {}
        self._barriers: dict[int, set[int]] = {}
        self._meeting = threading.Condition()

    # ---- what workers ask for

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        """The number of the part ``name``, made if it is not there; the value of rank 0 counts, as with MXNet."""
        with self._meeting:
            if name not in self._names:
                self._names[name] = len(self.parts)
                self.parts.append(Held(len(self.parts), name, elements, dtype, self.workers))
            held = self.parts[self._names[name]]
        if (held.elements, held.dtype) != (elements, dtype):
            raise Refused(
                f"key {name} has {held.elements} elements of {held.dtype} here, and worker {rank} "
                f"initialises {elements} of {dtype}: all initialise the same"
            )
        with held.changed:
            held.value = value if held.value is None else held.value
        return held.number

    def room(self, rank: int, number: int, elements: int, dtype: torch.dtype, round_: int) -> bool:
        """Whether a push may be received: False where it is counted already.

        Where this worker's push of the open round is here, it waits: one push per worker and key is kept, and what
        comes beyond stays in the socket.
        """
        held = self.part(number)
        if (held.elements, held.dtype) != (elements, dtype):
            raise Refused(
                f"key {held.name} has {held.elements} elements of {held.dtype} here, and {elements} of "
                f"{dtype} are pushed: push what was initialised"
            )
        if held.value is None:
            raise Refused(f"key {held.name} has no value yet: init it before the first push")
        if self.kind != "dist_sync" and self.updates is None:
            raise Refused(f"{self.kind} applies every push as it comes: set_optimizer before the first push")
        self.usable(rank)
        with held.lock:
            if round_ <= held.rounds[rank]:
                return False
            if round_ > held.rounds[rank] + 1:
                raise Refused(
                    f"push {round_} of worker {rank} to key {held.name} comes before push {held.rounds[rank] + 1}"
                )
            if self.kind == "dist_sync" and held.version < round_ - 1:
                held.until(
                    lambda: held.version >= round_ - 1 or rank not in self.live or self.failed,
                    self.deadline,
                    f"push {round_} to key {held.name} waits for round {round_ - 1} to close",
                    lambda: self._missing(held, held.version + 1),
                )
                self.usable(rank)
        return True

    def taken(self, rank: int, number: int, round_: int, given: Tensor, well: bool) -> bool:
        """Whether ``given`` is finite, where that matters. Raises Refused where it is not and is not taken."""
        if self.nan == "propagate":
            return True
        well = well and finite(given)
        if not well and self.nan == "reject":
            raise Refused(
                f"push {round_} of worker {rank} to key {self.part(number).name} is not finite, and "
                "nan='reject': nothing of it is counted"
            )
        return well

    def push(self, rank: int, number: int, round_: int, given: Tensor, well: bool = True, own: bool = True) -> None:
        """Count ``given``, which is this table's until the round closes, and if it is its ``own``, for ever."""
        held = self.part(number)
        with held.lock:
            self.usable(rank)
            if round_ <= held.rounds[rank]:
                return
            if self.left and self.kind == "dist_sync":
                raise self.left
            held.rounds[rank] = round_
            if self.kind == "dist_sync":
                held.skip |= not well
                held.arrived[rank] = given, own
                done = self._merge(held)
            else:
                self._publish(held, given if well else None, own, [rank])
                done = self._ready(held)
        answer(done)

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Reply) -> bool:
        """Give ``reply`` what worker ``rank`` is to see of several parts, now or when all of it is there; whether now.

        ``wanted``: (number of a part, after how many pushes of this worker) for each.
        """
        self.usable(rank)
        parts = [(self.part(number), need) for number, need in wanted]
        if len({held.dtype for held, _ in parts}) > 1:
            raise Refused("what is pulled together is of one dtype")
        if nothing := [held.name for held, _ in parts if held.value is None]:
            raise Refused(f"key {nothing[0]} has no value yet: init it before the first pull")
        pull, here = Pending(rank, len(parts), time.monotonic() + self.deadline, reply), 0
        for place, (held, need) in enumerate(parts):
            with held.lock:
                if self._may_read(held, need):
                    pull.found[place] = held.found
                    here += 1
                else:
                    held.waiting.append(Waiting(pull, place, need))
        pull.came(here)
        if self.failed:  # perhaps before all of them waited
            pull.fail(self.failed)
        return pull.over

    def optimizer(self, rank: int, given: Optimizer | None) -> None:
        """Updates by this, or by none, from the next round on that closes."""
        self.usable(rank)
        self.updates = given

    def barrier(self, rank: int, number: int) -> None:
        """Wait until every worker has come to its barrier of this ``number``."""
        self.usable(rank)
        with self._meeting:
            self._barriers.setdefault(number, set()).add(rank)
            self._barriers.pop(number - 2, None)  # nobody can still be there
            self._meeting.notify_all()
            until(
                self._meeting,
                lambda: not self._absent(number) or self.failed,
                self.deadline,
                "the barrier",
                lambda: sorted(self._absent(number)),
            )
            if self.failed and self._absent(number):
                raise self.failed

    def _absent(self, number: int) -> set[int]:
        return self.live - self._barriers.get(number, self.live)

    # ---- what happens to workers

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        """Worker ``rank`` has gone; ``left``: it has said goodbye, and fails only those who still wait for it."""
        with self._meeting:
            if rank not in self.live:
                return
            error = WorkerLost(f"worker {rank} {'has left' if left else 'is lost'} ({why})", (rank,))
            waited = any(held.arrived or held.summed or held.waiting for held in list(self.parts))
            if self.lost == "fail" and left and not waited:
                self.left = error  # whoever pushes from now on waits in vain
            elif self.lost == "fail" or self.live == {rank}:
                self.failed = self.failed or error
            self.live.discard(rank)
            self._meeting.notify_all()
        for held in list(self.parts):
            with held.changed:
                if self.failed:
                    done = [(waiting, self.failed) for waiting in held.waiting]
                    held.waiting.clear()
                else:
                    done = self._merge(held) if self.kind == "dist_sync" else self._ready(held)
                held.changed.notify_all()
            answer(done)

    def late(self) -> None:
        """Answer those who have waited for longer than the deadline. To be called now and then."""
        now = time.monotonic()
        for held in list(self.parts):
            if not held.waiting:
                continue
            with held.changed:
                late = [waiting for waiting in held.waiting if waiting.pull.until < now]
                held.waiting = [waiting for waiting in held.waiting if waiting.pull.until >= now]
            answer([(waiting, Timeout(self._waits(held, waiting))) for waiting in late])

    def usable(self, rank: int) -> None:
        """Raises WorkerLost if one has gone that the others cannot do without, or ``rank`` itself counts as gone."""
        if self.failed:
            raise self.failed
        if rank not in self.live:
            raise WorkerLost(f"worker {rank} counts as lost here, and the others went on without it", (rank,))

    def part(self, number: object) -> Held:
        """Raises Refused where there is none."""
        if type(number) is not int or not 0 <= number < len(self.parts):
            raise Refused(f"there is no part {number} here: init the key first")
        return self.parts[number]

    # ---- inside; ``held.changed`` is held

    def _merge(self, held: Held) -> list:
        """Add to the open round what can be added in the order of the ranks; close it when that was the last."""
        for rank in range(self.workers):
            if rank not in held.arrived:
                if rank in self.live and rank not in held.summed:
                    return []
                continue
            given, own = held.arrived.pop(rank)
            held.summed.append(rank)
            if held.sum is None:
                held.sum, held.own = given, own
            elif held.own or self.updates or self.live.difference(held.summed):
                held.sum.add_(given)
            else:  # the last one: the sum goes straight to where it will stay
                held.sum, held.own = torch.add(held.sum, given, out=self.make(held.elements, held.dtype)), True
        if not held.summed:
            return []
        total, ranks = None if held.skip else held.sum, held.summed
        held.sum, held.summed, held.skip = None, [], False
        self._publish(held, total, held.own, ranks)
        if held.queued:
            held.changed.notify_all()
        return self._ready(held)

    def _publish(self, held: Held, gradient: Tensor | None, own: bool, ranks: list[int]) -> None:
        """The next version, with the pushes of ``ranks``; without a gradient the value stays as it is."""
        start = time.monotonic()
        if gradient is not None:
            self._apply(held, gradient, own, len(ranks))
        held.counted, held.version = len(ranks), held.version + 1
        if self.record:
            pushes = [] if gradient is None else [(rank, held.rounds[rank]) for rank in ranks]
            self.record.add(Published(held.number, held.version, pushes, start, time.monotonic()))

    def _apply(self, held: Held, gradient: Tensor, own: bool, counted: int) -> None:
        if self.updates is None and own:  # as with MXNet, without an optimizer the sum is the new value
            held.value = gradient
            return
        room = self.make(held.elements, held.dtype)
        if self.updates is None:
            held.value = room.copy_(gradient)
        else:
            held.value = self.updates.stepped(held.value, gradient, held.memory, counted, room)

    def _ready(self, held: Held) -> list:
        """Those who wait no longer, with what they get."""
        if not held.waiting:
            return []
        done = [(waiting, held.found) for waiting in held.waiting if self._may_read(held, waiting.need)]
        if done:
            held.waiting = [waiting for waiting in held.waiting if not self._may_read(held, waiting.need)]
        return done

    def _may_read(self, held: Held, need: int) -> bool:
        if self.kind == "dist_sync":
            return held.version >= need
        if self.kind == "dist_async":
            return True
        return all(held.rounds[rank] >= need - self.staleness for rank in self.live)

    def _missing(self, held: Held, need: int) -> list[int]:
        return [rank for rank in sorted(self.live) if held.rounds[rank] < need]

    def _waits(self, held: Held, waiting: Waiting) -> str:
        need = waiting.need - (self.staleness if self.kind == "dist_ssp" else 0)
        return (
            f"the pull of key {held.name} has waited {self.deadline:g} s for push {need} of "
            f"{workers(self._missing(held, need))}"
        )
