"""Who holds each slot: a small memory with compare-and-set, in this process or in that of the rendezvous."""

import json
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from d2lps.kvstore.replication import View

Tell = Callable[[View], object]
SECONDS = 1.0  # that a worker waits for the register's answer; then what it last said holds


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
    rounds go on, and no view changes.
    """

    def __init__(self, store, run: str):
        self._store, self._run = store, run
        self._known: dict[int, tuple[View, str]] = {}  # with the very text in the store
        self._wishes: SimpleQueue[tuple | None] = SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="d2lps register of views").start()

    def begin(self, slot: int, members: tuple) -> None:
        self._store.set(self._key(slot), _written(View(1, members)))

    def view(self, slot: int) -> View | None:
        heard = threading.Event()
        self.ask(slot, lambda view: heard.set())
        heard.wait(SECONDS)
        known = self._known.get(slot)
        return known and known[0]

    def ask(self, slot: int, tell: Tell) -> None:
        self._wishes.put((slot, None, tell))

    def propose(self, slot: int, view: View, tell: Tell) -> None:
        self._wishes.put((slot, view, tell))

    def close(self) -> None:
        self._wishes.put(None)

    def _key(self, slot: int) -> str:
        return f"d2lps/{self._run}/slot/{slot}"

    def _serve(self) -> None:
        while (wish := self._wishes.get()) is not None:
            slot, proposed, tell = wish
            with suppress(Exception):  # no answer: who needs one asks again
                before = self._read(slot)
                if proposed and before and before[0].number + 1 == proposed.number:
                    self._store.compare_set(self._key(slot), before[1], _written(proposed))
                    before = self._read(slot)  # not what it returned: that may have been lost, and asked again
                if before:
                    tell(before[0])

    def _read(self, slot: int) -> tuple[View, str] | None:
        key = self._key(slot)
        if not self._store.check([key]):  # to get what is not there would wait
            return None
        text = self._store.get(key).decode()
        known = self._known.get(slot)
        if known is None or known[1] != text:
            said = json.loads(text)
            self._known[slot] = View(said["view"], as_name(said["members"])), text
        return self._known[slot]


def _written(view: View) -> str:
    """No two are the same: of two who propose alike, one only finds its own."""
    return json.dumps({"view": view.number, "members": view.members, "by": secrets.token_hex(8)})


def as_name(said: object) -> object:
    """What JSON has made lists of, as the tuples that they were."""
    return tuple(map(as_name, said)) if isinstance(said, list) else said
