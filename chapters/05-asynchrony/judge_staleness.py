"""Judge the rule of bounded staleness: play it pushes and reads, and ask after each of them who may read.

A push may come again, and a read may overtake the pushes before it. A read that may not happen yet waits, and is
asked for again after every event. If an answer differs, the rules that learners write instead are played the same
events: the one that has answered alike all along names the mistake.
"""

import contextlib
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, untouched

from .staleness_rules import INSTEAD, Rule

KEYS = FIRST, SECOND, LATE = 7, 1_000_007, 3  # the last one is pushed two rounds later; two end in the same digits
ROUNDS = 6
SEEDS = 6
LONG = 200  # so many other pushes come while a read waits


class Event(NamedTuple):
    """An event at the server: a push for the ``number``-th time, a wish to read after so many, or a farewell."""

    kind: str
    worker: int
    key: int = 0
    number: int = 0


class Asked(NamedTuple):
    """A requested read, after the event ``at``, and its answer."""

    at: int
    event: Event
    answer: bool


push, read = partial(Event, "push"), partial(Event, "read")


@dataclass(frozen=True)
class StalenessCase:
    """n workers, the bound s, and the sequences of events that are played."""

    n: int
    s: float
    sequences: tuple[tuple[Event, ...], ...]

    @property
    def label(self) -> str:
        return f"n = {self.n}, s = {'∞' if self.s == math.inf else self.s}"


def staleness_case(n: int, s: float) -> StalenessCase:
    """Make the case of n workers and this bound: each difficulty alone first, then workers of different speeds.

    Worker 0 is the fast one, and worker n − 1 the slow one; in each further sequence they are the next ones.
    """
    far = 8 if s == math.inf else s + 5  # so often worker 0 pushes, and the others once: then its read has to wait
    others = range(1, n)
    once = [push(worker, FIRST, 1) for worker in range(n)]
    ahead = [push(0, FIRST, number) for number in range(2, far + 1)]
    follow = [push(worker, FIRST, number) for worker in others for number in range(2, far + 1)]
    leave = [Event("leave", worker) for worker in others]
    long = range(1, LONG + 1)
    asks, asks_late = read(0, FIRST, far), read(0, LATE, far)
    late = [push(0, LATE, number) for number in range(1, far + 1)]
    alone = (
        [kind(worker, FIRST, number) for number in (1, 2) for kind in (push, read) for worker in range(n)],
        [*once, *ahead, *[read(worker, FIRST, 1) for worker in others]],  # the slow ones may read
        [*once, *ahead[: far - 5], read(0, FIRST, far - 4)],  # as far ahead as may be
        [*once, *ahead, asks, *[push(0, SECOND, number) for number in long], *follow],
        [*once, *[kind(0, FIRST, number) for number in range(2, far - 2) for kind in (push, read)], *follow],
        [push(0, FIRST, 1), *ahead, asks, *[push(worker, FIRST, 1) for worker in others], *follow],
        [*once, *[push(n - 1, FIRST, 1)] * (2 * far), *ahead, asks, *follow],  # a push is repeated
        [*once, *follow, *[push(worker, FIRST, 1) for worker in others], *ahead, asks],  # an old one comes again
        [*once, *follow, read(0, FIRST, 2), *[push(0, SECOND, number) for number in long], push(0, FIRST, 2)],
        [*once, *[push(n - 1, SECOND, number) for number in range(1, far + 3)], *ahead, asks, *follow],
        [*once, *ahead, asks, *leave],
        [*once, *leave, *once[::-1], *ahead, asks, *late, asks_late],
        [*leave, *late, asks_late],  # the others have never pushed
    )
    drawn = [drawn_events(n, s, seed) for seed in range(SEEDS)]
    sequences = [
        tuple(event._replace(worker=(event.worker + turn) % n) for event in events)
        for turn, events in enumerate((*alone, *drawn))
    ]
    return StalenessCase(n, s, tuple(sequences))


def drawn_events(n: int, s: float, seed: int) -> list[Event]:
    """A training by the rule, in virtual time: worker n − 1 is slow, one leaves early, messages come late or twice."""
    draw, rule, events, waiting = random.Random(f"{n} {seed}"), Rule(n, s), [], {}
    queue = [(draw.random(), worker, Event("go", worker)) for worker in range(n)]
    heapq.heapify(queue)
    early = draw.randrange(n)
    pushes = [_drawn_pushes(draw, 2 if worker == early else ROUNDS) for worker in range(n)]
    arrives = Counter()  # worker → when its last push arrives: what one sends arrives in order

    def later(now: float, event: Event) -> None:
        heapq.heappush(queue, (now, event.worker, event))

    while queue:
        now, worker, event = heapq.heappop(queue)
        if event.kind == "go":
            if not pushes[worker]:
                later(arrives[worker] + 0.1, Event("leave", worker))
                continue
            for key, number in pushes[worker].pop(0):
                arrives[worker] = max(arrives[worker], now + draw.uniform(0, 0.3)) + 1e-6
                later(arrives[worker], push(worker, key, number))
                if draw.random() < 0.3:
                    later(arrives[worker] + draw.uniform(0, 3), push(worker, key, number))
            later(now + draw.uniform(0.2, 0.6), read(worker, key, number))
            continue
        events.append(event)
        if event.kind == "read":
            waiting[worker] = event
        else:
            getattr(rule, event.kind)(*event[1 : 4 if event.kind == "push" else 2])
        for asks in [each for each in waiting.values() if rule.may_read(*each[1:])]:
            del waiting[asks.worker]
            later(now + draw.expovariate(1) * (3 if asks.worker == n - 1 else 1), Event("go", asks.worker))
    return events


