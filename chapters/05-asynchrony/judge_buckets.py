"""Judge buckets of gradients: each is there, in the order of getting ready, and the last bucket arrives soonest.

One bucket is sent after the other, each once its last gradient is ready and the one before has arrived. The best
end is found by trying, for the first j gradients, every beginning of their last bucket.
"""

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from d2lps.messages import text
from d2lps.notebook.grading import call, failure, time_text, unlike

NEAR = 1e-9  # of the best end, which is added up in another order
Buckets = Sequence[Sequence[int]]


@dataclass(frozen=True)
class BucketsCase:
    """Gradients of ``sizes`` bytes, ``ready`` at these seconds, on a link of a latency and a bandwidth."""

    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    alpha: float
    bandwidth: float
    more: str = ""

    @property
    def label(self) -> str:
        return f"len(sizes) = {len(self.sizes)}{self.more}"

    def seconds(self, start: int, stop: int) -> float:
        """How long a bucket of the gradients from ``start`` up to ``stop`` is on its way."""
        return self.alpha + sum(self.sizes[start:stop]) / self.bandwidth


def drawn_case(seed: int, n: int, alpha: float, bandwidth: float) -> BucketsCase:
    """A case of n gradients; a few are as large as all others together, as in a network."""
    draw = random.Random(seed)
    sizes = tuple(draw.choice((4_000, 60_000, 400_000, 8_000_000)) for _ in range(n))
    ready = tuple(accumulate(draw.choice((1e-5, 2e-4, 1e-3)) for _ in range(n)))
    return BucketsCase(sizes, ready, alpha, bandwidth, f" ({seed})")


def cut(lengths: Sequence[int]) -> list[list[int]]:
    """Buckets of so many gradients each, in order.

    >>> cut([2, 1])
    [[0, 1], [2]]
    """
    return [list(range(start, stop)) for start, stop in pairwise((0, *accumulate(lengths)))]


def sent(case: BucketsCase, buckets: Buckets) -> list[tuple[float, float]]:
    """When each bucket begins to be sent, and when it has arrived."""
    times, free = [], 0.0
    for bucket in buckets:
        start = max(free, case.ready[bucket[-1]])
        free = start + case.seconds(bucket[0], bucket[-1] + 1)
        times.append((start, free))
    return times


def best(case: BucketsCase) -> tuple[float, list[list[int]]]:
    """The soonest end, and buckets that reach it."""
    ends: list[tuple[float, list[list[int]]]] = [(0.0, [])]
    for j in range(1, len(case.sizes) + 1):
        starts = [max(end, case.ready[j - 1]) for end, _ in ends]
        end, i = min((start + case.seconds(i, j), i) for i, start in enumerate(starts))
        ends.append((end, [*ends[i][1], list(range(i, j))]))
    return ends[-1]


