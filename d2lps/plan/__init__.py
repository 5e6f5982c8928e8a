"""A plan: who sends what to whom, in which step. Plain data, checked before anything runs.

Start with ``plan.py``: the Plan, and the meaning of its steps. ``acts.py`` defines the acts of a step (Send and
Update) and PlanError; ``checking.py`` decides which nodes hold which gradients after each step, and if a plan is
correct; ``share.py`` decides where each key lies in a buffer; ``parse.py`` decides which input is accepted; ``lazy.py``
describes long plans without storing them; ``optimizers.py`` holds the rules of an Update.

>>> print(Plan(["a", "b"], {"g": 1}, [[Send("b", "a", "g")]], wants=["a"]))
2 nodes: a b
shares: g = 1
step 1   b→a +g
"""

from d2lps.plan.acts import PlanError, Send, Update, sends, updates
from d2lps.plan.checking import Holding, replay
from d2lps.plan.plan import Plan, check
from d2lps.plan.share import Share, slices

__all__ = ["Holding", "Plan", "PlanError", "Send", "Share", "Update", "check", "replay", "sends", "slices", "updates"]
