"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

from itertools import combinations


def one_f_one_b(stages, micro):
    table = {}
    for stage in range(stages):
        ahead = min(micro, stages - stage)
        row = [("F", i) for i in range(ahead)]
        for i in range(micro):
            row.append(("B", i))
            if ahead + i < micro:
                row.append(("F", ahead + i))
        table[stage] = row
    return table


def interleave(devices, micro, chunks):
    def at(k):
        chunk = k // devices % chunks
        return k // (devices * chunks) * devices + k % devices, chunk

    table = {}
    for device in range(devices):
        total = micro * chunks
        ahead = min(total, 2 * (devices - device - 1) + (chunks - 1) * devices + 1)
        forwards = [("F", i, chunk * devices + device) for i, chunk in map(at, range(total))]
        backwards = [("B", i, (chunks - 1 - chunk) * devices + device) for i, chunk in map(at, range(total))]
        row = forwards[:ahead]
        for k in range(total):
            row.append(backwards[k])
            row += forwards[ahead + k : ahead + k + 1]
        table[device] = row
    return table


def best_cut(costs, stages):
    best = {(0, 0): (0, [])}
    for k in range(1, stages + 1):
        for j in range(k, len(costs) + 1):
            ways = []
            for i in range(k - 1, j):
                if (i, k - 1) in best:
                    slowest, cut = best[i, k - 1]
                    ways.append((max(slowest, sum(costs[i:j])), [*cut, list(range(i, j))]))
            best[j, k] = min(ways)
    return best[len(costs), stages][1]


# What learners write instead. Each answer does one thing wrong.


def in_turn(ahead):
    """Return an answer that begins with ``ahead(p, m, i)`` forward passes, then does one of each in turn."""

    def answer(stages, micro):
        table = {}
        for stage in range(stages):
            first = min(micro, ahead(stages, micro, stage))
            row = [("F", i) for i in range(first)]
            for i in range(micro):
                row.append(("B", i))
                row += [("F", first + i)] if first + i < micro else []
            table[stage] = row
        return table

    return answer


def all_forwards(stages, micro):
    return {stage: [(kind, i) for kind in "FB" for i in range(micro)] for stage in range(stages)}


def forgets_the_last(stages, micro):
    """Ends the loop with the forward passes."""
    table = {}
    for stage in range(stages):
        ahead = min(micro, stages - stage)
        row = [("F", i) for i in range(ahead)]
        for i in range(micro - ahead):
            row += [("B", i), ("F", ahead + i)]
        table[stage] = row
    return table


def last_first(stages, micro):
    """Takes the newest saved activations first, like a stack."""
    table = {}
    for stage in range(stages):
        saved, row, done = [], [], 0
        while done < micro or saved:
            if done < micro and len(saved) < stages - stage:
                row.append(("F", done))
                saved.append(done)
                done += 1
            else:
                row.append(("B", saved.pop()))
        table[stage] = row
    return table


def chunked(home=lambda k, device, devices, chunks: k * devices + device, group=None, ahead=None, back=True):
    """Return an answer with other homes of stages, groups of micro-batches, warm-up, or order of chunks backwards."""

    def answer(devices, micro, chunks):
        size = min(micro, group(devices, micro)) if group else devices
        total, table = micro * chunks, {}

        def at(k):
            base, k = k // (size * chunks) * size, k % (size * chunks)
            size_here = min(size, micro - base)
            return base + k % size_here, k // size_here

        for device in range(devices):
            usual = 2 * (devices - device - 1) + (chunks - 1) * size + 1
            first = min(total, ahead(devices, micro, chunks, device) if ahead else usual)
            forwards = [("F", i, home(c, device, devices, chunks)) for i, c in map(at, range(total))]
            backwards = [
                ("B", i, home(chunks - 1 - c if back else c, device, devices, chunks)) for i, c in map(at, range(total))
            ]
            row = forwards[:first]
            for k in range(total):
                row.append(backwards[k])
                row += forwards[first + k : first + k + 1]
            table[device] = row
        return table

    return answer


