"""What a worker pulls: of all servers at once, and where a load ends meanwhile, of before it or of after it."""

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from d2lps.kvstore.calls import PAUSE, Calls, Once
from d2lps.kvstore.values import Given, KeySpec, fill
from d2lps.kvstore.wire.frames import Frame, Op, raw
from d2lps.kvstore.worker.client import Request


class DistPulls:
    """A part of :class:`~d2lps.kvstore.worker.dist.DistStore`."""

    _calls: Calls
    _end_begun: Callable
    _send: Callable
    _destinations: Callable

    def _pull(
        self, keys: list[KeySpec], outs: list[Given], values: Sequence[Given] = (), pushed: Sequence[Tensor] = ()
    ) -> None:
        """``values``, flat ``pushed``: what was pushed just before, and stays as it is where this raises."""
        rounds = [spec.pushes for spec in keys]
        destinations, finish = self._destinations(keys, outs, values, pushed)
        requests = [
            (bundle.server, Request(Op.PULL, bundle.entries(rounds), into=into, pieces=pieces))
            for bundle, into, pieces in destinations
        ]
        self._send_whole(requests, [bundle.places for bundle, *_ in destinations])
        finish()

    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        requests, places, rooms, wholes = [], [], [], []
        for place, (spec, _, index) in enumerate(wanted):
            wholes.append(torch.empty(index.numel(), spec.width, dtype=spec.dtype))
            for part, number in spec.parts:
                first, last = part.start // spec.width, part.stop // spec.width
                here = ((index >= first) & (index < last)).nonzero().reshape(-1)
                if here.numel():
                    rows, room = index[here] - first, torch.empty(here.numel() * spec.width, dtype=spec.dtype)
                    metadata = {"part": number, "width": spec.width, "round": spec.pushes}
                    request = Request(Op.ROWS, metadata=metadata, payload=raw(rows), into=raw(room))
                    requests.append((part.server, request))
                    places.append((place,))
                    rooms.append((wholes[-1], here, room))
        self._send_whole(requests, places)
        for whole, here, room in rooms:
            whole[here] = room.view(-1, whole.shape[1])
        with torch.inference_mode():  # as ``out`` may have been made there
            for (_, outs, _), whole in zip(wanted, wholes, strict=True):
                fill(outs, whole.view(-1))

    def _send_whole(self, requests: Sequence[tuple[int, Request]], places: Sequence[Sequence[int]]) -> None:
        """Pull; once more where a load has ended meanwhile, and was not yet on all servers."""
        until = self._calls.current.until
        while True:
            self._end_begun(until)
            self._send(requests, until)
            if of_one_load(places, [request.answer for _, request in requests]):
                return
            time.sleep(PAUSE)
            self._calls.current.require_wanted()
            for _, request in requests:
                request.answer, request.done = None, Once()


def of_one_load(places: Iterable[Sequence[int]], answers: Sequence[Frame]) -> bool:
    """Whether no key was pulled in part of before a load, and in part of after it.

    ``places``: which keys each of the ``answers`` has parts of.
    """
    first = answers[0].load if answers else 0
    if all(answer.load == first and not answer.metadata for answer in answers):
        return True
    found: dict[int, int] = {}
    for those, answer in zip(places, answers, strict=True):
        loads = answer.metadata.get("loads", [answer.load] * len(those))
        if any(found.setdefault(place, load) != load for place, load in zip(those, loads, strict=True)):
            return False
    return True
