"""Judge a division (t, p, d): possible, within the memory, and at most 5% slower than the fastest."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from d2lps.notebook.grading import call, failure, size_text, time_text, unlike
from d2lps.scaling import GPUS, MODELS, Layout, Transformer, kept, step

NEAR = 1.05  # of the shortest time
SMALL = Transformer(layers=12, width=768, heads=12, context=1024, vocabulary=50257)
KNOWN = MODELS | {"small": SMALL}


@dataclass(frozen=True)
class GpuCase:
    """A model, and the GPUs for it; ``memory`` in 10⁹ bytes."""

    model: str
    gpus: int
    memory: float
    per_node: int
    batch: int

    @property
    def label(self) -> str:
        there = f"memory = {self.memory:g}e9, per_node = {self.per_node}, batch = {self.batch}"
        return f"n = {self.gpus}, {self.model}, {there}"

    def layout(self, t: int, p: int, d: int) -> Layout:
        return Layout(t, p, d, 1, 1, self.batch // d, stage=1, recompute="selective")

    def need(self, cut: tuple[int, int, int]) -> dict[str, float]:
        """Return the bytes of the fullest GPU, by item."""
        return kept(KNOWN[self.model], self.layout(*cut))

    def seconds(self, cut: tuple[int, int, int]) -> float:
        return sum(step(KNOWN[self.model], self.layout(*cut), GPUS["a100"], per_node=self.per_node).values())


@cache
def possible(case: GpuCase) -> dict[tuple[int, int, int], float]:
    """Return the seconds of every division that can be made and fits."""
    model, times = KNOWN[case.model], {}
    for t in range(1, case.per_node + 1):
        for p in range(1, model.layers + 1):
            d = case.gpus // (t * p)
            whole = case.gpus % (t * p) == model.heads % t == model.layers % p == case.per_node % t == 0
            if whole and d and case.batch % d == 0 and sum(case.need((t, p, d)).values()) <= case.memory * 1e9:
                times[t, p, d] = case.seconds((t, p, d))
    return times


def judge(case: GpuCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    memory, times = int(case.memory * 1e9), possible(case)
    got = call(case, answer, KNOWN[case.model], case.gpus, memory, case.per_node, case.batch, none=True)
    if got is None:
        if times:
            raise failure("todo" if case is CASES[0] else "gives-up", "choose-none", case)
        return {}
    cut = _cut(case, got)
    _require_possible(case, cut)
    items = case.need(cut)
    if (need := sum(items.values())) > memory:
        states = sum(items[name] for name in ("weights", "gradients", "optimizer"))
        mistake = "activations-forgotten" if states <= memory else "too-large"
        needs, room = unlike(need, memory, size_text)
        raise failure(mistake, "choose-large", case, cut=cut, needs=needs, memory=room)
    best = min(times, key=times.get)
    if times[cut] > NEAR * times[best]:
        got, least = unlike(times[cut], times[best], time_text)
        raise failure("slow", "choose-slow", case, cut=cut, got=got, best=least)
    slowest = max(times, key=times.get)
    return {
        "cut": str(cut),
        "need": size_text(need),
        "time": time_text(times[cut]),
        "slowest": str(slowest),
        "slow": time_text(times[slowest]),
        "count": str(len(times)),
    }


def _cut(case: GpuCase, got: object) -> tuple[int, int, int]:
    try:
        t, p, d = map(operator.index, got)
        if min(t, p, d) < 1:
            raise ValueError
    except Exception:
        raise failure("differs", "choose-strange", case, got=repr(got)[:60]) from None
    return t, p, d


def _require_possible(case: GpuCase, cut: tuple[int, int, int]) -> None:
    (t, p, d), model = cut, KNOWN[case.model]
    if t * p * d != case.gpus:
        raise failure("differs", "choose-count", case, cut=cut, got=t * p * d, gpus=case.gpus)
    if t > case.per_node:
        raise failure("across-nodes", "choose-across", case, cut=cut, t=t, per_node=case.per_node)
    for part, whole in ((t, case.per_node), (t, model.heads), (p, model.layers), (d, case.batch)):
        if whole % part:
            raise failure("does-not-divide", "choose-divide", case, cut=cut, part=part, whole=whole)


CASES = (
    GpuCase("gpt3", 1024, 80, 8, 512),
    GpuCase("small", 1, 16, 8, 4),
    GpuCase("gpt-1.7b", 768, 80, 16, 60),
    GpuCase("gpt-18.4b", 512, 32, 16, 48),
    GpuCase("gpt-145.6b", 64, 80, 16, 30),
    GpuCase("gpt-145.6b", 60, 80, 16, 96),
    GpuCase("gpt3", 8, 80, 8, 64),
    GpuCase("gpt-39.1b", 128, 20, 8, 1024),
    # A rule or a part of a step that is left out leads to another division in one of these.
    GpuCase("gpt-145.6b", 240, 60, 4, 24),
    GpuCase("gpt3", 768, 32, 4, 256),
    GpuCase("small", 192, 10, 6, 1024),
    GpuCase("gpt-18.4b", 30, 60, 4, 30),
    GpuCase("gpt-76.1b", 60, 60, 16, 512),
    GpuCase("small", 24, 32, 8, 128),
    GpuCase("small", 24, 32, 4, 1024),
    GpuCase("small", 1, 2.584018944, 8, 4),  # all of the memory
    GpuCase("small", 12, 16, 1, 1),  # a stage per layer
    GpuCase("small", 7, 1.27, 8, 42),  # three replicas of two stages would fit, but one GPU is left over
    GpuCase("gpt-39.1b", 768, 24, 8, 192),
)
