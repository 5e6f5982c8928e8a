"""The distributed store of one worker: a connection to every server, and the pushes that it has made so far."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from d2lps.algorithms.placement import Placement, require_count
from d2lps.kvstore import checkpoint, record
from d2lps.kvstore.calls import Call, Interrupted
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Unknown, WorkerLost, as_known
from d2lps.kvstore.optimizers import Optimizer, State, said
from d2lps.kvstore.replication import View
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.threads import HEARTBEAT
from d2lps.kvstore.values import (
    Key,
    KeySpec,
    Value,
    added,
    copied,
    digests,
    fill,
    in_place,
    in_rows,
    known_by,
    memory_of,
    noted_as_counted,
    overlap,
    validate_key,
)
from d2lps.kvstore.wire.frames import DTYPES, ENTRIES, NOTHING, Op, as_bytes, raw
from d2lps.kvstore.wire.handshake import loopback
from d2lps.kvstore.wire.shared_buffer import SHARED, SharedBuffer
from d2lps.kvstore.worker.client import Counted, Request, ServerClient, ask_in_turn
from d2lps.messages import text
from d2lps.trace import Trace

BYTES, PARTS = 1 << 20, 4096  # at most, in one frame
NAMES = 1024  # parts that one frame initialises: also the longest names fit
SMALL = 1 << 16  # bytes that are sent by the thread of the call: to wake another one takes longer
CACHED = 64  # lists of keys whose bundles are remembered


# ---- bundles: what travels in one frame. Small parts of one server and dtype travel together, large ones alone: so a
# server adds one frame while the next one travels, and a small key costs no frame of its own. What lies in shared
# memory does not travel: one frame says where all of it lies.


class Bundle:
    """Parts of some keys, for one server, in the order of the keys.

    ``places``: for each part the place of its key among the keys; ``cuts``: the elements of that key, None for all;
    ``sizes``: how many these are; ``numbers``: of the shards; ``shared``: the parts travel through shared memory.
    """

    def __init__(self, server: int, dtype: torch.dtype, shared: bool):
        self.server, self.dtype, self.shared = server, dtype, shared
        self.places: list[int] = []
        self.cuts: list[slice | None] = []
        self.sizes: list[int] = []
        self.numbers: list[int] = []

    def name(self, keys: Sequence[KeySpec], i: int) -> str:
        """Return the name by which the server knows part ``i``."""
        spec = keys[self.places[i]]
        servers = [part.server for part, _ in spec.parts]
        which = f" {servers.index(self.server) + 1}/{len(servers)}" if len(servers) > 1 else ""
        return validate_key(spec.key) + which

    def entries(self, rounds: Sequence[int]) -> np.ndarray:
        """Return the table of a frame; ``rounds`` are by key."""
        entries = np.empty(len(self.places), ENTRIES)
        entries["part"], entries["elements"], entries["dtype"] = self.numbers, self.sizes, DTYPES.index(self.dtype)
        entries["round"] = [rounds[place] for place in self.places]
        entries["in_rows"] = 0
        return entries

    def pieces(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return views of these parts in flat tensors, one per key."""
        return [
            flats[place] if cut is None else flats[place][cut]
            for place, cut in zip(self.places, self.cuts, strict=True)
        ]

    def joined(self, flats: Sequence[Tensor]) -> Tensor:
        """Return the same as one tensor, without a copy if it is one piece."""
        pieces = self.pieces(flats)
        return pieces[0].resolve_neg() if len(pieces) == 1 else torch.cat(pieces)


