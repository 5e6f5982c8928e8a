"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
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


# What learners write instead. Each answer does one thing wrong.


def every_one_alone(sizes, ready, alpha, bandwidth):
    return [[i] for i in range(len(sizes))]


def all_together(sizes, ready, alpha, bandwidth):
    return [list(range(len(sizes)))]


def lengths_cut(lengths):
    ends = [0, *accumulate(lengths)]
    return [list(range(start, stop)) for start, stop in zip(ends, ends[1:])]


def in_groups(count):
    def answer(sizes, ready, alpha, bandwidth):
        return [list(range(i, min(i + count, len(sizes)))) for i in range(0, len(sizes), count)]
    return answer


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


def never_over(nbytes):
    def answer(sizes, ready, alpha, bandwidth):
        buckets, size = [], nbytes + 1
        for i, each in enumerate(sizes):
            if size + each > nbytes:
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


def pays_for_latency(sizes, ready, alpha, bandwidth):
    """A bucket waits until it takes longer than the latency."""
    buckets = [[]]
    for i in range(len(sizes)):
        buckets[-1].append(i)
        if sum(sizes[j] for j in buckets[-1]) / bandwidth > alpha and i < len(sizes) - 1:
            buckets.append([])
    return buckets


def only_two(sizes, ready, alpha, bandwidth):
    """Tries every place for one cut."""
    def end(buckets):
        free = 0
        for bucket in buckets:
            free = max(free, ready[bucket[-1]]) + alpha + sum(sizes[i] for i in bucket) / bandwidth
        return free
    every = list(range(len(sizes)))
    return min(([every[:i], every[i:]] if i else [every] for i in range(len(sizes))), key=end)


def tries_all(sizes, ready, alpha, bandwidth):
    """2^(n−1) ways: right, and never done."""
    def end(buckets):
        free = 0
        for bucket in buckets:
            free = max(free, ready[bucket[-1]]) + alpha + sum(sizes[i] for i in bucket) / bandwidth
        return free

    def ways():
        for cuts in product((False, True), repeat=len(sizes) - 1):
            buckets = [[0]]
            for i, new in enumerate(cuts, 1):
                if new:
                    buckets.append([])
                buckets[-1].append(i)
            yield buckets
    return min(ways(), key=end)


def changed(change):
    return lambda sizes, ready, alpha, bandwidth: change(buckets(sizes, ready, alpha, bandwidth))


def largest_first(sizes, ready, alpha, bandwidth):
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [[i] for i in order]


def as_sizes(sizes, ready, alpha, bandwidth):
    return [[sizes[i] for i in bucket] for bucket in buckets(sizes, ready, alpha, bandwidth)]


def clocked(may=lambda clocks, number, s: min(clocks) >= number - s, came=max, own=True, keys=True, seen=False,
            left=True, back=False, blocks=False, sticky=False):
    """An answer with one thing changed: who may read, what a push does to a clock, and whose clocks are looked at."""
    def answer(n, s):
        clock, gone, refused = {}, set(), set()

        def here(key):
            there = [i for i in range(n) if i not in gone and (not seen or (i, key) in clock)]
            return [clock.get((i, key), 0) for i in there]

        def push(worker, key, number):
            key = key if keys else 0
            if blocks and number - min(here(key), default=math.inf) > s:
                return
            if back:
                gone.discard(worker)
            clock[worker, key] = came(clock.get((worker, key), 0), number)

        def may_read(worker, key, number):
            asked, key = (worker, key, number), key if keys else 0
            if sticky and asked in refused:
                return False
            ready = not own or clock.get((worker, key), 0) >= number
            clocks = here(key)
            if ready and (not clocks or may(clocks, number, s)):
                return True
            refused.add(asked)
            return False

        def leave(worker):
            if left:
                gone.add(worker)
        return push, may_read, leave
    return answer


def left_for_keys(own):
    """``leave`` marks only keys that have been pushed so far: by the worker itself, or by any."""
    def answer(n, s):
        clock = {}

        def push(worker, key, number):
            clock[worker, key] = max(clock.get((worker, key), 0), number)

        def may_read(worker, key, number):
            mine = clock.get((worker, key), 0)
            return mine >= number and min(clock.get((i, key), 0) for i in range(n)) >= number - s

        def leave(worker):
            keys = [key for other, key in clock if not own or other == worker]
            clock.update({(worker, key): math.inf for key in keys})
        return push, may_read, leave
    return answer


