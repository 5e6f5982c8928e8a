"""Plans: the legal ones, their meaning, and the sentence that refuses each broken one."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.plans import anything, damaged, legal_plans
from hypothesis import given
from hypothesis import strategies as st

from d2lps import (
    Plan,
    PlanError,
    Send,
    Update,
    aggregate_at,
    all_gather,
    bidirectional_ring,
    check,
    cost,
    double_tree,
    halving_doubling,
    hierarchical,
    naive_ring,
    pcie_server,
    rail_wise,
    reduce_scatter,
    sharded,
    together,
    tree,
)
from d2lps import ring as built_ring
from d2lps.algorithms import collectives
from d2lps.messages import sentences, speak
from d2lps.plan.acts import updates
from d2lps.plan.checking import Holding, replay
from d2lps.plan.share import Share, slices

SGD = ("sgd", {"lr": 0.1})
GOLDEN = Path(__file__).parents[1] / "algorithms" / "golden"


def plan(*steps, nodes=("a", "b"), share=None, **more) -> Plan:
    return Plan(nodes, {"g": 1} if share is None else share, steps, **more)


def to_a(op="add"):
    return Send("b", "a", "g", op)


def to_b(op="copy"):
    return Send("a", "b", "g", op)


def step(node="a", **numbers):
    return Update(node, "g", "sgd", tuple((numbers or {"lr": 0.1}).items()))


# ---------------------------------------------------------------- broken plans


class Broken(NamedTuple):
    reason: str
    step: int | None
    build: Callable
    values: str


# reason, step, what builds it, and the values in its sentence
BROKEN = [
    Broken("names-wanted", None, lambda: plan(nodes="gpu0"), "'gpu0'"),
    Broken("names-wanted", None, lambda: sharded(4), "4"),
    Broken("no-nodes", None, lambda: aggregate_at([], "cpu"), ""),
    Broken("no-nodes", None, lambda: sharded([]), ""),
    Broken("bad-name", None, lambda: plan(nodes=["gpu 0", "b"]), "'gpu 0'"),
    Broken("bad-name", None, lambda: aggregate_at(["gpu0", 1], "gpu0"), "1"),
    Broken("bad-name", None, lambda: aggregate_at(["gpu0", "gpu1"], None), "None"),
    Broken("duplicate-name", None, lambda: sharded(["gpu0", "gpu1", "gpu0"]), "gpu0"),
    Broken("duplicate-name", None, lambda: sharded(["gpu0"], servers=["cpu", "cpu"]), "cpu"),
    Broken("bad-key", None, lambda: plan(share={"": 1}), "''"),
    Broken("share-wanted", None, lambda: plan(share=["g1", "g2"]), "['g1', 'g2']"),
    Broken("inexact-share", None, lambda: plan(share={"g1": 0.1, "g2": 0.9}), "g1 | 0.1 | 1/10"),
    Broken("bad-share", None, lambda: plan(share={"g": "-1/4"}), "g | '-1/4'"),
    Broken("bad-share", None, lambda: plan(share={"g": "half"}), "g | 'half'"),
    Broken("bad-share", None, lambda: plan(share={"g": "1/0"}), "g | '1/0'"),
    Broken("share-sum", None, lambda: plan(share={"g1": "1/2", "g2": "1/3"}), "5/6"),
    Broken("share-sum", None, lambda: plan(share={}), "0"),
    Broken("bad-chunks", None, lambda: aggregate_at(["gpu0", "gpu1"], "gpu0", chunks=0), "0"),
    Broken("bad-chunks", None, lambda: sharded(["gpu0", "gpu1"], chunks=-1), "-1"),
    Broken("unknown-node", 2, lambda: plan([to_a()], [Send("a", "c", "g", "copy")]), "step 2 | c | a b"),
    Broken("unknown-node", 1, lambda: plan([step("c")]), "step 1 | c | a b"),
    Broken("unknown-node", None, lambda: plan(holds=["c"]), "holds | c | a b"),
    Broken("unknown-node", None, lambda: plan(wants=[("c", "g")]), "wants | c | a b"),
    Broken("unknown-key", 1, lambda: plan([Send("b", "a", "h")]), "step 1 | h | g"),
    Broken("unknown-key", None, lambda: plan(holds=[("a", "h")]), "holds | h | g"),
    Broken("unknown-key", None, lambda: sharded(["a", "b"]).order("h"), "order | h | g1 g2"),
    Broken("unknown-state", None, lambda: plan([to_a()], [to_b()], wants=[("a", "g", "new")]), "a | g | 'new'"),
    Broken("unknown-op", 1, lambda: plan([to_a("mean")]), "b | a | g | 'mean'"),
    Broken("unknown-rule", 1, lambda: plan([to_a(), Update("a", "g", "lion")]), "a | g | 'lion' | sgd adagrad adam"),
    Broken("bad-numbers", 1, lambda: plan([to_a(), step(lr="fast")]), "a | sgd | lr | lr momentum weight_decay"),
    Broken("bad-numbers", 1, lambda: plan([to_a(), step(momentum=0.9)]), "a | sgd | lr | lr momentum weight_decay"),
    Broken(
        "bad-numbers",
        1,
        lambda: plan([to_a(), step(lr=0.1, nesterov=1)]),
        "a | sgd | nesterov | lr momentum weight_decay",
    ),
    Broken("bad-numbers", 1, lambda: plan([to_a(), step(lr=float("nan"))]), "a | sgd | lr | lr momentum weight_decay"),
    Broken("unfit-number", 1, lambda: plan([to_a(), step(lr=0.1, momentum=-1)]), "0 or more | a | sgd | momentum | -1"),
    Broken("not-an-act", 2, lambda: plan([to_a()], ["broadcast"]), "'broadcast'"),
    Broken(
        "steps-wanted", None, lambda: Plan(["a", "b"], {"g": 1}, [to_a()]), "Send(src='b', dst='a', key='g', op='add')"
    ),
    Broken(
        "steps-wanted", None, lambda: Plan(["a", "b"], {"g": 1}, to_a()), "Send(src='b', dst='a', key='g', op='add')"
    ),
    Broken("steps-wanted", None, lambda: Plan(["a", "b"], {"g": 1}, None), "None"),
    Broken("plan-wanted", None, lambda: check(None), "check | None"),
    Broken("plan-wanted", None, lambda: together(sharded(["a"]), ["a"]), "together | ['a']"),
    Broken("plan-wanted", None, lambda: cost.shared(None, pcie_server(), 1), "cost | None"),
    Broken("no-plans", None, lambda: together(), ""),
    Broken("key-clash", None, lambda: together(sharded(["a", "b"]), sharded(["b", "a"])), "g1"),
    Broken("shares-of-plans", None, lambda: together(sharded(["a", "b"]), shares=["1/2", "1/2"]), "['1/2', '1/2'] | 1"),
    Broken("inexact-share", None, lambda: together(sharded(["a"]), shares=[1.0]), "plans[0] | 1.0 | 1"),
    Broken("power-of-two", None, lambda: halving_doubling(["a", "b", "c"]), "halving_doubling | 3"),
    Broken("inside-wanted", None, lambda: hierarchical(["a"], built_ring(["a", "b"])), "['a']"),
    Broken("leader-without", None, lambda: hierarchical({"a": ["a"], "b": ["b"]}, built_ring(["a", "c"])), "b"),
    Broken("no-leader", None, lambda: hierarchical({"a": ["a"]}, built_ring(["a", "c"])), "c"),
    Broken("sizes", None, lambda: collectives.all_to_all(["a", "b"], sizes=[[1, 2], [3]]), "2"),
    Broken("unequal-hosts", None, lambda: rail_wise([["a", "b"], ["c"]]), "2 1"),
    Broken("pairs-wanted", None, lambda: plan(holds="gpu0"), "holds | 'gpu0'"),
    Broken("pairs-wanted", None, lambda: plan(wants=[("a", "g", "sum", "g")]), "wants | ('a', 'g', 'sum', 'g')"),
    Broken("bad-update", None, lambda: aggregate_at(["a", "b"], "a", update="sgd"), "'sgd'"),
    Broken("unwanted", None, lambda: plan([to_a()], wants=[]).order("g"), "g"),
    Broken("not-a-plan", None, lambda: Plan.from_json("{}"), "KeyError: 'd2lps'"),
    Broken("not-a-plan", None, lambda: Plan.from_json('{"d2lps": "trace"}'), "ValueError: d2lps = 'trace'"),
    Broken("to-itself", 1, lambda: plan([Send("a", "a", "g")]), "a | g"),
    Broken("not-held", 1, lambda: plan([to_b("add")], holds=["b"]), "a | b | g"),
    Broken("counted-twice", 2, lambda: plan([to_a()], [to_a()]), "a | b | g | b"),
    Broken("counted-twice", 1, lambda: plan([to_a(), to_a()]), "a | b | g | b"),
    Broken("counted-twice", 2, lambda: plan([to_a()], [to_b("add")]), "b | a | g | b"),
    Broken("overwritten", 1, lambda: plan([to_a(), to_a("copy")]), "a | g"),
    Broken("overwritten", 1, lambda: plan([to_a("copy"), to_a("copy")]), "a | g"),
    Broken(
        "overwritten",
        1,
        lambda: plan([Send("b", "a", "g", "copy"), Send("c", "a", "g", "add")], nodes=["a", "b", "c"]),
        "a | g",
    ),
    Broken("add-updated", 2, lambda: plan([to_a(), step()], [to_a()]), "a | b | g"),
    Broken("add-updated", 2, lambda: plan([to_a(), step()], [to_b("add")]), "b | a | g"),
    Broken("update-too-early", 1, lambda: plan([step()]), "a | g | b"),
    Broken(
        "update-too-early", 1, lambda: plan([step("c"), to_a()], nodes=["a", "b", "c"], holds=["a", "b"]), "c | g | a b"
    ),
    Broken("nothing-to-update", 1, lambda: Plan(["a"], {"g": 1}, [[step()]], holds=[], wants=["a"]), "a | g"),
    Broken("updated-twice", 1, lambda: plan([to_a(), step(), step()]), "a | g"),
    Broken("updated-twice", 2, lambda: plan([to_a(), step()], [step()]), "a | g"),
    Broken("nothing-arrived", None, lambda: plan([], holds=["a"]), "1 | b | g"),
    Broken("incomplete", None, lambda: plan([to_a()]), "1 | b | g | a"),
    Broken("incomplete", None, lambda: plan([to_b("copy")]), "1 | a | g | b"),
    Broken("not-updated", None, lambda: plan([to_a()], [to_b()], wants=[("b", "g", "updated")]), "2 | b | g"),
    Broken("updated-unwanted", None, lambda: plan([to_a(), step()], [to_b()], wants=[("b", "g", "sum")]), "2 | b | g"),
]

WORDS = {"nodes", "shares", "step"}  # of the step table; every other key under [plan] is a refusal
OF_PICTURES = {"wires"}  # refusals of what shows a plan: tests/notebook/test_hand.py


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.reason)
def test_a_broken_plan_is_refused_by_what_is_wrong_and_where(broken):
    with pytest.raises(PlanError) as caught:
        broken.build()
    error = caught.value
    assert (error.reason, error.step) == (broken.reason, broken.step)
    assert " | ".join(map(str, error.values.values())) == broken.values


def test_every_refusal_in_the_messages_is_provoked_above():
    known = {key.removeprefix("plan.") for key in sentences("en") if key.startswith("plan.")}
    assert {broken.reason for broken in BROKEN} == known - WORDS - OF_PICTURES


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.reason)
def test_a_refusal_carries_the_whole_broken_plan_or_none(broken):
    """A learner's attempt can be played up to the step that breaks it."""
    with pytest.raises(PlanError) as caught:
        broken.build()
    error = caught.value
    if error.plan is None:
        return
    hash(error.plan), str(error.plan), repr(error.plan)
    if error.reason in ("unknown-node", "unknown-key", "unwanted"):  # a question to a sound plan
        check(error.plan)
        return
    with pytest.raises(PlanError) as again:
        check(error.plan)
    assert (again.value.reason, again.value.step) == (error.reason, error.step)


