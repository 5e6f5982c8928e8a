"""The steps of a plan told one after the other beside its picture, which stays while the reader scrolls.

>>> from d2lps import cost, pcie_server, ring
>>> told = story(cost.shared(ring(["gpu0", "gpu1", "gpu2"]), pcie_server(3), "160 MB"))
>>> told
<Story: g1 in 4 steps>
>>> told.sentences()[3].split(", ")
['Step 4: gpu1 gets g1 from gpu0', 'as the last one. Every node has its sum now', 'after 13.33 ms.']
"""

import math
from html import escape
from typing import cast

from d2lps.messages import text
from d2lps.notebook.hand import Hand
from d2lps.plan import Plan
from d2lps.plan.acts import Send, sends
from d2lps.plan.checking import replay
from d2lps.trace import Trace
from d2lps.units import show_seconds
from d2lps.view.drawing import DrawingError, draw, require_trace

MOST_NODES, MOST_STEPS = 8, 16


def story(trace: Trace, key: str = "") -> "Story":
    """Tell a run step by step: the picture stays beside the text, and outlines the piece that each paragraph follows.

    Args:
        trace: Of a plan with at most 8 nodes and 16 steps, in which the key is sent in every step.
        key: The piece to follow; if empty, the first of the plan.

    Returns:
        A notebook shows it.

    Raises:
        DrawingError: For anything else.

    Example:
        >>> from d2lps import cost, nvswitch, ring
        >>> story(cost.shared(ring(["gpu0", "gpu1"]), nvswitch(2), "160 MB"), key="g2")
        <Story: g2 in 2 steps>
    """
    plan = require_trace(trace, "story").plan
    if not isinstance(plan, Plan) or len(plan.nodes) > MOST_NODES or len(plan.steps) > MOST_STEPS:
        raise DrawingError(text("story.too-large", nodes=MOST_NODES, steps=MOST_STEPS))
    key = key or next(iter(plan.share))
    if not all(any(send.key == key for send in sends(step)) for step in plan.steps):
        raise DrawingError(text("story.not-sent", key=key))
    return Story(trace, key)


class Story(Hand):
    """The result of :func:`story`.

    Attributes:
        states (list of dict): (node, key) → a bit for each node whose gradient is in it, before the first step and
            after each.
    """

    def __init__(self, trace: Trace, key: str):
        self._trace, self._plan, self._key = trace, cast(Plan, trace.plan), key
        self.states = [{place: piece.who for place, piece in have.items()} for _, have in replay(self._plan)]
        super().__init__()

    def sentences(self) -> list[str]:
        """Return a paragraph per step, in the language in force."""
        return [self._sentence(number) for number in range(1, len(self.states))]

    def _sentence(self, step: int) -> str:
        plan, state = self._plan, self.states[step]
        sent = [send for send in sends(plan.steps[step - 1])]
        followed = self._followed(step)
        every = (1 << len(plan.nodes)) - 1
        with_all = sum(state.get((node, self._key)) == every for node in plan.nodes)
        count = state[followed.dst, self._key].bit_count()
        if followed.op == "add":
            kind = "complete" if state[followed.dst, self._key] == every else "adds"
        else:
            kind = "ends" if with_all == len(plan.nodes) else "copies"
        named = {"step": step, "key": self._key, "src": followed.src, "dst": followed.dst, "nodes": len(plan.nodes)}
        said = text(f"story.{kind}", **named, count=count, have=with_all, time=self._clock(step))
        return f"{said} {text('story.first', sends=len(sent))}" if step == 1 else said

    def _followed(self, step: int) -> Send:
        return next(send for send in sends(self._plan.steps[step - 1]) if send.key == self._key)

    def _clock(self, step: int) -> str:
        """Return when a step is over."""
        return show_seconds(max((event.end for event in self._trace.events if event.step <= step), default=0.0))

    def content(self) -> dict:
        """Return the places of the nodes, what they have after each step, and the paragraphs."""
        plan = self._plan
        nodes, keys = list(plan.nodes), list(plan.share)
        angles = [2 * math.pi * (i - 0.5) / len(nodes) - math.pi for i in range(len(nodes))]
        return {
            "kind": "story",
            "words": {"steps": text("story.steps"), "start": text("story.start", key=self._key)},
            "nodes": nodes,
            "keys": keys,
            "follow": keys.index(self._key),
            "places": [[round(50 - 37 * math.sin(a), 1), round(50 + 36 * math.cos(a), 1)] for a in angles],
            "states": [[[state.get((node, key), 0) for key in keys] for node in nodes] for state in self.states],
            "steps": [
                {
                    "sends": [
                        [nodes.index(send.src), nodes.index(send.dst), keys.index(send.key)] for send in sends(step)
                    ],
                    "clock": self._clock(number),
                    "said": self._sentence(number),
                }
                for number, step in enumerate(plan.steps, 1)
            ],
        }

    def still(self) -> str:
        """Return the picture of the run, and the paragraphs."""
        told = "".join(f"<li>{escape(said)}</li>" for said in self.sentences())
        return f"{draw(self._trace)}<ol>{told}</ol>"

    def __repr__(self) -> str:
        return f"<Story: {self._key} in {len(self.states) - 1} steps>"