def breadth_first(devices, micro, chunks):
    table = {}
    for device in range(devices):
        own = [chunk * devices + device for chunk in range(chunks)]
        row = [("F", i, stage) for stage in own for i in range(micro)]
        table[device] = row + [("B", i, stage) for stage in own[::-1] for i in range(micro)]
    return table


def of_equal_counts(costs, stages):
    ends = [len(costs) * k // stages for k in range(stages + 1)]
    return [list(range(start, end)) for start, end in zip(ends, ends[1:])]


def up_to_the_mean(costs, stages):
    """Closes a stage as soon as it has a full share."""
    mean, cut, total = sum(costs) / stages, [[]], 0
    for layer, cost in enumerate(costs):
        left = len(costs) - layer
        if cut[-1] and len(cut) < stages and (total >= mean or left <= stages - len(cut)):
            cut.append([])
            total = 0
        cut[-1].append(layer)
        total += cost
    return cut


def largest_first(costs, stages):
    """Gives each layer to the stage that has least to do, wherever it is."""
    cut = [[] for _ in range(stages)]
    for layer in sorted(range(len(costs)), key=lambda layer: -costs[layer]):
        min(cut, key=lambda stage: (bool(stage), sum(costs[i] for i in stage))).append(layer)
    return [sorted(stage) for stage in cut]


def first_alone(costs, stages):
    """Gives the first stage one layer, and cuts the rest well."""
    if stages == 1:
        return [list(range(len(costs)))]
    return [[0], *([i + 1 for i in stage] for stage in best_cut(costs[1:], stages - 1))]


def tries_all(costs, stages):
    """C(n−1, p−1) cuts: right, and never done."""
    count = len(costs)
    ways = ([0, *ends, count] for ends in combinations(range(1, count), stages - 1))
    cuts = ([list(range(start, end)) for start, end in zip(ends, ends[1:])] for ends in ways)
    return min(cuts, key=lambda cut: max(sum(costs[i] for i in stage) for stage in cut))


WRONG = {
    "one-f-one-b": {
        "all-forwards": [all_forwards],
        "short-warm-up": [in_turn(lambda p, m, i: max(1, p - i - 1))],
        "backward-first": [in_turn(lambda p, m, i: p - i - 1)],
        "saves-more": [in_turn(lambda p, m, i: p)],
        "waits": [in_turn(lambda p, m, i: i + 1)],
        "missing": [forgets_the_last],
        "differs": [last_first],
        "not-general": [lambda stages, micro: one_f_one_b(stages, micro) if micro >= stages else {}[micro]],
    },
    "interleave": {
        "neighbours": [chunked(home=lambda k, device, devices, chunks: device * chunks + k)],
        "late-chunks": [chunked(group=lambda p, m: 1)],
        "saves-more": [chunked(group=lambda p, m: m)],
        "all-forwards": [breadth_first],
        "chunks-forward": [chunked(back=False)],
        "waits": [chunked(ahead=lambda p, m, v, i: (v - 1) * p + 1 + 2 * i)],
        "missing": [lambda devices, micro, chunks: interleave(devices, micro, 1)],
        "backward-first": [lambda devices, micro, chunks: {
            device: row[::-1] for device, row in interleave(devices, micro, chunks).items()}],
        "differs": [lambda devices, micro, chunks: {
            str(device): row for device, row in interleave(devices, micro, chunks).items()}],
    },
    "best-cut": {
        "equal-counts": [of_equal_counts],
        "by-average": [up_to_the_mean],
        "late": [first_alone],
        "apart": [largest_first],
        "empty-stage": [lambda costs, stages: [[], *best_cut(costs, stages)]],
        "endless": [tries_all],
        "differs": [lambda costs, stages: [[i] for i in range(len(costs))]],
        "wrong-type": [lambda costs, stages: [len(stage) for stage in best_cut(costs, stages)]],
    },
}