def test_a_broken_plan_plays_up_to_the_step_that_breaks_it():
    with pytest.raises(PlanError) as caught:
        plan([to_a()], [to_b()], [to_a()])
    played = []
    with pytest.raises(PlanError):
        for number, _ in replay(caught.value.plan):
            played.append(number)
    assert caught.value.step == 3 and played == [0, 1, 2]


def test_a_refusal_survives_the_way_to_another_process():
    with pytest.raises(PlanError) as caught:
        plan([to_a()], [to_a()])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (PlanError, str(caught.value))
    assert (again.reason, again.step, again.plan) == ("counted-twice", 2, caught.value.plan)


TRANSLATED = {
    "en": "step 2: a adds key g from b, and so counts b twice",
    "vi": "bước 2: a cộng khóa g nhận từ b, nên tính b hai lần",
    "zh": "第 2 步：a 加上来自 b 的键 g，于是 b 被计入两次",
}


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_refusal_speaks_the_readers_language(language):
    speak(language)
    with pytest.raises(PlanError) as caught:
        plan([to_a()], [to_a()])
    assert str(caught.value) == TRANSLATED[language]


@pytest.mark.parametrize("language", ["en", "vi", "zh"])
@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.reason)
def test_each_refusal_exists_in_each_language(broken, language):
    speak(language)
    with pytest.raises(PlanError) as caught:
        broken.build()
    assert caught.value.reason == broken.reason
    assert all(str(value) in str(caught.value) for value in caught.value.values.values())


