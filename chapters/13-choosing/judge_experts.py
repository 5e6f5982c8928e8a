"""Judge one rank of a mixture of experts: play all ranks, one after the other, and compare with one device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from d2lps.notebook.grading import call, failure, gradient, in_turns, unlike

WIDTH = 3


@dataclass(frozen=True)
class TokenCase:
    """How many tokens each rank has, and how many of them an expert accepts."""

    tokens: tuple[int, ...]
    capacity: int
    seed: int = 0

    @property
    def label(self) -> str:
        return f"n = {self.ranks}, tokens = {list(self.tokens)}, capacity = {self.capacity}"

    @property
    def ranks(self) -> int:
        return len(self.tokens)

    @cached_property
    def given(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each rank: tokens, the expert that each has chosen, and its gate."""
        draw = torch.Generator().manual_seed(self.seed)
        return [
            (
                torch.randn(count, WIDTH, generator=draw),
                torch.randint(self.ranks, (count,), generator=draw) * torch.randint(2, (count,), generator=draw),
                torch.rand(count, generator=draw) / 2 + 0.25,
            )
            for count in self.tokens
        ]

    def made(self, rank: int) -> Tensor:
        """Return what the experts make of the tokens of a rank."""
        x, choice, _ = self.given[rank]
        return torch.stack([expert(int(e), token) for e, token in zip(choice, x, strict=True)]) if len(x) else x

    def factors(self, rank: int) -> Tensor:
        """Return by how much each output of a rank counts."""
        x = self.given[rank][0]
        return torch.linspace(1, 2, x.numel()).view(x.shape)

    def gradient(self, rank: int) -> Tensor:
        """Return the gradient of a rank's gates on one device, for outputs that count by these factors."""
        return (self.made(rank) * self.factors(rank)).sum(1) * self.kept(rank)

    def kept(self, rank: int, last: bool = False) -> Tensor:
        """Return which tokens of a rank their experts accept: the first ones of each, or the last."""
        choice = self.given[rank][1]
        others = [choice[i + 1 :] if last else choice[:i] for i in range(len(choice))]
        place = torch.stack([(some == e).sum() for some, e in zip(others, choice, strict=True)]) if others else choice
        return place < self.capacity


def expert(number: int, tokens: Tensor) -> Tensor:
    """Return what an expert makes of tokens; each number has a function of its own."""
    return (tokens * (number + 1)).sin() + number


def play(case: TokenCase, answer: Callable) -> tuple[list[object], list, list[list[list[Tensor]]]]:
    """Return the result of each rank, the gradient of its gates, and its contribution to each exchange."""
    gradients: dict[int, Tensor | None] = {}

    def act(rank: int, give: Callable) -> object:
        def exchange(parts: object) -> list[Tensor]:
            return [others[rank].clone() for others in give(_parts(case, rank, parts))]

        x, choice, gate = (tensor.clone() for tensor in case.given[rank])
        gate.requires_grad_()  # the router learns by it
        arguments = x, choice, gate, case.ranks, case.capacity, exchange, lambda tokens: expert(rank, tokens)
        y = call(case, answer, *arguments)
        if isinstance(y, Tensor) and y.shape == x.shape:
            wanted = y, gate, case.factors(rank).to(y.dtype)
            gradients[rank] = call(case, gradient, answer, *wanted, none=True)
        return y

    results, given = in_turns(case.ranks, act)
    if len(results) < case.ranks:
        rank = min({*range(case.ranks)} - {*results})
        raise failure("other-count", "experts-waits", case, rank=rank, number=len(given[rank]))
    return *([each.get(rank) for rank in range(case.ranks)] for each in (results, gradients)), given


def _parts(case: TokenCase, rank: int, parts: object) -> list[Tensor]:
    good = isinstance(parts, list | tuple) and len(parts) == case.ranks
    if not good or not all(isinstance(part, Tensor) and part.shape[1:] == (WIDTH,) for part in parts):
        raise failure("wrong-type", "experts-parts", case, rank=rank, n=case.ranks, width=WIDTH)
    return [part.detach().clone() for part in parts]


