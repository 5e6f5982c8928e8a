"""The sessions at a server: the requests of one worker and the answers, and the messages of another server.

One thread reads requests, another writes answers; a small answer is sent by the thread that has it. Answers that wait
hold no copies: they name values, which are never changed. A request that cannot be done is an error to this worker
alone.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from d2lps.kvstore import threads
from d2lps.kvstore.checkpoint import decode
from d2lps.kvstore.errors import KVError, Refused, packed, server_text
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import PullRecord, PushRecord
from d2lps.kvstore.replication.commands import PartState
from d2lps.kvstore.replication.messages import Confirm, Name
from d2lps.kvstore.server.peers import Snapshots, begins_snapshot, hear
from d2lps.kvstore.server.slot import Slot
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.threads import own_time
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import DTYPES, NOTHING, PUSHES, Broken, Frame, Op, raw
from d2lps.units import is_count

log = logging.getLogger("d2lps.kvstore.server")
ANSWERS, SMALL = 16, 1024  # answers that may wait; bytes of a small answer
STATE = 8 << 30  # bytes of the state of one part, at most
FLUSH = 1.0  # seconds that a goodbye waits until pushes are committed


class WorkerSession:
    """Worker ``rank`` at ``channel`` of server ``number``.

    ``ended(session, why, left, silent)`` is called at the end. ``left``: the worker has said goodbye; ``silent``: it
    will not come back.
    """

    def __init__(
        self, store: SlotStore, channel: Channel, rank: int, incarnation: str, ended: Callable, number: int = 0
    ):
        self.store, self.channel, self.rank, self.incarnation, self.number = store, channel, rank, incarnation, number
        self.heard, self.open = own_time(), True
        self.working = False  # a worker that waits here for others is silent meanwhile, and not lost
        self._ended, self._why, self._silent = ended, server_text("store.server.ended"), False
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._sending = threading.Lock()
        # By request: values in shared memory that the worker still reads, and the records to make when it has.
        self._unread: dict[int, tuple[list[Tensor], list[PullRecord]]] = {}

    def close(self) -> None:
        self.open = False
        self._answers.put(None)
        self.channel.close()

    def end(self, why: str) -> None:
        """Close it; the worker will not come back."""
        self._why, self._silent = why, True
        self.close()

    # ---- reading

    def run(self) -> None:
        """Handle requests, until the worker says goodbye or the session is closed."""
        threads.start(f"d2lps answers to worker {self.rank}", self._write)
        left = False
        try:
            while not left and (frame := self._next()):
                left = frame.op == Op.BYE
                self.working = True
                self._handle(frame)
                self.heard, self.working = own_time(), False
        except Broken as error:
            self._why = str(error) if self.open else self._why
        except Exception:
            self._why, self._silent = server_text("store.server.failed"), True  # it would fail again
            raise
        finally:  # whatever the reason, the others must not wait for it
            if left:
                self._ok(frame)
                time.sleep(0.01)
            self.close()
            if self.channel.remote:  # no other thread uses it
                self.channel.remote.close()
            self._ended(self, server_text("store.server.goodbye") if left else self._why, left, self._silent)

    def _next(self) -> Frame | None:
        while self.open:
            if self._answers.qsize() > ANSWERS:  # further requests stay in the socket
                time.sleep(0.005)
            elif (frame := self.channel.receive(idle=True)) is not None:
                self.heard = own_time()
                return frame
        return None

    def _handle(self, frame: Frame) -> None:
        handler = getattr(self, f"on_{frame.op.name.lower()}", None)
        try:
            if handler is not None:
                handler(frame)
            elif frame.op not in (Op.ALIVE, Op.BYE):
                raise Refused(f"a worker may not ask a server for {frame.op.name}")
            self.channel.skip(frame)
        except Broken:
            raise
        except Exception as error:
            self.channel.skip(frame)  # the rest of its payload: the next frame comes after it
            self._error(frame, self._named(frame.op, error))

    def _named(self, op: Op, error: Exception) -> KVError:
        """Return the error for the worker. An unexpected one is logged here, with its traceback."""
        if isinstance(error, Broken):  # this server is not the primary any more: the worker asks another one
            self.close()
            return KVError(str(error))
        if isinstance(error, KVError):
            return error
        what = f"server {self.number} failed at {op.name.lower()}"
        log.error("%s of worker %d", what, self.rank, exc_info=error)
        return KVError(f"{what}: {type(error).__name__}: {error}")

    # ---- requests: a method for each Op

    def on_init(self, frame: Frame) -> None:
        """Initialise several parts of one dtype; the values come from worker 0."""
        dtype, parts = validate_init(frame)
        sizes = [elements for _, elements in parts]
        values: Sequence[Tensor | None] = [None] * len(parts)
        if frame.payload or not sum(sizes) and self.rank == 0:
            buffer = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(buffer))
            values = buffer.split(sizes)
        numbers = [
            self.store.init(self.rank, name, elements, dtype, value)
            for (name, elements), value in zip(parts, values, strict=True)
        ]
        self._ok(frame, {"parts": numbers})

    def on_push(self, frame: Frame) -> None:
        self._count(frame)
        self._ok(frame)

    def on_pushpull(self, frame: Frame) -> None:
        """Do both, one after the other. If the pull has to wait for others, answer first that the push is counted."""
        since = self.store.slot.core.seq
        self._count(frame)
        if not self.on_pull(frame, since) and not all(
            self.store.readable(entry.part, entry.round) for entry in frame.entries
        ):
            self._ok(frame)  # else the value is the answer, as soon as all servers of the slot have it

    def _count(self, frame: Frame) -> None:
        """Count several parts that are pushed at once; those that are counted already are read and dropped."""
        start = time.monotonic()
        dtype, sizes, new = self._admit(frame)
        if frame.shared:
            tensors, start = self._shared_push(frame, dtype)
        elif frame.entries[0].in_rows:
            tensors = [self._rows_pushed(frame, dtype)]
        else:
            buffer = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(buffer))
            tensors = buffer.split(sizes) if len(sizes) > 1 else [buffer]
        own = len(tensors) == 1 and not frame.shared  # a piece of a frame would keep all of it
        fresh = [(entry, tensor) for entry, is_new, tensor in zip(frame.entries, new, tensors, strict=True) if is_new]
        if not fresh:
            return
        end = time.monotonic()
        self.store.push(self.rank, [(entry.part, entry.round, tensor) for entry, tensor in fresh], own)
        for entry, tensor in fresh if self.store.record else ():
            nbytes = frame.payload if entry.in_rows else tensor.nbytes
            self.store.record.add(PushRecord(entry.part, self.rank, entry.round, start, end, nbytes))

    def _admit(self, frame: Frame) -> tuple[torch.dtype, list[int], list[bool]]:
        """Return the dtype, the elements of each part, and for each part if it is new."""
        dtype, sizes = validate_push(frame)
        return dtype, sizes, self.store.admit(self.rank, dtype, frame.entries)

    def _shared_push(self, frame: Frame, dtype: torch.dtype) -> tuple[list[Tensor], float]:
        """Return the tensors of a push in the memory of the worker, and the time at which it began to write them."""
        places = torch.empty(len(frame.entries) + 1, dtype=torch.int64)
        self.channel.into(frame, raw(places))
        *offsets, start = places.tolist()
        remote = self.channel.remote
        tensors = [
            remote and remote.tensor(offset, entry.elements, dtype)
            for entry, offset in zip(frame.entries, offsets, strict=True)
        ]
        if any(tensor is None for tensor in tensors):
            raise Refused("what is pushed lies where this worker lends no memory")
        return tensors, start / 1e9

    def _rows_pushed(self, frame: Frame, dtype: torch.dtype) -> Tensor:
        """Return a part of which only some rows travel; the others are 0."""
        (entry,), buffer = frame.entries, torch.empty(frame.payload, dtype=torch.uint8)
        self.channel.into(frame, raw(buffer))
        count = buffer[:8].view(torch.int64).item()
        if not 0 <= count <= (frame.payload - 8) // 8:
            raise Refused(f"{count} rows are pushed in {frame.payload} bytes")
        rows, values = buffer[8 : 8 + 8 * count].view(torch.int64), buffer[8 + 8 * count :]
        width, rest = divmod(len(values), max(1, count) * dtype.itemsize)
        if rest or bool(width) != bool(count):
            raise Refused(f"{len(values)} bytes are no {count} rows of {dtype}")
        total = torch.zeros(entry.elements, dtype=dtype)
        if count:
            self.store.shard(entry.part).validate_rows(width, rows)
            total.view(-1, width)[rows] = values.view(dtype).view(count, width)
        return total

    def on_pull(self, frame: Frame, since: int | None = None) -> bool:
        """Answer when all parts may be read, and return True if that was so at once.

        ``since``: the last command before the call began.
        """
        if not frame.entries:
            raise Refused("a pull says what it pulls")
        wanted = [(entry.part, entry.round) for entry in frame.entries]
        return self.store.pull(self.rank, wanted, partial(self._answer_pull, frame), since)

    def _answer_pull(self, frame: Frame, pulled: list[PartState] | KVError, rows: Tensor | None = None) -> None:
        """End a pull, perhaps in the thread of another worker: nothing is raised there."""
        try:
            if isinstance(pulled, KVError):
                raise pulled
            values, pulls = [part.value.value for part in pulled], []
            if rows is not None:
                part, width, round_ = validate_rows(frame)
                chosen = values[0].reshape(-1, width)[rows].reshape(-1)
                if self.store.record:
                    version = pulled[0].version
                    pulls = [PullRecord(part, self.rank, round_, version, nbytes=chosen.nbytes)]
                self._answer(Op.DATA, frame.number, payload=raw(chosen), pulls=pulls)
                return
            if self.store.record:
                pulls = [
                    PullRecord(entry.part, self.rank, entry.round, each.version)
                    for entry, each in zip(frame.entries, pulled, strict=True)
                ]
            offsets = self._share(frame, values, pulls)
            if offsets is not None:
                self._answer(Op.DATA, frame.number, payload=raw(torch.tensor(offsets)), shared=True)
            else:
                payload = raw(values[0] if len(values) == 1 else torch.cat(values))
                self._answer(Op.DATA, frame.number, payload=payload, pulls=pulls)
        except Exception as error:
            self._error(frame, self._named(frame.op, error))

    def _share(self, frame: Frame, values: list[Tensor], pulls: list[PullRecord]) -> list[int] | None:
        """Return the offsets of ``values`` in shared memory, which stay as they are until the worker has read them."""
        # A worker that never says that it has read gets its bytes through the socket from here on.
        shared_buffer = self.store.shared_buffer
        if not frame.shared or shared_buffer is None or len(self._unread) > 2 * len(self.store.shards):
            return None
        offsets = [shared_buffer.offset(value) for value in values]
        if None in offsets:
            return None
        self._unread[frame.number] = values, pulls
        return offsets

    def on_read(self, frame: Frame) -> None:
        """Release values in shared memory that the worker has copied, and record when it did so."""
        for number, start, end in validate_read(frame):
            _, pulls = self._unread.pop(number, (None, ()))
            self._record(pulls, start, end)

    def on_rows(self, frame: Frame) -> None:
        """Answer with rows of one part, ``width`` elements each, in the order of the indices that follow."""
        part, width, round_ = validate_rows(frame)
        rows = torch.empty(frame.payload // 8, dtype=torch.int64)
        self.channel.into(frame, raw(rows))

        self.store.shard(part).validate_rows(width, rows)
        self.store.pull(self.rank, [(part, round_)], partial(self._answer_pull, frame, rows=rows))

    def on_barrier(self, frame: Frame) -> None:
        """Wait in a thread of its own, so that this worker is still heard meanwhile."""
        if frame.metadata.get("last") is True:
            self._answer_current(frame, {"last": self.store.last_barrier(self.rank, validate_name(frame))})
            return
        name, number, note = validate_barrier(frame)
        if frame.metadata.get("coming") is True:
            self._require_first("does what the others wait for")
            self.store.barrier(self.rank, number, name, coming=True)
            self._ok(frame)
            return
        place = self.store.come(self.rank, number, name, note)  # here: a later request of this worker comes after it

        def wait() -> None:
            try:
                self._ok(frame, {"note": self.store.wait_at(place)})
            except Exception as error:
                self._error(frame, self._named(frame.op, error))

        threading.Thread(target=wait, daemon=True, name=f"d2lps barrier of worker {self.rank}").start()

    def on_optimizer(self, frame: Frame) -> None:
        """Set the optimizer, for worker 0."""
        number = frame.metadata.get("number")
        if number is not None and not is_count(number):
            raise Refused("an optimizer has a number")
        self._require_first("sets the optimizer of all")
        self.store.set_optimizer(self.rank, read_optimizer(frame, "numbers"), number)
        self._ok(frame)

    def on_status(self, frame: Frame) -> None:
        """Answer with a page of the record."""
        start = frame.metadata.get("from", 0)
        if self.store.record is None:
            raise Refused(server_text("store.server.no-record"))
        if not is_count(start):
            raise Refused("the record is told from a number on")
        self._ok(frame, self.store.record.as_metadata(self.store.updates and self.store.updates.rule, start))

    def on_state(self, frame: Frame) -> None:
        """Answer with the versions of all parts, for a save, or with bytes of one part of a version."""
        self._require_first("saves")
        if not frame.metadata:
            self._answer_current(frame, {"versions": self.store.versions(self.rank)})
            return
        part, version, start = validate_counts(frame, "part", "version", "from")
        self._answer(Op.DATA, frame.number, *self.store.state(self.rank, part, version, start))

    def on_restore(self, frame: Frame) -> None:
        """Make a part ready for a load: it counts from the COMMIT of this load on, or never."""
        self._require_first("loads")
        load, optimizer = frame.metadata.get("load"), read_optimizer(frame, "rule_numbers")
        if not is_count(load) or frame.payload > STATE:
            raise Refused("what is loaded has a number, and comes one part of a key at a time")
        shard = self.store.shard(frame.metadata.get("part"))
        buffer = memoryview(bytearray(frame.payload))
        self.channel.into(frame, buffer)
        self.store.stage(self.rank, load, shard.number, decode(frame.metadata, buffer), optimizer)
        self._ok(frame)

    def on_commit(self, frame: Frame) -> None:
        """Take all parts of a load, or drop them; then answer with the numbers of the last load and optimizer."""
        load, parts, dropped = (frame.metadata.get(name) for name in ("load", "parts", "drop"))
        confirmed = frame.metadata.get("confirm") is True  # by any worker: that the load was done here
        if not confirmed:
            self._require_first("loads")
        if not is_count(load) or dropped is not True and not confirmed and not is_count(parts):
            raise Refused("what is loaded has a number, and a number of parts")
        if confirmed:
            if self.store.slot.core.loaded < load:
                raise Refused(f"load {load} was not done here: load again")
            self._ok(frame)
        elif dropped is True:
            self.store.drop(load)
            core = self.store.slot.core
            self._ok(frame, {"loaded": core.loaded, "chosen": core.chosen.number})
        else:
            self.store.commit(self.rank, load, parts, read_optimizer(frame, "numbers"))
            self._ok(frame)

    def _require_first(self, does: str) -> None:
        if self.rank:
            raise Refused(f"worker 0 {does}")

    def on_bye(self, frame: Frame) -> None:
        """Wait a moment until its pushes are committed: they stay, whichever server ends."""
        until = time.monotonic() + FLUSH
        while not self.store.slot.alone and self.store.pending(self.rank) and time.monotonic() < until and self.open:
            time.sleep(0.01)

    # ---- answering: an answer holds also if this server ends

    def _ok(self, frame: Frame, metadata: dict | None = None) -> None:
        answer = partial(self._answer, Op.OK, frame.number, metadata)
        if frame.op in PUSHES and self.store.kind == "dist_sync":
            answer()  # the worker keeps it: it may have to push again before the open round closes
        else:
            self._when_committed(answer)

    def _error(self, frame: Frame, error: KVError) -> None:
        answer = partial(self._answer_error, frame, error)
        if isinstance(error, Refused):  # another server may be the primary, and know more
            answer = partial(self._when_it_holds, answer)
        if frame.op in PUSHES and self.store.kind != "dist_sync":
            self._when_committed(answer)  # it says which pushes are counted
        else:
            answer()

    def _when_committed(self, answer: Callable[[], object]) -> None:
        try:
            self.store.slot.when_committed(answer)
        except Broken:
            self.close()

    def _when_it_holds(self, answer: Callable[[], object]) -> None:
        slot = self.store.slot
        try:
            if slot.alone:
                answer()
                return
            with slot.leading():
                slot.ask(self.rank, Confirm(0, 0, self.rank), lambda _: answer())
        except Broken:
            self.close()

    def _answer_current(self, frame: Frame, metadata: dict) -> None:
        """Answer with what this server knows: another one may be the primary, and know more."""
        answer = partial(self._answer, Op.OK, frame.number, metadata)
        self._when_committed(partial(self._when_it_holds, answer))

    def _answer_error(self, frame: Frame, error: KVError) -> None:
        """Answer with an error; ``counted``: the entries of a push that are counted, by this or an earlier request."""
        shards, entries = self.store.shards, frame.entries if frame.op in PUSHES else ()
        counted = [
            place
            for place, entry in enumerate(entries)
            if entry.part < len(shards) and entry.round <= shards[entry.part].rounds[self.rank]
        ]
        sentence, ranks = str(error), list(getattr(error, "ranks", ()))
        metadata = {"kind": type(error).__name__, "sentence": sentence, "packed": packed(sentence), "ranks": ranks}
        self._answer(Op.ERROR, frame.number, metadata | {"counted": counted})

    def _answer(
        self,
        op: Op,
        number: int,
        metadata: dict | None = None,
        payload: memoryview = NOTHING,
        shared: bool = False,
        pulls: Sequence[PullRecord] = (),
    ) -> None:
        if not self.store.slot.leads:
            self.close()
            return
        answer = (op, number, (), metadata, payload, shared), pulls
        # A small answer is sent here, if nothing is in its way: to wake another thread takes longer.
        if len(payload) <= SMALL and self._answers.empty() and self._sending.acquire(blocking=False):
            try:
                if self.channel.roomy:
                    self._send(*answer)
                    return
            finally:
                self._sending.release()
        self._answers.put(answer)

    def _write(self) -> None:
        """Send the answers that wait, and heartbeats."""
        pause = self.store.deadline * threads.HEARTBEAT
        while self.open:
            try:
                answer = self._answers.get(timeout=pause)
            except queue.Empty:
                answer = ((Op.ALIVE, 0), ())
            if answer is None:
                continue
            with self._sending:
                sent = self._send(*answer)
            if not sent:
                return

    def _send(self, frame: tuple, pulls: Sequence[PullRecord]) -> bool:
        start = time.monotonic()
        try:
            self.channel.send(*frame)
        except Broken:
            self.channel.close()
            return False
        except Exception as error:  # it cannot be put into a frame: then that is the answer
            op, number, *_ = frame
            if op == Op.ERROR:
                self.channel.close()
                return False
            said = {"kind": "KVError", "sentence": f"server {self.number} has no answer: {error}"[:1000]}
            return self._send((Op.ERROR, number, (), said | {"ranks": [], "counted": []}), ())
        self._record(pulls, start, time.monotonic())
        return True

    def _record(self, pulls: Sequence[PullRecord], start: float, end: float) -> None:
        for pull in pulls:
            self.store.record.add(pull._replace(start=start, end=end))


class PeerSession:
    """The messages of another server of the slot."""

    def __init__(self, slot: Slot, channel: Channel, other: Name):
        self.slot, self.channel, self.other, self.open = slot, channel, other, True

    def close(self) -> None:
        self.open = False
        self.channel.close()

    def run(self) -> None:
        """Hand the messages to the slot, until the other server ends or the session is closed."""
        snapshots = Snapshots()
        try:
            while self.open:
                frame = self.channel.receive(idle=True)
                if frame is None:
                    continue
                self.slot.note_heartbeat(self.other)
                if frame.op == Op.PEER:
                    self.slot.arriving |= begins_snapshot(frame)
                    messages = hear(self.channel, frame, partial(self.slot.note_heartbeat, self.other))
                    self.slot.hear(self.other, [*filter(None, map(snapshots.whole, messages))])
                    self.slot.arriving = snapshots.coming
                elif frame.op != Op.ALIVE:
                    raise Broken(f"a server may not say {frame.op.name}")
        except Broken:
            pass
        finally:
            self.slot.arriving = False
            self.channel.close()
            self.slot.lost_connection(self.other)


# ---- requests of a worker, checked before anything is done for them: each function raises Refused


def validate_push(frame: Frame) -> tuple[torch.dtype, list[int]]:
    """Return the dtype, and the elements of each part, of a push."""
    dtypes, sizes = {entry.dtype for entry in frame.entries}, [entry.elements for entry in frame.entries]
    if len(dtypes) != 1 or not max(dtypes) < len(DTYPES):
        raise Refused("what is pushed together is of one dtype")
    dtype = DTYPES[dtypes.pop()]
    if frame.entries[0].in_rows:
        if len(sizes) > 1 or frame.shared or not 8 <= frame.payload <= 8 + sizes[0] * (8 + dtype.itemsize):
            raise Refused("rows are pushed of one part at a time, and no more of them than it has")
    elif frame.payload != (8 * len(sizes) + 8 if frame.shared else sum(sizes) * dtype.itemsize):
        raise Refused(f"{frame.payload} bytes are pushed, where {sum(sizes)} elements of {dtype} belong")
    return dtype, sizes


def validate_init(frame: Frame) -> tuple[torch.dtype, list[tuple[str, int]]]:
    """Return the dtype, and (name, elements) of each part, that a worker initialises."""
    number, parts = frame.metadata.get("dtype"), frame.metadata.get("parts")
    if not is_count(number) or number >= len(DTYPES) or not isinstance(parts, list) or not parts:
        raise Refused("a worker initialises parts of one dtype")
    dtype, named = DTYPES[number], []
    for part in parts:
        name, elements = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= 512 or not is_count(elements):
            raise Refused("a part is initialized by a short name and its number of elements")
        named.append((name, elements))
    size = sum(elements for _, elements in named) * dtype.itemsize
    if frame.payload not in (0, size):
        raise Refused(f"key {named[0][0]}: {frame.payload} bytes for {size} bytes of {dtype}")
    return dtype, named


def validate_rows(frame: Frame) -> list[int]:
    """Return the part, the elements of a row, and the round of which a worker pulls rows."""
    part, width, round_ = validate_counts(frame, "part", "width", "round")
    if not width or frame.payload % 8:
        raise Refused("rows have elements, and their numbers 8 bytes each")
    return [part, width, round_]


def validate_counts(frame: Frame, *names: str) -> list[int]:
    """Return the counts of these names."""
    counts = [frame.metadata.get(name) for name in names]
    if not all(map(is_count, counts)):
        raise Refused(f"{frame.op.name} needs whole numbers: {', '.join(names)}")
    return counts


def validate_read(frame: Frame) -> list[tuple[int, float, float]]:
    """Return (number, begin, end) of each answer that a worker has read in shared memory."""
    read = frame.metadata.get("read")
    if not isinstance(read, list) or not all(
        isinstance(answer, list) and [*map(type, answer)] == [int, float, float] for answer in read
    ):
        raise Refused("what was read is said by request, begin and end")
    return read


def validate_barrier(frame: Frame) -> tuple[str, int, str | None]:
    """Return the name and the number of a barrier, and the note of worker 0 for the others."""
    name, number, note = validate_name(frame), frame.metadata.get("round"), frame.metadata.get("note")
    if not is_count(number) or not isinstance(note, str | None):
        raise Refused("a barrier has a short name and a number, and its note is text")
    return name, number, note


def validate_name(frame: Frame) -> str:
    """Return the name of a barrier."""
    name = frame.metadata.get("name")
    name = "" if name is None else name
    if not isinstance(name, str) or len(name) > 64:
        raise Refused("a barrier has a short name and a number, and its note is text")
    return name


def read_optimizer(frame: Frame, numbers: str) -> Optimizer | None:
    """Return the optimizer of a request, or None; ``numbers``: the name under which its numbers are."""
    rule = frame.metadata.get("rule")
    return None if rule is None else Optimizer.read(rule, frame.metadata.get(numbers))
