"""The acts of a plan, Send and Update, the data that a plan is, and the error of one that is broken."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from d2lps.messages import text
from d2lps.messages.raised import Brief


class PlanData(Protocol):
    """The data that a :class:`~d2lps.plan.Plan` is: for what must know a plan before there is the class."""

    nodes: tuple[str, ...]
    share: Mapping[str, Fraction]
    steps: "Sequence[tuple[Send | Update, ...]]"
    holds: Sequence[tuple[str, str]]
    wants: Sequence[tuple[str, str, str]]


class PlanError(Brief, ValueError):
    """A plan that is broken: its sentence names the step, the node and the key.

    Parameters
    ----------
    reason : str
        The sentence's key in messages/ under ``plan`` (``"counted-twice"``).
    plan : Plan, optional
        The broken plan, where it could be read at all, so that a learner's attempt can be played up to ``step``.
    step : int, optional
        Counted from 1; None where no single step is to blame.
    **values
        They fill the sentence.

    Examples
    --------
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
    """``src`` sends its part ``key`` to ``dst``, which adds it or takes it over.

    Parameters
    ----------
    src, dst : str
        Two nodes.
    key : str
        What is sent.
    op : str
        ``"add"`` or ``"copy"``.

    Examples
    --------
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
    """``node`` turns its complete sum of ``key`` into new weights by a rule.

    Parameters
    ----------
    node, key : str
        Where, and of what.
    rule : str
        ``"sgd"``, ``"adagrad"`` or ``"adam"``.
    numbers : tuple of (str, float)
        The rule's, such as ``(("lr", 0.1),)``.

    Examples
    --------
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
    """The sends of a step, as written.

    Parameters
    ----------
    step : iterable of Send or Update
        One of a plan's.

    Returns
    -------
    list of Send
        Without the updates.
    """
    return [act for act in step if isinstance(act, Send)]


def updates(step: Iterable[Send | Update]) -> list[Update]:
    """The updates of a step, as written: they act after its sends.

    Parameters
    ----------
    step : iterable of Send or Update
        One of a plan's.

    Returns
    -------
    list of Update
        Without the sends.
    """
    return [act for act in step if isinstance(act, Update)]


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
