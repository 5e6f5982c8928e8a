"""The exercises of chapter 01: right answers, bounds, and the sentences about answers."""

from fractions import Fraction

import pytest
from helpers.exercises import EXERCISES, wrong_answers

from d2lps import Plan, PlanError, Send, aggregate_at, check_exercise, cost, sharded
from d2lps.notebook.grading import NBYTES, Counts
from d2lps.notebook.grading.course import texts_of

CHAPTER = "01-data-parallelism"
IDS = ("own-gpu", "overlap", "split")


def test_the_sentence_names_step_node_and_bytes():
    verdict = check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    assert verdict.sentence.replace("\u00a0", " ") == (
        "n = 4, step 1: gpu0 receives 480 MB, but 120 MB is enough. The whole takes 60 ms; the lower bound is 15 ms."
    )
    verdict = check_exercise("split", lambda gpus, servers: sharded(gpus, list(servers)))
    assert "step 1: cpu1 receives 320 MB, but 213.3 MB is enough" in verdict.sentence.replace("\u00a0", " ")
    verdict = check_exercise("overlap", lambda gpus, cpu, chunks: aggregate_at(gpus, cpu))
    assert "step 1: cpu receives 640 MB, but 160 MB is enough" in verdict.sentence.replace("\u00a0", " ")
    assert "80 ms; the lower bound is 50 ms" in verdict.sentence.replace("\u00a0", " ")


def test_a_refused_plan_is_played_up_to_the_step_to_blame():
    answer = wrong_answers("own-gpu")["counted-twice"][0]
    verdict = check_exercise("own-gpu", answer)
    assert "step 2" in verdict.sentence and verdict.trace.steps == 1
    with pytest.raises(PlanError) as refused:
        answer([f"gpu{i}" for i in range(4)])
    assert verdict.sentence == f"n = 4: {refused.value}"
    assert verdict.trace.plan.steps == refused.value.plan.steps[:1]


def test_a_sum_that_is_nowhere_is_not_a_sum_not_sent_back():
    def forgetful(gpus, cpu, chunks):
        full = aggregate_at(gpus, cpu, chunks)
        steps = [[send for send in step if send.src != gpus[-1]] for step in full.steps]
        return Plan(full.nodes, full.share, steps, holds=gpus, wants=gpus)

    verdict = check_exercise("overlap", forgetful)
    assert verdict.mistake == "not-collected" and "gpu3 missing" in verdict.sentence and verdict.trace


def test_no_beaten_bound_is_shown():
    for id, answers in (("split", "overlapped"), ("overlap", "other-chunks")):
        verdict = check_exercise(id, wrong_answers(id)[answers][0])
        assert verdict.trace.duration < float(EXERCISES[id].cases[0].bound) and "bound" not in verdict.sentence


def test_one_gpu_needs_no_step():
    def careful(gpus):
        return Plan(gpus, {"g": 1}, []) if len(gpus) == 1 else sharded(gpus)

    assert check_exercise("own-gpu", careful).passed
    assert check_exercise("own-gpu", texts_of("own-gpu").solution()).passed

    def no_cpu_needed(gpus, cpu, chunks):
        if len(gpus) > 1:
            return aggregate_at(gpus, cpu, chunks)
        return Plan([*gpus, cpu], {"g": 1}, [], holds=gpus, wants=gpus)

    assert check_exercise("overlap", no_cpu_needed).passed


def in_halves(gpus):
    """Every GPU owns two keys."""
    owners = {f"{gpu}.{half}": gpu for gpu in gpus for half in "ab"}
    collect = [Send(gpu, owner, key) for key, owner in owners.items() for gpu in gpus if gpu != owner]
    back = [Send(dst, src, key, "copy") for src, dst, key, _ in collect]
    return Plan(gpus, dict.fromkeys(owners, Fraction(1, 2 * len(gpus))), [collect, back])


def halves_of_chunks(gpus, cpu, chunks):
    """Two keys for each chunk, which always travel together."""
    keys = [[f"g{i}{half}" for half in "ab"] for i in range(chunks)]
    up = [[Send(gpu, cpu, key) for gpu in gpus for key in pair] for pair in keys] + [[]]
    down = [[]] + [[Send(cpu, gpu, key, "copy") for gpu in gpus for key in pair] for pair in keys]
    shares = dict.fromkeys(sum(keys, []), Fraction(1, 2 * chunks))
    return Plan([*gpus, cpu], shares, map(list.__add__, down, up), holds=gpus, wants=gpus)


def two_keys_for_each_server(gpus, servers):
    total = Fraction(sum(servers.values()))
    shares = {f"{name}.{i}": Fraction(rate) / total * Fraction(i, 3) for name, rate in servers.items() for i in (1, 2)}
    collect = [Send(gpu, key.partition(".")[0], key) for key in shares for gpu in gpus]
    back = [Send(dst, src, key, "copy") for src, dst, key, _ in collect]
    return Plan([*gpus, *servers], shares, [collect, back], holds=gpus, wants=gpus)


def split_by_rate(gpus, servers):
    total = Fraction(sum(servers.values()))
    return sharded(gpus, {name: Fraction(rate) / total for name, rate in servers.items()})


RIGHT = {
    "own-gpu": [sharded, in_halves],
    "overlap": [aggregate_at, halves_of_chunks],
    "split": [split_by_rate, two_keys_for_each_server],
}
MEASURED = {  # parts of the sentence about the solution
    "own-gpu": ["n = 4: 15 ms, and the lower bound is 15 ms."],
    "overlap": ["80 ms, 60 ms, 50 ms, 45 ms"],
    "split": ["53.33 ms, and the lower bound is 53.33 ms"],
}


@pytest.mark.parametrize("id", IDS)
def test_the_bounds_are_the_closed_forms(id):
    S, B = 160 * 10**6, 16 * 10**9
    for case in EXERCISES[id].cases:
        n = len(case.workers)
        if id == "own-gpu":
            expected, counted = Fraction(2 * (n - 1) * S, n * B), dict.fromkeys(case.workers, Fraction(2 * (n - 1), n))
        elif id == "overlap":
            c = case.arguments[2]
            expected, counted = (
                Fraction((c + 1) * n * S, c * B),
                dict.fromkeys(case.workers, 1) | {case.arguments[1]: n},
            )
        else:
            rates = {name: Fraction(rate) for name, rate in case.arguments[1].items()}
            expected = 2 * max(n * S / sum(rates.values()), Fraction(S, B))
            counted = {name: n * rate / sum(rates.values()) for name, rate in rates.items()}
            assert all(rate.is_integer() for rate in case.arguments[1].values())
        assert case.bound == expected
        plan = texts_of(id).solution()(*case.arguments)
        trace = cost.shared(plan, case.topology, S)
        assert trace.duration == float(expected) and (trace.steps == case.steps or n == 1)
        counts = Counts(case, plan, trace)
        for node, part in counted.items():
            assert counts.moved(node, "src") == counts.moved(node, "dst") == part
        assert EXERCISES[id].judge(case, texts_of(id).solution()) == trace
    assert {len(case.workers) for case in EXERCISES["own-gpu"].cases} == {1, 2, 3, 4, 5, 8}
    assert NBYTES == S
