"""Judge the FLOPs utilization of a step: of the FLOPs that the model needs, and of all that were computed."""

from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure, number, time_text, unlike


@dataclass(frozen=True)
class StepCase:
    """A model, the tokens and seconds of a step, the GPUs and their peak, and whether layers are computed again."""

    layers: int
    width: int
    vocabulary: int
    context: int
    tokens: int
    seconds: float
    gpus: int
    peak: float
    again: bool

    @property
    def label(self) -> str:
        return f"n = {self.gpus}, layers = {self.layers}, width = {self.width}, again = {self.again}"

    def utilization(
        self, passes: float = 3, scores: float = 1, head: bool = True, gpus: int = 0
    ) -> tuple[float, float, float]:
        """Return MFU, HFU, and an HFU that counts the head twice, too; without some of the FLOPs if asked."""
        layers = self.layers * (24 * self.width**2 + scores * 2 * self.context * self.width)
        last = head * 2 * self.vocabulary * self.width
        possible = self.seconds * (gpus or self.gpus) * self.peak / self.tokens
        model = passes * (layers + last) / possible
        return model, model + self.again * layers / possible, model + self.again * (layers + last) / possible


def judge(case: StepCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    fields = [getattr(case, name) for name in StepCase.__dataclass_fields__]
    got = call(case, answer, *fields)
    try:
        model, hardware = (float(number(each)) for each in got)
    except (TypeError, ValueError, OverflowError):
        raise failure("wrong-type", "mfu-type", case, got=repr(got)[:60]) from None
    if model == hardware == 0:
        raise failure("todo", "mfu-nothing", case)
    right = case.utilization()[:2]
    if not _near((model, hardware), right):
        pairs = [unlike(*each, digits=6) for each in zip((model, hardware), right, strict=True)]
        shown = {name: ", ".join(each) for name, each in zip(("got", "right"), zip(*pairs, strict=True), strict=True)}
        raise failure(_mistake(case, (model, hardware)), "mfu-wrong", case, **shown)
    return {"mfu": f"{right[0]:.1%}", "hfu": f"{right[1]:.1%}", "time": time_text(case.seconds)}


def _near(got: tuple[float, float], wanted: tuple[float, float]) -> bool:
    return all(abs(one - other) <= 1e-6 * abs(other) for one, other in zip(got, wanted, strict=True))


def _mistake(case: StepCase, got: tuple[float, float]) -> str:
    """Return the name of the first mistake that leads to these numbers."""
    model, hardware, with_head = case.utilization()
    left_out = [case.utilization(scores=s, head=h) for s, h in ((0, True), (1, False), (0, False))]
    whole = case.utilization(scores=2)
    one_gpu, forward = case.utilization(gpus=1), case.utilization(passes=1)
    wrong = {
        "percent": [(100 * model, 100 * hardware)],
        "again-in-model": [(hardware, hardware), (with_head, with_head)] if case.again else [],
        "again-forgotten": [(model, model)] if case.again else [],
        "head-again": [(model, with_head)] if case.again else [],
        "left-out": [each for least in left_out for each in (least[:2], (least[0], least[2]))],
        "hidden-pairs": [whole[:2], (whole[0], whole[2])],
        "no-backward": [forward[:2], (forward[0], forward[2])],
        "one-gpu": [one_gpu[:2], (one_gpu[0], one_gpu[2])],
    }
    return next((name for name, each in wrong.items() if any(_near(got, numbers) for numbers in each)), "differs")


# The first is measured: 24 layers on an H200, in bfloat16, with every layer computed again. The second has the shape of
# GPT-3, and the seconds of 140 TFLOP/s per GPU.
CASES = (
    StepCase(24, 2048, 256, 1024, 8192, 0.18876, 1, 989e12, True),
    StepCase(96, 12288, 51200, 2048, 1536 * 2048, 31.2, 1024, 312e12, True),
    StepCase(24, 2048, 256, 1024, 8192, 0.15667, 1, 989e12, False),
    StepCase(2, 64, 50257, 8192, 4096, 0.25, 3, 2e12, True),
    StepCase(1, 8, 1000, 16, 16, 1e-3, 2, 1e9, False),
)
