"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

from itertools import combinations


def one_f_one_b(stages, micro):
    def row(stage):
        warm_up = min(micro, stages - stage)
        forwards, backwards = ([(kind, i) for i in range(micro)] for kind in "FB")
        in_turn = [cell for pair in zip(backwards, forwards[warm_up:]) for cell in pair]
        return [*forwards[:warm_up], *in_turn, *backwards[micro - warm_up :]]

    return {stage: row(stage) for stage in range(stages)}


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


def in_turn(ahead, backwards=lambda micro: range(micro)):
    """Return an answer that begins with ``ahead(p, m, i)`` forward passes, then does one of each in turn."""

    def answer(stages, micro):
        table = {}
        for stage in range(stages):
            first = min(micro, ahead(stages, micro, stage))
            row = [("F", i) for i in range(first)]
            for k, i in enumerate(backwards(micro)):
                row.append(("B", i))
                row += [("F", first + k)] if first + k < micro else []
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


def two_by_two(stages, micro):
    """Does two backward passes, then two forward passes."""
    table = {}
    for stage in range(stages):
        ahead = min(micro, stages - stage)
        row, done = [("F", i) for i in range(ahead)], 0
        while done < micro:
            row += [("B", i) for i in range(done, min(done + 2, ahead))]
            done = min(done + 2, ahead)
            row += [("F", i) for i in range(ahead, min(ahead + 2, micro))]
            ahead = min(ahead + 2, micro)
        table[stage] = row
    return table


def two_by_two_first(stages, micro):
    """Only stage 0 does, so that no device waits forever."""
    return one_f_one_b(stages, micro) | {0: two_by_two(stages, micro)[0]}


def never_checks_the_end(stages, micro):
    """Goes on with forward passes that do not exist."""
    table = {}
    for stage in range(stages):
        row = [("F", i) for i in range(stages - stage)]
        for i in range(micro):
            row += [("B", i), ("F", stages - stage + i)]
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


def changed(solution, change):
    """Return the solution whose rows are changed: ``change(device, row)``."""

    def answer(*given):
        return {device: change(device, row) for device, row in solution(*given).items()}

    return answer


def row_changed(change):
    answer = changed(one_f_one_b, change)
    return lambda stages, micro: answer(stages, micro)


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


def of_neighbours(k, device, devices, chunks):
    return device * chunks + k


def breadth_first(devices, micro, chunks):
    table = {}
    for device in range(devices):
        own = [chunk * devices + device for chunk in range(chunks)]
        row = [("F", i, stage) for stage in own for i in range(micro)]
        table[device] = row + [("B", i, stage) for stage in own[::-1] for i in range(micro)]
    return table


def chunk_changed(change):
    answer = changed(interleave, change)
    return lambda devices, micro, chunks: answer(devices, micro, chunks)


def cut_after(lengths):
    cut, start = [], 0
    for length in lengths:
        cut.append(list(range(start, start + length)))
        start += length
    return cut


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


def never_over_the_mean(costs, stages):
    """Closes a stage before it would have more than its share."""
    mean, cut, total = sum(costs) / stages, [[]], 0
    for layer, cost in enumerate(costs):
        left = len(costs) - layer
        if cut[-1] and len(cut) < stages and (total + cost > mean or left <= stages - len(cut)):
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


def halves(costs, stages):
    """Halves the heaviest piece, again and again."""
    cut = [list(range(len(costs)))]
    while len(cut) < stages:
        piece = max((piece for piece in cut if len(piece) > 1), key=lambda piece: sum(costs[i] for i in piece))
        at = min(range(1, len(piece)), key=lambda at: abs(sum(costs[i] for i in piece[:at]) - sum(costs[i] for i in piece[at:])))
        where = cut.index(piece)
        cut[where : where + 1] = [piece[:at], piece[at:]]
    return cut


def first_alone(costs, stages):
    """Gives the first stage one layer, and cuts the rest well."""
    if stages == 1:
        return [list(range(len(costs)))]
    return [[0], *([i + 1 for i in stage] for stage in best_cut(costs[1:], stages - 1))]


