"""A recommender: the dense part by all-reduce, the sparse part by push and pull, and the known optimum."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from d2lps import kvstore
from d2lps.algorithms.placement import PlacementError
from d2lps.train import recommender
from d2lps.train.by_store import each

ROWS, SIZE = 5000, 4096


def trained(kind, workers, data, steps, servers=2, record=False):
    """Return the result of each worker, and the trace of the table; the tower is added up by a second store."""
    with (
        kvstore.cluster(kind, workers, servers, record=record, placement={"large": 1000}) as stores,
        kvstore.cluster("dist_sync", workers) as dense,
    ):

        def work(store):
            mine = dense[store.rank]
            mine.init("tower", torch.zeros(recommender.FEATURES * 4))
            add = lambda tensor: mine.pushpull("tower", tensor, out=tensor)  # noqa: E731
            return recommender.work(store, data, ROWS, SIZE, steps, add)

        worked = each(stores, work)
        return worked, stores[0].trace("table", rounds=steps) if record else None


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_synchronous_job_is_one_device_within_rounding(workers):
    data = recommender.clicks(SIZE, ROWS, seed=1)
    worked, _ = trained("dist_sync", workers, data, steps=12)
    losses = [sum(parts) for parts in zip(*(one.losses for one in worked), strict=True)]
    assert losses == pytest.approx(recommender.one_device(data, ROWS, SIZE, 12), rel=0.02)


@pytest.mark.parametrize("kind, seed", [("dist_sync", 2), ("dist_async", 1)])
def test_recommender_comes_close_to_the_known_optimum(kind, seed):
    data = recommender.clicks(SIZE, ROWS, seed=seed)
    worked, _ = trained(kind, 2, data, steps=150)
    losses = [sum(parts) for parts in zip(*(one.losses for one in worked), strict=True)]
    assert losses[0] > 0.8 and losses[-1] < 0.01


def test_workers_that_are_threads_begin_with_the_same_tower():
    begin = Barrier(2)

    def tower(_):
        begin.wait(timeout=60)
        return recommender.model(ROWS)[0].weight

    with ThreadPoolExecutor(2) as threads:
        for _ in range(300):
            one, other = threads.map(tower, range(2))
            assert torch.equal(one, other)


def test_the_bytes_are_those_of_the_distinct_rows():
    data, steps = recommender.clicks(SIZE, ROWS), 4
    worked, trace = trained("dist_sync", 2, data, steps, servers=3, record=True)
    for rank, one in enumerate(worked):
        parts = [recommender.part(data, SIZE, number, rank, 2).items for number in range(steps)]
        assert one.rows == [len(items.unique()) for items in parts] and one.rows[0] < parts[0].numel()
        assert trace.bytes_sent(f"worker{rank}") == sum(one.rows) * (8 + 16) + steps * 3 * 8
        assert trace.bytes_received(f"worker{rank}") == sum(one.rows[1:]) * 16  # before the first push nothing is shown


def test_the_gradient_of_the_table_has_only_its_rows():
    tower, table = recommender.model(1_000_000)
    examples = recommender.part(recommender.clicks(64, 1_000_000), 64, 0)
    table.weight.data[examples.items.unique()] = 1.0
    recommender.error(tower, table, examples).backward()
    gradient = table.weight.grad
    assert gradient.is_sparse and gradient._nnz() == 128 > gradient.coalesce()._nnz()


@pytest.mark.parametrize("rows, s, draws", [(1, 1.0, 5), (1000, 1.0, 200), (1000, 1.2, 4096), (50, 0.0, 20)])
def test_as_many_rows_are_distinct_as_the_formula_says(rows, s, draws):
    chances = recommender.popularity(rows, s)
    assert chances.sum().item() == pytest.approx(1) and (chances.diff() <= 0).all()
    counts = [len(recommender.zipf(draws, rows, s, seed=seed).unique()) for seed in range(100)]
    assert sum(counts) / 100 == pytest.approx(recommender.distinct(chances, draws), rel=0.02)


def test_rows_come_as_often_as_they_are_popular():
    drawn = recommender.zipf((500, 200), rows=100, seed=3)
    seen = drawn.flatten().bincount(minlength=100) / drawn.numel()
    assert drawn.shape == (500, 200) and (seen - recommender.popularity(100)).abs().max() < 0.005
    assert torch.equal(drawn, recommender.zipf((500, 200), rows=100, seed=3))


@pytest.mark.parametrize("rows", [0, -1, 1.5, None])
def test_a_table_has_rows(rows):
    for call in (recommender.popularity, recommender.model, lambda rows: recommender.zipf(3, rows)):
        with pytest.raises(PlacementError, match="rows"):
            call(rows)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_parts_of_a_minibatch_are_the_minibatch(workers):
    data = recommender.clicks(10, 7)
    for number in range(4):
        whole = recommender.part(data, 6, number)
        parts = [recommender.part(data, 6, number, rank, workers) for rank in range(workers)]
        assert sorted(torch.cat([one.scores for one in parts]).tolist()) == sorted(whole.scores.tolist())
    assert torch.equal(recommender.part(data, 6, 1).scores, data.scores[[6, 7, 8, 9, 0, 1]])
