"""Judge a server that counts once: repeat and lose its messages, and crash it after everything it stores or sends.

Every push is another power of 4, so a total tells which pushes are in it, and how often. A server that crashes is made
anew, with the disk as it was. Schedules are played from small to large; where one fails, and how, names the mistake.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from typing import NamedTuple

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, shared_names, size_kept, size_text

from .judge_fault_tolerance import plain, some

ROUNDS = 3
LATE = 14  # deliveries by which a late message is late: more than a round takes
PATIENCE = 3  # times that workers say everything again before they give up
LONG = (100, 300)  # rounds after which it is measured what is kept
SLACK = 1000  # bytes by which that may grow in between: 200 numbers take more
LARGE = 250  # runs with two troubles
SHOWN = 18  # events that are told before the one at which a mistake was seen


class Trouble(NamedTuple):
    """What goes wrong in a run.

    Parameters
    ----------
    message : int
        The number of the message to which ``happens`` happens, counted from 1 as they are sent; 0 for none.
    happens : str
        ``"lost"``, ``"twice"``, ``"again"`` (once more, a round later) or ``"last"`` (once more, at the very end).
    crashes : tuple of int
        After how many times of storing or sending the server crashes.
    told : bool
        Whether what it has sent before still arrives.
    """

    message: int = 0
    happens: str = ""
    crashes: tuple[int, ...] = ()
    told: bool = True


class Push(NamedTuple):
    """What a worker pushes for a key, for the ``number``-th time."""

    worker: int
    key: str
    number: int


@dataclass(frozen=True)
class OnceCase:
    """These workers, which push these keys; each pushes the ``late`` keys only when it is done with the first one."""

    workers: tuple[int, ...]
    keys: tuple[str, ...] = ("w", "b")
    late: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"n = {len(self.workers)}"


class Crash(BaseException):
    """Thrown out of what a server does last; no Exception, so that few handlers catch it."""


def power(push: Push) -> int:
    """The gradient of a push of the ``worker``-th worker: another power of 4 for each of a key's.

    >>> power(Push(0, "w", 2)), power(Push(1, "w", 1))
    (4, 64)
    """
    return 4 ** (ROUNDS * push.worker + push.number - 1)


def decode(total: object, n: int) -> dict[tuple[int, int], int] | None:
    """(worker, number) → how often that push is in ``total``; None if it is no such sum.

    >>> decode(power(Push(0, "w", 2)) + 2 * power(Push(1, "w", 1)), 2)
    {(0, 2): 1, (1, 1): 2}
    >>> decode(0.5, 2) is None
    True
    """
    if type(total) not in (int, float) or not 0 <= total < 4 ** (ROUNDS * n) or total != int(total):
        return None
    return _digits(int(total), n)


@cache
def _digits(total: int, n: int) -> dict[tuple[int, int], int]:
    counts = {divmod(at, ROUNDS): total >> 2 * at & 3 for at in range(ROUNDS * n)}
    return {(worker, at + 1): times for (worker, at), times in counts.items() if times}


class Disk:
    """Keeps what is put, whatever happens to the server."""

    def __init__(self, world: "Once"):
        self._world, self.kept = world, {}

    def put(self, name: Hashable, value: object) -> None:
        """Store a value under a name, all of it or, in a crash, nothing."""
        self._world.note("put", name)
        try:
            self.kept[plain(name)] = plain(value)
        except TypeError as error:
            self._world.refuse(str(error))
        self._world.did()

    put.one_way = True  # as sending is: who goes on after a crash does so in vain

    def get(self, name: Hashable, otherwise: object = None) -> object:
        """What is stored under a name."""
        self._world.reads += 1
        return plain(self.kept.get(name, otherwise))


class Once:
    """A run of an answer: workers push each key again and again, and wait for the answer before they go on.

    Parameters
    ----------
    case, answer, trouble
        Who plays what, and what goes wrong.
    stores : bool
        Whether the answer stores anything where nothing goes wrong.

    Attributes
    ----------
    story : list
        What happened, in order: ``("push", worker, id, key, number, gradient)``, ``("put", name)``,
        ``("send", worker, key, number, total)``, ``("lost",)`` after an answer that is, and ``("crash",)``.
    """

    def __init__(self, case: OnceCase, answer: Callable, trouble: Trouble, stores: bool = True):
        self.case, self.answer, self.trouble, self.stores = case, answer, trouble, stores
        self.disk, self.story = Disk(self), []
        self.queue: deque[tuple[int, tuple]] = deque()  # (how many deliveries must come first, what)
        self.held: list[tuple[float, tuple]] = []
        self.now = self.messages = self.done = self.reads = self.patience = 0
        self.waits = {(worker, key): 1 for worker in case.workers for key in case.keys}
        self.seen: dict[str, set] = {key: set() for key in (*case.keys, *case.late)}
        self.alive, self.failed = True, None

    def run(self) -> "Once":
        """Raises Failure."""
        self._start()
        for at in reversed(self.waits):
            self._push(*at)
        while self.failed is None:
            if self.held and self.held[0][0] <= self.now:
                self._deliver(self.held.pop(0)[1])
            elif self.queue:
                self._deliver(self.queue.popleft())
            elif not self._idle():
                break
        if self.failed is None and self.waits:
            worker, key = min(self.waits, key=self.waits.get)
            self.failed = _silent(self, Push(worker, key, self.waits[worker, key]))
        if self.failed:
            raise self.failed
        return self

    # The server.

    def _start(self) -> None:
        self.alive, self.reads = True, 0
        self._guarded(self._make)

    def _make(self) -> None:
        self.on = call(self.case, self.answer, self.disk, self._send, refused=Crash)
        if not callable(self.on):
            raise failure("not-a-function", "pair-not-on", self.case, type=type(self.on).__name__)

    def _guarded(self, work: Callable, *given: object) -> None:
        """Let the server work; if it crashes, make it anew."""
        try:
            work(*given)
        except Crash:
            self.story.append(("crash",))
            keeps = (lambda each: each[0] == "send") if self.trouble.told else (lambda each: False)
            self.queue = deque(each for each in self.queue if keeps(each))
            self._start()

    def note(self, *event: object) -> None:
        """What the server is about to do; once crashed, it does nothing."""
        if not self.alive:
            raise Crash
        self.story.append(event)

    def did(self) -> None:
        """Crash the server, if that is due after what it has done."""
        self.done += 1
        if self.done in self.trouble.crashes:
            self.alive = False
            raise Crash

    def refuse(self, type: str) -> None:
        """End the run: this cannot be stored."""
        self.failed, self.alive = failure("not-plain", "once-not-plain", self.case, type=type), False
        raise Crash

    def _send(self, worker: int, key: str, number: int, total: float) -> None:
        self.note("send", worker, key, number, total)
        self.failed = self.failed or _answer(self, worker, key, number, total)
        if self.failed is None:
            self._post("send", worker, key, number, total)
        self.did()

    _send.one_way = True  # whatever it leads to, a server that goes on then does so in vain

    # Messages.

    def _post(self, *letter: object) -> None:
        self.messages += 1
        happens = self.trouble.happens if self.messages == self.trouble.message else ""
        if happens != "lost":
            self.queue.append(letter)
        if happens == "twice":
            self.queue.append(letter)
        elif happens == "lost" and letter[0] == "send":
            self.story.append(("lost",))
        elif happens in ("again", "last"):
            self.held.append((math.inf if happens == "last" else self.now + LATE, letter))

    def _deliver(self, letter: tuple) -> None:
        self.now += 1
        kind, worker, *rest = letter
        if kind == "push":
            self.story.append(letter)
            self._guarded(self._told, worker, *rest)
            return
        key, number, total = rest
        self.seen[key] |= self.counts(total).keys()
        if self.waits.get((worker, key)) == number:
            self.patience = 0
            del self.waits[worker, key]
            if number < ROUNDS:
                self.waits[worker, key] = number + 1
                self._push(worker, key)
            elif key == self.case.keys[0]:
                for late in self.case.late:
                    self.waits[worker, late] = 1
                    self._push(worker, late)

    def counts(self, total: object) -> dict[tuple[int, int], int] | None:
        """(worker, number) → how often that push is in ``total``; None if it is no such sum."""
        workers = self.case.workers
        counts = decode(total, len(workers))
        return None if counts is None else {(workers[i], number): times for (i, number), times in counts.items()}

    def _told(self, *push: object) -> None:
        call(self.case, self.on, *push, none=True, refused=Crash)

    def _push(self, worker: int, key: str) -> None:
        push = Push(worker, key, self.waits[worker, key])
        self._post("push", worker, self.messages + 1, key, push.number, self._gradient(push))

    def _gradient(self, push: Push) -> int:
        return power(push._replace(worker=self.case.workers.index(push.worker)))

    def _idle(self) -> bool:
        if not self.waits or self.patience == PATIENCE:
            self.queue.extend(letter for _, letter in self.held)
            self.held = []
            return bool(self.queue) and not self.waits
        self.patience += 1
        for at in list(self.waits):
            self._push(*at)
        return True


def judge(case: OnceCase, answer: Callable) -> dict[str, str]:
    """How many runs a right answer has taken, and how much it stores where nothing fails; raises Failure."""
    world = _fault_free(case, answer)
    puts, pushes = (sum(event[0] == kind for event in world.story) for kind in ("put", "push"))
    runs = 1
    for trouble in small_troubles(world):
        Once(case, answer, trouble, puts > 0).run()
        runs += 1
    _require_little_kept(case, answer)
    for trouble in some(large_troubles(world), LARGE):
        Once(case, answer, trouble).run()
        runs += 1
    return {"runs": str(runs), "puts": str(puts), "pushes": str(pushes)}


def small_troubles(world: Once) -> Iterator[Trouble]:
    """One thing goes wrong, given a run in which nothing does."""
    messages, crashes = range(1, world.messages + 1), range(1, world.done + 1)
    yield from (Trouble(at, happens) for happens in ("twice", "lost", "again", "last") for at in messages)
    yield from (Trouble(crashes=(at,), told=told) for told in (True, False) for at in crashes)


def large_troubles(world: Once) -> Iterator[Trouble]:
    """Two crashes, or a crash and a push that comes twice."""
    pushes, crashes = [event[2] for event in world.story if event[0] == "push"], range(1, world.done + 1)
    yield from (Trouble(crashes=(at, other)) for at in crashes for other in crashes if at < other)
    yield from (Trouble(at, what, (after,)) for what in ("again", "last") for at in pushes for after in crashes)


# What is found.


def _answer(world: Once, worker: object, key: object, number: object, total: object) -> Failure | None:
    """What is wrong with an answer."""
    case, asked = world.case, [event for event in world.story if event[0] == "push"]
    if not any((event[1], *event[3:5]) == (worker, key, number) for event in asked):
        given = repr((worker, key, number))[:60]
        return failure("not-an-answer", "once-not-asked", case, given=given)
    counts = world.counts(total)
    values = {"worker": worker, "key": key, "number": number}
    came = {(event[1], event[4]) for event in asked if event[3] == key}
    if counts is None or not counts.keys() <= came:
        got = repr(total)[:30]
        return _failure("wrong-sum", "once-no-sum", world, **values, got=got)
    twice = [(who, at) for (who, at), times in counts.items() if times > 1]
    if twice:
        values |= {"who": twice[0][0], "at": twice[0][1], "times": counts[twice[0]]}
        return _failure(_mistake_of_twice(world), "once-twice", world, **values)
    for who, at in ((worker, number), *sorted(world.seen[key])):
        if (who, at) not in counts:
            values |= {"who": who, "at": at}
            mistake = _mistake_of_lost(world, Push(who, key, at), own=(who, at) == (worker, number))
            return _failure(mistake, "once-lost", world, **values)
    return None


def _mistake_of_twice(world: Once) -> str:
    trouble = world.trouble
    if trouble.crashes:
        return "value-without-count"
    names = {"twice": "counts-repeats", "lost": "by-message", "again": "only-the-last", "last": "only-the-last"}
    return names.get(trouble.happens, "wrong-sum")


def _mistake_of_lost(world: Once, push: Push, own: bool) -> str:
    """Why a push is not in a total, the one that is answered itself or another that is known to count."""
    story = world.story
    if ("crash",) not in story and not own:
        return "old-total" if world.trouble.message else "wrong-sum"
    if ("crash",) not in story:
        pushed = [Push(event[1], *event[3:5]) for event in story if event[0] == "push"]
        before = pushed[: pushed.index(push)]
        if any(each.worker == push.worker and each.key != push.key and each.number >= push.number for each in before):
            return "one-count-for-all-keys"
        others = any(each.key == push.key and each.number >= push.number for each in before)
        return "one-count-for-all-workers" if others else "wrong-sum"
    if not world.stores:
        return "memory-only"
    if not world.reads:
        return "never-reads"
    answered = [at for at, event in enumerate(story[:-1]) if event[:4] == ("send", *push)]
    if answered:
        *_, began = (at for at, event in enumerate(story[: answered[0]]) if event[0] == "push")
        if all(event[0] != "put" for event in story[began : answered[0]]):
            return "answers-first"
    return "count-without-value"


def _silent(world: Once, push: Push) -> Failure:
    code = getattr(world.on, "__code__", None)
    stub = code is not None and not (code.co_names or code.co_freevars)
    if all(event[0] != "send" for event in world.story):
        return failure("todo" if stub else "answers-nothing", "once-silent", world.case)
    return _failure("answers-once", "once-waits", world, **push._asdict())


def _fault_free(case: OnceCase, answer: Callable) -> Once:
    """The run in which nothing fails, twice: with an empty disk, nothing may be left of the first one."""
    one, other = (call(case, answer, Disk(Once(case, answer, Trouble())), _unheard) for _ in range(2))
    if shared_names(one, other, case.keys):
        raise failure("shared-memory", "pair-shared", case)
    world = Once(case, answer, Trouble()).run()
    try:
        Once(case, answer, Trouble()).run()
    except Failure:
        raise failure("shared-memory", "pair-shared", case) from None
    return world


def _require_little_kept(case: OnceCase, answer: Callable) -> None:
    """What a server keeps, in memory and on its disk, does not grow, and yet no old push counts once more.

    All gradients are 1, so pushes differ only in worker, key and number.
    """
    world, sizes, key = Once(case, answer, Trouble()), [], case.keys[0]
    told, ids = [], count(1)

    def send(*push: object) -> None:
        told.append(push)

    send.one_way = True

    def push(on: Callable, worker: int, number: int) -> object:
        """The total that is answered."""
        told.clear()
        call(case, on, worker, next(ids), key, number, 1, none=True)
        return next((total for *push, total in told if push == [worker, key, number]), None)

    on = call(case, answer, world.disk, send)
    for number in range(1, LONG[-1] + 1):
        for at, worker in enumerate(case.workers, 1):
            got, right = push(on, worker, number), len(case.workers) * (number - 1) + at
            if got != right:
                values = {"worker": worker, "number": number, "key": key, "got": repr(got)[:30], "right": right}
                raise failure("by-value", "once-same", case, **values)
        if number in LONG:
            sizes.append((size_kept(on, without=[world.disk, told]), size_kept(world.disk.kept)))
    for where, few, many in zip(("memory", "disk"), *sizes, strict=True):
        if many > few + SLACK:
            values = {"where": text(f"checks.once-in-{where}"), "few": size_text(few), "many": size_text(many)}
            raise failure("keeps-all", "once-grows", case, first=LONG[0], last=LONG[1], **values)
    numbers = (1, 2, LONG[0], LONG[1] - 1, LONG[1])
    for server, old in ((on, numbers), (call(case, answer, world.disk, send), range(1, LONG[1] + 1))):
        for worker, number in product(case.workers, old):
            got = push(server, worker, number)
            if got is None:  # that push was answered long ago; a repeat of the last one has to be
                got = push(server, worker, LONG[1])
            if got != right:
                values = {"worker": worker, "number": number, "key": key, "got": repr(got)[:30], "right": right}
                raise failure("forgets-old", "once-old", case, last=LONG[1], **values)


def _unheard(*answer: object) -> None:
    """Where answers go while it is measured what a server keeps."""


# What is told.


def _failure(mistake: str, sentence: str, world: Once, **values: object) -> Failure:
    """The Failure, what failed in this run, and what happened at last."""
    told = failure(mistake, sentence, world.case, **values)
    lines, concerned = [], True
    who = {values["worker"], values.get("who")}
    for event in world.story:
        if event[0] == "push":
            concerned = event[3] == values["key"] and event[1] in who
        if concerned or event == ("crash",) or len(world.story) < SHOWN:
            lines.append(_shown(event))
        elif lines[-1:] != ["…"]:
            lines.append("…")
    told.sentence += "\n" + text("checks.once-story", events=" · ".join(lines[-SHOWN:]))
    return told


def _shown(event: tuple) -> str:
    kind, *given = event
    return (
        f"{kind}({', '.join(repr(each)[:60] for each in given)})"
        if given
        else text("checks.once-crash" if kind == "crash" else "checks.once-lost-answer")
    )
