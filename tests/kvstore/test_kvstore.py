"""The store as its users see it: MXNet's words, the same sums for any number of servers, errors to the caller alone."""

import itertools
import time

import numpy as np
import pytest
import torch
from helpers.stores import each

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.kvstore import KVError, Refused, Timeout


@pytest.fixture(params=["local", "device"])
def alone(request):
    return kvstore.create(request.param)


# ---------------------------------------------------------------- one process


def test_several_values_of_one_key_are_summed(alone):
    alone.init(3, torch.ones(2, 3))
    alone.push(3, [torch.full((2, 3), 4.0**i) for i in range(4)])
    outs = [torch.empty(2, 3) for _ in range(4)]
    alone.pull(3, out=outs)
    assert all(out.equal(torch.full((2, 3), 85.0)) for out in outs)


def test_lists_of_keys_and_lists_of_values(alone):
    keys = [5, "seven", 9]
    alone.init(keys, [torch.ones(3)] * 3)
    alone.push(keys, [[torch.ones(3)] * 4] * 3)
    outs = [[torch.empty(3) for _ in range(2)] for _ in keys]
    alone.pull(keys, out=outs)
    assert all(out.tolist() == [4.0] * 3 for pair in outs for out in pair)


def test_an_optimizer_steps_where_the_value_is(alone):
    alone.init("w", torch.ones(4))
    alone.set_optimizer("sgd", lr=0.5)
    alone.pushpull("w", torch.ones(4), out=(out := torch.empty(4)))
    assert out.tolist() == [0.5] * 4


def test_a_device_store_sums_by_a_plan_and_shows_it():
    store = kvstore.create("device")
    store.init("w", torch.zeros(8))
    store.push("w", [torch.ones(8)] * 4)
    assert store.trace().plan.nodes == ("device0", "device1", "device2", "device3")
    assert store.type == "device" and (store.rank, store.num_workers) == (0, 1)


def test_arrays_of_numpy_are_at_home(alone):
    alone.init("w", np.zeros((2, 2), np.float32))
    alone.push("w", np.full((2, 2), 3, np.float32))
    out = np.empty((2, 2), np.float32)
    alone.pull("w", out=out)
    assert (out == 3).all()


# ---------------------------------------------------------------- many workers, many servers


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 1), (3, 2), (2, 5), (4, 3)])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_everyone_gets_the_sum_of_all(workers, servers, transport):
    sizes = {0: (3,), "big": (1001, 3), "empty": (0,), 7: (), "half": (600,)}
    place = Placement(servers, large=500)

    def work(store):
        keys = list(sizes)
        store.init(keys, [torch.zeros(sizes[key]) for key in keys])
        outs = [torch.empty(sizes[key]) for key in keys]
        for _ in range(3):
            store.push(keys, [torch.full(sizes[key], 4.0**store.rank) for key in keys])
            store.pull(keys, out=outs)
            assert all((out == (4**workers - 1) / 3).all() for out in outs)
        return True

    with kvstore.cluster("dist_sync", workers, servers, transport=transport, placement=place) as stores:
        assert each(stores, work) == [True] * workers


def trained(servers, seed=0, large=100, secret=b""):
    """The weights after five rounds with momentum, of three workers that come in any order."""
    torch.manual_seed(1)
    start, gradients = torch.randn(701), torch.randn(5, 3, 701)

    def work(store):
        store.init("w", start)
        store.set_optimizer("sgd", lr=0.1, momentum=0.9)
        weight = torch.empty(701)
        for round_ in range(5):
            time.sleep(((seed + 7 * store.rank + 3 * round_) % 5) / 200)
            store.pushpull("w", gradients[round_, store.rank], out=weight)
        return weight

    with kvstore.cluster("dist_sync", 3, servers, placement=Placement(servers, large=large), secret=secret) as stores:
        found = each(stores, work)
    assert all(weight.equal(found[0]) for weight in found)
    parameter = torch.nn.Parameter(start.clone())
    reference = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for a, b, c in gradients:
        parameter.grad = a + b + c
        reference.step()
    return found[0], parameter.data


