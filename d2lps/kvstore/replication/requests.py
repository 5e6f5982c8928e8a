"""One worker's part in a slot: it keeps each push until it is committed, and sends it again to a new primary."""

from typing import Any, NamedTuple

from d2lps.kvstore.replication.messages import Ask, Counted, Do, Lost, Meet, Pull, Push, Send, Value, View


class Requests:
    """What a worker asks of a slot.

    Parameters
    ----------
    rank : int
        Its own.
    kind : str
        ``"dist_sync"``, ``"dist_async"`` or ``"dist_ssp"``.
    view : View
        The one that it knows.
    """

    def __init__(self, rank: int, kind: str, view: View):
        self.rank, self.kind, self.view = rank, kind, view
        self.kept: dict[tuple[int, int], Any] = {}  # (part, round) → gradient, until it is known to be committed
        self.waiting: dict[int, Push | Pull | Do | Meet] = {}
        self.lost = False
        self.effects: list = []
        self._id = 0

    def take(self) -> list:
        """The effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def push(self, part: int, round: int, gradient: Any) -> int:
        """Push ``gradient``, which is not changed until the push is committed; the number of the request."""
        self.kept[part, round] = gradient
        return self._ask(Push(self.view.number, 0, self.rank, part, round, gradient))

    def pull(self, part: int, round: int) -> int:
        """Ask for ``part`` after ``round`` pushes of this worker; the number of the request."""
        return self._ask(Pull(self.view.number, 0, self.rank, part, round))

    def do(self, command: NamedTuple) -> int:
        """Ask for a command to be done; the number of the request."""
        return self._ask(Do(self.view.number, 0, self.rank, command))

    def meet(self, name: str, number: int, note: Any = None) -> int:
        """Come to a barrier; the number of the request."""
        return self._ask(Meet(self.view.number, 0, self.rank, name, number, note))

    def tick(self) -> None:
        """To be called now and then: ask for the view, and ask again for what was not answered."""
        self.effects.append(Ask())
        for id in self.waiting:
            self._send(id)

    def receive(self, message: NamedTuple) -> Push | Pull | Do | Meet | None:
        """The request that ``message`` answers, which is done then; None where it answers none."""
        if isinstance(message, View):
            self._adopt(message)
            return None
        if message.view < self.view.number or message.id not in self.waiting:
            return None  # of a primary that may have been deposed, or for the second time
        if isinstance(message, Lost):
            self.lost = True
            self.waiting.clear()
            return None
        request = self.waiting.pop(message.id)
        if isinstance(message, Counted):
            # There it is committed by then; here it counts in a round that may begin anew, and the one before is.
            self._committed(request.part, request.round - (self.kind == "dist_sync"))
        elif isinstance(message, Value):
            self._committed(message.part, message.version if self.kind == "dist_sync" else message.rounds[self.rank])
        return request

    def _committed(self, part: int, upto: int) -> None:
        self.kept = {key: kept for key, kept in self.kept.items() if key[0] != part or key[1] > upto}

    def _adopt(self, view: View) -> None:
        if view.number <= self.view.number:
            return
        self.view = view
        under_way = {(request.part, request.round) for request in self.waiting.values() if isinstance(request, Push)}
        for (part, round), gradient in self.kept.items():
            if (part, round) not in under_way:
                self._number(Push(view.number, 0, self.rank, part, round, gradient))
        for id in self.waiting:
            self._send(id)

    def _ask(self, request: Push | Pull | Do | Meet) -> int:
        id = self._number(request)
        self._send(id)
        return id

    def _number(self, request: Push | Pull | Do | Meet) -> int:
        self._id += 1
        self.waiting[self._id] = request
        return self._id

    def _send(self, id: int) -> None:
        request = self.waiting[id]._replace(view=self.view.number, id=id)
        if isinstance(request, Push):  # what is kept, not what was kept when it was first sent
            request = request._replace(gradient=self.kept.get((request.part, request.round), request.gradient))
        self.effects.append(Send(self.view.members[0], request))
