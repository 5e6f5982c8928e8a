"""The distributed store of one worker: a client of every server, and what it has pushed so far."""

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from d2lps.algorithms.placement import Placement
from d2lps.kvstore import codec, record
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Unknown, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.values import Given, KeySpec, added, each_of, fill, is_finite, memory_of
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.wire.frames import DTYPES, NOTHING, Op, raw
from d2lps.kvstore.wire.handshake import loopback
from d2lps.kvstore.worker.bundles import Bundle, bundled
from d2lps.kvstore.worker.client import FORKED, Request, ServerClient
from d2lps.trace import Trace

KEPT = 64  # lists of keys of which it is known how they travel


class DistStore(KVStore):
    """One worker's end of ``dist_sync``, ``dist_async`` or ``dist_ssp``.

    clients
        a connection to every server, in their order.
    look
        whether pushes are looked at for what is not finite, as the servers' ``nan`` wants it.
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
        look: bool = False,
        started: Sequence = (),
        arena: Arena | None = None,
    ):
        super().__init__()
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self.clients, self.placement = list(clients), placement
        self.deadline = self.clients[0].deadline
        self._patience = 1.25 * self.deadline  # a server keeps it; a worker waits a little longer, for its own words
        self._look, self.started = look, list(started)
        self._arena, self._abandoned = arena, []
        self._bundles: dict[tuple[KeySpec, ...], list[Bundle]] = {}
        self._barriers, self._loads, self._process = 0, 0, os.getpid()
        self._pool = ThreadPoolExecutor(len(self.clients), thread_name_prefix=f"d2lps worker {rank}")
        # Also where nobody closes it: what ends without a goodbye makes the others wait.
        self._end = weakref.finalize(self, _ended, os.getpid(), self.clients, self._pool, self.started, arena)

    def barrier(self) -> None:
        self._barriers += 1
        # One server is enough; where all is recorded, every server has seen everything before the barrier is over.
        clients = self.clients if self.clients[0].welcome.get("record") else self.clients[:1]
        self._ask(clients, Op.BARRIER, {"round": self._barriers})

    def close(self) -> None:
        self._end()

    # ---- what it can be asked about itself

    def trace(self, key=None, rounds: int = 8) -> Trace:
        """What the servers saw of ``key`` (which may be left out where there is one): its last ``rounds``.

        The store must have been created with ``record=True``. Any worker may ask, at any time; after a barrier it is
        complete.
        """
        spec = self._only(key)
        sizes = {(part.server, number): (part.stop - part.start) * spec.dtype.itemsize for part, number in spec.parts}
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise Refused(f"rounds = {rounds!r}: a whole number, 1 or more")
        return record.trace(self.type, self.num_workers, self._records(), sizes, rounds)

    def staleness(self, key=None) -> list[record.Pull]:
        """For every pull of ``key``: how many pushes of every worker it had seen. As :meth:`trace`."""
        places = [(part.server, number) for part, number in self._only(key).parts]
        return record.pulls(self.num_workers, self._records(), places)

    def _records(self) -> dict[int, record.ServerRecord]:
        records, first = {}, 0.0
        for client in self.clients:
            pages, start = [], 0
            while start is not None:
                asked = time.monotonic()
                request = client.ask(Request(Op.STATUS, metadata={"from": start}))
                pages.append(client.wait(request, asked + self._patience).metadata)
                start = pages[-1]["next"]
            ahead = 0.0 if loopback(client.address) else pages[-1]["now"] - (asked + time.monotonic()) / 2
            first = ahead if client.number == 0 else first
            records[client.number] = record.ServerRecord.read(pages, ahead - first)
        return records

    def _states(self) -> Iterator[tuple[KeySpec, State]]:
        for spec in self._keys.values():
            asked = [(part.server, Request(Op.STATE, metadata={"part": number})) for part, number in spec.parts]
            self._send(asked)
            states = [codec.decode(request.answer.metadata, request.into) for _, request in asked]
            yield spec, codec.joined(states)

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None) -> None:
        self._loads += 1
        rule, numbers = (optimizer.rule, optimizer.as_read) if optimizer else (None, {})
        said, parts = {"load": self._loads}, [0] * len(self.clients)
        for spec, state in states:
            requests = []
            for part, number in spec.parts:
                metadata, payload = codec.encode(codec.cut(state, part.start, part.stop))
                metadata |= said | {"part": number, "rule": rule, "rule_numbers": numbers}
                requests.append((part.server, Request(Op.RESTORE, metadata=metadata, payload=payload)))
                parts[part.server] += 1
            try:
                self._send(requests)
            except KVError:
                self._ask(self.clients, Op.COMMIT, said | {"drop": True})
                raise
        said |= {"rule": rule, "numbers": numbers}
        commits = [(i, Request(Op.COMMIT, metadata=said | {"parts": count})) for i, count in enumerate(parts)]
        self._send(commits)

    # ---- the words of the store

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        keys, flats = [spec for spec, _ in fresh], [added([value]) for _, value in fresh]
        for spec in keys:
            spec.parts = [(part, 0) for part in self.placement.parts(spec.key, spec.elements, spec.width)]
        bundles, requests = bundled(keys, lambda server: False), []
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
        self.barrier()  # the value of worker 0 is there

    def _push(self, keys: list[KeySpec], values: list[Given]) -> None:
        self._send_pushes(keys, self._push_requests(keys, values))

    def _pull(self, keys: list[KeySpec], outs: list[Given]) -> None:
        rounds = [spec.pushes for spec in keys]
        destinations, finish = self._destinations(keys, outs)
        self._send(
            (bundle.server, Request(Op.PULL, bundle.entries(rounds), into=into, pieces=pieces))
            for bundle, into, pieces in destinations
        )
        finish()

    def _pushpull(self, keys: list[KeySpec], values: list[Given], outs: list[Given]) -> None:
        requests, (destinations, finish) = self._push_requests(keys, values), self._destinations(keys, outs)
        for (_, request), (_, into, pieces) in zip(requests, destinations, strict=True):
            request.op, request.into, request.pieces = Op.PUSHPULL, into, pieces  # one frame asks for both
        self._send_pushes(keys, requests)
        finish()

    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        requests, rooms, wholes = [], [], []
        for spec, _, index in wanted:
            wholes.append(torch.empty(index.numel(), spec.width, dtype=spec.dtype))
            for part, number in spec.parts:
                first, last = part.start // spec.width, part.stop // spec.width
                here = ((index >= first) & (index < last)).nonzero().reshape(-1)
                if here.numel():
                    rows, room = index[here] - first, torch.empty(here.numel() * spec.width, dtype=spec.dtype)
                    metadata = {"part": number, "width": spec.width, "round": spec.pushes}
                    request = Request(Op.ROWS, metadata=metadata, payload=raw(rows), into=raw(room))
                    requests.append((part.server, request))
                    rooms.append((wholes[-1], here, room))
        self._send(requests)
        for whole, here, room in rooms:
            whole[here] = room.view(-1, whole.shape[1])
        for (_, outs, _), whole in zip(wanted, wholes, strict=True):
            fill(outs, whole.view(-1))

    def _set_optimizer(self, optimizer: Optimizer) -> None:
        if self.rank == 0:
            self._tell_optimizer(optimizer)
        self.barrier()

    def _tell_optimizer(self, optimizer: Optimizer | None) -> None:
        metadata = {"rule": optimizer.rule, "numbers": optimizer.as_read} if optimizer else {}
        self._ask(self.clients, Op.OPTIMIZER, metadata)

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

    def _push_requests(self, keys: list[KeySpec], values: list[Given]) -> list[tuple[Bundle, Request]]:
        flats, rounds = [added(given) for given in values], [spec.pushes + 1 for spec in keys]
        finite = [is_finite(flat) for flat in flats] if self._look else None
        for spec in keys:
            # A server may still read the last push where it lies, but none before that: two places are enough.
            if spec.released < spec.pushes:
                spec.stage = 1 - spec.stage
        requests = []
        for bundle in self._bundled(keys):
            entries = bundle.entries(rounds, finite)
            request = self._staged(bundle, keys, entries, flats) if self._shared(bundle) else None
            requests.append((bundle, request or Request(Op.PUSH, entries, payload=raw(bundle.joined(flats)))))
        return requests

    def _staged(self, bundle: Bundle, keys: list[KeySpec], entries: np.ndarray, flats: list[Tensor]) -> Request | None:
        """A push through shared memory; None where there is no room in it."""
        pieces, rooms = bundle.pieces(flats), []
        for place, piece in zip(bundle.places, pieces, strict=True):
            spec = keys[place]
            room = spec.staging.get((bundle.server, spec.stage))
            if room is None:
                room = self._arena.tensor(piece.numel(), piece.dtype)
                if room is None:
                    return None
                spec.staging[bundle.server, spec.stage] = room
            rooms.append(room)
        places = torch.tensor([*map(self._arena.offset, rooms), 0])

        def stage() -> None:
            places[-1] = time.monotonic_ns()
            for room, piece in zip(rooms, pieces, strict=True):
                room.copy_(piece)

        return Request(Op.PUSH, entries, payload=raw(places), stage=stage)

    def _destinations(self, keys: list[KeySpec], outs: list[Given]) -> tuple[list[tuple], Callable]:
        """[(bundle, where its values belong that come through the socket, where those from shared memory do)], and what
        to do when they have come."""
        flats, fills = [], []
        for spec, into in zip(keys, outs, strict=True):
            first, *others = each_of(into)
            flat = memory_of(first)
            if flat is None or others:
                flat = torch.empty(spec.elements, dtype=spec.dtype) if flat is None else flat
                fills.append((into, flat))
            flats.append(flat)
        destinations, copies = [], []
        for bundle in self._bundled(keys):
            pieces = bundle.pieces(flats)
            if self._shared(bundle):
                destinations.append((bundle, NOTHING, pieces))
                continue
            room = pieces[0]
            if len(pieces) > 1:
                room = torch.empty(sum(bundle.sizes), dtype=bundle.dtype)
                copies.append((pieces, room.split(bundle.sizes)))
            destinations.append((bundle, raw(room), ()))

        def finish() -> None:
            for pieces, received in copies:
                torch._foreach_copy_(pieces, received)
            for into, flat in fills:
                fill(into, flat)
            for spec in keys:
                spec.released = spec.pushes

        return destinations, finish

    def _send_pushes(self, keys: list[KeySpec], requests: list[tuple[Bundle, Request]]) -> None:
        """One more push of each key that all its servers have; what is pushed again where one has not, counts once."""
        try:
            self._send((bundle.server, request) for bundle, request in requests)
        finally:
            failed = {place for bundle, request in requests if not request.counted for place in bundle.places}
            for place, spec in enumerate(keys):
                if place not in failed:
                    # A synchronous server may add it later, when all others are there; any other has added it.
                    spec.released = spec.pushes if self.type == "dist_sync" else spec.pushes + 1
                    spec.pushes += 1
                elif spec.staging:
                    # Some server may have it, and read it until the round closes: what is pushed again lies elsewhere.
                    self._abandoned.append(spec.staging)
                    spec.staging = {}

    # ---- asking servers, and waiting for them

    def _ask(self, clients: Sequence[ServerClient], op: Op, metadata: dict) -> None:
        """The same of several servers."""
        self._wait([(client, client.ask(Request(op, metadata=metadata))) for client in clients])

    def _send(self, requests: Iterable[tuple[int, Request]]) -> None:
        """Ask all servers at once, and wait for all answers; with each request goes its server."""
        if not self._end.alive:
            raise Refused("this store is closed")
        if os.getpid() != self._process:
            raise Refused(FORKED)  # before its threads are asked, which are not here
        until = time.monotonic() + self._patience
        asked = [(self.clients[server], request) for server, request in requests]
        by_client: dict[ServerClient, list[Request]] = {}
        for client, request in asked:
            if request.shared:  # which only says where something lies: nobody else need send it
                _ask_in_turn(client, [request])
            else:
                by_client.setdefault(client, []).append(request)
        for sending in [self._pool.submit(_ask_in_turn, client, mine) for client, mine in by_client.items()]:
            sending.result()
        self._wait(asked, until)

    def _wait(self, asked: Sequence[tuple[ServerClient, Request]], until: float | None = None) -> None:
        """Until all are answered, or the deadline is over; of several errors the one that tells most is raised."""
        until, errors = until or time.monotonic() + self._patience, []
        for client, request in asked:
            try:
                client.wait(request, until)
            except KVError as error:
                errors.append(error)
            except BaseException:
                for each, waited in asked:
                    each.forget(waited)
                raise
        for kind in (ServerLost, WorkerLost, Unknown, Refused, KVError):
            for error in errors:
                if isinstance(error, kind):
                    raise error


def _ask_in_turn(client: ServerClient, requests: list[Request]) -> None:
    for request in requests:
        try:
            if request.stage is not None:
                request.stage()
            client.ask(request)
        except KVError as error:
            request.fail(error)


def _ended(
    process: int, clients: Sequence[ServerClient], pool: ThreadPoolExecutor, started: Sequence, arena: Arena | None
) -> None:
    if os.getpid() != process:
        return  # a child that was forked: the sockets and servers are its parent's
    for client in clients:
        client.close()
    pool.shutdown(wait=False)
    for server in started:
        server.close()
    if arena:
        arena.close()
