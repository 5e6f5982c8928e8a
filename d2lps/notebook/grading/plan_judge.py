"""Judge an answer that returns a plan: compare the plan with the task, and name the mistake in one sentence.

Right values prove little: a plan that moves whole tensors gives the right sum, too. So steps, bytes per node and the
time under :func:`d2lps.cost.shared` are counted, in exact fractions, for every case.

Name the mistake behind a plan that was refused, so that the hint fits it.

A name is a key under ``mistakes`` in a chapter's exercises.toml, or under ``checks.mistake`` in the messages.
"""

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from d2lps.messages import text
from d2lps.notebook.grading.calls import call
from d2lps.notebook.grading.exercise import Failure, failure, size_text, time_text, unlike
from d2lps.plan import Plan, PlanError, check, sends, updates
from d2lps.plan.checking import complete, replay
from d2lps.simulate import cost
from d2lps.topology import Topology, TopologyError
from d2lps.trace import Trace
from d2lps.units import size

NBYTES = size("160 MB")
WAYS = ("dst", "src")  # receiving comes first: if many nodes send to one, that one is to blame


@dataclass(frozen=True)
class PlanCase:
    """One call of an answer that returns a plan, and the cost that the plan may have.

    Args:
        label: The name for the learner, the same in every language: ``"n = 4"``.
        arguments: The arguments of the answer, copied for every call.
        workers: The nodes that have a gradient and want the sum.
        topology: The topology on which the plan is costed.
        steps: The number of steps that may move bytes.
        bound: Seconds that no plan can beat on ``topology``.
        servers: The nodes that neither have a gradient nor want the sum.
        in_all (mapping str → Fraction): Node → the part of the gradient that it may send, and receive; for other nodes
            only ``bound`` counts.
        per_step (mapping str → Fraction): Node → the part it needs to send, or receive, in one step: shows in which
            step a plan goes wrong.
        allowed: Seconds that the plan may take; ``bound`` if left out.
        per_link: The part of the gradient that one node needs to send to one other in one step; unlimited if left out.
        nbytes: The gradient's size in bytes.
    """

    label: str
    arguments: tuple
    workers: tuple[str, ...]
    topology: Topology
    steps: int
    bound: Fraction
    servers: tuple[str, ...] = ()
    in_all: Mapping[str, Fraction] = field(default_factory=dict)
    per_step: Mapping[str, Fraction] = field(default_factory=dict)
    allowed: Fraction | None = None
    per_link: Fraction | None = None
    nbytes: int = NBYTES

    def renamed(self, *names: str) -> "PlanCase":
        """Return the same case, whose workers have these names, so that an answer has to use those that it is given."""
        new, host = dict(zip(self.workers, names, strict=True)), self.topology

        def each(thing: object) -> object:
            if isinstance(thing, Mapping):
                return {each(key): each(value) for key, value in thing.items()}
            if isinstance(thing, list | tuple):
                return type(thing)(map(each, thing))
            return new.get(thing, thing) if isinstance(thing, str) else thing

        links = [replace(link, src=each(link.src), dst=each(link.dst)) for link in host.links]
        return replace(
            self,
            label=re.sub(r"\w+", lambda word: each(word[0]), self.label) + f", {', '.join(names)}",
            arguments=each(self.arguments),
            workers=names,
            topology=Topology(host.name, each(host.kinds), links, limits=each(host.limits)),
            in_all=each(self.in_all),
            per_step=each(self.per_step),
        )

    def predict(self, plan: Plan) -> Trace | None:
        """Return the predicted trace of a plan on the case's topology, or None if it does not fit there."""
        try:
            return cost.shared(plan, self.topology, self.nbytes)
        except TopologyError:
            return None

    def predict_until(self, plan: Plan | None, last: int | None) -> Trace | None:
        """Return a trace of a plan's first ``last`` steps, or of all; None if there is nothing to watch."""
        if not getattr(plan, "steps", ()):  # also if the plan could not be read
            return None
        try:
            trace = self.predict(Plan(plan.nodes, plan.share, plan.steps[:last], plan.holds, wants=()))
        except PlanError:  # the plan has several mistakes
            return None
        return trace if trace and trace.events else None