def bundled(keys: Sequence[KeySpec], clients: Sequence[ServerClient] = (), most: int = PARTS) -> list[Bundle]:
    """Return all parts of ``keys`` in bundles of at most ``most``; those of ``clients`` may share memory."""
    bundles: list[Bundle] = []
    opened: dict[tuple[int, bool], tuple[Bundle, int]] = {}  # by server and shared: the bundle, and its bytes so far
    for place, spec in enumerate(keys):
        for part, number in spec.parts:
            size = part.stop - part.start
            nbytes = size * spec.dtype.itemsize
            shared = bool(clients) and nbytes >= SHARED and clients[part.server].shares
            bundle, filled = opened.get((part.server, shared), (None, 0))
            full = bundle is None or bundle.dtype != spec.dtype or len(bundle.places) == most
            if full or not shared and filled + nbytes > BYTES:
                bundle, filled = Bundle(part.server, spec.dtype, shared), 0
                bundles.append(bundle)
            opened[part.server, shared] = bundle, filled + nbytes
            bundle.places.append(place)
            bundle.cuts.append(None if len(spec.parts) == 1 else slice(part.start, part.stop))
            bundle.sizes.append(size)
            bundle.numbers.append(number)
    return bundles


class Arrivals:
    """Where the values of ``keys`` arrive, and how they get into ``outs``.

    A value arrives in its own array if ``memories`` has that as a flat tensor; for None it arrives in a buffer.
    ``bundles``: each, and whether it travels through shared memory. Once all values are there, call :meth:`finish`.

    Attributes:
        of_bundles: For each bundle (bundle, memory for its bytes from the socket, tensors for its values from shared
            memory), of which one is empty.
    """

    def __init__(
        self,
        keys: Sequence[KeySpec],
        outs: Sequence[Value],
        memories: Sequence[Tensor | None],
        bundles: Iterable[tuple[Bundle, bool]],
    ):
        self._keys, self._flats = keys, []
        self._fills: list[tuple[Value, Tensor]] = []  # an array, and the buffer with its value
        self._joined: list[tuple[list[Tensor], Sequence[Tensor]]] = []  # parts of arrays, and their values in a buffer
        for spec, into, flat in zip(keys, outs, memories, strict=True):
            if flat is None:
                flat = torch.empty(spec.elements, dtype=spec.dtype)
                self._fills.append((into, flat))
            self._flats.append(flat)
        self.of_bundles = [self._of(bundle, shared) for bundle, shared in bundles]

    def _of(self, bundle: Bundle, shared: bool) -> tuple[Bundle, memoryview, Sequence[Tensor]]:
        pieces = bundle.pieces(self._flats)
        if shared:
            return bundle, NOTHING, pieces
        if len(pieces) == 1 and not pieces[0].is_neg():  # whose bytes are not its values
            return bundle, raw(pieces[0]), ()
        buffer = torch.empty(sum(bundle.sizes), dtype=bundle.dtype)
        self._joined.append((pieces, buffer.split(bundle.sizes)))
        return bundle, raw(buffer), ()

    @torch.inference_mode()  # as ``out`` may have been made there
    def finish(self) -> None:
        """Move the values out of the buffers. Then each array has its value."""
        for pieces, received in self._joined:
            if any(map(Tensor.is_neg, pieces)):
                for piece, value in zip(pieces, received, strict=True):
                    fill(piece, value)
            else:
                torch._foreach_copy_(pieces, received)
        torch.autograd.graph.increment_version(self._flats)  # autograd has not seen what came from a socket
        for into, flat in self._fills:
            fill(into, flat)
        for spec in self._keys:
            spec.buffers.free = spec.pushes


# ---- the store


