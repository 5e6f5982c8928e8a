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

**The meaning of a plan.** All sends of a step read before any of them writes, and sums are taken in the order
written, so every carrier computes the same bits.

* The value that a node holds for a key is *empty*, a *sum*, or *updated*.
* ``add`` into an empty value begins with the arriving value itself; otherwise the node's own value comes first,
  then the arrivals in the order written. ``copy`` replaces the value and its state.
* ``Update`` (a server's optimizer step, its rule chosen by name) acts after all writes of its step. A second update
  and one of an incomplete sum are refused, and nothing is added to or from an updated key.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

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

    All fields are tuples; beyond 64 nodes ``steps``, ``holds`` and ``wants`` may be sequences that make their items on
    demand (:mod:`d2lps.plan.lazy`).

    Args:
        nodes: Names, in the order in which they are drawn and assigned to devices.
        share: Key → its exact fraction of the buffer, such as ``"1/4"``; no floats. Together they are 1.
        steps (iterable of iterable of Send or Update): The module's docstring explains their meaning.
        holds (iterable of str or (str, str)): The (node, key) pairs that have a gradient of their own at the start; a
            node's name alone stands for all keys; if left out, every node holds every key.
        wants (iterable of str, (str, str) or (str, str, str)): The (node, key) pairs that must be complete at the end,
            or (node, key, state) with the state ``"sum"`` or ``"updated"``; a node's name alone stands for all keys; if
            left out, every node wants every key. A missing state is ``"updated"`` for keys that the plan updates, else
            ``"sum"``.

    Raises:
        PlanError: If the plan cannot be read, or is broken (up to 64 nodes; call :func:`check` on larger ones).

    Example:
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
        share: Mapping[str, Fraction | int | str],
        steps: Iterable[Iterable[Act]],
        holds: Iterable | None = None,
        wants: Iterable | None = None,
    ):
        nodes, share = parse.names(nodes), parse.shares(share)
        steps = parse.steps(steps, nodes, share)
        # Lazy steps have no updates, and there are too many to search them.
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
        # A hash of the content that does not visit two million sends: equal plans have equal first steps.
        return hash((self.nodes, self.share, len(self.steps), tuple(self.steps[:1]), len(self.holds), len(self.wants)))

    def slices(self, count: int) -> dict[str, slice]:
        """Return the slice of each key in a buffer: see :func:`d2lps.plan.slices`.

        Args:
            count: The number of elements of the buffer.

        Returns:
            Slices in the order of the keys.
        """
        return slices(self.share, count)

    def order(self, key: str) -> "str | tuple":
        """Return the order in which the gradients of ``key`` are added up.

        Args:
            key: A key of the plan.

        Returns:
            Nested pairs of node names; a single name if nothing is added.

        Raises:
            PlanError: For a key that is not in the plan, or that no node wants.

        Example:
            >>> from d2lps import sharded
            >>> sharded(["a", "b", "c"]).order("g2")
            (('b', 'a'), 'c')
        """
        if key not in self.share:
            raise PlanError("unknown-key", self, where="order", key=key, keys=" ".join(self.share))
        return order(self, key)

    def __str__(self) -> str:
        """Return the step table, a line per step: ``+`` marks an add, ``=`` a copy."""
        lines = [
            text("plan.nodes", count=len(self.nodes), nodes=" ".join(self.nodes)),
            text("plan.shares", shares=self.share),
        ]
        width = len(str(len(self.steps)))
        for number, step in enumerate(self.steps, 1):
            lines.append("   ".join([text("plan.step", step=f"{number:>{width}}"), *show_step(step)]))
        return "\n".join(lines)

    def __repr__(self) -> str:
        size = f"{len(self.nodes)} nodes, {len(self.share)} keys, {len(self.steps)} steps"
        return f"<Plan: {size}, {self._count_sends()} sends>"

    def _count_sends(self) -> int:
        """Return the number of sends; of lazy steps without making those that are described or alike."""
        if not isinstance(self.steps, Lazy):
            return sum(len(sends(step)) for step in self.steps)
        if self.steps.around:
            return len(self.nodes) * sum(self.steps.around(i)[2] for i in self.steps.span)
        kinds = Counter(map(self.steps.kind, range(len(self.steps))))
        first = {self.steps.kind(i): i for i in reversed(range(len(self.steps)))}
        return sum(number * len(self.steps[first[kind]]) for kind, number in kinds.items())

    def to_json(self) -> str:
        """Return the plan as JSON text.

        Returns:
            Text from which :meth:`from_json` makes an equal plan.
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
        """Return the plan that :meth:`to_json` wrote.

        Args:
            source: JSON text.

        Returns:
            A plan checked like any other.

        Raises:
            PlanError: If ``source`` is something else.
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
    """Run ``plan`` on sets of contributors, and raise PlanError if it is wrong.

    In a correct plan no node sends a key that it does not hold, no gradient is counted twice, no value is both
    overwritten and added to in one step, no key is updated before its sum is complete, and at the end every node has
    the complete sum of every key that it wants.

    Args:
        plan: A plan of any size.

    Raises:
        PlanError: With a sentence that names the step, the node and the key.

    Example:
        >>> from d2lps import ring
        >>> check(ring(["a", "b", "c"]))
    """
    require_plan("check", plan)
    verify(plan)


def require_plan(where: str, plan: object) -> None:
    """Raise PlanError unless ``plan`` is a Plan."""
    if not isinstance(plan, Plan):
        raise PlanError("plan-wanted", where=where, given=repr(plan))
