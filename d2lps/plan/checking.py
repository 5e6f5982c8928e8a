"""The meaning of a plan, in one place: its steps followed on sets of contributors, without tensors.

:func:`replay` follows the contributors through the steps on integer bit sets, :func:`verify` checks that every node
ends with the keys it wants, and :func:`order` returns the order in which a sum is added up. Carriers, drawings and
graders call these functions and never decide for themselves.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from d2lps.plan.acts import PlanData, PlanError, Send, Update, sends, updates
from d2lps.plan.lazy import Product

Slot = tuple[str, str]  # (node, key)


class Holding(NamedTuple):
    """The value that a node holds for a key.

    Parameters
    ----------
    who : int
        The nodes whose gradients are in it: a bit per node, in the plan's order.
    updated : bool
        True once an optimizer has turned it into new weights.
    """

    who: int
    updated: bool = False


Holdings = dict[Slot, Holding]


def arrivals(plan: PlanData) -> Iterator[list[tuple[Send, bool]]]:
    """Yield the sends of each step, each with True if its value replaces the target's: a copy, or an add into empty."""
    filled: set[Slot] = set(plan.holds)
    for step in plan.steps:
        arriving = []
        for send in sends(step):
            arriving.append((send, send.op == "copy" or (send.dst, send.key) not in filled))
            filled.add((send.dst, send.key))
        yield arriving


def complete(plan: PlanData) -> dict[str, int]:
    """Return key → the bits of all nodes that hold a gradient of it at the start."""
    bit = {node: 1 << i for i, node in enumerate(plan.nodes)}
    if isinstance(plan.holds, Product) and len(plan.holds) == len(plan.nodes) * len(plan.share):
        return dict.fromkeys(plan.share, (1 << len(plan.nodes)) - 1)
    everyone = dict.fromkeys(plan.share, 0)
    for node, key in plan.holds:
        everyone[key] |= bit[node]
    return everyone


def replay(plan: PlanData) -> Iterator[tuple[int, Holdings]]:
    """Yield the holdings of all nodes before the first step (step 0) and after each step.

    Parameters
    ----------
    plan : Plan
        A sound plan, or a broken one, which is followed up to the step that breaks it.

    Yields
    ------
    number : int
        The number of the step.
    holdings : dict
        (node, key) → :class:`Holding`; a key that a node does not hold is absent.

    Raises
    ------
    PlanError
        At the first act that is not allowed.
    """
    for number, holdings in _replay(plan):
        yield number, dict(holdings)


def _replay(plan: PlanData) -> Iterator[tuple[int, Holdings]]:
    """Yield one mapping that goes through all states: a copy per step would cost more than the step."""
    everyone = complete(plan)
    gradients = {node: Holding(1 << i) for i, node in enumerate(plan.nodes)}
    holdings = {(node, key): gradients[node] for node, key in plan.holds}
    yield 0, holdings
    for number, step in enumerate(plan.steps, 1):
        holdings |= _written(plan, number, step, holdings)
        for act in updates(step):
            holdings[act.node, act.key] = _updated(plan, number, act, holdings, everyone[act.key])
        yield number, holdings


def verify(plan: PlanData) -> None:
    """Raise PlanError unless ``plan`` is correct, as :func:`d2lps.check` describes."""
    with _uncollected():
        for _, holdings in _replay(plan):  # noqa: B007
            pass
        _require_wanted(plan, holdings)


def _require_wanted(plan: PlanData, holdings: Holdings) -> None:
    everyone, last = complete(plan), len(plan.steps)
    for node, key, state in plan.wants:
        holding = holdings.get((node, key))
        if holding is None:
            raise PlanError("nothing-arrived", plan, last=last, node=node, key=key)
        if holding.who != everyone[key]:
            missing = _nodes(plan, everyone[key] & ~holding.who)
            raise PlanError("incomplete", plan, last=last, node=node, key=key, missing=missing)
        if holding.updated != (state == "updated"):
            reason = "not-updated" if state == "updated" else "updated-unwanted"
            raise PlanError(reason, plan, last=last, node=node, key=key)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the garbage collector off: for a large plan it would run as long as the check, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def order(plan: PlanData, key: str) -> "str | tuple":
    """Return the order in which the gradients of ``key`` are added up, as nested pairs of node names.

    The sum is the one with which the first node that wants ``key`` ends, or the one that is updated.
    """
    sums: dict[str, str | tuple] = {node: node for node, k in plan.holds if k == key}
    for number, step in enumerate(plan.steps, 1):
        written: dict[str, str | tuple] = {}
        for src, dst, k, op in sends(step):
            if k == key:
                present, arriving = written.get(dst) or sums.get(dst), sums.get(src)
                if arriving is None:
                    raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
                written[dst] = arriving if op == "copy" or present is None else (present, arriving)
        sums |= written
    wanting = [node for node, k, _ in plan.wants if k == key and node in sums]
    if not wanting:
        raise PlanError("unwanted", plan, key=key)
    return sums[wanting[0]]


def _nodes(plan: PlanData, bits: int) -> str:
    return " ".join(node for i, node in enumerate(plan.nodes) if bits >> i & 1)


def _written(plan: PlanData, number: int, step: Sequence[Send | Update], holdings: Holdings) -> Holdings:
    """Return the holdings that the sends of a step write. ``holdings`` stays unchanged, so all sends read the old."""
    written: Holdings = {}
    copied: set[Slot] = set()
    for src, dst, key, op in sends(step):
        slot, arriving = (dst, key), holdings.get((src, key))
        if src == dst:
            raise PlanError("to-itself", plan, number, node=src, key=key)
        if arriving is None:
            raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
        # One copy alone, or any number of adds: any other result would depend on the order of arrival.
        if slot in copied or op == "copy" and slot in written:
            raise PlanError("overwritten", plan, number, node=dst, key=key)
        if op == "copy":
            copied.add(slot)
            written[slot] = arriving
            continue
        present = written.get(slot) or holdings.get(slot)
        if arriving.updated or (present and present.updated):
            raise PlanError("add-updated", plan, number, node=dst, src=src, key=key)
        twice = present.who & arriving.who if present else 0
        if twice:
            raise PlanError("counted-twice", plan, number, node=dst, src=src, key=key, who=_nodes(plan, twice))
        written[slot] = Holding(present.who | arriving.who) if present else arriving
    return written


def _updated(plan: PlanData, number: int, act: Update, holdings: Holdings, everyone: int) -> Holding:
    holding = holdings.get((act.node, act.key), Holding(0))
    if holding.updated:
        raise PlanError("updated-twice", plan, number, node=act.node, key=act.key)
    if not everyone:
        raise PlanError("nothing-to-update", plan, number, node=act.node, key=act.key)
    if holding.who != everyone:
        missing = _nodes(plan, everyone & ~holding.who)
        raise PlanError("update-too-early", plan, number, node=act.node, key=act.key, missing=missing)
    return Holding(holding.who, updated=True)
