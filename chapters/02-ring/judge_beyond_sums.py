"""Judge a reduction: put it through several plans, and say at which step its values first go wrong.

Some numbers overflow, or vanish, where the exponentials are taken as they stand or less a fixed number; some are minus
infinity, the logarithm of nothing. Torch is imported where it is needed: the chapter's other
exercises are judged without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import d2lps
from d2lps import Plan, Trace, pcie_server
from d2lps.notebook.grading import PlanCase, call, failure, number, number_text, unlike
from d2lps.plan import sends

PLANS = {"ring": d2lps.ring, "tree": d2lps.tree, "sharded": d2lps.sharded}
COUNT = 13  # elements, which none of the numbers of nodes but 1 divides


@dataclass(frozen=True)
class ReductionCase(PlanCase):
    """A case in which the reduction is put through ``plan``."""

    plan: Plan | None = None


def reduction_case(name: str, n: int) -> ReductionCase:
    """The case of one plan of that name for ``n`` GPUs."""
    gpus = tuple(f"gpu{i}" for i in range(n))
    plan = PLANS[name](gpus)
    return ReductionCase(f"n = {n}, {name}", (), gpus, pcie_server(n), len(plan.steps), Fraction(0), plan=plan)


def judge(case: ReductionCase, answer: Callable) -> Trace:
    """The predicted trace of the plan through which the reduction came out right; raises Failure."""
    reduction = call(case, answer)
    if not isinstance(reduction, d2lps.Reduction):
        raise failure("wrong-type", "not-a-reduction", case, type=type(reduction).__name__)
    _require_like_them(case, reduction.combine)
    _require_right_values(case, reduction.combine)
    _require_neutral(case, reduction.combine, reduction.identity)
    try:
        call(case, partial(d2lps.run, reduce=reduction), case.plan, gradients(case), refused=ValueError)
    except ValueError as error:
        raise failure("raised", "refused", case, error=error) from None
    return case.predict_until(case.plan, None) or case.predict(case.plan)


def gradients(case: ReductionCase) -> dict:
    """Node → its values: moderate ones; 87.5 on every node (whose exponential float32 can hold three times, not four
    times); 1000 on every other node, and 0 on the rest, and the other way round; −1000 on every node; minus infinity
    on every node, and on every other node.
    """
    import torch

    buffers = {}
    for i, node in enumerate(case.workers):
        values = [((7 * i + 3 * e) % 11 - 5) / 2 for e in range(COUNT)]
        values[6], values[7], values[8] = (1000.0, 0.0, -1000.0) if i % 2 else (0.0, 1000.0, -1000.0)
        values[9], values[10] = 87.5, float("-inf")
        values[11] = float("-inf") if i % 2 else values[11]
        buffers[node] = torch.tensor(values)
    return buffers


def _require_like_them(case: ReductionCase, combine: Callable) -> None:
    """Raise Failure unless two tensors make a tensor like them, and stay as they were."""
    import torch

    own, arrived = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])
    both = call(case, combine, own, arrived)
    if not isinstance(both, torch.Tensor) or both.shape != own.shape or both.dtype != own.dtype:
        got = f"{tuple(both.shape)}, {both.dtype}" if isinstance(both, torch.Tensor) else type(both).__name__
        raise failure("wrong-type", "not-like-them", case, got=got)
    if own.tolist() != [1.0, 2.0] or arrived.tolist() != [3.0, 2.0]:
        raise failure("differs", "changes-them", case)
    if both.tolist() == own.tolist():
        raise failure("todo", "arrives-in-vain", case)


def _require_right_values(case: ReductionCase, combine: Callable) -> None:
    """Follow the plan step by step, and compare what every node has with the truth about whose values are in it."""
    import torch

    plan, parts, start = case.plan, case.plan.slices(COUNT), gradients(case)
    have = {(node, key): (start[node][parts[key]].clone(), {node}) for node, key in plan.holds}
    for at_step, step in enumerate(plan.steps, 1):
        written = {}
        for src, dst, key, op in sends(step):
            value, who = have[src, key]
            if op == "add":
                own, whose = written.get((dst, key), have[dst, key])
                value, who = call(case, combine, own, value.clone()), whose | who
            written[dst, key] = value, who
        have |= written
        for (node, key), (value, who) in have.items():
            inside = [start[name][parts[key]] for name in plan.nodes if name in who]
            right = torch.logsumexp(torch.stack(inside).double(), 0)
            wrong = ~torch.isclose(value.double(), right, rtol=1e-4, atol=1e-4)
            if wrong.any():
                at = int(wrong.nonzero()[0])
                mistake, orders = _mistake(case, combine, float(value[at]))
                values = {"step": at_step, "node": node, "key": key} | orders
                values |= dict(zip(("got", "right"), unlike(value[at], right[at], _text), strict=True))
                before = case.predict_until(plan, at_step)
                raise failure(mistake, mistake if orders else "wrong-value", case, before, **values)


def _require_neutral(case: ReductionCase, combine: Callable, identity: object) -> None:
    import torch

    try:
        filling = float(identity := number(identity))
    except (TypeError, OverflowError):
        raise failure("wrong-identity", "no-number", case, identity=repr(identity)) from None
    for value in (1.0, -4.0, -300.0, float("-inf")):
        sample = torch.tensor([value])
        neutral = torch.full_like(sample, filling)
        for pair in ((neutral, sample), (sample, neutral)):
            got = float(call(case, combine, *pair))
            if got != value and not abs(got - value) < 1e-4:
                shown, other = unlike(value, got, _text)
                values = {"identity": repr(identity), "value": shown, "got": other}
                raise failure("wrong-identity", "wrong-identity", case, **values)


def _mistake(case: ReductionCase, combine: Callable, got: float) -> tuple[str, dict[str, str]]:
    """The mistake of a reduction that is not the logarithm of the sum of the exponentials, and what two orders give."""
    import torch

    def put(*values: float) -> float:
        first, *more = (torch.tensor([value]) for value in values)
        for each in more:
            first = call(case, combine, first, each)
        return float(first)

    if got != got:
        return "minus-infinity", {}
    if got == float("inf"):
        return "out-of-range", {}
    a, b, c = 1.0, 2.0, 4.0
    for mistake, one, other in (
        ("not-commutative", put(a, b), put(b, a)),
        ("not-associative", put(a, b, c), put(a, put(b, c))),
    ):
        if abs(one - other) > 1e-4:
            return mistake, dict(zip(("one", "other"), unlike(one, other, _text), strict=True))
    lost = float("-inf") in (put(a, b), put(-1000.0, -1000.0))  # of numbers, none of which is minus infinity
    return "out-of-range" if lost else "other-reduction", {}


def _text(value: float, digits: int) -> str:
    return number_text(value, digits).replace("-", "\u2212")