@pytest.mark.slow
@pytest.mark.parametrize("servers, seed", [*itertools.product([1, 2, 3, 5], [0, 1, 2])])
def test_the_same_bits_for_any_number_of_servers_and_any_order_of_arrival(servers, seed):
    found, reference = trained(servers, seed)
    assert found.equal(reference)


@pytest.mark.slow
def test_a_secret_changes_nothing_but_who_may_come():
    found, reference = trained(2, secret=b"0123456789abcdef")
    assert found.equal(reference)


def test_values_of_several_devices_are_summed_before_they_travel():
    def work(store):
        store.init("w", torch.zeros(3))
        store.push("w", [torch.full((3,), 4.0 ** (2 * store.rank + i)) for i in range(2)])
        store.pull("w", out=(outs := [torch.empty(3), torch.empty(3)]))
        return [out.tolist() for out in outs]

    with kvstore.cluster("dist_sync", 2, 1) as stores:
        assert each(stores, work) == [[[85.0] * 3] * 2] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_every_dtype_travels(dtype):
    def work(store):
        store.init("w", torch.zeros(5, dtype=dtype))
        store.pushpull("w", torch.full((5,), store.rank + 1, dtype=dtype), out=(out := torch.empty(5, dtype=dtype)))
        return out.tolist()

    with kvstore.cluster("dist_sync", 2, 2, placement=Placement(2, large=2)) as stores:
        assert each(stores, work) == [[3] * 5] * 2


@pytest.mark.parametrize("kind, staleness", [("dist_async", 0), ("dist_ssp", 0), ("dist_ssp", 2)])
def test_every_push_counts_once_whenever_it_is_applied(kind, staleness):
    def work(store):
        store.init("w", torch.zeros(3, dtype=torch.float64))
        store.set_optimizer("sgd", lr=-1.0)
        seen = torch.zeros(3, dtype=torch.float64)
        for _ in range(6):
            time.sleep(0.01 * store.rank)
            before = seen.clone()
            store.push("w", torch.full((3,), 8.0**store.rank, dtype=torch.float64))
            store.pull("w", out=seen)
            assert seen[0] == seen[2] and (before[0] < 1 or seen[0] > before[0])
        store.barrier()
        store.pull("w", out=seen)
        return seen[0].item()

    with kvstore.cluster(kind, 3, 2, staleness=staleness) as stores:
        assert each(stores, work) == [6 * (1 + 8 + 64)] * 3


def test_only_the_rows_asked_for_travel():
    table = torch.arange(1000.0 * 8).view(1000, 8)

    def work(store):
        store.init("embedding", table)
        rows = torch.tensor([999, 0, 500, 0])
        store.row_sparse_pull("embedding", out=(out := torch.empty(4, 8)), row_ids=rows)
        return out.equal(table[rows])

    with kvstore.cluster("dist_sync", 2, 3, placement=Placement(3, large=100)) as stores:
        assert each(stores, work) == [True, True]


def test_a_pulled_value_has_the_kind_of_the_pushed_one():
    def work(store):
        store.init("w", torch.zeros(4, 4))
        gradient = torch.full((4, 4), 4.0**store.rank)
        store.pushpull("w", gradient)
        column = torch.empty(4, 8)[:, ::2]
        store.pull("w", out=column)
        return gradient.mean().item(), column.mean().item()

    with kvstore.cluster("dist_sync", 2, 1) as stores:
        assert each(stores, work) == [(5.0, 5.0)] * 2


# ---------------------------------------------------------------- an error of its caller alone


