"""A worker at a server: what it may ask for, what is done about it, and what it is answered.

What comes is read in one thread, what is answered written in another: answers wait in no queue of copies, they name
values, which are never changed. What cannot be done is an error to this worker alone.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from d2lps.kvstore import threads
from d2lps.kvstore.codec import decode, layout, piece
from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.record import PullRecord, PushRecord
from d2lps.kvstore.server.requests import (
    read_optimizer,
    validate_barrier,
    validate_init,
    validate_push,
    validate_read,
    validate_rows,
    validate_state,
)
from d2lps.kvstore.server.shard import Reply, Snapshot
from d2lps.kvstore.server.shard_store import ShardStore
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import NOTHING, PUSHES, Broken, Frame, Op, raw
from d2lps.units import is_count

log = logging.getLogger("d2lps.kvstore.server")
ANSWERS, SMALL = 16, 1024  # that a worker has not taken yet; bytes of a payload that is sent without ado
STATE = 8 << 30  # most bytes of what is remembered of one part


class WorkerSession:
    """Worker ``rank`` at ``channel`` of server ``number``.

    ``ended(session, why, left, silent)`` is called when it has gone. ``left``: it has said goodbye; ``silent``: it will
    not come back.
    """

    def __init__(
        self, store: ShardStore, channel: Channel, rank: int, incarnation: str, ended: Callable, number: int = 0
    ):
        self.store, self.channel, self.rank, self.incarnation, self.number = store, channel, rank, incarnation, number
        self.heard, self.open = own_time(), True
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
            self.channel.skip(frame)  # what of it was not taken: the next frame comes after it
            self._error(frame, self._named(frame.op, error))

    def _named(self, op: Op, error: Exception) -> KVError:
        """What the worker is told. What nobody has foreseen is told here, too, and there only what it was."""
        if isinstance(error, KVError):
            return error
        what = f"server {self.number} failed at {op.name.lower()}"
        log.error("%s of worker %d", what, self.rank, exc_info=error)
        return KVError(f"{what}: {type(error).__name__}: {error}")

    # ---- what it may ask for: a method for each Op

    def on_init(self, frame: Frame) -> None:
        """Several parts of one dtype; the values come from worker 0."""
        dtype, parts = validate_init(frame)
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
        if not self.on_pull(frame):
            self._ok(frame)

    def _count(self, frame: Frame) -> None:
        """Several parts that are pushed at once; those that are counted already are read and let go."""
        start = time.monotonic()
        dtype, sizes, new = self._admit(frame)
        if frame.shared:
            tensors, start = self._shared_push(frame, dtype)
        else:
            room = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(room))
            tensors = room.split(sizes) if len(sizes) > 1 else [room]
        own = len(tensors) == 1 and not frame.shared  # a piece of a frame would keep all of it
        pushes = [(entry, tensor) for entry, fresh, tensor in zip(frame.entries, new, tensors, strict=True) if fresh]
        if not pushes:
            return
        finite = [
            self.store.check_finite(self.rank, entry.part, entry.round, tensor, bool(entry.finite & 1))
            for entry, tensor in pushes
        ]
        end = time.monotonic()
        with self._counting(frame, [entry.part for entry, _ in pushes]):
            for (entry, tensor), well in zip(pushes, finite, strict=True):
                if self.store.record:
                    self.store.record.add(PushRecord(entry.part, self.rank, entry.round, start, end))
                self.store.push(self.rank, entry.part, entry.round, tensor, well, own)

    def _counting(self, frame: Frame, numbers: list[int]) -> AbstractContextManager:
        return self.store.counting(self.rank, numbers)

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

    def on_pull(self, frame: Frame, *since: object) -> bool:
        """Several parts at once, answered when the last of them may be read; whether that was so at once.

        ``since``: what the store is to know of when the call began.
        """
        if not frame.entries:
            raise Refused("a pull says what it pulls")

        def give(snapshots: list[Snapshot]) -> None:
            values, pulls = [snapshot.value for snapshot in snapshots], []
            if self.store.record:
                pulls = [
                    PullRecord(entry.part, self.rank, entry.round, snapshot.version)
                    for entry, snapshot in zip(frame.entries, snapshots, strict=True)
                ]
            offsets, (load, loads) = self._share(frame, values, pulls), loads_of(snapshots)
            if offsets is not None:
                self._answer(Op.DATA, frame.number, loads, raw(torch.tensor(offsets)), True, load)
            else:
                payload = raw(values[0] if len(values) == 1 else torch.cat(values))
                self._answer(Op.DATA, frame.number, loads, payload, False, load, pulls)

        wanted = [(entry.part, entry.round) for entry in frame.entries]
        return self.store.pull(self.rank, wanted, self._reply(frame, give), *since)

    def _reply(self, frame: Frame, give: Callable[[list[Snapshot]], None]) -> Reply:
        """What a pull ends with, perhaps in the thread of another worker, which hears nothing of what fails here."""

        def reply(snapshots: list[Snapshot] | KVError) -> None:
            try:
                if isinstance(snapshots, KVError):
                    raise snapshots
                give(snapshots)
            except Exception as error:
                self._error(frame, self._named(frame.op, error))

        return reply

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
        part, width, round_ = validate_rows(frame)
        rows = torch.empty(frame.payload // 8, dtype=torch.int64)
        self.channel.into(frame, raw(rows))

        def give(snapshots: list[Snapshot]) -> None:
            chosen = snapshots[0].value.reshape(-1, width)[rows].reshape(-1)
            load, loads = loads_of(snapshots)
            self._answer(Op.DATA, frame.number, loads, raw(chosen), load=load)

        self.store.shard(part).validate_rows(width, rows)
        self.store.pull(self.rank, [(part, round_)], self._reply(frame, give))

    def on_barrier(self, frame: Frame) -> None:
        """In a thread of its own, so that this worker is still heard while it waits."""
        name, number, note = validate_barrier(frame)
        if frame.metadata.get("coming") is True:
            self._require_first("does what the others wait for")
            self.store.barrier(self.rank, number, name, coming=True)
            self._ok(frame)
            return

        def wait() -> None:
            try:
                self._ok(frame, {"note": self.store.barrier(self.rank, number, name, note)})
            except Exception as error:
                self._error(frame, self._named(frame.op, error))

        threading.Thread(target=wait, daemon=True, name=f"d2lps barrier of worker {self.rank}").start()

    def on_optimizer(self, frame: Frame) -> None:
        """From worker 0, to have it ready; all workers have it taken."""
        number = frame.metadata.get("number")
        if number is not None and not is_count(number):
            raise Refused("an optimizer has a number")
        if frame.metadata.get("take") is True:
            self.store.take_optimizer(self.rank, number)
        else:
            self._require_first("sets the optimizer of all")
            self.store.set_optimizer(self.rank, read_optimizer(frame, "numbers"), number)
        self._ok(frame)

    def on_status(self, frame: Frame) -> None:
        """A page of the record, from some entry on."""
        start = frame.metadata.get("from", 0)
        if self.store.record is None:
            raise Refused("this store keeps no record: create it with record=True")
        if not is_count(start):
            raise Refused("the record is told from a number on")
        self._ok(frame, self.store.record.as_metadata(self.store.updates and self.store.updates.rule, start))

    def on_state(self, frame: Frame) -> None:
        """All is kept for a save as it is now, or let go; or some bytes are read of a part of what is kept.

        Without a part: which pushes are in it, a number for each part and worker.
        """
        self._require_first("saves")
        save, keep, part, start = validate_state(frame)
        if keep is not None:
            self.store.keep(self.rank, save, keep)
            self._ok(frame)
            return
        if part is None:
            pushes = torch.tensor(self.store.kept_pushes(save)).view(-1)
            self._answer(Op.DATA, frame.number, payload=raw(pushes))
            return
        state = self.store.kept(save, part)
        self._answer(Op.DATA, frame.number, layout(state), piece(state, start))

    def on_restore(self, frame: Frame) -> None:
        """What is loaded into one part; it counts from the COMMIT of this load on, or never."""
        self._require_first("loads")
        load, optimizer = frame.metadata.get("load"), read_optimizer(frame, "rule_numbers")
        if not is_count(load) or frame.payload > STATE:
            raise Refused("what is loaded has a number, and comes one part of a key at a time")
        shard = self.store.shard(frame.metadata.get("part"))
        room = memoryview(bytearray(frame.payload))
        self.channel.into(frame, room)
        self.store.stage(self.rank, load, shard.number, decode(frame.metadata, room), optimizer)
        self._ok(frame, {"pushes": self.store.pushes(shard.number)})  # which stay so until the load is over

    def on_commit(self, frame: Frame) -> None:
        """All parts of a load count now, whichever worker says so; or worker 0 has them dropped.

        Of other workers that says that worker 0 was lost before anybody heard of its load.
        """
        load, parts = frame.metadata.get("load"), frame.metadata.get("parts")
        if frame.metadata.get("drop") is True and (load is None or is_count(load)):
            if self.rank:
                self.store.given_up = True
            else:
                self.store.drop(self.rank, load)
        elif is_count(load) and is_count(parts):
            self.store.commit(self.rank, load, parts, read_optimizer(frame, "numbers"))
        else:
            raise Refused("what is loaded has a number, and a number of parts")
        self._ok(frame)

    def _require_first(self, what: str) -> None:
        if self.rank:
            raise Refused(f"worker 0 {what}")

    # ---- answering

    def _ok(self, frame: Frame, metadata: dict | None = None) -> None:
        self._answer(Op.OK, frame.number, metadata)

    def _error(self, frame: Frame, error: KVError) -> None:
        """``counted``: which entries of a push are counted all the same, now or when they came before."""
        shards, entries = self.store.shards, frame.entries if frame.op in PUSHES else ()
        counted = [
            place
            for place, entry in enumerate(entries)
            if entry.part < len(shards) and entry.round <= shards[entry.part].rounds[self.rank]
        ]
        metadata = {"kind": type(error).__name__, "sentence": str(error)}
        metadata |= {name: list(getattr(error, name, ())) for name in ("ranks", "servers", "keys")}
        self._answer(Op.ERROR, frame.number, metadata | {"counted": counted})

    def _answer(
        self,
        op: Op,
        number: int,
        metadata: dict | None = None,
        payload: memoryview = NOTHING,
        shared: bool = False,
        load: int = 0,
        pulls: Sequence[PullRecord] = (),
    ) -> None:
        answer = (op, number, (), metadata, payload, shared, load), pulls
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


def loads_of(snapshots: Sequence[Snapshot]) -> tuple[int, dict | None]:
    """What a worker is told of the loads that they are of: one number for all, in the header, or one for each of them.

    After 255 it begins again at 1: nobody pulls for so long.
    """
    loads = [snapshot.load and (snapshot.load - 1) % 255 + 1 for snapshot in snapshots]
    return (max(loads, default=0), None) if len({*loads}) < 2 else (0, {"loads": loads})