class Counts:
    """The bytes that a correct plan moves, for a diagnosis.

    Attributes:
        case, plan, trace: The case, its plan and the predicted trace.
        busy (list of int): The numbers of the steps, from 1, that move bytes.
        keys (list of str): The keys that are not empty.
    """

    def __init__(self, case: PlanCase, plan: Plan, trace: Trace):
        self.case, self.plan, self.trace = case, plan, trace
        self.busy = [number for number, step in enumerate(plan.steps, 1) if sends(step)]
        self.keys = [key for key, part in plan.share.items() if part]
        self._moved: dict[tuple, Fraction] = defaultdict(Fraction)
        for number in self.busy:
            for send in sends(plan.steps[number - 1]):
                for step in (number, None):
                    self._moved[send.src, "src", step] += plan.share[send.key]
                    self._moved[send.dst, "dst", step] += plan.share[send.key]

    def moved(self, node: str, way: str, step: int | None = None) -> Fraction:
        """Return the part of the gradient that ``node`` sends ("src") or receives ("dst"), in one step or all."""
        return self._moved[node, way, step]

    def over(self) -> list[str]:
        """Return the nodes that send or receive more in all than they need to."""
        return [node for node, part in self.case.in_all.items() if any(self.moved(node, way) > part for way in WAYS)]

    @property
    def late(self) -> bool:
        """True if the plan takes longer than allowed."""
        allowed = self.case.bound if self.case.allowed is None else self.case.allowed
        return self.trace.duration > float(allowed) * (1 + 1e-9)

    def between(self, step: int) -> dict[tuple[str, str], Fraction]:
        """Return (src, dst) → the part of the gradient that travels from one to the other in a step."""
        parts: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for src, dst, key, _ in sends(self.plan.steps[step - 1]):
            parts[src, dst] += self.plan.share[key]
        return parts


@dataclass(frozen=True)
class PlanJudge:
    """The judge of answers that return a plan, with cases of the kind :class:`PlanCase`.

    Args:
        diagnose (callable (Counts) → str): Names the mistake of a plan that is correct, but not good enough.
        require (callable (Counts) → None): Raises Failure if the plan breaks a further rule of the exercise.
    """

    diagnose: Callable[[Counts], str]
    require: Callable[[Counts], None] = lambda counts: None

    def __call__(self, case: PlanCase, answer: Callable) -> Trace:
        """Return the predicted trace of a right answer; raise Failure for a wrong one."""
        plan = _planned(case, answer)
        trace = case.predict(plan)
        _require_same_task(case, plan, trace)
        if trace is None:
            raise _unlinked(case, plan)
        counts = Counts(case, plan, trace)
        self.require(counts)
        if counts.over() or len(counts.busy) > case.steps or counts.late:
            raise Failure(self.diagnose(counts), _blame(counts), trace)
        return trace


def _planned(case: PlanCase, answer: Callable) -> Plan:
    try:
        plan = call(case, answer, *copy.deepcopy(case.arguments), refused=PlanError)
        if isinstance(plan, Plan):
            check(plan)
    except PlanError as error:
        legal = case.predict_until(error.plan, error.step and error.step - 1)
        raise failure(mistake_of(error, case.workers), "refused", case, legal, error=error) from None
    if not isinstance(plan, Plan):
        raise failure("not-a-plan", "not-a-plan", case, type=type(plan).__name__)
    if len(case.workers) > 1 and not any(map(sends, plan.steps)):
        raise failure("todo", "todo", case)
    return plan


def _require_same_task(case: PlanCase, plan: Plan, trace: Trace | None) -> None:
    """Raise Failure if the answer changed the task: its nodes, their gradients, or the nodes that want the sum."""
    nodes = (*case.workers, *case.servers)
    for node in plan.nodes:
        if node not in nodes:
            raise failure("other-nodes", "strange-node", case, trace, node=node)
    for node in nodes:
        if node not in plan.nodes:
            raise failure("other-nodes", "missing-node", case, trace, node=node)
    if any(map(updates, plan.steps)):
        raise failure("updates", "updates", case, trace)
    wanted = {(node, key) for node, key, _ in plan.wants}
    for node in nodes:
        for key in plan.share:
            holds, should = (node, key) in plan.holds, node in case.workers
            if holds != should:
                raise failure("task-changed", "holds-more" if holds else "holds-less", case, trace, node=node, key=key)
            if should and (node, key) not in wanted:
                raise failure("task-changed", "wants-less", case, trace, node=node, key=key)


def _unlinked(case: PlanCase, plan: Plan) -> Failure:
    """Return a Failure with the first message for which there is no route."""
    for number, step in enumerate(plan.steps, 1):
        for src, dst, *_ in sends(step):
            try:
                case.topology.route(src, dst)
            except TopologyError:
                before = case.predict_until(plan, number - 1)
                return failure("no-link", "no-link", case, before, step=number, src=src, dst=dst)
    raise AssertionError("every message has a route")


