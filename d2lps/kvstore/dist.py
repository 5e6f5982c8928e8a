"""The distributed store of one worker: a line to every server, and what it has pushed so far."""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from d2lps.kvstore.client import Line, Request
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Unknown, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.placement import Placement
from d2lps.kvstore.store import KVStore, fill
from d2lps.kvstore.values import Known, added, finite, lies, named
from d2lps.kvstore.wire import DTYPES, NOTHING, Entry, Op, raw

FRAME, MOST = 1 << 20, 4096  # bytes and number of the small parts that travel in one frame
GRACE = 1.25  # a server keeps the deadline; its worker waits a little longer, for the server's own words


class DistStore(KVStore):
    """One worker's end of ``dist_sync``, ``dist_async`` or ``dist_ssp``.

    lines
        a connection to every server, in their order.
    look
        whether pushes are looked at for what is not finite, as the servers' ``nan`` wants it.
    started
        the server processes that this worker has started; it lets go of them when it closes.
    """

    def __init__(self, kind: str, rank: int, num_workers: int, lines: Sequence[Line], placement: Placement, *,
                 look: bool = False, started: Sequence = ()):  # fmt: skip
        super().__init__()
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self.lines, self.placement = list(lines), placement
        self.deadline = self.lines[0].deadline
        self._look, self.started = look, list(started)
        self._barriers = 0
        self._pool = ThreadPoolExecutor(len(self.lines), thread_name_prefix=f"d2lps worker {rank}")
        # Also where nobody closes it: what ends without a goodbye makes the others wait.
        self._end = weakref.finalize(self, _ended, self.lines, self._pool, self.started)

    def barrier(self) -> None:
        self._barriers += 1
        self._wait([(self.lines[0], self.lines[0].ask(Request(Op.BARRIER, said={"round": self._barriers})))])

    def close(self) -> None:
        self._end()

    # ---- the words of the store

    def _init(self, fresh: list[tuple[Known, Tensor]]) -> None:
        asked = []
        for known, value in fresh:
            flat, parts = added([value]), self.placement.parts(known.key, known.elements, known.width)
            for i, part in enumerate(parts):
                said = {"name": f"{named(known.key)} {i + 1}/{len(parts)}", "elements": part.stop - part.start,
                        "dtype": DTYPES.index(known.dtype)}  # fmt: skip
                payload = raw(flat[part.start : part.stop]) if self.rank == 0 else NOTHING
                line = self.lines[part.server]
                asked.append((line, line.ask(Request(Op.INIT, said=said, payload=payload)), known, part))
        self._wait([(line, request) for line, request, _, _ in asked])
        for _, request, known, part in asked:
            known.places.append((part, request.answer.said["part"]))
        self.barrier()  # the value of worker 0 is there

    def _push(self, pushed: list[tuple[Known, list]]) -> None:
        pushes, told = self._pushes(pushed)
        try:
            self._all(pushes)
        finally:
            _count(told)

    def _pull(self, pulled: list[tuple[Known, list]]) -> None:
        requests, after = self._pulls(pulled, 0)
        self._all(requests)
        after()

    def _pushpull(self, pushed, pulled) -> None:
        (pushes, told), (pulls, after) = self._pushes(pushed), self._pulls(pulled, 1)
        try:
            self._all({server: pushes.get(server, []) + pulls.get(server, []) for server in {*pushes, *pulls}})
        finally:
            _count(told)
        after()

    def _rows(self, asked) -> None:
        requests: dict[int, list[Request]] = {}
        found = [torch.empty(index.numel(), known.width, dtype=known.dtype) for known, _, index in asked]
        pieces = []
        for (known, _, index), whole in zip(asked, found, strict=True):
            for part, number in known.places:
                first, last = part.start // known.width, part.stop // known.width
                here = ((index >= first) & (index < last)).nonzero().reshape(-1)
                if here.numel():
                    rows, room = index[here] - first, torch.empty(here.numel() * known.width, dtype=known.dtype)
                    said = {"part": number, "width": known.width, "round": known.rounds}
                    asking = Request(Op.ROWS, said=said, payload=raw(rows), into=raw(room))
                    requests.setdefault(part.server, []).append(asking)
                    pieces.append((whole, here, room))
        self._all(requests)
        for whole, here, room in pieces:
            whole[here] = room.view(-1, whole.shape[1])
        for (_, outs, _), whole in zip(asked, found, strict=True):
            fill(outs, whole.view(-1))

    def _optimizer(self, optimizer: Optimizer) -> None:
        if self.rank == 0:
            said = {"rule": optimizer.rule, "numbers": optimizer.numbers | {"rescale_grad": optimizer.scale}}
            self._wait([(line, line.ask(Request(Op.OPTIMIZER, said=said))) for line in self.lines])
        self.barrier()

    # ---- requests, by server

    def _pushes(self, pushed: list[tuple[Known, list]]) -> tuple[dict[int, list[Request]], dict[Known, list[Request]]]:
        """What to ask of each server, and for each key what must have been granted for its push to count."""
        parts: dict[int, list[tuple[Entry, Tensor]]] = {}
        requests: dict[int, list[Request]] = {}
        whose, told = {}, {known: [] for known, _ in pushed}
        for known, values in pushed:
            flat = added(values)
            for server, entry, here in placed(known, flat, known.rounds + 1, not self._look or finite(flat)):
                parts.setdefault(server, []).append((entry, here))
                whose[server, entry.part] = known
        for server, mine in parts.items():
            for entries, tensors in grouped(mine):
                request = Request(Op.PUSH, entries, payload=raw(together(tensors)))
                requests.setdefault(server, []).append(request)
                for entry in entries:
                    told[whose[server, entry.part]].append(request)
        return requests, told

    def _pulls(self, pulled: list[tuple[Known, list]], more: int) -> tuple[dict[int, list[Request]], Callable]:
        """What to ask for, and what to do when it has come; ``more``: pushes that go before and are not yet counted."""
        parts: dict[int, list[tuple[Entry, Tensor]]] = {}
        fills, pieces, requests = [], [], {}
        for known, outs in pulled:
            flat = lies(outs[0])
            flat = torch.empty(known.elements, dtype=known.dtype) if flat is None else flat
            for server, entry, here in placed(known, flat, known.rounds + more):
                parts.setdefault(server, []).append((entry, here))
            if len(outs) > 1 or flat.data_ptr() != getattr(outs[0], "data_ptr", int)():
                fills.append((outs, flat))
        for server, mine in parts.items():
            for entries, tensors in grouped(mine):
                room = tensors[0]
                if len(tensors) > 1:
                    sizes = [entry.elements for entry in entries]
                    room = torch.empty(sum(sizes), dtype=tensors[0].dtype)
                    pieces.append((tensors, room.split(sizes)))
                requests.setdefault(server, []).append(Request(Op.PULL, entries, into=raw(room)))

        def after() -> None:
            for tensors, found in pieces:
                torch._foreach_copy_(tensors, found)
            for outs, flat in fills:
                fill(outs, flat)

        return requests, after

    # ---- asking

    def _all(self, requests: dict[int, list[Request]]) -> None:
        """Ask all servers at once, and wait for all answers."""
        if not self._end.alive:
            raise Refused("this store is closed")
        until = time.monotonic() + GRACE * self.deadline
        asked = [(self.lines[server], request) for server, mine in requests.items() for request in mine]
        sending = [self._pool.submit(self._ask, self.lines[server], mine) for server, mine in requests.items()]
        for each in sending:
            each.result()
        self._wait(asked, until)

    @staticmethod
    def _ask(line: Line, requests: list[Request]) -> None:
        for request in requests:
            try:
                line.ask(request)
            except KVError as error:
                request.error = error
                request.done.set()

    def _wait(self, asked: Iterable[tuple[Line, Request]], until: float | None = None) -> None:
        """Until all are answered, or the deadline is over; of several errors the one that tells most is raised."""
        until, found = until or time.monotonic() + GRACE * self.deadline, []
        for line, request in asked:
            try:
                line.wait(request, until)
            except KVError as error:
                found.append(error)
        for kind in (ServerLost, WorkerLost, Unknown, Refused, KVError):
            for error in found:
                if isinstance(error, kind):
                    raise error


