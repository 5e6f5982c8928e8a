"""Judge a round of local steps: what the worker computes, pushes and returns; the check plays the other workers.

A step moves the weights towards a point of the worker's own, and the point turns with every step: so the weights say
which steps they have gone through, and from where. All workers begin a round with the same weights, as the sum that
they pull is one and the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from d2lps.notebook.grading import call, failure, size_text

ELEMENTS = 8
ROUNDS = 3


@dataclass(frozen=True)
class LocalCase:
    """Workers with these ``shares`` of all data, and the number of ``local`` steps, h."""

    shares: tuple[float, ...]
    local: int
    shape: tuple[int, ...] = (ELEMENTS,)

    @property
    def label(self) -> str:
        return f"n = {len(self.shares)}, h = {self.local}"


def stepped(worker: int, made: int, weights: torch.Tensor) -> torch.Tensor:
    """The weights after a step of ``worker`` that has made so many before."""
    point = torch.sin(torch.arange(1.0, ELEMENTS + 1) * (3 * worker + made + 1)).view(weights.shape)
    return weights - 0.1 * (1 + worker) * (weights - 5 * point)


@dataclass
class Round:
    """One round of one worker: its functions push, pull and step, and a record of their calls."""

    case: LocalCase
    worker: int
    number: int
    start: torch.Tensor
    taken: list[torch.Tensor] = field(default_factory=list)  # the weights with which step was called
    pushed: list[torch.Tensor] = field(default_factory=list)
    pulled: list[torch.Tensor] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.case.shares[self.worker]

    def after(self, worker: int, local: int) -> torch.Tensor:
        """The weights of a worker after so many steps of this round."""
        weights = self.start
        for i in range(local):
            weights = stepped(worker, self.number * self.case.local + i, weights)
        return weights

    def step(self, weights: object) -> torch.Tensor:
        if not isinstance(weights, torch.Tensor) or weights.shape != self.start.shape:
            self.refuse("wrong-type", "step-not-weights", type=type(weights).__name__)
        self.taken.append(weights.detach().clone())
        if len(self.taken) > 10 * self.case.local + 10:
            self.refuse("differs", "steps-many")
        return stepped(self.worker, self.number * self.case.local + len(self.taken) - 1, self.taken[-1])

    def push(self, value: object) -> None:
        if not isinstance(value, torch.Tensor) or value.shape != self.start.shape:
            self.refuse("wrong-type", "push-not-weights", type=type(value).__name__)
        if self.pushed:
            self.refuse("differs", "pushed-often")
        value = value.detach().clone().float()
        self.pushed.append(value)
        right = self.after(self.worker, self.case.local)
        if not near(value, self.share * right):
            mistake, sentence = self.why(value)
            self.refuse(mistake, sentence, times=f"{along(value, right):.3g}")

    def pull(self) -> torch.Tensor:
        if not self.pushed:
            self.refuse("pulls-first", "pull-waits")
        if self.pulled:
            self.refuse("differs", "pulled-often")
        self.pulled.append(sum(share * self.after(i, self.case.local) for i, share in enumerate(self.case.shares)))
        return self.pulled[-1].clone()

    def why(self, value: torch.Tensor) -> tuple[str, str]:
        """The mistake behind a wrong push, and the sentence that tells it."""
        local, share, start = self.case.local, self.share, self.start
        if len(self.taken) > 1 and all(torch.equal(each, start) for each in self.taken):
            return "same-start", "steps-from-start"
        if len(self.taken) != local:
            return "every-step" if len(self.taken) == 1 else "differs", "steps-made"
        right = self.after(self.worker, local)
        change = right - start
        if any(near(value, factor * change) for factor in (share, 1.0, -share, -1.0)):
            return "pushes-change", "push-is-change"
        times = along(value, right)
        if near(value, right):
            return "share-missing", "push-times"
        return "differs", "push-times" if near(value, times * right) else "push-other"

    def refuse(self, mistake: str, sentence: str, **values: object) -> None:
        values |= {"steps": len(self.taken), "enough": self.case.local, "share": f"{self.share:g}"}
        raise failure(mistake, sentence, self.case, round=self.number + 1, worker=self.worker, **values)


def along(value: torch.Tensor, right: torch.Tensor) -> float:
    """How many times ``right`` is in ``value``, if nothing else is."""
    return float((value * right).sum() / (right * right).sum())


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), 1e-3, 1e-4)


def judge(case: LocalCase, answer: Callable) -> dict[str, str]:
    """Return the values for the sentence to a right answer; raise Failure."""
    weights = torch.linspace(-2, 2, ELEMENTS).view(case.shape)
    for number in range(ROUNDS):
        for worker in range(len(case.shares)):
            mean = _play(case, answer, Round(case, worker, number, weights))
        weights = mean
    steps, nbytes = ROUNDS * case.local, 2 * 4 * ELEMENTS  # there and back
    moved = {"moved": size_text(ROUNDS * nbytes), "every": size_text(steps * nbytes)}
    return {"steps": str(steps), "rounds": str(ROUNDS)} | moved


def _play(case: LocalCase, answer: Callable, here: Round) -> torch.Tensor:
    """The weights with which all begin the next round."""
    given = here.start.clone(), here.push, here.pull, here.step, case.local, here.share
    result = call(case, answer, *given, none=True)
    if not here.taken and not here.pushed:
        here.refuse("todo", "no-step")
    if not here.pushed:
        here.refuse("differs", "never-pushed")
    if not here.pulled:
        here.refuse("differs", "never-pulled")
    _require_mean(here, result)
    return here.pulled[-1]


def _require_mean(here: Round, result: object) -> None:
    mean, own = here.pulled[-1], here.after(here.worker, here.case.local)
    if result is None:
        here.refuse("nothing-returned", "no-weights")
    if not isinstance(result, torch.Tensor) or result.shape != mean.shape:
        here.refuse("wrong-type", "result-not-weights", type=type(result).__name__)
    if near(result, mean):
        return
    if near(result, own) or near(result, here.start):
        here.refuse("own-weights", "returns-own")
    if near(result, here.share * mean) or near(result, mean / len(here.case.shares)):
        here.refuse("share-again", "returns-part")
    here.refuse("differs", "returns-other")


CASES = (
    LocalCase((0.5, 0.5), 4),
    LocalCase((0.5, 0.5), 1),
    LocalCase((0.5, 0.25, 0.25), 3, (2, 4)),
    LocalCase((0.7, 0.1, 0.1, 0.1), 24),
    LocalCase((1.0,), 2),
)
