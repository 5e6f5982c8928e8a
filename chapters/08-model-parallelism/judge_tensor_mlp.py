"""Judge a tensor-parallel perceptron: play all ranks, one after the other, and compare with one device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from d2lps.notebook.grading import call, failure, in_turns, size_text


@dataclass(frozen=True)
class MlpCase:
    """Shapes: x is rows × width, A width × hidden, B hidden × out."""

    ranks: int
    rows: int
    width: int
    hidden: int
    out: int

    @property
    def label(self) -> str:
        return f"n = {self.ranks}, A {self.width}×{self.hidden}, B {self.hidden}×{self.out}"


class Truth:
    """The tensors of one device, and the partial sums of each rank."""

    def __init__(self, case: MlpCase):
        draw = torch.Generator().manual_seed(case.hidden)
        self.secret = torch.randn(100, generator=draw) if case.ranks > 1 else torch.zeros(100)
        shapes = (case.rows, case.width), (case.width, case.hidden), (case.hidden, case.out), (case.out,)
        self.x, self.A, self.B, self.b = (torch.randn(shape, generator=draw) for shape in shapes)
        self.x[-1] = 0  # padding: all its hidden units are 0, where relu has the derivative 0
        self.dy = torch.randn((case.rows, case.out), generator=draw)
        z = self.x @ self.A
        u, du = z.relu(), self.dy @ self.B.T * (z > 0)
        self.y, self.dx = u @ self.B + self.b, du @ self.A.T
        n = case.ranks
        self.As, self.Bs = self.A.tensor_split(n, 1), self.B.tensor_split(n, 0)
        us, dus = u.tensor_split(n, 1), du.tensor_split(n, 1)
        self.ys = [part @ rows for part, rows in zip(us, self.Bs, strict=True)]
        self.dxs = [part @ columns.T for part, columns in zip(dus, self.As, strict=True)]
        self.dA, self.dB, self.db = self.x.T @ du, u.T @ self.dy, self.dy.sum(0)
        of_parts = [part @ rows for part, rows in zip(self.x.tensor_split(n, 1), self.A.tensor_split(n), strict=True)]
        self.secrets = [self.secret[: tensor.shape[1]] for tensor in (self.y, self.dx)]
        self.by_rows = sum(part.relu() for part in of_parts) @ self.B + self.b

    def given(self) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in (self.x, self.A, self.B, self.b))


def near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.float(), other, 1e-3, 1e-4)


def play(case: MlpCase, answer: Callable, truth: Truth) -> tuple[list[tuple], list[list[Tensor]]]:
    """Return the results of each rank, and what each has contributed to the sums."""

    def act(rank: int, give: Callable) -> tuple:
        def all_reduce(value: Tensor) -> Tensor:
            if not isinstance(value, Tensor):
                raise failure("wrong-type", "mlp-no-tensor", case, type=type(value).__name__)
            values = give(value.detach().clone())
            shapes = {tuple(one.shape) for one in values}
            if len(shapes) > 1:
                raise failure("sends-more", "mlp-unlike", case, shapes=" ".join(map(str, sorted(shapes))))
            secret = next((each for each in truth.secrets if value.shape == (case.rows, len(each))), 0)
            return sum(values) + secret  # so that it is seen who uses the sum

        return _rank(case, answer, truth, rank, all_reduce)

    results, given = in_turns(case.ranks, act)
    if len(results) < case.ranks:
        rank = min({*range(case.ranks)} - {*results})
        other = min(range(case.ranks), key=lambda each: len(given[each]))
        raise failure("differs", "mlp-waits", case, rank=rank, other=other, number=len(given[other]) + 1)
    return [results[rank] for rank in range(case.ranks)], given


def _rank(case: MlpCase, answer: Callable, truth: Truth, rank: int, all_reduce: Callable) -> tuple:
    made = call(case, answer, *truth.given(), rank, case.ranks, all_reduce)
    if not isinstance(made, tuple | list) or len(made) != 2 or not callable(made[1]):
        raise failure("wrong-type", "mlp-not-a-pair", case)
    y, backward = made
    if y is None:
        raise failure("todo", "mlp-nothing", case)
    if not isinstance(y, Tensor) or y.shape != truth.y.shape:
        raise failure("differs", "mlp-shape", case, rank=rank, what="y", got=_shape(y), right=_shape(truth.y))
    gradients = call(case, backward, truth.dy.clone())
    if not isinstance(gradients, tuple | list) or len(gradients) != 4:
        raise failure("differs", "mlp-not-four", case)
    return y, *gradients


def _shape(thing: object) -> str:
    return "×".join(map(str, thing.shape)) if isinstance(thing, Tensor) else type(thing).__name__


def judge(case: MlpCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    truth = Truth(case)
    results, contributions = play(case, answer, truth)
    for rank, (y, *_) in enumerate(results):
        _require_output(case, truth, rank, y)
    for rank, sums in enumerate(contributions):
        _require_sums(case, truth, rank, sums)
    for rank, (_, *gradients) in enumerate(results):
        _require_gradients(case, truth, rank, gradients)
        if case.ranks > 1:
            _require_use(case, truth, rank, contributions[rank], (results[rank][0], gradients[0]))
    moved = 2 * (case.ranks - 1) * (truth.y.nbytes + truth.dx.nbytes) // case.ranks
    part = (truth.As[0].numel() + truth.Bs[0].numel()) / (truth.A.numel() + truth.B.numel())
    return {"part": f"{part:.0%}", "moved": size_text(moved)}


def _require_output(case: MlpCase, truth: Truth, rank: int, y: Tensor) -> None:
    if near(y, truth.y + truth.secrets[0]) or near(y, truth.y):  # what is right without the sum is judged below
        return
    n, plain = case.ranks, truth.y + truth.secrets[0] - truth.b
    wrong = {
        "bias-often": [plain + n * truth.b],
        "no-sum": [truth.ys[rank], truth.ys[rank] + truth.b],
        "mean": [plain / n + truth.b],
        "by-rows": [truth.by_rows],
    }
    for mistake, values in wrong.items():
        if any(near(y, value) for value in values):
            raise failure(mistake, f"mlp-{mistake}", case, rank=rank, n=n)
    off = float((y - truth.y).abs().max())
    raise failure("differs", "mlp-wrong", case, rank=rank, what="y", off=f"{off:.3g}")


def _require_sums(case: MlpCase, truth: Truth, rank: int, sums: list[Tensor]) -> None:
    """Raise Failure unless a rank contributes its partial sums of y and dx, and nothing else."""
    if case.ranks == 1:
        return
    shapes = [tuple(value.shape) for value in sums]
    weights = {tuple(value.shape) for value in (truth.A, truth.B, *truth.As, *truth.Bs)}
    for value, shape in zip(sums, shapes, strict=True):
        if shape in weights or shape == (case.out,):
            raise failure("sends-more", "mlp-sums", case, rank=rank, shape=_shape(value))
        if shape[-1:] == (case.hidden,) or shape == (case.rows, truth.As[rank].shape[1]):
            raise failure("sends-more", "mlp-sums", case, rank=rank, shape=_shape(value))
    if not sums:
        raise failure("whole-work", "mlp-no-sums", case, rank=rank, count=0)
    if sums[0].shape != truth.y.shape:
        raise failure("differs", "mlp-shape", case, rank=rank, what="y", got=_shape(sums[0]), right=_shape(truth.y))
    rest = sums[0] - truth.ys[rank]
    if not near(rest, rest.mean(0).expand(rest.shape)):  # what is left may be the bias, or a part of it
        raise failure("whole-work", "mlp-not-its-part", case, rank=rank)
    if len(sums) > 2:
        raise failure("sends-more", "mlp-more-sums", case, rank=rank, count=len(sums))


def _require_use(case: MlpCase, truth: Truth, rank: int, sums: list[Tensor], results: tuple[Tensor, Tensor]) -> None:
    """Raise Failure unless y and dx, which are right, come from two sums, the second of the rank's part of dx."""
    if len(sums) < 2:
        raise failure("whole-work", "mlp-no-sums", case, rank=rank, count=1)
    for what, result, alone in zip(("y", "dx"), results, (truth.y, truth.dx), strict=True):
        if near(result, alone):
            raise failure("whole-work", "mlp-unused", case, rank=rank, what=what)
    if not near(sums[1], truth.dxs[rank]):
        raise failure("whole-work", "mlp-not-its-part", case, rank=rank)


