"""What a plan's steps do to who has what: followed on sets of contributors, without tensors.

The meaning of a plan, in one place: :func:`replay` follows the contributors through the steps on integer
bit sets, :func:`verify` asks whether everyone has what it wants, :func:`order` tells in which order a sum
was added up. A runner, a drawing and a grader ask here and never decide for themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from d2lps.plan.acts import PlanData, PlanError, Send, Update, sends, updates


def begun(plan: PlanData) -> Iterator[list[tuple[Send, bool]]]:
    """The sends of each step, each with whether its target begins with what arrives: a copy, or an add into empty."""
    filled = set(plan.holds)
    for step in plan.steps:
        found = []
        for send in sends(step):
            found.append((send, send.op == "copy" or (send.dst, send.key) not in filled))
            filled.add((send.dst, send.key))
        yield found


class Part(NamedTuple):
    """What a node has of a key: whose gradients are in it (a bit per node, in the plan's order), and its state."""

    who: int
    updated: bool = False


Have = dict[tuple[str, str], Part]


def complete(plan: PlanData) -> dict[str, int]:
    """Key → the bits of all nodes that hold a gradient of it before."""
    bit = {node: 1 << i for i, node in enumerate(plan.nodes)}
    everyone = dict.fromkeys(plan.share, 0)
    for node, key in plan.holds:
        everyone[key] |= bit[node]
    return everyone


def replay(plan: PlanData) -> Iterator[tuple[int, Have]]:
    """What every node has after each step: (number of the step, {(node, key): Part}).

    Begins with step 0, what is held before. What a node does not have is not in the mapping. Raises
    PlanError at the first thing that a step may not do.
    """
    for number, have in _replay(plan):
        yield number, dict(have)


def _replay(plan: PlanData) -> Iterator[tuple[int, Have]]:
    """The same with one mapping that goes through all states: a copy per step would cost more than the step."""
    everyone = complete(plan)
    own = {node: Part(1 << i) for i, node in enumerate(plan.nodes)}
    have = {(node, key): own[node] for node, key in plan.holds}
    yield 0, have
    for number, step in enumerate(plan.steps, 1):
        have |= _written(plan, number, step, have)
        for act in updates(step):
            have[act.node, act.key] = _updated(plan, number, act, have, everyone[act.key])
        yield number, have


def verify(plan: PlanData) -> None:
    """Run ``plan`` on sets of contributors and refuse it, in one sentence, if it does not do its work.

    Nobody sends what it does not hold, nobody is counted twice, nothing is overwritten and added to in one
    step, no key is updated before its sum is complete, and at the end everyone who wants a key has every
    part of it. Raises PlanError, whose sentence names the step, the node and the key.
    """
    *_, (_, have) = _replay(plan)
    everyone, last = complete(plan), len(plan.steps)
    for node, key, state in plan.wants:
        part = have.get((node, key))
        if part is None:
            raise PlanError("nothing-arrived", plan, last=last, node=node, key=key)
        if part.who != everyone[key]:
            missing = _who(plan, everyone[key] & ~part.who)
            raise PlanError("incomplete", plan, last=last, node=node, key=key, missing=missing)
        if part.updated != (state == "updated"):
            reason = "not-updated" if state == "updated" else "updated-unwanted"
            raise PlanError(reason, plan, last=last, node=node, key=key)


def order(plan: PlanData, key: str) -> "str | tuple":
    """In which order the gradients of ``key`` are added up, as nested pairs of node names.

    It is the sum that the first node wanting ``key`` ends with, or the one that is updated.
    """
    have: dict[str, str | tuple] = {node: node for node, k in plan.holds if k == key}
    for number, step in enumerate(plan.steps, 1):
        written: dict[str, str | tuple] = {}
        for src, dst, k, op in sends(step):
            if k == key:
                own, arriving = written.get(dst) or have.get(dst), have.get(src)
                if arriving is None:
                    raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
                written[dst] = arriving if op == "copy" or own is None else (own, arriving)
        have |= written
    wanting = [node for node, k, _ in plan.wants if k == key and node in have]
    if not wanting:
        raise PlanError("unwanted", plan, key=key)
    return have[wanting[0]]


def _who(plan: PlanData, bits: int) -> str:
    return " ".join(node for i, node in enumerate(plan.nodes) if bits >> i & 1)


def _written(plan: PlanData, number: int, step: Sequence[Send | Update], have: Have) -> Have:
    """What the sends of a step write. ``have`` stays as it is, so that all of them read what was before the step."""
    written, ops = {}, {}
    for src, dst, key, op in sends(step):
        place = dst, key
        arriving, own = have.get((src, key)), written.get(place) or have.get(place)
        if src == dst:
            raise PlanError("to-itself", plan, number, node=src, key=key)
        if arriving is None:
            raise PlanError("not-held", plan, number, node=src, dst=dst, key=key)
        # One copy and nothing else, or any number of adds: anything more would depend on who comes first.
        if place in ops and "copy" in (op, ops[place]):
            raise PlanError("overwritten", plan, number, node=dst, key=key)
        ops[place] = op
        if op == "copy":
            written[place] = arriving
            continue
        if arriving.updated or (own and own.updated):
            raise PlanError("add-updated", plan, number, node=dst, src=src, key=key)
        twice = own.who & arriving.who if own else 0
        if twice:
            raise PlanError("counted-twice", plan, number, node=dst, src=src, key=key, who=_who(plan, twice))
        written[place] = Part(own.who | arriving.who) if own else arriving
    return written


def _updated(plan: PlanData, number: int, act: Update, have: Mapping, everyone: int) -> Part:
    part = have.get((act.node, act.key), Part(0))
    if part.updated:
        raise PlanError("updated-twice", plan, number, node=act.node, key=act.key)
    if not everyone:
        raise PlanError("nothing-to-update", plan, number, node=act.node, key=act.key)
    if part.who != everyone:
        missing = _who(plan, everyone & ~part.who)
        raise PlanError("update-too-early", plan, number, node=act.node, key=act.key, missing=missing)
    return Part(part.who, updated=True)