def numbered_keys(count):
    """Has a place for so many keys, or for two of them."""
    def answer(n, s):
        clocks, gone = [[0] * n for _ in range(count or 2)], set()

        def place(key):
            return key % count if count else key

        def push(worker, key, number):
            clocks[place(key)][worker] = max(clocks[place(key)][worker], number)

        def may_read(worker, key, number):
            here = [clocks[place(key)][i] for i in range(n) if i not in gone]
            return clocks[place(key)][worker] >= number and min(here) >= number - s
        return push, may_read, gone.add
    return answer


def patient(times):
    """Lets a read happen when it has been refused so many times."""
    def answer(n, s):
        push, right, leave = staleness(n, s)
        refused = {}

        def may_read(*asked):
            refused[asked] = refused.get(asked, 0) + (not right(*asked))
            return right(*asked) or refused[asked] > times
        return push, may_read, leave
    return answer


def behind_only(whom):
    """Looks at some of the workers only."""
    def answer(n, s):
        clock, gone = {}, set()

        def push(worker, key, number):
            clock[worker, key] = max(clock.get((worker, key), 0), number)

        def may_read(worker, key, number):
            seen = [clock.get((i, key), 0) for i in whom(worker, n) if i not in gone]
            return clock.get((worker, key), 0) >= number and min(seen, default=number) >= number - s
        return push, may_read, gone.add
    return answer


def always(n, s):
    return (lambda worker, key, number: None), (lambda worker, key, number: True), (lambda worker: None)


def forgets_who_left(n, s):
    """The clocks of who leaves are thrown away, and without a clock one counts from 0."""
    clock = {}

    def push(worker, key, number):
        clock[worker, key] = max(clock.get((worker, key), 0), number)

    def may_read(worker, key, number):
        own = clock.get((worker, key), 0)
        return own >= number and min(clock.get((i, key), 0) for i in range(n)) >= number - s

    def leave(worker):
        for at in [at for at in clock if at[0] == worker]:
            del clock[at]
    return push, may_read, leave


def over_all_keys(n, s):
    came, gone = [set() for _ in range(n)], set()

    def may_read(worker, key, number):
        return len(came[worker]) >= number and all(len(came[i]) >= number - s for i in range(n) if i not in gone)
    return (lambda worker, key, number: came[worker].add((key, number))), may_read, gone.add


def waits_itself(n, s):
    """Waits inside of may_read, where nobody can push."""
    push, may_read, leave = staleness(n, s)

    def waiting(worker, key, number):
        while not may_read(worker, key, number):
            pass
        return True
    return push, waiting, leave


def waits_in_push(n, s):
    push, may_read, leave = staleness(n, s)

    def waiting(worker, key, number):
        push(worker, key, number)
        while not may_read(worker, key, number):
            pass
    return waiting, may_read, leave