def least_squares(costs, stages):
    """Evens out all stages instead of the slowest one alone."""
    ways = ([0, *ends, len(costs)] for ends in combinations(range(1, len(costs)), stages - 1))
    cuts = ([list(range(start, end)) for start, end in zip(ends, ends[1:])] for ends in ways)
    return min(cuts, key=lambda cut: sum(sum(costs[i] for i in stage) ** 2 for stage in cut))


def of_high_powers(costs, stages):
    """Sums high powers of the times instead of taking the largest."""
    best = {(0, 0): (0, [])}
    for k in range(1, stages + 1):
        for j in range(k, len(costs) + 1):
            best[j, k] = min((best[i, k - 1][0] + sum(costs[i:j]) ** 16, [*best[i, k - 1][1], list(range(i, j))])
                             for i in range(k - 1, j) if (i, k - 1) in best)
    return best[len(costs), stages][1]


def keeps_fifty(costs, stages):
    """Layer by layer, goes on only with the 50 beginnings that look best."""
    cuts = [[[]]]
    for layer in range(len(costs)):
        longer = [[*cut[:-1], [*cut[-1], layer]] for cut in cuts]
        longer += [[*cut, [layer]] for cut in cuts if cut[-1] and len(cut) < stages]

        def look(cut, rest=sum(costs[layer + 1 :])):
            times = [sum(costs[i] for i in stage) for stage in cut]
            return max(*times, (times[-1] + rest) / (stages - len(cut) + 1))

        cuts = sorted((cut for cut in longer if stages - len(cut) < len(costs) - layer), key=look)[:50]
    return min(cuts, key=lambda cut: max(sum(costs[i] for i in stage) for stage in cut))


