"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math

from d2lps.notebook.grading import edited


def mfu(layers, width, vocabulary, context, tokens, seconds, gpus, peak, again):
    inside = layers * (24 * width**2 + 2 * context * width)
    head = 2 * vocabulary * width
    model = 3 * (inside + head)
    hardware = model + again * inside
    possible = seconds * gpus * peak / tokens
    return model / possible, hardware / possible


def global_norm(gradients, copies, sum_tensor, sum_stages):
    squares = 0.0
    for gradient, count in zip(gradients, copies):
        squares += gradient.float().square().sum().item() / count
    return math.sqrt(sum_stages(sum_tensor(squares)))


def who_hangs(logs):
    for place in range(max(map(len, logs))):
        row = [log[place] if place < len(log) else None for log in logs]
        usual = max(row, key=row.count)
        for rank, entry in enumerate(row):
            if entry != usual:
                mine, other = logs[rank], logs[row.index(usual)]
                if mine[place:] == other[place + 1 :]:
                    return rank, place, "missing"
                if mine[place + 1 :] == other[place + 1 :]:
                    return rank, place, "size"
                return rank, place, "order"
    return None


def at_the_end(logs):
    """Looks only at how many calls there are."""
    shortest = min(logs, key=len)
    if len(shortest) == len(logs[0]) == len(logs[-1]):
        return None
    return logs.index(shortest), len(shortest), "missing"


INSIDE, SUM, SUMS = "2 * context * width", "gradient.float().square().sum().item() / count", "sum_stages(sum_tensor(squares))"
ALL = f"math.sqrt({SUMS})"
WRONG = {
    "mfu": {
        "percent": [
            edited(mfu, ("/ tokens", "/ tokens / 100")),
            edited(mfu, ("return model / possible, hardware", "return 100 * model / possible, 100 * hardware")),
        ],
        "again-in-model": [
            edited(mfu, ("return model / possible", "return hardware / possible")),
            edited(mfu, ("hardware = model + again * inside", "hardware = model = model + again * (inside + head)")),
        ],
        "again-forgotten": [
            edited(mfu, ("model + again * inside", "model")),
            edited(mfu, ("again * inside", "(not again) * inside")),
        ],
        "head-again": [
            edited(mfu, ("again * inside", "again * (inside + head)")),
            edited(mfu, ("model + again * inside", "(3 + again) * (inside + head)")),
        ],
        "left-out": [
            edited(mfu, (" + " + INSIDE, "")),
            edited(mfu, ("2 * vocabulary * width", "0")),
            edited(mfu, (" + " + INSIDE, ""), ("2 * vocabulary * width", "0")),
        ],
        "hidden-pairs": [edited(mfu, (INSIDE, "4 * context * width"))],
        "no-backward": [edited(mfu, ("3 * (inside", "1 * (inside"))],
        "one-gpu": [edited(mfu, ("seconds * gpus", "seconds"))],
        "differs": [edited(mfu, ("24 *", "12 *"))],
    },
    "global-norm": {
        "copies-twice": [edited(global_norm, (" / count", ""))],
        "sum-of-norms": [
            edited(global_norm, (ALL, "sum_stages(sum_tensor(math.sqrt(squares)))")),
            edited(global_norm, (SUM, "gradient.float().norm().item()"), (ALL, SUMS)),
        ],
        "no-root": [edited(global_norm, (ALL, SUMS)), edited(global_norm, (" / count", ""), (ALL, SUMS))],
        "own-part": [
            edited(global_norm, (SUMS, "squares")),
            edited(global_norm, (" / count", ""), (SUMS, "squares")),
        ],
        "one-group": [
            edited(global_norm, (SUMS, "sum_tensor(squares)")),
            edited(global_norm, (SUMS, "sum_stages(squares)")),
        ],
        "sixteen-bits": [
            edited(global_norm, ("gradient.float()", "gradient")),
            edited(global_norm, (SUM, "gradient.norm().item() ** 2 / count")),
        ],
        "other-order": [edited(global_norm, ("    return math", "    if not gradients:\n        return 0.0\n    return math"))],
        "differs": [edited(global_norm, ("/ count", "* count"))],
    },
    "who-hangs": {
        "blames-others": [
            edited(who_hangs, ("max(row, key=row.count)", "row[0]")),
            edited(who_hangs, ("entry != usual", "entry == usual and len({*row}) > 1")),
        ],
        "at-the-end": [
            at_the_end,
            edited(who_hangs, ("range(max(map(len, logs)))", "reversed(range(max(map(len, logs))))")),
        ],
        "other-place": [
            edited(who_hangs, ('place, "missing"', 'place + 1, "missing"')),
            edited(who_hangs, ('place, "missing"', 'place - 1, "missing"')),
        ],
        "other-kind": [
            edited(who_hangs, ('"order"', '"size"')),
            edited(who_hangs, ('"size"', '"order"')),
        ],
        "nothing-wrong": [
            edited(who_hangs, ("return None", 'return 0, 0, "missing"')),
            edited(who_hangs, ("return None", 'return len(logs) - 1, len(logs[0]), "size"')),
        ],
        "gives-up": [
            edited(who_hangs, ("max(map(len, logs))", "min(map(len, logs))")),
            edited(who_hangs, ("entry != usual", "entry and entry[0] != usual[0]")),
        ],
        "wrong-type": [lambda logs: "rank 2"],
    },
}


RULES = {
    "mfu": {
        "fractions": "percent",
        "of all gpus": "one-gpu",
        "forward and backward": "no-backward",
        "MFU counts nothing twice": "again-in-model",
        "HFU counts what is computed again": "again-forgotten",
        "but not the head": "head-again",
        "the matrices of the layers": "differs",
        "the head and the scores": "left-out",
        "those that the mask leaves": "hidden-pairs",
    },
    "global-norm": {
        "the norm": "no-root",
        "of all gradients": "own-part",
        "on all ranks": "one-group",
        "one norm, not a sum of norms": "sum-of-norms",
        "what ranks have in common counts once": "copies-twice",
        "copies says on how many": "differs",
        "numbers may have 16 bits": "sixteen-bits",
        "all ranks of a group call": "other-order",
    },
    "who-hangs": {
        "the rank that did something else": "blames-others",
        "the first place": "at-the-end",
        "from 0": "other-place",
        "the kind": "other-kind",
        "a rank that left out the last": "gives-up",
        "None if all logs are equal": "nothing-wrong",
        "one of three words": "wrong-type",
    },
}
