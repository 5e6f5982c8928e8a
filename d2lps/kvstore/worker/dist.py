"""The distributed store of one worker: a client of every server, and what it has pushed so far."""

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from d2lps.algorithms.placement import Placement
from d2lps.kvstore import record
from d2lps.kvstore.calls import PAUSE, Interrupted, Once
from d2lps.kvstore.errors import BeingLoaded, KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost
from d2lps.kvstore.optimizers import Optimizer, said
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.values import (
    Given,
    KeySpec,
    added,
    copied,
    counted,
    fill,
    in_place,
    is_finite,
    known_by,
    memory_of,
    overlap,
    same,
)
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.wire.frames import DTYPES, NOTHING, PUSHES, Op, raw
from d2lps.kvstore.wire.handshake import loopback
from d2lps.kvstore.worker.bundles import Bundle, bundled
from d2lps.kvstore.worker.client import Request, ServerClient, ask_in_turn
from d2lps.kvstore.worker.coming import coming
from d2lps.kvstore.worker.ending import end, leave_where_lost
from d2lps.kvstore.worker.files import DistFiles
from d2lps.kvstore.worker.pulls import DistPulls, of_one_load
from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import is_count

NAMES = 1024  # of parts that a frame initialises: the longest fit
SMALL = 1 << 16  # bytes that are sent sooner than another thread is woken to send them
KEPT = 64  # lists of keys of which it is known how they travel


