"""Data-parallel training through a plan, and the one device it is compared with.

Each of n devices has a copy of the weights and a part of every minibatch. It computes the gradient of its part;
the plan adds the gradients up, its servers update the weights, and all devices receive the new ones.

Gradients are computed on one thread with deterministic kernels (:func:`deterministic`), because the gradients of the
same network differ in their last bits between 1, 2 and 4 threads.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distribution
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps.carriers.base import Carrier
from d2lps.carriers.execute import run
from d2lps.carriers.here import Here
from d2lps.messages import text
from d2lps.messages.counted import counted
from d2lps.messages.raised import Brief
from d2lps.plan.acts import updates
from d2lps.plan.optimizers import RULES
from d2lps.plan.plan import Plan
from d2lps.trace import Trace

Batch = tuple[Tensor, Tensor]


class GradientError(Brief, ValueError):
    """A network or labels of which the devices' gradients would not add up to that of the whole minibatch."""


class Digits(NamedTuple):
    """Images (count × 1 × 8 × 8, float32, mean 0, deviation 1) with their labels (count, int64).

    Args:
        train, test: the training data and the test data: (images, labels).
    """

    train: Batch
    test: Batch


class TrainingResult(NamedTuple):
    """The result of a training.

    Args:
        losses: the mean over all labels of the minibatch, for each step.
        weights: the final weights, as one flat tensor, without those that are frozen.
        traces: the trace of each step, if a plan was run.
    """

    losses: list[float]
    weights: Tensor
    traces: list[Trace]


@cache
def digits(train: int = 1536) -> Digits:
    """Return the 1797 handwritten digits that come with scikit-learn, in a fixed shuffle.

    Args:
        train: the number of training examples; the others are test examples.
    """
    import numpy

    # load_digits() reads the same file, but needs all of scikit-learn in each of many processes.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(numpy.loadtxt(str(file), numpy.float32, delimiter=","))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    X = rows[order, :-1].reshape(-1, 1, 8, 8)
    X = (X - X[:train].mean()) / X[:train].std()
    y = rows[order, -1].to(torch.int64)
    return Digits((X[:train], y[:train]), (X[train:], y[train:]))


