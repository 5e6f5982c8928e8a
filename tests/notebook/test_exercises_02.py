"""The exercises of chapter 02: right answers, bounds, and the sentences about answers."""

import re
from fractions import Fraction
from itertools import permutations

import pytest
from helpers.exercises import EXERCISES, module, with_parameters

import d2lps
from d2lps import Plan, Send, bidirectional_ring, check_exercise, cost, sharded, tree
from d2lps.notebook.grading import Failure
from d2lps.notebook.grading.course import texts_of

CHAPTER = "02-ring"
IDS = ("both-ways", "few-steps", "labels", "unequal-links", "beyond-sums")


def to_the_middle(gpus, bandwidths, chunks):
    """Cut at the slowest link; the chunks meet in the middle of the row and go back to both ends."""
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1
    row, middle = gpus[cut:] + gpus[:cut], len(gpus) // 2
    depth, keys = max(middle, len(gpus) - 1 - middle), [f"g{c}" for c in range(chunks)]
    steps = [[] for _ in range(chunks + 2 * depth)]
    for c, key in enumerate(keys):
        for i in range(len(row)):
            if i != middle:
                near, away = row[i + 1 if i < middle else i - 1], abs(i - middle)
                steps[c + depth - away].append(Send(row[i], near, key))
                steps[c + depth + away - 1].append(Send(near, row[i], key, "copy"))
    return Plan(gpus, dict.fromkeys(keys, Fraction(1, chunks)), steps)


def searched(table):
    """The widest ring by going through all orders, from the table's words alone."""
    rows = [line.split() for line in table.splitlines()]
    gpus = [word.lower() for word in rows[0] if word.startswith("GPU")]
    wide = {}
    for name, *cells in rows[1 : len(gpus) + 1]:
        for other, code in zip(gpus, cells, strict=False):
            wide[name.lower(), other] = int(code[2:]) if code.startswith("NV") else 0
    orders = [(gpus[0], *rest) for rest in permutations(gpus[1:])]
    return list(max(orders, key=lambda order: min(wide[hop] for hop in zip(order, order[1:] + order[:1], strict=True))))


def log_sum_exp():
    import torch

    return d2lps.Reduction("log of a sum", torch.logaddexp, float("-inf"))


def two_together(gpus):
    """The two rings put together from two plans."""
    return d2lps.together(d2lps.ring(gpus), d2lps.ring([gpus[0], *gpus[:0:-1]], key="h"), shares=["1/2", "1/2"])


def from_both_sides(gpus):
    """Beats the formula if n is odd: each key is collected at its owner from both sides at once, in n − 1 steps."""
    n, reach, keys = len(gpus), len(gpus) // 2, [f"g{j}" for j in range(len(gpus))]
    if n % 2 == 0:
        return bidirectional_ring(gpus)
    steps = [
        [
            Send(gpus[(j + side * (reach - t)) % n], gpus[(j + side * (reach - t - 1)) % n], keys[j])
            for j in range(n)
            for side in (1, -1)
        ]
        for t in range(reach)
    ]
    back = [[Send(dst, src, key, "copy") for src, dst, key, _ in step] for step in reversed(steps)]
    return Plan(gpus, dict.fromkeys(keys, Fraction(1, n)), steps + back)


def mixed(gpus):
    return d2lps.halving_doubling(gpus) if len(gpus) in (1, 2, 4, 8) else tree(gpus)


def folded(gpus):
    """Recursive doubling; who is one too many gives its part away first, and gets the sum last."""
    n, extra = len(gpus), len(gpus) - (1 << (len(gpus).bit_length() - 1))
    some, apart, between = gpus[extra:], 1, []
    while apart < len(some):
        between.append([Send(some[i], some[i ^ apart], "g") for i in range(len(some))])
        apart *= 2
    first = [[Send(gpus[i], some[i], "g") for i in range(extra)]] if extra else []
    last = [[Send(some[i], gpus[i], "g", "copy") for i in range(extra)]] if extra else []
    return Plan(gpus, {"g": 1}, first + between + last) if n > 1 else Plan(gpus, {"g": 1}, [])


def turned_round(table):
    return searched(table)[::-1]


def towards_the_first(gpus, bandwidths, chunks):
    """The same row, with the sums collected at its other end."""
    back = [gpus[0], *gpus[:0:-1]]
    between = {near: bandwidths[far] for near, far in zip(back, back[1:] + back[:1], strict=True)}
    plan = texts_of("unequal-links").solution()(back, between, chunks)
    return Plan(gpus, plan.share, plan.steps)


def by_softplus():
    import torch

    def combine(own, arrived):
        high, low = torch.maximum(own, arrived), torch.minimum(own, arrived)
        return torch.where(torch.isinf(low), high, high + torch.nn.functional.softplus(low - high))

    return d2lps.Reduction("softplus", combine, float("-inf"))