class DistStore(DistFiles, DistPulls, KVStore):
    """One worker's end of ``dist_sync``, ``dist_async`` or ``dist_ssp``.

    clients
        a connection to every server, in their order.
    nan
        what the servers do with a push that is not finite.
    started
        the server processes that this worker has started; it lets go of them when it closes.
    arena
        the memory that the clients lend to servers on this host.
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        num_workers: int,
        clients: Sequence[ServerClient],
        placement: Placement,
        *,
        nan: str = "propagate",
        started: Sequence = (),
        arena: Arena | None = None,
    ):
        self.deadline = clients[0].deadline
        # A server keeps it; a worker waits a little longer, for its own words.
        super().__init__(f"of worker {rank}", 1.25 * self.deadline)
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self.clients, self.placement = list(clients), placement
        # Where workers wait: one server is enough, but where all is recorded, each has seen all before they go on.
        self._meeting = self.clients if clients[0].welcome.get("record") else self.clients[:1]
        self._nan, self.started, self._arena = nan, list(started), arena
        self._bundles: dict[tuple[KeySpec, ...], list[Bundle]] = {}
        self._open: dict[KeySpec, list[Tensor]] = {}  # what was pushed where it is not known whether all of it counts
        self._pool = ThreadPoolExecutor(4 * len(self.clients), thread_name_prefix=f"d2lps worker {rank}")
        # Also where nobody closes it: what ends without a goodbye makes the others wait.
        self._ends = os.getpid(), self.clients, self._pool, self.started, arena
        self._end = weakref.finalize(self, end, *self._ends)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._end.detach()
            end(*self._ends)  # again, where that was interrupted

    # ---- what it can be asked about itself

    def trace(self, key=None, rounds: int = 8) -> Trace:
        """What the servers saw of ``key`` (which may be left out where there is one): its last ``rounds``.

        The store must have been created with ``record=True``. Any worker may ask, at any time; after a barrier it is
        complete.
        """
        spec = self._only(key)
        sizes = {(part.server, number): (part.stop - part.start) * spec.dtype.itemsize for part, number in spec.parts}
        if not is_count(rounds, least=1):
            raise Refused(text("placement.count", what="rounds", value=repr(rounds)))
        return record.trace(self.type, self.num_workers, self._calls.run((), self._records), sizes, rounds)

    def staleness(self, key=None) -> list[record.Pull]:
        """For every pull of ``key``: how many pushes of every worker it had seen. As :meth:`trace`."""
        places = [(part.server, number) for part, number in self._only(key).parts]
        return record.pulls(self.num_workers, self._calls.run((), self._records), places)

    def _records(self) -> dict[int, record.ServerRecord]:
        records, first = {}, 0.0
        for client in self.clients:
            asked = time.monotonic()
            pages = [self._ask([client], Op.STATUS, {"from": 0})[0]]
            ahead = 0.0 if loopback(client.address) else pages[0]["now"] - (asked + time.monotonic()) / 2
            first = ahead if client.number == 0 else first
            while (following := pages[-1]["next"]) is not None:
                pages += self._ask([client], Op.STATUS, {"from": following})
            records[client.number] = record.ServerRecord.read(pages, ahead - first)
        return records

    # ---- the words of the store

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        keys, flats = [spec for spec, _ in fresh], [added([value]) for _, value in fresh]
        for spec in keys:
            spec.parts = [(part, 0) for part in self.placement.parts(spec.key, spec.elements, spec.width)]
        bundles, requests = bundled(keys, lambda server: False, NAMES), []
        for bundle in bundles:
            parts = [[bundle.name(keys, i), size] for i, size in enumerate(bundle.sizes)]
            payload = raw(bundle.joined(flats)) if self.rank == 0 else NOTHING
            metadata = {"parts": parts, "dtype": DTYPES.index(bundle.dtype)}
            requests.append((bundle.server, Request(Op.INIT, metadata=metadata, payload=payload)))
        self._send(requests)
        for bundle, (_, request) in zip(bundles, requests, strict=True):
            for place, number in zip(bundle.places, request.answer.metadata["parts"], strict=True):
                parts = keys[place].parts
                parts[:] = [(part, number if part.server == bundle.server else before) for part, before in parts]
        names, like = known_by(keys)
        first = self._meet(f"init {names[:16]}", 1, like)  # the value of worker 0 is there
        if first not in (None, like):
            raise Refused(text("store.other-shapes", keys=", ".join(repr(spec.key) for spec in keys[:8])))

    def _push(self, keys: list[KeySpec], values: list[Given], again: Collection[KeySpec] = ()) -> None:
        self._pushpull(keys, values, None, again)

    def _pushpull(
        self, keys: list[KeySpec], values: list[Given], outs: list[Given] | None, again: Collection[KeySpec] = ()
    ) -> None:
        """Push, and pull where there are ``outs``; those of ``again`` count already, and are said once more."""
        self._end_begun(self._calls.current.until)
        flats = [added(given) for given in values]
        finite = None if self._nan == "propagate" else [is_finite(flat) for flat in flats]
        if self._nan == "reject" and not all(finite):
            raise Refused(text("store.not-finite", key=repr(keys[finite.index(False)].key)))
        if self._open:
            given = zip(keys, values, strict=True)
            self._end_open([spec for spec, one in given if spec in self._open and not same(self._open[spec], one)])
        requests, finish = self._push_requests(keys, flats, finite, again), None
        if outs is not None:
            destinations, finish = self._destinations(keys, outs, values, flats)
            for (_, request), (_, into, pieces) in zip(requests, destinations, strict=True):
                request.op, request.into, request.pieces = Op.PUSHPULL, into, pieces  # one frame asks for both
        try:
            self._send(((bundle.server, request) for bundle, request in requests), self._calls.current.until)
            if finish:
                self._calls.current.require_wanted()  # what was pushed stays as it is, should it lie where that goes
        except KVError as error:
            self._conclude(keys, values, requests, again, error)
            raise
        self._conclude(keys, values, requests, again)
        if finish:
            with counted(keys):
                answers = [request.answer for _, request in requests]
                if of_one_load([bundle.places for bundle, _ in requests], answers):
                    finish()
                else:
                    self._pull(keys, outs, values, flats)

    def _set_optimizer(self, optimizer: Optimizer) -> None:
        self._end_begun()
        what = "set the optimizer"
        number = {"number": self._met.get(what, 0) + 1}
        self._together(what, partial(self._ask_all, Op.OPTIMIZER, said(optimizer) | number))
        # All servers have it ready, and all workers say so: whoever is lost meanwhile, none of them goes on without it.
        self.optimizer, self._begun = optimizer, (Op.OPTIMIZER, number | {"take": True}, None)
        self._tell(self._begun)

    def _coming(self, what: str, number: int) -> AbstractContextManager:
        return coming(self._meeting, what, number)

    def _meet(self, what: str, number: int, note: str | None = None) -> str | None:
        return self._ask(self._meeting, Op.BARRIER, {"name": what, "round": number, "note": note})[0].get("note")

    # ---- pushes and pulls, as requests

    def _bundled(self, keys: list[KeySpec]) -> list[Bundle]:
        """The same keys are pushed and pulled again and again: how they travel is worked out once."""
        same = tuple(keys)
        if same not in self._bundles:
            if len(self._bundles) >= KEPT:
                self._bundles.clear()
            self._bundles[same] = bundled(same, lambda server: self.clients[server].shares)
        return self._bundles[same]

    def _shared(self, bundle: Bundle) -> bool:
        return bundle.shared and self.clients[bundle.server].shares

    def _push_requests(
        self, keys: list[KeySpec], flats: list[Tensor], finite: list[bool] | None, again: Collection[KeySpec]
    ) -> list[tuple[Bundle, Request]]:
        rounds = [spec.pushes + (spec not in again) for spec in keys] if again else [spec.pushes + 1 for spec in keys]
        for spec, number in zip(keys, rounds, strict=True):
            # A server may still read the last push where it lies, but none before that: two places are enough.
            if spec.staged < number:
                spec.staged = number
                if spec.released < spec.pushes:
                    spec.stage = 1 - spec.stage
        requests = []
        for bundle in self._bundled(keys):
            entries = bundle.entries(rounds, finite)
            request = self._staged(bundle, keys, entries, flats, again) if self._shared(bundle) else None
            requests.append((bundle, request or Request(Op.PUSH, entries, payload=raw(bundle.joined(flats)))))
        return requests

    def _staged(
        self, bundle: Bundle, keys: list[KeySpec], entries: np.ndarray, flats: list[Tensor], again: Collection[KeySpec]
    ) -> Request | None:
        """A push through shared memory; None where there is no room in it."""
        pieces, rooms, copies = bundle.pieces(flats), [], []
        for place, piece in zip(bundle.places, pieces, strict=True):
            spec = keys[place]
            where = bundle.server, spec.stage
            room, staged = spec.staging.get(where, (None, 0))
            if room is None:
                room = self._arena.tensor(piece.numel(), piece.dtype)
                if room is None:
                    return None
            rooms.append(room)
            # What is pushed again stays as it lies there: the server may have added others' pushes to it.
            if staged != spec.staged or spec not in again and spec not in self._open:
                copies.append((spec, where, room, piece))
        if None in (offsets := [*map(self._arena.offset, rooms), 0]):
            raise Refused(text("store.closed"))  # by another thread
        places = torch.tensor(offsets)

        def stage() -> None:
            places[-1] = time.monotonic_ns()
            for spec, where, room, piece in copies:
                room.copy_(piece)
                spec.staging[where] = room, spec.staged

        return Request(Op.PUSH, entries, payload=raw(places), stage=stage)

    def _destinations(
        self, keys: list[KeySpec], outs: list[Given], values: Sequence[Given] = (), pushed: Sequence[Tensor] = ()
    ) -> tuple[list[tuple], Callable]:
        """[(bundle, where its values belong that come through the socket, where those from shared memory do)], and what
        to do when they have come. Where some of ``values``, flat ``pushed``, lies, nothing is written before that."""
        flats, fills = [memory_of(into) for into in outs], []  # a list has none: its arrays may overlap
        odd = [given for given in values if type(given) is list or not given.is_contiguous()]
        if pushed and overlap(pushed, flats) or odd and in_place(odd, outs):
            flats = [None] * len(keys)
        for place, into in enumerate(outs):
            if flats[place] is None:
                flats[place] = torch.empty(keys[place].elements, dtype=keys[place].dtype)
                fills.append((into, flats[place]))
        destinations, copies = [], []
        for bundle in self._bundled(keys):
            pieces = bundle.pieces(flats)
            if self._shared(bundle):
                destinations.append((bundle, NOTHING, pieces))
                continue
            room = pieces[0]
            if len(pieces) > 1 or room.is_neg():  # whose bytes are not its values
                room = torch.empty(sum(bundle.sizes), dtype=bundle.dtype)
                copies.append((pieces, room.split(bundle.sizes)))
            destinations.append((bundle, raw(room), ()))

        @torch.inference_mode()  # as ``out`` may have been made there
        def finish() -> None:
            for pieces, received in copies:
                if any(map(Tensor.is_neg, pieces)):
                    for piece, value in zip(pieces, received, strict=True):
                        fill(piece, value)
                else:
                    torch._foreach_copy_(pieces, received)
            torch.autograd.graph.increment_version(flats)  # autograd has not seen what came from a socket
            for into, flat in fills:
                fill(into, flat)
            for spec in keys:
                spec.released = spec.pushes

        return destinations, finish

    def _end_open(self, keys: list[KeySpec]) -> None:
        """Bring to its end what was pushed to ``keys`` and may be counted in part."""
        late, counted = [self._open[spec] for spec in keys], [spec.pushes for spec in keys]
        try:
            keys and self._pushpull(keys, late, None)
        except KVError as error:
            error.counted = error.unknown = ()  # of the push that was to come, nothing is
            for spec, value, before in zip(keys, late, counted, strict=True):
                if spec.pushes == before:  # also where no server has counted it: it was said to be unknown
                    self._open[spec] = value
            raise
        finally:  # whoever gives it again, when what was to come is not counted, gives what counts
            self._repeats.count(spec for spec, before in zip(keys, counted, strict=True) if spec.pushes > before)

    def _conclude(
        self,
        keys: list[KeySpec],
        values: list[Given],
        requests: list[tuple[Bundle, Request]],
        again: Collection[KeySpec],
        error: KVError | None = None,
    ) -> None:
        """One more push of each key that all its servers have; ``error`` hears of which that is so, or may be."""

        def places(which: Callable[[Request], bool]) -> set[int]:
            return {place for bundle, request in requests if which(request) for place in bundle.places}

        missing = places(lambda request: request.counted is not True)
        ahead = self.type != "dist_sync"  # a synchronous server may add it later, when all others are there
        for spec in [spec for place, spec in enumerate(keys) if place not in missing]:
            self._open.pop(spec, None)
            if spec not in again:
                spec.released = spec.pushes + ahead
                spec.pushes += 1
        if error is None:
            return
        some, silent = places(lambda request: request.counted is not False), places(lambda request: not request.answer)
        for place, spec in ((place, keys[place]) for place in missing):
            if place not in some and place not in silent:  # all servers say that they have not counted it
                self._open.pop(spec, None)
            elif place in some and spec not in again and spec not in self._open:
                self._open[spec] = copied(values[place])
        error.counted = tuple(spec.key for place, spec in enumerate(keys) if place not in missing or spec in again)
        error.unknown = tuple(spec.key for spec in keys if spec in self._open)

    # ---- asking servers, and waiting for them

    def _ask(self, clients: Sequence[ServerClient], op: Op, metadata: dict) -> list[dict]:
        """The same of several servers; what each answers."""
        requests = [(client.number, Request(op, metadata=metadata)) for client in clients]
        self._send(requests)
        return [request.answer.metadata for _, request in requests]

    def _ask_all(self, op: Op, metadata: dict, each: Sequence[dict] | None = None, until: float | None = None) -> None:
        """The same of every server, and ``each`` its own; whatever interrupts this call: all of them do it, or none."""
        until, own = until or time.monotonic() + self._patience, each or [{}] * len(self.clients)
        asked = [(client, Request(op, metadata=metadata | its)) for client, its in zip(self.clients, own, strict=True)]
        for client, request in asked:
            ask_in_turn(client, [request])
        for client, request in asked:
            client.wait(request, until)

    def _send(self, requests: Iterable[tuple[int, Request]], until: float | None = None) -> None:
        """Ask all servers at once, and wait for all answers; with each request goes its server.

        Of several errors the one that tells most is raised. When it ends, however it does, nothing is sent any more.
        """
        if not self._end.alive:
            raise Refused(text("store.closed"))
        until = until or time.monotonic() + self._patience
        asked = [(self.clients[server], request) for server, request in requests]
        self._calls.current.stop_by(lambda: [client.let_go(request) for client, request in asked])
        by_client: dict[ServerClient, list[Request]] = {}
        for client, request in asked:
            if len(request.payload) <= SMALL:  # also what only says where something lies: nobody else need send it
                ask_in_turn(client, [request])
            else:
                by_client.setdefault(client, []).append(request)
        try:
            sending = [self._pool.submit(ask_in_turn, client, mine) for client, mine in by_client.items()]
        except RuntimeError:  # another thread has closed the store
            raise Refused(text("store.closed")) from None
        errors, pushes = [], [each for each in asked if each[1].op in PUSHES]
        again = partial(self._push_again, pushes, until) if pushes else None
        for client, request in asked:
            try:
                self._wait_beyond(client, request, until, again)
            except KVError as error:
                errors.append(error)
        wait(sending)
        leave_where_lost(self.rank, self.clients, errors)
        for kind in (Interrupted, ServerLost, WorkerLost, Unknown, Refused, KVError):
            for error in errors:
                if isinstance(error, kind):
                    raise error

    def _wait_beyond(self, client: ServerClient, request: Request, until: float, again: Callable | None) -> None:
        """For the answer; whoever pushes to what is being loaded waits here, or what ends the load would."""
        while True:
            try:
                client.wait(request, until, again)
                return
            except BeingLoaded as error:
                if not again or time.monotonic() + PAUSE > until:
                    raise Timeout(str(error)) from None
            time.sleep(PAUSE)
            self._calls.current.require_wanted()
            again()

    def _push_again(self, pushes: list[tuple[ServerClient, Request]], until: float) -> None:
        """Send those once more that have come to what is being loaded.

        All of a call are: another worker may wait for a later one before it pushes what this one waits for.
        """
        for client, push in pushes:
            if push.done.is_set() and isinstance(push.error, BeingLoaded) and time.monotonic() + PAUSE <= until:
                push.answer, push.error, push.counted, push.done = None, None, False, Once()
                if self._calls.current.interrupted:  # after that: an interruption comes before, or finds it
                    push.done.set()
                ask_in_turn(client, [push])