def _count(told: dict[Known, list[Request]]) -> None:
    """One more push of each key that all its servers have; what is pushed again where one has not, counts once."""
    for known, requests in told.items():
        known.rounds += all(request.granted for request in requests)


def _ended(lines: Sequence[Line], pool: ThreadPoolExecutor, started: Sequence) -> None:
    for line in lines:
        line.close()
    pool.shutdown(wait=False)
    for server in started:
        server.close()


def placed(known: Known, flat: Tensor, round_: int, well: bool = True) -> Iterator[tuple[int, Entry, Tensor]]:
    """(server, what is said of it, its piece of ``flat``) for each part of a key."""
    dtype = DTYPES.index(known.dtype)
    for part, number in known.places:
        here = flat if len(known.places) == 1 else flat[part.start : part.stop]
        yield part.server, Entry(number, dtype, int(well), part.stop - part.start, round_), here


def grouped(parts: list[tuple[Entry, Tensor]]) -> Iterator[tuple[list[Entry], list[Tensor]]]:
    """The parts of one server, frame by frame: small ones of one dtype together, large ones alone.

    So one is added while the next one travels, and what is small costs no frame of its own.
    """
    entries, tensors, size = [], [], 0
    for entry, part in parts:
        if entries and (size + part.nbytes > FRAME or entry.dtype != entries[0].dtype or len(entries) == MOST):
            yield entries, tensors
            entries, tensors, size = [], [], 0
        entries.append(entry)
        tensors.append(part)
        size += part.nbytes
    if entries:
        yield entries, tensors


def together(tensors: list[Tensor]) -> Tensor:
    """One after the other; the very tensor where there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