RIGHT = {
    "both-ways": [two_together, from_both_sides],
    "few-steps": [folded, mixed],
    "labels": [searched, turned_round],
    "unequal-links": [to_the_middle, towards_the_first],
    "beyond-sums": [log_sum_exp, by_softplus],
}
MEASURED = {  # parts of the sentence about the solution
    "both-ways": [
        "n = 4: 6.697 ms",
        "allows 6.697 ms",
        "takes 13.36 ms. That is no faster",  # one port gains nothing
        "steps are enough, and 6.687 ms",  # the formula is not the price of neighbours
    ],
    "few-steps": ["64 kB take 62.56 µs, and a ring would need 140.7 µs", "6.46 ms and the ring 2.007 ms"],
    "labels": ["7.778 ms, 7.778 ms, 7.778 ms"],
    "unequal-links": ["11.67 ms with 16 chunks", "takes 60 ms"],
}


def test_both_ways_is_bounded_by_its_formula_and_gains_nothing_through_one_port():
    S, b, alpha = 160 * 10**6, 18 * 10**9, Fraction(5e-6)
    *cases, port = EXERCISES["both-ways"].cases
    for case in cases:
        n = len(case.workers)
        assert case.allowed == 2 * (n - 1) * alpha + Fraction((n - 1) * S, n * b)
        found = cost.shared(bidirectional_ring(case.workers), case.topology, S)
        assert found.duration == pytest.approx(float(case.allowed), rel=1e-12) and found.steps == case.steps
        if n > 2:  # of two GPUs the neighbours are one and the same, and either ring fills both links
            one_way = cost.shared(d2lps.ring(case.workers), case.topology, S).duration - float(2 * (n - 1) * alpha)
            assert one_way == pytest.approx(float(Fraction(2 * (n - 1) * S, n * b)))
    both, one = (cost.shared(make(port.workers), port.topology, S) for make in (bidirectional_ring, d2lps.ring))
    assert both.duration == one.duration == pytest.approx(float(port.allowed))


def test_few_steps_are_logarithmic_and_the_message_decides():
    for case in EXERCISES["few-steps"].cases:
        n, alpha, whole = len(case.workers), Fraction(5e-6) * 2, Fraction(case.nbytes, 150 * 10**9)
        levels = (n - 1).bit_length()
        assert case.steps == 2 * levels and case.allowed == 2 * levels * (alpha + whole)
        assert case.bound == levels * alpha + Fraction(2 * (n - 1), n) * whole
        found, around = (cost.shared(make(case.workers), case.topology, case.nbytes) for make in (tree, d2lps.ring))
        assert found.duration == pytest.approx(float(case.allowed), rel=1e-12)
        if n > 3:
            assert (found.duration < around.duration) == (case.nbytes < 10**6)


def test_messages_for_one_gpu_have_to_queue():
    verdict = check_exercise("few-steps", sharded)
    assert verdict.sentence.startswith("n = 8, step 1: gpu0 receives from 7 GPUs at once") and verdict.trace.steps == 2

    def back(gpus):
        return Plan(gpus, {"g": 1}, [*tree(gpus).steps[:3], [Send(gpus[0], gpu, "g", "copy") for gpu in gpus[1:]]])

    assert check_exercise("few-steps", back).sentence.startswith("n = 8, step 4: gpu0 sends to 7 GPUs at once")


def test_the_tables_are_of_hosts_that_number_their_gpus_differently():
    cases = EXERCISES["labels"].cases
    first, *others = (case for case in cases if len(case.workers) == 8)

    def nvlinks(host):
        gpus = {node for node, kind in host.kinds.items() if kind == "gpu"}
        return {(link.src, link.dst): link.count for link in host.links if {link.src, link.dst} <= gpus}

    assert nvlinks(first.topology) == nvlinks(d2lps.dgx1_v100())
    assert first.topology.kinds == d2lps.dgx1_v100().kinds
    for case in cases:
        assert case.topology == d2lps.Topology.from_nvidia_smi(case.arguments[0], nvlink="18 GB/s")
        wide = nvlinks(case.topology)
        widest = max(
            min(wide.get(hop, 0) for hop in zip(order, order[1:] + order[:1], strict=True))
            for order in permutations(case.workers)
            if order[0] == case.workers[0]
        )
        assert widest == case.width or len(case.workers) == 1
        best = cost.shared(d2lps.ring(searched(*case.arguments)), case.topology, case.nbytes)
        assert best.duration == pytest.approx(float(case.bound))
    for order in permutations((first, *others), 2):  # the right order of one is wrong on each other
        assert judged_as(order[1], searched(*order[0].arguments)) == "no-nvlink"


