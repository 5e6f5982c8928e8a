"""The meaning of a plan, in one place: its steps followed on sets of contributors, without tensors.

:func:`replay` follows the contributors through the steps on integer bit sets, :func:`verify` checks that every node
ends with the keys it wants, and :func:`order` returns the order in which a sum is added up. Carriers, drawings and
graders call these functions and never decide for themselves.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from d2lps.plan.acts import PlanData, PlanError, Send, Update, sends, updates
from d2lps.plan.lazy import Product

NodeKey = tuple[str, str]  # (node, key)


class Holding(NamedTuple):
    """The value that a node holds for a key.

    Args:
        who: The nodes whose gradients are in it: a bit per node, in the plan's order.
        updated: True once an optimizer has turned it into new weights.
    """

    who: int
    updated: bool = False


Holdings = dict[NodeKey, Holding]


def arrivals(plan: PlanData) -> Iterator[list[tuple[Send, bool]]]:
    """Yield the sends of each step, each with True if its value replaces the target's: a copy, or an add into empty."""
    filled: set[NodeKey] = set(plan.holds)
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

    Args:
        plan (Plan): A sound plan, or a broken one, which is followed up to the step that breaks it.

    Yields:
        number: The number of the step.
        holdings: (node, key) → :class:`Holding`; a key that a node does not hold is absent.

    Raises:
        PlanError: At the first act that is not allowed.
    """
    holdings: Holdings = {}
    nodes, keys, updated = plan.nodes, tuple(plan.share), _updated(plan)
    for number, changed, _ in _replay(plan):
        for slot, value in changed.items():
            place = nodes[slot // len(keys)], keys[slot % len(keys)]
            holdings[place] = Holding(value & ~updated, value >= updated)
        yield number, dict(holdings)


# A large plan has millions of sends. So the functions below know a slot by its number, and what it holds by one
# integer: the bits of the contributors, and above them a bit for new weights. Pairs and tuples take twice the time.
Values = dict[int, int]


def _updated(plan: PlanData) -> int:
    return 1 << len(plan.nodes)


def _slots(plan: PlanData) -> tuple[dict[str, int], dict[str, int]]:
    """Return node → its first slot, and key → how many slots further on."""
    further = {key: j for j, key in enumerate(plan.share)}
    return {node: i * len(further) for i, node in enumerate(plan.nodes)}, further


def _replay(plan: PlanData) -> Iterator[tuple[int, Values, Values]]:
    """Yield the number of each step, the values that it writes, and one mapping that goes through all states."""
    first, further = _slots(plan)
    everyone, updated = complete(plan), _updated(plan)
    gradient = {node: 1 << i for i, node in enumerate(plan.nodes)}
    values = {first[node] + further[key]: gradient[node] for node, key in plan.holds}
    yield 0, dict(values), values
    for number, step in enumerate(plan.steps, 1):
        sent = sends(step)
        changed = _written(plan, number, sent, values, first, further)
        values |= changed
        for act in updates(step) if len(sent) < len(step) else ():
            slot = first[act.node] + further[act.key]
            _require_sum(plan, number, act, values.get(slot, 0), everyone[act.key])
            changed[slot] = values[slot] = values[slot] | updated
        yield number, changed, values


def verify(plan: PlanData) -> None:
    """Raise PlanError unless ``plan`` is correct, as :func:`d2lps.check` describes."""
    with _uncollected():
        for _, _, values in _replay(plan):  # noqa: B007
            pass
        _require_wanted(plan, values)


def _require_wanted(plan: PlanData, values: Values) -> None:
    (first, further), everyone, last = _slots(plan), complete(plan), len(plan.steps)
    updated = _updated(plan)
    for node, key, state in plan.wants:
        value = values.get(first[node] + further[key])
        if value is None:
            raise PlanError("nothing-arrived", plan, last=last, node=node, key=key)
        if value != everyone[key] + (updated if state == "updated" else 0):
            if missing := everyone[key] & ~value:
                raise PlanError("incomplete", plan, last=last, node=node, key=key, missing=_nodes(plan, missing))
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


def _written(
    plan: PlanData, number: int, sent: Iterable[Send], values: Values, first: Mapping, further: Mapping
) -> Values:
    """Return the values that the sends of a step write. ``values`` stays unchanged, so all sends read the old."""
    written: Values = {}
    copied: set[int] = set()
    updated = _updated(plan)
    for src, dst, key, op in sent:
        if src == dst:
            raise PlanError("to-itself", plan, number, node=src, key=key)
        arriving, slot = values.get(first[src] + further[key]), first[dst] + further[key]
        if arriving is None:
            raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
        # One copy alone, or any number of adds: any other result would depend on the order of arrival.
        if slot in written and (op == "copy" or slot in copied):
            raise PlanError("overwritten", plan, number, node=dst, key=key)
        if op == "copy":
            copied.add(slot)
            written[slot] = arriving
            continue
        present = written.get(slot) or values.get(slot, 0)
        if arriving >= updated or present >= updated:
            raise PlanError("add-updated", plan, number, node=dst, src=src, key=key)
        if twice := present & arriving:
            raise PlanError("counted-twice", plan, number, node=dst, src=src, key=key, who=_nodes(plan, twice))
        written[slot] = present | arriving
    return written


def _require_sum(plan: PlanData, number: int, act: Update, value: int, everyone: int) -> None:
    """Raise PlanError unless a node's value is the complete sum, which an optimizer may update."""
    if value >= _updated(plan):
        raise PlanError("updated-twice", plan, number, node=act.node, key=act.key)
    if not everyone:
        raise PlanError("nothing-to-update", plan, number, node=act.node, key=act.key)
    if value != everyone:
        missing = _nodes(plan, everyone & ~value)
        raise PlanError("update-too-early", plan, number, node=act.node, key=act.key, missing=missing)
