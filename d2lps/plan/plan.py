"""A plan: who sends what to whom, in which step. Plain data, checked before anything runs.

>>> from d2lps import Plan, Send
>>> print(Plan(
...     nodes=["gpu0", "gpu1"],
...     share={"g": 1},
...     steps=[[Send("gpu1", "gpu0", "g", "add")], [Send("gpu0", "gpu1", "g", "copy")]],
... ))
2 nodes: gpu0 gpu1
shares: g = 1
step 1   gpu1→gpu0 +g
step 2   gpu0→gpu1 =g

**What a plan means.** All sends of a step read before any of them writes; sums are taken in the order
written. So a result is the same bits, whatever carries the bytes.

* What a node has of a key is *empty*, a *sum*, or *updated*.
* ``add`` into empty begins with the arriving value itself; otherwise the node's own value comes first,
  then the arrivals as written. ``copy`` replaces, and carries the state.
* ``Update`` (a server's optimizer step, its rule chosen by name) acts after all writes of its step. It is
  refused on an incomplete sum or twice, and nothing is added to or from an updated key.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Rational

from d2lps.messages import text
from d2lps.plan import parse
from d2lps.plan.acts import PlanError, Send, Update, sends, show_step, updates
from d2lps.plan.checking import order, verify
from d2lps.plan.lazy import LARGE, Lazy
from d2lps.plan.share import Share, slices

Act = Send | Update


@dataclass(frozen=True, init=False, repr=False)
class Plan:
    """Steps of sends and updates over named nodes and keys. Equal by content, hashable, printable.

    All fields are tuples; beyond 64 nodes an algorithm's steps, and what all nodes hold and want, may be sequences that
    make their items when they are asked for (:mod:`d2lps.plan.lazy`).

    Parameters
    ----------
    nodes : iterable of str
        Names, in the order in which they are drawn and dealt to devices.
    share : mapping of str to Fraction, int or str
        Key → its exact fraction of the buffer, such as ``"1/4"``; no floats. Together they are 1.
    steps : iterable of iterable of Send or Update
        What they mean stands in the module's docstring.
    holds : iterable of str or (str, str), optional
        The (node, key) pairs that have a gradient of their own before; a node's name alone stands for all keys; if
        left out, every node holds every key.
    wants : iterable of str, (str, str) or (str, str, str), optional
        The (node, key) pairs that must be complete after, or (node, key, state) with the state ``"sum"`` or
        ``"updated"``; a node's name alone stands for all keys; if left out, every node wants every key. A state that
        is not given is ``"updated"`` for keys that the plan updates, else ``"sum"``.

    Raises
    ------
    PlanError
        If the plan cannot be read, or is broken (up to 64 nodes; call :func:`check` on larger ones).

    Examples
    --------
    >>> from d2lps import Send
    >>> plan = Plan(["a", "b"], {"g": 1}, [[Send("a", "b", "g")], [Send("b", "a", "g", "copy")]])
    >>> plan.slices(10), plan.order("g")
    ({'g': slice(0, 10, None)}, ('b', 'a'))
    """

    nodes: tuple[str, ...]
    share: Share
    steps: Sequence[tuple[Act, ...]]
    holds: Sequence[tuple[str, str]]
    wants: Sequence[tuple[str, str, str]]

    def __init__(
        self,
        nodes: Iterable[str],
        share: Mapping[str, Rational | str],
        steps: Iterable[Iterable[Act]],
        holds: Iterable | None = None,
        wants: Iterable | None = None,
    ):
        nodes, share = parse.names(nodes), parse.shares(share)
        steps = parse.steps(steps, nodes, share)
        # Lazy steps have no updates, and are too many to look for them.
        updated = set() if isinstance(steps, Lazy) else {act.key for step in steps for act in updates(step)}
        for field, value in {
            "nodes": nodes,
            "share": share,
            "steps": steps,
            "holds": parse.pairs(holds, nodes, share),
            "wants": parse.states(wants, nodes, share, updated),
        }.items():
            object.__setattr__(self, field, value)
        if len(nodes) <= LARGE:
            verify(self)

    def __hash__(self) -> int:
        # By content, yet without going through two million sends: equal plans have equal first steps.
        return hash((self.nodes, self.share, len(self.steps), tuple(self.steps[:1]), len(self.holds), len(self.wants)))

    def slices(self, count: int) -> dict[str, slice]:
        """Where each key lies in a buffer: see :func:`d2lps.plan.slices`.

        Parameters
        ----------
        count : int
            How many elements the buffer has.

        Returns
        -------
        dict of str to slice
            In the order of the keys.
        """
        return slices(self.share, count)

    def order(self, key: str) -> "str | tuple":
        """In which order the gradients of ``key`` are added up.

        Parameters
        ----------
        key : str
            One of the plan's.

        Returns
        -------
        str or tuple
            Nested pairs of node names; one name where nothing is added.

        Raises
        ------
        PlanError
            For a key that is not in the plan, or that nobody wants.

        Examples
        --------
        >>> from d2lps import sharded
        >>> sharded(["a", "b", "c"]).order("g2")
        (('b', 'a'), 'c')
        """
        if key not in self.share:
            raise PlanError("unknown-key", self, where="order", key=key, keys=" ".join(self.share))
        return order(self, key)

    def seen_by(self, node: str) -> tuple[tuple[Act, ...], ...]:
        """The steps with only what ``node`` sends, receives or updates: the program of that one node.

        Parameters
        ----------
        node : str
            One of the plan's.

        Returns
        -------
        tuple of tuple of Send or Update
            As many steps as the plan has.

        Raises
        ------
        PlanError
            For a node that is not in the plan.
        """
        if node not in self.nodes:
            raise PlanError("unknown-node", self, where="seen_by", node=node, nodes=" ".join(self.nodes))
        return tuple(tuple(a for a in step if node in (a[:2] if isinstance(a, Send) else a[:1])) for step in self.steps)

    def __str__(self) -> str:
        """The step table: a line per step, ``+`` where the receiver adds, ``=`` where it takes over."""
        lines = [
            text("plan.nodes", count=len(self.nodes), nodes=" ".join(self.nodes)),
            text("plan.shares", shares=self.share),
        ]
        width = len(str(len(self.steps)))
        for number, step in enumerate(self.steps, 1):
            lines.append("   ".join([text("plan.step", step=f"{number:>{width}}"), *show_step(step)]))
        return "\n".join(lines)

    def __repr__(self) -> str:
        sent = sum(len(sends(step)) for step in self.steps)
        return f"<Plan: {len(self.nodes)} nodes, {len(self.share)} keys, {len(self.steps)} steps, {sent} sends>"

    def to_json(self) -> str:
        """The plan as JSON text.

        Returns
        -------
        str
            From which :meth:`from_json` gives an equal plan back.
        """
        share = {key: str(part) for key, part in self.share.items()}
        return json.dumps(
            {
                "d2lps": "plan",
                "nodes": self.nodes,
                "share": share,
                "steps": self.steps,
                "holds": self.holds,
                "wants": self.wants,
            },
            default=tuple,
        )

    @classmethod
    def from_json(cls, source: str) -> "Plan":
        """The plan that :meth:`to_json` wrote.

        Parameters
        ----------
        source : str
            JSON text.

        Returns
        -------
        Plan
            Checked like any other.

        Raises
        ------
        PlanError
            If ``source`` is something else.
        """
        try:
            data = json.loads(source)
            if data["d2lps"] != "plan":
                raise ValueError(f"d2lps = {data['d2lps']!r}")
            fields = [data[name] for name in ("nodes", "share", "steps", "holds", "wants")]
            return cls(*fields)
        except PlanError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PlanError("not-a-plan", why=f"{type(error).__name__}: {error}") from None


def check(plan: Plan) -> None:
    """Run ``plan`` on sets of contributors and refuse it, in one sentence, if it does not do its work.

    Nobody sends what it does not hold, nobody is counted twice, nothing is overwritten and added to in one
    step, no key is updated before its sum is complete, and at the end everyone who wants a key has every
    part of it.

    Parameters
    ----------
    plan : Plan
        Of any size.

    Raises
    ------
    PlanError
        With a sentence that names the step, the node and the key.

    Examples
    --------
    >>> from d2lps import ring
    >>> check(ring(["a", "b", "c"]))
    """
    require_plan("check", plan)
    verify(plan)


def require_plan(where: str, plan: object) -> None:
    """Raises PlanError unless ``plan`` is one."""
    if not isinstance(plan, Plan):
        raise PlanError("plan-wanted", where=where, given=repr(plan))
