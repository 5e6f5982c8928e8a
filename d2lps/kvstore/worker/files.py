"""What a distributed store does with files: servers keep what is saved, and have ready what is loaded.

What is kept is read by worker 0 in pieces: what is asked meanwhile is answered between two of them.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from d2lps.kvstore import codec
from d2lps.kvstore.calls import PAUSE, Interrupted
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer, said
from d2lps.kvstore.saving import Files
from d2lps.kvstore.values import KeySpec
from d2lps.kvstore.wire.frames import Op
from d2lps.kvstore.worker.client import Request, ServerClient
from d2lps.messages import text

BEGUN = "begun"  # what a call takes for itself that ends what has begun
Ask = Callable[[int, Request], None]
# Of each server and number of a part, how many pushes of each worker it has: -1 of who is lost.
Counts = dict[tuple[int, int], np.ndarray]


class DistFiles(Files):
    """A part of :class:`~d2lps.kvstore.worker.dist.DistStore`."""

    clients: Sequence[ServerClient]
    num_workers: int
    _open: dict
    _end_open: Callable
    _ask_all: Callable
    _send: Callable
    _loads = _saves = 0
    # What all servers are still to be told: that a load counts, or is dropped, or that an optimizer is taken.
    _begun: tuple | None = None

    def _load(self, path) -> None:
        self._end_begun()
        with self._calls.taking(opened := [*self._open]):  # another thread may be about to push the same again
            self._end_open([spec for spec in opened if spec in self._open])  # or it would count afterwards
        try:
            staged = super()._load(path)
        except WorkerLost as error:
            if 0 in error.ranks:  # and so nobody has heard of it
                with suppress(KVError):
                    self._ask_all(Op.COMMIT, {"drop": True})
            raise
        except (Interrupted, Timeout):
            if self.num_workers == 1:  # with others, some may go on with it
                self._told, self._begun = (None, None), self._dropped
            raise
        # All servers have it ready, and all workers say so: whoever is lost meanwhile, it counts on all of them.
        self._begun = Op.COMMIT, *staged
        self._tell(self._begun)

    def _keep(self, wanted: Callable | None) -> Iterator[tuple[KeySpec, State]]:
        self._end_begun()
        try:
            self._between_pushes("save", self._keep_now, self._let_go)
        except Exception:
            self._let_go()
            raise
        let_go = partial(self._let_go, self._saves)
        return kept([*self._keys.values()], {"save": self._saves}, partial(self._ask_aside, wanted), let_go)

    def _keep_now(self) -> Counts:
        self._saves += 1
        save = {"save": self._saves}
        self._ask_all(Op.STATE, save | {"keep": True})
        requests = {
            part.server: Request(Op.STATE, metadata=save | {"from": 0})
            for spec in [*self._keys.values()]  # another thread may init some
            if len(spec.parts) > 1
            for part, _ in spec.parts
        }
        self._send(requests.items())
        counted = {server: np.frombuffer(request.into, np.int64) for server, request in requests.items()}
        return {
            (server, number): pushes
            for server, counts in counted.items()
            for number, pushes in enumerate(counts.reshape(-1, self.num_workers))
        }

    def _between_pushes(self, what: str, attempt: Callable[[], Counts], undo: Callable[[], None]) -> None:
        """Have ``attempt`` made while nobody pushes; it says which pushes it found. Raises Refused.

        Another thread, here or elsewhere, may push a key of several parts just then: only some of them have it.
        """
        pushes, until = attempt(), time.monotonic() + self._patience
        while pushed := [spec.key for spec in [*self._keys.values()] if not is_whole(spec, pushes)]:
            undo()
            if time.monotonic() > until:
                raise Refused(text("store.pushed", key=repr(pushed[0]), what=what))
            time.sleep(2 * PAUSE)
            self._calls.current.require_wanted()
            pushes = attempt()

    def _ask_aside(self, wanted: Callable | None, server: int, request: Request) -> None:
        """For a save: in the call that waits for it, or beside all calls as long as it is ``wanted``."""
        if wanted is None:
            self._send([(server, request)])
            return
        wanted()
        client = self.clients[server]
        client.wait(client.ask(request), time.monotonic() + self._patience)

    def _let_go(self, save: int | None = None) -> None:
        """Of what is kept for a save; for the last one, if none is named."""
        with suppress(KVError):
            self._ask_all(Op.STATE, {"save": save or self._saves, "keep": False})

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None) -> tuple[dict, list[dict]]:
        """Every server takes its parts and looks at them; what makes them count is returned."""
        rule = said(optimizer)
        stage = partial(self._stage, states, {"rule": rule["rule"], "rule_numbers": rule["numbers"]})
        try:
            self._between_pushes("load", stage, self._drop)
            self._calls.current.require_wanted()
        except Exception:  # whatever it is, no push waits for it any more
            with suppress(KVError):  # what went wrong first is said
                self._drop()
            raise
        counts = Counter(part.server for spec, _ in states for part, _ in spec.parts)
        return {"load": self._loads} | rule, [{"parts": counts[client.number]} for client in self.clients]

    @property
    def _dropped(self) -> tuple:
        return Op.COMMIT, {"load": self._loads, "drop": True}, None

    def _drop(self) -> None:
        """Have all servers forget the last load."""
        self._begun = self._dropped
        self._tell(self._begun)

    def _tell(self, begun: tuple, until: float | None = None) -> None:
        """Say it to all servers, which may hear it twice. Nothing interrupts that."""
        refused = None
        try:
            self._ask_all(*begun, until)
        except Refused as error:  # it will never be
            refused = error
        if self._begun is begun:
            self._begun = None
        if refused:
            raise refused

    def _end_begun(self, until: float | None = None) -> None:
        """What has begun, and raised before all servers were told, is told before whatever comes next.

        Of several threads one does it, and the others wait for that: what they push and pull comes after it.
        """
        if begun := self._begun:
            with self._calls.taking((BEGUN,)):
                if begun is self._begun:  # else another thread has ended it
                    self._tell(begun, until)

    def _stage(self, states: list[tuple[KeySpec, State]], rule: dict) -> Counts:
        self._loads += 1  # what comes late of an attempt before is of another number
        found, load = {}, rule | {"load": self._loads}
        for spec, state in states:
            requests = []
            for part, number in spec.parts:
                metadata, payload = codec.encode(codec.cut(state, part.start, part.stop))
                metadata |= load | {"part": number}
                requests.append((part.server, Request(Op.RESTORE, metadata=metadata, payload=payload)))
            self._send(requests)
            for (server, request), (_, number) in zip(requests, spec.parts, strict=True):
                found[server, number] = np.array(request.answer.metadata["pushes"])
        return found


def is_whole(spec: KeySpec, pushes: Counts) -> bool:
    """Whether all parts of a key have the same pushes, of those who are lost to none of its servers."""
    found = np.array([pushes[part.server, number] for part, number in spec.parts if (part.server, number) in pushes])
    return len(found) < 2 or not ((found != found[0]) & (found.min(0) >= 0)).any()


def kept(keys: Iterable[KeySpec], save: dict, ask: Ask, let_go: Callable[[], None]) -> Iterator[tuple[KeySpec, State]]:
    """Of each key what was kept for a ``save``; ``ask(server, request)`` waits for the answer."""
    try:
        for spec in keys:
            parts = [_part(part.server, save | {"part": number}, ask) for part, number in spec.parts]
            yield spec, codec.joined(parts)
    finally:
        let_go()


def _part(server: int, which: dict, ask: Ask) -> State:
    first = Request(Op.STATE, metadata=which | {"from": 0})
    ask(server, first)
    layout, whole = first.answer.metadata, memoryview(first.into)
    size, at = codec.size(layout), len(whole)
    if at < size:
        whole = memoryview(bytearray(size))
        whole[:at] = first.into
    while at < size:
        request = Request(Op.STATE, metadata=which | {"from": at}, into=whole[at : at + codec.PIECE])
        ask(server, request)
        at += len(request.into)
    return codec.decode(layout, whole)
