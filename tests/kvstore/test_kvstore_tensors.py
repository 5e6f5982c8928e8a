"""Tensors that are none, as far as memory goes, and those that share it with themselves: refused at the door."""

import subprocess
import sys
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize, grad, vmap

from d2lps import kvstore
from d2lps.carriers import ranks
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.kvstore import Refused, launch


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
    """Other memory was pushed in its place, nothing was pulled into it, or a key could never be pulled again."""
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
def test_autograd_hears_that_what_it_has_kept_is_filled(size):
    """Where it came straight from a socket, it did not, and gradients were wrong."""
    with kvstore.cluster(workers=1, deadline=10.0) as (store,):
        store.init("w", torch.full((size,), 4.0))
        weight = torch.ones(size, requires_grad=True)
        double = weight * 2
        squared = (double * double).sum()
        store.pull("w", out=double.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.backward()


@pytest.mark.slow
def test_the_package_is_there_without_docstrings():
    program = "from d2lps import kvstore; kvstore.Placement(2); print(kvstore.create('local').type)"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "local"), done.stderr


# ---------------------------------------------------------------- surroundings


def test_an_address_of_ipv6_is_refused_in_words(monkeypatch):
    """What the name server said was raised as it was."""
    monkeypatch.setenv("MASTER_ADDR", "::1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(Refused, match="servers listen on IPv4"):
        launch.own_address()


def test_who_finds_no_store_says_so_when_the_deadline_is_over(monkeypatch):
    """Torch pauses longer and longer, and looked again when that was over by far."""
    over = threading.Event()
    monkeypatch.setattr(ranks.dist, "TCPStore", lambda *_, **__: over.wait(60))
    monkeypatch.setattr(ranks, "GRACE", 0.1)
    try:
        with pytest.raises(ProcessesError, match="no store answers"):
            ranks._joined("127.0.0.1", 1, 1, 2, 0, 0.1)
    finally:
        over.set()
