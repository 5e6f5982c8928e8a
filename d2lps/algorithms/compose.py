"""Several plans that run at the same time, each with its own part of the buffer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, zip_longest

from d2lps.plan.acts import PlanError
from d2lps.plan.lazy import Lazy
from d2lps.plan.parse import fraction
from d2lps.plan.plan import Plan, require_plan


def together(*plans: Plan, shares: "Iterable[Fraction | int | str] | None" = None) -> Plan:
    """Return the plan that runs ``plans`` step by step at the same time, each on its part of one buffer.

    Step i is step i of all plans. Steps: those of the longest plan. Bytes: a plan of share p moves p times its own.

    Args:
        *plans: One or more, each with keys of its own (``key=`` of every algorithm).
        shares: The part of the buffer that each plan carries, such as ``["2/3", "1/3"]``; equal if left out.

    Returns:
        Each node holds and wants the same keys as in ``plans``; nodes are in the order in which ``plans`` name them.

    Raises:
        PlanError: For an argument that is not a plan, a key in two plans, and shares that do not fit.

    Example:
        >>> from d2lps import tree
        >>> print(together(tree(["a", "b"]), tree(["b", "a"], key="h"), shares=["2/3", "1/3"]))
        2 nodes: a b
        shares: g = 2/3, h = 1/3
        step 1   b→a +g   a→b +h
        step 2   a→b =g   b→a =h
    """
    for plan in plans:
        require_plan("together", plan)
    if not plans:
        raise PlanError("no-plans")
    given = [Fraction(1, len(plans))] * len(plans) if shares is None else shares
    if isinstance(given, str) or not isinstance(given, Iterable) or len(given := list(given)) != len(plans):
        raise PlanError("shares-of-plans", shares=repr(shares), plans=len(plans))
    parts = [fraction(f"plans[{i}]", part) for i, part in enumerate(given)]
    return side_by_side(dict.fromkeys(node for plan in plans for node in plan.nodes), plans, parts)


def side_by_side(nodes: Iterable[str], plans: Sequence[Plan], parts: Sequence[Fraction]) -> Plan:
    """Return the plan that runs ``plans`` at the same time, with ``nodes`` in their order."""
    nodes = tuple(nodes)
    share, steps = steps_side_by_side(plans, parts)
    if isinstance(steps, Lazy):
        steps = replace(steps, call=(side_by_side, nodes, plans, parts))
        if all(len(plan.wants) == len(plan.holds) == len(nodes) * len(plan.share) for plan in plans):
            return Plan(nodes, share, steps)  # every node holds and wants every key: no need to list the pairs
    return Plan(nodes, share, steps, chain(*(p.holds for p in plans)), chain(*(p.wants for p in plans)))


def steps_side_by_side(plans: Sequence[Plan], parts: Sequence[Fraction]) -> tuple[dict[str, Fraction], Iterable]:
    """Return the shares and the steps of ``plans`` that run at the same time; lazy steps if all of theirs are."""
    share: dict[str, Fraction] = {}
    for plan, part in zip(plans, parts, strict=True):
        for key in plan.share:
            if key in share:
                raise PlanError("key-clash", key=key)
            share[key] = part * plan.share[key]
    lazy = [plan.steps for plan in plans if isinstance(plan.steps, Lazy)]
    if len(lazy) < len(plans):
        return share, [[*chain(*acts)] for acts in zip_longest(*(plan.steps for plan in plans), fillvalue=())]

    def step(t: int) -> list:
        return [act for steps in lazy if t < len(steps) for act in steps[t]]

    def alike(t: int) -> tuple:
        return tuple(steps.kind(t) if t < len(steps) else None for steps in lazy)

    def joined(t: int) -> list[tuple[str, str, str, int]]:
        return [group for steps in lazy if t < len(steps) for group in steps.groups(t) or ()]

    one_size = len({*share.values()}) == 1 and all(steps.joined for steps in lazy)
    longest = max(map(len, lazy))
    return share, Lazy(step, range(longest), alike, joined=joined if one_size else None)
