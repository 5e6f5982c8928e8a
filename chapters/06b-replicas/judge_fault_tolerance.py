"""Judge a pair of servers of which one may fail, in virtual time: workers and authority are given, servers are played.

What a worker is told must be the very bits that one server would have computed. Messages arrive in the order in which
they were sent. A server fails after each of its messages in turn; where and how a run goes wrong names the mistake.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, plain, shared_names, unlike

AUTHORITY = "authority"
ROUNDS, RATE, MOMENTUM = 4, 0.1, 0.9
LATE = 24  # deliveries by which a late message is late: more than a round takes
PATIENCE = 3  # times that workers push again before they give up
TALK = 4000  # messages in a run after which it is ended
SHOWN = 8  # messages that are told before the one at which a mistake was seen


class Schedule(NamedTuple):
    """The faults: a message from or to a worker, by its number, is ``"lost"`` or comes ``"twice"``.

    Or a server fails after so many of its messages. ``"lost"`` is a crash that takes with it what is on the way to the
    other server, after a ``"late"`` one that arrives in the next view. A ``"paused"`` server goes on in the next view,
    and a ``"cut"`` one neither reaches nor hears the other.
    """

    message: int = 0
    happens: str = ""
    server: str = ""
    after: int = 0
    how: str = ""


@dataclass(frozen=True)
class PairCase:
    """The workers, the servers with the first primary first, and the keys."""

    workers: tuple[int, ...]
    servers: tuple[str, str] = ("server0", "server1")
    keys: tuple[str, ...] = ("w", "b")

    @property
    def label(self) -> str:
        return f"n = {len(self.workers)}"


@dataclass
class Letter:
    """A message: its number, and after how many deliveries it was sent and has arrived."""

    number: int
    src: Hashable
    dst: Hashable
    message: tuple
    sent: int
    arrived: int | None = None


@cache
def gradient(worker: int, key: str, number: int) -> float:
    """Return what a worker pushes for a key in a round."""
    return round(Random(f"{worker} {key} {number}").uniform(1, 9), 6)


@cache
def trained(workers: tuple[int, ...], key: str, number: int) -> tuple[float, float]:
    """Return the weights and the velocity of a key after so many rounds."""
    if not number:
        return 0.0, 0.0
    weights, velocity = trained(workers, key, number - 1)
    velocity = MOMENTUM * velocity + sum(gradient(worker, key, number) for worker in workers)
    return weights - RATE * velocity, velocity


class World:
    """A run of an answer: ``letters`` are all messages, ``failed`` is the first fault."""

    def __init__(self, case: PairCase, answer: Callable, schedule: Schedule):
        self.case, self.schedule = case, schedule
        self.letters, self.held, self.waiting, self.queue = [], [], [], deque()
        self.views, self.view_of = {1: case.servers}, dict.fromkeys(case.workers, 1)
        self.round, self.waits = dict.fromkeys(case.workers, 0), {worker: [] for worker in case.workers}
        self.down, self.paused, self.failed = None, False, None
        self.cut = 0  # in which round the servers were cut off from each other
        self.now = self.patience = self.times = 0
        self.sent, self.on = dict.fromkeys(case.servers, 0), {}
        for me, peer in (case.servers, case.servers[::-1]):
            self.on[me] = call(case, answer, me, peer, list(case.workers), self._sender(me))
            if not callable(self.on[me]):
                raise failure("wrong-type", "pair-not-on", case, type=type(self.on[me]).__name__)

    def run(self) -> "World":
        """Raise Failure where the answer raises; what else is wrong is in ``failed``."""
        for server in self.case.servers:
            self._tell(server)
        if self.schedule.server and not self.schedule.after:
            self._fail()
        for worker in reversed(self.case.workers):  # not in their order
            self._next_round(worker)
        while self.failed is None:
            if self.held and self.held[0][0] <= self.now:
                self._deliver(self.held.pop(0)[1])
            elif self.queue:
                self._deliver(self.queue.popleft())
            elif not self._idle():
                break
        return self

    def between(self, letter: Letter) -> bool:
        """Return whether one server sends it to the other."""
        return {letter.src, letter.dst} == {*self.case.servers}

    def unanswered(self) -> list[tuple[int, str, int]]:
        """Return (round, key, worker) for which no weights have come."""
        return [(self.round[worker], key, worker) for worker, keys in self.waits.items() for key in keys]

    def too_early(self, told: Letter) -> bool:
        """Return whether the first primary tells weights before the backup has sent anything about them."""
        key, number = told.message[2:4]
        first, second = self.case.servers
        pushes = [each for each in self.letters if each.dst == first and each.message[3:5] == (key, number)]
        arrived = [each for each in pushes if each.arrived is not None and each.arrived <= told.sent]
        complete = max(min(each.arrived for each in arrived if each.src == i) for i in {each.src for each in arrived})
        before = self.letters[: told.number]
        return not any(each.src == second and each.sent >= complete and each.arrived for each in before)

    def _sender(self, me: str) -> Callable:
        def send(to: Hashable, message: tuple) -> None:
            if self.failed is None and (self.down != me or self.paused):
                self.failed = _wrong(self, me, to, message)
                if self.failed is None:
                    self.sent[me] += 1
                    self._post(me, to, plain(message))
                    if (me, self.sent[me]) == (self.schedule.server, self.schedule.after):
                        self._fail()

        send.one_way = True  # a server without notifications does not know when its messages go
        return send

    def _post(self, src: Hashable, dst: Hashable, message: tuple) -> None:
        letter = Letter(len(self.letters) + 1, src, dst, message, self.now)
        self.letters.append(letter)
        happens = self.schedule.happens if letter.number == self.schedule.message else ""
        if happens == "lost" or (self.cut and self.between(letter)):
            return
        carried = self.waiting if self.paused and src == self.down else self.queue
        carried.extend([letter] * (1 + (happens == "twice")))

    def _deliver(self, letter: Letter) -> None:
        if letter.dst == self.down:
            self.waiting += [letter] * self.paused
            return
        self.now += 1
        letter.arrived = letter.arrived or self.now
        if letter.dst in self.on:
            call(self.case, self.on[letter.dst], letter.src, letter.message, none=True)
        elif letter.src == AUTHORITY:
            self.view_of[letter.dst] = letter.message[1]
            self._push(letter.dst)
        else:
            self._told(letter.dst, *letter.message[1:])

    def _told(self, worker: int, view: int, key: str, number: int, weights: float) -> None:
        if (view, number) == (self.view_of[worker], self.round[worker]) and key in self.waits[worker]:
            self.waits[worker].remove(key)
            self.patience = 0
            if not self.waits[worker]:
                self._next_round(worker)

    def _next_round(self, worker: int) -> None:
        self.round[worker] += 1
        self.waits[worker] = list(self.case.keys) if self.round[worker] <= ROUNDS else []
        if self.cut and len(self.views) == 1 and self.round[worker] > self.cut + 1:
            self._make_view()  # a primary that goes on alone is left out before all is over
        self._push(worker)

    def _push(self, worker: int) -> None:
        view, number = self.view_of[worker], self.round[worker]
        for key in self.waits[worker]:
            pushed = key, number, gradient(worker, key, number)
            self._post(worker, self.views[view][0], ("push", view, len(self.letters) + 1, *pushed))

    def _fail(self) -> None:
        how, server = self.schedule.how, self.schedule.server
        self.cut, self.paused = max(1, *self.round.values()) * (how == "cut"), how == "paused"
        self.down = None if self.cut else server
        if how in ("lost", "late"):
            lost = [letter for letter in self.queue if letter.src == server and self.between(letter)]
            self.queue = deque(letter for letter in self.queue if letter not in lost)
            self.held += [(self.now + LATE, letter) for letter in lost if how == "late"]

    def _tell(self, to: Hashable, by: int = 0) -> None:
        number = max(self.views)
        letter = Letter(0, AUTHORITY, to, ("view", number, self.views[number]), self.now)
        self.held.append((self.now + by, letter))
        self.held.sort(key=lambda each: each[0])

    def _make_view(self) -> None:
        out = self.schedule.server
        self.views[2] = tuple(server for server in self.case.servers if server != out)
        for node in (*self.views[2], *self.case.workers):
            self._tell(node)
        if self.paused:
            self.paused, self.down = False, None
            self.queue.extend(self.waiting)
        self._tell(out, by=LATE)

    def _idle(self) -> bool:
        """Let time pass, as nothing is on the way; return whether anything has come of it."""
        if (self.down or (self.cut and self.times >= PATIENCE)) and len(self.views) == 1:
            self._make_view()
        elif self.held:
            self.queue.append(self.held.pop(0)[1])
        elif not self.unanswered() or self.patience == PATIENCE:
            return False
        else:
            self.patience, self.times = self.patience + (len(self.views) == 2 or not self.cut), self.times + 1
            for worker in self.case.workers:
                self._push(worker)
        return True


def judge(case: PairCase, answer: Callable) -> dict[str, str]:
    """Return how many runs a right answer has taken, and how much it has said; raise Failure."""
    if shared_names(*(call(case, answer, *case.servers, list(case.workers), _unheard) for _ in range(2)), case.keys):
        raise failure("differs", "pair-shared", case)
    world = play(case, answer, Schedule())
    between = sum(map(world.between, world.letters))
    if not between:
        raise failure("todo", "pair-apart", case)
    try:
        play(case, answer, Schedule())
    except Failure:
        raise failure("differs", "pair-shared", case) from None
    schedules = list(schedules_of(world))
    for schedule in schedules:
        play(case, answer, schedule)
    return {"runs": str(1 + len(schedules)), "messages": str(len(world.letters)), "between": str(between)}


def play(case: PairCase, answer: Callable, schedule: Schedule) -> World:
    """Raise Failure, with its schedule and the last messages in the sentence."""
    world = World(case, answer, schedule).run()
    if found := world.failed or _unanswered(world):
        raise found
    if world.times and schedule.happens != "lost" and not schedule.server:  # a worker pushed twice in vain
        raise _failure("nobody-answers", "pair-repeats", world)
    return world


def schedules_of(world: World) -> Iterator[Schedule]:
    """Return all that may go wrong in a run, given one in which nothing does."""
    ours = [letter.number for letter in world.letters if not world.between(letter)]
    yield from (Schedule(number, happens) for happens in ("twice", "lost") for number in ours)
    first, second = world.case.servers
    yield from (Schedule(server=second, after=i, how="lost") for i in range(world.sent[second] + 1))
    for how in ("lost", "late", "paused", "cut"):
        yield from (Schedule(server=first, after=i, how=how) for i in range(world.sent[first] + 1))


def _wrong(world: World, src: str, dst: Hashable, message: object) -> Failure | None:
    """Return the fault of a message of a server."""
    case = world.case
    if len(world.letters) > TALK:
        return _failure("differs", "pair-talks", world, messages=TALK)
    if dst == src or dst not in (*case.workers, *case.servers):
        return failure("differs", "pair-receiver", case, server=src, to=repr(dst)[:40])
    try:
        message = plain(message)
    except TypeError:
        return failure("wrong-type", "pair-not-plain", case, server=src, type=type(message).__name__)
    if dst in case.servers:
        return None
    value = isinstance(message, tuple) and len(message) == 5 and message[0] == "value" and message[2] in case.keys
    if not (value and message[3] in range(1, ROUNDS + 1) and isinstance(message[4], int | float)):
        return failure("differs", "pair-not-value", case, server=src, message=repr(message)[:80])
    view, key, number, weights = message[1:]
    values = {"server": src, "worker": dst, "key": key, "number": number, "view": view}
    if src not in world.views.get(view, ()):
        mistake, sentence = ("zombie", "zombie") if view in world.views else ("differs", "alone-unasked")
        return _failure(mistake, f"pair-{sentence}", world, **values)
    if weights == (right := trained(case.workers, key, number)[0]):
        return None
    values |= dict(zip(("got", "right"), unlike(weights, right, digits=6), strict=True))
    before, total = trained(case.workers, key, number - 1)[0], sum(gradient(i, key, number) for i in case.workers)
    mistake = "old-view-taken" if world.schedule.how in ("late", "paused", "cut") else "forgets-who-counted"
    if not world.schedule.server:
        mistake = "differs"
    elif number > 1 and abs(weights - before + RATE * total) < 1e-9:
        mistake = "optimizer-lost"
    return _failure(mistake, "pair-weights", world, **values)


def _unanswered(world: World) -> Failure | None:
    """Return why a worker waits for ever."""
    if not world.unanswered():
        return None
    (number, key, worker), (first, second), schedule = min(world.unanswered()), world.case.servers, world.schedule
    values = {"worker": worker, "key": key, "number": number}
    told = [each for each in world.letters if each.message[0] == "value" and each.message[2] == key]
    alone = [letter for letter in told if letter.src == first and letter.message[1] == 1]
    early = next(filter(world.too_early, alone), None) if schedule.server == first else None
    if early:
        others = " ".join(map(str, sorted({each.dst for each in alone if each.message == early.message})))
        values |= {"others": others, "server": second, "lost": early.message[3]}
        return _failure("acked-too-early", "pair-lost", world, **values)
    mistake = "nobody-answers" if told else "differs"
    if schedule.server == second:
        mistake = "waits-for-the-dead"
    elif schedule.server and schedule.how != "lost":
        mistake = "old-view-taken"
    elif schedule.server and not any(letter.message[3] == number for letter in alone):
        mistake = "forgets-who-counted" if number > 1 else "differs"
    return _failure(mistake, "pair-waits", world, **values)


def _unheard(to: Hashable, message: tuple) -> None:
    """Take messages before the first run."""


def _failure(mistake: str, sentence: str, world: World, **values: object) -> Failure:
    """Return the Failure, what went wrong in this run, and the last messages."""
    found = failure(mistake, sentence, world.case, **values)
    lines, said = [], set()
    for letter in world.letters:
        push = letter.message[:2] + letter.message[3:] if letter.src not in world.case.servers else letter.number
        if letter.arrived is not None and (letter.src, push) not in said:  # what workers only repeat is left out
            said.add((letter.src, push))
            lines.append(f"{letter.src} → {letter.dst}: {letter.message!r:.80}")
    found.sentence += f"\n{text('checks.pair-schedule', schedule=_said(world))}"
    found.sentence += "\n" + text("checks.pair-last", messages=" · ".join(lines[-SHOWN:]))
    return found


def _said(world: World) -> str:
    """Return the schedule, in the reader's language."""
    schedule = world.schedule
    if schedule.message:
        letter = world.letters[schedule.message - 1]
        values = {"at": letter.number, "src": letter.src, "dst": letter.dst, "message": repr(letter.message)[:80]}
        return text(f"checks.pair-message-{schedule.happens}", **values)
    if not schedule.server:
        return text("checks.pair-nothing")
    sent = [letter for letter in world.letters if letter.src == schedule.server][: schedule.after]
    what, values = schedule.how if schedule.how in ("paused", "cut") else "crashes", {"server": schedule.server}
    if sent:
        values |= {"at": sent[-1].number, "dst": sent[-1].dst, "message": repr(sent[-1].message)[:80]}
    said = text(f"checks.pair-{what}{'' if sent else '-first'}", **values)
    if schedule.how != "late":
        return said
    return text("checks.pair-then", first=said, then=text("checks.pair-arrives-late", server=schedule.server))
