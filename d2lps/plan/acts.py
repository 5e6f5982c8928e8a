"""The acts of a plan (Send and Update), the fields of a plan, and the error of a broken one."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from d2lps.messages import text
from d2lps.messages.raised import Brief


class PlanData(Protocol):
    """The fields of a :class:`~d2lps.plan.Plan`, for modules that ``plan.py`` imports."""

    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def share(self) -> Mapping[str, Fraction]: ...
    @property
    def steps(self) -> "Sequence[tuple[Send | Update, ...]]": ...
    @property
    def holds(self) -> Sequence[tuple[str, str]]: ...
    @property
    def wants(self) -> Sequence[tuple[str, str, str]]: ...


class PlanError(Brief, ValueError):
    """A broken plan; the sentence names the step, the node and the key.

    Args:
        reason: The sentence's key in messages/ under ``plan`` (``"counted-twice"``).
        plan (Plan): The broken plan, if it could be read at all; a learner's attempt can then be played up to ``step``.
        step: Counted from 1; None if no single step is to blame.
        **values: Values that fill the sentence.

    Example:
        >>> from d2lps import Plan
        >>> try:
        ...     Plan(["a", "b"], {"g": 1}, [[Send("a", "b", "g")]])
        ... except PlanError as error:
        ...     print(error.reason, error)
        incomplete at the end, after 1 steps: key g of a is not the whole sum: b missing
    """

    def __init__(self, reason: str, plan: PlanData | None = None, step: int | None = None, **values: object):
        self.reason, self.plan, self.step, self.values = reason, plan, step, values
        super().__init__(text(f"plan.{reason}", step=step, **values))

    def __reduce__(self):
        return partial(PlanError, **self.values), (self.reason, self.plan, self.step)


class Send(NamedTuple):
    """A message: ``src`` sends its value of ``key`` to ``dst``, which adds it or copies it.

    Args:
        src, dst: Two nodes.
        key: The key that is sent.
        op: ``"add"`` or ``"copy"``.

    Example:
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
    """An optimizer step: ``node`` turns its complete sum of ``key`` into new weights.

    Args:
        node, key: The node that holds the sum, and the key.
        rule: ``"sgd"``, ``"adagrad"`` or ``"adam"``.
        numbers: The rule's numbers, such as ``(("lr", 0.1),)``.

    Example:
        >>> print(Update("gpu0", "g", "sgd", (("lr", 0.1),)))
        gpu0 sgd(g, lr=0.1)
    """

    node: str
    key: str
    rule: str
    numbers: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.node} {self.rule}({', '.join([self.key, *(f'{n}={v:g}' for n, v in self.numbers)])})"


def sends(step: Iterable[Send | Update]) -> list[Send]:
    """Return the sends of a step, in the order written.

    Args:
        step: A step of a plan.

    Returns:
        The sends without the updates.
    """
    return [act for act in step if isinstance(act, Send)]


def updates(step: Iterable[Send | Update]) -> list[Update]:
    """Return the updates of a step, in the order written; they act after its sends.

    Args:
        step: A step of a plan.

    Returns:
        The updates without the sends.
    """
    return [act for act in step if isinstance(act, Update)]


def show_step(step: Iterable[Send | Update]) -> list[str]:
    """Print a step briefly: ``gpu1,gpu2→gpu0 +g`` joins adjacent sends that have the same target or source."""

    def common(act: Send | Update) -> tuple:
        if isinstance(act, Update):
            return (act,)
        return act.key, act.op, act.dst if act.op == "add" else act.src

    words = []
    for _, group in groupby(step, common):
        sent = sends(acts := list(group))
        first = acts[0]
        if isinstance(first, Update):
            words.append(str(first))
        elif first.op == "add":
            words.append(str(first._replace(src=",".join(send.src for send in sent))))
        else:
            words.append(str(first._replace(dst=",".join(send.dst for send in sent))))
    return words