@pytest.mark.parametrize("chunks", [0, -1, 1.5, 2.0, True, "2", [1]])
@pytest.mark.parametrize(
    "algorithm",
    [
        lambda c: aggregate_at(["a", "b"], "a", chunks=c),
        lambda c: sharded(["a", "b"], chunks=c),
        lambda c: double_tree(["a", "b"], chunks=c),
    ],
)
def test_a_number_of_chunks_is_a_whole_number_of_1_or_more(algorithm, chunks):
    with pytest.raises(PlanError) as caught:
        algorithm(chunks)
    assert caught.value.reason == "bad-chunks" and repr(chunks) in str(caught.value)


NONSENSE = [
    lambda: plan(holds=5),
    lambda: plan(holds=[("a", "g", "sum")]),
    lambda: plan(holds=[5]),
    lambda: plan(wants=[()]),
    lambda: plan(wants=[("a", ["g"])]),
    lambda: plan(5),
    lambda: Plan(["a"], {"g": 1}, 5),
    lambda: plan([Update("a", "g", "sgd", 5)]),
    lambda: plan([Update("a", "g", "sgd", ("lr", 0.1))]),
    lambda: plan([Update("a", "g", "sgd", (("lr", 10**400),))]),
    lambda: plan([Update("a", "g", ["sgd"])]),
    lambda: plan([Send("a", "b", ["g"])]),
    lambda: plan([Send(["a"], "b", "g")]),
    lambda: plan(share={"g": float("nan")}),
    lambda: plan(share={"g": float("inf")}),
    lambda: plan(share={"g": None}),
    lambda: plan(share={("g",): 1}),
    lambda: aggregate_at(["a", "b\x00"], "a"),
    lambda: aggregate_at(["a", "b\ud800"], "a"),
    lambda: aggregate_at(["a", "b"], "a", update=("sgd", 0.1)),
    lambda: aggregate_at(["a", "b"], "a", update=("adam", {})),
    lambda: aggregate_at(["a", "b"], ["a"]),
    lambda: aggregate_at(["a", "b"], "a", chunks=None),
    lambda: sharded(["a", "b"], chunks=None),
    lambda: sharded(["a", "b"], servers="ab"),
    lambda: sharded(["a", "b"], servers=[]),
    lambda: sharded(["a", "b"], servers={}),
    lambda: sharded(["a", "b"], servers={"a": 0.5, "b": 0.5}),
    lambda: sharded(["a", "b"], servers={"a": "1/2"}),
]


