"""Who holds each slot: a small memory with compare-and-set, in this process or in that of the rendezvous."""

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue

import torch.distributed as dist

from d2lps.kvstore.errors import ServerLost
from d2lps.kvstore.replication import View
from d2lps.messages import text

Tell = Callable[[View], object]
NOBODY = View(0, ())
SECONDS = 1.0  # that a worker waits for the register's answer; then what it last said holds
BEGINNING = 10.0  # seconds in which the first views are there
PAUSE = 0.1  # seconds after a question that failed
MOST = 1000  # questions that wait


class Register:
    """The views of all slots, for servers and workers of one process."""

    def __init__(self):
        self._views: dict[int, View] = {}
        self._lock = threading.Lock()

    def begin(self, slot: int, members: tuple) -> None:
        """The first view of a slot."""
        self._views[slot] = View(1, members)

    def view(self, slot: int) -> View | None:
        """The newest; None where it cannot be told."""
        return self._views.get(slot)

    def ask(self, slot: int, tell: Tell) -> None:
        """``tell`` is called with the newest view, now or later, or never."""
        if view := self.view(slot):
            tell(view)

    def propose(self, slot: int, view: View, tell: Tell) -> None:
        """Make it ``view``, if that follows the one that is there; then as :meth:`ask`."""
        with self._lock:
            if self._views[slot].number + 1 == view.number:
                self._views[slot] = view
        self.ask(slot, tell)

    def close(self) -> None:
        """Nothing more is asked."""


class StoreRegister:
    """The views in a TCPStore, under ``d2lps/<run>/slot/<number>``.

    One thread asks: where the store's process has gone or stands still, that thread waits, and nobody else does. Then
    rounds go on, and no view changes. ``connect()`` gives a TCPStore that nobody else uses.
    """

    def __init__(self, connect: Callable[[], dist.Store], run: str):
        self._connect, self._run, self._store = connect, run, None
        self._known: dict[int, tuple[View, str]] = {}  # with the very text in the store
        self._wishes: SimpleQueue[tuple | None] = SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="d2lps register of views").start()

    def begin(self, slot: int, members: tuple) -> None:
        begun = threading.Event()
        self._wishes.put((slot, View(1, members), lambda view: begun.set()))
        if not begun.wait(BEGINNING):
            raise ServerLost(text("store.no-view", slot=slot), (slot,))

    def view(self, slot: int) -> View | None:
        heard = threading.Event()
        self.ask(slot, lambda view: heard.set())
        heard.wait(SECONDS)
        known = self._known.get(slot)
        return known and known[0]

    def ask(self, slot: int, tell: Tell) -> None:
        if self._wishes.qsize() < MOST:  # who is not answered asks again
            self._wishes.put((slot, None, tell))

    def propose(self, slot: int, view: View, tell: Tell) -> None:
        self._wishes.put((slot, view, tell))

    def leave(self) -> None:
        """Nothing is to be said in the end."""

    def close(self) -> None:
        self._wishes.put(None)

    def _key(self, slot: int) -> str:
        return f"d2lps/{self._run}/slot/{slot}"

    def _serve(self) -> None:
        while (wish := self._wishes.get()) is not None:
            slot, proposed, tell = wish
            try:
                self._store = self._store or self._connect()
                before, written = self._read(slot)
                if proposed and before.number + 1 == proposed.number:
                    self._store.compare_set(self._key(slot), written, _written(proposed))
                    before, _ = self._read(slot)  # what it returns may be what was expected
            except Exception:  # no answer: who needs one asks again, and a connection may be half of a question behind
                self._store = None
                time.sleep(PAUSE)
                continue
            if before != NOBODY:
                tell(before)

    def _read(self, slot: int) -> tuple[View, str]:
        key = self._key(slot)
        if not self._store.check([key]):  # to get what is not there would wait
            return NOBODY, ""
        written = self._store.get(key).decode()
        known = self._known.get(slot)
        if known is None or known[1] != written:
            said = json.loads(written)
            self._known[slot] = View(said["view"], as_name(said["members"])), written
        return self._known[slot]


def joined(run: str) -> StoreRegister:
    """The views in the TCPStore of the rendezvous, over a connection of this process's own."""
    where, seconds = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timedelta(seconds=5)
    return StoreRegister(lambda: dist.TCPStore(*where, None, False, seconds, wait_for_workers=False), run)


def _written(view: View) -> str:
    """No two are the same: of two who propose alike, one only finds its own."""
    return json.dumps({"view": view.number, "members": view.members, "by": secrets.token_hex(8)})


def as_name(said: object) -> object:
    """What JSON has made lists of, as the tuples that they were."""
    return tuple(map(as_name, said)) if isinstance(said, list) else said
