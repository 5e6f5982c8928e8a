"""The distributed store of one worker: a line to every server, and what it has pushed so far."""

import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.errors import KVError, Refused, ServerLost, Unknown, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.placement import Placement
from d2lps.kvstore.store import fill
from d2lps.kvstore.values import Given, Known, added, each_of, finite, lies
from d2lps.kvstore.wire import DTYPES, NOTHING, Op, raw
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.worker.bundles import Bundle, bundled
from d2lps.kvstore.worker.inspected import Inspected
from d2lps.kvstore.worker.line import FORKED, Line
from d2lps.kvstore.worker.request import Request

KEPT = 64  # lists of keys of which it is known how they travel


class DistStore(Inspected):
    """One worker's end of ``dist_sync``, ``dist_async`` or ``dist_ssp``.

    lines
        a connection to every server, in their order.
    look
        whether pushes are looked at for what is not finite, as the servers' ``nan`` wants it.
    started
        the server processes that this worker has started; it lets go of them when it closes.
    arena
        the memory that the lines lend to servers on this host.
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        num_workers: int,
        lines: Sequence[Line],
        placement: Placement,
        *,
        look: bool = False,
        started: Sequence = (),
        arena: Arena | None = None,
    ):
        super().__init__()
        self._arena, self._abandoned = arena, []
        self._bundles: dict[tuple[Known, ...], list[Bundle]] = {}
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self.lines, self.placement = list(lines), placement
        self.deadline = self.lines[0].deadline
        self._look, self.started = look, list(started)
        self._barriers, self._process = 0, os.getpid()
        self._pool = ThreadPoolExecutor(len(self.lines), thread_name_prefix=f"d2lps worker {rank}")
        # Also where nobody closes it: what ends without a goodbye makes the others wait.
        self._end = weakref.finalize(self, _ended, os.getpid(), self.lines, self._pool, self.started, arena)

    def barrier(self) -> None:
        self._barriers += 1
        # One server is enough; where all is recorded, every server has seen everything before the barrier is over.
        lines = self.lines if self.lines[0].welcome.get("record") else self.lines[:1]
        self._wait([(line, line.ask(Request(Op.BARRIER, said={"round": self._barriers}))) for line in lines])

    def close(self) -> None:
        self._end()

    # ---- the words of the store

    def _init(self, fresh: list[tuple[Known, Tensor]]) -> None:
        keys, flats = [known for known, _ in fresh], [added([value]) for _, value in fresh]
        for known in keys:
            known.places = [(part, 0) for part in self.placement.parts(known.key, known.elements, known.width)]
        requests = []
        for bundle in bundled(keys, lambda server: False):
            said = {
                "parts": [[bundle.name(keys, i), size] for i, size in enumerate(bundle.sizes)],
                "dtype": DTYPES.index(bundle.dtype),
            }
            payload = raw(together(bundle.pieces(flats))) if self.rank == 0 else NOTHING
            requests.append((bundle, Request(Op.INIT, said=said, payload=payload)))
        self._travel(requests)
        for bundle, request in requests:
            for place, number in zip(bundle.places, request.answer.said["parts"], strict=True):
                places = keys[place].places
                places[:] = [(part, number if part.server == bundle.server else before) for part, before in places]
        self.barrier()  # the value of worker 0 is there

    def _push(self, keys: list[Known], values: list[Given]) -> None:
        requests = self._pushes(keys, values)
        try:
            self._travel(requests)
        finally:
            self._count(keys, requests)

    def _pull(self, keys: list[Known], outs: list[Given]) -> None:
        rooms, after = self._rooms(keys, outs)
        rounds = [known.rounds for known in keys]
        self._travel(
            [
                (bundle, Request(Op.PULL, bundle.entries(rounds), into=into, pieces=pieces))
                for bundle, into, pieces in rooms
            ]
        )
        after()

    def _pushpull(self, keys: list[Known], values: list[Given], outs: list[Given]) -> None:
        requests, (rooms, after) = self._pushes(keys, values), self._rooms(keys, outs)
        for (_, request), (_, into, pieces) in zip(requests, rooms, strict=True):
            request.op, request.into, request.pieces = Op.PUSHPULL, into, pieces  # one frame asks for both
        try:
            self._travel(requests)
        finally:
            self._count(keys, requests)
        after()

    def _rows(self, asked) -> None:
        requests: list[tuple[int, Request]] = []
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
                    requests.append((part.server, asking))
                    pieces.append((whole, here, room))
        self._all(requests)
        for whole, here, room in pieces:
            whole[here] = room.view(-1, whole.shape[1])
        for (_, outs, _), whole in zip(asked, found, strict=True):
            fill(outs, whole.view(-1))

    def _optimizer(self, optimizer: Optimizer) -> None:
        if self.rank == 0:
            self._told(optimizer)
        self.barrier()

    def _told(self, optimizer: Optimizer | None) -> None:
        said = {"rule": optimizer.rule, "numbers": optimizer.asked} if optimizer else {}
        self._wait([(line, line.ask(Request(Op.OPTIMIZER, said=said))) for line in self.lines])

    # ---- requests, by server

    def _bundled(self, named: list[Known]) -> list[Bundle]:
        """The same keys are pushed and pulled again and again: how they travel is worked out once."""
        keys = tuple(named)
        if keys not in self._bundles:
            if len(self._bundles) >= KEPT:
                self._bundles.clear()
            self._bundles[keys] = bundled(keys, lambda server: self.lines[server].shares)
        return self._bundles[keys]

    def _pushes(self, keys: list[Known], values: list[Given]) -> list[tuple[Bundle, Request]]:
        flats, rounds = [added(given) for given in values], [known.rounds + 1 for known in keys]
        well = [finite(flat) for flat in flats] if self._look else None
        for known in keys:
            known.turn ^= known.closed < known.rounds  # a server may still read what was pushed before
        requests = []
        for bundle in self._bundled(keys):
            pieces, entries = bundle.pieces(flats), bundle.entries(rounds, well)
            request = self._staged(bundle, [keys[place] for place in bundle.places], entries, pieces)
            requests.append((bundle, request or Request(Op.PUSH, entries, payload=raw(together(pieces)))))
        return requests

    def _staged(self, bundle: Bundle, keys: list[Known], entries: np.ndarray, pieces: list[Tensor]) -> Request | None:
        """A push through shared memory; None where it takes the socket."""
        if not self._shared(bundle):
            return None
        rooms = []
        for known, piece in zip(keys, pieces, strict=True):
            room = known.staged.get((bundle.server, known.turn))
            if room is None:
                room = self._arena.tensor(piece.numel(), piece.dtype)
                if room is None:
                    return None
                known.staged[bundle.server, known.turn] = room
            rooms.append(room)
        told = torch.tensor([*map(self._arena.offset, rooms), 0])

        def before() -> None:
            told[-1] = time.monotonic_ns()
            for room, piece in zip(rooms, pieces, strict=True):
                room.copy_(piece)

        return Request(Op.PUSH, entries, payload=raw(told), before=before)

    def _shared(self, bundle: Bundle) -> bool:
        return bundle.shared and self.lines[bundle.server].shares

    def _rooms(self, keys: list[Known], outs: list[Given]) -> tuple[list[tuple], Callable]:
        """[(bundle, where its values belong that come through the socket, where those from shared memory do)], and what
        to do when they have come."""
        flats, fills = [], []
        for known, into in zip(keys, outs, strict=True):
            first, *others = each_of(into)
            flat = lies(first)
            if flat is None or others:
                flat = torch.empty(known.elements, dtype=known.dtype) if flat is None else flat
                fills.append((into, flat))
            flats.append(flat)
        rooms, copies = [], []
        for bundle in self._bundled(keys):
            pieces = bundle.pieces(flats)
            if self._shared(bundle):
                rooms.append((bundle, NOTHING, pieces))
                continue
            room = pieces[0]
            if len(pieces) > 1:
                room, found = bundle.room()
                copies.append((pieces, found))
            rooms.append((bundle, raw(room), ()))

        def after() -> None:
            for pieces, found in copies:
                torch._foreach_copy_(pieces, found)
            for into, flat in fills:
                fill(into, flat)
            for known in keys:
                known.closed = known.rounds

        return rooms, after

    # ---- asking

    def _travel(self, requests: Iterable[tuple[Bundle, Request]]) -> None:
        self._all((bundle.server, request) for bundle, request in requests)

    def _all(self, requests: Iterable[tuple[int, Request]]) -> None:
        """Ask all servers at once, and wait for all answers; with each request goes its server."""
        if not self._end.alive:
            raise Refused("this store is closed")
        if os.getpid() != self._process:
            raise Refused(FORKED)  # before its threads are asked, which are not here
        until = time.monotonic() + self._patience
        of: dict[Line, list[Request]] = {}
        asked = [(self.lines[server], request) for server, request in requests]
        for line, request in asked:
            if request.shared:  # which only says where something lies: nobody else need send it
                self._ask(line, [request])
            else:
                of.setdefault(line, []).append(request)
        for each in [self._pool.submit(self._ask, line, mine) for line, mine in of.items()]:
            each.result()
        self._wait(asked, until)

    @staticmethod
    def _ask(line: Line, requests: list[Request]) -> None:
        for request in requests:
            try:
                if request.before is not None:
                    request.before()
                line.ask(request)
            except KVError as error:
                request.error = error
                request.done.set()

    def _count(self, keys: list[Known], requests: list[tuple[Bundle, Request]]) -> None:
        """One more push of each key that all its servers have; what is pushed again where one has not, counts once."""
        failed = {place for bundle, request in requests if not request.counted for place in bundle.places}
        for place, known in enumerate(keys):
            if place not in failed:
                known.closed = known.rounds if self.type == "dist_sync" else known.rounds + 1
                known.rounds += 1
            elif known.staged:
                # Some server may have it, and read it until the round closes: what is pushed again lies elsewhere.
                self._abandoned.append(known.staged)
                known.staged = {}

    def _wait(self, asked: Iterable[tuple[Line, Request]], until: float | None = None) -> None:
        """Until all are answered, or the deadline is over; of several errors the one that tells most is raised."""
        until, found = until or time.monotonic() + self._patience, []
        for line, request in asked:
            try:
                line.wait(request, until)
            except KVError as error:
                found.append(error)
            except BaseException:
                for each, waited in asked:
                    each.forget(waited)
                raise
        for kind in (ServerLost, WorkerLost, Unknown, Refused, KVError):
            for error in found:
                if isinstance(error, kind):
                    raise error


def _ended(
    process: int, lines: Sequence[Line], pool: ThreadPoolExecutor, started: Sequence, arena: Arena | None
) -> None:
    if os.getpid() != process:
        return  # a child that was forked: the sockets and servers are its parent's
    for line in lines:
        line.close()
    pool.shutdown(wait=False)
    for server in started:
        server.close()
    if arena:
        arena.close()


def together(tensors: list[Tensor]) -> Tensor:
    """One after the other; the very tensor where there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