@pytest.mark.fault("F10", "keys, shapes, dtypes and kinds that are wrong")
@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda s: s.push("v", torch.ones(3)), "key 'v' is not initialized: init it first"),
        (lambda s: s.pull("v", out=torch.ones(3)), "key 'v' is not initialized"),
        (
            lambda s: s.push("w", torch.ones(4)),
            "key 'w': the pushed value has shape (4,) and dtype torch.float32, but needs shape (3,)",
        ),
        (lambda s: s.push("w", torch.ones(3).double()), "dtype torch.float64"),
        (lambda s: s.push("w", torch.ones(3, 3).to_sparse_csr()), "is sparse or has no values"),
        (lambda s: s.init("v", torch.ones(3).to_sparse()), "is sparse or has no values"),
        (lambda s: s.pushpull("w", torch.ones(3).to_sparse()), "out of key 'w' is sparse or has no values"),
        (lambda s: s.push("w", torch.sparse_coo_tensor(size=(1 << 40, 3))), "has shape (1099511627776, 3)"),
        (lambda s: s.push("w", torch.ones(3).double().to_sparse()), "dtype torch.float64"),
        (lambda s: s.push("w", torch.sparse_coo_tensor([[9]], [1.0], (3,), check_invariants=False)), "found index 9"),
        (lambda s: s.push("w", "gradient"), "the pushed value is a str: give a tensor"),
        (lambda s: s.push("w", []), "no value was given"),
        (lambda s: s.push(["w", "w"], [torch.ones(3)] * 2), "a key appears twice"),
        (lambda s: s.push(["w"], [torch.ones(3)] * 2), "1 keys need a list with one value for each"),
        (lambda s: s.push(True, torch.ones(3)), "a key must be a short string or a whole number"),
        (lambda s: s.push("w", torch.ones(3, dtype=torch.complex64)), "a store holds float32"),
        (lambda s: s.pull("w"), "pull needs out="),
        (lambda s: s.pull("w", out=torch.ones(2)), "out has shape (2,)"),
        (lambda s: s.init("w", torch.ones(3)), "key 'w' is initialized already"),
        (
            lambda s: s.row_sparse_pull("w", out=torch.ones(1), row_ids=torch.tensor([3])),
            "has rows 0 to 2; row_ids has 3",
        ),
        (lambda s: s.row_sparse_pull("w"), "row_sparse_pull needs out and row_ids"),
        (lambda s: s.set_optimizer("lion", lr=1), "there is no optimizer 'lion'"),
        (lambda s: s.set_optimizer("sgd"), "sgd needs lr"),
        (lambda s: s.set_optimizer(print), "an optimizer must be given as a name and numbers"),
    ],
)
def test_an_impossible_call_is_an_error_of_its_caller_alone(call, sentence):
    def work(store):
        store.init("w", torch.zeros(3))
        said = None
        if store.rank == 1:
            with pytest.raises(Refused) as caught:
                call(store)
            said = str(caught.value)
        store.pushpull("w", torch.full((3,), 4.0**store.rank), out=(out := torch.empty(3)))
        return said, out.tolist()

    with kvstore.cluster("dist_sync", 2, 2) as stores:
        (_, first), (said, second) = each(stores, work)
    assert sentence in said and first == second == [5.0] * 3


@pytest.mark.slow
def test_two_inits_that_differ():
    def work(store):
        try:
            store.init("w", torch.zeros(3 + store.rank))
        except Refused as error:
            return str(error)
        except Timeout:
            return "the others wait in vain"

    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        found = each(stores, work)
    assert any("all initialise the same" in said for said in found)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: kvstore.create("dist_bsp"), "kind = 'dist_bsp'"),
        (lambda: kvstore.create("local", servers=2), "a store of kind 'local' has no option servers"),
        (lambda: kvstore.create(engine="redis"), "engine = 'redis'"),
        (lambda: kvstore.cluster("dist_sync", 0, 1), "workers = 0: it must be a whole number, 1 or more"),
        (lambda: kvstore.cluster("dist_sync", 1, 1, transport="udp"), "transport = 'udp'"),
        (lambda: kvstore.cluster("dist_sync", 1, 1, lost="ignore"), "lost = 'ignore': it is one of fail, drop"),
    ],
)
def test_what_is_no_store_is_refused(make, sentence):
    with pytest.raises(Refused) as caught:
        make()
    assert sentence in str(caught.value)


def test_a_store_that_is_closed_says_so():
    with kvstore.cluster("dist_sync", 1, 1) as stores:
        stores[0].init("w", torch.zeros(3))
    with pytest.raises(KVError, match="this store is closed"):
        stores[0].push("w", torch.zeros(3))
