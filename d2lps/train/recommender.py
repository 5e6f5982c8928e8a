"""A recommender with a large table of vectors, on generated data, of which the best possible loss is known: 0.

A dense tower turns the features of a user into a query vector. A table has a vector for every item. The score of a user
with some items is the product of the query vector and the sum of the items' vectors. Items are drawn from a Zipf
distribution: a few of them are very popular.

:func:`clicks` makes the data by a model of the same kind, so its loss is 0. :func:`work` is one worker of a training
with compute servers and memory servers: gradients of the tower are added by a plan between the workers, and rows of the
table are pulled from a key-value store and pushed to it. :func:`one_device` is the same training without either.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps.algorithms.placement import require_count
from d2lps.kvstore.store import KVStore

FEATURES, BAG = 8, 2  # of a user, and items of an example
LR, TOWER_LR = 0.5, 0.1  # of AdaGrad for the table, and of Adam for the tower


class Clicks(NamedTuple):
    """Examples: ``features`` of users (count × 8), ``items`` (count × 2, int64) and ``scores`` (count)."""

    features: Tensor
    items: Tensor
    scores: Tensor


class Learned(NamedTuple):
    """The ``losses`` of one worker, its part of each mean squared error, divided by the variance of the scores; the
    ``rows`` that it pulled in each step; ``seconds`` from the start to the end of each step.
    """

    losses: list[float]
    rows: list[int]
    seconds: list[float]


def popularity(rows: int, s: float = 1.0) -> Tensor:
    """Return the probability of each row, as float64, the most popular first: 1 / (i + 1)**s, times a constant.

    Args:
        rows: the number of rows, 1 or more.
        s: the exponent: 0 for equal rows, about 1 for words and products.

    Example:
        >>> popularity(3)
        tensor([0.5455, 0.2727, 0.1818], dtype=torch.float64)
    """
    weights = torch.arange(1, 1 + require_count("rows", rows), dtype=torch.float64) ** -s
    return weights / weights.sum()


def zipf(shape: "int | tuple[int, ...]", rows: int, s: float = 1.0, seed: int = 0) -> Tensor:
    """Draw rows by their :func:`popularity`, as int64.

    Args:
        shape: of the result.
        rows, s: as for :func:`popularity`.
        seed: the same seed gives the same rows.

    Example:
        >>> zipf(8, rows=1000)
        tensor([799, 111,  16, 552,  69, 209,   1,   7])
    """
    random = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.searchsorted(popularity(rows, s).cumsum(0), random).clamp(max=rows - 1)


def distinct(probabilities: Tensor, draws: int) -> float:
    """Return how many different rows so many draws contain on average: Σ(1 − (1 − p)^draws).

    Args:
        probabilities: of each row, float64.
        draws: their number.

    Example:
        >>> round(distinct(popularity(1_000_000), 4096))
        2443
    """
    return float(-torch.expm1(draws * torch.log1p(-probabilities)).sum())


def clicks(count: int, rows: int, width: int = 4, s: float = 1.0, seed: int = 0) -> Clicks:
    """Make data by a tower and a table that are thrown away: a model of the same kind can reach the loss 0.

    Args:
        count: the number of examples.
        rows, width, s: items, elements of their vectors, and the exponent of :func:`zipf`.
        seed: the same seed gives the same data.

    Example:
        >>> features, items, scores = clicks(100, rows=1000)
        >>> tuple(features.shape), tuple(items.shape), tuple(scores.shape), bool(items.max() < 1000)
        ((100, 8), (100, 2), (100,), True)
    """
    generator = torch.Generator().manual_seed(seed)
    items = zipf((count, BAG), rows, s, seed)
    features = torch.randn(count, FEATURES, generator=generator)
    queries = features @ torch.randn(FEATURES, width, generator=generator) / FEATURES**0.5
    used, places = items.unique(return_inverse=True)
    vectors = torch.randn(len(used), width, generator=generator) / BAG**0.5
    return Clicks(features, items, (queries * vectors[places].sum(1)).sum(1))


def model(rows: int, width: int = 4) -> tuple[nn.Linear, nn.EmbeddingBag]:
    """Return a tower, the same each time, and a table without values: memory is taken only for rows that are written.

    Args:
        rows, width: of the table. Its gradients are sparse: they have only the rows that were used.

    Example:
        >>> tower, table = model(rows=1_000_000)
        >>> tower(torch.ones(3, 8)).shape, table.weight.shape
        (torch.Size([3, 4]), torch.Size([1000000, 4]))
    """
    # The generator is the tower's own: workers may be threads, and torch's is shared by all of them.
    tower = nn.utils.skip_init(nn.Linear, FEATURES, width, bias=False)
    nn.init.kaiming_uniform_(tower.weight, a=math.sqrt(5), generator=torch.Generator().manual_seed(0))
    empty = torch.empty(require_count("rows", rows), width)
    return tower, nn.EmbeddingBag.from_pretrained(empty, freeze=False, mode="sum", sparse=True)


def part(data: Clicks, size: int, number: int, rank: int = 0, workers: int = 1) -> Clicks:
    """Return a worker's part of minibatch ``number``; after the last example comes the first one again.

    Args:
        data, size: the examples, and how many of them are in a minibatch of all workers.
        number, rank, workers: counted from 0, and how many workers share the minibatch.

    Example:
        >>> [part(clicks(10, rows=5), 4, 2, rank, workers=2).items.shape for rank in range(2)]
        [torch.Size([2, 2]), torch.Size([2, 2])]
    """
    chosen = torch.arange(number * size, (number + 1) * size)[rank::workers] % len(data.scores)
    return Clicks(*(tensor[chosen] for tensor in data))


def error(tower: nn.Module, table: nn.EmbeddingBag, examples: Clicks) -> Tensor:
    """Return the sum of the squared errors.

    Args:
        tower, table: the model; the table needs right values only in the rows of the examples.
        examples: some.
    """
    features, items, scores = examples
    return ((tower(features) * table(items)).sum(1) - scores).square().sum()


def step(
    store: KVStore, tower: nn.Module, table: nn.EmbeddingBag, examples: Clicks, size: int, add: Callable
) -> tuple[float, int]:
    """Pull rows, compute gradients, push those of the rows, and add up those of the tower over all workers.

    Args:
        store: has the key ``"table"`` and an optimizer.
        tower, table: the model of this worker; the tower has the sum of the gradients afterwards.
        examples, size: this worker's part of the minibatch, and the number of examples of all workers.
        add: called with a flat tensor, it adds those of all workers in place.

    Returns:
        this worker's part of the loss, and the rows that it pulled.
    """
    rows = examples.items.unique()
    pulled = torch.empty(len(rows), table.embedding_dim)
    store.row_sparse_pull("table", out=pulled, row_ids=rows)
    table.weight.data[rows] = pulled
    tower.zero_grad()
    table.zero_grad()
    loss = error(tower, table, examples) / size
    loss.backward()
    store.push("table", table.weight.grad)
    dense = parameters_to_vector(weight.grad for weight in tower.parameters())
    add(dense)
    vector_to_parameters(dense, [weight.grad for weight in tower.parameters()])
    return loss.item(), len(rows)


def work(
    store: KVStore,
    data: Clicks,
    rows: int,
    size: int,
    steps: int,
    add: Callable[[Tensor], object],
    width: int = 4,
    pause: float = 0.0,
) -> Learned:
    """Train as the worker ``store.rank``, together with the other workers.

    Args:
        store: a new store of any kind: memory servers, on which AdaGrad updates the table.
        data, rows, width: the same on all workers, as for :func:`clicks`.
        size, steps: examples per minibatch of all workers, and the number of minibatches.
        add: as for :func:`step`.
        pause: seconds that this worker sleeps in every step, to make it slow.

    Example:
        >>> from d2lps import kvstore
        >>> data = clicks(2048, rows=10_000)
        >>> worked = work(kvstore.create("local"), data, 10_000, size=2048, steps=40, add=lambda dense: None)
        >>> worked.losses[0] > 0.9, worked.losses[-1] < 0.02
        (True, True)
    """
    tower, table = model(rows, width)
    store.init("table", torch.zeros(rows, width))
    store.set_optimizer("adagrad", lr=LR)
    adam, scale = torch.optim.Adam(tower.parameters(), lr=TOWER_LR), float(data.scores.var())
    worked, start = Learned([], [], []), time.perf_counter()
    for number in range(steps):
        examples = part(data, size, number, store.rank, store.num_workers)
        time.sleep(pause)
        loss, pulled = step(store, tower, table, examples, size, add)
        adam.step()
        worked.losses.append(loss / scale)
        worked.rows.append(pulled)
        worked.seconds.append(time.perf_counter() - start)
    store.barrier()
    return worked


def one_device(data: Clicks, rows: int, size: int, steps: int, width: int = 4) -> list[float]:
    """Return the losses of the same training by PyTorch's optimizers, on one device that has the whole table.

    Args:
        data, rows, width, size, steps: as for :func:`work`.

    Example:
        >>> losses = one_device(clicks(2048, rows=10_000), 10_000, size=2048, steps=40)
        >>> losses[-1] < 0.02
        True
    """
    tower, table = model(rows, width)
    nn.init.zeros_(table.weight)
    optimizers = [torch.optim.Adam(tower.parameters(), lr=TOWER_LR), torch.optim.Adagrad(table.parameters(), lr=LR)]
    losses = []
    for number in range(steps):
        tower.zero_grad()
        table.zero_grad()
        loss = error(tower, table, part(data, size, number)) / size
        loss.backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else AdaGrad warns that they are not checked
            for optimizer in optimizers:
                optimizer.step()
        losses.append(loss.item() / float(data.scores.var()))
    return losses
