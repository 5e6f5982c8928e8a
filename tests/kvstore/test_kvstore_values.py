"""Keys and values: any tensor with memory of its own is pushed and pulled; others are refused before a push counts."""

import contextlib
import enum
import time

import numpy as np
import pytest
import torch
from helpers.stores import each, full, pulled
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize, grad, vmap

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused
from d2lps.kvstore.wire.frames import ENTRIES, Op, raw
from d2lps.kvstore.worker.client import Request


@pytest.fixture(params=["local", "dist_sync"])
def alone(request):
    if request.param == "local":
        with kvstore.create("local") as store:
            yield store
    else:
        with kvstore.cluster(workers=1, servers=2, deadline=10.0) as (store,):
            yield store


def freed():
    tensor = torch.ones(6)
    tensor.untyped_storage().resize_(0)  # as FSDP does with what it does not need now
    return tensor


def fake():
    with FakeTensorMode():
        return torch.ones(6)


def within(transform, work):
    """``work`` on what ``transform`` of torch.func gives it in the place of a tensor."""
    transform(lambda tensor: (work(tensor), tensor.sum())[1])(torch.ones(3, 6) if transform is vmap else torch.ones(6))


WITHOUT = {
    "freed": lambda work: work(freed()),
    "fake": lambda work: work(fake()),
    "functional": lambda work: work(torch._to_functional_tensor(torch.ones(6))),
    **{transform.__name__: lambda work, how=transform: within(how, work) for transform in (grad, vmap, functionalize)},
}


@pytest.mark.parametrize("how", WITHOUT)
def test_what_has_no_memory_is_neither_pushed_nor_filled(alone, how):
    alone.init("w", torch.zeros(6))
    for call in (
        lambda tensor: alone.push("w", tensor),
        lambda tensor: alone.push("w", [torch.ones(6), tensor]),
        lambda tensor: alone.pull("w", out=tensor),
        lambda tensor: alone.pushpull("w", tensor),
        lambda tensor: alone.init("other", tensor),
    ):
        with pytest.raises(Refused, match="has no memory of its own"):
            WITHOUT[how](call)
    alone.pushpull("w", torch.full((6,), 3.0), out=(out := torch.empty(6)))
    assert out.tolist() == [3.0] * 6 and alone.keys == ("w",)


def test_nothing_is_pulled_into_a_tensor_of_no_values(alone):
    alone.init("w", torch.zeros(6))
    with pytest.raises(Refused, match="has no values"):
        alone.pull("w", out=torch.empty(6, device="meta"))


def test_an_out_whose_elements_lie_in_one_place_is_refused(alone):
    alone.init("w", torch.arange(6.0).view(2, 3))
    for strides in ((1, 1), (2, 1), (0, 1)):
        with pytest.raises(Refused, match="several elements of out share one place"):
            alone.pull("w", out=torch.zeros(9).as_strided((2, 3), strides))
    for strides in ((3, 1), (1, 2), (1, 3), (3, 2), (9, 4)):  # of (3, 2) the rows lie between each other
        out = torch.zeros(20).as_strided((2, 3), strides)
        alone.pull("w", out=out)
        assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("size", [6, 100_000])
def test_autograd_notices_that_a_saved_tensor_is_overwritten(size):
    """Also if the value comes straight from a socket."""
    with kvstore.cluster(workers=1, deadline=10.0) as (store,):
        store.init("w", torch.full((size,), 4.0))
        weight = torch.ones(size, requires_grad=True)
        double = weight * 2
        squared = (double * double).sum()
        store.pull("w", out=double.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.backward()


# ---------------------------------------------------------------- numbers of NumPy, and sparse gradients


def test_array_that_runs_backwards_is_a_value_and_an_out(alone):
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    alone.init("w", first[::-1])
    pushed, out = np.full((2, 3), 2.0, np.float32), np.zeros((3, 2), np.float32)
    pushed[0] = 1.0
    alone.pull("w", out=out.T[:, ::-1])
    assert out.tolist() == first[::-1, ::-1].T.tolist()
    alone.pushpull("w", pushed[::-1], out=out.T[:, ::-1])
    assert out.T[:, ::-1].tolist() == pushed[::-1].tolist()
    alone.pushpull("w", pushed[::-1], out=pushed[::-1])
    assert pushed.tolist() == [[1.0] * 3, [2.0] * 3]
    alone.row_sparse_pull("w", out=(rows := np.zeros((2, 3), np.float32))[::-1], row_ids=np.array([0, 1])[::-1])
    assert rows.tolist() == [[2.0] * 3, [1.0] * 3]
    alone.init("nothing", np.zeros((0, 2))[:, ::-1])
    folded = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32)[4:], (2, 3), (-4, 4))
    with pytest.raises(Refused, match="several elements of out share one place"):
        alone.pull("w", out=folded)


