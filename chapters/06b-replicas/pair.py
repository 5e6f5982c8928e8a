"""Two servers of which one may fail, in virtual time: the workers and the authority are given, the servers are played.

Messages are delivered in the order in which they were sent, but for those that a :class:`Schedule` loses, repeats or
keeps back. Whoever sends as the schedule says crashes or is paused. When nothing is on the way any more, the authority
notices that, and makes a view without that server; workers that wait say everything once more. The same answer and
the same schedule give the same run.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

from d2lps.notebook.grading import Failure, call, failure

SERVERS = ("server0", "server1")
AUTHORITY = "authority"
KEYS = ("w", "b")
ROUNDS = 4
RATE, MOMENTUM = 0.1, 0.9
LATE = 24  # deliveries by which a late message is late: more than a round takes
PATIENCE = 3  # times that workers say everything again before they give up
TALK = 4000  # messages in a run after which nobody listens any more


class Schedule(NamedTuple):
    """What goes wrong in a run.

    Parameters
    ----------
    message : int
        The number of the message to which ``happens`` happens, counted from 1 as they are sent; 0 for none.
    happens : str
        ``"lost"``, ``"late"``, ``"twice"`` (both at once) or ``"again"`` (once more, and late).
    answers : int
        How late: until its receiver has sent so many further messages to its sender; 0 is about a round.
    server : str
        Who fails; "" for nobody.
    after : int
        How many messages it has sent before.
    how : str
        What fails: ``"lost"`` is a crash that takes with it what is on the way to the other server, after a ``"late"``
        crash that arrives once the other one is alone, ``"paused"`` is a server that goes on afterwards, and
        ``"cut"`` one that no longer hears the other, nor is heard by it.
    knows : str
        Who hears last of the new view: ``"server"``, ``"worker"`` (one of them), or nobody: "". ``"again"`` is that
        the survivor hears of the old one once more.
    repeats : int
        How often workers say everything again before they give up, or before a server that is cut off is left out
        (unless half of the rounds are over before); 0 for ``PATIENCE``.
    """

    message: int = 0
    happens: str = ""
    answers: int = 0
    server: str = ""
    after: int = 0
    how: str = "lost"
    knows: str = ""
    repeats: int = 0


@dataclass(frozen=True)
class PairCase:
    """The workers, the servers with the first primary first, the keys, and how many rounds are trained."""

    workers: tuple[int, ...]
    servers: tuple[str, str] = SERVERS
    keys: tuple[str, ...] = KEYS
    rounds: int = ROUNDS

    @property
    def label(self) -> str:
        return f"n = {self.n}"

    @property
    def n(self) -> int:
        return len(self.workers)


@dataclass
class Letter:
    """A message and how it travelled.

    Parameters
    ----------
    number : int
        The how manieth message it is.
    src, dst, message
        Who says what to whom.
    sent, arrived : int
        After how many deliveries; None for what has not arrived.
    because : Letter or None
        What its sender was just told.
    """

    number: int
    src: Hashable
    dst: Hashable
    message: tuple
    sent: int
    arrived: int | None = None
    because: "Letter | None" = None


@cache
def gradient(worker: int, key: str, number: int) -> float:
    """What a worker pushes for a key in a round.

    >>> gradient(1, "w", 2) == gradient(1, "w", 2) != gradient(2, "w", 2)
    True
    """
    return round(Random(f"{worker} {key} {number}").uniform(1, 9), 6)


@cache
def trained(workers: tuple[int, ...], key: str, number: int) -> tuple[float, float]:
    """The weights of a key after so many rounds of these workers, and its velocity.

    >>> trained((0, 1), "w", 1)[0] == -0.1 * (gradient(0, "w", 1) + gradient(1, "w", 1))
    True
    """
    if not number:
        return 0.0, 0.0
    weights, velocity = trained(workers, key, number - 1)
    velocity = MOMENTUM * velocity + sum(gradient(worker, key, number) for worker in workers)
    return weights - RATE * velocity, velocity


@dataclass
class Worker:
    """Pushes every key, waits for the new weights of all of them, and goes on; says everything again in a new view."""

    name: int
    primary: str
    view: int = 1
    number: int = 0  # its round
    waits: list[str] = field(default_factory=list)  # for the weights of these keys


class World:
    """A run of an answer.

    Attributes
    ----------
    letters : list of Letter
        All that was sent by servers and workers, in order.
    failed : Failure or None
        What was found on the way.
    times : int
        How often workers had to say something again although the view had not changed.
    """

    def __init__(self, case: PairCase, answer: Callable, schedule: Schedule, check: Callable):
        self.case, self.schedule, self.check = case, schedule, check
        self.repeats = schedule.repeats or PATIENCE
        self.letters: list[Letter] = []
        self.queue: deque[Letter] = deque()
        self.held: list[tuple[int, Letter]] = []
        self.views = {1: case.servers}
        self.down: str | None = None  # who is silent
        self.paused = self.cut = False
        self.waiting: list[Letter] = []  # for or from who is paused, in order
        self.stale: Letter | None = None  # what comes after so many answers
        self.now = self.spoken = self.times = self.patience = self.answers = 0
        self.failed: Failure | None = None
        self.handled: Letter | None = None
        self.sent = dict.fromkeys(case.servers, 0)
        self.workers = {name: Worker(name, case.servers[0]) for name in case.workers}
        self.on = {}
        for me, peer in (case.servers, case.servers[::-1]):
            on = call(case, answer, me, peer, list(case.workers), self._sender(me))
            if not callable(on):
                raise failure("not-a-function", "pair-not-on", case, type=type(on).__name__)
            self.on[me] = on

    def run(self) -> "World":
        """Raises Failure where an answer raises; what else is wrong is in ``failed``."""
        for server in self.case.servers:
            self._tell(server)
        if self.schedule.server and not self.schedule.after:
            self._fail()
        for worker in reversed(self.workers.values()):  # not in their order
            self._next_round(worker)
        while self.failed is None:
            if self.held and self.held[0][0] <= self.now:
                self._deliver(self.held.pop(0)[1])
            elif self.queue:
                self._deliver(self.queue.popleft())
            elif not self._idle():
                break
        return self

    @property
    def unanswered(self) -> list[tuple[int, str, int]]:
        """(worker, key, round) for which no weights have come."""
        return [(worker.name, key, worker.number) for worker in self.workers.values() for key in worker.waits]

    # Messages.

    def _sender(self, me: str) -> Callable:
        def send(to: Hashable, message: tuple) -> None:
            if self.failed is None and (self.down != me or self.paused):
                self._post(me, to, message)
                if (me, self.sent[me]) == (self.schedule.server, self.schedule.after):
                    self._fail()

        send.one_way = True  # a server that is told of nothing does not know when its messages go
        return send

    def _post(self, src: Hashable, dst: Hashable, message: tuple) -> None:
        self.spoken += 1
        if src in self.on:
            self.sent[src] += 1
            message = self.check(self, src, dst, message)
            if self.failed is not None:
                return
        letter = Letter(self.spoken, src, dst, message, self.now, None, self.handled)
        self.letters.append(letter)
        if self.stale and (src, dst) == (self.stale.dst, self.stale.src):
            self.answers += 1
            if self.answers == self.schedule.answers:
                self.queue.appendleft(self.stale)
        if self.spoken != self.schedule.message:
            self._carry(letter)
            return
        happens = self.schedule.happens
        if happens in ("twice", "again"):
            self._carry(letter)
        if happens == "twice":
            self._carry(letter)
        elif happens != "lost" and self.schedule.answers:
            self.stale = letter
        elif happens != "lost":
            self._hold(letter)

    def _carry(self, letter: Letter) -> None:
        if self.cut and letter.src in self.on and letter.dst in self.on:
            return
        if self.paused and letter.src == self.down:
            self.waiting.append(letter)
        else:
            self.queue.append(letter)

    def _hold(self, letter: Letter, by: int = LATE) -> None:
        self.held.append((self.now + by, letter))
        self.held.sort(key=lambda each: each[0])

    def _deliver(self, letter: Letter) -> None:
        if letter.dst == self.down:
            if self.paused:
                self.waiting.append(letter)
            return
        self.now += 1
        letter.arrived = letter.arrived or self.now
        if letter.dst in self.on:
            self.handled = letter
            call(self.case, self.on[letter.dst], letter.src, letter.message, none=True, refused=Failure)
            self.handled = None
        elif letter.src == AUTHORITY:
            self._adopt(self.workers[letter.dst], *letter.message[1:])
        else:
            self._told(self.workers[letter.dst], *letter.message[1:])

    # Workers.

    def _next_round(self, worker: Worker) -> None:
        worker.number += 1
        worker.waits = list(self.case.keys) if worker.number <= self.case.rounds else []
        if self.cut and self.schedule.repeats and len(self.views) == 1 and worker.number > self.case.rounds // 2:
            self._make_view(by=LATE // 2)  # a primary that goes on by itself is left out before all is over
        self._push(worker)

    def _push(self, worker: Worker) -> None:
        for key in worker.waits:
            value = gradient(worker.name, key, worker.number)
            id = self.spoken + 1
            self._post(worker.name, worker.primary, ("push", worker.view, id, key, worker.number, value))

    def _told(self, worker: Worker, view: int, key: str, number: int, weights: float) -> None:
        if view == worker.view and number == worker.number and key in worker.waits:
            worker.waits.remove(key)
            self.patience = 0
            if not worker.waits:
                self._next_round(worker)

    def _adopt(self, worker: Worker, view: int, members: tuple[str, ...]) -> None:
        worker.view, worker.primary = view, members[0]
        self._push(worker)

    # What fails, and what the authority makes of it.

    def _fail(self) -> None:
        how = self.schedule.how
        self.cut, self.paused = how == "cut", how == "paused"
        self.down = None if self.cut else self.schedule.server
        if self.cut or self.paused:
            return
        lost = [letter for letter in self.queue if letter.src == self.down and letter.dst in self.on]
        self.queue = deque(letter for letter in self.queue if letter not in lost)
        if self.schedule.how == "late":
            for letter in lost:
                self._hold(letter)

    def _tell(self, to: Hashable, by: int = 0, number: int = 0) -> None:
        number = number or max(self.views)
        letter = Letter(0, AUTHORITY, to, ("view", number, self.views[number]), self.now)
        if by:
            self._hold(letter, by)
        else:
            self.queue.append(letter)

    def _make_view(self, by: int = 0) -> None:
        out = self.schedule.server
        self.views[2] = tuple(server for server in self.case.servers if server != out)
        knows = self.schedule.knows
        self._tell(self.views[2][0], by=by + 8 * (knows == "server"))
        for worker in self.workers:
            last = knows == "worker" and worker == self.case.workers[-1]
            self._tell(worker, by=by + LATE * last)
        if knows == "again":
            self._tell(self.views[2][0], by=by + LATE, number=1)
        if self.paused:
            self.paused, self.down = False, None
            self.queue.extend(self.waiting)
        self._tell(out, by=LATE)

    def _idle(self) -> bool:
        """Let time pass, as nothing is on the way; whether anything has come of it."""
        if self.down and len(self.views) == 1:
            self._make_view()
            return True
        views = [each for each in self.held if each[1].src == AUTHORITY]
        over = not self.unanswered
        if views or (over and self.held):
            self.queue.extend(letter for _, letter in (self.held if over else views))
            self.held = [] if over else [each for each in self.held if each not in views]
            return True
        if over or self.patience == self.repeats:
            return False
        self.patience += 1
        self.times += 1
        for worker in self.workers.values():
            self._push(worker)
        if self.cut and self.times == self.repeats:  # what it has begun, whoever is cut off goes on with
            self.patience = 0
            self._make_view(by=LATE // 2)
        return True
