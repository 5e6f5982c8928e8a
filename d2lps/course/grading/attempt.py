"""Judge one attempt: call the answer on a case, hold its plan to the task, and say in one sentence what is wrong.

Right values prove little: a plan that moves whole tensors gives the right sum too. So steps, bytes per node
and the time under :func:`d2lps.cost.shared` are counted, in exact fractions, on every case.
"""

import copy
import inspect
from collections.abc import Callable
from fractions import Fraction

from d2lps import cost
from d2lps.course.grading import mistakes
from d2lps.course.grading.asked import NBYTES, Case, Failure, failure
from d2lps.course.grading.deadline import Stopped
from d2lps.messages import text
from d2lps.plan.acts import PlanError, sends, updates
from d2lps.plan.plan import Plan, check
from d2lps.topology.graph import TopologyError
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size


class Counts:
    """What a plan that does its work moves, in parts of the gradient: what a diagnosis is made of."""

    def __init__(self, case: Case, plan: Plan, trace: Trace):
        self.case, self.plan, self.trace = case, plan, trace
        self.busy = [number for number, step in enumerate(plan.steps, 1) if sends(step)]
        self.keys = [key for key, part in plan.share.items() if part]
        self._moved: dict[tuple, Fraction] = {}
        for number, step in enumerate(plan.steps, 1):
            for send in sends(step):
                for place in ((send.src, "src"), (send.dst, "dst")):
                    for when in (number, None):
                        self._moved[*place, when] = self.moved(*place, when) + plan.share[send.key]

    def moved(self, node: str, way: str, step: int | None = None) -> Fraction:
        """What ``node`` sends (``way="src"``) or receives (``"dst"``) in one step, or in all of them."""
        return self._moved.get((node, way, step), Fraction(0))

    def over(self) -> list[str]:
        """The nodes that send or receive more in all than they need to."""
        return [node for node, part in self.case.in_all.items() if any(self.moved(node, way) > part for way in WAYS)]

    @property
    def late(self) -> bool:
        """Whether the plan takes longer than it may."""
        allowed = self.case.bound if self.case.allowed is None else self.case.allowed
        return self.trace.duration > float(allowed) * (1 + 1e-9)

    def between(self, step: int) -> dict[tuple[str, str], Fraction]:
        """(src, dst) → what travels from one to the other in a step."""
        found: dict[tuple[str, str], Fraction] = {}
        for src, dst, key, _ in sends(self.plan.steps[step - 1]):
            found[src, dst] = found.get((src, dst), Fraction(0)) + self.plan.share[key]
        return found


WAYS = ("dst", "src")  # receiving comes first: where many send to one, that one is to blame


def judge(case: Case, answer: Callable, diagnose: Callable[[Counts], str]) -> Trace:
    """The predicted trace of a right answer; raises Failure.

    ``diagnose`` names the mistake of a plan that does its work, but not well enough.
    """
    plan = _planned(case, answer)
    trace = play(case, plan)
    _same_task(case, plan, trace)
    if trace is None:
        raise _unlinked(case, plan)
    counts = Counts(case, plan, trace)
    if case.one_at_a_time:
        _one_at_a_time(counts)
    if counts.over() or len(counts.busy) > case.steps or counts.late:
        raise Failure(diagnose(counts), _blame(counts), trace)
    return trace


def play(case: Case, plan: Plan) -> Trace | None:
    """The predicted trace of a plan on the case's topology, or None where it is not at home there."""
    try:
        return cost.shared(plan, case.topology, case.nbytes)
    except TopologyError:
        return None


def _planned(case: Case, answer: Callable) -> Plan:
    try:
        plan = called(case, answer, *copy.deepcopy(case.arguments), refused=PlanError)
        if isinstance(plan, Plan):
            check(plan)
    except PlanError as error:
        sentence = text("checks.refused", case=case.label, error=error)
        begun = begun_until(case, error.plan, error.step and error.step - 1)
        raise Failure(mistakes.of_refusal(case, error), sentence, begun) from None
    if not isinstance(plan, Plan):
        raise failure("not-a-plan", "not-a-plan", case, type=type(plan).__name__)
    if len(case.workers) > 1 and not any(map(sends, plan.steps)):
        raise failure("todo", "todo", case)
    return plan


def called(case: Case, answer: Callable, *arguments: object, refused: type[Exception] | tuple = ()) -> object:
    """What ``answer`` returns. What it raises becomes a Failure, but for ``refused``, which tells more itself."""
    try:
        given = answer(*arguments)
    except Stopped:
        raise
    except refused:
        raise
    except BaseException as error:  # nor must exit() in an answer end the notebook's kernel
        raise _raised(case, answer, error) from None
    if given is None:
        raise failure("nothing-returned", "nothing-returned", case)
    return given