def test_whole_numbers_of_numpy_are_keys(alone, tmp_path):
    alone.init(np.int64(3), torch.zeros(2))
    alone.init([np.uint8(4), np.int32(-5)], [torch.zeros(2)] * 2)
    assert [(key, type(key)) for key in alone.keys] == [(3, int), (4, int), (-5, int)]
    alone.push(list(np.array([3, 4])), [torch.ones(2), torch.full((2,), 2.0)])
    alone.pushpull(np.int16(-5), torch.full((2,), 3.0), out=(out := torch.empty(2)))
    assert out.tolist() == [3.0, 3.0]
    alone.pull([3, np.int64(4)], out=[one := torch.empty(2), other := torch.empty(2)])
    assert (one.tolist(), other.tolist()) == ([1.0, 1.0], [2.0, 2.0])
    alone.row_sparse_pull(np.int64(4), out=(row := torch.empty(1)), row_ids=np.array([1]))
    assert row.tolist() == [2.0]
    alone.save(tmp_path / "store")
    alone.push(np.int64(3), torch.full((2,), 9.0))
    alone.load(tmp_path / "store")
    alone.pull(3, out=out)
    assert out.tolist() == [1.0, 1.0]
    with pytest.raises(Refused, match="a key appears twice"):
        alone.push([3, np.int64(3)], [torch.ones(2)] * 2)
    with pytest.raises(Refused, match="key 7 is not initialized"):
        alone.push(np.int64(7), torch.ones(2))