@pytest.mark.parametrize("build", NONSENSE)
def test_nonsense_is_refused_with_a_plan_error_and_no_other(build):
    with pytest.raises(PlanError):
        build()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("part", ["1e99999999", "-1e99999999", "1e-99999999"])
def test_a_share_of_a_hundred_million_digits_is_refused_and_not_worked_out(part):
    with pytest.raises(PlanError) as caught:
        plan(share={"g": part})
    assert caught.value.reason == "bad-share"
    damage = plan([to_a()], [to_b()]).to_json().replace('{"g": "1"}', json.dumps({"g": part}))
    with pytest.raises(PlanError):
        Plan.from_json(damage)


def test_the_first_unknown_node_of_a_send_is_named_whatever_the_hash_seed():
    with pytest.raises(PlanError, match="names node x,"):
        plan([Send("x", "y", "g")])
    with pytest.raises(PlanError, match="names node y,"):
        plan([Send("y", "x", "g")])


def test_a_plan_is_only_checked_by_itself_up_to_64_nodes():
    nodes = [f"gpu{i}" for i in range(65)]
    with pytest.raises(PlanError, match="key g of gpu0 is not the whole sum"):
        Plan(nodes[:64], {"g": 1}, [])
    unfinished = Plan(nodes, {"g": 1}, [])
    with pytest.raises(PlanError, match="key g of gpu0 is not the whole sum"):
        check(unfinished)


