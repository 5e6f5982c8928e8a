"""The exercises of chapter 08: right answers unlike the solutions, and what the judges know."""

from itertools import combinations

import pytest
from helpers.exercises import EXERCISES, module

from d2lps import Send, check_exercise, ring
from d2lps.notebook.grading import edited
from d2lps.notebook.grading.course import texts_of
from d2lps.schedule import Collective, Schedule, Task, hybrid

torch = pytest.importorskip("torch")

CHAPTER = "08-model-parallelism"
IDS = ("tensor-mlp", "place", "hybrid")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_tensor_mlp, judge_place, judge_hybrid = (
    module(CHAPTER, name) for name in ("judge_tensor_mlp", "judge_place", "judge_hybrid")
)


# ---- right answers that are unlike the solutions


class ByAutograd:
    """Lets autograd compute the local gradients; the bias is added by rank 0 before the sum."""

    def __init__(self, x, A, B, b, rank, ranks, all_reduce):
        self.all_reduce, self.dtype = all_reduce, x.dtype
        self.own = [x.clone().requires_grad_()]
        self.own += [A.tensor_split(ranks, dim=1)[rank].clone().requires_grad_()]
        self.own += [B.tensor_split(ranks)[rank].clone().requires_grad_()]
        self.part = torch.relu(self.own[0] @ self.own[1]) @ self.own[2]
        self.y = all_reduce(self.part.detach() + (b if rank == 0 else 0))

    def backward(self, dy):
        self.part.backward(dy)
        x, A, B = self.own
        return [self.all_reduce(x.grad), A.grad, B.grad, dy.sum(dim=0)]


def by_autograd(x, A, B, b, rank, ranks, all_reduce):
    made = ByAutograd(x, A, B, b, rank, ranks, all_reduce)
    return made.y, made.backward


def every_way(operators, devices, memory):
    """Tries every choice of devices in the given order of operators."""
    names = list(operators)

    def rest(i, used):
        if i == len(names):
            return {}
        weights, given = operators[names[i]]
        few = next((k for k in range(1, len(devices) + 1) if weights / k + given <= memory), len(devices) + 1)
        for homes in combinations(devices, few):
            more = {home: used[home] + weights / few + given for home in homes}
            if max(more.values()) <= memory and (found := rest(i + 1, used | more)) is not None:
                return {names[i]: homes[0] if few == 1 else homes, **found}
        return None

    return rest(0, dict.fromkeys(devices, 0))


def from_the_library(devices):
    return hybrid({"op1": 10, "op2": 4}, devices)


def by_hand(devices):
    """The sums as messages: all to the first device, and back. All forward tasks come first."""
    whole = hybrid({"op1": 4, "op2": 4}, devices)
    acts = [act for act in whole.acts if not isinstance(act, Collective)]
    acts.sort(key=lambda act: not (isinstance(act, Task) and act.name == "F" and act.of == "op1"))
    for name, nodes in (("g:op1", devices[::2]), ("g:op2", devices[1::2])):
        acts += [Send(node, nodes[0], name, "add") for node in nodes[1:]]
        acts += [Send(nodes[0], node, name, "copy") for node in nodes[1:]]
    return acts


RIGHT = {"tensor-mlp": [by_autograd], "place": [every_way], "hybrid": [from_the_library, by_hand]}
MEASURED = {"tensor-mlp": ["50%", "252 B"], "place": ["gpu1", "MB"], "hybrid": ["4.2 MB", "3.2 MB"]}


# ---- what the judges know


def test_the_truth_of_an_mlp_is_that_of_autograd():
    for case in EXERCISES["tensor-mlp"].cases:
        truth = judge_tensor_mlp.Truth(case)
        leaves = [tensor.clone().requires_grad_() for tensor in truth.given()]
        x, A, B, b = leaves
        y = torch.relu(x @ A) @ B + b
        y.backward(truth.dy)
        rights = (truth.dx, truth.dA, truth.dB, truth.db)
        assert judge_tensor_mlp.near(y.detach(), truth.y)
        assert all(judge_tensor_mlp.near(leaf.grad, right) for leaf, right in zip(leaves, rights, strict=True))


def test_a_case_is_possible_if_one_of_all_ways_is():
    for case in EXERCISES["place"].cases:
        assert (every_way(*case.given()) is not None) == case.possible
        assert SOLVED["place"](*case.given()) is None or case.possible


def test_the_names_of_an_exercise_are_those_of_the_lesson():
    """``replica`` of the lesson makes the acts of the library, and so of the judge."""
    lesson = (texts_of("hybrid").folder / "lesson.py").read_text("utf-8")
    names = {"Task": Task, "Send": Send}
    exec("def replica(" + lesson.split("def replica(")[1].split("\n\n")[0], names)
    acts = names["replica"]("a", "b", 0) + names["replica"]("c", "d", 1)
    devices = ["a", "b", "c", "d"]
    assert acts == SOLVED["hybrid"](devices)[:-2] == list(hybrid({"op1": 2, "op2": 2}, devices).acts[:-2])
    values = hybrid({"op1": 2, "op2": 2}, devices)
    Schedule(devices, values.values, SOLVED["hybrid"](devices), values.holds, values.wants)


@pytest.mark.parametrize(
    "id, answer, part",
    [
        (
            "tensor-mlp",
            lambda x, A, B, b, rank, ranks, all_reduce: (all_reduce(x[rank:]), lambda dy: ()),
            "(6, 4) (7, 4)",
        ),
        ("place", lambda operators, devices, memory: {"op1": devices, "op2": devices[1:] * 2}, "gpu2 gpu2"),
        ("hybrid", lambda devices: SOLVED["hybrid"](devices)[:-2] + [Collective(ring(devices), "g:op1")], "g:op1"),
    ],
)
def test_a_sentence_names_the_fault(id, answer, part):
    assert part in check_exercise(id, answer).sentence


def test_the_derivative_of_relu_at_zero_counts():
    """It is 0, as in PyTorch; a row of padding meets it."""
    solved = texts_of("tensor-mlp").solution()
    assert not check_exercise("tensor-mlp", edited(solved, ("(z > 0)", "(z >= 0)"))).passed
