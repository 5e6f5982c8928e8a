"""Judge one rank of an all-gather: play all ranks, one after the other, and count steps and blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index

from d2lps.notebook.grading import call, failure, in_turns


@dataclass(frozen=True)
class GatherCase:
    """``n`` ranks, each with a block of its own."""

    n: int

    @property
    def label(self) -> str:
        return f"n = {self.n}"

    @property
    def steps(self) -> int:
        return (self.n - 1).bit_length()

    @property
    def power(self) -> bool:
        """True for a power of two."""
        return not self.n & (self.n - 1)

    @property
    def blocks(self) -> list[str]:
        """No block tells whose it is."""
        return [f"block-{(37 * rank + 11) % 101}" for rank in range(self.n)]


def play(case: GatherCase, answer: Callable) -> tuple[list[object], list[list[tuple]], list[set[str]]]:
    """Return the result of each rank, its swaps: (to, blocks, source), and the blocks that it has in the end."""
    mistake = "waits" if case.power else "powers-of-two"
    has = [{block} for block in case.blocks]

    def act(rank: int, give: Callable) -> object:
        number = 0

        def swap(to: object, blocks: object, source: object) -> list:
            nonlocal number
            mine = _swapped(case, rank, to, blocks, source, has[rank])
            number += 1
            if number > 4 * case.n + 1:
                raise failure("too-many-steps", "bruck-endless", case, rank=rank, got=number)
            _, _, source = mine
            ((to, sent, _),) = give(mine, [source])
            if to != rank:
                raise failure(mistake, "bruck-elsewhere", case, rank=rank, source=source, to=to, number=number)
            has[rank].update(sent)
            return list(sent)

        return call(case, answer, rank, case.n, case.blocks[rank], swap)

    results, swaps = in_turns(case.n, act)
    if len(results) < case.n:
        rank = min({*range(case.n)} - {*results})
        number, (_, _, source) = len(swaps[rank]), swaps[rank][-1]
        raise failure(mistake, "bruck-waits", case, rank=rank, source=source, number=number)
    return [results[rank] for rank in range(case.n)], swaps, has


def _swapped(
    case: GatherCase, rank: int, to: object, blocks: object, source: object, has: set[str]
) -> tuple[int, tuple, int]:
    try:
        to, source = index(to), index(source)
    except TypeError:
        raise failure("wrong-type", "bruck-no-rank", case, rank=rank, got=repr((to, source))[:40]) from None
    for other in (to, source):
        if not 0 <= other < case.n:
            mistake = "differs" if case.power else "powers-of-two"
            raise failure(mistake, "bruck-strange-rank", case, rank=rank, got=other, last=case.n - 1)
    if isinstance(blocks, str) or not isinstance(blocks, list | tuple):
        raise failure("wrong-type", "bruck-sends-type", case, rank=rank, type=type(blocks).__name__)
    for block in blocks:
        if not isinstance(block, str) or block not in has:
            raise failure("differs", "bruck-sends-strange", case, rank=rank, block=repr(block)[:40])
    return to, tuple(blocks), source


def judge(case: GatherCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    results, swaps, has = play(case, answer)
    if case.n > 1 and not any(swaps):
        raise failure("todo", "bruck-nothing", case)
    for rank, made in enumerate(swaps):
        if len(made) > case.steps:
            raise failure("too-many-steps", "bruck-steps", case, rank=rank, got=len(made), enough=case.steps)
    for rank, result in enumerate(results):
        _require_blocks(case, rank, result, has[rank])
    for rank, made in enumerate(swaps):
        sent = sum(len(blocks) for _, blocks, _ in made)
        if sent > case.n - 1:
            raise failure("too-many-blocks", "bruck-sends", case, rank=rank, got=sent, enough=case.n - 1)
    return {"steps": str(case.steps), "ring": str(case.n - 1), "sent": str(case.n - 1)}


def _require_blocks(case: GatherCase, rank: int, result: object, has: set[str]) -> None:
    right = case.blocks
    if isinstance(result, str) or not isinstance(result, list | tuple):
        raise failure("wrong-type", "bruck-not-a-list", case, rank=rank, type=type(result).__name__)
    got = list(result)
    lacking = [block for block in right if block not in got or block not in has]
    if got == right and not lacking:
        return
    if len(got) != case.n or lacking:
        mistake = "other-blocks" if case.power or case.n > 16 else "powers-of-two"
        raise failure(mistake, "bruck-blocks", case, rank=rank, got=len(got), missing=len(lacking))
    first = max(0, next(at for at in range(case.n) if got[at] != right[at]) - 4)
    shown = " ".join(["…"] * (first > 0) + [str(right.index(block)) for block in got[first : first + 12]])
    mistake = "not-rotated" if got == right[rank:] + right[:rank] else "differs"
    raise failure(mistake, "bruck-turned", case, rank=rank, got=shown)


# The last needs six steps; 6, 7 and 11 are neither powers of two nor next to one.
CASES = tuple(map(GatherCase, (4, 5, 1, 2, 3, 6, 7, 8, 11, 33)))
