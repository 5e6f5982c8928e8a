"""Reductions by name, those of users, and refusals before anything moves."""

import pytest
import torch
from helpers.tensors import FLOATS, INTEGERS, LARGER, LOGADDEXP, PLANS, added, bits, gradients

from d2lps import Reduction, aggregate_at, run
from d2lps.carriers.reductions import NAMED, reduction, require_usable
from d2lps.carriers.tensors import TensorError

STAR = aggregate_at(["a", "b", "c"], "a")
PAIR = aggregate_at(["a", "b"], "a")
BY_HAND = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "product": torch.mul, "or": torch.bitwise_or}


def three(*values, dtype=None):
    return {node: torch.tensor([value], dtype=dtype) for node, value in zip("abc", values, strict=True)}


@pytest.mark.parametrize(
    "name, values, result",
    [
        ("sum", (2.0, -3.0, 5.0), 4.0),
        ("max", (2.0, -3.0, 5.0), 5.0),
        ("min", (2.0, -3.0, 5.0), -3.0),
        ("product", (2.0, -3.0, 5.0), -30.0),
        ("or", (1, 2, 4), 7),
        ("or", (0, 0, 0), 0),
        ("or", (False, True, False), True),
        ("max", (False, True, False), True),
        ("min", (True, True, False), False),
        ("product", (True, True, False), False),
        ("max", (float("-inf"),) * 3, float("-inf")),
        ("max", (-(2**63), -(2**63), -(2**63)), -(2**63)),
        ("min", (2**63 - 1, 2**63 - 1, 2**63 - 1), 2**63 - 1),
    ],
)
def test_a_reduction_is_named_and_every_node_gets_its_result(name, values, result):
    tensors = three(*values)
    run(STAR, tensors, reduce=name)
    assert [tensor.item() for tensor in tensors.values()] == [result] * 3


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_every_plan_reduces_in_its_order_with_every_dtype_that_can_be(make, name):
    plan = make(4)
    for dtype in FLOATS + INTEGERS if name != "or" else INTEGERS:
        tensors = gradients(plan, 13, dtype)
        want, cut = {node: tensor.clone() for node, tensor in tensors.items()}, plan.slices(13)
        run(plan, tensors, reduce=name)
        for node, key, _ in plan.wants:
            by_hand = added(plan.order(key), want, cut[key], BY_HAND[name])
            assert bits(tensors[node][cut[key]]) == bits(by_hand), (node, key, dtype)


def test_a_maximum_keeps_nan():
    tensors = three(1.0, float("nan"), 2.0)
    run(STAR, tensors, reduce="max")
    assert all(tensor.isnan() for tensor in tensors.values())


@pytest.mark.parametrize("own", [LOGADDEXP, LARGER], ids=lambda own: own.name)
def test_a_reduction_of_ones_own_is_its_function_and_its_identity(own):
    tensors = {node: torch.randn(50) for node in "abc"}
    want = own.combine(own.combine(tensors["a"], tensors["b"]), tensors["c"])
    run(STAR, tensors, reduce=own)
    assert all(torch.equal(tensor, want) for tensor in tensors.values())


def test_a_node_that_holds_nothing_begins_with_what_arrives_whatever_the_identity():
    plan = aggregate_at(["a", "b"], "server")
    tensors = {"a": torch.tensor([2.0]), "b": torch.tensor([3.0]), "server": torch.tensor([float("nan")])}
    run(plan, tensors, reduce="product")
    assert [tensor.item() for tensor in tensors.values()] == [6.0] * 3


def adds_in_place(own, arrived):
    return own.add_(arrived)


def counts(own, arrived):
    return len(own)


REFUSED = {
    "a name that is none": (torch.ones(2), "mean", "'mean' is not a reduction: write 'sum', 'max', 'min', 'product'"),
    "a bare function": (torch.ones(2), torch.maximum, "is not a reduction"),
    "a list": (torch.ones(2), ["max"], "['max'] is not a reduction"),
    "none": (torch.ones(2), None, "None is not a reduction"),
    "a name that is no text": (torch.ones(2), Reduction(5, torch.add, 0), "5 cannot be the name of a reduction: write"),
    "a wrong identity": (torch.tensor([1.0, 2.0]), Reduction("sum", torch.add, 1), "sum with its identity 1 changes"),
    "an identity that is nearly right": (
        torch.tensor([1.0, 2.0]),
        Reduction("sum", torch.add, 1e-5),
        "the identity that changes nothing",
    ),
    "one that is wrong for large integers alone": (
        torch.tensor([2**60]),
        Reduction("sum", torch.add, 1),
        "the identity that changes nothing",
    ),
    "one that is wrong beyond the first elements": (
        torch.cat([torch.zeros(8), torch.ones(8)]),
        Reduction("product", torch.mul, 0),
        "the identity that changes nothing",
    ),
    "an identity that the dtype has not": (
        torch.tensor([1, 2]),
        Reduction("mine", torch.maximum, float("-inf")),
        "torch.int64 cannot be reduced by mine on cpu",
    ),
    "another shape": (torch.ones(2), Reduction("both", lambda a, b: torch.cat([a, b]), 0), "into (4,), torch.float32"),
    "a single number": (torch.ones(2), Reduction("dot", torch.dot, 0), "into (), torch.float32: a reduction must"),
    "another dtype": (torch.ones(2), Reduction("wide", lambda a, b: (a + b).double(), 0), "into (2,), torch.float64"),
    "no tensor": (torch.ones(2), Reduction("count", counts, 0), "into int: a reduction must return a"),
    "nothing to call": (torch.ones(2), Reduction("nothing", None, 0), "torch.float32 cannot be reduced by nothing"),
    "one that writes to what it is given": (
        torch.ones(2),
        Reduction("in place", adds_in_place, 0),
        "in place changes the tensors that it is given: a reduction must return a new one",
    ),
    "a sum of bools": (torch.ones(2).bool(), "sum", "torch.bool cannot be summed: run with reduce='or'"),
    "or of floats": (torch.ones(2), "or", "torch.float32 cannot be reduced by or on cpu"),
    "a maximum that torch lacks": (torch.ones(2).to(torch.uint32), "max", "torch.uint32 cannot be reduced by max"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_reduction_is_refused_before_any_change(case):
    like, reduce, sentence = REFUSED[case]
    tensors = {"a": like.clone(), "b": like.clone()}
    with pytest.raises(TensorError) as error:
        run(PAIR, tensors, reduce=reduce)
    assert sentence in str(error.value)
    assert all(bits(tensor) == bits(like) for tensor in tensors.values())


def test_an_empty_buffer_is_refused_as_a_full_one_is():
    with pytest.raises(TensorError, match="the identity that changes nothing"):
        run(PAIR, {"a": torch.empty(0), "b": torch.empty(0)}, reduce=Reduction("sum", torch.add, 1))


def test_updates_want_the_sum():
    plan = aggregate_at(["a", "b"], "a", update=("sgd", {"lr": 0.1}))
    with pytest.raises(TensorError, match="the plan has updates, which need the sum of the gradients, not their max"):
        run(plan, {"a": torch.ones(2), "b": torch.ones(2)}, weights={"a": torch.ones(2)}, reduce="max")


@pytest.mark.parametrize("name", NAMED)
def test_every_identity_changes_nothing_at_the_borders_of_its_dtype(name):
    for dtype in INTEGERS if name == "or" else FLOATS + INTEGERS:
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        require_usable(reduction(name), torch.tensor([limits.min, 0, 1, limits.max], dtype=dtype))
