"""Steps to an accuracy: the same for the same seed, fewer for larger batches, and never more than allowed."""

import pytest

from d2lps.train import large_batch


def test_a_seed_decides_the_run():
    one, again, other = (large_batch.steps_to(0.8, 32, 0.32, seed) for seed in (0, 0, 1))
    assert one == again and 1 <= one < 100 and 1 <= other < 100


def test_a_run_that_cannot_succeed_gives_up():
    assert large_batch.steps_to(1.0, 4, 0.0, seed=0, most=7) == 7


def test_larger_batches_take_fewer_steps_but_more_examples():
    best = large_batch.steps_by_batch([4, 32, 256], target=0.85, seeds=range(3))
    steps = [steps for steps, _ in best.values()]
    examples = [batch * steps for batch, (steps, _) in best.items()]
    assert steps == sorted(steps, reverse=True) and examples == sorted(examples)


@pytest.mark.parametrize("batch", [1, 5, 300])
def test_any_size_of_a_minibatch_runs(batch):
    assert large_batch.steps_to(0.5, batch, 0.1, seed=0) < 500
