"""Judge how many bytes of weights, gradients and Adam's state the fullest rank keeps, in a stage of ZeRO."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from d2lps.notebook.grading import call, failure, number, sealed, size_text, unlike, withheld

KINDS = (2, 2, 12)  # bytes per parameter of weights, gradients and state
FROM = (3, 2, 1)  # the stage that divides each


@dataclass(frozen=True)
class BytesCase:
    """A model of so many parameters on so many ranks."""

    params: int
    ranks: int
    stage: int

    @property
    def label(self) -> str:
        return f"n = {self.ranks}, params = {self.params}, stage = {self.stage}"

    @withheld
    def bytes(self, kinds: tuple = KINDS, since: tuple = FROM, part: float | None = None) -> float:
        """Return the bytes if each kind is divided from a stage on; ``part`` is the part of a rank."""
        own = -(-self.params // self.ranks) if part is None else part
        sizes = zip(kinds, since, strict=True)
        return sum(size * (own if self.stage >= first else self.params) for size, first in sizes)


@sealed
def of_stages(case: BytesCase) -> list[float]:
    """Return the bytes in the stages 0 to 3."""
    return [BytesCase(case.params, case.ranks, stage).bytes() for stage in range(4)]


def judge(case: BytesCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    got, right = call(case, answer, case.params, case.ranks, case.stage), of_stages(case)[case.stage]
    try:
        got = number(got)
    except TypeError:
        raise failure("wrong-type", "state-no-number", case, type=type(got).__name__) from None
    if got == 0:
        raise failure("todo", "state-nothing", case)
    got = max(-1e300, min(got, 1e300))  # a whole number may be too large for a float
    if got != right:
        shown = unlike(got, right, digits=12)
        raise failure(_mistake(case, got), "state-wrong", case, got=shown[0], right=shown[1])
    return {"all": ", ".join(map(size_text, of_stages(case)))}


def _mistake(case: BytesCase, got: float) -> str:
    """Return the name of the first mistake that leads to this number."""
    right = of_stages(case)[case.stage]  # what is not whole, and so next to it, is no such mistake
    near = (
        name
        for name, values in _wrong(case).items()
        if any(value != right and abs(got - value) <= 1e-9 * value for value in values)
    )
    return next(near, "differs")


@sealed
def _wrong(case: BytesCase) -> dict[str, list[float]]:
    """Return the numbers that each mistake leads to; the first that fits names it."""
    finer = [(since, case.bytes((2, 2, 4, 8), since)) for since in product(range(1, 5), repeat=4)]
    late = [value for since, value in finer if all(map(int.__ge__, since, (3, 2, 1, 1)))]
    all_float32 = {"all-float32": [case.bytes((4, 4, 8)), case.bytes((4, 4, 12))]}
    return {
        "no-copy": [case.bytes((2, 2, 8))],
        # In stage 1 a 32-bit copy that is kept whole takes as much, but such an answer has failed before, in stage 3.
        **(all_float32 if case.stage < 2 else {}),
        "late": late,
        **all_float32,
        "mean-part": [case.bytes(part=case.params / case.ranks), case.bytes(part=case.params // case.ranks)],
        "early": [value for since, value in finer if all(map(int.__le__, since, (3, 2, 1, 1)))],
        "all-ranks": [case.ranks * case.bytes()],
    }


# Stage 3 comes first, with parts that are not equal: so an answer that keeps a kind whole for too long, or adds up all
# ranks, fails there, before others give the same number.
CASES = tuple(
    BytesCase(params, ranks, stage)
    for params, ranks, stage in (
        *((7_500_000_001, 64, stage) for stage in (3, 1, 2, 0)),
        *((1001, 2, stage) for stage in (3, 2)),
        *((10, 3, stage) for stage in (1, 3)),
        *((24, 1, stage) for stage in (3, 1)),
        *((7, 5, stage) for stage in (2, 3)),
    )
)
