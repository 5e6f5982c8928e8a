"""The exercises of chapter 13: right answers unlike the solutions, faulty ones, and what the judges know."""

import pytest
import torch
from helpers.exercises import module

from d2lps.notebook.grading import check_exercise, edited
from d2lps.notebook.grading.course import texts_of
from d2lps.scaling import GPUS, Layout, kept, step

CHAPTER = "13-choosing"
IDS = ("choose", "experts")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_choose = module(CHAPTER, "judge_choose")


# ---- right answers that are unlike the solutions


def sorted_by_time(model, gpus, memory, per_node, batch):
    """Tries the fastest first; as a list."""
    cuts = []
    for t in [t for t in range(1, per_node + 1) if per_node % t == model.heads % t == 0]:
        for p in [p for p in range(1, model.layers + 1) if model.layers % p == 0]:
            d, rest = divmod(gpus, t * p)
            if not rest and not batch % d:
                layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
                cuts.append((sum(step(model, layout, GPUS["a100"], per_node=per_node).values()), layout))
    for _, layout in sorted(cuts):
        if sum(kept(model, layout).values()) <= memory:
            return list(layout[:3])


def by_sorting(x, choice, gate, ranks, capacity, exchange, expert):
    """Sorts tokens by expert, and turns the order back with a second one."""
    seen, kept_rows = {}, []
    for i, e in enumerate(choice.tolist()):
        seen[e] = seen.get(e, 0) + 1
        if seen[e] <= capacity:
            kept_rows.append(i)
    order = sorted(kept_rows, key=lambda i: int(choice[i]))
    counts = [sum(int(choice[i]) == e for i in order) for e in range(ranks)]
    arrived = exchange(list(x[order].split(counts)))
    returned = torch.cat(exchange([expert(part) for part in arrived]))
    return torch.zeros_like(x).index_add(0, torch.tensor(order, dtype=torch.long), returned * gate[order, None])


RIGHT = {"choose": [sorted_by_time], "experts": [by_sorting]}
MEASURED = {"choose": ["(8, 8, 16)", "(1, 32, 32)"], "experts": ["4, 3", "5"]}


# ---- what the judges know


@pytest.mark.parametrize("case", judge_choose.CASES, ids=lambda case: case.label)
def test_divisions_that_fit_are_the_best_and_others(case):
    times = judge_choose.possible(case)
    assert (not times) == ((case.model, case.gpus) in [("gpt3", 8), ("small", 7)])
    assert all(t * p * d == case.gpus and t <= case.per_node for t, p, d in times)


TIME = 'step(model, layout, GPUS["a100"], per_node=per_node)'
STAGES = "for p in range(1, model.layers + 1)"


def by(key: str):
    """Return an answer that takes no times: the least ``key`` of the divisions that fit."""
    return edited(SOLVED["choose"], (f"sum({TIME}.values())", key))


def without(*parts: str):
    """Return an answer that leaves out these parts of a step."""
    return edited(SOLVED["choose"], (f"{TIME}.values()", f"v for name, v in {TIME}.items() if name not in {parts}"))


def at_most(stages: int):
    return edited(SOLVED["choose"], (STAGES, f"for p in range(1, min({stages}, model.layers) + 1)"))


@pytest.mark.parametrize(
    "answer",
    [
        edited(SOLVED["choose"], (" or model.layers % p", "")),
        *map(at_most, (8, 11, 16)),
        *(without(*parts) for parts in (("data",), ("tensor",), ("data", "update"))),
        without("tensor", "pipeline", "data", "update", "reading"),
        without("matrices", "pipeline", "data", "update", "reading"),
        edited(SOLVED["choose"], (TIME, TIME.replace("layout", 'layout._replace(recompute="full")'))),
        edited(SOLVED["choose"], (TIME, TIME.replace("layout", "layout._replace(stage=3)"))),
        *map(by, ("t * p - t / 1000", "p", "p - t / 1000", "p / 1000 - t")),
    ],
)
def test_each_rule_and_each_part_of_a_step_counts_in_choose(answer):
    """Messages between stages alone decide nothing: with sequence parallelism they are a t-th of an activation."""
    assert not check_exercise("choose", answer).passed, answer.source


@pytest.mark.parametrize(
    "edits",
    [
        [("return y", "return y.detach().requires_grad_()")],
        [("gate[row, None]", "gate.detach()[row, None]"), ("return y", "return y + 0 * gate.sum()")],
        [("gate[row, None]", "(gate + gate.detach())[row, None] / 2")],
        [("rows = [", "gate = torch.tensor(gate.tolist(), requires_grad=True)\n    rows = [")],
        [("return y", "return y.detach() + (gate - gate.detach())[:, None]")],
    ],
)
def test_the_gates_get_the_gradient_of_one_device(edits):
    verdict = check_exercise("experts", edited(SOLVED["experts"], *edits))
    assert verdict.mistake == "gate" and "instead of" in verdict.sentence, verdict
