"""The same bits: rounds that count workers, sums in the order of the ranks, and optimizers that step as torch's do."""

import gc
import itertools
import threading
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.stores import aside, each
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.kvstore import KVError, Refused, Timeout, WorkerLost, checkpoint
from d2lps.kvstore.optimizers import Optimizer, validate_state
from d2lps.kvstore.server.store import DEFERRED, SlotStore
from d2lps.kvstore.wire.frames import Entry
from d2lps.plan.optimizers import REMEMBERED, RULES


@pytest.fixture(params=["local", "device"])
def alone(request):
    return kvstore.create(request.param)


# ---------------------------------------------------------------- one process


def test_several_values_of_one_key_are_summed(alone):
    keys, four = [3, "seven"], [4.0**i for i in range(4)]
    alone.init(keys, [torch.ones(2, 3), np.zeros((2, 2), np.float32)])
    alone.push(keys, [[torch.full((2, 3), value) for value in four], np.full((2, 2), 3, np.float32)])
    outs = [torch.empty(2, 3) for _ in range(4)]
    alone.pull(keys, out=[outs, array := np.empty((2, 2), np.float32)])
    assert all(out.equal(torch.full((2, 3), 85.0)) for out in outs) and (array == 3).all()


def test_a_device_store_sums_by_a_plan_and_shows_it():
    store = kvstore.create("device")
    store.init("w", torch.zeros(8))
    store.push("w", [torch.ones(8)] * 4)
    assert store.trace().plan.nodes == ("device0", "device1", "device2", "device3")
    assert store.type == "device" and (store.rank, store.num_workers) == (0, 1)


# ---------------------------------------------------------------- many workers, many servers


@pytest.mark.parametrize(
    "workers, servers, replicas, transport",
    [(1, 1, 0, "unix"), (2, 5, 0, "unix"), (3, 2, 0, "tcp"), (4, 3, 0, "unix"), (3, 2, 1, "tcp")],
)
def test_each_worker_gets_the_sum_of_all(workers, servers, replicas, transport):
    sizes = {0: (3,), "big": (1001, 3), "empty": (0,), 7: (), "half": (600,)}
    place = Placement(servers, large=500)

    def work(store):
        keys, four = list(sizes), 4.0 ** (2 * store.rank)
        store.init(keys, [torch.zeros(sizes[key]) for key in keys])
        outs = [torch.empty(sizes[key]) for key in keys]
        for _ in range(3):  # values of two devices are summed before they travel
            store.push(keys, [[torch.full(sizes[key], four), torch.full(sizes[key], 4 * four)] for key in keys])
            store.pull(keys, out=outs)
            assert all((out == (16**workers - 1) / 3).all() for out in outs)
        return True

    options = {"transport": transport, "placement": place, "replicas": replicas}
    with kvstore.cluster("dist_sync", workers, servers, **options) as stores:
        assert each(stores, work) == [True] * workers


# ---------------------------------------------------------------- the state of a server, without sockets


def table(kind="dist_sync", workers=3, elements=4, value=None, **options):
    found = SlotStore(kind, workers, deadline=options.pop("deadline", 0.3), **options)
    first = torch.zeros(elements) if value is None else value
    for rank in range(workers):
        found.init(rank, "w", elements, first.dtype, None if rank else first)
    return found


def push(held, rank, round_, value, part=0):
    if held.admit(rank, value.dtype, [Entry(part, 0, 0, len(value), round_)]) == [False]:
        return False
    held.push(rank, [(part, round_, value)], own=True)
    return True


def pull(held, rank, round_, part=0):
    """Return what is answered at once, or None if the pull has to wait."""
    found = []
    held.pull(rank, [(part, round_)], found.append)
    return found[0][0].value if found else None


def saved(held, key=0):
    """Return the state of a key that a save reads."""
    return checkpoint.decode(*held.state(0, key, held.versions(0)[key], 0))


def ones(rank, elements=4):
    """4^i: the sum shows who was counted, and how often."""
    return torch.full((elements,), 4.0**rank)