def embedded(sparse, dtype=torch.float32):
    """The gradient of an embedding in which rows come several times, and some values are -0.0."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 40, (300,), generator=generator)
    gradient = torch.randn(300, 4, generator=generator).to(dtype)
    gradient[rows % 7 == 3] = -0.0
    table = torch.nn.Embedding(50, 4, sparse=sparse, dtype=dtype)
    table(rows).backward(gradient)
    assert table.weight.grad.is_sparse == sparse
    return table.weight.grad


KINDS = {
    "local": lambda: contextlib.nullcontext([kvstore.create("local")]),
    "device": lambda: contextlib.nullcontext([kvstore.create("device")]),
    "dist_sync": lambda: kvstore.cluster("dist_sync", 2, 2, placement={"large": 100}),
    "dist_async": lambda: kvstore.cluster("dist_async", 1, 2),
    "dist_ssp": lambda: kvstore.cluster("dist_ssp", 1, 1),
    "tcp": lambda: kvstore.cluster("dist_sync", 2, 1, transport="tcp"),
    "replicas": lambda: kvstore.cluster("dist_sync", 2, 2, replicas=1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_gradient_counts_as_the_dense_one(kind, dtype):
    def work(store):
        outs = []
        for key, sparse in (("dense", False), ("sparse", True)):
            store.init(key, torch.ones(50, 4, dtype=dtype))
            store.set_optimizer("sgd", lr=0.1)
            store.push(key, embedded(sparse, dtype))
            store.push(key, [embedded(sparse, dtype), embedded(False, dtype)])
            store.pushpull([key], [embedded(sparse, dtype)], out=[out := torch.empty(50, 4, dtype=dtype)])
            outs.append(out.view(torch.uint8))
        return torch.equal(*outs), not torch.equal(outs[0], torch.ones(50, 4, dtype=dtype).view(torch.uint8))

    with KINDS[kind]() as stores:
        assert each(stores, work) == [(True, True)] * len(list(stores))


def test_only_the_rows_of_a_sparse_gradient_travel():
    """64 bytes of values per row pulled, 8 more for its number if pushed, and 8 per push for the count."""
    rows = torch.tensor([999, 0, 500, 0, 3])
    gradient = torch.sparse_coo_tensor(rows[None], torch.ones(5, 16), (1000, 16), check_invariants=True)

    def work(store):
        store.init("table", torch.zeros(1000, 16))
        store.push("table", gradient)
        store.row_sparse_pull("table", out=(out := torch.empty(5, 16)), row_ids=rows)
        store.barrier()
        return out[:, 0].tolist(), store.trace("table").bytes_sent("worker0")

    with kvstore.cluster("dist_sync", 2, 3, record=True, placement={"large": 100}) as stores:
        assert each(stores, work) == [([2.0, 4.0, 2.0, 4.0, 2.0], 4 * 72 + 3 * 8)] * 2
        assert stores[0].trace("table").bytes_received("worker1") == 5 * 64


@pytest.mark.parametrize("large", [10, 1000])
def test_a_sparse_gradient_is_pushed_together_with_dense_values(large):
    def work(store):
        store.init(["bias", "table"], [torch.zeros(4), torch.zeros(50, 4)])
        values, outs = [torch.ones(4), embedded(True)], [torch.empty(4), torch.empty(50, 4)]
        store.pushpull(["bias", "table"], values, out=outs)
        return outs[0].tolist(), torch.equal(outs[1], 2 * embedded(False))

    with kvstore.cluster("dist_sync", 2, 2, placement={"large": large}) as stores:
        assert each(stores, work) == [([2.0] * 4, True)] * 2


def test_a_row_that_is_not_finite_is_added():
    with kvstore.cluster("dist_sync", 1, 2, placement={"large": 10}) as (store,):
        store.init("w", torch.ones(9, 2))
        gradient = torch.sparse_coo_tensor([[7]], [[1.0, float("nan")]], (9, 2), check_invariants=True)
        store.pushpull("w", gradient, out=(out := torch.empty(9, 2)))
        assert out[7, 0] == 1 and out[7, 1].isnan()


ROWS = [([1, 3], 8, "has rows 0 to 2 here"), ([1, -1], 8, "has rows 0 to 2 here")]
ROWS += [([5], 0, "5 rows are pushed in 8 bytes"), ([-1], 0, "-1 rows are pushed in 8 bytes")]
ROWS += [
    ([0], 8, "8 bytes are no 0 rows"),
    ([1, 0], 16, "which are no rows of 4"),
    ([1, 0], 6, "6 bytes are no 1 rows"),
]
ROWS += [([], 4, "no more of them than it has"), ([], 500, "no more of them than it has")]


@pytest.mark.parametrize("numbers, nbytes, sentence", ROWS)
def test_a_server_refuses_rows_that_are_none(numbers, nbytes, sentence):
    with kvstore.cluster("dist_sync", 1, 1) as (store,):
        store.init("w", torch.ones(3, 2))
        payload = torch.cat([torch.tensor(numbers, dtype=torch.int64).view(torch.uint8), torch.zeros(nbytes).byte()])
        entries = np.array([(0, 0, 3, 6, 1)], ENTRIES)
        client, request = store.clients[0], Request(Op.PUSH, entries, payload=raw(payload))
        with pytest.raises(kvstore.Refused, match=sentence):
            client.wait(client.ask(request), time.monotonic() + 5)
        store.pushpull("w", torch.ones(3, 2), out=(out := torch.empty(3, 2)))
        assert out.unique().tolist() == [1.0], "the refused push counted"


def test_a_sparse_gradient_without_rows_changes_nothing(alone):
    alone.init("w", torch.ones(5, 2))
    alone.set_optimizer("sgd", lr=0.1)
    alone.pushpull("w", torch.sparse_coo_tensor(size=(5, 2)), out=(out := torch.empty(5, 2)))
    assert out.unique().tolist() == [1.0]


# ---------------------------------------------------------------- where a value lies, and where it goes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_every_dtype_travels(dtype):
    def work(store):
        store.init("w", torch.zeros(5, dtype=dtype))
        store.pushpull("w", torch.full((5,), store.rank + 1, dtype=dtype), out=(out := torch.empty(5, dtype=dtype)))
        return out.tolist()

    with kvstore.cluster("dist_sync", 2, 2, placement={"large": 2}) as stores:
        assert each(stores, work) == [[3] * 5] * 2


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("size", [20, 20_000])
def test_views_that_are_negated_or_have_gaps_get_and_give_their_own_elements(transport, size):
    with kvstore.cluster("dist_sync", 1, 2, transport=transport) as (store,):
        store.init(["a", "b"], [full(1, size), full(2, size)])
        gaps, negated = torch.zeros(2 * size)[::2], torch._neg_view(torch.zeros(size))
        store.pull(["a", "b"], out=[gaps, negated])
        assert (gaps.unique().tolist(), negated.unique().tolist()) == ([1.0], [2.0])
        store.push("a", torch._neg_view(full(3, size)))
        store.pushpull("b", columns := torch.zeros(size, 2)[:, 1].fill_(4), out=columns)
        assert (pulled(store, "a", size), columns.unique().tolist()) == ([-3.0], [4.0])


def test_a_value_of_one_element_may_have_any_stride_and_one_without_elements_has_rows(alone):
    alone.init("w", torch.zeros(1))
    alone.pushpull("w", torch.arange(4.0)[1::2][:1], out=(out := torch.zeros(4)[::2][:1]))
    assert out.tolist() == [1.0]
    alone.init(["empty", "a", "b"], [torch.zeros(5, 0), *[torch.arange(8, 12).reshape(4, 1)] * 2])
    alone.row_sparse_pull("empty", out=torch.empty(2, 0), row_ids=torch.tensor([0, 1]))
    rows, out = torch.tensor([1, 3]), torch.empty(2, 1, dtype=torch.int64)  # rows are read before they are written
    alone.row_sparse_pull(["a", "b"], out=[rows.view(2, 1), out], row_ids=[torch.tensor([0, 2]), rows])
    assert (rows.tolist(), out.flatten().tolist()) == ([8, 10], [9, 11])


def test_several_outs_may_lie_in_one_place_and_odd_ones_are_refused(alone):
    alone.init("w", torch.ones(3, 3))
    alone.pull("w", out=[x := torch.zeros(3, 3), x.t()])
    assert x.unique().tolist() == [1.0]
    for odd in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn()):
        with pytest.raises(Refused):
            alone.pushpull("w", torch.ones(3, 3), out=odd)
    assert pulled(alone, "w", (3, 3)) == [1.0]


def inference(size):
    with torch.inference_mode():
        return torch.zeros(size)


def only_read(size):
    array = np.zeros(size, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("size", [3, 40_000])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (inference, "inference_mode"),
        (only_read, "read-only array"),
        (lambda size: torch.zeros(1).expand(size), "share one place"),
    ],
)
def test_out_is_looked_at_before_anything_is_counted(made, why, size):
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", torch.zeros(size))
        store.set_optimizer("sgd", lr=-1.0)
        with pytest.raises(Refused, match=f"key 'w': .*{why}"):
            store.pushpull("w", torch.ones(size), out=made(size))
        assert pulled(store, "w", size) == [0.0]
        with torch.inference_mode():
            assert pulled(store, "w", size) == [0.0]


def test_an_answer_that_cannot_be_put_in_its_place_is_an_error_of_that_call_alone(monkeypatch):
    def fail(*_):
        raise RuntimeError("no such place")

    with kvstore.cluster("dist_sync", 1, 1, deadline=3.0) as (store,):
        store.init("w", torch.ones(40_000))
        with monkeypatch.context() as patch, pytest.raises(KVError, match="no such place"):
            patch.setattr(type(store.clients[0]), "_put", fail)
            pulled(store, "w", 40_000)
        assert pulled(store, "w", 40_000) == [1.0]


def test_names_longer_than_a_frame_travel_in_several():
    names = ["\U0001f600" * 253 + chr(0x20000 + i) for i in range(4200)]
    with kvstore.cluster("dist_sync", 1, 1) as (store,):
        store.init(names, [torch.ones(1)] * len(names))
        assert pulled(store, names[-1], 1) == [1.0]


class Number(enum.IntEnum):
    ONE = 1


ODD_KEYS = [
    10**5000,
    "x" * 1_000_000,
    1.5,
    None,
    {"a"},
    True,
    Number.ONE,
    np.str_("w"),
    np.bool_(True),
    np.float64(3.0),
]


@pytest.mark.parametrize("key", [*ODD_KEYS, np.array([3])], ids=range(11))
def test_an_object_that_is_no_key_or_only_equals_one_is_refused(key):
    store = kvstore.create("local")
    for call in (store.init, store.push):
        for arguments in ((key, torch.ones(1)), ([key], [torch.ones(1)])):
            with pytest.raises(Refused, match="key"):
                call(*arguments)
