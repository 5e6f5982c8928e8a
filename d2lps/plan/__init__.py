"""A plan: who sends what to whom, in which step. Plain data, checked before anything runs.

``acts`` are what a step consists of, ``share`` cuts the buffer into keys, ``parse`` reads what people write,
``plan`` is the Plan and its meaning, ``checking`` follows it on sets of contributors, ``lazy`` keeps long plans
without storing them, ``optimizers`` are the rules of an Update.

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