def test_a_round_closes_when_every_worker_has_pushed():
    held = table()
    waiting = []
    held.pull(0, [(0, 1)], waiting.append)
    for rank in (2, 0):
        push(held, rank, 1, ones(rank))
    assert not waiting and pull(held, 1, 0).value.tolist() == [0] * 4
    push(held, 1, 1, ones(1))
    (part,) = waiting[0]
    assert part.value.value.tolist() == [21.0] * 4 and (part.version, part.value.counted) == (1, 3)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_sum_is_taken_in_the_order_of_the_ranks(order):
    values = [torch.tensor([1e8, 1.0, -1e8, 0.1]).roll(rank) for rank in range(4)]  # in another order, another sum
    held = table(workers=4)
    for rank in order:
        push(held, rank, 1, values[rank].clone())
    want = ((values[0] + values[1]) + values[2]) + values[3]
    assert pull(held, 0, 1).value.equal(want)


def test_what_was_pulled_stays_as_it_was():
    held = table(workers=1)
    held.set_optimizer(0, Optimizer.read("sgd", {"lr": 1.0, "momentum": 0.5}))
    seen = []
    for round_ in (1, 2, 3):
        push(held, 0, round_, ones(0))
        seen.append(pull(held, 0, round_).value)
    assert [value[0].item() for value in seen] == [-1.0, -2.5, -4.25]