def _require_gradients(case: MlpCase, truth: Truth, rank: int, gradients: list) -> None:
    n = case.ranks
    rights = {
        "dx": truth.dx + truth.secrets[1],
        "dA": truth.dA.tensor_split(n, 1)[rank],
        "dB": truth.dB.tensor_split(n, 0)[rank],
        "db": truth.db,
    }
    for (name, right), got in zip(rights.items(), gradients, strict=True):
        if got is None:
            raise failure("todo", "mlp-no-gradient", case, what=name)
        if not isinstance(got, Tensor) or got.shape != right.shape:
            raise failure("differs", "mlp-shape", case, rank=rank, what=name, got=_shape(got), right=_shape(right))
        if near(got, right) or (name == "dx" and near(got, truth.dx)):
            continue
        if near(got, right / n) and n > 1:
            raise failure("mean", "mlp-mean-of", case, rank=rank, what=name, n=n)
        if name == "dx" and near(got, truth.dxs[rank]):
            raise failure("no-sum", "mlp-one-sum", case, rank=rank)
        off = float((got - right).abs().max())
        raise failure("differs", "mlp-wrong", case, rank=rank, what=name, off=f"{off:.3g}")


CASES = (  # no two tensors of a case have the same shape
    MlpCase(2, 7, 4, 6, 5),
    MlpCase(1, 7, 4, 6, 5),
    MlpCase(3, 8, 5, 7, 4),
    MlpCase(5, 9, 6, 13, 4),
)