def judge(case: BucketsCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    result = call(case, answer, list(case.sizes), list(case.ready), case.alpha, case.bandwidth)
    buckets = _buckets(case, result)
    times = sent(case, buckets)
    end, (soonest, better) = times[-1][1], best(case)
    if end > soonest * (1 + NEAR):
        shown = unlike(end, soonest, time_text)
        values = {"end": shown[0], "best": shown[1], "enough": len(better)}
        told = failure(mistake_of(case, buckets), "buckets-late", case, **values)
        told.sentence = "\n".join([told.sentence, *_lines(case, buckets, times)])
        raise told
    n = len(case.sizes)
    alone, together = (sent(case, cut(lengths))[-1][1] for lengths in ([1] * n, [n]))
    busy = sum(stop - start for start, stop in times)
    exposed = end - case.ready[-1]
    moments = {"end": end, "alone": alone, "together": together, "busy": busy, "exposed": exposed}
    counts = {"buckets": str(len(buckets)), "hidden": f"{1 - exposed / busy:.0%}"}
    return counts | {name: time_text(seconds) for name, seconds in moments.items()}


def _buckets(case: BucketsCase, result: object) -> list[list[int]]:
    n = len(case.sizes)
    try:
        buckets = [[operator.index(i) for i in bucket] for bucket in result]
    except Exception:
        raise failure("wrong-type", "not-buckets", case, type=type(result).__name__) from None
    inside = [i for bucket in buckets for i in bucket]
    if not inside:
        raise failure("todo", "no-buckets", case)
    for i in inside:
        if not 0 <= i < n:
            raise failure("differs", "gradient-strange", case, i=i, last=n - 1)
        if inside.count(i) > 1:
            raise failure("differs", "gradient-twice", case, i=i)
    for i in range(n):
        if i not in inside:
            raise failure("differs", "gradient-missing", case, i=i)
    if [] in buckets:
        raise failure("differs", "bucket-empty", case, at=buckets.index([]))
    for i, following in pairwise(inside):
        if following != i + 1:
            raise failure("out-of-order", "gradients-turned", case, i=i, following=following)
    return buckets


def mistake_of(case: BucketsCase, buckets: Buckets) -> str:
    """The name of what makes these buckets late."""
    if len(buckets) == len(case.sizes):
        return "one-each"
    if len(buckets) == 1:
        return "all-in-one"
    if buckets == whatever_is_ready(case):
        return "whatever-is-ready"
    return "of-one-size" if _of_one_size(case, buckets) else "late"


def whatever_is_ready(case: BucketsCase) -> list[list[int]]:
    """Whenever the link is free, all that is ready goes: natural, and not always best."""
    lengths, free, n, i = [], 0.0, len(case.sizes), 0
    while i < n:
        start = max(free, case.ready[i])
        j = sum(ready <= start for ready in case.ready)
        lengths.append(j - i)
        free, i = start + case.seconds(i, j), j
    return cut(lengths)


def _of_one_size(case: BucketsCase, buckets: Buckets) -> bool:
    """Whether a number of gradients, or a number of bytes that closes a bucket, explains all but the last one."""
    full = buckets[:-1]
    if len(full) < 2:
        return False
    if len({len(bucket) for bucket in full}) == 1 and len(buckets[-1]) <= len(full[0]):
        return True
    nbytes = [[case.sizes[i] for i in bucket] for bucket in buckets]
    reached = max(sum(each[:-1]) for each in nbytes) < min(map(sum, nbytes[:-1]))  # closed once it is reached
    kept = max(map(sum, nbytes)) < min(sum(each) + then[0] for each, then in pairwise(nbytes))  # never more than that
    return reached or kept


def _lines(case: BucketsCase, buckets: Buckets, times: Sequence[tuple[float, float]]) -> list[str]:
    """A line for each bucket: when it is ready, and when it is sent."""
    lines = []
    for bucket, (start, end) in zip(buckets, times, strict=True):
        shown = str(list(bucket)) if len(bucket) < 9 else f"[{bucket[0]}, …, {bucket[-1]}]"
        moments = {"ready": case.ready[bucket[-1]], "start": start, "end": end}
        lines.append(text("checks.bucket-sent", bucket=shown, **{name: time_text(at) for name, at in moments.items()}))
    return lines if len(lines) <= 8 else [*lines[:3], "…", *lines[-3:]]


def cases() -> tuple[BucketsCase, ...]:
    """One to follow by hand, the plain extremes, then drawn ones."""
    MB, ms = 1_000_000, 1e-3
    by_hand = (2 * ms, 4 * ms, 5 * ms, 6 * ms, 8 * ms, 11 * ms)
    return (
        BucketsCase((3 * MB, MB, MB, 4 * MB, 4 * MB, MB), by_hand, 2 * ms, 2e9),
        BucketsCase((3 * MB,), (1 * ms,), ms, 1e9),
        BucketsCase((2 * MB,) * 30, (4 * ms,) * 30, ms, 1e9),  # all at once: one message
        BucketsCase((MB,) * 5, (2 * ms, 4 * ms, 6 * ms, 8 * ms, 10 * ms), ms / 10, 1e9, " (2)"),  # one each
        BucketsCase((8 * MB, MB, MB, MB), (1 * ms, 2 * ms, 3 * ms, 4 * ms), ms, 1e9),
        *(drawn_case(seed, 12, alpha, 5e9) for seed, alpha in enumerate((1e-5, 3e-4, 2e-3))),
        *(drawn_case(seed, 40, alpha, 12.5e9) for seed, alpha in enumerate((3e-5, 3e-4, 1e-3), 3)),
        # One each again, and two by two: any larger bucket makes the link late, and it has no time to catch up.
        BucketsCase((949_000,) * 40, tuple(i * ms for i in range(1, 41)), ms / 20, 1e9, " (6)"),
        BucketsCase((474_500,) * 40, tuple((i // 2 + 1) * ms for i in range(40)), ms / 20, 1e9, " (7)"),
    )
