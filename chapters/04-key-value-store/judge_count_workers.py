"""Judge a server's round: play it messages that come twice, late and out of order, and decode who is in each sum.

Worker i pushes 4^i, each round in an element of its own, so a sum tells who is in it and how often. Then come numbers
whose sum depends on the order of adding: it must not depend on the order in which they came.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from d2lps.messages import text
from d2lps.notebook.grading import Failure, call, failure, size_kept, size_text, unlike, untouched

ROUNDS = 4
ELEMENTS = 64  # of a value with real numbers
SEEDS = 12
MANY = (100, 300)  # rounds after which it is measured what a server keeps
SLACK = 1000  # bytes by which that may grow in between: 200 numbers take more


class Push(NamedTuple):
    """Worker ``worker`` pushes for the ``number``-th time, counted from 1."""

    worker: int
    number: int


@dataclass(frozen=True)
class RoundsCase:
    """n workers, and the sequences of messages that are played."""

    n: int
    sequences: tuple[tuple[Push, ...], ...]

    @property
    def label(self) -> str:
        return f"n = {self.n}"


def rounds_case(n: int) -> RoundsCase:
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
    drawn, seed = [], 0
    while len(drawn) < SEEDS:
        draw, seed = random.Random(f"{n} {seed}"), seed + 1
        pushes = [push for one in rounds for push in one]
        pushes += draw.choices(pushes, k=2 * n)
        pushes.sort(key=lambda push: push.number + draw.uniform(0, 2))
        if _in_order(pushes, n):
            drawn.append(pushes)
    return RoundsCase(n, tuple(tuple(pushes) for pushes in (*alone, *drawn) if _in_order(pushes, n)))


def _in_order(pushes: Sequence[Push], n: int) -> bool:
    """Whether each round is complete before the next one."""
    rounds = sorted({push.number for push in pushes})
    complete = [max(pushes.index(Push(i, number)) for i in range(n)) for number in rounds]
    return complete == sorted(complete)


def decode(total: float, n: int) -> list[int] | None:
    """How often 4^0, …, 4^(n−1) are in ``total``; None if it is no such sum.

    >>> decode(4**0 + 2 * 4**2, 3)
    [1, 0, 2]
    >>> decode(0.5, 3) is None
    True
    """
    if not 0 <= total < 4**n or total != int(total):
        return None
    return [int(total) >> 2 * i & 3 for i in range(n)]


def judge(case: RoundsCase, answer: Callable) -> int:
    """How many messages a right answer has taken; raises Failure."""
    for pushes in case.sequences:
        _play(case, answer, pushes)
    _require_same_bits(case, answer)
    _require_equal_values(case, answer)
    _require_little_kept(case, answer)
    return sum(map(len, case.sequences))


def _play(case: RoundsCase, answer: Callable, pushes: Sequence[Push]) -> None:
    receive, came, values = _receive(case, answer), [], []
    for push in pushes:
        value = _powers(push, case.n)
        values.append((value, value.clone()))
        result = call(case, receive, *push, value, none=True)
        came.append(push)
        full = {worker for worker, number in came if number == push.number} == set(range(case.n))
        closes = full and came.count(push) == 1
        _require_unchanged(case, values, came)
        if closes and result is None:
            raise _unclosed(case, receive, came)
        if closes:
            _require_sum(case, result, came)
        elif result is not None:
            raise _uncalled_for(case, came, full)


def _receive(case: RoundsCase, answer: Callable) -> Callable:
    receive = call(case, answer, case.n)
    if not callable(receive):
        raise failure("wrong-type", "not-a-function", case, type=type(receive).__name__)
    return receive


def _require_unchanged(case: RoundsCase, values: list, came: Sequence[Push]) -> None:
    for (value, before), push in zip(values, came, strict=True):
        if not torch.equal(value, before):
            raise _failure("differs", "value-changed", case, came, worker=push.worker, number=push.number)


def _unclosed(case: RoundsCase, receive: Callable, came: Sequence[Push]) -> Failure:
    """The round is complete, and nothing came back: is the answer a stub?"""
    if len(came) == case.n:  # the simplest round of all
        return failure("todo" if untouched(receive) else "differs", "never-closes", case)
    return _failure("differs", "stays-open", case, came)


def _uncalled_for(case: RoundsCase, came: Sequence[Push], full: bool) -> Failure:
    """Something came back, although this message closes no round."""
    push = came[-1]
    if full:
        return _failure("repeat-opens", "closed-again", case, came)
    missing = sorted(set(range(case.n)) - {worker for worker, number in came if number == push.number})
    many = sum(each.number == push.number for each in came) >= case.n or len(came) % case.n == 0
    mistake = "counts-messages" if many and len(came) >= case.n else "differs"
    return _failure(mistake, "too-soon", case, came, workers=" ".join(map(str, missing)))


def _require_sum(case: RoundsCase, result: object, came: Sequence[Push]) -> None:
    push = came[-1]
    right = sum(_powers(Push(i, push.number), case.n) for i in range(case.n))
    if not isinstance(result, torch.Tensor) or result.shape != right.shape:
        got = f"{tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise _failure("wrong-type", "not-the-sum", case, came, got=got)
    total = result.detach().cpu().double()
    if torch.equal(total, right.double()):
        return
    at = torch.nonzero(total != right).flatten().tolist()[0]
    if at != push.number - 1:
        mistake = "repeat-opens" if at < push.number - 1 else "overwritten"
        raise _failure(mistake, "other-round", case, came, other=at + 1)
    counts = decode(float(total[at]), case.n)
    if counts is None or total[at] * case.n == right[at] > 0:  # a mean may look like a sum of powers
        got, wanted = unlike(float(total[at]), float(right[at]), digits=6)
        raise _failure("differs", "sum-of-powers", case, came, got=got, right=wanted)
    for worker, times in enumerate(counts):
        if times > 1:
            raise _failure("counted-twice", "added-often", case, came, worker=worker, times=times)
    missing = " ".join(str(worker) for worker, times in enumerate(counts) if not times)
    ahead = any(each.number > push.number for each in came)
    raise _failure("overwritten" if ahead else "differs", "added-never", case, came, workers=missing)


def _require_same_bits(case: RoundsCase, answer: Callable) -> None:
    """The same values in several orders of arrival: the same bits."""
    makes = torch.Generator().manual_seed(case.n)
    scales = 10.0 ** torch.randint(-4, 5, (case.n, ELEMENTS), generator=makes)
    values = torch.randn(case.n, ELEMENTS, generator=makes) * scales
    orders = [list(range(case.n)), list(range(case.n))[::-1]]
    orders += [random.Random(seed).sample(orders[0], case.n) for seed in range(4)]
    results = []
    for order in orders:
        receive = _receive(case, answer)
        came = [Push(worker, 1) for worker in order]
        *_, total = [call(case, receive, *push, values[push.worker].clone(), none=True) for push in came]
        right = values.double().sum(0)
        if not isinstance(total, torch.Tensor) or not torch.allclose(total.double(), right, 1e-4, 1e-1):
            raise _failure("differs", "sum-of-numbers", case, came)
        results.append(total)
        other = int((total != results[0]).sum())
        if other:
            first, last = (" ".join(map(str, each)) for each in (orders[0], order))
            raise failure("arrival-order", "arrival-order", case, first=first, order=last, count=other, all=ELEMENTS)


def _require_equal_values(case: RoundsCase, answer: Callable) -> None:
    """That two workers push the same is no repetition."""
    receive, came = _receive(case, answer), [Push(worker, 1) for worker in range(case.n)]
    *_, total = [call(case, receive, *push, torch.ones(ROUNDS), none=True) for push in came]
    if total is None:
        raise _failure("differs", "stays-open", case, came)
    if not isinstance(total, torch.Tensor) or not torch.equal(total.double(), torch.full((ROUNDS,), case.n).double()):
        raise _failure("differs", "sum-of-numbers", case, came)


def _require_little_kept(case: RoundsCase, answer: Callable) -> None:
    """Raise Failure if the memory of a server grows with the number of rounds."""
    receive, sizes = _receive(case, answer), []
    for number in range(1, MANY[-1] + 1):
        for worker in range(case.n):
            call(case, receive, worker, number, torch.full((ROUNDS,), float(worker)), none=True)
        if number in MANY:
            sizes.append(size_kept(receive))
    few, many = sizes
    if many > few + SLACK:
        first, last = MANY
        sizes = {"few": size_text(few), "many": size_text(many)}
        raise failure("keeps-all", "keeps-all", case, first=first, last=last, **sizes)


def _powers(push: Push, n: int):
    value = torch.zeros(ROUNDS)
    value[push.number - 1] = 4.0**push.worker
    return value


def _failure(mistake: str, sentence: str, case: RoundsCase, came: Sequence[Push], **values: object) -> Failure:
    """Return the Failure, with the arrivals in a line of its own, as (worker, number)."""
    values = {"at": len(came), "worker": came[-1].worker, "number": came[-1].number} | values
    told = failure(mistake, sentence, case, **values)
    pairs = [f"({worker}, {number})" for worker, number in came]
    told.sentence += "\n" + text("checks.what-came", messages=" ".join(["…"] * (len(pairs) > 24) + pairs[-24:]))
    return told