class DistStore(KVStore):
    """One worker's end of ``dist_sync``, ``dist_async`` or ``dist_ssp``.

    Args:
        clients: The connections to the slots, in their order.
        started: The server processes that this worker has started; it releases them when it closes.
        shared_buffer: The memory that the clients lend to servers on this host.
        kill: Kills the server with a number.
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        num_workers: int,
        clients: Sequence[ServerClient],
        placement: Placement,
        *,
        started: Sequence = (),
        shared_buffer: SharedBuffer | None = None,
        kill: Callable[[int], object] | None = None,
    ):
        self.deadline = clients[0].deadline
        # A server answers within the deadline. A worker waits a little longer, to raise the error of the server.
        super().__init__(f"of worker {rank}", 1.25 * self.deadline)
        self.type, self.rank, self.num_workers = kind, rank, num_workers
        self.clients, self.placement = list(clients), placement
        # Workers wait for each other at one server. With a record at all: each is to have seen all before they go on.
        self._meeting = self.clients if clients[0].welcome.get("record") else self.clients[:1]
        self.started, self._shared_buffer, self._kill = list(started), shared_buffer, kill
        for client in self.clients:
            client.keys = partial(keys_of, self._keys, client.number)
        self._bundles: dict[tuple[KeySpec, ...], list[Bundle]] = {}
        self._in_doubt: dict[KeySpec, list[Tensor]] = {}  # pushes of which it is not known whether all parts count
        self._pool = ThreadPoolExecutor(4 * len(self.clients), thread_name_prefix=f"d2lps worker {rank}")
        # Also if the user closes nothing: the others wait for a worker that ends without a goodbye.
        self._ends = {
            "process": os.getpid(),
            "clients": self.clients,
            "pool": self._pool,
            "started": self.started,
            "shared_buffer": shared_buffer,
        }
        self._end = weakref.finalize(self, end, **self._ends)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._end.detach()
            end(**self._ends)  # also if the finalizer was interrupted

    # ---- servers

    @property
    def views(self) -> list[View]:
        """The view of each slot, with the numbers of its servers: the primary, and its backup if there is one.

        For a moment after the loss of a server it is still the view with that server.
        """
        return [client.seen for client in self.clients]

    def kill_server(self, number: int) -> None:
        """Kill server ``number``, counted from 0, as a machine fails; with ``replicas=1``, another one replaces it.

        If servers are processes, a worker can kill those that it started. For others, Refused names that worker.
        """
        self._kill(number)

    # ---- the record

    def trace(self, key=None, rounds: int = 8) -> Trace:
        """Return what the servers saw of ``key`` (which may be left out if there is one only): its last ``rounds``.

        The store must have been created with ``record=True``. Any worker may ask, at any time; after a barrier it is
        complete.
        """
        spec = self._only(key)
        sizes = {(part.server, number): (part.stop - part.start) * spec.dtype.itemsize for part, number in spec.parts}
        require_count("rounds", rounds, error=Refused)
        return record.trace(self.type, self.num_workers, self._run(Call(self._records, turn="records")), sizes, rounds)

    def staleness(self, key=None) -> list[record.Pull]:
        """Return, for every pull of ``key``, how many pushes of every worker it had seen. As :meth:`trace`."""
        places = [(part.server, number) for part, number in self._only(key).parts]
        return record.pulls(self.num_workers, self._run(Call(self._records, turn="records")), places)

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

    # ---- push and pull

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        keys, flats = [spec for spec, _ in fresh], [added([value]) for _, value in fresh]
        for spec in keys:
            spec.parts = [(part, 0) for part in self.placement.parts(spec.key, spec.elements, spec.width)]
        bundles, requests = bundled(keys, most=NAMES), []
        for bundle in bundles:
            parts = [[bundle.name(keys, i), size] for i, size in enumerate(bundle.sizes)]
            payload = raw(bundle.joined(flats)) if self.rank == 0 else NOTHING
            metadata = {"parts": parts, "dtype": DTYPES.index(bundle.dtype)}
            requests.append(Request(Op.INIT, metadata=metadata, payload=payload, server=bundle.server))
        self._send(requests)
        for bundle, request in zip(bundles, requests, strict=True):
            for place, number in zip(bundle.places, request.answer.metadata["parts"], strict=True):
                parts = keys[place].parts
                parts[:] = [(part, number if part.server == bundle.server else before) for part, before in parts]
        names, types = known_by(keys)
        first = self._meet(f"init {names[:16]}", 1, types)  # the value of worker 0 is there
        if first not in (None, types):
            raise Refused(text("store.other-shapes", keys=", ".join(repr(spec.key) for spec in keys[:8])))

    def _push(
        self, keys: list[KeySpec], values: list[Value], outs: list[Value] | None, retry: Collection[KeySpec]
    ) -> None:
        until = self._calls.current.until
        flats = [value[0] if in_rows(value) else added(value) for value in values]
        if self._in_doubt:
            pushed = [pair for pair in zip(keys, values, strict=True) if pair[0] in self._in_doubt]
            self._settle_doubts([spec for spec, value in pushed if digests(self._in_doubt[spec]) != digests(value)])
        requests, arrivals = self._push_requests(keys, flats, retry), None
        if outs is not None:
            dense = [flat for flat in flats if not flat.is_sparse]
            arrivals = self._arrivals(keys, outs, values, dense)
            for request, (_, into, pieces) in zip(requests, arrivals.of_bundles, strict=True):
                request.op, request.into, request.pieces = Op.PUSHPULL, into, pieces  # one frame asks for both
        try:
            self._send(requests, until)
            if arrivals:
                self._calls.current.require_wanted()  # else what was pushed stays, if it lies where that goes
        except KVError as error:
            self._count_some(keys, values, requests, retry, error)
            raise
        self._count(keys, retry)
        if arrivals:
            with noted_as_counted(keys):
                arrivals.finish()

    def _pull(self, keys: list[KeySpec], outs: list[Value]) -> None:
        rounds, arrivals = [spec.pushes for spec in keys], self._arrivals(keys, outs)
        requests = [
            Request(Op.PULL, bundle.entries(rounds), into=into, pieces=pieces, server=bundle.server)
            for bundle, into, pieces in arrivals.of_bundles
        ]
        self._send(requests, self._calls.current.until)
        arrivals.finish()

    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        requests, received, wholes = [], [], []
        for spec, _, index in wanted:
            wholes.append(torch.empty(index.numel(), spec.width, dtype=spec.dtype))
            for part, number in spec.parts:
                first, last = part.start // spec.width, part.stop // spec.width
                here = ((index >= first) & (index < last)).nonzero().reshape(-1)
                if here.numel():
                    rows, buffer = index[here] - first, torch.empty(here.numel() * spec.width, dtype=spec.dtype)
                    metadata = {"part": number, "width": spec.width, "round": spec.pushes}
                    about = {"metadata": metadata, "server": part.server}
                    requests.append(Request(Op.ROWS, payload=raw(rows), into=raw(buffer), **about))
                    received.append((wholes[-1], here, buffer))
        self._send(requests, self._calls.current.until)
        for whole, here, buffer in received:
            whole[here] = buffer.view(-1, whole.shape[1])
        with torch.inference_mode():  # as ``out`` may have been made there
            for (_, outs, _), whole in zip(wanted, wholes, strict=True):
                fill(outs, whole.view(-1))

    def _bundled(self, keys: list[KeySpec]) -> list[Bundle]:
        """Return the bundles of ``keys``, worked out once: the same keys are pushed and pulled again and again."""
        keys = tuple(keys)
        if keys not in self._bundles:
            if len(self._bundles) >= CACHED:
                self._bundles.clear()
            self._bundles[keys] = bundled(keys, self.clients)
        return self._bundles[keys]

    def _shared(self, bundle: Bundle) -> bool:
        return bundle.shared and self.clients[bundle.server].shares

    def _push_requests(self, keys: list[KeySpec], flats: list[Tensor], retry: Collection[KeySpec]) -> list[Request]:
        rounds = [spec.pushes + (spec not in retry) for spec in keys] if retry else [spec.pushes + 1 for spec in keys]
        requests, bundles = [], self._bundled(keys)
        if any([flat.is_sparse for flat in flats]):
            together = {place for bundle in bundles if len(bundle.places) > 1 for place in bundle.places}
            flats = [added([flat]) if place in together else flat for place, flat in enumerate(flats)]
        for bundle in bundles:
            entries, request = bundle.entries(rounds), None
            if flats[bundle.places[0]].is_sparse:
                request = rows_pushed(bundle, keys[bundle.places[0]], entries, flats[bundle.places[0]])
            elif self._shared(bundle):
                request = self._shared_push(bundle, keys, entries, flats, rounds, retry)
            request = request or Request(Op.PUSH, entries, payload=raw(bundle.joined(flats)))
            request.server, request.places = bundle.server, bundle.places
            requests.append(request)
        return requests

    def _shared_push(
        self,
        bundle: Bundle,
        keys: list[KeySpec],
        entries: np.ndarray,
        flats: list[Tensor],
        rounds: list[int],
        retry: Collection[KeySpec],
    ) -> Request | None:
        """Return a push through shared memory, or None if there is none left."""
        pieces, tensors, copies = bundle.pieces(flats), [], []
        for place, piece in zip(bundle.places, pieces, strict=True):
            spec = keys[place]
            spec.buffers.begin(rounds[place], spec.pushes)
            tensor, written = spec.buffers.of(bundle.server, piece, self._shared_buffer)
            if tensor is None:
                return None
            tensors.append(tensor)
            if not written or spec not in retry and spec not in self._in_doubt:
                copies.append((spec.buffers, tensor, piece))
        if None in (offsets := [*map(self._shared_buffer.offset, tensors), 0]):
            raise Refused(text("store.closed"))  # by another thread
        places = torch.tensor(offsets)

        def write() -> None:
            places[-1] = time.monotonic_ns()
            for buffers, tensor, piece in copies:
                buffers.write(bundle.server, tensor, piece)

        return Request(Op.PUSH, entries, payload=raw(places), write=write)

    def _arrivals(
        self, keys: list[KeySpec], outs: list[Value], values: Sequence[Value] = (), pushed: Sequence[Tensor] = ()
    ) -> "Arrivals":
        """Return where pulled values arrive: not in memory of ``values``, or the flat ``pushed``, of the same call."""
        memories = [memory_of(into) for into in outs]  # None for a list: its arrays may overlap
        odd = [value for value in values if type(value) is list or not value.is_contiguous()]
        if pushed and overlap(pushed, memories) or odd and in_place(odd, outs):
            memories = [None] * len(keys)
        return Arrivals(keys, outs, memories, [(bundle, self._shared(bundle)) for bundle in self._bundled(keys)])

    def _settle_doubts(self, keys: list[KeySpec]) -> None:
        """Repeat the last pushes of ``keys``, of which only some parts may be counted, until all parts are."""
        late, before = [self._in_doubt[spec] for spec in keys], [spec.pushes for spec in keys]
        try:
            if keys:
                self._push(keys, late, None, ())
        except KVError as error:
            error.counted = error.unknown = ()  # nothing of the push that was to come is counted
            for spec, value, pushes in zip(keys, late, before, strict=True):
                if spec.pushes == pushes:  # also if no server has counted it: its caller knows that this is unknown
                    self._in_doubt[spec] = value
            raise
        finally:  # a caller that repeats such a push, after this one has failed, repeats what is counted
            for spec, pushes in zip(keys, before, strict=True):
                if spec.pushes > pushes and spec.failed is not None:
                    spec.failed.counted.add(spec)

    def _count(self, keys: Iterable[KeySpec], retry: Collection[KeySpec]) -> None:
        """Count one more push of each key that all its servers have."""
        ahead = self.type != "dist_sync"  # a synchronous server may add it later, when all others are there
        for spec in keys:
            if self._in_doubt:
                self._in_doubt.pop(spec, None)
            if spec not in retry:
                spec.buffers.free = spec.pushes + ahead
                spec.pushes += 1

    def _count_some(
        self,
        keys: list[KeySpec],
        values: list[Value],
        requests: list[Request],
        retry: Collection[KeySpec],
        error: KVError,
    ) -> None:
        """Count the keys that all their servers have, and note on ``error`` which these are, and which may be.

        Then each key is counted; or in doubt, with its value, which is pushed again before another one; or neither: no
        server has it, or none that answered, and another push may take its place.
        """
        found: list[set[Counted]] = [set() for _ in keys]  # what its servers say
        answered = [True] * len(keys)  # by all its servers
        for request in requests:
            for place in request.places:
                found[place].add(request.counted)
                answered[place] = answered[place] and request.answer is not None
        counted = {spec for spec, states in zip(keys, found, strict=True) if states <= {Counted.YES}}
        self._count(counted, retry)
        for spec, value, states, complete in zip(keys, values, found, answered, strict=True):
            if states == {Counted.NO} and complete:
                self._in_doubt.pop(spec, None)
            elif spec not in counted and states != {Counted.NO} and spec not in retry and spec not in self._in_doubt:
                self._in_doubt[spec] = copied(value)
        error.counted = tuple(spec.key for spec in keys if spec in counted or spec in retry)
        error.unknown = tuple(spec.key for spec in keys if spec in self._in_doubt)

    # ---- all workers together

    def _settle(self) -> None:
        self._settle_doubts([*self._in_doubt])

    def _next_number(self, name: str) -> int:
        return self._ask(self.clients[:1], Op.BARRIER, {"name": name, "last": True})[0]["last"] + 1

    def _meet(self, name: str, number: int, note: str | None = None) -> str | None:
        return self._ask(self._meeting, Op.BARRIER, {"name": name, "round": number, "note": note})[0].get("note")

    @contextmanager
    def _coming(self, name: str, number: int) -> Iterator[None]:
        over, metadata = threading.Event(), {"name": name, "round": number, "coming": True}

        def announce() -> None:
            while not over.wait(self.deadline * HEARTBEAT):
                for client in self._meeting:
                    with suppress(KVError):
                        client.ask(Request(Op.BARRIER, metadata=metadata))

        with suppress(RuntimeError):  # no more threads can be started: the others wait for one deadline
            threading.Thread(target=announce, daemon=True, name="d2lps on its way").start()
        try:
            yield
        finally:
            over.set()

    def _choose(self, optimizer: Optimizer, number: int) -> None:
        try:
            self._ask(self.clients, Op.OPTIMIZER, said(optimizer) | {"number": number})
        except Refused as error:
            raise KVError(str(error)) from None  # another server may have taken it

    # ---- saving and loading, as worker 0

    def _states(self) -> Iterator[tuple[KeySpec, State]]:
        versions = [answer["versions"] for answer in self._ask(self.clients, Op.STATE, {})]
        for spec in self._keys.values():
            parts = [self._part_state(part.server, shard, versions[part.server][shard]) for part, shard in spec.parts]
            yield spec, checkpoint.joined(parts)

    def _part_state(self, server: int, shard: int, version: int) -> State:
        """Read the state of a part in pieces, as it was in this version."""
        whole, size, layout = bytearray(), 1, {}
        while len(whole) < size:
            metadata = {"part": shard, "from": len(whole), "version": version}
            self._send([request := Request(Op.STATE, metadata=metadata, server=server)])
            layout = request.answer.metadata
            whole += request.into
            size = checkpoint.size(layout)
        return checkpoint.decode(layout, memoryview(whole))

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None, number: int) -> None:
        """Make the parts ready on all servers, and only then have all take theirs."""
        loads, rule, parts = {"load": number}, said(optimizer), [0] * len(self.clients)
        try:
            for spec, state in states:
                requests = []
                for part, shard in spec.parts:
                    metadata, payload = checkpoint.encode(checkpoint.cut(state, part.start, part.stop))
                    metadata |= loads | {"part": shard, "rule": rule["rule"], "rule_numbers": rule["numbers"]}
                    requests.append(Request(Op.RESTORE, metadata=metadata, payload=payload, server=part.server))
                    parts[part.server] += 1
                self._send(requests)
            self._calls.current.require_wanted()
        except Exception as error:
            answers, known = self._tell(Op.COMMIT, loads | {"drop": True}), as_known(error)
            known.consistent = self.type == "dist_sync" and all(answer and answer == answers[0] for answer in answers)
            raise known from known.__cause__
        commits = [
            Request(Op.COMMIT, metadata=loads | rule | {"parts": count}, server=server)
            for server, count in enumerate(parts)
        ]
        try:
            self._send(commits)
        except Refused as error:
            raise KVError(str(error)) from None  # another server may have taken its parts

    def _confirm(self, number: int) -> None:
        """Ask every slot: a primary that was replaced during the load would still give the values before it."""
        if not self.clients[0].follows:
            return
        try:
            self._ask(self.clients, Op.COMMIT, {"load": number, "confirm": True})
        except Refused as error:
            raise KVError(str(error)) from None

    # ---- asking servers, and waiting for them

    def _ask(self, clients: Sequence[ServerClient], op: Op, metadata: dict) -> list[dict]:
        """Ask several servers the same, and return what each answers."""
        requests = [Request(op, metadata=metadata, server=client.number) for client in clients]
        self._send(requests)
        return [request.answer.metadata for request in requests]

    def _tell(self, op: Op, metadata: dict) -> list[dict | None]:
        """Tell all servers something, also after an error or outside of a call; None for one that does not answer."""
        requests, answers = [Request(op, metadata=metadata) for _ in self.clients], []
        for client, request in zip(self.clients, requests, strict=True):
            ask_in_turn(client, [request])
        until = time.monotonic() + self._patience
        for client, request in zip(self.clients, requests, strict=True):
            try:
                answers.append(client.wait(request, until).metadata)
            except KVError:
                answers.append(None)
        return answers

    def _send(self, requests: Sequence[Request], until: float | None = None) -> None:
        """Send requests, each to its server, and wait for all answers.

        Of several errors the most telling is raised. When this ends, in whatever way, nothing is sent any more.
        """
        if not self._end.alive:
            raise Refused(text("store.closed"))
        until, clients = until or time.monotonic() + self._patience, self.clients
        self._calls.current.stop_by(lambda: [clients[request.server].cancel(request) for request in requests])
        by_server: dict[int, list[Request]] = {}
        for request in requests:
            if len(request.payload) <= SMALL:
                ask_in_turn(clients[request.server], [request])
            else:
                by_server.setdefault(request.server, []).append(request)
        try:
            sending = [self._pool.submit(ask_in_turn, clients[server], large) for server, large in by_server.items()]
        except RuntimeError:  # another thread has closed the store
            raise Refused(text("store.closed")) from None
        errors = []
        for request in requests:
            try:
                clients[request.server].wait(request, until)
            except KVError as error:
                errors.append(error)
        wait(sending)
        for error in errors:
            if isinstance(error, WorkerLost) and self.rank in error.ranks:  # one server goes on without this worker,
                for client in clients:  # and the others are not to wait for it
                    client.end(error)
        for kind in (Interrupted, ServerLost, WorkerLost, Unknown, Refused, KVError):
            for error in errors:
                if isinstance(error, kind):
                    raise error


def keys_of(keys: dict[Key, KeySpec], slot: int) -> list[Key]:
    """Return the keys of a slot, whole or in part, as they are now."""
    return [spec.key for spec in [*keys.values()] if any(part.server == slot for part, _ in spec.parts)]


def end(
    process: int,
    clients: Sequence[ServerClient],
    pool: ThreadPoolExecutor,
    started: Sequence,
    shared_buffer: SharedBuffer | None,
) -> None:
    """Release all that a store has made in ``process``."""
    if os.getpid() != process:
        return  # in a child process: the sockets and servers are its parent's
    pool.shutdown(wait=False)
    with ExitStack() as ends:  # each is closed, also if closing another is interrupted
        for resource in reversed([*clients, *started, *filter(None, [shared_buffer])]):
            ends.callback(resource.close)
        for resource in (*clients, *started):  # all get the goodbye before any is waited for
            resource.leave()


def rows_pushed(bundle: Bundle, spec: KeySpec, entries: np.ndarray, gradient: Tensor) -> Request:
    """Return the push of the rows of one part that a gradient in rows has."""
    entries["in_rows"] = 1
    cut = bundle.cuts[0] or slice(0, spec.elements)
    rows, first = gradient.indices()[0].cpu(), cut.start // spec.width
    start, stop = torch.searchsorted(rows, torch.tensor([first, cut.stop // spec.width])).tolist()
    values = gradient.values()[start:stop].reshape(-1).cpu().contiguous().resolve_neg()
    pieces = torch.tensor([stop - start]), rows[start:stop] - first, values
    return Request(Op.PUSH, entries, payload=raw(torch.cat([*map(as_bytes, pieces)])))
