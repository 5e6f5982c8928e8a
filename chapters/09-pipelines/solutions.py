"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

from itertools import combinations

from d2lps.notebook.grading import edited


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


WARM_UP = "2 * (devices - device - 1) + (chunks - 1) * devices + 1"
WRONG = {
    "one-f-one-b": {
        "all-forwards": [edited(one_f_one_b, ("min(micro, stages - stage)", "micro"))],
        "short-warm-up": [edited(one_f_one_b, ("stages - stage)", "max(1, stages - stage - 1))"))],
        "backward-first": [edited(one_f_one_b, ("stages - stage)", "stages - stage - 1)"))],
        "saves-more": [edited(one_f_one_b, ("stages - stage)", "stages)"))],
        "waits": [edited(one_f_one_b, ("stages - stage)", "stage + 1)"))],
        "missing": [edited(one_f_one_b, ("range(micro)", "range(micro - warm_up)"))],
        "differs": [edited(one_f_one_b, ("{stage: row", '{f"gpu{stage}": row'))],
    },
    "interleave": {
        "neighbours": [edited(interleave, ('("F", i, chunk * devices + device)', '("F", i, device * chunks + chunk)'),
                              ("(chunks - 1 - chunk) * devices + device", "device * chunks + chunks - 1 - chunk"))],
        "late-chunks": [edited(interleave, (WARM_UP, "(chunks - 1) * devices + 1"))],
        "saves-more": [edited(interleave, (WARM_UP, "(chunks + 1) * devices - device"))],
        "all-forwards": [edited(interleave, (WARM_UP, "total"))],
        "chunks-forward": [edited(interleave, ("(chunks - 1 - chunk) * devices", "chunk * devices"))],
        "waits": [edited(interleave, (WARM_UP, "(chunks - 1) * devices + 1 + 2 * device"))],
        "missing": [lambda devices, micro, chunks: interleave(devices, micro, 1)],
        "backward-first": [edited(interleave, ("table[device] = row", "table[device] = row[::-1]"))],
        "differs": [edited(interleave, ("table[device]", "table[str(device)]"))],
    },
    "best-cut": {
        "equal-counts": [of_equal_counts],
        "by-average": [up_to_the_mean],
        "late": [first_alone],
        "apart": [lambda costs, stages: best_cut(costs, stages)[::-1]],
        "empty-stage": [lambda costs, stages: [[], *best_cut(costs, stages)]],
        "endless": [tries_all],
        "differs": [lambda costs, stages: [[i] for i in range(len(costs))]],
        "wrong-type": [lambda costs, stages: [len(stage) for stage in best_cut(costs, stages)]],
    },
}


def on_another_device(devices, micro, chunks):
    """Gives the last stage to the first device."""
    table, last = interleave(devices, micro, chunks), devices * chunks - 1
    cells = [cell for cell in table[devices - 1] if cell[2] == last]
    rest = {device: [cell for cell in row if cell not in cells] for device, row in table.items()}
    return rest | {0: rest[0] + cells}


RULES = {
    "one-f-one-b": {
        "the number of each stage": "differs",
        "all tasks": "missing",
        "fewer micro-batches than stages": ("min(micro, stages - stage)", "stages - stage"),
        "no device waits for ever": "waits",
        "a backward pass after its forward pass": "backward-first",
        "2(m + p − 1) slots": "short-warm-up",
        "stage i saves at most p − i": "saves-more",
        "or m": "all-forwards",
        "gradients in the order 0, 1, 2, …": ("*backwards[micro - warm_up :]", "*backwards[micro - warm_up :][::-1]"),
    },
    "interleave": {
        "the number of each device": "differs",
        "all tasks": "missing",
        "each device has as many stages": on_another_device,
        "no device waits for ever": "waits",
        "a backward pass after its forward pass": "backward-first",
        "the table is as short as possible": "late-chunks",
        "at most p(v + 1) − 1 saved": "saves-more",
        "gradients in the order 0, 1, 2, …": ("backwards[k]", "backwards[k ^ (devices > 1 and k >= total - 2)]"),
    },
    "best-cut": {
        "a list of stages": "wrong-type",
        "each lists its layers": ("list(range(i, j))", "[layer for layer in range(i, j) if costs[layer]]"),
        "so many stages": "differs",
        "the slowest stage is as fast as possible": "late",
        "with the exact costs": ("max(slowest, sum(costs[i:j]))", "max(slowest, round(sum(costs[i:j]), 1))"),
        "at least one layer each": "empty-stage",
        "activations never go back": "apart",
        "up to 200 layers": "endless",
    },
}
