"""The exercises of chapter 15: right answers unlike the solutions, and what the judges know."""

import math

import pytest
import torch
from helpers.exercises import module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import get_total_norm
from torch.utils.flop_counter import FlopCounterMode

from d2lps.notebook.grading.course import texts_of
from d2lps.train import gpt

CHAPTER = "15-a-step-measured"
IDS = ("mfu", "global-norm", "who-hangs")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_mfu, judge_global_norm = (module(CHAPTER, f"judge_{name}") for name in ("mfu", "global_norm"))


# ---- right answers that are unlike the solutions


def by_parameters(layers, width, vocabulary, context, tokens, seconds, gpus, peak, again):
    """Counts 6 FLOPs per parameter of a matrix, as papers do; returns a list."""
    rate = gpus * peak * seconds
    pairs = layers * context * width
    model = tokens * (6 * (12 * layers * width * width + vocabulary * width) + 6 * pairs)
    more = tokens * (2 * 12 * layers * width * width + 2 * pairs) if again else 0
    return [model / rate, (model + more) / rate]


def stages_first(gradients, copies, sum_tensor, sum_stages):
    """Sums in the other order, with tensors of 64 bits."""
    total = torch.zeros((), dtype=torch.float64)
    for count in sorted({*copies}):
        for gradient in [each for each, number in zip(gradients, copies, strict=True) if number == count]:
            total += torch.linalg.vector_norm(gradient, dtype=torch.float64) ** 2 / count
    return torch.tensor(sum_tensor(sum_stages(total))).sqrt()


def one_by_one(logs):
    """Compares each log with all others; decides the kind by length."""
    for place in range(max(len(log) for log in logs)):
        for rank, log in enumerate(logs):
            same = sum(log[place : place + 1] == other[place : place + 1] for other in logs)
            if same == 1 and len(logs) > 1:
                if len(log) < max(len(other) for other in logs):
                    return [rank, place, "missing"]
                other = logs[(rank + 1) % len(logs)]
                return [rank, place, "order" if log[place + 1 : place + 2] != other[place + 1 : place + 2] else "size"]
    return None, None, None


RIGHT = {"mfu": [by_parameters], "global-norm": [stages_first], "who-hangs": [one_by_one]}
MEASURED = {"mfu": ["33.1%", "44.2%"], "global-norm": ["7.226", "7.697"], "who-hangs": ["('all_reduce', 300)"]}


# ---- what the judges know


def test_the_flops_of_a_step_are_those_that_pytorch_counts():
    net = gpt.GPT(layers=3, width=48, heads=4, context=32)
    inputs, labels = torch.randint(256, (2, 5, 32))
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        gpt.loss(net(inputs), labels).backward()
    case = judge_mfu.StepCase(3, 48, 256, 32, inputs.numel(), 1.0, 1, 1.0, True)
    assert case.utilization(scores=2)[0] == counted.get_total_flops()  # the plain kernel computes all pairs
    assert case.utilization()[0] == inputs.numel() * net.transformer.flops_per_token()
    assert case.utilization()[1] - case.utilization()[0] == pytest.approx(
        (case.utilization(head=False)[0]) / 3, rel=1e-12
    )


@pytest.mark.parametrize("case", judge_global_norm.CASES, ids=lambda case: case.label)
def test_the_norm_is_that_of_one_device_with_every_gradient_once(case):
    seen, once = set(), []
    for rank, (gradients, copies) in enumerate(case.given):
        for i, (gradient, count) in enumerate(zip(gradients, copies, strict=True)):
            of_group = count == case.tensor > 1 and i < len(case.own) + len(case.alike)
            first = not of_group or rank % case.tensor == 0
            if id(gradient) not in seen and first:
                once.append(gradient.double())
            seen.add(id(gradient))
    assert case.right == pytest.approx(get_total_norm(once).item() if once else 0.0, rel=1e-9)


def test_a_squared_16_bit_gradient_overflows():
    (case,) = [case for case in judge_global_norm.CASES if case.kind == torch.float16]
    assert math.isinf(case.given[0][0][0].square().sum().item()) and math.isfinite(case.right)
