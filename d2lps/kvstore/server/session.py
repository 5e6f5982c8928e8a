"""A worker at a server: what it may ask for, what is done about it, and what it is answered.

What comes is read in one thread, what is answered written in another: answers wait in no queue of copies, they name
values, which are never changed. What cannot be done is an error to this worker alone.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from d2lps.kvstore.codec import decode, encode
from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import PullRecord, PushRecord
from d2lps.kvstore.server.shard import Snapshot
from d2lps.kvstore.server.shard_store import ShardStore
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import DTYPES, NOTHING, Broken, Frame, Op, raw

ANSWERS, SMALL = 16, 1024  # that a worker has not taken yet; bytes of a payload that is sent without ado
STATE = 8 << 30  # most bytes of what is remembered of one part


class WorkerSession:
    """Worker ``rank`` at ``channel``; ``ended(session, why, left, silent)`` is called when it has gone.

    ``left``: it has said goodbye; ``silent``: it will not come back.
    """

    def __init__(self, store: ShardStore, channel: Channel, rank: int, incarnation: str, ended: Callable):
        self.store, self.channel, self.rank, self.incarnation = store, channel, rank, incarnation
        self.heard, self.open = time.monotonic(), True
        self.working = False  # who waits here for others says nothing meanwhile, and is not lost
        self._ended, self._why, self._silent = ended, "its connection has ended", False
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._sending = threading.Lock()
        # By request: values in shared memory that the worker still reads, and what to record once it has.
        self._unread: dict[int, tuple[list[Tensor], list[PullRecord]]] = {}

    def close(self) -> None:
        self.open = False
        self._answers.put(None)
        self.channel.close()

    def end(self, why: str) -> None:
        """Close it for good."""
        self._why, self._silent = why, True
        self.close()

    # ---- reading

    def run(self) -> None:
        """Do what comes, until it says goodbye or is closed."""
        threading.Thread(target=self._write, daemon=True, name=f"d2lps answers to worker {self.rank}").start()
        left = False
        try:
            while not left and (frame := self._next()):
                left = frame.op == Op.BYE
                self.working = True
                self._handle(frame)
                self.heard, self.working = time.monotonic(), False
        except Broken as error:
            self._why = str(error) if self.open else self._why
        except Exception:
            self._why, self._silent = "the server failed at what it asked for", True  # it would fail again
            raise
        finally:  # whatever ends it, the others must not wait for it
            if left:
                self._ok(frame)
                time.sleep(0.01)
            self.close()
            self.channel.remote and self.channel.remote.close()  # which nobody but this thread uses
            self._ended(self, "it said goodbye" if left else self._why, left, self._silent)

    def _next(self) -> Frame | None:
        while self.open:
            if self._answers.qsize() > ANSWERS:  # what it asks for beyond stays in the socket
                time.sleep(0.005)
            elif (frame := self.channel.receive(idle=True)) is not None:
                self.heard = time.monotonic()
                return frame
        return None

    def _handle(self, frame: Frame) -> None:
        handler = getattr(self, f"on_{frame.op.name.lower()}", None)
        try:
            if handler is not None:
                handler(frame)
            else:
                self.channel.skip(frame)
                if frame.op not in (Op.ALIVE, Op.BYE):
                    raise Refused(f"a worker may not ask a server for {frame.op.name}")
        except KVError as error:
            self._error(frame, error)

    # ---- what it may ask for: a method for each Op

    def on_init(self, frame: Frame) -> None:
        """Several parts of one dtype; the values come from worker 0."""
        dtype, parts = self._checked(frame, validate_init)
        sizes = [elements for _, elements in parts]
        values: Sequence[Tensor | None] = [None] * len(parts)
        if frame.payload or not sum(sizes) and self.rank == 0:
            room = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(room))
            values = room.split(sizes)
        numbers = [
            self.store.init(self.rank, name, elements, dtype, value)
            for (name, elements), value in zip(parts, values, strict=True)
        ]
        self._ok(frame, {"parts": numbers})

    def on_push(self, frame: Frame) -> None:
        self._count(frame)
        self._ok(frame)

    def on_pushpull(self, frame: Frame) -> None:
        """As the two, one after the other; whoever must wait for others hears meanwhile that its push is counted."""
        self._count(frame)
        try:
            if not self.on_pull(frame):
                self._ok(frame)
        except KVError as error:
            self._error(frame, error, counted=True)

    def _count(self, frame: Frame) -> None:
        """Several parts that are pushed at once; those that are counted already are read and let go."""
        start = time.monotonic()
        dtype, sizes, new = self._checked(frame, self._admit)
        if frame.shared:
            tensors, start = self._shared_push(frame, dtype)
        else:
            room = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(room))
            tensors = room.split(sizes) if len(sizes) > 1 else [room]
        own = len(tensors) == 1 and not frame.shared  # a piece of a frame would keep all of it
        pushes = [(entry, tensor) for entry, fresh, tensor in zip(frame.entries, new, tensors, strict=True) if fresh]
        finite = [
            self.store.check_finite(self.rank, entry.part, entry.round, tensor, bool(entry.finite))
            for entry, tensor in pushes
        ]
        end = time.monotonic()
        for (entry, tensor), well in zip(pushes, finite, strict=True):
            if self.store.record:
                self.store.record.add(PushRecord(entry.part, self.rank, entry.round, start, end))
            self.store.push(self.rank, entry.part, entry.round, tensor, well, own)

    def _admit(self, frame: Frame) -> tuple[torch.dtype, list[int], list[bool]]:
        """The dtype and elements of what is pushed, and of each part whether it is new."""
        dtype, sizes = validate_push(frame)
        admit = self.store.admit
        return dtype, sizes, [admit(self.rank, each.part, each.elements, dtype, each.round) for each in frame.entries]

    def _shared_push(self, frame: Frame, dtype: torch.dtype) -> tuple[list[Tensor], float]:
        """The tensors of a push that lie in the worker's memory, and since when it has written them there."""
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

    def on_pull(self, frame: Frame) -> bool:
        """Several parts at once, answered when the last of them may be read; whether that was so at once."""
        if not frame.entries:
            raise Refused("a pull says what it pulls")

        def reply(snapshots: list[Snapshot] | KVError) -> None:
            if isinstance(snapshots, KVError):
                self._error(frame, snapshots, counted=frame.op == Op.PUSHPULL)
                return
            values, pulls = [snapshot.value for snapshot in snapshots], []
            if self.store.record:
                pulls = [
                    PullRecord(entry.part, self.rank, entry.round, snapshot.version)
                    for entry, snapshot in zip(frame.entries, snapshots, strict=True)
                ]
            offsets = self._share(frame, values, pulls)
            if offsets is not None:
                self._answer(Op.DATA, frame.number, payload=raw(torch.tensor(offsets)), shared=True)
            else:
                payload = raw(values[0] if len(values) == 1 else torch.cat(values))
                self._answer(Op.DATA, frame.number, payload=payload, pulls=pulls)

        return self.store.pull(self.rank, [(entry.part, entry.round) for entry in frame.entries], reply)

    def _share(self, frame: Frame, values: list[Tensor], pulls: list[PullRecord]) -> list[int] | None:
        """Where ``values`` lie in shared memory, which stays as it is until the worker has read them."""
        # Who never says that it has read gets its bytes through the socket from here on.
        arena = self.store.arena
        if not frame.shared or arena is None or len(self._unread) > 2 * len(self.store.shards):
            return None
        offsets = [arena.offset(value) for value in values]
        if None in offsets:
            return None
        self._unread[frame.number] = values, pulls
        return offsets

    def on_read(self, frame: Frame) -> None:
        """The worker has copied what it was given in shared memory: when it began, and when it was done."""
        for number, start, end in validate_read(frame):
            _, pulls = self._unread.pop(number, (None, ()))
            self._record(pulls, start, end)

    def on_rows(self, frame: Frame) -> None:
        """Some rows of one part, ``width`` elements each, in the order of the indices that follow."""
        part, width, round_ = self._checked(frame, validate_rows)
        rows = torch.empty(frame.payload // 8, dtype=torch.int64)
        self.channel.into(frame, raw(rows))

        def reply(snapshots: list[Snapshot] | KVError) -> None:
            if isinstance(snapshots, KVError):
                self._error(frame, snapshots)
                return
            chosen = snapshots[0].value.reshape(-1, width)[rows].reshape(-1)
            self._answer(Op.DATA, frame.number, payload=raw(chosen))

        self.store.shard(part).validate_rows(width, rows)
        self.store.pull(self.rank, [(part, round_)], reply)

    def on_barrier(self, frame: Frame) -> None:
        """In a thread of its own, so that this worker is still heard while it waits."""

        def wait() -> None:
            try:
                self.store.barrier(self.rank, frame.metadata["round"])
                self._ok(frame)
            except KVError as error:
                self._error(frame, error)

        if not isinstance(frame.metadata.get("round"), int):
            raise Refused("a barrier has a number")
        threading.Thread(target=wait, daemon=True, name=f"d2lps barrier of worker {self.rank}").start()

    def on_optimizer(self, frame: Frame) -> None:
        rule, numbers = frame.metadata.get("rule"), frame.metadata.get("numbers")
        if not isinstance(numbers, dict) and rule is not None:
            raise Refused("an optimizer is a name and numbers")
        if self.rank:
            raise Refused("worker 0 sets the optimizer of all")
        self.store.set_optimizer(self.rank, Optimizer.read(rule, numbers) if rule is not None else None)
        self._ok(frame)

    def on_status(self, frame: Frame) -> None:
        if self.store.record is None:
            raise Refused("this store keeps no record: create it with record=True")
        self._ok(frame, self.store.record.as_metadata(self.store.updates and self.store.updates.rule))

    def on_state(self, frame: Frame) -> None:
        metadata, payload = encode(self.store.shard(frame.metadata.get("part")).state())
        self._answer(Op.DATA, frame.number, metadata, payload)

    def on_restore(self, frame: Frame) -> None:
        if self.rank or frame.payload > STATE:
            self.channel.skip(frame)
            raise Refused("worker 0 loads, and a part of a key at a time")
        room = memoryview(bytearray(frame.payload))
        self.channel.into(frame, room)
        self.store.shard(frame.metadata.get("part")).restore(decode(frame.metadata, room))
        self._ok(frame)

    def _checked(self, frame: Frame, check: Callable):
        """What ``check`` makes of the frame; where it raises, its payload is out of the way."""
        try:
            return check(frame)
        except KVError:
            self.channel.skip(frame)
            raise

    # ---- answering

    def _ok(self, frame: Frame, metadata: dict | None = None) -> None:
        self._answer(Op.OK, frame.number, metadata)

    def _error(self, frame: Frame, error: KVError, counted: bool = False) -> None:
        metadata = {"kind": type(error).__name__, "sentence": str(error), "ranks": list(getattr(error, "ranks", ()))}
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
        answer = (op, number, (), metadata, payload, shared), pulls
        # What is small goes out at once, where nobody need wait for it: to wake another thread takes longer.
        if len(payload) <= SMALL and self._answers.empty() and self._sending.acquire(blocking=False):
            try:
                if self.channel.roomy:
                    self._send(*answer)
                    return
            finally:
                self._sending.release()
        self._answers.put(answer)

    def _write(self) -> None:
        """The thread that sends what waits, and a sign of life now and then."""
        pause = self.store.deadline / 4
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
        self._record(pulls, start, time.monotonic())
        return True

    def _record(self, pulls: Sequence[PullRecord], start: float, end: float) -> None:
        for pull in pulls:
            self.store.record.add(pull._replace(start=start, end=end))


# ---- what it asks for, checked before anything is done about it


def validate_push(frame: Frame) -> tuple[torch.dtype, list[int]]:
    """The dtype and the numbers of elements of what is pushed in one frame. Raises Refused."""
    dtypes, sizes = {entry.dtype for entry in frame.entries}, [entry.elements for entry in frame.entries]
    if len(dtypes) != 1 or not max(dtypes) < len(DTYPES):
        raise Refused("what is pushed together is of one dtype")
    dtype = DTYPES[dtypes.pop()]
    if frame.payload != (8 * len(sizes) + 8 if frame.shared else sum(sizes) * dtype.itemsize):
        raise Refused(f"{frame.payload} bytes are pushed, where {sum(sizes)} elements of {dtype} belong")
    return dtype, sizes


def validate_init(frame: Frame) -> tuple[torch.dtype, list[tuple[str, int]]]:
    """The dtype, and (name, elements) of each part, that a worker initialises. Raises Refused."""
    number, parts = frame.metadata.get("dtype"), frame.metadata.get("parts")
    if not _is_count(number) or number >= len(DTYPES) or not isinstance(parts, list) or not parts:
        raise Refused("a worker initialises parts of one dtype")
    dtype, named = DTYPES[number], []
    for part in parts:
        name, elements = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= 512 or not _is_count(elements):
            raise Refused("a part is initialised by a short name and its number of elements")
        named.append((name, elements))
    size = sum(elements for _, elements in named) * dtype.itemsize
    if frame.payload not in (0, size):
        raise Refused(f"key {named[0][0]}: {frame.payload} bytes for {size} bytes of {dtype}")
    return dtype, named


def validate_rows(frame: Frame) -> tuple[int, int, int]:
    """The part, elements of a row, and round, of which a worker pulls rows. Raises Refused."""
    part, width, round_ = counts = [frame.metadata.get(name) for name in ("part", "width", "round")]
    if not all(map(_is_count, counts)) or not width or frame.payload % 8:
        raise Refused("rows are pulled by part, width, round and whole numbers")
    return part, width, round_


def validate_read(frame: Frame) -> list[tuple[int, float, float]]:
    """Which answers a worker has read in shared memory, and when it began and was done with each. Raises Refused."""
    read = frame.metadata.get("read")
    if not isinstance(read, list) or not all(
        isinstance(each, list) and [*map(type, each)] == [int, float, float] for each in read
    ):
        raise Refused("what was read is said by request, begin and end")
    return read


def _is_count(number: object) -> bool:
    """Whether it is a whole number, 0 or more."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
