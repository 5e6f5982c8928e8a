"""The rules of one worker: keep each push until it is committed, and send it again to a new primary."""

from typing import Any

from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.replication.messages import Ask, Counted, Do, Lost, Meet, Pull, Push, Send, Values, View


class Requests:
    """The requests of worker ``rank`` to a slot of this ``kind``, sent to the primary of the ``view`` it knows."""

    def __init__(self, rank: int, kind: str, view: View):
        self.rank, self.kind, self.view = rank, kind, view
        self.kept: dict[tuple[int, int], Any] = {}  # (part, round) → gradient that may be uncommitted
        self.waiting: dict[int, Push | Pull | Do | Meet] = {}  # unanswered requests by number
        self.lost = False
        self.effects: list = []
        self._last_id = 0

    def take(self) -> list:
        """Return the effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def push(self, part: int, round: int, gradient: Any) -> int:
        """Push ``gradient``, which must not change until the push is committed; return the request's number."""
        self.kept[part, round] = gradient
        return self._request(Push(self.view.number, 0, self.rank, part, round, gradient))

    def pull(self, *wanted: tuple[int, int]) -> int:
        """Ask for parts, each after so many pushes of this worker: (part, pushes). Return the request's number."""
        return self._request(Pull(self.view.number, 0, self.rank, wanted))

    def do(self, command: m.Begin | m.Choose | m.Load) -> int:
        """Ask the primary to execute a command; return the request's number."""
        return self._request(Do(self.view.number, 0, self.rank, command))

    def meet(self, name: str, number: int, note: Any = None) -> int:
        """Come to a barrier; return the request's number."""
        return self._request(Meet(self.view.number, 0, self.rank, name, number, note))

    def tick(self) -> None:
        """Ask for the current view and repeat all unanswered requests; call this regularly."""
        self.effects.append(Ask())
        for id in self.waiting:
            self._send(id)

    def receive(self, message: View | m.Answer) -> Push | Pull | Do | Meet | None:
        """Take a message; return the request that it answers, or None."""
        if isinstance(message, View):
            self._adopt(message)
            return None
        if message.view < self.view.number or message.id not in self.waiting:
            return None  # from a primary that may have been deposed, or a duplicate
        if isinstance(message, Lost):
            self.lost = True
            self.waiting.clear()
            return None
        request = self.waiting.pop(message.id)
        if isinstance(message, Counted) and isinstance(request, Push):
            # An asynchronous push is committed by now. A synchronous one counts in the open round, which a new
            # primary begins again: only the round before it is committed.
            self._committed(request.part, request.round - (self.kind == "dist_sync"))
        elif isinstance(message, Values):
            for index, part in message.parts:
                self._committed(index, part.version if self.kind == "dist_sync" else part.rounds[self.rank])
        return request

    def _committed(self, part: int, upto: int) -> None:
        self.kept = {key: gradient for key, gradient in self.kept.items() if key[0] != part or key[1] > upto}

    def _adopt(self, view: View) -> None:
        if view.number <= self.view.number:
            return
        self.view = view
        unanswered = {(request.part, request.round) for request in self.waiting.values() if isinstance(request, Push)}
        for (part, round), gradient in self.kept.items():
            if (part, round) not in unanswered:
                self._add(Push(view.number, 0, self.rank, part, round, gradient))
        for id in self.waiting:
            self._send(id)

    def _request(self, request: Push | Pull | Do | Meet) -> int:
        id = self._add(request)
        self._send(id)
        return id

    def _add(self, request: Push | Pull | Do | Meet) -> int:
        self._last_id += 1
        self.waiting[self._last_id] = request
        return self._last_id

    def _send(self, id: int) -> None:
        request = self.waiting[id]._replace(view=self.view.number, id=id)
        if isinstance(request, Push):  # the gradient as it is kept now, not as it was when first sent
            request = request._replace(gradient=self.kept.get((request.part, request.round), request.gradient))
        self.effects.append(Send(self.view.members[0], request))
