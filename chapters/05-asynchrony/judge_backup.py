"""Judge an update from the first n of n + b workers: play it gradients that come late, twice and early.

Worker i's gradient of round r is 4^i in element r − 1, so an update tells whose gradients are in it, and how often.
After the last element comes the first again. The workers that come last in one round may be the first of the next.
Some sequences are played with equal gradients.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, unlike, untouched

ROUNDS = 4
LONG = 120  # rounds of the longest sequence
SEEDS = 12


class Push(NamedTuple):
    """A gradient of ``worker`` for the round of this ``number``, counted from 1."""

    worker: int
    number: int


@dataclass(frozen=True)
class BackupCase:
    """n gradients of this shape make an update, of n + b workers; these sequences of messages are played."""

    n: int
    b: int
    shape: tuple[int, ...]
    sequences: tuple[tuple[Push, ...], ...]
    equal: tuple[tuple[Push, ...], ...]  # played with equal gradients

    @property
    def label(self) -> str:
        return f"n = {self.n}, b = {self.b}"


def backup_case(n: int, b: int, shape: Sequence[int] = (ROUNDS,)) -> BackupCase:
    """Make the case of n and b: each difficulty by itself first, then all together, drawn from seeds."""
    workers = list(range(n + b))
    first, second = ([Push(i, number) for i in workers] for number in (1, 2))
    alone = (
        first[:n],
        first[b:],  # others are the first ones
        [*first, *second],  # the late ones come between two rounds
        [*first[:1], *first],  # a gradient comes twice before the round is complete
        [*first[:n], *second[: n - 1], *first[n:], *second[n - 1 :]],  # late ones come while the next round is open
        [*first[:n], *first[:n], *second],  # what has counted comes again
        [first[0], second[0], *first[1:], *second[1:]],  # worker 0 is a round ahead
    )
    drawn = []
    for seed in range(SEEDS):
        draw = random.Random(f"{n} {b} {seed}")
        pushes = [Push(i, number) for number in range(1, ROUNDS + 1) for i in workers]
        pushes += draw.choices(pushes, k=2 * (n + b))
        drawn.append(sorted(pushes, key=lambda push: push.number + draw.uniform(0, 2)))
    sequences = [each for each in (*alone, *drawn) if in_order(each, n)]
    if b > 1:  # after many rounds, old gradients come again
        many = [Push((i + number) % (n + b), number) for number in range(1, LONG + 1) for i in range(n)]
        sequences.append([*many, *first, *[push._replace(number=LONG // 2) for push in first]])
    equal = [*first[:1], *first[:n], *second[:1], *second[b:]]
    return BackupCase(n, b, tuple(shape), tuple(map(tuple, sequences)), (tuple(equal),))


def in_order(pushes: Sequence[Push], n: int) -> bool:
    """Whether each round has its n gradients before the next one has."""
    closed = [push.number for i, push in enumerate(pushes) if counted(pushes[: i + 1], n)]
    return closed == sorted(closed)


def counted(came: Sequence[Push], n: int) -> list[int]:
    """The workers of an update, in the order of arrival, if the last message makes it; else none.

    >>> counted([Push(2, 1), Push(2, 1), Push(0, 1)], 2)
    [2, 0]
    >>> counted([Push(2, 1), Push(0, 1), Push(1, 1)], 2)
    []
    """
    *before, last = came
    there = list(dict.fromkeys(push.worker for push in before if push.number == last.number))
    return [*there, last.worker] if len(there) == n - 1 and last.worker not in there else []


def judge(case: BackupCase, answer: Callable) -> int:
    """How many messages a right answer has taken; raises Failure."""
    for pushes in case.sequences:
        _play(case, answer, pushes)
    for pushes in case.equal:
        _play(case, answer, pushes, equal=True)
    return sum(map(len, case.sequences + case.equal))


def _play(case: BackupCase, answer: Callable, pushes: Sequence[Push], equal: bool = False) -> None:
    receive = call(case, answer, case.n, case.b)
    if not callable(receive):
        raise failure("wrong-type", "not-a-function", case, type=type(receive).__name__)
    given = []  # tensors, their copies, and the sentence for a change
    for i, push in enumerate(pushes):
        came, value = pushes[: i + 1], torch.ones(case.shape) if equal else _gradient(case, push)
        given.append((value, value.clone(), ("gradient-changed", push)))
        result, who = call(case, receive, *push, value, none=True), counted(came, case.n)
        for tensor, before, (sentence, of) in given if i + 1 == len(pushes) else given[-16:]:
            if not torch.equal(tensor, before):
                raise _failure("differs", sentence, case, came, worker=of.worker, number=of.number)
        if who and equal:
            if not _is_mean(result, value):
                workers = " ".join(map(str, sorted(who)))
                raise _failure("differs", "equal-gradients", case, came, workers=workers, got=repr(result)[:60])
        elif who and result is None:
            raise _no_update(case, receive, pushes, i)
        elif who:
            _require_mean(case, result, came, who)
        elif result is not None:
            raise _uncalled_for(case, came, result, equal)
        if who:
            given.append((result, result.clone(), ("update-changed", push)))


def _is_mean(result: object, right: torch.Tensor) -> bool:
    """Return True if the result is this tensor, but for rounding."""
    same = isinstance(result, torch.Tensor) and result.shape == right.shape
    return same and torch.allclose(result.detach().cpu().double(), right.double(), 1e-5, 1e-6)


def _no_update(case: BackupCase, receive: Callable, pushes: Sequence[Push], at: int) -> Failure:
    """n gradients are there, and no update: is the answer a stub, what has it lost, or what does it wait for?"""
    number, came = pushes[at].number, pushes[: at + 1]
    if untouched(receive):
        return failure("todo", "no-update", case)
    mine = [i for i, push in enumerate(came) if push.number == number]
    early = number > 1 and any(not closed(came[:i], number - 1, case.n) for i in mine)
    if early:
        return _failure("loses-early-next", "still-open", case, came)
    if any(push.number > number for push in came):
        return _failure("differs", "still-open", case, came)
    for worker in range(case.n + case.b):  # does it come when all have pushed?
        if call(case, receive, worker, number, _gradient(case, Push(worker, number)), none=True) is not None:
            return _failure("waits-for-all", "waits-for-all", case, came)
    return _failure("differs", "still-open", case, came)


def closed(came: Sequence[Push], number: int, n: int) -> bool:
    return len({push.worker for push in came if push.number == number}) >= n


def _uncalled_for(case: BackupCase, came: Sequence[Push], result: object, equal: bool) -> Failure:
    """An update, although this message completes nothing."""
    *before, push = came
    there = len({each.worker for each in came if each.number == push.number})
    if closed(before, push.number, case.n):
        return _failure("late", "late-brings", case, came)
    if not equal:
        _require_own_round(case, result, came)
    messages = sum(each.number == push.number for each in came)
    return _failure("worker-twice" if messages >= case.n else "differs", "update-early", case, came, there=there)


def _require_own_round(case: BackupCase, result: object, came: Sequence[Push]) -> None:
    number = came[-1].number
    if isinstance(result, torch.Tensor) and result.shape == case.shape:
        elements = result.flatten().tolist()
        numbers = {push.number for push in came if push.number % len(elements) != number % len(elements)}
        other = [each for each in sorted(numbers) if elements[(each - 1) % len(elements)]]
        if other:
            mistake = "late" if other[0] < number else "differs"
            raise _failure(mistake, "gradient-of-other", case, came, other=other[0])


def _require_mean(case: BackupCase, result: object, came: Sequence[Push], who: Sequence[int]) -> None:
    number, n = came[-1].number, case.n
    right = sum(_gradient(case, Push(i, number)) for i in who) / n
    if not isinstance(result, torch.Tensor) or result.shape != right.shape:
        got = f"{tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise _failure("wrong-type", "not-an-update", case, came, got=got)
    if _is_mean(result, right):
        return
    mean = result.detach().cpu().double()
    _require_own_round(case, result, came)
    at = (number - 1) % mean.numel()
    got = float(mean.flatten()[at])
    shown = unlike(got, float(right.flatten()[at]), digits=6)
    values = {"got": shown[0], "right": shown[1], "workers": " ".join(map(str, sorted(who)))}
    raise _failure(_mistake_of(case, got, came, who), "not-the-mean", case, came, **values)


def _mistake_of(case: BackupCase, got: float, came: Sequence[Push], who: Sequence[int]) -> str:
    """Why ``got`` is not the mean of the gradients of ``who``."""
    n, total = case.n, sum(4**i for i in who)
    messages = [push.worker for push in came if push.number == came[-1].number]
    if abs(got - total / (n + case.b)) < 1e-3 and len(messages) == n:
        return "divides-by-all"
    if abs(got - total) < 1e-3:
        return "not-divided"
    return "worker-twice" if abs(got * n - sum(4**i for i in messages[:n])) < 1e-3 else "differs"


def _gradient(case: BackupCase, push: Push) -> torch.Tensor:
    value = torch.zeros(case.shape)
    value.view(-1)[(push.number - 1) % value.numel()] = 4.0**push.worker
    return value


def _failure(mistake: str, sentence: str, case: BackupCase, came: Sequence[Push], **values: object) -> Failure:
    """Return the Failure, with the arrivals in a line of its own, as (worker, number)."""
    values = {"at": len(came), "worker": came[-1].worker, "number": came[-1].number, "n": case.n} | values
    told = failure(mistake, sentence, case, **values)
    pairs = [f"({worker}, {number})" for worker, number in came]
    told.sentence += "\n" + text("checks.what-came", messages=" ".join(["…"] * (len(pairs) > 24) + pairs[-24:]))
    return told
