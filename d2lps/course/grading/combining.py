"""Judge a reduction: put it through several plans, and say at which step its values first go wrong.

The numbers are small enough for exact thought and large enough to overflow where the exponentials are taken as they
stand; some are minus infinity, the logarithm of nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from d2lps.algorithms import ring, sharded, tree
from d2lps.course.grading.asked import Case, failure
from d2lps.course.grading.attempt import begun_until, called
from d2lps.plan.acts import sends
from d2lps.plan.checking import replay
from d2lps.plan.plan import Plan
from d2lps.topology.hosts import pcie_server
from d2lps.trace import Trace

PLANS = {"ring": ring, "tree": tree, "sharded": sharded}
COUNT = 13  # elements, which none of the numbers of nodes but 1 divides


@dataclass(frozen=True)
class Through(Case):
    """A case in which the reduction is put through ``plan``."""

    plan: Plan | None = None


def through(name: str, n: int) -> Through:
    """The case of one plan of that name for ``n`` GPUs."""
    gpus = tuple(f"gpu{i}" for i in range(n))
    plan = PLANS[name](gpus)
    return Through(f"n = {n}, {name}", (), gpus, (), pcie_server(n), len(plan.steps), {}, {}, Fraction(0), plan=plan)


def judge(case: Through, answer: Callable, diagnose: Callable[..., tuple[str, Mapping[str, str]]]) -> Trace:
    """The predicted trace of the plan through which the reduction came out right; raises Failure.

    ``diagnose`` names the mistake of a reduction whose values go wrong, and says what fills its sentence.
    """
    from d2lps.carriers.execute import run
    from d2lps.carriers.tensors import TensorError

    reduction = _reduction(case, answer)
    _like_them(case, reduction.combine)
    _values(case, reduction.combine, diagnose)
    _identity(case, reduction)
    buffers = gradients(case)
    try:
        run(case.plan, buffers, reduce=reduction)
    except TensorError as error:
        raise failure("raised", "refused", case, error=error) from None
    return begun_until(case, case.plan, None) or _nothing(case)


def gradients(case: Through) -> dict:
    """Node → its values: moderate ones, 87.5 on every node (whose exponential float32 can hold three times, not four
    times), minus infinity on every node, and on every other node.
    """
    import torch

    found = {}
    for i, node in enumerate(case.workers):
        values = [((7 * i + 3 * e) % 11 - 5) / 2 for e in range(COUNT)]
        values[9], values[10] = 87.5, float("-inf")
        values[11] = float("-inf") if i % 2 else values[11]
        found[node] = torch.tensor(values)
    return found


def _nothing(case: Through) -> Trace:
    from d2lps import cost

    return cost.shared(case.plan, case.topology, case.nbytes)


def _reduction(case: Through, answer: Callable):
    from d2lps.carriers.reductions import Reduction

    given = called(case, answer)
    if not isinstance(given, Reduction):
        raise failure("not-a-reduction", "not-a-reduction", case, type=type(given).__name__)
    return given


def _like_them(case: Through, combine: Callable) -> None:
    """What two tensors make is a tensor like them, and they stay as they were."""
    import torch

    own, arrived = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])
    found = called(case, combine, own, arrived)
    if not isinstance(found, torch.Tensor) or found.shape != own.shape or found.dtype != own.dtype:
        like = f"{tuple(found.shape)}, {found.dtype}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise failure("not-like-them", "not-like-them", case, got=like)
    if own.tolist() != [1.0, 2.0] or arrived.tolist() != [3.0, 2.0]:
        raise failure("changes-them", "changes-them", case)
    if found.tolist() == own.tolist():
        raise failure("todo", "arrives-in-vain", case)


def _values(case: Through, combine: Callable, diagnose: Callable) -> None:
    """Follow the plan step by step, and compare what every node has with the truth about whose values are in it."""
    import torch

    plan, parts, start = case.plan, case.plan.slices(COUNT), gradients(case)
    have = {(node, key): start[node][parts[key]].clone() for node, key in plan.holds}
    for number, who in replay(plan):
        written = {}
        for src, dst, key, op in sends(plan.steps[number - 1]) if number else ():
            own = written.get((dst, key), have[dst, key])
            written[dst, key] = called(case, combine, own, have[src, key].clone()) if op == "add" else have[src, key]
        have |= written
        for (node, key), found in have.items():
            inside = [start[name][parts[key]] for i, name in enumerate(plan.nodes) if who[node, key].who >> i & 1]
            right = torch.logsumexp(torch.stack(inside).double(), 0)
            wrong = ~torch.isclose(found.double(), right, rtol=1e-4, atol=1e-4)
            if wrong.any():
                at = int(wrong.nonzero()[0])
                mistake, more = diagnose(case, combine, float(found[at]))
                values = {
                    "step": number,
                    "node": node,
                    "key": key,
                    "got": number_of(found[at]),
                    "right": number_of(right[at]),
                    **more,
                }
                begun = begun_until(case, plan, number)
                raise failure(mistake, mistake if more else "wrong-value", case, begun, **values)


def _identity(case: Through, reduction) -> None:
    import torch

    if not isinstance(reduction.identity, int | float):
        raise failure("wrong-identity", "no-number", case, identity=repr(reduction.identity))
    for value in (1.0, -4.0):
        sample = torch.tensor([value])
        neutral = torch.full_like(sample, reduction.identity)
        for pair in ((neutral, sample), (sample, neutral)):
            found = float(called(case, reduction.combine, *pair))
            if not abs(found - value) < 1e-4:
                told = {"identity": repr(reduction.identity), "value": f"{value:g}", "got": number_of(found)}
                raise failure("wrong-identity", "wrong-identity", case, **told)


def diagnosed(case: Through, combine: Callable, got: float) -> tuple[str, Mapping[str, str]]:
    """The mistake of a reduction that is not the logarithm of the sum of the exponentials."""
    import torch

    def put(*values: float) -> float:
        first, *more = (torch.tensor([value]) for value in values)
        for each in more:
            first = called(case, combine, first, each)
        return float(first)

    if got != got:
        return "minus-infinity", {}
    if got == float("inf"):
        return "overflow", {}
    a, b, c = 1.0, 2.0, 4.0
    if abs(put(a, b) - put(b, a)) > 1e-4:
        return "not-commutative", {"one": number_of(put(a, b)), "other": number_of(put(b, a))}
    left, other = put(a, b, c), put(a, put(b, c))
    if abs(left - other) > 1e-4:
        return "not-associative", {"one": number_of(left), "other": number_of(other)}
    return "other-reduction", {}


def number_of(value: float) -> str:
    """A number as it stands in a sentence."""
    return f"{float(value):.4g}".replace("-", "\u2212")