def by_whole_limits(costs, stages):
    """Halves the interval of the slowest stage's time, but tries whole numbers only."""

    def filled(limit):
        cut = [[]]
        for layer, cost in enumerate(costs):
            if cut[-1] and sum(costs[i] for i in cut[-1]) + cost > limit:
                cut.append([])
            cut[-1].append(layer)
        return cut

    low, high = int(max(costs)) - 1, int(sum(costs)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = max(costs) <= middle and len(filled(middle)) <= stages
        low, high = (low, middle) if fits else (middle, high)
    cut = filled(high)
    while len(cut) < stages:
        at = next(i for i, stage in enumerate(cut) if len(stage) > 1)
        cut[at : at + 1] = [cut[at][:1], cut[at][1:]]
    return cut


def may_be_empty(costs, stages):
    """The same search, with stages that have no layer."""
    best = {(0, 0): (0, [])}
    for k in range(1, stages + 1):
        for j in range(len(costs) + 1):
            ways = [(max(best[i, k - 1][0], sum(costs[i:j])), [*best[i, k - 1][1], list(range(i, j))])
                    for i in range(j + 1) if (i, k - 1) in best]
            if ways:
                best[j, k] = min(ways)
    return best[len(costs), stages][1]


def tries_all(costs, stages):
    """C(n−1, p−1) cuts: right, and never done."""
    count = len(costs)
    ways = ([0, *ends, count] for ends in combinations(range(1, count), stages - 1))
    cuts = ([list(range(start, end)) for start, end in zip(ends, ends[1:])] for ends in ways)
    return min(cuts, key=lambda cut: max(sum(costs[i] for i in stage) for stage in cut))


def cut_changed(change):
    return lambda costs, stages: change(best_cut(costs, stages))


WRONG = {
    "one-f-one-b": {
        "all-forwards": [all_forwards],
        "short-warm-up": [in_turn(lambda p, m, i: max(1, p - i - 1)), in_turn(lambda p, m, i: 1)],
        "backward-first": [in_turn(lambda p, m, i: p - i - 1), in_turn(lambda p, m, i: i)],
        "saves-more": [in_turn(lambda p, m, i: p), in_turn(lambda p, m, i: 2 * (p - i) - 1)],
        "waits": [in_turn(lambda p, m, i: i + 1), two_by_two],
        "late": [two_by_two_first],
        "other-order": [last_first, in_turn(lambda p, m, i: m, lambda m: range(m)[::-1])],
        "missing": [forgets_the_last, row_changed(lambda device, row: row[:-1])],
        "unknown-cell": [never_checks_the_end, row_changed(lambda device, row: [(kind, i + 1) for kind, i in row])],
        "twice": [row_changed(lambda device, row: [*row, row[-1]])],
        "not-a-cell": [row_changed(lambda device, row: [kind for kind, _ in row]),
                       row_changed(lambda device, row: [(i, kind) for kind, i in row])],
        "not-a-table": [lambda stages, micro: [*one_f_one_b(stages, micro).values()]],
        "other-devices": [lambda stages, micro: {f"gpu{i}": row for i, row in one_f_one_b(stages, micro).items()}],
        "nothing-returned": [lambda stages, micro: None],
        "raised": [lambda stages, micro: one_f_one_b(stages, micro)[stages]],
        "not-general": [lambda stages, micro: one_f_one_b(stages, micro) if micro >= stages else {}[micro]],
    },
    "interleave": {
        "neighbours": [chunked(home=of_neighbours)],
        "late-chunks": [chunked(group=lambda p, m: 1), chunked(ahead=lambda p, m, v, i: (v - 1) * p + 1)],
        "saves-more": [chunked(group=lambda p, m: m), chunked(ahead=lambda p, m, v, i: (v + 1) * p - i)],
        "all-forwards": [breadth_first],
        "chunks-forward": [chunked(back=False)],
        "waits": [chunked(ahead=lambda p, m, v, i: (v - 1) * p + 1 + 2 * i)],
        "missing": [chunk_changed(lambda device, row: row[:-1]), lambda devices, micro, chunks: interleave(devices, micro, 1)],
        "unknown-cell": [chunk_changed(lambda device, row: [(kind, i + 1, stage) for kind, i, stage in row])],
        "twice": [chunk_changed(lambda device, row: [*row, row[-1]])],
        "backward-first": [chunk_changed(lambda device, row: row[::-1])],
        "not-a-cell": [chunk_changed(lambda device, row: [cell[:2] for cell in row])],
        "not-a-table": [lambda devices, micro, chunks: [*interleave(devices, micro, chunks).values()]],
        "other-devices": [lambda devices, micro, chunks: {
            str(device): row for device, row in interleave(devices, micro, chunks).items()}],
        "other-order": [lambda devices, micro, chunks: {
            device: [(kind, micro - 1 - i, stage) for kind, i, stage in row]
            for device, row in interleave(devices, micro, chunks).items()}],
        "two-homes": [lambda devices, micro, chunks: dict.fromkeys(range(devices), interleave(1, micro, chunks * devices)[0])],
        "other-chunks": [lambda devices, micro, chunks: {
            device: row for device, row in enumerate([*interleave(1, micro, chunks * devices).values()] + [[]] * (devices - 1))}],
        "nothing-returned": [lambda devices, micro, chunks: None],
        "raised": [lambda devices, micro, chunks: interleave(devices, micro, chunks)[devices]],
        "not-general": [lambda devices, micro, chunks: interleave(devices, micro, chunks) if chunks == 2 else {}[chunks]],
    },
    "best-cut": {
        "equal-counts": [of_equal_counts],
        "by-average": [up_to_the_mean, never_over_the_mean, halves, least_squares],
        "late": [first_alone, of_high_powers, keeps_fifty],
        "whole-limit": [by_whole_limits],
        "apart": [largest_first, cut_changed(lambda cut: cut[::-1]), cut_changed(lambda cut: [stage[::-1] for stage in cut])],
        "empty-stage": [cut_changed(lambda cut: [[], *cut]), may_be_empty],
        "other-count": [lambda costs, stages: [[i] for i in range(len(costs))],
                        lambda costs, stages: [list(range(len(costs)))]],
        "other-layers": [cut_changed(lambda cut: [*cut[:-1], cut[-1][:-1]]),
                         cut_changed(lambda cut: [*cut[:-1], [cut[-1][0], *cut[-1]]]),
                         cut_changed(lambda cut: [[i + 1 for i in stage] for stage in cut])],
        "not-a-cut": [cut_changed(lambda cut: [len(stage) for stage in cut]), cut_changed(len)],
        "endless": [tries_all],
        "nothing-returned": [lambda costs, stages: None],
        "raised": [lambda costs, stages: costs[len(costs)]],
        "not-general": [lambda costs, stages: best_cut(costs, stages) if stages == 3 else {}[stages]],
    },
}