def judged_as(case, order):
    with pytest.raises(Failure) as failure:
        EXERCISES["labels"].judge(case, lambda table: order)
    return failure.value.mistake


def test_a_hop_without_nvlink_is_named_and_played():
    verdict = check_exercise("labels", lambda table: [f"gpu{i}" for i in range(8)])
    assert verdict.sentence.replace("\u00a0", " ") == (
        "n = 8: gpu3 and gpu4 have no NVLink, so their messages go gpu3→switch1→cpu0→cpu1→switch2→gpu4. "
        "The ring takes 17.5 ms; another order takes 7.778 ms."
    )
    assert verdict.trace.plan == d2lps.ring([f"gpu{i}" for i in range(8)]) and verdict.trace.duration == 0.0175
    for labels in ((1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7)):
        for case in EXERCISES["labels"].cases[:3]:
            assert judged_as(case, [f"gpu{label - 1}" for label in labels]) == "labels-as-ids"


def test_a_slow_link_is_best_left_out():
    for case in EXERCISES["unequal-links"].cases:
        gpus, bandwidths, chunks = case.arguments
        n, rates = len(gpus), sorted(map(Fraction, bandwidths.values()))
        if n > 2:
            both_sides = case.nbytes / sum(rates[:2])  # of the two slowest links hear of each other
            in_all = 2 * (n - 1) * case.nbytes / (2 * sum(rates))  # what n nodes send, over all links
            assert case.bound == max(both_sides, in_all)
            assert case.allowed == case.nbytes / rates[1] * Fraction(chunks + 2 * n - 3, chunks)
            around = cost.shared(bidirectional_ring(gpus), case.topology, case.nbytes).duration
            assert around > 1.2 * case.allowed and case.allowed >= case.bound
        solved = texts_of("unequal-links").solution()(*case.arguments)
        found = cost.shared(solved, case.topology, case.nbytes)
        assert found.duration <= float(case.allowed) * (1 + 1e-12)
        middle = cost.shared(to_the_middle(*case.arguments), case.topology, case.nbytes)
        assert middle.duration <= found.duration


def test_a_broken_plan_without_a_link_is_a_sentence_too():
    def broken(gpus):
        return Plan(gpus, {"g": 1}, [[Send("gpu0", "gpu2", "g")], [Send("gpu2", "gpu0", "g")]])

    verdict = check_exercise("both-ways", broken)
    assert verdict.mistake == "counted-twice" and verdict.trace is None
    verdict = check_exercise("both-ways", tree)
    assert verdict.sentence == "n = 4, step 2: gpu2 sends to gpu0, but no link leads there."
    assert verdict.trace.plan.steps == tree([f"gpu{i}" for i in range(4)]).steps[:1]


def test_the_first_wrong_value_is_that_of_a_run():
    torch = pytest.importorskip("torch")

    def plain(own, arrived):
        """Right for the largest and the smallest; what four GPUs have together is too much for it."""
        far = torch.maximum(own.abs(), arrived.abs()) > 500
        return torch.where(far, torch.logaddexp(own, arrived), torch.log(torch.exp(own) + torch.exp(arrived)))

    def wrong():
        return d2lps.Reduction("plain", plain, float("-inf"))

    verdict = check_exercise("beyond-sums", wrong)
    assert verdict.sentence == "n = 8, ring, step 3: gpu1 has inf in key g7, but 88.89 would be right."
    gradients = module("02-ring", "judge_beyond_sums").gradients
    case, begun = EXERCISES["beyond-sums"].cases[0], verdict.trace.plan
    assert begun.steps == case.plan.steps[:3]
    buffers = gradients(case)
    d2lps.run(begun, buffers, reduce=wrong())
    assert torch.isposinf(buffers["gpu1"][begun.slices(13)["g7"]]).any()
    two = Plan(begun.nodes, begun.share, begun.steps[:2], wants=())
    d2lps.run(two, buffers := gradients(case), reduce=wrong())
    assert not any(torch.isposinf(buffer).any() for buffer in buffers.values())


@pytest.mark.parametrize("id", ("own-gpu", "overlap", "split", "both-ways", "few-steps", "unequal-links"))
def test_an_answer_uses_the_names_that_it_is_given(id):
    def made_up(gpus, *more):
        names = [f"gpu{i}" for i in range(len(gpus))]
        more = [
            dict(zip(names, each.values(), strict=True)) if isinstance(each, dict) and {*each} == {*gpus} else each
            for each in more
        ]
        return texts_of(id).solution()(names, *more)

    verdict = check_exercise(id, with_parameters(id, made_up), "100 s")
    assert not verdict.passed and re.match(r"n = [23].*gpu[46]", verdict.sentence), verdict
