"""Judge a server's round: play it messages that come twice, late and out of order, and decode who is in each sum.

Worker i pushes 4^i, each round in an element of its own, so a sum tells who is in it and how often. Then come numbers
whose sum depends on the order of adding: it must not depend on the order in which they came.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from d2lps.course.grading.asked import Failure, failure
from d2lps.course.grading.attempt import called
from d2lps.course.grading.playing import calling, digits
from d2lps.messages import text

ROUNDS = 4
ELEMENTS = 64  # of a value with real numbers
SEEDS = 12


class Push(NamedTuple):
    """Worker ``worker`` pushes for the ``number``-th time, counted from 1."""

    worker: int
    number: int


@dataclass(frozen=True)
class Counting:
    """n workers, and the sequences of messages that are played."""

    n: int
    sequences: tuple[tuple[Push, ...], ...]

    @property
    def label(self) -> str:
        return f"n = {self.n}"


def counting(n: int) -> Counting:
    """The case of n workers: each difficulty by itself first, then all together, drawn from seeds."""
    workers = range(n)
    rounds = [[Push(i, number) for i in workers] for number in range(1, ROUNDS + 1)]
    first, second, *_ = rounds
    early = [first[0], second[0], *first[1:], *second[1:]]  # worker 0 is a round ahead
    alone = (
        [*first, *second],
        [push for push in first for _ in range(2)],
        [*first[:1] * n, *first[1:]],
        early,
        [*first, *second[:-1], *first, second[-1]],  # the first round comes again while the second is open
        [*first, *first, *second],
        [second[0], *first, *second[1:]],
    )
    drawn = []
    for seed in range(SEEDS):
        draw = random.Random(f"{n} {seed}")
        pushes = [push for one in rounds for push in one]
        pushes += draw.choices(pushes, k=2 * n)
        drawn.append(sorted(pushes, key=lambda push: push.number + draw.uniform(0, 2)))
    return Counting(n, tuple(map(tuple, (*alone, *drawn))))


def judge(case: Counting, answer: Callable, diagnose: Callable | None = None) -> int:
    """How many messages a right answer has taken; raises Failure."""
    for pushes in case.sequences:
        _play(case, answer, pushes)
    _bits(case, answer)
    return sum(map(len, case.sequences))


def _play(case: Counting, answer: Callable, pushes: Sequence[Push]) -> None:
    receive, came = _made(case, answer), []
    given = []
    for push in pushes:
        value = _powers(push, case.n)
        given.append((value, value.clone()))
        found = calling(case, receive, *push, value)
        came.append(push)
        full = {worker for worker, number in came if number == push.number} == set(range(case.n))
        closes = full and came.count(push) == 1
        _unchanged(case, given, came)
        if closes and found is None:
            raise _unclosed(case, receive, came)
        if closes:
            _right(case, found, came)
        elif found is not None:
            raise _unasked(case, found, came, full)


def _made(case: Counting, answer: Callable) -> Callable:
    receive = called(case, answer, case.n)
    if not callable(receive):
        raise failure("not-a-function", "not-a-function", case, type=type(receive).__name__)
    return receive


def _unchanged(case: Counting, given: list, came: Sequence[Push]) -> None:
    import torch

    for (value, before), push in zip(given, came, strict=True):
        if not torch.equal(value, before):
            raise _told("changes-it", "value-changed", case, came, worker=push.worker, number=push.number)


def _unclosed(case: Counting, receive: Callable, came: Sequence[Push]) -> Failure:
    """The round is complete, and nothing came back: is the answer a stub, or which message has it lost?"""
    if len(came) == case.n:  # the simplest round of all
        code = getattr(receive, "__code__", None)
        untouched = code is not None and not (code.co_names or code.co_freevars)
        return failure("todo" if untouched else "stays-open", "never-closes", case)
    number = came[-1].number
    mine = [i for i, each in enumerate(came) if each.number == number]
    early = number > 1 and any(not _closed(case, came[:i], number - 1) for i in mine)
    return _told("early-lost" if early else "stays-open", "stays-open", case, came)


def _closed(case: Counting, came: Sequence[Push], number: int) -> bool:
    return {each.worker for each in came if each.number == number} == set(range(case.n))


def _unasked(case: Counting, found: object, came: Sequence[Push], full: bool) -> Failure:
    """Something came back, although this message closes no round."""
    push = came[-1]
    if full:
        return _told("repeat-opens", "closed-again", case, came)
    missing = sorted(set(range(case.n)) - {worker for worker, number in came if number == push.number})
    many = sum(each.number == push.number for each in came) >= case.n or len(came) % case.n == 0
    return _told(
        "counts-messages" if many and len(came) >= case.n else "too-soon",
        "too-soon",
        case,
        came,
        workers=" ".join(map(str, missing)),
    )


def _right(case: Counting, found: object, came: Sequence[Push]) -> None:
    import torch

    push = came[-1]
    right = sum(_powers(Push(i, push.number), case.n) for i in range(case.n))
    if not isinstance(found, torch.Tensor) or found.shape != right.shape:
        got = f"{tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise _told("not-the-sum", "not-the-sum", case, came, got=got)
    found = found.detach().cpu().double()
    if torch.equal(found, right.double()):
        return
    at = next(iter(torch.nonzero(found != right).flatten().tolist()))
    if at != push.number - 1:
        mistake = "repeat-opens" if at < push.number - 1 else "overwritten"
        raise _told(mistake, "other-round", case, came, other=at + 1)
    counts = digits(float(found[at]), case.n)
    if counts is None or found[at] * case.n == right[at] > 0:  # a mean may look like a sum of powers
        got, wanted = (f"{float(each[at]):g}" for each in (found, right))
        raise _told("wrong-sum", "sum-of-powers", case, came, got=got, right=wanted)
    for worker, times in enumerate(counts):
        if times > 1:
            raise _told("counted-twice", "added-often", case, came, worker=worker, times=times)
    missing = " ".join(str(worker) for worker, times in enumerate(counts) if not times)
    alone = sum(counts) == 1 and came[-1].worker == counts.index(1)
    raise _told("not-added" if alone else "overwritten", "added-never", case, came, workers=missing)


def _bits(case: Counting, answer: Callable) -> None:
    """The same values in several orders of arrival: the same bits."""
    import torch

    makes = torch.Generator().manual_seed(case.n)
    scales = 10.0 ** torch.randint(-4, 5, (case.n, ELEMENTS), generator=makes)
    values = torch.randn(case.n, ELEMENTS, generator=makes) * scales
    orders = [list(range(case.n)), list(range(case.n))[::-1]]
    orders += [random.Random(seed).sample(orders[0], case.n) for seed in range(4)]
    results = []
    for order in orders:
        receive = _made(case, answer)
        came = [Push(worker, 1) for worker in order]
        *_, found = [calling(case, receive, *push, values[push.worker].clone()) for push in came]
        right = values.double().sum(0)
        if not isinstance(found, torch.Tensor) or not torch.allclose(found.double(), right, 1e-4, 1e-1):
            raise _told("wrong-sum", "sum-of-numbers", case, came)
        results.append(found)
        other = int((found != results[0]).sum())
        if other:
            first, last = (" ".join(map(str, each)) for each in (orders[0], order))
            raise failure("arrival-order", "arrival-order", case, first=first, order=last, count=other, all=ELEMENTS)


def _powers(push: Push, n: int):
    import torch

    value = torch.zeros(ROUNDS)
    value[push.number - 1] = 4.0**push.worker
    return value


def _told(mistake: str, sentence: str, case: Counting, came: Sequence[Push], **values: object) -> Failure:
    """The Failure, and in a line of its own what has come, as (worker, number)."""
    values = {"at": len(came), "worker": came[-1].worker, "number": came[-1].number} | values
    found = failure(mistake, sentence, case, **values)
    shown = [f"({worker}, {number})" for worker, number in came]
    found.sentence += "\n" + text("checks.what-came", messages=" ".join(["…"] * (len(shown) > 24) + shown[-24:]))
    return found
