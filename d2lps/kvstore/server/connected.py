"""A worker at a server: what it may ask for, and what is done about it."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import Pulled, Pushed
from d2lps.kvstore.server.answering import Answering
from d2lps.kvstore.server.asked import declared, layout, read, rows_of, whole
from d2lps.kvstore.server.held import Found, put_back, state_of
from d2lps.kvstore.states import packed, unpacked
from d2lps.kvstore.wire import Channel, Frame, Op, raw

if TYPE_CHECKING:
    from d2lps.kvstore.server.server import Server

PART = 8 << 30  # most bytes of what is remembered of one part


class Connected(Answering):
    """What a connected worker may ask for."""

    def __init__(self, server: "Server", channel: Channel, rank: int, incarnation: str):
        super().__init__(server, channel, rank, incarnation)
        # By request: values in shared memory that the worker still reads, and what to record once it has.
        self._unread: dict[int, tuple[list[torch.Tensor], list[Pulled]]] = {}
        self.handlers = {
            Op.PUSH: self._push,
            Op.PULL: self._pull,
            Op.PUSHPULL: self._pushpull,
            Op.INIT: self._init,
            Op.BARRIER: self._barrier,
            Op.OPTIMIZER: self._optimizer,
            Op.ROWS: self._rows,
            Op.READ: self._read,
            Op.STATUS: self._status,
            Op.STATE: self._state,
            Op.RESTORE: self._restore,
        }

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
        numbers = [
            self.table.init(self.rank, name, elements, dtype, value)
            for (name, elements), value in zip(parts, values, strict=True)
        ]
        self._ok(frame.number, {"parts": numbers})

    def _push(self, frame: Frame) -> None:
        self._count(frame)
        self._ok(frame.number)

    def _pushpull(self, frame: Frame) -> None:
        """As the two, one after the other; whoever must wait for others hears meanwhile that its push is counted."""
        self._count(frame)
        try:
            if not self._pull(frame):
                self._ok(frame.number)
        except KVError as error:
            self._error(frame.number, error, counted=True)

    def _count(self, frame: Frame) -> None:
        """Several parts that are pushed at once; those that are counted already are read and let go."""
        start = time.monotonic()
        try:
            dtype, sizes = layout(frame)
            new = [
                self.table.room(self.rank, entry.part, entry.elements, dtype, entry.round) for entry in frame.entries
            ]
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
        finite = [
            self.table.taken(self.rank, entry.part, entry.round, tensor, bool(entry.finite)) for entry, tensor in todo
        ]
        end = time.monotonic()
        for (entry, tensor), well in zip(todo, finite, strict=True):
            if self.table.record:
                self.table.record.add(Pushed(entry.part, self.rank, entry.round, start, end))
            self.table.push(self.rank, entry.part, entry.round, tensor, well, own)

    def _lent(self, frame: Frame, dtype: torch.dtype) -> tuple[list[torch.Tensor], float]:
        """The tensors of a push that lie in the worker's memory, and since when it has written them there."""
        told = torch.empty(len(frame.entries) + 1, dtype=torch.int64)
        self.channel.into(frame, raw(told))
        *offsets, start = told.tolist()
        lent = self.channel.lent
        found = [
            lent and lent.tensor(offset, entry.elements, dtype)
            for entry, offset in zip(frame.entries, offsets, strict=True)
        ]
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

    def _pull(self, frame: Frame) -> bool:
        """Several parts at once, answered together when the last of them may be read; whether that was so at once."""
        if not frame.entries:
            raise Refused("a pull says what it pulls")

        def reply(found: "list[Found] | KVError") -> None:
            if isinstance(found, KVError):
                self._error(frame.number, found, frame.op == Op.PUSHPULL)
                return
            values = [one.value for one in found]
            pulls = (
                [
                    Pulled(entry.part, self.rank, entry.round, one.version, 0.0, 0.0)
                    for entry, one in zip(frame.entries, found, strict=True)
                ]
                if self.table.record
                else []
            )
            offsets = self._shared(frame, values, pulls)
            if offsets is not None:
                self._answer(Op.DATA, frame.number, (), None, raw(torch.tensor(offsets)), True)
            else:
                whole = values[0] if len(values) == 1 else torch.cat(values)
                self._answer(Op.DATA, frame.number, (), None, raw(whole), pulls=pulls)

        return self.table.pull(self.rank, [(entry.part, entry.round) for entry in frame.entries], reply)

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
            self._answer(Op.DATA, frame.number, (), None, raw(found))

        rows_of(self.table.part(part), width, rows)
        self.table.pull(self.rank, [(part, round_)], reply)