def median(clocks, number, s):
    return sorted(clocks)[len(clocks) // 2] >= number - s


def without_an_answer(n, s):
    push, may_read, leave = staleness(n, s)
    return push, lambda worker, key, number: may_read(worker, key, number) or None, leave


def with_pushes_in_a_range(n, s):
    """∞ is no number of slots."""
    push, may_read, leave = staleness(n, s)
    slots = [None for _ in range(s + 1)]
    return push, may_read, leave


def firsts(full=lambda n, b: n, divide=lambda gradients, n, b: sum(gradients) / n, late=False, twice=False, early=True,
           rounds=True, forget=True):
    """An answer with one thing changed: how many are waited for, what is returned, and which messages count."""
    def answer(n, b):
        tables, closed = {}, [0]

        def receive(worker, number, gradient):
            if (number <= closed[0] and not late) or (not early and number > closed[0] + 1):
                return None
            number = number if rounds else 0
            gradients = tables.setdefault(number, {})
            gradients[len(gradients) if twice else worker] = gradient
            if len(gradients) < full(n, b):
                return None
            closed[0] = number if rounds else closed[0]
            update = divide(list(gradients.values()), n, b)
            if forget:
                del tables[number]
            return update
        return receive
    return answer


def running_mean(gradients, n, b):
    mean = gradients[0]
    for gradient in gradients[1:]:
        mean = (mean + gradient) / 2
    return mean


def by_messages(n, b):
    """Waits for n workers, and divides by the messages that came."""
    workers, sums, count, closed = {}, {}, {}, [0]

    def receive(worker, number, gradient):
        if number <= closed[0]:
            return None
        who = workers.setdefault(number, set())
        count[number] = count.get(number, 0) + 1
        if worker not in who:
            sums[number] = sums.get(number, 0) + gradient
        who.add(worker)
        if len(who) < n:
            return None
        closed[0] = number
        return sums[number] / count[number]
    return receive


def added_twice(n, b):
    """Waits for n workers, but adds what comes twice once more."""
    workers, sums, closed = {}, {}, [0]

    def receive(worker, number, gradient):
        if number <= closed[0]:
            return None
        sums[number] = sums.get(number, 0) + gradient
        who = workers.setdefault(number, set())
        who.add(worker)
        if len(who) < n:
            return None
        closed[0] = number
        return sums[number] / n
    return receive


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


def late_ones_count(n, b):
    """A late gradient helps to fill the open round, and only that round's own are added."""
    came, closed = {}, [0]

    def receive(worker, number, gradient):
        came.setdefault(number, {})[worker] = gradient
        number = closed[0] + 1
        late = sum(len(gradients) - n for done, gradients in came.items() if done < number)
        gradients = came.get(number, {})
        if not gradients or len(gradients) + late < n:
            return None
        closed[0] = number
        return sum(gradients.values()) / n
    return receive


def one_table(n, b):
    """A gradient of the next round takes the place of this one."""
    gradients, closed = {}, [0]

    def receive(worker, number, gradient):
        if number <= closed[0]:
            return None
        gradients[worker] = gradient
        if len(gradients) < n:
            return None
        closed[0] += 1
        update = sum(gradients.values()) / n
        gradients.clear()
        return update
    return receive


def first_again(n, b):
    """The others are left out, and the first stands for one of them."""
    return firsts(divide=lambda gradients, n, b: sum(gradients[1:], gradients[0] * 0) / n if n > 1 else gradients[0])(n, b)


def into_the_first(n, b):
    """Adds into the tensor that came first."""
    def added(gradients, n, b):
        for gradient in gradients[1:]:
            gradients[0] += gradient
        return gradients[0] / n
    return firsts(divide=added)(n, b)


def one_buffer(n, b):
    """The update is always the same tensor, and the next round writes into it."""
    rounds, closed, buffers = {}, [0], []

    def receive(worker, number, gradient):
        if number <= closed[0]:
            return None
        rounds.setdefault(number, {})[worker] = gradient
        if len(rounds[number]) < n:
            return None
        closed[0] = number
        buffers.append(sum(rounds.pop(number).values()) / n)
        return buffers[0].copy_(buffers[-1])
    return receive


def by_content(n, b):
    """A gradient that is there already has come twice."""
    came, closed = {}, set()

    def receive(worker, number, gradient):
        gradients = came.setdefault(number, [])
        if number in closed or any(torch.equal(gradient, each) for each in gradients):
            return None
        gradients.append(gradient)
        if len(gradients) < n:
            return None
        closed.add(number)
        return sum(gradients) / n
    return receive


def set_of_contents(n, b):
    """Counts workers, and adds different gradients."""
    def added(gradients, n, b):
        return sum(torch.tensor(each) for each in {str(each.tolist()): each.tolist() for each in gradients}.values()) / n
    return firsts(divide=added)(n, b)


def of_one_shape(n, b):
    return firsts(divide=lambda gradients, n, b: sum(gradients, torch.zeros(4)) / n)(n, b)


def some_rounds(n, b):
    """Has a place for each of the first hundred rounds."""
    rounds, receive = [None] * 101, backup(n, b)

    def kept(worker, number, gradient):
        rounds[number] = gradient
        return receive(worker, number, gradient)
    return kept


def remembers_some(count):
    """Knows the last rounds that were closed, and no older ones."""
    def answer(n, b):
        rounds, closed = {}, []

        def receive(worker, number, gradient):
            if number in closed:
                return None
            gradients = rounds.setdefault(number, {})
            gradients[worker] = gradient
            if len(gradients) < n:
                return None
            closed[:] = [*closed, number][-count:]
            return sum(rounds.pop(number).values()) / n
        return receive
    return answer


def at_every_message(n, b):
    return lambda worker, number, gradient: gradient / n


def as_a_list(n, b):
    return firsts(divide=lambda gradients, n, b: gradients)(n, b)


def worker_zero_needed(n, b):
    receive, late = backup(n, b), {}

    def waiting(worker, number, gradient):
        update = receive(worker, number, gradient)
        if update is not None and worker == n + b - 1:
            return None
        return update
    return waiting


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


def pushes_every_step(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
        push(share * weights)
        weights = pull()
    return weights


def pushes_all_at_the_end_too(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
    push(share * weights)
    push(share * weights)
    return pull()


def pulls_first(weights, push, pull, step, h, share):
    weights = pull()
    for _ in range(h):
        weights = step(weights)
    push(share * weights)
    return weights


def pulls_before_pushing(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
    mean = pull()
    push(share * weights)
    return mean


def never_pushes(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
    return share * weights


def never_pulls(weights, push, pull, step, h, share):
    for _ in range(h):
        weights = step(weights)
    push(share * weights)
    return weights


def pulls_twice(weights, push, pull, step, h, share):
    mean = rounds_of()(weights, push, pull, step, h, share)
    return (mean + pull()) / 2


def returns_nothing(weights, push, pull, step, h, share):
    rounds_of()(weights, push, pull, step, h, share)


WRONG = {
    "buckets": {
        "one-each": [every_one_alone],
        "all-in-one": [all_together],
        "whatever-is-ready": [whatever_is_ready],
        "of-one-size": [in_groups(2), up_to(4.5e6), never_over(5.5e6), pays_for_latency],
        "late": [only_two],
        "out-of-order": [largest_first, changed(lambda found: found[::-1]),
                         changed(lambda found: [bucket[::-1] for bucket in found])],
        "missing": [changed(lambda found: found[:-1]), changed(lambda found: [bucket[:1] for bucket in found])],
        "twice": [changed(lambda found: [*found, found[0]])],
        "empty-bucket": [changed(lambda found: [[], *found])],
        "strange-gradient": [as_sizes, changed(lambda found: [[i + 1 for i in bucket] for bucket in found])],
        "not-buckets": [changed(lambda found: [bucket[-1] for bucket in found]), changed(len)],
        "endless": [tries_all],
        "nothing-returned": [lambda sizes, ready, alpha, bandwidth: None],
        "raised": [lambda sizes, ready, alpha, bandwidth: sizes[len(sizes)]],
        "not-general": [lambda sizes, ready, alpha, bandwidth: buckets(sizes, ready, alpha, bandwidth) if len(sizes) == 6 else ready[9]],
    },
    "staleness": {
        "never-waits": [always, clocked(may=lambda clocks, number, s: True),
                        clocked(may=lambda clocks, number, s: max(clocks) >= number - s)],
        "off-by-one": [clocked(may=lambda clocks, number, s: min(clocks) > number - s),
                       clocked(may=lambda clocks, number, s: number - min(clocks) <= s + 1)],
        "too-strict": [clocked(may=lambda clocks, number, s: min(clocks) >= number)],
        "vs-mean": [clocked(may=lambda clocks, number, s: sum(clocks) / len(clocks) >= number - s)],
        "vs-fastest": [clocked(may=lambda clocks, number, s: max(clocks) - number <= s),
                       clocked(may=lambda clocks, number, s: number >= max(clocks) - s)],
        "counts-messages": [clocked(came=lambda old, number: old + 1)],
        "goes-back": [clocked(came=lambda old, number: number)],
        "own-missing": [clocked(own=False)],
        "waits-for-who-left": [clocked(left=False), clocked(back=True), forgets_who_left, left_for_keys(False),
                               left_for_keys(True)],
        "one-clock-for-all-keys": [clocked(keys=False), over_all_keys, numbered_keys(1000)],
        "gives-in": [patient(3), patient(100)],
        "only-seen": [clocked(seen=True)],
        "blocks-push": [clocked(blocks=True)],
        "never-wakes": [clocked(sticky=True)],
        "reads-too-early": [clocked(may=median), behind_only(lambda worker, n: [(worker + 1) % n]),
                            behind_only(lambda worker, n: [n - 1])],
        "waits-too-long": [clocked(may=lambda clocks, number, s: min(clocks) >= number - s / 2)],
        "not-yes-or-no": [without_an_answer],
        "not-three": [lambda n, s: staleness(n, s)[:2], lambda n, s: staleness(n, s)[0]],
        "endless": [waits_itself, waits_in_push],
        "nothing-returned": [lambda n, s: None],
        "raised": [numbered_keys(None), lambda n, s: (max, lambda worker, key, number: s[0], id)],
        "not-general": [with_pushes_in_a_range, lambda n, s: staleness(n, s) if n == 3 and s < 9 else 0 / 0],
    },
    "backup": {
        "divides-by-all": [firsts(divide=lambda gradients, n, b: sum(gradients) / (n + b))],
        "not-divided": [firsts(divide=lambda gradients, n, b: sum(gradients))],
        "divides-by-messages": [by_messages],
        "mean-of-means": [firsts(divide=running_mean)],
        "worker-twice": [firsts(twice=True), added_twice],
        "late-into-next-round": [without_rounds],
        "late-closes-round": [firsts(late=True, forget=False), late_ones_count, remembers_some(3), remembers_some(50)],
        "by-content": [by_content, set_of_contents],
        "not-general": [of_one_shape, some_rounds],
        "waits-for-all": [firsts(full=lambda n, b: n + b)],
        "loses-early-next": [firsts(early=False)],
        "rounds-mixed": [one_table],
        "changes-it": [into_the_first],
        "changed-later": [one_buffer],
        "wrong-workers": [first_again],
        "wrong-mean": [firsts(divide=lambda gradients, n, b: -0.1 * sum(gradients) / n)],
        "too-soon": [at_every_message, lambda n, b: lambda worker, number, gradient: True],
        "stays-open": [lambda n, b: backup(n + b + 1, b), worker_zero_needed],
        "not-an-update": [as_a_list, firsts(divide=lambda gradients, n, b: float(sum(gradients).sum()) / n)],
        "not-a-function": [lambda n, b: torch.zeros(4)],
        "nothing-returned": [lambda n, b: None],
        "raised": [lambda n, b: lambda worker, number, gradient: [][worker]],
    },
    "local-sgd": {
        "every-step": [pushes_every_step, rounds_of(steps=lambda h: 1)],
        "steps-wrong": [rounds_of(steps=lambda h: h - 1), rounds_of(steps=lambda h: h + 1)],
        "same-start": [rounds_of(assign=False)],
        "share-missing": [rounds_of(pushed=lambda weights, share, start: weights),
                          rounds_of(pushed=lambda weights, share, start: weights, after=lambda mean, own, share: share * mean)],
        "share-twice": [rounds_of(pushed=lambda weights, share, start: share * share * weights)],
        "share-again": [rounds_of(after=lambda mean, own, share: share * mean)],
        "other-share": [rounds_of(pushed=lambda weights, share, start: weights / 2)],
        "pushes-change": [rounds_of(pushed=lambda weights, share, start: share * (weights - start)),
                          rounds_of(pushed=lambda weights, share, start: start - weights)],
        "pushes-other": [rounds_of(pushed=lambda weights, share, start: share * weights + (1 - share) * start)],
        "pushes-twice": [pushes_all_at_the_end_too],
        "pulls-first": [pulls_first, pulls_before_pushing],
        "pulls-twice": [pulls_twice],
        "no-push": [never_pushes],
        "no-pull": [never_pulls],
        "own-weights": [rounds_of(after=lambda mean, own, share: own)],
        "not-the-mean": [rounds_of(after=lambda mean, own, share: (mean + own) / 2)],
        "not-weights": [rounds_of(pushed=lambda weights, share, start: float(weights.sum())),
                        rounds_of(after=lambda mean, own, share: mean.tolist())],
        "nothing-returned": [returns_nothing],
        "raised": [lambda weights, push, pull, step, h, share: weights[99]],
    },
}