def small_cnn() -> nn.Module:
    """Make a convolutional network for the digits, always with the same initial weights: 9930 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


@contextmanager
def deterministic() -> Iterator[None]:
    """Use one thread, deterministic kernels and no TF32 within the ``with`` block; restore the settings afterwards."""
    # torch.use_deterministic_algorithms does the same for uncompiled code, after a second of importing the compiler.
    threads, strict = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    backends = (torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")
    before = [getattr(owner, name) for owner, name in backends]
    # cuBLAS reads this when it makes its first handle; without it deterministic mode refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        torch.set_num_threads(1)
        torch.set_deterministic_debug_mode("error")
        for owner, name in backends:
            setattr(owner, name, False)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(strict)
        for (owner, name), value in zip(backends, before, strict=True):
            setattr(owner, name, value)


def split(X: Tensor, y: Tensor, devices: Sequence[torch.device]) -> list[Batch]:
    """Split a minibatch into a part for each device, on that device.

    It is ``d2l.split_batch`` for devices of any kind (D2L's scatters to distinct GPUs only).

    Args:
        X, y: images and labels, of equal length.
        devices: the devices of the parts.

    Returns:
        (list of (Tensor, Tensor)): images and labels for each device, in parts of equal size; the last may be smaller,
            or empty if there are more devices than examples.
    """
    size = -(-len(X) // len(devices))
    return [
        (X[i * size : (i + 1) * size].to(device), y[i * size : (i + 1) * size].to(device))
        for i, device in enumerate(devices)
    ]


def loss_and_gradient(net: nn.Module, X: Tensor, y: Tensor, count: int) -> tuple[float, Tensor]:
    """Return the cross-entropy summed over (X, y) and divided by ``count``, and its gradient as one flat tensor.

    Args:
        net: the network; its ``grad`` are overwritten.
        X, y: images and labels of a part of a minibatch.
        count: the size of the whole minibatch, so that the parts' losses and gradients add up to the mean over all its
            labels.

    Returns:
        the loss, a float, and the gradient, a flat tensor, without parameters that are frozen.
    """
    if len(y) < count:
        require_examples_apart(net)
    net.zero_grad()
    labels = count * labels_each(y)
    loss = nn.functional.cross_entropy(net(X), y, reduction="sum") / labels
    loss.backward()
    return loss.item(), parameters_to_vector(gradients_of(net)).detach()


def labels_each(y: Tensor) -> int:
    """Return the number of labels of an example. Raises GradientError if cross_entropy would leave some of them out."""
    if y.is_floating_point():  # probabilities: y.shape[1] is the number of classes
        return y.shape[2:].numel()
    if y.numel() and y.min() < 0:
        raise GradientError(text("gradient.labels", label=y.min().item()))
    return y.shape[1:].numel()


def require_examples_apart(net: nn.Module) -> None:
    """Raise GradientError if a layer computes something else on a part of a minibatch, as dropout and BatchNorm do."""
    for name, layer in net.named_modules():
        drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if (drops and layer.training) or (norm and (layer.training or not layer.track_running_stats)):
            raise GradientError(text("gradient.whole", name=name, layer=type(layer).__name__))


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name; they have one type. Raises GradientError if not."""
    parameters = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    if not parameters:
        raise GradientError(text("gradient.nothing"))
    if len(types := {str(weight.dtype) for weight in parameters.values()}) > 1:
        raise GradientError(text("gradient.types", types=" ".join(sorted(types))))
    return parameters


def gradients_of(net: nn.Module) -> list[Tensor]:
    """Return the gradients of parameters that are not frozen, made dense. Raises GradientError if one is missing."""
    weights = trained(net)
    for name, weight in weights.items():
        if weight.grad is None:
            raise GradientError(text("gradient.unused", name=name))
    return [weight.grad.to_dense() for weight in weights.values()]


def batches(data: Batch, size: int, steps: int, start: int = 0) -> Iterator[Batch]:
    """Yield minibatches, starting over at the end of the data.

    Args:
        data: images and labels.
        size: examples in a minibatch.
        steps: the number of minibatches.
        start: the number of minibatches to skip, for a training that continues.

    Yields:
        (tuple of Tensor): images and labels of one minibatch.
    """
    X, y = data
    for step in range(start, steps):
        rows = torch.arange(step * size, (step + 1) * size) % len(y)
        yield X[rows], y[rows]


def buffers(plan: Plan, gradients: Mapping[str, Tensor], carrier: Carrier) -> dict[str, Tensor]:
    """Make the buffers for :func:`d2lps.run`: a copy of each gradient, and an empty one for each node without.

    Args:
        plan: the plan whose nodes get a buffer.
        gradients: node → flat tensor; one at least.
        carrier: the carrier that decides on which devices the buffers lie.

    Returns:
        node → flat tensor, for every node of the plan.
    """
    first = next(iter(gradients.values()))
    places = carrier.place(plan.nodes) or dict.fromkeys(plan.nodes, first.device)
    return {
        node: gradients[node].to(places[node], copy=True)
        if node in gradients
        else torch.empty_like(first, device=places[node])
        for node in plan.nodes
    }


def parallel(
    net: nn.Module, plan: Plan, data: Batch, size: int, steps: int, carrier: Carrier | None = None
) -> TrainingResult:
    """Train copies of ``net`` on the devices that hold gradients in ``plan``, whose servers update the weights.

    The loss is the mean cross-entropy over all labels of a minibatch. GradientError refuses networks and labels of
    which the devices' gradients would not add up to that of one device.

    Args:
        net: the network to begin with; it is not changed.
        plan: a plan with updates, such as ``sharded(gpus, update=("sgd", {"lr": 0.1}))``.
        data, size, steps: images and labels, examples per minibatch, and the number of minibatches.
        carrier: a carrier with all nodes in this process; :class:`d2lps.Here` if left out.

    Returns:
        losses, final weights, and a measured trace per step.
    """
    carrier = carrier or Here()
    places = carrier.place(plan.nodes) or dict.fromkeys(plan.nodes, torch.device("cpu"))
    workers = list(dict.fromkeys(node for node, _ in plan.holds))
    servers = list(dict.fromkeys(act.node for step in plan.steps for act in updates(step)))
    result = TrainingResult([], parameters_to_vector(trained(net).values()).detach().clone(), [])
    with deterministic():
        copies = {worker: copy.deepcopy(net).to(places[worker]) for worker in workers}
        weights = {server: result.weights.to(places[server], copy=True) for server in servers}
        memory: dict = {}
        for X, y in counted(batches(data, size, steps), of=steps):
            parts = split(X, y, [places[worker] for worker in workers])
            computed = {
                worker: loss_and_gradient(copies[worker], *part, count=len(X))
                for worker, part in zip(workers, parts, strict=True)
            }
            held = buffers(plan, {worker: gradient for worker, (_, gradient) in computed.items()}, carrier)
            result.traces.append(run(plan, held, carrier, weights=weights, memory=memory))
            for worker in workers:
                vector_to_parameters(held[worker], trained(copies[worker]).values())
            result.losses.append(sum(loss for loss, _ in computed.values()))
        result.weights.copy_(parameters_to_vector(trained(copies[workers[0]]).values()).detach())
    return result


def one_device(
    net: nn.Module,
    data: Batch,
    size: int,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    in_turn: Plan | None = None,
    device: "str | torch.device" = "cpu",
) -> TrainingResult:
    """Train ``net`` on one device: the reference.

    Args:
        net: the network to begin with; it is not changed.
        data, size, steps: images and labels, examples per minibatch, and the number of minibatches.
        lr, momentum: the hyperparameters of SGD.
        in_turn: a plan: the one device takes the parts of the minibatch of the plan's workers in turn, and adds their
            gradients in the order of the plan. The result is bit for bit that of :func:`parallel` on devices of the
            same kind (a GPU rounds differently from a CPU). If left out, each minibatch is taken as a whole.
        device: the device to train on; the weights returned are in main memory.

    Returns:
        losses and final weights; it has no traces.
    """
    net = copy.deepcopy(net).to(device)
    result = TrainingResult([], parameters_to_vector(trained(net).values()).detach().clone(), [])
    memory: dict = {}
    with deterministic():
        for X, y in counted(batches(data, size, steps), of=steps):
            if in_turn is None:
                loss, total = loss_and_gradient(net, X.to(device), y.to(device), count=len(X))
            else:
                workers = list(dict.fromkeys(node for node, _ in in_turn.holds))
                parts = split(X, y, [torch.device(device)] * len(workers))
                computed = [loss_and_gradient(net, *part, count=len(X)) for part in parts]
                loss = sum(loss for loss, _ in computed)
                total = added(in_turn, {name: gradient for name, (_, gradient) in zip(workers, computed, strict=True)})
            RULES["sgd"](result.weights, total, memory, lr=lr, momentum=momentum)
            vector_to_parameters(result.weights.clone(), trained(net).values())
            result.losses.append(loss)
    return result._replace(weights=result.weights.cpu())


def added(plan: Plan, gradients: dict[str, Tensor]) -> Tensor:
    """Return the sum of gradients in the order in which a plan adds them, on one device and without running it.

    Args:
        plan: the plan that gives the order for each key.
        gradients: node → flat tensor, all on one device.

    Returns:
        flat, of the size of the gradients.
    """

    def tree(order: str | tuple, part: slice) -> Tensor:
        if isinstance(order, str):
            return gradients[order][part]
        return tree(order[0], part) + tree(order[1], part)

    size = next(iter(gradients.values())).numel()
    return torch.cat([tree(plan.order(key), part) for key, part in plan.slices(size).items()])


def accuracy(net: nn.Module, weights: Tensor, data: Batch) -> float:
    """Return the fraction of the data that a network labels correctly.

    Args:
        net: the network; it is not changed.
        weights: the weights to use, as one flat tensor.
        data: images and labels.

    Returns:
        from 0 to 1.
    """
    X, y = data
    return (outputs(net, weights, X).argmax(dim=1) == y).float().mean().item()


def loss(net: nn.Module, weights: Tensor, data: Batch) -> float:
    """Return the mean cross-entropy of a network over the data; the arguments are those of :func:`accuracy`."""
    X, y = data
    return nn.functional.cross_entropy(outputs(net, weights, X), y).item()


@torch.no_grad()
def outputs(net: nn.Module, weights: Tensor, X: Tensor) -> Tensor:
    """Return what a copy of the network computes with these flat weights, in main memory."""
    net = copy.deepcopy(net).cpu()
    vector_to_parameters(weights.cpu(), trained(net).values())
    return net(X)
