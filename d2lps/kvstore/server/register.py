"""The register of views: a small memory with compare-and-set, in this process or in the process of the rendezvous."""

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist

from d2lps.kvstore.errors import ServerLost
from d2lps.kvstore.replication import View
from d2lps.messages import text

Tell = Callable[[View], object]
NOBODY = View(0, ())
SECONDS = 1.0  # that a worker waits for an answer of the register; then it uses the last one
BEGINNING = 10.0  # seconds until the first views are registered, at most
PAUSE = 0.1  # seconds after a question that failed
MOST = 1000  # questions that wait, at most


class Register:
    """The views of all slots, for servers and workers of one process."""

    def __init__(self):
        self._views: dict[int, View] = {}
        self._lock = threading.Lock()

    def begin(self, slot: int, members: tuple) -> None:
        """Register the first view of a slot."""
        self._views[slot] = View(1, members)

    def view(self, slot: int) -> View | None:
        """Return the newest view, or None if the register does not answer."""
        return self._views.get(slot)

    def ask(self, slot: int, tell: Tell) -> None:
        """Call ``tell`` with the newest view, now or later, or never."""
        if view := self.view(slot):
            tell(view)

    def propose(self, slot: int, view: View, tell: Tell) -> None:
        """Register ``view`` if it follows the present one; then do as :meth:`ask`."""
        with self._lock:
            if self._views[slot].number + 1 == view.number:
                self._views[slot] = view
        self.ask(slot, tell)


class StoreRegister:
    """The views in a TCPStore, under ``d2lps/<run>/slot/<number>``.

    Only one thread asks: if the process of the store has ended or is stopped, no other thread waits. Then rounds go on,
    and no view changes. ``connect()`` returns a new TCPStore.
    """

    def __init__(self, connect: Callable[[], dist.Store], run: str):
        self._connect, self._run = connect, run
        self._known: dict[int, tuple[View, str]] = {}  # with the exact text in the store
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
        if self._wishes.qsize() < MOST:  # the question is repeated if there is no answer
            self._wishes.put((slot, None, tell))

    def propose(self, slot: int, view: View, tell: Tell) -> None:
        self._wishes.put((slot, view, tell))

    def leave(self) -> None:
        """Do nothing: the register needs no goodbye."""

    def close(self) -> None:
        self._wishes.put(None)

    def _key(self, slot: int) -> str:
        return f"d2lps/{self._run}/slot/{slot}"

    def _serve(self) -> None:
        store: dist.Store | None = None
        while (wish := self._wishes.get()) is not None:
            slot, proposed, tell = wish
            try:
                store = store or self._connect()
                before, written = self._read(store, slot)
                if proposed and before.number + 1 == proposed.number:
                    store.compare_set(self._key(slot), written, _written(proposed))
                    before, _ = self._read(store, slot)  # it may return the expected value, not the new one
            except Exception:  # the question is repeated, on a new connection: this one may be out of step
                store = None
                time.sleep(PAUSE)
                continue
            if before != NOBODY:
                tell(before)

    def _read(self, store: dist.Store, slot: int) -> tuple[View, str]:
        key = self._key(slot)
        if not store.check([key]):  # get() waits for a key that does not exist
            return NOBODY, ""
        written = store.get(key).decode()
        known = self._known.get(slot)
        if known is None or known[1] != written:
            said = json.loads(written)
            self._known[slot] = View(said["view"], as_name(said["members"])), written
        return self._known[slot]


def joined(run: str) -> StoreRegister:
    """Return the views in the TCPStore of the rendezvous, over a connection of this process."""
    where, seconds = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timedelta(seconds=5)
    return StoreRegister(lambda: dist.TCPStore(*where, None, False, seconds, wait_for_workers=False), run)


def _written(view: View) -> str:
    """Return a unique text for a view: of two servers that propose the same view, only one finds its own."""
    return json.dumps({"view": view.number, "members": view.members, "by": secrets.token_hex(8)})


def as_name(said: Any) -> Any:
    """Return tuples for the lists that JSON makes of them."""
    return tuple(map(as_name, said)) if isinstance(said, list) else said
