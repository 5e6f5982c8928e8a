"""Judge the hits of a cache that drops the least recently used rows."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

from d2lps.notebook.grading import call, failure, sealed, withheld
from d2lps.train import recommender


@dataclass(frozen=True)
class CacheCase:
    """``ids`` that are looked up one after the other, in a cache that has room for ``size`` of them."""

    label: str
    ids: tuple[int, ...]
    size: int


@withheld
def hits(ids: tuple[int, ...], size: int, renew: bool = True, newest: bool = False) -> int:
    """Return the hits of LRU; without ``renew`` of FIFO; ``newest``: the last one that came is let go of."""
    kept: OrderedDict = OrderedDict()
    count = 0
    for row in ids:
        if row in kept:
            count += 1
            if renew:
                kept.move_to_end(row)
            continue
        if len(kept) >= size and kept:
            kept.popitem(last=newest)
        if size > 0:
            kept[row] = None
    return count


def judge(case: CacheCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    result, right = call(case, answer, list(case.ids), case.size), right_hits(case)
    try:
        got = index(result if not isinstance(result, bool) else "")
    except TypeError:
        raise failure("wrong-type", "cache-type", case, got=repr(result)[:40]) from None
    if got != right:
        wrong = (name for name, counts in _wrong(case).items() if got in counts)
        raise failure("todo" if not got else next(wrong, "differs"), "cache-hits", case, got=got, right=right)
    count, best = max(1, len(case.ids)), _most_popular(case)
    return {"rate": f"{right / count:.1%}", "best": f"{best / count:.1%}", "size": str(case.size)}


def _most_popular(case: CacheCase) -> int:
    return sum(count for _, count in Counter(case.ids).most_common(case.size))


@sealed
def right_hits(case: CacheCase) -> int:
    return hits(case.ids, case.size)


@sealed
def _wrong(case: CacheCase) -> dict[str, tuple[int, ...]]:
    """Return the numbers that each mistake leads to; the first that fits names it."""
    ids, size = case.ids, case.size
    return {
        "fifo": (hits(ids, size, renew=False),),
        "never-full": (len(ids) - len({*ids}),),
        "newest": (hits(ids, size, newest=True),),
        "ideal": (_most_popular(case),),
        "misses": (len(ids) - hits(ids, size),),
        "size": (hits(ids, size + 1), hits(ids, size - 1)),
    }


def _drawn(count: int, rows: int, size: int, seed: int) -> CacheCase:
    ids = tuple((17 + 3 * recommender.zipf(count, rows, seed=seed)).tolist())
    return CacheCase(f"len(ids) = {count}, size = {size}", ids, size)


CASES = (
    _drawn(5000, 3000, 30, 0),
    CacheCase("a b a c a b, size = 2", (1, 2, 1, 3, 1, 2), 2),
    CacheCase("0 1 0 3 0 1, size = 2", (0, 1, 0, 3, 0, 1), 2),  # 0 is an id like others
    _drawn(400, 50, 1, 1),
    CacheCase("len(ids) = 1", (7,), 3),
    CacheCase("len(ids) = 0", (), 5),
    CacheCase("a a a, size = 1", (4, 4, 4), 1),
    _drawn(900, 200, 250, 2),
    _drawn(2000, 500, 5, 3),
)
