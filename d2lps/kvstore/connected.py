"""A worker at a server: what it may ask for, and how it is answered."""

import queue
import threading
import time
from typing import TYPE_CHECKING

import torch

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.held import Found
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.wire import DTYPES, NOTHING, Broken, Channel, Entry, Frame, Op, raw

if TYPE_CHECKING:
    from d2lps.kvstore.server import Server


class Connected:
    """A connected worker: one thread reads what it asks for, one writes the answers."""

    def __init__(self, server: "Server", channel: Channel, rank: int, incarnation: str):
        self.server, self.channel, self.rank, self.incarnation = server, channel, rank, incarnation
        self.table, self.heard, self.open = server.table, time.monotonic(), True
        self.working = False  # who waits here for others says nothing meanwhile, and is not lost
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._why, self._silent = "its connection has ended", False
        self._handlers = {Op.PUSH: self._push, Op.PULL: self._pull, Op.INIT: self._init, Op.BARRIER: self._barrier,
                          Op.OPTIMIZER: self._optimizer, Op.ROWS: self._rows}  # fmt: skip

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
        finally:  # whatever ends it, the others must not wait for it
            if left:
                self._ok(frame.number)
                time.sleep(0.01)
            self.close()
            self.server.gone(self, "it said goodbye" if left else self._why, left, self._silent)

    def _next(self) -> Frame | None:
        while self.open:
            frame = self.channel.receive(idle=True)
            if frame is not None:
                self.heard = time.monotonic()
                return frame
        return None

    def _write(self) -> None:
        pause = self.table.deadline / 4
        while self.open:
            try:
                answer = self._answers.get(timeout=pause)
            except queue.Empty:
                answer = (Op.ALIVE, 0)
            try:
                if answer is not None:
                    self.channel.send(*answer)
            except Broken:
                return

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
        self._answers.put((Op.ERROR, number, (), said))

    def _ok(self, number: int, said: dict | None = None) -> None:
        self._answers.put((Op.OK, number, (), said))

    def _init(self, frame: Frame) -> None:
        said = frame.said
        name, dtype, elements = said.get("name"), said.get("dtype"), said.get("elements")
        try:
            if not (isinstance(name, str) and 0 < len(name) <= 512):
                raise Refused("a key is a short string or a whole number")
            known = isinstance(dtype, int) and 0 <= dtype < len(DTYPES)
            if not (known and isinstance(elements, int) and elements >= 0):
                raise Refused(f"key {name}: no such dtype or number of elements")
            size = elements * DTYPES[dtype].itemsize
            if frame.payload not in (0, size):
                raise Refused(f"key {name}: {frame.payload} bytes for {elements} elements of {DTYPES[dtype]}")
        except KVError:
            self.channel.skip(frame)
            raise
        value = torch.empty(elements, dtype=DTYPES[dtype]) if frame.payload or not size and self.rank == 0 else None
        self.channel.into(frame, NOTHING if value is None else raw(value))
        part = self.table.init(self.rank, name, elements, DTYPES[dtype], value)
        self._ok(frame.number, {"part": part})

    def _push(self, frame: Frame) -> None:
        """Several parts at once; those that are counted already are read and let go."""
        try:
            dtype, sizes = _layout(frame)
            new = [self.table.room(self.rank, entry.part, entry.elements, dtype, entry.round)
                   for entry in frame.entries]  # fmt: skip
        except KVError:
            self.channel.skip(frame)
            raise
        room = torch.empty(sum(sizes), dtype=dtype)
        self.channel.into(frame, raw(room))
        given = room.split(sizes) if len(sizes) > 1 else [room]
        todo = [(entry, tensor) for entry, fresh, tensor in zip(frame.entries, new, given, strict=True) if fresh]
        finite = [self.table.taken(self.rank, entry.part, entry.round, tensor, bool(entry.finite))
                  for entry, tensor in todo]  # fmt: skip
        for (entry, tensor), well in zip(todo, finite, strict=True):
            self.table.push(self.rank, entry.part, entry.round, tensor, well)
        self._ok(frame.number)

    def _pull(self, frame: Frame) -> None:
        """Several parts at once, answered together when the last of them may be read."""
        found: list[Found | None] = [None] * len(frame.entries)
        left, lock = [len(found)], threading.Lock()

        def reply(place: int, what: "Found | KVError") -> None:
            with lock:
                if isinstance(what, KVError):
                    if left[0] > 0:
                        left[0] = -1
                        self._error(frame.number, what)
                    return
                found[place] = what
                left[0] -= 1
                if left[0]:
                    return
            entries = [Entry(entry.part, DTYPES.index(one.value.dtype), 1, one.value.numel(), one.version)
                       for entry, one in zip(frame.entries, found, strict=True)]  # fmt: skip
            values = [one.value for one in found]
            whole = values[0] if len(values) == 1 else torch.cat(values)
            self._answers.put((Op.DATA, frame.number, entries, None, raw(whole)))

        if len({self.table.dtype(entry.part) for entry in frame.entries}) > 1:
            raise Refused("what is pulled together is of one dtype")
        for place, entry in enumerate(frame.entries):
            self.table.pull(self.rank, entry.part, entry.round, lambda what, place=place: reply(place, what))
        if not found:
            self._ok(frame.number)

    def _optimizer(self, frame: Frame) -> None:
        numbers = frame.said.get("numbers")
        if not isinstance(numbers, dict):
            raise Refused("an optimizer is a name and numbers")
        self.table.optimizer(self.rank, Optimizer.read(frame.said.get("rule"), numbers))
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
        whole = all(isinstance(each, int) and each >= 0 for each in (part, width, round_))
        if not whole or not width or frame.payload % 8:
            self.channel.skip(frame)
            raise Refused("rows are pulled by part, width, round and whole numbers")
        rows = torch.empty(frame.payload // 8, dtype=torch.int64)
        self.channel.into(frame, raw(rows))

        def reply(what: "Found | KVError") -> None:
            if isinstance(what, KVError):
                self._error(frame.number, what)
                return
            found = what.value.reshape(-1, width)[rows].reshape(-1)
            entry = Entry(part, DTYPES.index(found.dtype), 1, found.numel(), what.version)
            self._answers.put((Op.DATA, frame.number, [entry], None, raw(found)))

        self.table.rows(part, width, rows)
        self.table.pull(self.rank, part, round_, reply)


def _layout(frame: Frame) -> tuple[torch.dtype, list[int]]:
    """The dtype and the numbers of elements of what is pushed together."""
    kinds, sizes = {entry.dtype for entry in frame.entries}, [entry.elements for entry in frame.entries]
    if len(kinds) != 1 or not max(kinds) < len(DTYPES):
        raise Refused("what is pushed together is of one dtype")
    dtype = DTYPES[kinds.pop()]
    if sum(sizes) * dtype.itemsize != frame.payload:
        raise Refused(f"{frame.payload} bytes are pushed, where {sum(sizes)} elements of {dtype} belong")
    return dtype, sizes
