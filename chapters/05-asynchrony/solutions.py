"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math
from itertools import combinations, pairwise

from d2lps.notebook.grading import edited


def buckets(sizes, ready, alpha, bandwidth):
    best = [(0.0, [])]
    for j in range(1, len(sizes) + 1):
        ways = []
        for i in range(j):
            end, found = best[i]
            start = max(end, ready[j - 1])
            arrived = start + alpha + sum(sizes[i:j]) / bandwidth
            ways.append((arrived, [*found, list(range(i, j))]))
        best.append(min(ways))
    return best[-1][1]


def staleness(n, s):
    clock, gone = {}, set()

    def push(worker, key, number):
        clock[worker, key] = max(clock.get((worker, key), 0), number)

    def may_read(worker, key, number):
        here = [clock.get((i, key), 0) for i in range(n) if i not in gone]
        own = clock.get((worker, key), 0)
        return own >= number and min(here) >= number - s

    def leave(worker):
        gone.add(worker)

    return push, may_read, leave


def backup(n, b):
    rounds, closed = {}, 0

    def receive(worker, number, gradient):
        nonlocal closed
        if number <= closed:
            return None
        gradients = rounds.setdefault(number, {})
        gradients[worker] = gradient
        if len(gradients) < n:
            return None
        closed = number
        del rounds[number]
        return sum(gradients.values()) / n

    return receive