def judge(case: TokenCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    results, gradients, given = play(case, answer)
    for rank, y in enumerate(results):
        shape = tuple(case.given[rank][0].shape)
        if not isinstance(y, Tensor) or tuple(y.shape) != shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise failure("differs", "experts-shape", case, rank=rank, got=got, right=shape)
    if not any(given) and all(not y.any() for y in results):
        raise failure("todo", "experts-nothing", case)
    for rank, exchanges in enumerate(given):
        _require_sent(case, rank, exchanges)
    for rank, y in enumerate(results):
        _require_values(case, rank, y.detach())
        _require_gradient(case, rank, gradients[rank])
    counts = [sum(int(case.kept(r)[case.given[r][1] == e].sum()) for r in range(case.ranks)) for e in range(case.ranks)]
    return {"counts": ", ".join(map(str, counts)), "dropped": str(sum(case.tokens) - sum(counts))}


def _require_sent(case: TokenCase, rank: int, exchanges: list[list[Tensor]]) -> None:
    """Raise Failure unless a rank exchanges twice, and first sends the tokens that each expert accepts."""
    if len(exchanges) != 2:
        raise failure("other-count", "experts-times", case, rank=rank, count=len(exchanges))
    (_, choice, _), kept = case.given[rank], case.kept(rank)
    for e, part in enumerate(exchanges[0]):
        enough = int((kept & (choice == e)).sum())
        if len(part) != enough:
            mistake = "other-tokens" if len(part) < enough else "sends-more"
            raise failure(mistake, "experts-sent", case, rank=rank, expert=e, got=len(part), enough=enough)


def _require_values(case: TokenCase, rank: int, y: Tensor) -> None:
    (x, choice, gate), kept, made = case.given[rank], case.kept(rank)[:, None], case.made(rank)
    gates, zero = gate[:, None], torch.zeros_like(x)
    right = torch.where(kept, made * gates, zero)
    near = lambda other: torch.allclose(y.float(), other, 1e-4, 1e-5)  # noqa: E731
    if near(right):
        return
    order = torch.cat([(case.kept(rank) & (choice == e)).nonzero().flatten() for e in range(case.ranks)])
    sorted_first = torch.cat([made[order], zero[len(order) :]])
    wrong = {
        "gate": [torch.where(kept, part, zero) for part in (made, right * gates)],
        "other-tokens": [torch.where(case.kept(rank, last=True)[:, None], made * gates, zero)],
        "passes-dropped": [torch.where(kept, made * gates, x)],
        "other-order": [sorted_first * gates, torch.cat([(made * gates)[order], zero[len(order) :]])],
    }
    mistake = next((name for name, values in wrong.items() if any(map(near, values))), "differs")
    row = int((~torch.isclose(y.float(), right, 1e-4, 1e-5)).any(1).nonzero()[0])
    raise failure(mistake, "experts-wrong", case, rank=rank, row=row)


def _require_gradient(case: TokenCase, rank: int, got: Tensor | None) -> None:
    kept, right = case.kept(rank), case.gradient(rank)
    if not kept.any():
        return
    got = torch.zeros_like(right) if got is None else got
    if not torch.allclose(got, right, 1e-4, 1e-5):
        row = int((~torch.isclose(got, right, 1e-4, 1e-5)).nonzero()[0])
        shown = unlike(got[row], right[row])
        raise failure("gate", "experts-gradient", case, rank=rank, row=row, got=shown[0], right=shown[1])


CASES = (
    TokenCase((6, 6), 2, 17),
    TokenCase((8, 5, 7), 3, 1),
    TokenCase((4,), 2, 2),
    TokenCase((5, 9, 0, 3, 12), 2, 3),
    TokenCase((7, 7, 7), 100, 4),
)
