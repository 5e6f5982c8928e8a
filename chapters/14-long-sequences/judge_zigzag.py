"""Judge how the blocks of a causal sequence are dealt to devices: each once, equally many, and equal work."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure


@dataclass(frozen=True)
class BlocksCase:
    """So many blocks for n devices; block b sees b + 1 blocks."""

    n: int
    blocks: int

    @property
    def label(self) -> str:
        return f"n = {self.n}, blocks = {self.blocks}"

    @property
    def mean(self) -> float:
        """The mean work of a device, in pairs of blocks."""
        return self.blocks * (self.blocks + 1) / 2 / self.n


def judge(case: BlocksCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    devices = _devices(case, call(case, answer, case.n, case.blocks))
    every = sorted(block for own in devices for block in own)
    if not every:
        raise failure("todo", "zigzag-nothing", case)
    if every != [*range(case.blocks)]:
        lost = [block for block in range(case.blocks) if block not in every]
        twice = [block for block in {*every} if every.count(block) > 1]
        if strange := [block for block in {*every} if not 0 <= block < case.blocks]:
            raise failure("not-once", "zigzag-strange", case, block=strange[0], last=case.blocks - 1)
        block, times = (lost[0], 0) if lost else (twice[0], every.count(twice[0]))
        raise failure("not-once", "zigzag-times", case, block=block, times=times)
    work = [sum(block + 1 for block in own) for own in devices]
    most = max(range(case.n), key=work.__getitem__)
    counts = sorted(map(len, devices))
    if work[most] > case.mean + case.n / 2:
        raise failure(
            _mistake(case, devices),
            "zigzag-work",
            case,
            device=most,
            got=work[most],
            mean=f"{case.mean:g}",
            most=f"{case.mean + case.n / 2:g}",
        )
    if counts[-1] - counts[0] > 1:
        raise failure("counts", "zigzag-counts", case, least=counts[0], most=counts[-1])
    contiguous = case.blocks // case.n * (2 * case.blocks - case.blocks // case.n + 1) / 2
    return {"most": str(max(work)), "contiguous": f"{contiguous:g}"}


def _devices(case: BlocksCase, got: object) -> list[list[int]]:
    try:
        devices = [[operator.index(block) for block in own] for own in got]
    except Exception:
        raise failure("wrong-type", "zigzag-no-lists", case, type=type(got).__name__) from None
    if len(devices) != case.n:
        raise failure("wrong-type", "zigzag-devices", case, got=len(devices), n=case.n)
    return devices


def _mistake(case: BlocksCase, devices: list[list[int]]) -> str:
    """Return the name of the mistake of devices of which one has too much work."""
    owner = {block: device for device, own in enumerate(devices) for block in own}
    order = [owner[block] for block in range(case.blocks)]
    if all(sorted(own) == [*range(min(own), max(own) + 1)] for own in devices if own):
        return "contiguous"
    if order in (
        [block % case.n for block in range(case.blocks)],
        [-1 - block % case.n + case.n for block in range(case.blocks)],
    ):
        return "striped"
    even = case.blocks - case.blocks % (2 * case.n)
    work = [sum(block + 1 for block in own if block < even) for own in devices]
    return "heavy-rest" if even < case.blocks and max(work) == min(work) else "differs"


CASES = tuple(
    BlocksCase(*each) for each in ((4, 8), (3, 6), (4, 16), (5, 14), (1, 3), (2, 4), (4, 9), (8, 27), (6, 31), (7, 35))
)
