"""What a distributed store does with files: servers keep what is saved, and have ready what is loaded.

What is kept is read by worker 0 in pieces: what is asked meanwhile is answered between two of them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from d2lps.kvstore import codec
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, WorkerLost
from d2lps.kvstore.optimizers import Optimizer, said
from d2lps.kvstore.saving import Files
from d2lps.kvstore.values import KeySpec
from d2lps.kvstore.wire.frames import Op
from d2lps.kvstore.worker.client import Request, ServerClient

Ask = Callable[[int, Request], None]


class DistFiles(Files):
    """A part of :class:`~d2lps.kvstore.worker.dist.DistStore`."""

    clients: Sequence[ServerClient]
    _open: dict
    _end_open: Callable
    _ask_all: Callable
    _send: Callable
    _loads = _saves = 0

    def _load(self, path) -> None:
        self._end_open([*self._open])  # or it would count afterwards
        try:
            staged = super()._load(path)
        except WorkerLost as error:
            if 0 in error.ranks:  # and so nobody has heard of it
                with suppress(KVError):
                    self._ask_all(Op.COMMIT, {"drop": True})
            raise
        # All servers have it ready, and all workers say so: whoever is lost meanwhile, it counts on all of them.
        self._ask_all(Op.COMMIT, *staged)

    def _keep(self, wanted: Callable | None) -> Iterator[tuple[KeySpec, State]]:
        self._saves += 1
        save = {"save": self._saves}
        try:
            self._ask_all(Op.STATE, save | {"keep": True})
        except KVError:
            self._let_go(save)
            raise
        return kept([*self._keys.values()], save, partial(self._ask_aside, wanted), partial(self._let_go, save))

    def _ask_aside(self, wanted: Callable | None, server: int, request: Request) -> None:
        """For a save: in the call that waits for it, or beside all calls as long as it is ``wanted``."""
        if wanted is None:
            self._send([(server, request)])
            return
        wanted()
        client = self.clients[server]
        client.wait(client.ask(request), time.monotonic() + self._patience)

    def _let_go(self, save: dict) -> None:
        with suppress(KVError):
            self._ask_all(Op.STATE, save | {"keep": False})

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None) -> tuple[dict, list[dict]]:
        """Every server takes its parts and looks at them; what makes them count is returned."""
        self._loads += 1
        load, rule, counts = {"load": self._loads}, said(optimizer), [0] * len(self.clients)
        try:
            for spec, state in states:
                requests = []
                for part, number in spec.parts:
                    metadata, payload = codec.encode(codec.cut(state, part.start, part.stop))
                    metadata |= load | {"part": number, "rule": rule["rule"], "rule_numbers": rule["numbers"]}
                    requests.append((part.server, Request(Op.RESTORE, metadata=metadata, payload=payload)))
                    counts[part.server] += 1
                self._send(requests)
            self._calls.current.require_wanted()
        except KVError:
            with suppress(KVError):  # what went wrong first is said
                self._ask_all(Op.COMMIT, load | {"drop": True})
            raise
        return load | rule, [{"parts": count} for count in counts]


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