@pytest.mark.parametrize(
    "name, optimizer, numbers",
    [
        ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        ("sgd", torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
        ("adagrad", torch.optim.Adagrad, {"lr": 0.1}),
        ("adagrad", torch.optim.Adagrad, {"lr": 0.1, "weight_decay": 0.1}),
        ("adam", torch.optim.Adam, {"lr": 0.1}),
        ("adam", torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    ],
)
def test_optimizers_are_those_of_torch_bit_for_bit(name, optimizer, numbers):
    torch.manual_seed(0)
    start, gradients = torch.randn(1000), torch.randn(5, 2, 1000)
    parameter = torch.nn.Parameter(start.clone())
    reference = optimizer([parameter], **numbers, foreach=False)
    held = table(workers=2, elements=1000, value=start.clone())
    held.set_optimizer(0, Optimizer.read(name, numbers))
    for round_, (a, b) in enumerate(gradients, 1):
        push(held, 1, round_, b.clone())
        push(held, 0, round_, a.clone())
        parameter.grad = a + b
        reference.step()
    assert pull(held, 0, 5).value.equal(parameter.data)


def test_a_mean_divides_by_the_number_of_summed_workers():
    held = table(workers=3, lost="drop")
    held.set_optimizer(0, Optimizer.read("sgd", {"lr": 1.0, "rescale_grad": "mean"}))
    push(held, 0, 1, ones(1))
    held.lose(1, "killed")
    push(held, 2, 1, ones(1))
    found = pull(held, 0, 1)
    assert found.value.tolist() == [-4.0] * 4 and found.counted == 2


MOMENTUM = Optimizer.read("sgd", {"lr": 1.0, "momentum": 0.5})


@pytest.mark.parametrize(
    "between, want",
    [
        ([], -2.5),
        ([("sgd", {"lr": 1.0, "momentum": 0.25})], -2.25),  # the same rule with other numbers goes on
        ([("adagrad", {"lr": 1.0}), ("sgd", {"lr": 1.0, "momentum": 0.5})], -2.5),  # which has never stepped
    ],
)
def test_the_same_rule_keeps_its_state(between, want):
    held = table(workers=1)
    held.set_optimizer(0, MOMENTUM)
    push(held, 0, 1, torch.ones(4))
    for rule, numbers in between:
        held.set_optimizer(0, Optimizer.read(rule, numbers))
    push(held, 0, 2, torch.ones(4))
    assert pull(held, 0, 2).value.tolist() == [want] * 4


def test_another_rule_begins_anew_and_so_does_the_first_one_after_it():
    held = table(workers=1)
    for round_, rule in enumerate(("sgd", "adagrad", "sgd"), 1):
        held.set_optimizer(0, MOMENTUM if rule == "sgd" else Optimizer.read(rule, {"lr": 1.0}))
        assert [*saved(held)] == ["value"]  # nothing of another rule's is saved
        push(held, 0, round_, torch.ones(4))
        assert set(saved(held)) == {"value", *REMEMBERED[rule]}
    assert pull(held, 0, 3).value.tolist() == [-3.0] * 4


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_a_fast_worker_waits_for_the_clocks_that_it_must_see(staleness):
    held = table("dist_ssp", workers=2, staleness=staleness)
    held.set_optimizer(0, Optimizer.read("sgd", {"lr": -1.0}))
    for clock in range(1, staleness + 1):
        push(held, 0, clock, ones(0))
        assert pull(held, 0, clock) is not None  # a worker in clock c sees all up to c − s − 1
    push(held, 0, staleness + 1, ones(0))
    waiting = []
    held.pull(0, [(0, staleness + 1)], waiting.append)
    assert not waiting and pull(held, 1, 0) is not None
    push(held, 1, 1, ones(1))
    assert waiting[0][0].value.value[0] == staleness + 1 + 4


# ---------------------------------------------------------------- lost workers, failed updates, loads


def test_a_lost_worker_fails_each_wait_and_each_later_call():
    held = table()
    waiting = []
    held.pull(0, [(0, 1)], waiting.append)
    held.lose(1, "killed")
    for call in (lambda: push(held, 0, 1, ones(0)), lambda: pull(held, 2, 0), lambda: held.barrier(0, 1)):
        with pytest.raises(WorkerLost, match=r"^worker 1 is lost \(killed\)$") as caught:
            call()
        assert caught.value.ranks == (1,)
    assert isinstance(waiting[0], WorkerLost)


@pytest.mark.parametrize("pushed", [False, True])
def test_a_dropped_worker_counts_if_it_had_pushed(pushed):
    held = table(lost="drop")
    if pushed:
        push(held, 1, 1, ones(1))
    push(held, 0, 1, ones(0))
    held.lose(1, "killed")
    push(held, 2, 1, ones(2))
    assert pull(held, 0, 1).value[0] == (21.0 if pushed else 17.0)
    with pytest.raises(WorkerLost, match="worker 1 counts as lost here, and the others went on without it"):
        push(held, 1, 2, ones(1))
    for rank in (2, 0):
        push(held, rank, 2, ones(rank))
    assert pull(held, 0, 2).value[0] == 17.0 and pull(held, 2, 2).counted == 2


def test_a_worker_that_has_said_goodbye_fails_only_later_pushes():
    held = table(workers=2)
    for rank in (0, 1):
        push(held, rank, 1, ones(rank))
    held.lose(1, "it said goodbye", left=True)
    assert pull(held, 0, 1).value[0] == 5.0
    with pytest.raises(WorkerLost, match="worker 1 has left"):
        push(held, 0, 2, ones(0))


def test_a_push_does_not_count_after_a_worker_is_lost():
    held = SlotStore("dist_sync", 2, deadline=0.3)
    for name in "ab":
        held.init(0, name, 4, torch.float32, torch.zeros(4))
    held.push(0, [(0, 1, ones(0))])
    held.lose(1, "killed")
    with pytest.raises(WorkerLost):
        held.push(0, [(1, 1, ones(0)), (0, 2, ones(0))])
    assert [shard.rounds for shard in held.shards] == [[1, 0], [0, 0]]
    assert [shard.version for shard in held.shards] == [0, 0]  # no round closes without the lost one


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_failed_update_reaches_all_workers_until_a_load(kind, monkeypatch):
    def broken(weight, gradient, memory, **numbers):
        memory["velocity"] = gradient.clone()
        raise RuntimeError("no room")

    held, waiting = table(kind, workers=2), []
    held.set_optimizer(0, MOMENTUM)
    with monkeypatch.context() as changed:
        changed.setitem(RULES, "sgd", broken)
        push(held, 0, 1, ones(0))
        if kind == "dist_sync":
            held.pull(0, [(0, 1)], waiting.append)
        push(held, 1, 1, ones(1))
    sentence = "key w could not be updated (RuntimeError: no room): load what was saved of it"
    for rank in (0, 1):
        held.pull(rank, [(0, 1)], waiting.append)
    assert [str(error) for error in waiting] == [sentence] * len(waiting) and type(waiting[0]) is KVError
    with pytest.raises(KVError, match="could not be updated"):
        held.versions(0)
    for rank in (0, 1):  # the workers stay in step
        assert push(held, rank, 2, ones(rank))
    assert held.shards[0].value.tolist() == [0] * 4
    held.stage(0, 1, 0, {"value": torch.full((4,), 7.0)}, MOMENTUM)
    held.commit(0, 1, 1, MOMENTUM)
    for rank in (0, 1):
        assert push(held, rank, 3, ones(rank))
    assert pull(held, 0, 3).value.tolist() == [2.0 if kind == "dist_sync" else 1.5] * 4


def loading(**options):
    """Two keys of which one is staged for load 1."""
    held = SlotStore("dist_sync", 2, deadline=0.3, **options)
    for name in "ab":
        held.init(0, name, 4, torch.float32, torch.zeros(4))
    held.stage(0, 1, 0, {"value": torch.ones(4), "velocity": torch.ones(4)}, MOMENTUM)
    return held


def values(held):
    return [shard.value[0].item() for shard in held.shards]


def test_what_is_loaded_counts_all_at_once_and_once():
    held = loading()
    with pytest.raises(Refused, match="1 parts are here of load 1, where 2 belong"):
        held.commit(0, 1, 2, MOMENTUM)
    assert values(held) == [0, 0] and held.updates is None
    held.stage(0, 1, 1, {"value": torch.full((4,), 2.0)}, MOMENTUM)
    held.commit(0, 1, 2, MOMENTUM)
    assert values(held) == [1, 2] and held.updates == MOMENTUM
    assert ([*saved(held, 0)], [*saved(held, 1)]) == (["value", "velocity"], ["value"])
    held.set_optimizer(0, None)
    held.commit(0, 1, 2, MOMENTUM)  # the answer was lost, and it is asked again
    assert held.updates is None


@pytest.mark.parametrize(
    "end", [lambda held: held.drop(1), lambda held: held.stage(0, 2, 1, {"value": torch.ones(4)}, None)]
)
def test_what_is_staged_is_dropped(end):
    held = loading()
    end(held)
    assert values(held) == [0, 0]
    with pytest.raises(Refused, match="where 1 belong"):
        held.commit(0, 1, 1, MOMENTUM)


def test_nothing_is_loaded_in_the_midst_of_a_round():
    held = loading()
    held.push(0, [(0, 1, ones(0))])
    with pytest.raises(Refused, match="key a is in the midst of a round"):
        held.stage(0, 2, 0, {"value": torch.ones(4)}, None)


def test_late_parts_of_an_abandoned_load_are_refused():
    held = loading()
    held.drop(1)
    with pytest.raises(Refused, match="load 1 is over"):
        held.stage(0, 1, 0, {"value": torch.ones(4)}, None)
    held.stage(0, 2, 0, {"value": torch.ones(4)}, None)
    held.drop(1)  # which comes late, too
    held.commit(0, 2, 1, None)
    assert values(held)[0] == 1.0


def test_lost_worker_reads_no_state():
    held = SlotStore("dist_async", 2, lost="drop")
    held.init(0, "w", 1, torch.float32, torch.zeros(1))
    assert saved(held)["value"] == 0
    held.lose(0, "it is stopped")
    for read in (lambda: held.versions(0), lambda: held.state(0, 0, 0, 0)):
        with pytest.raises(WorkerLost, match="worker 0"):
            read()


# ---------------------------------------------------------------- every wait ends


@pytest.mark.fault("F4", "worker that does not push")
def test_a_pull_that_waits_too_long_names_the_missing_workers(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("d2lps.kvstore.server.store.own_time", lambda: now[0])
    held, waiting = table(), []
    push(held, 1, 1, ones(1))
    held.pull(1, [(0, 1)], waiting.append)
    held.expire()
    assert not waiting
    now[0] += 0.35
    held.expire()
    assert isinstance(waiting[0], Timeout)
    assert str(waiting[0]) == "the pull of key w has waited 0.3 s for push 1 of workers 0, 2"


def test_a_second_push_waits_for_its_round_and_says_whose_is_missing():
    held = table(workers=2)
    push(held, 0, 1, ones(0))
    with pytest.raises(Timeout, match="push 2 to key w waits for round 1 to close: 0.3 s are over, worker 1 missing"):
        push(held, 0, 2, ones(0))
    held.deadline = LIVE
    later = threading.Timer(0.1, lambda: push(held, 1, 1, ones(1)))
    later.start()
    assert push(held, 0, 2, ones(0))
    later.join()


def test_a_barrier_is_known_by_its_name_and_number_and_answers_again():
    held, said = table(workers=2, deadline=5.0), []
    other = threading.Thread(target=lambda: said.append(held.barrier(1, 1, "load", "mine")))
    other.start()
    assert held.barrier(0, 1, "load", "refused: no such file") == "refused: no such file"
    other.join(LIVE)
    assert said == ["refused: no such file"]
    held.deadline = 0.1
    with pytest.raises(Timeout, match="barrier save: 0.1 s are over, worker 1 missing"):
        held.barrier(0, 1, "save")
    for number in range(2, 6):
        held.come(1, number, "load")
        assert held.barrier(0, number, "load") is None
    assert held.barrier(0, 2, "load") is None
    with pytest.raises(Refused, match="barrier 1 is long over: the last one is 5"):
        held.barrier(0, 1, "load")


def test_a_worker_that_has_left_is_at_no_later_barrier():
    held, others = table(deadline=5.0), []
    for rank in (1, 2):
        others.append(aside(held.barrier, rank, 1)[0])
    held.barrier(0, 1)
    for thread in others:
        thread.join(LIVE)
    for rank in (1, 2):
        held.lose(rank, "it said goodbye", left=True)
    held.barrier(0, 1)  # to which all have come
    with pytest.raises(WorkerLost, match="worker [12] has left"):
        held.barrier(0, 2)


# ---------------------------------------------------------------- refusals, numbers and what rules remember


IMPOSSIBLE = [
    (lambda held: push(held, 0, 1, torch.ones(5)), "key w has 4 elements of torch.float32 here, and 5 of"),
    (lambda held: push(held, 0, 1, torch.ones(4).double()), "and 4 of torch.float64 are pushed"),
    (lambda held: push(held, 0, 3, ones(0)), "push 3 of worker 0 to key w comes before push 1"),
    (lambda held: held.pull(0, [(7, 0)], print), "there is no part 7 here: init the key first"),
    (lambda held: held.init(1, "w", 5, torch.float32, None), "all initialise the same"),
    (lambda held: held.shard(0).validate_rows(3, torch.tensor([0])), "4 elements here, which are no rows of 3"),
    (lambda held: held.shard(0).validate_rows(2, torch.tensor([2])), "key w has rows 0 to 1 here"),
]


@pytest.mark.parametrize("call, sentence", IMPOSSIBLE)
def test_an_impossible_call_is_refused_and_changes_nothing(call, sentence):
    held = table()
    with pytest.raises(Refused) as caught:
        call(held)
    assert sentence in str(caught.value)
    for rank in range(3):
        push(held, rank, 1, ones(rank))
    assert pull(held, 0, 1).value[0] == 21


NO_NUMBERS = [10**5000, 10**400, float("inf"), float("-inf"), float("nan"), True, "0.1", None, [0.1], 1j]
NUMBERS = [
    ("rmsprop", {}, "there is no optimizer 'rmsprop': the optimizers are sgd, adagrad, adam"),
    ("sgd", {}, "sgd needs lr"),
    ("sgd", {"lr": 0.1, "nesterov": 1}, "sgd has no number 'nesterov'"),
    ("sgd", {"lr": 2**1000}, ": sgd takes numbers of at most 10²⁰"),
    ("sgd", {"lr": 1, "momentum": -0.1}, "momentum = -0.1: sgd takes 0 or more"),
    ("adam", {"lr": 1, "beta1": 1}, "beta1 = 1: adam takes 0 or more, and less than 1"),
    ("adam", {"lr": 1, "beta1": 1 - Fraction(1, 10**30)}, ": adam takes 0 or more, and less than 1"),
    (
        "adam",
        {"lr": 1, "beta1": np.longdouble(1) - np.finfo(np.longdouble).eps},
        "adam takes 0 or more, and less than 1",
    ),
    ("adam", {"lr": 1, "beta2": 1.5}, "beta2 = 1.5: adam takes 0 or more"),
    ("adagrad", {"lr": 1, "eps": -1}, "eps = -1: adagrad takes 0 or more"),
    ("sgd", [("lr", 1)], "an optimizer must be given as a name and numbers"),
    ("sgd", {"lr": 0.1, "rescale_grad": "sum"}, "rescale_grad = 'sum'"),
    *(("sgd", {"lr": 0.1, name: n}, name) for n in NO_NUMBERS for name in ("lr", "rescale_grad")),
]


@pytest.mark.parametrize("rule, numbers, sentence", NUMBERS)
def test_numbers_that_an_optimizer_does_not_take_are_refused(rule, numbers, sentence):
    with pytest.raises(Refused) as caught:
        Optimizer.read(rule, numbers)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int8])
def test_no_optimizer_steps_whole_numbers(dtype):
    held = table(value=torch.zeros(4, dtype=dtype))
    with pytest.raises(Refused, match=f"key w is of {dtype}, but sgd makes fractional steps"):
        held.set_optimizer(0, MOMENTUM)
    assert held.updates is None
    with pytest.raises(Refused, match="key w is of"):
        held.commit(0, 1, 0, MOMENTUM)
    held = table()
    held.set_optimizer(0, MOMENTUM)
    with pytest.raises(Refused, match="key whole is of"):
        held.init(0, "whole", 3, dtype, torch.zeros(3, dtype=dtype))
    assert len(held.shards) == 1


GREATEST = {"sgd": {"momentum": 1e20, "weight_decay": 1e20}, "adagrad": {"weight_decay": 1e20, "eps": 0.0}}
GREATEST["adam"] = {"beta1": 1 - 2**-53, "beta2": 1 - 2**-53, "eps": 0.0, "weight_decay": 1e20}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_works_for_all_accepted_numbers(rule, dtype):
    """What it then remembers can be loaded."""
    optimizer = Optimizer.read(rule, GREATEST[rule] | {"lr": 1e20, "rescale_grad": 1e20})
    value, memory = torch.ones(3, dtype=dtype), {}
    for _ in range(2):
        optimizer.stepped(value, torch.ones(3, dtype=dtype), memory, 2, torch.empty(3, dtype=dtype))
    assert memory[rule].keys() == REMEMBERED[rule]
    validate_state({"value": value} | memory[rule], optimizer, 3, dtype, "w")


F3 = torch.ones(3)
ADAM = {"first": F3, "second": F3, "steps": 1}
STATES = [("sgd", {"velocity": value}) for value in (F3.to(torch.int8), F3.double(), torch.ones(4), 1.0)]
STATES += [("adam", ADAM | {"steps": steps}) for steps in (-1, 1.0, True, 1 << 60, F3)]
STATES += [("sgd", {"value": value}) for value in (1, F3.double(), torch.ones(4))]
STATES += [("sgd", {"squares": F3}), ("adam", {"steps": 1}), (None, {"velocity": F3})]


@pytest.mark.parametrize("rule, state", STATES, ids=range(len(STATES)))
def test_state_of_an_unknown_rule_is_refused(rule, state):
    optimizer = rule and Optimizer.read(rule, {"lr": 1.0})
    with pytest.raises(Refused, match="key w has"):
        validate_state({"value": F3} | state, optimizer, 3, torch.float32, "w")


# ---------------------------------------------------------------- large sums are made while others are served

LARGE, SMALL = DEFERRED // 4, 3  # elements of float32


@pytest.fixture
def sums():
    """(a store with a large key 0 and a small key 1, an event that a large sum has begun, one that lets it end)"""
    store, begun, may_end = SlotStore("dist_sync", 2, deadline=10.0), threading.Event(), threading.Event()
    for name, elements in (("large", LARGE), ("small", SMALL)):
        for rank in range(2):
            store.init(rank, name, elements, torch.float32, None if rank else torch.zeros(elements))
    add = store.slot.core.add

    def slow(total, gradient, last):
        if gradient.tensor.numel() == LARGE:
            begun.set()
            assert may_end.wait(LIVE)
        return add(total, gradient, last)

    store.slot.core.add = slow
    yield store, begun, may_end
    may_end.set()


def test_other_keys_are_served_while_a_large_sum_is_made(sums):
    store, begun, may_end = sums
    slow, _ = aside(push, store, 0, 1, ones(0, LARGE))
    assert begun.wait(LIVE)
    push(store, 0, 1, ones(0, SMALL), 1), push(store, 1, 1, ones(1, SMALL), 1)
    assert pull(store, 0, 1, 1).value.tolist() == [5.0] * SMALL and pull(store, 0, 1) is None
    may_end.set()
    slow.join(LIVE)
    push(store, 1, 1, ones(1, LARGE))
    assert pull(store, 0, 1).value.unique().tolist() == [5.0]


def test_a_push_that_completes_a_round_returns_after_the_round_has_closed(sums):
    store, begun, may_end = sums
    first, _ = aside(push, store, 0, 1, ones(0, LARGE))
    assert begun.wait(LIVE)
    last, _ = aside(push, store, 1, 1, ones(1, LARGE))
    last.join(0.2)
    assert last.is_alive(), "an optimizer that is set now would step this round"
    may_end.set()
    first.join(LIVE), last.join(LIVE)
    assert not last.is_alive() and store.shards[0].version == 1
    assert pull(store, 0, 1).value.unique().tolist() == [5.0]


@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_values_that_are_added_are_not_kept(elements):
    store, values = table(workers=4, elements=elements), []
    for rank in range(3):
        value = ones(rank, elements)
        values.append(weakref.ref(value))
        push(store, rank, 1, value)
    del value
    gc.collect()
    assert [value() is None for value in values] == [False, True, True]  # the sum lies where the first one was