def _drawn_pushes(draw: random.Random, rounds: int) -> list[list[tuple[int, int]]]:
    """All that a worker pushes, as (key, number); sometimes it pushes twice before it reads."""
    pushes = [(key, number) for number in range(1, rounds + 1) for key in (FIRST, SECOND)]
    pushes += [(LATE, number) for number in range(1, rounds - 1)]
    pushes.sort(key=lambda push: push[1] + 2 * (push[0] == LATE))
    batches = []
    while pushes:
        many = draw.choice((1, 1, 1, 2))
        batches.append(pushes[:many])
        pushes = pushes[many:]
    return batches


def play(events: Sequence[Event], rule: Rule, tell: Callable, ask: Callable) -> list[Asked]:
    """Tell the events one after the other, and ask for all waiting reads after each, until an answer is not right."""
    asked, waiting = [], []
    for at, event in enumerate(events, 1):
        if event.kind == "read":
            waiting.append(event)
        else:
            given = event[1:] if event.kind == "push" else event[1:2]
            getattr(rule, event.kind)(*given)
            tell(event.kind, *given)
        for each in list(waiting):
            answer, right = ask(*each[1:]), rule.may_read(*each[1:])
            asked.append(Asked(at, each, answer))
            if answer != right:
                return asked
            if right:
                waiting.remove(each)
    return asked


def judge(case: StalenessCase, answer: Callable) -> None:
    """Raises Failure."""
    past = []
    for events in case.sequences:
        functions = _functions(case, answer)
        rule = Rule(case.n, case.s)

        def ask(worker: int, key: int, number: int, may_read: Callable = functions["may_read"]) -> bool:
            result = call(case, may_read, worker, key, number, none=True)
            with contextlib.suppress(Exception):  # NumPy's, or a tensor's
                result = result.item()
            if not isinstance(result, bool):
                stub = result is None and not past and untouched(may_read)
                raise failure("todo" if stub else "wrong-type", "not-yes-or-no", case, got=repr(result)[:60])
            return result

        def tell(kind: str, *given: object, functions: dict = functions) -> None:
            call(case, functions[kind], *given, none=True)

        asked = play(events, rule, tell, ask)
        past.append((events, asked))
        if asked and asked[-1].answer != rule.may_read(*asked[-1].event[1:]):
            raise _blame(case, rule, past, ask)


def _functions(case: StalenessCase, answer: Callable) -> dict[str, Callable]:
    result = call(case, answer, case.n, case.s)
    three = list(result) if isinstance(result, tuple | list) else []
    if len(three) != 3 or not all(map(callable, three)):
        raise failure("wrong-type", "not-three-rules", case, type=type(result).__name__)
    return dict(zip(("push", "may_read", "leave"), three, strict=True))


def _blame(case: StalenessCase, rule: Rule, past: Sequence[tuple], ask: Callable) -> Failure:
    """Name the mistake, the clocks of the workers, and the arrivals."""
    events, asked = past[-1]
    last = asked[-1]
    with contextlib.suppress(Failure):  # more questions, so that fewer rules answer alike
        for number in range(1, rule.clock[last.event.worker, last.event.key] + 1):
            each = last.event._replace(number=number)
            asked.append(Asked(last.at, each, ask(*each[1:])))
    names = (name for name, make in INSTEAD if all(_answers_alike(make(case.n, case.s), *each) for each in past))
    mistake = next(names, "differs")
    _, worker, key, number = last.event
    clocks = " ".join(f"{i}:{rule.clock[i, key]}" for i in range(case.n) if i not in rule.gone)
    sentence = "may-too-early" if last.answer else "may-too-late"
    told = failure(mistake, sentence, case, at=last.at, worker=worker, key=key, number=number, clocks=clocks)
    came = [_shown(event) for event in events[: last.at]]
    told.sentence += "\n" + text("checks.what-happened", events=" ".join(["…"] * (len(came) > 16) + came[-16:]))
    return told


def _answers_alike(other: Rule, events: Sequence[Event], asked: Sequence[Asked]) -> bool:
    """Whether ``other`` gives to these events the answers that were given."""
    answers = iter(asked)
    following = next(answers, None)
    for at, event in enumerate(events, 1):
        if event.kind != "read":
            getattr(other, event.kind)(*(event[1:] if event.kind == "push" else event[1:2]))
        while following and following.at == at:
            if other.may_read(*following.event[1:]) != following.answer:
                return False
            following = next(answers, None)
    return True


def _shown(event: Event) -> str:
    given = event[1:] if event.kind != "leave" else event[1:2]
    return f"{event.kind}({', '.join(map(str, given))})"


def waits() -> dict[str, str]:
    """How many reads of three workers have to wait at least once, for each bound."""
    found = {}
    for name, s in (("zero", 0), ("one", 1), ("three", 3), ("never", math.inf)):
        reads, waited = set(), set()
        for seed in range(SEEDS):
            rule = Rule(3, s)
            asked = play(drawn_events(3, s, seed), rule, lambda *_: None, rule.may_read)
            reads |= {(seed, each.event) for each in asked}
            waited |= {(seed, each.event) for each in asked if not each.answer}
        found[name], found["reads"] = str(len(waited)), str(len(reads))
    return found
