"""A worker at a server: what it may ask for, and how it is answered."""

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from d2lps.kvstore.asked import declared, layout, read, whole
from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.held import Found
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import Pulled, Pushed
from d2lps.kvstore.states import packed, put_back, state_of, unpacked
from d2lps.kvstore.wire import DTYPES, Broken, Channel, Entry, Frame, Op, raw

if TYPE_CHECKING:
    from d2lps.kvstore.server import Server

PART = 8 << 30  # most bytes of what is remembered of one part
ANSWERS, SMALL = 16, 1024  # that a worker has not taken yet; bytes of a payload that is sent without ado


class Connected:
    """A connected worker: one thread reads what it asks for, one writes the answers."""

    def __init__(self, server: "Server", channel: Channel, rank: int, incarnation: str):
        self.server, self.channel, self.rank, self.incarnation = server, channel, rank, incarnation
        self.table, self.heard, self.open = server.table, time.monotonic(), True
        self.working = False  # who waits here for others says nothing meanwhile, and is not lost
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._sending = threading.Lock()
        # By request: values in shared memory that the worker still reads, and what to record once it has.
        self._unread: dict[int, tuple[list[torch.Tensor], list[Pulled]]] = {}
        self._why, self._silent = "its connection has ended", False
        self._handlers = {Op.PUSH: self._push, Op.PULL: self._pull, Op.INIT: self._init, Op.BARRIER: self._barrier,
                          Op.OPTIMIZER: self._optimizer, Op.ROWS: self._rows, Op.READ: self._read,
                          Op.STATUS: self._status, Op.STATE: self._state, Op.RESTORE: self._restore}  # fmt: skip

    def close(self) -> None:
        self.open = False
        self._answers.put(None)
        self.channel.close()

    def end(self, why: str) -> None:
        self._why, self._silent = why, True
        self.close()

    def run(self) -> None:
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
                self._ok(frame.number)
                time.sleep(0.01)
            self.close()
            self.channel.lent and self.channel.lent.close()  # which nobody but this thread uses
            self.server.gone(self, "it said goodbye" if left else self._why, left, self._silent)

    def _next(self) -> Frame | None:
        while self.open:
            if self._answers.qsize() > ANSWERS:  # what it asks for beyond stays in the socket
                time.sleep(0.005)
            elif (frame := self.channel.receive(idle=True)) is not None:
                self.heard = time.monotonic()
                return frame
        return None

    def _write(self) -> None:
        pause = self.table.deadline / 4
        while self.open:
            try:
                answer = self._answers.get(timeout=pause)
            except queue.Empty:
                answer = ((Op.ALIVE, 0), [])
            if answer is None:
                continue
            with self._sending:
                sent = self._send(*answer)
            if not sent:
                return

    def _send(self, frame: tuple, pulls: Iterable[Pulled]) -> bool:
        start = time.monotonic()
        try:
            self.channel.send(*frame)
        except Broken:
            self.channel.close()
            return False
        self._remember(pulls, start, time.monotonic())
        return True

    def _remember(self, pulls: Iterable[Pulled], start: float, end: float) -> None:
        for pull in pulls if self.table.record else ():
            self.table.record.add(pull._replace(start=start, end=end))

    def _answer(self, *frame, pulls: Sequence[Pulled] = ()) -> None:
        # What is small goes out at once, where nobody need wait for it: to wake another thread takes longer.
        small = len(frame) < 5 or len(frame[4]) <= SMALL
        if small and self._answers.empty() and self._sending.acquire(blocking=False):
            try:
                if self.channel.roomy:
                    self._send(frame, pulls)
                    return
            finally:
                self._sending.release()
        self._answers.put((frame, pulls))

    # ---- what it may ask for

    def _handle(self, frame: Frame) -> None:
        handler = self._handlers.get(frame.op)
        if handler is None:
            self.channel.skip(frame)
            if frame.op in (Op.ALIVE, Op.BYE):
                return
            self._error(frame.number, Refused(f"a worker may not ask a server for {frame.op.name}"))
            return
        try:
            handler(frame)
        except KVError as error:
            self._error(frame.number, error)

    def _error(self, number: int, error: KVError) -> None:
        said = {"kind": type(error).__name__, "sentence": str(error), "ranks": list(getattr(error, "ranks", ()))}
        self._answer(Op.ERROR, number, (), said)

    def _ok(self, number: int, said: dict | None = None) -> None:
        self._answer(Op.OK, number, (), said)

    def _init(self, frame: Frame) -> None:
        """Several parts of one dtype; the values come from worker 0."""
        try:
            dtype, parts = declared(frame)
        except KVError:
            self.channel.skip(frame)
            raise
        sizes = [elements for _, elements in parts]
        values: Sequence[torch.Tensor | None] = [None] * len(parts)
        if frame.payload or not sum(sizes) and self.rank == 0:
            room = self.table.make(sum(sizes), dtype)
            self.channel.into(frame, raw(room))
            values = [piece.clone() for piece in room.split(sizes)] if len(parts) > 1 else [room]
        numbers = [self.table.init(self.rank, name, elements, dtype, value)
                   for (name, elements), value in zip(parts, values, strict=True)]  # fmt: skip
        self._ok(frame.number, {"parts": numbers})

    def _push(self, frame: Frame) -> None:
        """Several parts at once; those that are counted already are read and let go."""
        start = time.monotonic()
        try:
            dtype, sizes = layout(frame)
            new = [self.table.room(self.rank, entry.part, entry.elements, dtype, entry.round)
                   for entry in frame.entries]  # fmt: skip
        except KVError:
            self.channel.skip(frame)
            raise
        if frame.shared:
            given, start = self._lent(frame, dtype)
        else:
            room = torch.empty(sum(sizes), dtype=dtype)
            self.channel.into(frame, raw(room))
            given = room.split(sizes) if len(sizes) > 1 else [room]
        own = len(given) == 1 and not frame.shared  # a piece of a frame would keep all of it
        todo = [(entry, tensor) for entry, fresh, tensor in zip(frame.entries, new, given, strict=True) if fresh]
        finite = [self.table.taken(self.rank, entry.part, entry.round, tensor, bool(entry.finite))
                  for entry, tensor in todo]  # fmt: skip
        end = time.monotonic()
        for (entry, tensor), well in zip(todo, finite, strict=True):
            if self.table.record:
                self.table.record.add(Pushed(entry.part, self.rank, entry.round, start, end))
            self.table.push(self.rank, entry.part, entry.round, tensor, well, own)
        self._ok(frame.number)

    def _lent(self, frame: Frame, dtype: torch.dtype) -> tuple[list[torch.Tensor], float]:
        """The tensors of a push that lie in the worker's memory, and since when it has written them there."""
        told = torch.empty(len(frame.entries) + 1, dtype=torch.int64)
        self.channel.into(frame, raw(told))
        *offsets, start = told.tolist()
        lent = self.channel.lent
        found = [lent and lent.tensor(offset, entry.elements, dtype)
                 for entry, offset in zip(frame.entries, offsets, strict=True)]  # fmt: skip
        if any(tensor is None for tensor in found):
            raise Refused("what is pushed lies where this worker lends no memory")
        return found, start / 1e9

    def _read(self, frame: Frame) -> None:
        """The worker has copied what it was given in shared memory: when it began, and when it was done."""
        for number, start, end in read(frame):
            _, pulls = self._unread.pop(number, (None, ()))
            self._remember(pulls, start, end)

    def _status(self, frame: Frame) -> None:
        if self.table.record is None:
            raise Refused("this store keeps no record: create it with record=True")
        self._ok(frame.number, self.table.record.said(self.table.updates and self.table.updates.rule))

    def _pull(self, frame: Frame) -> None:
        """Several parts at once, answered together when the last of them may be read."""
        if not frame.entries:
            raise Refused("a pull says what it pulls")

        def reply(found: "list[Found] | KVError") -> None:
            if isinstance(found, KVError):
                self._error(frame.number, found)
                return
            values = [one.value for one in found]
            dtype = DTYPES.index(values[0].dtype)
            entries = [(entry.part, dtype, 1, one.value.numel(), one.version)
                       for entry, one in zip(frame.entries, found, strict=True)]  # fmt: skip
            pulls = [Pulled(entry.part, self.rank, entry.round, one.version, 0.0, 0.0)
                     for entry, one in zip(frame.entries, found, strict=True)] if self.table.record else []  # fmt: skip
            offsets = self._shared(frame, values, pulls)
            if offsets is not None:
                self._answer(Op.DATA, frame.number, entries, None, raw(torch.tensor(offsets)), True)
            else:
                whole = values[0] if len(values) == 1 else torch.cat(values)
                self._answer(Op.DATA, frame.number, entries, None, raw(whole), pulls=pulls)

        self.table.pull(self.rank, [(entry.part, entry.round) for entry in frame.entries], reply)

    def _shared(self, frame: Frame, values: list[torch.Tensor], pulls: list[Pulled]) -> list[int] | None:
        """Where ``values`` lie in shared memory, which stays as it is until the worker has read them."""
        # Who never says that it has read gets its bytes through the socket from here on.
        if not frame.shared or self.server.arena is None or len(self._unread) > 2 * len(self.table.parts):
            return None
        offsets = [self.server.arena.offset(value) for value in values]
        if None in offsets:
            return None
        self._unread[frame.number] = values, pulls
        return offsets

    def _optimizer(self, frame: Frame) -> None:
        rule, numbers = frame.said.get("rule"), frame.said.get("numbers")
        if not isinstance(numbers, dict) and rule is not None:
            raise Refused("an optimizer is a name and numbers")
        if self.rank:
            raise Refused("worker 0 sets the optimizer of all")
        self.table.optimizer(self.rank, Optimizer.read(rule, numbers) if rule is not None else None)
        self._ok(frame.number)

    def _state(self, frame: Frame) -> None:
        said, payload = packed(state_of(self.table.part(frame.said.get("part"))))
        self._answer(Op.DATA, frame.number, (), said, payload)

    def _restore(self, frame: Frame) -> None:
        if self.rank or frame.payload > PART:
            self.channel.skip(frame)
            raise Refused("worker 0 loads, and a part of a key at a time")
        room = memoryview(bytearray(frame.payload))
        self.channel.into(frame, room)
        put_back(self.table.part(frame.said.get("part")), unpacked(frame.said, room))
        self._ok(frame.number)

    def _barrier(self, frame: Frame) -> None:
        """In a thread of its own, so that this worker is still heard while it waits."""
        def wait() -> None:
            try:
                self.table.barrier(self.rank, frame.said["round"])
                self._ok(frame.number)
            except KVError as error:
                self._error(frame.number, error)

        if not isinstance(frame.said.get("round"), int):
            raise Refused("a barrier has a number")
        threading.Thread(target=wait, daemon=True, name=f"d2lps barrier of worker {self.rank}").start()

    def _rows(self, frame: Frame) -> None:
        """Some rows of one part, ``width`` elements each, in the order of the indices that follow."""
        part, width, round_ = (frame.said.get(name) for name in ("part", "width", "round"))
        if not (whole(part) and whole(width) and whole(round_)) or not width or frame.payload % 8:
            self.channel.skip(frame)
            raise Refused("rows are pulled by part, width, round and whole numbers")
        rows = torch.empty(frame.payload // 8, dtype=torch.int64)
        self.channel.into(frame, raw(rows))

        def reply(what: "list[Found] | KVError") -> None:
            if isinstance(what, KVError):
                self._error(frame.number, what)
                return
            found = what[0].value.reshape(-1, width)[rows].reshape(-1)
            entry = Entry(part, DTYPES.index(found.dtype), 1, found.numel(), what[0].version)
            self._answer(Op.DATA, frame.number, [entry], None, raw(found))

        self.table.rows(part, width, rows)
        self.table.pull(self.rank, [(part, round_)], reply)

