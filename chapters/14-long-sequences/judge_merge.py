"""Judge the merge of parts of attention: each is an output and the logarithm of the sum of its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from d2lps.notebook.grading import call, failure, sealed, unlike
from d2lps.units import show_error

SIZE = 3


@dataclass(frozen=True)
class PartsCase:
    """The number of keys of each part, the scale of the scores, and how queries are masked.

    ``masked`` is 0 (no query), 1 (each part hides a query) or 2 (a query sees no key at all).
    """

    keys: tuple[int, ...]
    scale: float = 1.0
    masked: int = 0
    queries: int = 5

    @property
    def label(self) -> str:
        more = {1: ", masked", 2: ", all masked"}.get(self.masked, "")
        return f"n = {len(self.keys)}, keys = {list(self.keys)}, scale = {self.scale:g}{more}"

    @cached_property
    def given(self) -> list[tuple[Tensor, Tensor]]:
        """The parts: output and logarithm of the sum, as a kernel of attention returns them."""
        return [self._attend(at) for at in self._cuts]

    @cached_property
    def right(self) -> tuple[Tensor, Tensor]:
        """The output and the logarithm of the sum over all keys, computed at once."""
        o, log_sum = self._written()
        return torch.tensor(o).reshape(-1, SIZE), torch.tensor(log_sum)

    @sealed
    def _written(self) -> tuple[list, list]:
        return tuple(each.tolist() for each in self._attend(slice(None)))

    @property
    def _cuts(self) -> list[slice]:
        ends = [sum(self.keys[: i + 1]) for i in range(len(self.keys))]
        return [slice(end - count, end) for end, count in zip(ends, self.keys, strict=True)]

    def _attend(self, at: slice) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(sum(self.keys))
        scores = self.scale * torch.randn(self.queries, sum(self.keys), generator=draw, dtype=torch.float64)
        values = torch.randn(sum(self.keys), SIZE, generator=draw, dtype=torch.float64)
        for i, cut in enumerate(self._cuts if self.masked else ()):
            scores[i % self.queries, cut] = float("-inf")
        if self.masked == 2:
            scores[-1] = float("-inf")
        log_sum = scores[:, at].logsumexp(1)
        weights = torch.exp(scores[:, at] - torch.where(log_sum.isinf(), 0, log_sum)[:, None])
        return (weights @ values[at]).float(), log_sum.float()


def judge(case: PartsCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    given = [(o.clone(), log_sum.clone()) for o, log_sum in case.given]
    got = call(case, answer, [(o.clone(), log_sum.clone()) for o, log_sum in given])
    o, log_sum = _pair(case, got)
    right, right_sum = case.right
    if _near(o, right) and _near(log_sum, right_sum):
        return {"parts": str(len(given)), "off": show_error(float((o - right).abs().max()))}
    if len(given) > 1 and _near(o, given[0][0]) and _near(log_sum, given[0][1]):
        raise failure("todo", "merge-first", case)
    if not (torch.isfinite(o).all() and not (log_sum.isnan() | (log_sum == float("inf"))).any()):
        row = int((~torch.isfinite(o).all(1) | log_sum.isnan() | (log_sum == float("inf"))).nonzero()[0])
        raise failure("masked" if case.masked else "overflow", "merge-not-finite", case, row=row)
    if _near(o, right):
        row = _row(log_sum, right_sum)
        got, wanted = unlike(log_sum[row], right_sum[row], digits=5)
        raise failure("log-sum", "merge-log", case, row=row, got=got, right=wanted)
    row = _row(o, right)
    outputs, sums = (torch.stack(each) for each in zip(*given, strict=True))
    weights = torch.exp(sums - sums.amax(0).nan_to_num(neginf=0))[..., None]
    wrong = {
        "mean": [outputs.mean(0), outputs.sum(0), outputs.nan_to_num().mean(0)],
        "not-divided": [(weights * outputs).sum(0), (sums.exp()[..., None] * outputs).sum(0)],
        "log-weights": [
            (sums[..., None] * outputs).sum(0) / sums.sum(0)[:, None],
            sums.softmax(1)[..., None].mul(outputs).sum(0),
        ],
    }
    if case.masked:
        mistake = "masked"
    else:
        mistake = next((name for name, values in wrong.items() if any(_near(o, value) for value in values)), "differs")
    at = row, int((o[row] - right[row]).abs().argmax())
    got, wanted = unlike(o[at], right[at], digits=5)
    raise failure(mistake, "merge-wrong", case, row=row, got=got, right=wanted)


def _pair(case: PartsCase, got: object) -> tuple[Tensor, Tensor]:
    right, right_sum = case.right
    try:
        o, log_sum = got
        if not (isinstance(o, Tensor) and isinstance(log_sum, Tensor)):
            raise TypeError
    except Exception:
        raise failure("wrong-type", "merge-no-pair", case, type=type(got).__name__) from None
    for name, tensor, wanted in (("o", o, right), ("log_sum", log_sum, right_sum)):
        if tensor.shape != wanted.shape:
            shapes = {"got": str(tuple(tensor.shape)), "right": str(tuple(wanted.shape))}
            raise failure("wrong-type", "merge-shape", case, name=name, **shapes)
    return o.detach().float(), log_sum.detach().float()


def _near(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=2e-4, atol=2e-5, equal_nan=True)


def _row(one: Tensor, other: Tensor) -> int:
    near = torch.isclose(one, other, rtol=2e-4, atol=2e-5)
    return int((~(near.all(1) if near.dim() > 1 else near)).nonzero()[0])


# Scores far from 0, below and above, come before masks: an answer that takes nothing out of exp fails there.
CASES = (
    PartsCase((4, 4)),
    PartsCase((3, 1, 6)),
    PartsCase((5, 5), scale=200),
    PartsCase((7,)),
    PartsCase((4, 4, 4, 4), masked=1),
    PartsCase((2, 5, 3), masked=2),
    PartsCase((1,) * 12, scale=30),
)
