"""Sends and updates, and what a step of them does to who has what.

The meaning of a plan, in one place: :func:`replay` follows the contributors through the steps on integer
bit sets, :func:`check` asks whether everyone has what it wants, :func:`order` tells in which order a sum
was added up. A runner, a drawing and a grader ask here and never decide for themselves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from d2lps.text import text

if TYPE_CHECKING:
    from d2lps.plan import Plan


class PlanError(ValueError):
    """A plan that is broken: its sentence names the step, the node and the key.

    ``reason`` is the sentence's key in messages/ under ``plan`` (``"counted-twice"``). ``step`` counts from
    1 and is None where no single step is to blame. ``plan`` is the broken plan, where it could be read at
    all, so that a learner's attempt can be played up to ``step``. ``values`` fill the sentence.
    """

    def __init__(self, reason: str, plan: "Plan | None" = None, step: int | None = None, **values: object):
        self.reason, self.plan, self.step, self.values = reason, plan, step, values
        super().__init__(text(f"plan.{reason}", step=step, **values))

    def __reduce__(self):
        return partial(PlanError, **self.values), (self.reason, self.plan, self.step)


class Send(NamedTuple):
    """``src`` sends its part ``key`` to ``dst``, which adds it (``op="add"``) or takes it over (``"copy"``).

    >>> print(Send("gpu1", "gpu0", "g"), "|", Send("gpu0", "gpu1", "g", "copy"))
    gpu1→gpu0 +g | gpu0→gpu1 =g
    """

    src: str
    dst: str
    key: str
    op: str = "add"

    def __str__(self) -> str:
        return f"{self.src}→{self.dst} {'+' if self.op == 'add' else '='}{self.key}"


class Update(NamedTuple):
    """``node`` turns its complete sum of ``key`` into new weights by ``rule``, with the rule's ``numbers``.

    >>> print(Update("gpu0", "g", "sgd", (("lr", 0.1),)))
    gpu0 sgd(g, lr=0.1)
    """

    node: str
    key: str
    rule: str
    numbers: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.node} {self.rule}({', '.join([self.key, *(f'{n}={v:g}' for n, v in self.numbers)])})"


def plan_wanted(where: str, given: object) -> None:
    """Raises PlanError unless ``given`` is a plan."""
    from d2lps.plan import Plan

    if not isinstance(given, Plan):
        raise PlanError("plan-wanted", where=where, given=repr(given))


def sends(step: Iterable[Send | Update]) -> list[Send]:
    """The sends of a step, as written."""
    return [act for act in step if isinstance(act, Send)]


def updates(step: Iterable[Send | Update]) -> list[Update]:
    """The updates of a step, as written: they act after its sends."""
    return [act for act in step if isinstance(act, Update)]


def begun(plan: "Plan") -> Iterator[list[tuple[Send, bool]]]:
    """The sends of each step, each with whether its target begins with what arrives: a copy, or an add into empty."""
    filled = set(plan.holds)
    for step in plan.steps:
        found = []
        for send in sends(step):
            found.append((send, send.op == "copy" or (send.dst, send.key) not in filled))
            filled.add((send.dst, send.key))
        yield found


def show_step(step: Iterable[Send | Update]) -> list[str]:
    """A step in few words: ``gpu1,gpu2→gpu0 +g`` for sends that stand together and have one target or one source."""

    def common(act: Send | Update) -> tuple:
        if isinstance(act, Update):
            return (act,)
        return act.key, act.op, act.dst if act.op == "add" else act.src

    words = []
    for _, group in groupby(step, common):
        first, *more = group
        if isinstance(first, Update):
            words.append(str(first))
        elif first.op == "add":
            words.append(str(first._replace(src=",".join(act.src for act in (first, *more)))))
        else:
            words.append(str(first._replace(dst=",".join(act.dst for act in (first, *more)))))
    return words


class Part(NamedTuple):
    """What a node has of a key: whose gradients are in it (a bit per node, in the plan's order), and its state."""

    who: int
    updated: bool = False


Have = dict[tuple[str, str], Part]


def complete(plan: "Plan") -> dict[str, int]:
    """Key → the bits of all nodes that hold a gradient of it before."""
    bit = {node: 1 << i for i, node in enumerate(plan.nodes)}
    everyone = dict.fromkeys(plan.share, 0)
    for node, key in plan.holds:
        everyone[key] |= bit[node]
    return everyone


def replay(plan: "Plan") -> Iterator[tuple[int, Have]]:
    """What every node has after each step: (number of the step, {(node, key): Part}).

    Begins with step 0, what is held before. What a node does not have is not in the mapping. Raises
    PlanError at the first thing that a step may not do.
    """
    for number, have in _replay(plan):
        yield number, dict(have)


def _replay(plan: "Plan") -> Iterator[tuple[int, Have]]:
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


def check(plan: "Plan") -> None:
    """Run ``plan`` on sets of contributors and refuse it, in one sentence, if it does not do its work.

    Nobody sends what it does not hold, nobody is counted twice, nothing is overwritten and added to in one
    step, no key is updated before its sum is complete, and at the end everyone who wants a key has every
    part of it. Raises PlanError, whose sentence names the step, the node and the key.
    """
    plan_wanted("check", plan)
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


def order(plan: "Plan", key: str) -> "str | tuple":
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


def _who(plan: "Plan", bits: int) -> str:
    return " ".join(node for i, node in enumerate(plan.nodes) if bits >> i & 1)


def _written(plan: "Plan", number: int, step: Sequence[Send | Update], have: Have) -> Have:
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


def _updated(plan: "Plan", number: int, act: Update, have: Mapping, everyone: int) -> Part:
    part = have.get((act.node, act.key), Part(0))
    if part.updated:
        raise PlanError("updated-twice", plan, number, node=act.node, key=act.key)
    if not everyone:
        raise PlanError("nothing-to-update", plan, number, node=act.node, key=act.key)
    if part.who != everyone:
        missing = _who(plan, everyone & ~part.who)
        raise PlanError("update-too-early", plan, number, node=act.node, key=act.key, missing=missing)
    return Part(part.who, updated=True)