WRONG_THIRD_STEP = {
    "step 3: gpu9 adds key g8 from gpu8": lambda sent, before: [*sent[:8], before[8], *sent[9:]],
    "after 128 steps: key g7 of gpu0 is not the whole sum: gpu6 gpu7 gpu8 missing": lambda sent, before: [
        *sent[:8],
        *sent[9:],
    ],
    "step 3: gpu4 sends key g3": lambda sent, before: [*sent[:4], sent[4]._replace(dst="gpu4"), *sent[5:]],
}


@pytest.mark.parametrize("sentence", WRONG_THIRD_STEP)
def test_a_wrong_step_of_a_lazy_plan_is_refused_by_its_step_node_and_key(sentence):
    right = built_ring([f"gpu{i}" for i in range(65)])

    def step(t: int) -> list:
        return WRONG_THIRD_STEP[sentence](right.steps[2], right.steps[1]) if t == 2 else [*right.steps[t]]

    with pytest.raises(PlanError, match=sentence):
        check(Plan(right.nodes, right.share, replace(right.steps, step=step, call=None)))
    check(right)


# ---------------------------------------------------------------- what a plan means


def whose(broken_or_not: Plan) -> dict:
    """(node, key) → the names of the nodes whose gradients it contains at the end."""
    *_, (_, have) = replay(broken_or_not)
    return {
        place: "".join(n for i, n in enumerate(broken_or_not.nodes) if part.who >> i & 1)
        for place, part in have.items()
    }


def test_all_sends_of_a_step_read_before_any_of_them_writes():
    swap = plan([to_a("copy"), to_b("copy")], wants=[])
    assert whose(swap) == {("a", "g"): "b", ("b", "g"): "a"}
    exchange = plan([to_a("add"), to_b("add")])
    assert whose(exchange) == {("a", "g"): "ab", ("b", "g"): "ab"}
    rotation = plan(
        [Send("a", "b", "g", "copy"), Send("b", "c", "g", "copy"), Send("c", "a", "g", "copy")],
        nodes=["a", "b", "c"],
        wants=[],
    )
    assert whose(rotation) == {("a", "g"): "c", ("b", "g"): "a", ("c", "g"): "b"}


def test_add_into_empty_begins_with_the_arriving_value():
    server = plan([Send("a", "s", "g"), Send("b", "s", "g")], nodes=["a", "b", "s"], holds=["a", "b"], wants=["s"])
    assert whose(server)["s", "g"] == "ab"
    assert server.order("g") == ("a", "b")


def test_own_value_comes_first_then_arrivals_as_written():
    nodes = ["a", "b", "c"]
    forth = plan([Send("a", "c", "g"), Send("b", "c", "g")], nodes=nodes, wants=["c"])
    back = plan([Send("b", "c", "g"), Send("a", "c", "g")], nodes=nodes, wants=["c"])
    assert forth.order("g") == (("c", "a"), "b")
    assert back.order("g") == (("c", "b"), "a")
    assert forth != back


def test_copy_carries_the_state_and_replaces():
    served = plan([to_a(), step()], [to_b()])
    *_, (_, have) = replay(served)
    assert have["b", "g"] == Holding(0b11, updated=True)
    lost = plan([to_b("copy")], [to_a("copy")], wants=[])
    assert whose(lost) == {("a", "g"): "a", ("b", "g"): "a"}


def test_an_update_acts_after_all_writes_of_its_step_wherever_it_is_written():
    before, after = plan([step(), to_a()], [to_b()]), plan([to_a(), step()], [to_b()])
    assert [h for _, h in replay(before)] == [h for _, h in replay(after)]