def _blame(counts: Counts) -> str:
    """Name the first step in which a node moves too much; else such a node in all; else the steps, or the longest."""
    case, trace = counts.case, counts.trace

    def sentence(key: str, **values: object) -> str:
        time, bound = (
            unlike(trace.duration, float(case.bound), time_text)
            if counts.late
            else map(time_text, (trace.duration, case.bound))
        )
        times = {"time": time, "bound": bound}
        return text(f"checks.{key}", case=case.label, **times, **values)

    for step, enough in [*((number, case.per_step) for number in counts.busy), (None, case.in_all)]:
        moved = {(node, way): counts.moved(node, way, step) for node in enough for way in WAYS}
        node, way = max(moved, key=lambda at: (moved[at] / enough[at[0]], moved[at]), default=(None, None))
        if node and moved[node, way] > enough[node]:
            key = ("sends" if way == "src" else "receives") + ("" if step else "-in-all")
            got, limit = unlike(moved[node, way] * case.nbytes, enough[node] * case.nbytes, size_text)
            return sentence(key, node=node, step=step, got=got, enough=limit)
    for step in counts.busy if case.per_link else ():
        (src, dst), part = max(counts.between(step).items(), key=lambda item: item[1])
        if part > case.per_link:
            got, limit = unlike(part * case.nbytes, case.per_link * case.nbytes, size_text)
            return sentence("over-link", step=step, src=src, dst=dst, got=got, enough=limit)
    if len(counts.busy) > case.steps:
        # A plan with more steps may be faster than the bound, which is for the number of steps asked for.
        return sentence("steps" if counts.late else "steps-in-time", got=len(counts.busy), enough=case.steps)
    lengths = {number: end - start for number, (start, end) in enumerate(trace.step_times(), 1)}
    step = max(lengths, key=lambda number: float(f"{lengths[number]:.9g}"))  # the first of equally long ones
    parts, longest = counts.between(step), time_text(lengths[step])
    routes = {pair: case.topology.route(*pair) for pair in parts}
    if any(len(route) > 1 for route in routes.values()):
        return sentence("late", step=step, longest=longest)
    # Each pair has a link of its own.
    src, dst = max(parts, key=lambda pair: parts[pair] / Fraction(routes[pair][0].capacity))
    return sentence(
        "late-link", step=step, longest=longest, src=src, dst=dst, got=size_text(parts[src, dst] * case.nbytes)
    )


# A PlanError's reason → the mistake.
MISTAKES = (
    {"inexact-share": "inexact", "not-held": "too-early", "unknown-node": "unknown-name", "unknown-key": "unknown-name"}
    | {reason: reason for reason in ("to-itself", "overwritten", "counted-twice")}
    | dict.fromkeys(("add-updated", "update-too-early", "updated-twice", "not-updated", "updated-unwanted"), "updates")
)


def mistake_of(error: PlanError, workers: Sequence[str]) -> str:
    """Return the mistake behind a PlanError; ``workers`` have a gradient and want the sum."""
    if error.reason == "share-sum":
        near = abs(error.values["total"] - 1) < Fraction(1, 10**6)
        return "inexact" if near else "share-sum"
    if error.reason in ("incomplete", "nothing-arrived"):
        return _unfinished(error.plan, error.values["node"], set(workers))
    return MISTAKES.get(error.reason, "broken-plan")


def _unfinished(plan: Plan, node: str, workers: set[str]) -> str:
    """Return the reason why a plan with only legal steps leaves ``node`` without a complete sum."""
    if not any(map(sends, plan.steps)):
        return "todo"
    if node not in workers or {holder for holder, _ in plan.holds} != workers:
        return "task-changed"
    everyone, early, once = complete(plan), False, set()
    for number, have in replay(plan):
        once |= {key for (_, key), part in have.items() if part.who == everyone[key]}
        following = sends(plan.steps[number]) if number < len(plan.steps) else []
        early |= any(op == "copy" and have[src, key].who != everyone[key] for src, _, key, op in following)
    owners = {key: {n for (n, k), part in have.items() if k == key and part.who == everyone[key]} for key in plan.share}
    if not all(owners.values()):
        return "lost-sum" if all(key in once for key, nodes in owners.items() if not nodes) else "not-collected"
    if early:
        return "too-early"
    return "last-one" if any(workers <= nodes for nodes in owners.values()) else "not-sent-back"
