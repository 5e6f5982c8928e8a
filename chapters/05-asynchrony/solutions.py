"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math
from itertools import accumulate, product

import torch


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
                buckets.append([])
                size = 0
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
        free = start + alpha + sum(sizes[j] for j in bucket) / bandwidth
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
    def ways():
        for cuts in product((False, True), repeat=len(given[0]) - 1):
            buckets = [[0]]
            for i, new in enumerate(cuts, 1):
                if new:
                    buckets.append([])
                buckets[-1].append(i)
            yield buckets
    return min(ways(), key=lambda found: end(found, *given))


def changed(change):
    return lambda sizes, ready, alpha, bandwidth: change(buckets(sizes, ready, alpha, bandwidth))


def clocked(may=lambda clocks, number, s: min(clocks) >= number - s, came=max, own=True, keys=True, left=True):
    """An answer with one thing changed: who may read, what a push does to a clock, and whose clocks are looked at."""
    def answer(n, s):
        clock, gone = {}, set()

        def push(worker, key, number):
            key = key if keys else 0
            clock[worker, key] = came(clock.get((worker, key), 0), number)

        def may_read(worker, key, number):
            key = key if keys else 0
            clocks = [clock.get((i, key), 0) for i in range(n) if i not in gone]
            ready = not own or clock.get((worker, key), 0) >= number
            return ready and (not clocks or may(clocks, number, s))

        def leave(worker):
            if left:
                gone.add(worker)
        return push, may_read, leave
    return answer


def always(n, s):
    return (lambda worker, key, number: None), (lambda worker, key, number: True), (lambda worker: None)


def waits_itself(n, s):
    """Waits inside of may_read, during which no worker can push."""
    push, may_read, leave = staleness(n, s)

    def waiting(worker, key, number):
        while not may_read(worker, key, number):
            pass
        return True
    return push, waiting, leave


def with_pushes_in_a_range(n, s):
    """∞ is no number of slots."""
    push, may_read, leave = staleness(n, s)
    slots = [None for _ in range(s + 1)]
    return push, may_read, leave


def firsts(full=lambda n, b: n, divide=lambda gradients, n, b: sum(gradients) / n, late=False, twice=False, early=True):
    """An answer with one thing changed: the number of awaited workers, the result, and the messages that count."""
    def answer(n, b):
        tables, closed = {}, [0]

        def receive(worker, number, gradient):
            if (number <= closed[0] and not late) or (not early and number > closed[0] + 1):
                return None
            gradients = tables.setdefault(number, {})
            gradients[len(gradients) if twice else worker] = gradient
            if len(gradients) < full(n, b):
                return None
            closed[0] = number
            return divide(list(gradients.values()), n, b)
        return receive
    return answer


def without_rounds(n, b):
    """The number of the round is not looked at: n different workers make an update."""
    gradients = {}

    def receive(worker, number, gradient):
        gradients[worker] = gradient
        if len(gradients) < n:
            return None
        update = sum(gradients.values()) / n
        gradients.clear()
        return update
    return receive


def into_the_first(n, b):
    """Adds into the tensor that came first."""
    def added(gradients, n, b):
        for gradient in gradients[1:]:
            gradients[0] += gradient
        return gradients[0] / n
    return firsts(divide=added)(n, b)


def some_rounds(n, b):
    """Has a place for each of the first hundred rounds."""
    rounds, receive = [None] * 101, backup(n, b)

    def kept(worker, number, gradient):
        rounds[number] = gradient
        return receive(worker, number, gradient)
    return kept


def rounds_of(steps=lambda h: h, assign=True, pushed=lambda weights, share, start: share * weights,
              after=lambda mean, own, share: mean):
    """An answer with one thing changed: how many steps, what is pushed, and what is returned."""
    def answer(weights, push, pull, step, h, share):
        start = own = weights
        for _ in range(steps(h)):
            own = step(own if assign else start)
        push(pushed(own, share, weights))
        return after(pull(), own, share)
    return answer


def pulls_first(weights, push, pull, step, h, share):
    weights = pull()
    for _ in range(h):
        weights = step(weights)
    push(share * weights)
    return weights


WRONG = {
    "buckets": {
        "one-each": [every_one_alone],
        "all-in-one": [all_together],
        "whatever-is-ready": [whatever_is_ready],
        "of-one-size": [up_to(4.5e6)],
        "late": [only_two],
        "out-of-order": [changed(lambda found: found[::-1])],
        "endless": [tries_all],
        "differs": [changed(lambda found: found[:-1])],
    },
    "staleness": {
        "never-waits": [always],
        "off-by-one": [clocked(may=lambda clocks, number, s: min(clocks) > number - s)],
        "vs-fastest": [clocked(may=lambda clocks, number, s: max(clocks) - number <= s)],
        "counts-messages": [clocked(came=lambda old, number: old + 1)],
        "own-missing": [clocked(own=False)],
        "waits-for-who-left": [clocked(left=False)],
        "one-clock-for-all-keys": [clocked(keys=False)],
        "endless": [waits_itself],
        "differs": [clocked(may=lambda clocks, number, s: sum(clocks) / len(clocks) >= number - s)],
        "not-general": [with_pushes_in_a_range],
    },
    "backup": {
        "divides-by-all": [firsts(divide=lambda gradients, n, b: sum(gradients) / (n + b))],
        "not-divided": [firsts(divide=lambda gradients, n, b: sum(gradients))],
        "worker-twice": [firsts(twice=True)],
        "late": [without_rounds, firsts(late=True)],
        "waits-for-all": [firsts(full=lambda n, b: n + b)],
        "loses-early-next": [firsts(early=False)],
        "differs": [into_the_first],
        "not-general": [some_rounds],
    },
    "local-sgd": {
        "every-step": [rounds_of(steps=lambda h: 1)],
        "same-start": [rounds_of(assign=False)],
        "share-missing": [rounds_of(pushed=lambda weights, share, start: weights)],
        "share-again": [rounds_of(after=lambda mean, own, share: share * mean)],
        "pushes-change": [rounds_of(pushed=lambda weights, share, start: share * (weights - start))],
        "pulls-first": [pulls_first],
        "own-weights": [rounds_of(after=lambda mean, own, share: own)],
        "differs": [rounds_of(steps=lambda h: h - 1)],
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
        "even much later": clocked(came=lambda old, number: number),
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
