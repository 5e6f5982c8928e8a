"""Name the mistake behind a plan that was refused, so that the hint fits it.

A name is a key under ``mistakes`` in a chapter's exercises.toml, or under ``checks.mistake`` in the messages.
"""

from collections.abc import Sequence
from fractions import Fraction

from d2lps.plan import Plan, PlanError, sends
from d2lps.plan.checking import complete, replay

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
