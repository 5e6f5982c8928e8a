"""Judge a server that counts once: repeat and lose its messages, and crash it after each store and send.

Every push is another power of 4, so a total tells which pushes are in it, and how often. A server that crashes is made
anew, with the disk as it was. Schedules are played from small to large; where one fails, and how, names the mistake.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from typing import NamedTuple

from d2lps.messages import text
from d2lps.notebook.grading import Ended, Failure, call, failure, plain, shared_names, size_kept, size_text, untouched

ROUNDS = 3
LATE = 14  # deliveries by which a late message is late: more than a round takes
PATIENCE = 3  # times that workers push again before they give up
LONG = (50, 150)  # rounds after which it is measured what is kept
SLACK = 500  # bytes by which that may grow in between: 100 numbers take more
SHOWN = 18  # events that are told before the one at which a mistake was seen


class Trouble(NamedTuple):
    """A fault: a message, by its number, is ``"lost"``, comes ``"twice"`` or ``"again"`` a round later.

    Or the server crashes after so many times of storing or sending; ``told`` is whether what it sent still arrives.
    """

    message: int = 0
    happens: str = ""
    crash: int = 0
    told: bool = True


@dataclass(frozen=True)
class OnceCase:
    """These workers push these keys."""

    workers: tuple[int, ...]
    keys: tuple[str, ...] = ("w", "b")

    @property
    def label(self) -> str:
        return f"n = {len(self.workers)}"


class Crash(Ended):
    """Thrown out of what a server does last."""


def decode(total: object, n: int) -> dict[tuple[int, int], int] | None:
    """Return (worker, number) → how often that push is in ``total``; None if it is no such sum.

    >>> decode(4**1 + 2 * 4**3, 2)
    {(0, 2): 1, (1, 1): 2}
    >>> decode(0.5, 2) is None
    True
    """
    with suppress(TypeError):
        total = plain(total)
    if type(total) not in (int, float) or not 0 <= total < 4 ** (ROUNDS * n) or total != int(total):
        return None
    return _digits(int(total), n)


@cache
def _digits(total: int, n: int) -> dict[tuple[int, int], int]:
    counts = {divmod(at, ROUNDS): total >> 2 * at & 3 for at in range(ROUNDS * n)}
    return {(worker, at + 1): times for (worker, at), times in counts.items() if times}


class Disk:
    """Keeps a copy of each value, also after a crash of the server."""

    def __init__(self, world: "Once"):
        self._world, self.kept = world, {}

    def put(self, name: Hashable, value: object) -> None:
        """Store a value under a name, all of it or, in a crash, nothing."""
        self._world.note("put", name)
        self.kept[name] = plain(value)
        self._world.did()

    put.one_way = True  # as sending is: what a server does after a crash is in vain

    def get(self, name: Hashable, otherwise: object = None) -> object:
        """Return the value under a name."""
        return plain(self.kept[name]) if name in self.kept else otherwise


class Once:
    """A run of an answer: workers push each key again and again, and wait for the answer before they go on.

    ``story`` is what happened: ``("push", worker, id, key, number, gradient)``, ``("put", name)``, ``("send", worker,
    key, number, total)``, ``("lost",)`` after an answer that is, and ``("crash",)``. ``stores`` is whether the answer
    stores anything where nothing goes wrong.
    """

    def __init__(self, case: OnceCase, answer: Callable, trouble: Trouble, stores: bool = True):
        self.case, self.answer, self.trouble, self.stores = case, answer, trouble, stores
        self.disk, self.story = Disk(self), []
        self.queue, self.held = deque(), []  # letters, and (after how many deliveries, letter)
        self.now = self.messages = self.done = self.patience = 0
        self.waits = {(worker, key): 1 for worker in case.workers for key in case.keys}
        self.seen: dict[str, set] = {key: set() for key in case.keys}
        self.alive, self.failed = True, None

    def run(self) -> "Once":
        """Play until all pushes are answered; raise Failure."""
        self._start()
        for at in reversed(self.waits):
            self._push(*at)
        while self.failed is None:
            if self.held and (self.held[0][0] <= self.now or not (self.queue or self.waits)):
                self._deliver(self.held.pop(0)[1])
            elif self.queue:
                self._deliver(self.queue.popleft())
            elif not self.waits or self.patience == PATIENCE:
                break
            else:
                self.patience += 1
                for at in list(self.waits):
                    self._push(*at)
        if self.failed is None and self.waits:
            worker, key = min(self.waits, key=self.waits.get)
            self.failed = _silent(self, worker, key, self.waits[worker, key])
        if self.failed:
            raise self.failed
        return self

    def _start(self) -> None:
        self.alive = True
        self._guarded(self._make)

    def _make(self) -> None:
        self.on = call(self.case, self.answer, self.disk, self._send)
        if not callable(self.on):
            raise failure("wrong-type", "pair-not-on", self.case, type=type(self.on).__name__)

    def _guarded(self, work: Callable, *given: object) -> None:
        """Let the server work; if it crashes, make it anew."""
        try:
            work(*given)
        except Crash:
            self.story.append(("crash",))
            self.queue = deque(each for each in self.queue if each[0] == "send" and self.trouble.told)
            self._start()

    def note(self, *event: object) -> None:
        """Note what the server is about to do; once crashed, it does nothing."""
        if not self.alive:
            raise Crash
        self.story.append(event)

    def did(self) -> None:
        """Crash the server, if that is due after this act."""
        self.done += 1
        if self.done == self.trouble.crash:
            self.alive = False
            raise Crash

    def _send(self, worker: int, key: str, number: int, total: float) -> None:
        self.note("send", worker, key, number, total)
        self.failed = self.failed or _answer(self, worker, key, number, total)
        if self.failed is None:
            self._post("send", worker, key, number, total)
        self.did()

    _send.one_way = True

    def _post(self, *letter: object) -> None:
        self.messages += 1
        happens = self.trouble.happens if self.messages == self.trouble.message else ""
        self.queue.extend([letter] * {"lost": 0, "twice": 2}.get(happens, 1))
        if happens == "lost" and letter[0] == "send":
            self.story.append(("lost",))
        if happens == "again":
            self.held.append((self.now + LATE, letter))

    def _deliver(self, letter: tuple) -> None:
        self.now += 1
        kind, worker, *rest = letter
        if kind == "push":
            self.story.append(letter)
            self._guarded(lambda: call(self.case, self.on, worker, *rest, none=True))
            return
        key, number, total = rest
        self.seen[key] |= self.counts(total).keys()
        if self.waits.get((worker, key)) == number:
            self.patience = 0
            del self.waits[worker, key]
            if number < ROUNDS:
                self.waits[worker, key] = number + 1
                self._push(worker, key)

    def counts(self, total: object) -> dict[tuple[int, int], int] | None:
        """Return (worker, number) → how often that push is in ``total``; None if it is no such sum."""
        workers = self.case.workers
        counts = decode(total, len(workers))
        return None if counts is None else {(workers[i], number): times for (i, number), times in counts.items()}

    def _push(self, worker: int, key: str) -> None:
        number = self.waits[worker, key]
        gradient = 4 ** (ROUNDS * self.case.workers.index(worker) + number - 1)
        self._post("push", worker, self.messages + 1, key, number, gradient)


def judge(case: OnceCase, answer: Callable) -> dict[str, str]:
    """Return how many runs a right answer has taken, and how much it stores where nothing fails; raise Failure."""
    one, other = (call(case, answer, Disk(Once(case, answer, Trouble())), _unheard) for _ in range(2))
    if shared_names(one, other, case.keys):
        raise failure("differs", "pair-shared", case)
    world = Once(case, answer, Trouble()).run()
    try:
        Once(case, answer, Trouble()).run()
    except Failure:
        raise failure("differs", "pair-shared", case) from None
    puts, pushes = (sum(event[0] == kind for event in world.story) for kind in ("put", "push"))
    troubles = list(troubles_of(world))
    for trouble in troubles:
        Once(case, answer, trouble, puts > 0).run()
    _require_little_kept(case, answer)
    return {"runs": str(1 + len(troubles)), "puts": str(puts), "pushes": str(pushes)}


def troubles_of(world: Once) -> Iterator[Trouble]:
    """Return all that may go wrong in a run, given one in which nothing does."""
    messages, crashes = range(1, world.messages + 1), range(1, world.done + 1)
    yield from (Trouble(at, happens) for happens in ("twice", "lost", "again") for at in messages)
    yield from (Trouble(crash=at, told=told) for told in (True, False) for at in crashes)


def _answer(world: Once, worker: object, key: object, number: object, total: object) -> Failure | None:
    """Return the fault of an answer."""
    case, asked = world.case, [event for event in world.story if event[0] == "push"]
    if not any((event[1], *event[3:5]) == (worker, key, number) for event in asked):
        return failure("differs", "once-not-asked", case, given=repr((worker, key, number))[:60])
    counts = world.counts(total)
    values = {"worker": worker, "key": key, "number": number}
    came = {(event[1], event[4]) for event in asked if event[3] == key}
    if counts is None or not counts.keys() <= came:
        return _failure("differs", "once-no-sum", world, **values, got=repr(total)[:30])
    twice = [(who, at) for (who, at), times in counts.items() if times > 1]
    if twice:
        values |= {"who": twice[0][0], "at": twice[0][1], "times": counts[twice[0]]}
        names = {"twice": "counts-repeats", "lost": "by-message", "again": "by-message"}
        mistake = "stored-apart" if world.trouble.crash else names.get(world.trouble.happens, "differs")
        return _failure(mistake, "once-twice", world, **values)
    for who, at in ((worker, number), *sorted(world.seen[key])):
        if (who, at) not in counts:
            mistake = _mistake_of_lost(world, (who, key, at))
            return _failure(mistake, "once-lost", world, **values, who=who, at=at)
    return None


def _mistake_of_lost(world: Once, push: tuple[int, str, int]) -> str:
    """Return why a push is not in a total, the one that is answered itself or another that is known to count."""
    story = world.story
    if ("crash",) not in story:
        return "differs"
    if not world.stores:
        return "memory-only"
    answered = [at for at, event in enumerate(story[:-1]) if event[:4] == ("send", *push)]
    if answered:
        *_, began = (at for at, event in enumerate(story[: answered[0]]) if event[0] == "push")
        if all(event[0] != "put" for event in story[began : answered[0]]):
            return "answers-first"
    return "stored-apart"


def _silent(world: Once, worker: int, key: str, number: int) -> Failure:
    if untouched(world.on) and all(event[0] != "send" for event in world.story):
        return failure("todo", "once-silent", world.case)
    return _failure("answers-once", "once-waits", world, worker=worker, key=key, number=number)


def _require_little_kept(case: OnceCase, answer: Callable) -> None:
    """Require that what a server keeps does not grow, and yet no old push counts once more; all gradients are 1."""
    world, sizes, key, told, ids = Once(case, answer, Trouble()), [], case.keys[0], [], count(1)

    def send(*push: object) -> None:
        told.append(push)

    send.one_way = True

    def push(worker: int, number: int) -> object:
        """Return the total that is answered."""
        told.clear()
        call(case, on, worker, next(ids), key, number, 1, none=True)
        return next((total for *push, total in told if push == [worker, key, number]), None)

    on = call(case, answer, world.disk, send)
    for number in range(1, LONG[-1] + 1):
        totals = [push(worker, number) for worker in case.workers]
        if number in LONG:
            sizes.append((size_kept(on, without=[world.disk, told]), size_kept(world.disk.kept)))
    for where, few, many in zip(("memory", "disk"), *sizes, strict=True):
        if many > few + SLACK:
            values = {"where": text(f"checks.once-in-{where}"), "few": size_text(few), "many": size_text(many)}
            raise failure("keeps-all", "once-grows", case, first=LONG[0], last=LONG[1], **values)
    for worker, number in product(case.workers, (1, 2, LONG[0], LONG[1] - 1, LONG[1])):
        got = push(worker, number)
        if got is None:  # that push was answered long ago; a repeat of the last one has to be
            got = push(worker, LONG[1])
        if got != totals[-1]:
            values = {"worker": worker, "number": number, "key": key, "got": repr(got)[:30], "right": totals[-1]}
            raise failure("differs", "once-old", case, last=LONG[1], **values)


def _unheard(*answer: object) -> None:
    """Take answers while the memory is looked at."""


def _failure(mistake: str, sentence: str, world: Once, **values: object) -> Failure:
    """Return the Failure, what failed in this run, and what happened at last."""
    found = failure(mistake, sentence, world.case, **values)
    lines, concerned, who = [], True, {values["worker"], values.get("who")}
    for event in world.story:
        if event[0] == "push":
            concerned = event[3] == values["key"] and event[1] in who
        if concerned or event == ("crash",) or len(world.story) < SHOWN:
            kind, *given = event
            shown = text("checks.once-crash" if kind == "crash" else "checks.once-lost-answer") if not given else ""
            lines.append(shown or f"{kind}({', '.join(repr(each)[:60] for each in given)})")
        elif lines[-1:] != ["…"]:
            lines.append("…")
    found.sentence += "\n" + text("checks.once-story", events=" · ".join(lines[-SHOWN:]))
    return found