def test_an_updated_key_is_sent_only_from_the_next_step_on():
    with pytest.raises(PlanError, match="at the end, after 1 steps: key g of b is not the whole sum: b missing"):
        plan([to_a(), step(), to_b("copy")])


def test_two_nodes_may_update_the_same_key_each_for_itself():
    both = plan([to_a("add"), to_b("add"), step("a"), step("b")])
    assert both.wants == (("a", "g", "updated"), ("b", "g", "updated"))


def test_replay_begins_with_the_holdings():
    numbers, states = zip(*replay(plan([to_a()], [to_b()])), strict=True)
    assert numbers == (0, 1, 2)
    assert states[0] == {("a", "g"): Holding(0b01), ("b", "g"): Holding(0b10)}
    assert states[1] == {("a", "g"): Holding(0b11), ("b", "g"): Holding(0b10)}
    assert states[2] == {("a", "g"): Holding(0b11), ("b", "g"): Holding(0b11)}


HALVES = {"g1": "1/2", "g2": "1/2"}
ALL = (("a", "g1"), ("a", "g2"), ("b", "g1"), ("b", "g2"))


@pytest.mark.parametrize(
    "written, meant",
    [
        (None, ALL),
        (["a", "b"], ALL),
        (["b", "a"], ALL),
        ([("a",), "b"], ALL),
        (["a"], ALL[:2]),
        ([("b", "g2"), ("a", "g1")], (ALL[0], ALL[3])),
        ([("a", "g1"), ("a", "g1"), "a"], ALL[:2]),
        ([], ()),
    ],
)
def test_holds_and_wants_are_pairs_in_the_plans_order(written, meant):
    held = Plan(["a", "b"], HALVES, [], holds=written, wants=[])
    assert held.holds == meant
    one = Plan(["a"], HALVES, [], wants=[w for w in written or [] if w == "a"])
    assert [state for *_, state in one.wants] == ["sum"] * len(one.wants)


def test_wants_left_out_means_everyone_wants_everything():
    assert sharded(["a", "b"]).wants == tuple((*pair, "sum") for pair in ALL)


def test_what_is_updated_is_wanted_updated_unless_it_says_otherwise():
    nodes, updated = ["a", "b"], Update("a", "g1", "sgd", (("lr", 0.1),))
    gather = [Send("b", "a", "g1"), Send("b", "a", "g2"), updated]
    mixed = Plan(nodes, HALVES, [gather], wants=["a"])
    assert mixed.wants == (("a", "g1", "updated"), ("a", "g2", "sum"))
    spread = [Send("a", "b", "g1", "copy"), Send("a", "b", "g2", "copy")]
    late = [Send("b", "a", "g1"), Send("b", "a", "g2")], spread, [updated]
    stated = Plan(nodes, HALVES, late, wants=["a", ("b", "g1", "sum"), ("b", "g2")])
    assert stated.wants == (("a", "g1", "updated"), ("a", "g2", "sum"), ("b", "g1", "sum"), ("b", "g2", "sum"))


def test_a_state_that_was_given_stays_when_the_node_is_named_again():
    steps = [to_a()], [to_b(), step()]
    for wants in ([("b", "g", "sum"), "b"], ["b", ("b", "g", "sum")], [("b", "g", "sum"), ("b", "g")]):
        assert plan(*steps, wants=wants).wants == (("b", "g", "sum"),)


def test_numbers_of_an_update_are_floats_in_the_order_of_their_names():
    one = plan([to_a(), Update("a", "g", "sgd", (("momentum", 1), ("lr", Fraction(1, 2))))], [to_b()])
    two = plan([to_a(), Update("a", "g", "sgd", (("lr", 0.5), ("momentum", 1.0)))], [to_b()])
    assert one == two
    assert updates(one.steps[0])[0].numbers == (("lr", 0.5), ("momentum", 1.0))


# ---------------------------------------------------------------- plain data


def test_plans_are_equal_by_content():
    one, two = sharded(["a", "b"]), sharded(("a", "b"))
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    assert one != sharded(["b", "a"])
    assert one != aggregate_at(["a", "b"], "a")
    assert one != str(one)


