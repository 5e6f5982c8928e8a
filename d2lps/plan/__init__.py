"""A plan: who sends what to whom, in which step. Plain data, checked before anything runs.

``acts`` are what a step consists of, ``share`` cuts the buffer into keys, ``parse`` reads what people write,
``plan`` is the Plan and its meaning, ``checking`` follows it on sets of contributors, ``lazy`` keeps long plans
without storing them, ``optimizers`` are the rules of an Update.
"""

from d2lps.plan.acts import PlanError, Send, Update, sends, updates
from d2lps.plan.plan import Plan, check

__all__ = ["Plan", "PlanError", "Send", "Update", "check", "sends", "updates"]
