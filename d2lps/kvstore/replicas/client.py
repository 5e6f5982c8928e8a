"""A worker's connection to the primary of a slot. It repeats pushes that a lost server may have had alone."""

import time
from collections.abc import Iterable

from d2lps.kvstore.errors import DataLost, ServerLost
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replication import View
from d2lps.kvstore.wire.frames import PUSHES, Frame, Op
from d2lps.kvstore.worker.client import Request, ServerClient
from d2lps.messages import text

SILENCE = 0.2  # seconds of silence after which it asks which server is the primary


class SlotClient(ServerClient):
    """The connection to slot ``number``; ``register`` knows the primary.

    A synchronous push that was answered counts in a round that may begin anew with another primary: it is kept until
    all members are known to have its round. One push of each part is kept: the next one counts only then.
    """

    greeting, pause, parting, patience = 1.0, 0.02, 3.0, 2.0  # in between a silent primary is replaced

    def __init__(self, number: int, register: Register | StoreRegister, rank: int, **options):
        self._register, self._view = register, 0
        self._kept: dict[int, tuple[int, Request]] = {}  # by part, with its round
        self.keys: Iterable = ()
        self.number = number
        until = time.monotonic() + options.get("deadline", 30.0)
        while not self._view:
            self._aim()
            if not self._view and time.monotonic() > until:
                raise ServerLost(text("store.no-view", slot=number), (number,))
        super().__init__(number, self.address, rank, **options)
        self._synchronous = self.welcome["kind"] == "dist_sync"

    def _aim(self) -> None:
        view = self._register.view(self.number)
        if view is not None and view.number > self._view:
            self._view, self.address = view.number, view.members[0][2]

    @property
    def seen(self) -> View:
        """The newest known view, with the numbers of its servers."""
        view = self._register.view(self.number)
        return View(view.number, tuple(number for number, *_ in view.members))

    def _connect(self, until: float) -> tuple:
        connected = super()._connect(until)
        self._heard = own_time()
        return connected

    def _live(self) -> None:
        """Give signs of life, and ask for the view if the primary is silent, or has not been asked for a while."""
        looked = alive = time.monotonic()
        while self._open and not self._lost:
            time.sleep(min(SILENCE, self.deadline / 8))
            silent = (self._pending or self._kept) and self._silent > SILENCE
            if silent or time.monotonic() - looked > self.deadline / 4:
                looked = time.monotonic()
                self._register.ask(self.number, self._told)
            if time.monotonic() - alive > self.deadline / 8 and self._sending.acquire(blocking=False):
                alive = time.monotonic()
                try:
                    if self._open:
                        self._send(self._channel, Request(Op.ALIVE))
                finally:
                    self._sending.release()

    def _told(self, view: View) -> None:
        """Take the answer of the register. If there is a new primary, the thread that listens connects to it."""
        if view.number > self._view and view.members[0][2] != self.address:
            self._channel.close()

    def _server_lost(self, why: str) -> DataLost:
        keys = tuple(self.keys)
        names = ", ".join(map(repr, keys[:8])) + (", …" if len(keys) > 8 else "")
        return DataLost(text("store.data-lost", slot=self.number, why=why, keys=names), (self.number,), keys)

    # ---- pushes that are kept

    def _finish(self, request: Request, frame: Frame) -> None:
        if request.op in PUSHES or request.op == Op.PULL:
            if frame.op == Op.DATA:
                self._committed(request)
            elif request.counted is True:
                self._keep(request)
        super()._finish(request, frame)

    def _forgotten(self, request: Request) -> None:
        if request.op in PUSHES and request.counted is True and request.answer is None:
            self._keep(request)  # it counts, although what it pulls did not come

    def _keep(self, request: Request) -> None:
        """Keep a copy: the caller may change the tensors when its push returns."""
        if not self._synchronous:
            return  # it was answered when it was committed
        parts, rounds = request.entries["part"].tolist(), request.entries["round"].tolist()
        if all(self._kept.get(part, (0, None))[0] >= round_ for part, round_ in zip(parts, rounds, strict=True)):
            return  # it was sent again, and answered again
        kept = Request(Op.PUSH, request.entries, payload=memoryview(bytearray(request.payload)), number=request.number)
        kept.counted = True
        kept.done.set()
        with self._state:
            for part, round_ in zip(parts, rounds, strict=True):
                self._kept[part] = round_, kept

    def _committed(self, request: Request) -> None:
        if self._kept:
            entries = request.entries
            with self._state:
                for part, round_ in zip(entries["part"].tolist(), entries["round"].tolist(), strict=True):
                    if self._kept.get(part, (round_ + 1,))[0] <= round_:
                        del self._kept[part]

    def _unanswered(self) -> list[Request]:
        again = [request for _, request in self._kept.values()]
        self._pending |= {request.number: request for request in again}
        return super()._unanswered()