def test_the_order_of_the_keys_is_content_because_it_says_where_they_lie():
    one = Plan(["a"], {"g1": "1/3", "g2": "2/3"}, [])
    two = Plan(["a"], {"g2": "2/3", "g1": "1/3"}, [])
    assert one != two and one.share != two.share
    assert one == Plan(["a"], {"g1": Fraction(1, 3), "g2": "4/6"}, [])


@pytest.mark.parametrize("field", ["nodes", "share", "steps", "holds", "wants", "new"])
def test_a_plan_cannot_be_changed(field):
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(sharded(["a", "b"]), field, ())


def test_a_share_cannot_be_changed():
    share = sharded(["a", "b"]).share
    with pytest.raises(TypeError):
        share["g1"] = Fraction(1)
    assert hash(share) == hash(Share(dict(share)))


def test_a_plan_does_not_follow_the_lists_it_was_made_from():
    nodes, share, steps = ["a", "b"], {"g": 1}, [[to_a()], [to_b()]]
    made = Plan(nodes, share, steps)
    nodes.append("c"), share.update(h=1), steps.clear()
    assert made == plan([to_a()], [to_b()])


def test_iterators_may_be_given_wherever_a_sequence_may():
    made = Plan(iter(["a", "b"]), {"g": 1}, (iter([act]) for act in (to_a(), to_b())), iter(["a", "b"]), iter("ab"))
    assert made == plan([to_a()], [to_b()])


def test_keys_lie_in_the_buffer_where_the_exact_fractions_say():
    thirds = {"a": Fraction(1, 3), "b": Fraction(2, 3)}
    assert slices(thirds, 10) == {"a": slice(0, 3), "b": slice(3, 10)}
    assert slices(thirds, 11) == {"a": slice(0, 3), "b": slice(3, 11)}
    assert slices(thirds, 0) == {"a": slice(0, 0), "b": slice(0, 0)}
    assert slices({"a": Fraction(0), "b": Fraction(1)}, 4) == {"a": slice(0, 0), "b": slice(0, 4)}


@pytest.mark.parametrize("n", [6, 7, 10, 13])
def test_no_element_is_lost_where_floats_would_lose_one(n):
    count = 10 * n
    assert int(count * reduce(add, [1 / n] * n)) == count - 1  # the trap; sum() is more exact since Python 3.12
    cut = sharded([f"gpu{i}" for i in range(n)]).slices(count)
    assert [s.stop - s.start for s in cut.values()] == [10] * n


@given(st.lists(st.integers(0, 10), min_size=1, max_size=8).filter(any), st.integers(0, 10**18))
def test_slices_cover_the_buffer_without_gap_or_overlap(weights, count):
    share = {f"g{i}": Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    cut = list(slices(share, count).values())
    assert [s.start for s in cut] == [0, *(s.stop for s in cut[:-1])]
    assert cut[-1].stop == count
    assert all(abs((s.stop - s.start) - part * count) < 1 for s, part in zip(cut, share.values(), strict=True))


# ---------------------------------------------------------------- any legal plan


@given(legal_plans())
def test_json_gives_an_equal_plan_back(any_plan):
    text = any_plan.to_json()
    again = Plan.from_json(text)
    assert again == any_plan and hash(again) == hash(any_plan)
    assert again.to_json() == text and str(again) == str(any_plan)


@given(legal_plans())
def test_order_counts_every_holder_exactly_once(any_plan):
    for key in {key for _, key, _ in any_plan.wants}:
        assert sorted(leaves(any_plan.order(key))) == [node for node, k in any_plan.holds if k == key]


def leaves(tree):
    return [tree] if isinstance(tree, str) else leaves(tree[0]) + leaves(tree[1])


# ---------------------------------------------------------------- JSON that is not a plan


@given(anything)
def test_any_json_that_is_not_a_plan_is_refused_with_a_plan_error(data):
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(data))
    assert caught.value.reason == "not-a-plan"


@pytest.mark.parametrize("source", ["", "plan", "[" * 100_000, "{", b"\xff", None, 7, "[]", "null"])
def test_what_is_not_even_json_is_refused_with_a_plan_error(source):
    with pytest.raises(PlanError) as caught:
        Plan.from_json(source)
    assert caught.value.reason == "not-a-plan"