def local_sgd(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
    push(share * weights)
    return pull()


# Typical wrong answers, each with one mistake.


def every_one_alone(sizes, ready, alpha, bandwidth):
    return [[i] for i in range(len(sizes))]


def all_together(sizes, ready, alpha, bandwidth):
    return [list(range(len(sizes)))]


def up_to(nbytes):
    """As DistributedDataParallel does: a bucket is closed as soon as it has so many bytes."""
    def answer(sizes, ready, alpha, bandwidth):
        buckets, size = [[]], 0
        for i, each in enumerate(sizes):
            if size >= nbytes:
                buckets, size = [*buckets, []], 0
            buckets[-1].append(i)
            size += each
        return buckets
    return answer


def whatever_is_ready(sizes, ready, alpha, bandwidth):
    buckets, free, i = [], 0, 0
    while i < len(sizes):
        start = max(free, ready[i])
        bucket = [j for j in range(i, len(sizes)) if ready[j] <= start]
        buckets.append(bucket)
        free = end(buckets, sizes, ready, alpha, bandwidth)
        i = bucket[-1] + 1
    return buckets


def end(buckets, sizes, ready, alpha, bandwidth):
    free = 0
    for bucket in buckets:
        free = max(free, ready[bucket[-1]]) + alpha + sum(sizes[i] for i in bucket) / bandwidth
    return free


def only_two(*given):
    """Tries every place for one cut."""
    every = list(range(len(given[0])))
    return min(([every[:i], every[i:]] if i else [every] for i in every), key=lambda found: end(found, *given))


def tries_all(*given):
    """2^(n−1) ways: right, and never done."""
    n = len(given[0])
    cuts = (places for count in range(n) for places in combinations(range(1, n), count))
    ways = ([list(range(*ends)) for ends in pairwise((0, *places, n))] for places in cuts)
    return min(ways, key=lambda found: end(found, *given))


WRONG = {
    "buckets": {
        "one-each": [every_one_alone],
        "all-in-one": [all_together],
        "whatever-is-ready": [whatever_is_ready],
        "of-one-size": [up_to(4.5e6)],
        "late": [only_two],
        "out-of-order": [edited(buckets, ("best[-1][1]", "best[-1][1][::-1]"))],
        "endless": [tries_all],
        "differs": [edited(buckets, ("best[-1][1]", "best[-1][1][:-1]"))],
    },
    "staleness": {
        "never-waits": [edited(staleness, ("own >= number and min(here) >= number - s", "True"))],
        "off-by-one": [edited(staleness, ("min(here) >=", "min(here) >"))],
        "vs-fastest": [edited(staleness, ("min(here) >= number - s", "max(here) - number <= s"))],
        "counts-messages": [edited(staleness, ("max(clock.get((worker, key), 0), number)", "clock.get((worker, key), 0) + 1"))],
        "own-missing": [edited(staleness, ("own >= number and ", ""))],
        "waits-for-who-left": [edited(staleness, ("gone.add(worker)", "pass"))],
        "one-clock-for-all-keys": [edited(staleness, ("push(worker, key, number):", "push(worker, _, number):\n        key = 0"),
                                          ("may_read(worker, key, number):", "may_read(worker, _, number):\n        key = 0"))],
        "endless": [edited(staleness, ("return own >= number and min(here) >= number - s",  # no worker can push meanwhile
                                       "while own < number or min(here) < number - s:\n            pass\n        return True"))],
        "differs": [edited(staleness, ("min(here) >=", "sum(here) / len(here) >="))],
        "not-general": [edited(staleness, ("clock, gone = {}, set()", "clock, gone, slots = {}, set(), [None] * (s + 1)"))],
    },
    "backup": {
        "divides-by-all": [edited(backup, ("/ n", "/ (n + b)"))],
        "not-divided": [edited(backup, (" / n", ""))],
        "worker-twice": [edited(backup, ("gradients[worker]", "gradients[len(gradients)]"))],
        "late": [edited(backup, ("if number <= closed:\n            return None", "number = 0")),
                 edited(backup, ("if number <= closed", "if False"), ("        del rounds[number]\n", ""))],
        "waits-for-all": [edited(backup, ("len(gradients) < n", "len(gradients) < n + b"))],
        "loses-early-next": [edited(backup, ("number <= closed", "number != closed + 1"))],
        "differs": [edited(backup, ("return sum(gradients.values()) / n",  # adds into the tensor that came first
                                    "total, *others = gradients.values()\n        for other in others:\n            total += other\n        return total / n"))],
        "not-general": [edited(backup, ("rounds, closed = {}, 0", "rounds, closed, places = {}, 0, [None] * 101"),
                               ("nonlocal closed\n", "nonlocal closed\n        places[number] = worker\n"))],
    },
    "local-sgd": {
        "every-step": [edited(local_sgd, ("range(h)", "range(1)"))],
        "same-start": [edited(local_sgd, ("weights = step(weights)", "own = step(weights)"), ("share * weights", "share * own"))],
        "share-missing": [edited(local_sgd, ("share * weights", "weights"))],
        "share-again": [edited(local_sgd, ("return pull()", "return share * pull()"))],
        "pushes-change": [edited(local_sgd, ("for _", "start = weights\n    for _"), ("share * weights", "share * (weights - start)"))],
        "pulls-first": [edited(local_sgd, ("for _", "weights = pull()\n    for _"))],
        "own-weights": [edited(local_sgd, ("return pull()", "pull()\n    return weights"))],
        "differs": [edited(local_sgd, ("range(h)", "range(h - 1)"))],
    },
}


RULES = {
    "buckets": {
        "each gradient": "differs",
        "in order": "out-of-order",
        "the last bucket arrives as soon as possible": "late",
        "a bucket takes alpha": ("start + alpha + sum", "start + sum"),
        "plus its bytes divided by bandwidth": ("sum(sizes[i:j]) / bandwidth", "sum(sizes[i:j]) / 1e9"),
        "it begins when its last gradient is ready": ("ready[j - 1]", "ready[i]"),
        "and the one before has arrived": ("max(end, ready[j - 1])", "ready[j - 1]"),
        "up to 40 gradients": "endless",
    },
    "staleness": {
        "it may read only if": "never-waits",
        "all its own pushes have arrived": "own-missing",
        "and number − s from everybody": "off-by-one",
        "not on average": "differs",
        "not s behind the fastest": "vs-fastest",
        "who is still there": "waits-for-who-left",
        "of this key": "one-clock-for-all-keys",
        "a push may come once more": "counts-messages",
        "even much later": ("max(clock.get((worker, key), 0), number)", "number"),
        "may_read does not wait": "endless",
        "s may be infinite": "not-general",
    },
    "backup": {
        "the n-th different worker": "worker-twice",
        "closes the round": "waits-for-all",
        "with the mean": "not-divided",
        "of n gradients": "divides-by-all",
        "every other one gets None": ("len(gradients) < n:\n            return None", "len(gradients) < n:\n            return gradient"),
        "what comes later is dropped": "late",
        "the next round may begin early": "loses-early-next",
        "any round": "not-general",
        "tensors stay as they are": "differs",
        "and what was returned": (("rounds, closed = {}, 0", "rounds, closed, kept = {}, 0, []"), (
            "return sum(gradients.values()) / n", "kept.append(sum(gradients.values()) / n)\n        return kept[0].copy_(kept.pop() if kept[1:] else kept[0])")),
    },
    "local-sgd": {
        "h steps": "differs",
        "one after the other": "same-start",
        "each of them": "every-step",
        "from the weights that are given": ("for _ in range(h)", "weights = 0 * weights\n    for _ in range(h)"),
        "then the average": "pulls-first",
        "of the weights": "pushes-change",
        "by the shares": "share-missing",
        "each share once": "share-again",
        "the average is returned": "own-weights",
        "push may be called once": ("push(share * weights)", "push(share * weights / 2)\n    push(share * weights / 2)"),
    },
}