def begun_until(case: Case, plan: Plan | None, last: int | None) -> Trace | None:
    """What can be played of a plan: its first ``last`` steps, or all of it."""
    if plan is None or not getattr(plan, "steps", ()):
        return None
    try:
        begun = Plan(plan.nodes, plan.share, plan.steps[:last], plan.holds, wants=())
    except PlanError:  # several things are wrong with it
        return None
    trace = play(case, begun)
    return trace if trace and trace.events else None


def _raised(case: Case, answer: Callable, error: BaseException) -> Failure:
    what = (type(error).__name__ + (f": {error}" if str(error) else "")).splitlines()[0][:200]
    code, line, at = getattr(inspect.unwrap(answer), "__code__", None), None, error.__traceback__
    while at:
        if code and at.tb_frame.f_code.co_filename == code.co_filename:
            line = at.tb_lineno
        at = at.tb_next
    if line is None:
        return failure("raised", "raised", case, error=what)
    return failure("raised", "raised-at", case, error=what, line=line)


def _same_task(case: Case, plan: Plan, trace: Trace | None) -> None:
    """The answer changed nothing of the task: the nodes, who has a gradient, who wants the sum, over which ways."""
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
    for number, step in enumerate(plan.steps, 1):
        for src, dst, *_ in sends(step) if case.servers else ():
            if src in case.workers and dst in case.workers:
                raise failure("between-workers", "between-workers", case, trace, step=number, src=src, dst=dst)


def _unlinked(case: Case, plan: Plan) -> Failure:
    """Names the first message for which there is no way."""
    for number, step in enumerate(plan.steps, 1):
        for src, dst, *_ in sends(step):
            try:
                case.topology.route(src, dst)
            except TopologyError:
                begun = begun_until(case, plan, number - 1)
                return failure("no-link", "no-link", case, begun, step=number, src=src, dst=dst)
    raise AssertionError("every message has a way")


def _one_at_a_time(counts: Counts) -> None:
    for step in counts.busy:
        pairs = counts.between(step)
        for node in counts.plan.nodes:
            for place, sentence in ((1, "receives-at-once"), (0, "sends-at-once")):
                others = sum(pair[place] == node for pair in pairs)
                if others > 1:
                    raise failure("at-once", sentence, counts.case, counts.trace, step=step, node=node, got=others)


def _blame(counts: Counts) -> str:
    """The first step in which somebody moves too much, else who does so in all, else the steps or the longest one."""
    case, trace = counts.case, counts.trace
    times = {"case": case.label, "time": time(trace.duration), "bound": time(case.bound)}
    for step, allowed in [*((number, case.per_step) for number in counts.busy), (None, case.in_all)]:
        moved = {(node, way): counts.moved(node, way, step) for node in allowed for way in WAYS}
        if not moved:
            continue
        node, way = max(moved, key=lambda at: (moved[at] / allowed[at[0]], moved[at]))
        if moved[node, way] > allowed[node]:
            key = ("sends" if way == "src" else "receives") + ("" if step else "-in-all")
            got, enough = (amount(part, case.nbytes) for part in (moved[node, way], allowed[node]))
            return text(f"checks.{key}", node=node, step=step, got=got, enough=enough, **times)
    for step in counts.busy if case.per_link else ():
        (src, dst), most = max(counts.between(step).items(), key=lambda item: item[1])
        if most > case.per_link:
            got, enough = amount(most, case.nbytes), amount(case.per_link, case.nbytes)
            return text("checks.over-link", step=step, src=src, dst=dst, got=got, enough=enough, **times)
    if len(counts.busy) > case.steps:
        # A plan in more steps may well be faster than the bound, which is that of the steps asked for.
        key = "steps" if counts.late else "steps-in-time"
        return text(f"checks.{key}", got=len(counts.busy), enough=case.steps, **times)
    lengths = {number: end - start for number, (start, end) in enumerate(trace.step_times(), 1)}
    step = max(lengths, key=lambda number: float(f"{lengths[number]:.9g}"))  # the first of those that take equally long
    pairs = counts.between(step)
    own = {pair: case.topology.route(*pair)[0].capacity for pair in pairs if len(case.topology.route(*pair)) == 1}
    if len(own) < len(pairs):
        return text("checks.late", step=step, longest=time(lengths[step]), **times)
    src, dst = max(own, key=lambda pair: pairs[pair] / Fraction(own[pair]))  # each pair has a link of its own
    got = amount(pairs[src, dst], case.nbytes)
    return text("checks.late-link", step=step, longest=time(lengths[step]), src=src, dst=dst, got=got, **times)


def time(seconds: "Fraction | float") -> str:
    """A time as it stands in a sentence, with a no-break space before its unit."""
    return show_seconds(float(seconds)).replace(" ", "\u00a0")


def amount(part: Fraction, nbytes: int = NBYTES) -> str:
    """A part of the gradient in bytes as it stands in a sentence."""
    return show_size(float(part * nbytes)).replace(" ", "\u00a0")