@given(damaged(aggregate_at(["a", "b", "c"], "s", chunks=2, update=SGD).to_json()))
def test_a_damaged_plan_is_refused_with_a_plan_error_or_is_a_sound_plan(source):
    try:
        read = Plan.from_json(source)
    except PlanError:
        return
    check(read)
    assert Plan.from_json(read.to_json()) == read


# ---------------------------------------------------------------- step tables, byte for byte


def gpus(n):
    return [f"gpu{i}" for i in range(n)]


TABLES = {
    "aggregate_at_gpu0": lambda: aggregate_at([f"gpu{i}" for i in range(4)], "gpu0"),
    "aggregate_at_cpu_in_3_chunks": lambda: aggregate_at(["gpu0", "gpu1"], "cpu", chunks=3),
    "aggregate_at_gpu0_in_9_chunks": lambda: aggregate_at(["gpu0", "gpu1"], "gpu0", chunks=9),
    "aggregate_at_cpu_with_sgd": lambda: aggregate_at(["gpu0", "gpu1"], "cpu", update=("sgd", {"lr": 0.1})),
    "sharded_over_4_gpus": lambda: sharded([f"gpu{i}" for i in range(4)]),
    "sharded_over_3_gpus_in_2_chunks": lambda: sharded(["gpu0", "gpu1", "gpu2"], chunks=2),
    "sharded_over_unequal_servers": lambda: sharded(
        ["gpu0", "gpu1", "gpu2"], {"cpu0": "2/3", "cpu1": "1/3"}, update=("sgd", {"lr": 0.1, "momentum": 0.9})
    ),
    "ring_of_3": lambda: built_ring(["device1", "device2", "device3"]),
    "naive_ring_of_4": lambda: naive_ring(gpus(4)),
    "bidirectional_ring_of_4": lambda: bidirectional_ring(gpus(4)),
    "reduce_scatter_of_4": lambda: reduce_scatter(gpus(4)),
    "all_gather_of_4_direct": lambda: all_gather(gpus(4), direct=True),
    "broadcast_to_5": lambda: collectives.broadcast(gpus(5)),
    "reduce_of_3_in_2_chunks": lambda: collectives.reduce(gpus(3), chunks=2),
    "scatter_to_5": lambda: collectives.scatter(gpus(5)),
    "gather_of_6": lambda: collectives.gather(gpus(6)),
    "bruck_of_5": lambda: collectives.bruck(gpus(5)),
    "all_to_all_of_3": lambda: collectives.all_to_all(gpus(3)),
    "all_to_all_of_4_in_few_steps": lambda: collectives.all_to_all(gpus(4), few_steps=True),
    "tree_of_6": lambda: tree(gpus(6)),
    "halving_doubling_of_4": lambda: halving_doubling(gpus(4)),
    "double_tree_of_5_in_3_chunks": lambda: double_tree(gpus(5), chunks=3),
    "ring_and_tree_together": lambda: together(built_ring(gpus(3)), tree(gpus(3), key="h"), shares=["2/3", "1/3"]),
    "swap": lambda: plan([to_a("copy"), to_b("copy")], [], wants=[]),
}


@pytest.mark.parametrize(
    "name, language",
    [
        *((name, "en") for name in TABLES),
        ("sharded_over_unequal_servers", "vi"),
        ("sharded_over_unequal_servers", "zh"),
    ],
)
def test_step_tables_are_printed_byte_for_byte(name, language):
    """Renew the tables with UPDATE_GOLDEN=1, and read the difference before you commit it."""
    path = GOLDEN / f"{name}{'' if language == 'en' else '.' + language}.txt"
    speak(language)
    printed = (str(TABLES[name]()) + "\n").encode()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_bytes(printed)
    assert path.read_bytes() == printed


def test_no_step_table_is_left_over():
    languages = ("en", "vi", "zh")
    names = {path.name.split(".")[0] for path in GOLDEN.glob("*.txt")}
    assert names == set(TABLES)
    assert all(path.name.split(".")[1] in (*languages, "txt") for path in GOLDEN.glob("*.txt"))


def test_a_plan_says_in_one_line_how_large_it_is():
    assert repr(sharded(["a", "b", "c"])) == "<Plan: 3 nodes, 3 keys, 2 steps, 12 sends>"
