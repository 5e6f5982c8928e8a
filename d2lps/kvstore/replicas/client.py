"""A worker's connection to a slot: to whichever server is its primary. What may be lost is kept, and sent again."""

import time
from collections.abc import Iterable

from d2lps.kvstore.errors import DataLost, Diverged, ServerLost, Timeout
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replication import View
from d2lps.kvstore.wire.frames import AGAIN, PUSHES, Frame, Op
from d2lps.kvstore.worker.client import Request, ServerClient
from d2lps.messages import text

SILENCE = 0.2  # seconds after which it looks whether another server is the primary now


class SlotClient(ServerClient):
    """The connection to slot ``number``, of which ``register`` knows the primary.

    A synchronous push that was answered counts in a round that may begin anew with another primary: it is kept, until
    it is known that its round is on all members. One of each part is: the next one counts when that is so.
    """

    greeting, pause, parting, patience = 1.0, 0.02, 3.0, 2.0  # a backup that has heard nothing takes over in between

    def __init__(self, number: int, register: Register | StoreRegister, rank: int, **options):
        self._register, self._view = register, 0
        self._kept: dict[int, tuple[int, Request]] = {}  # by part, with its round
        self._staged: list[Request] = []  # what is loaded, until that is committed
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
        """The newest view that can be told, with the numbers of its servers."""
        view = self._register.view(self.number)
        return View(view.number, tuple(number for number, *_ in view.members))

    def _connect(self, until: float) -> tuple:
        connected = super()._connect(until)
        self._heard = own_time()
        return connected

    def _live(self) -> None:
        """Also: a primary that says nothing may be none any more; and one that nobody asks, for as long."""
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
        """The register's answer: where another one is the primary, who listens connects anew."""
        if view.number > self._view and view.members[0][2] != self.address:
            self._channel.close()

    def _server_lost(self, why: str) -> DataLost:
        keys = tuple(self.keys)
        names = ", ".join(map(repr, keys[:8])) + (", …" if len(keys) > 8 else "")
        return DataLost(text("store.data-lost", slot=self.number, why=why, keys=names), (self.number,), keys)

    def _diverged(self, error: Diverged) -> Diverged:
        """In the reader's words; a server knows a part by the name of its key, and which part it is."""
        names = [f"{name} " for name in error.keys]
        keys = tuple(key for key in self.keys if any(name.startswith(f"{key!r} ") for name in names))
        one, other = error.servers
        said = {"one": one, "other": other, "slot": self.number, "keys": ", ".join(map(repr, keys))}
        return Diverged(text("store.diverged", **said), error.servers, keys)

    # ---- what is kept

    def _finish(self, request: Request, frame: Frame) -> None:
        if isinstance(request.error, Diverged):
            request.error = self._diverged(request.error)
        if request.op in PUSHES or request.op == Op.PULL:
            if frame.op == Op.DATA:
                self._committed(request)
            elif request.counted is True:
                self._keep(request)
        elif request.op == Op.RESTORE and frame.op == Op.OK:
            self._staged.append(request)
        elif request.op == Op.COMMIT and not isinstance(request.error, Timeout):  # it will be asked again
            self._staged.clear()
        super()._finish(request, frame)

    def _forgotten(self, request: Request) -> None:
        if request.op in PUSHES and request.counted is True and request.answer is None:
            self._keep(request)  # what it pulls did not come, and it counts

    def _keep(self, request: Request) -> None:
        """As it is now: who pushed it may change it when this returns."""
        if not self._synchronous:
            return  # it was answered when it was committed
        parts, rounds = request.entries["part"].tolist(), request.entries["round"].tolist()
        if all(self._kept.get(part, (0, None))[0] >= round_ for part, round_ in zip(parts, rounds, strict=True)):
            return  # it was sent again, and answered again
        entries = request.entries.copy()
        entries["finite"] |= AGAIN
        kept = Request(Op.PUSH, entries, payload=memoryview(bytearray(request.payload)), number=request.number)
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
        again = [request for _, request in self._kept.values()] + self._staged
        self._pending |= {request.number: request for request in again}
        return super()._unanswered()
