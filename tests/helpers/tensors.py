"""Plans, dtypes and values for runs that are compared bit by bit."""

import torch

from d2lps import Reduction, aggregate_at, sharded
from helpers.plans import ring

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]

PLANS = {
    "at gpu0": lambda n: aggregate_at(gpus(n), "gpu0"),
    "at gpu0, 3 chunks": lambda n: aggregate_at(gpus(n), "gpu0", chunks=3),
    "at the last": lambda n: aggregate_at(gpus(n), f"gpu{n - 1}"),
    "at cpu": lambda n: aggregate_at(gpus(n), "cpu"),
    "at cpu, 7 chunks": lambda n: aggregate_at(gpus(n), "cpu", chunks=7),
    "sharded": lambda n: sharded(gpus(n)),
    "sharded, 2 chunks": lambda n: sharded(gpus(n), chunks=2),
    "unequal servers": lambda n: sharded(gpus(n), {"cpu0": "1/2", "cpu1": "1/3", "gpu0": "1/6"}),
    "ring": lambda n: ring(gpus(n)),
}


def gpus(n):
    return [f"gpu{i}" for i in range(n)]


def gradients(plan, size, dtype=torch.float32, seed=0):
    """A buffer for every node; those that hold nothing get one full of what must not be read."""
    generator = torch.Generator().manual_seed(seed)
    holders = {node for node, _ in plan.holds}

    def values():
        if dtype.is_floating_point:
            return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
        return torch.randint(0, 100, (size,), generator=generator).to(dtype)

    rubbish = float("nan") if dtype.is_floating_point else 77
    return {node: values() if node in holders else torch.full((size,), rubbish, dtype=dtype) for node in plan.nodes}


def bits(tensor):
    """What is compared: two tensors are the same if every bit is, NaN and −0 included."""
    return torch.cat([tensor.detach().cpu().reshape(-1)]).view(torch.uint8).tolist() if tensor.numel() else []


def close(ours, right, added):
    """Check that two results differ by no more than rounding: about an epsilon for each of ``added`` numbers.

    Processors add up in different orders, so a bound that was read off one does not hold on the next. A sum errs by up
    to ``added`` epsilons of what is added; that is doubled for two sums, and again as some of it may cancel.
    """
    ours, right = torch.as_tensor(ours), torch.as_tensor(right)
    largest = right.detach().abs().max().item() if right.numel() else 0.0
    rounding = 4 * added * torch.finfo(right.dtype).eps * largest
    torch.testing.assert_close(ours, right, rtol=0, atol=rounding)


def added(tree, tensors, key, add=torch.add):
    """The sum in the order of ``plan.order``, an addition at a time."""
    if isinstance(tree, str):
        return tensors[tree][key].cpu().clone()
    return add(added(tree[0], tensors, key, add), added(tree[1], tensors, key, add))


UPDATING = {
    "at gpu0": lambda u: aggregate_at(gpus(3), "gpu0", update=u),
    "at cpu": lambda u: aggregate_at(gpus(3), "cpu", update=u),
    "at cpu, 3 chunks": lambda u: aggregate_at(gpus(3), "cpu", chunks=3, update=u),
    "sharded": lambda u: sharded(gpus(3), update=u),
    "unequal servers, 2 chunks": lambda u: sharded(gpus(3), {"cpu0": "2/3", "cpu1": "1/3"}, chunks=2, update=u),
    "a lone worker": lambda u: aggregate_at(["gpu0"], "gpu0", update=u),
}

LOGADDEXP = Reduction("log of sum of exp", torch.logaddexp, identity=float("-inf"))
LARGER = Reduction("the larger in size", lambda own, arrived: own.where(own.abs() >= arrived.abs(), arrived), 0)
