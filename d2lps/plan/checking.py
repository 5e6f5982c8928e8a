"""What a plan's steps do to who has what: followed on sets of contributors, without tensors.

The meaning of a plan, in one place: :func:`replay` follows the contributors through the steps on integer
bit sets, :func:`verify` asks whether everyone has what it wants, :func:`order` tells in which order a sum
was added up. A runner, a drawing and a grader ask here and never decide for themselves.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from d2lps.plan.acts import PlanData, PlanError, Send, Update, sends, updates

Slot = tuple[str, str]  # (node, key)


class Holding(NamedTuple):
    """What a node has of a key.

    Parameters
    ----------
    who : int
        Whose gradients are in it: a bit per node, in the plan's order.
    updated : bool
        Whether an optimizer has turned it into new weights.
    """

    who: int
    updated: bool = False


Holdings = dict[Slot, Holding]


def begun(plan: PlanData) -> Iterator[list[tuple[Send, bool]]]:
    """The sends of each step, each with whether its target begins with what arrives: a copy, or an add into empty."""
    filled: set[Slot] = set(plan.holds)
    for step in plan.steps:
        beginning = []
        for send in sends(step):
            beginning.append((send, send.op == "copy" or (send.dst, send.key) not in filled))
            filled.add((send.dst, send.key))
        yield beginning


def complete(plan: PlanData) -> dict[str, int]:
    """Key → the bits of all nodes that hold a gradient of it before."""
    bit = {node: 1 << i for i, node in enumerate(plan.nodes)}
    everyone = dict.fromkeys(plan.share, 0)
    for node, key in plan.holds:
        everyone[key] |= bit[node]
    return everyone


def replay(plan: PlanData) -> Iterator[tuple[int, Holdings]]:
    """What every node has after each step, beginning with step 0, what is held before.

    Parameters
    ----------
    plan : Plan
        Sound, or broken: then it is followed up to the step that breaks it.

    Yields
    ------
    number : int
        The step's.
    holdings : dict
        (node, key) → :class:`Holding`; what a node does not have is not there.

    Raises
    ------
    PlanError
        At the first thing that a step may not do.
    """
    for number, holdings in _replay(plan):
        yield number, dict(holdings)


def _replay(plan: PlanData) -> Iterator[tuple[int, Holdings]]:
    """The same with one mapping that goes through all states: a copy per step would cost more than the step."""
    everyone = complete(plan)
    own = {node: Holding(1 << i) for i, node in enumerate(plan.nodes)}
    holdings = {(node, key): own[node] for node, key in plan.holds}
    yield 0, holdings
    for number, step in enumerate(plan.steps, 1):
        holdings |= _written(plan, number, step, holdings)
        for act in updates(step):
            holdings[act.node, act.key] = _updated(plan, number, act, holdings, everyone[act.key])
        yield number, holdings


def verify(plan: PlanData) -> None:
    """Raises PlanError unless ``plan`` does its work: see :func:`d2lps.check`."""
    *_, (_, holdings) = _replay(plan)
    everyone, last = complete(plan), len(plan.steps)
    for node, key, state in plan.wants:
        holding = holdings.get((node, key))
        if holding is None:
            raise PlanError("nothing-arrived", plan, last=last, node=node, key=key)
        if holding.who != everyone[key]:
            missing = _who(plan, everyone[key] & ~holding.who)
            raise PlanError("incomplete", plan, last=last, node=node, key=key, missing=missing)
        if holding.updated != (state == "updated"):
            reason = "not-updated" if state == "updated" else "updated-unwanted"
            raise PlanError(reason, plan, last=last, node=node, key=key)


def order(plan: PlanData, key: str) -> "str | tuple":
    """In which order the gradients of ``key`` are added up, as nested pairs of node names.

    It is the sum that the first node wanting ``key`` ends with, or the one that is updated.
    """
    sums: dict[str, str | tuple] = {node: node for node, k in plan.holds if k == key}
    for number, step in enumerate(plan.steps, 1):
        written: dict[str, str | tuple] = {}
        for src, dst, k, op in sends(step):
            if k == key:
                own, arriving = written.get(dst) or sums.get(dst), sums.get(src)
                if arriving is None:
                    raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
                written[dst] = arriving if op == "copy" or own is None else (own, arriving)
        sums |= written
    wanting = [node for node, k, _ in plan.wants if k == key and node in sums]
    if not wanting:
        raise PlanError("unwanted", plan, key=key)
    return sums[wanting[0]]


def _who(plan: PlanData, bits: int) -> str:
    return " ".join(node for i, node in enumerate(plan.nodes) if bits >> i & 1)


def _written(plan: PlanData, number: int, step: Sequence[Send | Update], holdings: Holdings) -> Holdings:
    """What the sends of a step write. ``holdings`` stays as it is, so that all of them read what was before it."""
    written, ops = {}, {}
    for src, dst, key, op in sends(step):
        slot = dst, key
        arriving, own = holdings.get((src, key)), written.get(slot) or holdings.get(slot)
        if src == dst:
            raise PlanError("to-itself", plan, number, node=src, key=key)
        if arriving is None:
            raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
        # One copy and nothing else, or any number of adds: anything more would depend on who comes first.
        if slot in ops and "copy" in (op, ops[slot]):
            raise PlanError("overwritten", plan, number, node=dst, key=key)
        ops[slot] = op
        if op == "copy":
            written[slot] = arriving
            continue
        if arriving.updated or (own and own.updated):
            raise PlanError("add-updated", plan, number, node=dst, src=src, key=key)
        twice = own.who & arriving.who if own else 0
        if twice:
            raise PlanError("counted-twice", plan, number, node=dst, src=src, key=key, who=_who(plan, twice))
        written[slot] = Holding(own.who | arriving.who) if own else arriving
    return written


def _updated(plan: PlanData, number: int, act: Update, holdings: Holdings, everyone: int) -> Holding:
    holding = holdings.get((act.node, act.key), Holding(0))
    if holding.updated:
        raise PlanError("updated-twice", plan, number, node=act.node, key=act.key)
    if not everyone:
        raise PlanError("nothing-to-update", plan, number, node=act.node, key=act.key)
    if holding.who != everyone:
        missing = _who(plan, everyone & ~holding.who)
        raise PlanError("update-too-early", plan, number, node=act.node, key=act.key, missing=missing)
    return Holding(holding.who, updated=True)
