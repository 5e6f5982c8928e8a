"""How many steps a small network needs until it knows the digits, for each size of the minibatch.

The network has one hidden layer and is written in NumPy: its steps take a tenth of a millisecond, so a laptop can do
the tens of thousands that a measurement needs.
"""

from collections.abc import Iterable
from functools import cache
from statistics import mean

import numpy as np

from d2lps.train.by_plan import digits

HIDDEN = 64


@cache
def pixels() -> tuple[np.ndarray, ...]:
    """Return training images (1536 × 64, float32), their labels, test images (261 × 64) and their labels."""
    (X, y), (X_test, y_test) = digits()
    return X.reshape(len(X), -1).numpy(), y.numpy(), X_test.reshape(len(X_test), -1).numpy(), y_test.numpy()


def steps_to(target: float, batch: int, rate: float, seed: int, most: int = 2000) -> int:
    """Train by plain SGD until the test accuracy reaches ``target``.

    Args:
        target: The accuracy, 0 to 1, on the test images; it is checked after every step.
        batch: Examples in a minibatch, drawn with replacement.
        rate: The learning rate.
        seed: The seed of the initial weights and of the minibatches.
        most: Where to give up.

    Returns:
        The number of steps; ``most`` if the target was not reached before.

    Example:
        >>> 8 < steps_to(0.93, batch=256, rate=0.64, seed=0) < 40
        True
    """
    X, y, X_test, y_test = pixels()
    draw = np.random.default_rng(seed)
    A, B = (draw.normal(0, 0.15, shape).astype("f4") for shape in ((X.shape[1], HIDDEN), (HIDDEN, 10)))
    a, b = np.zeros(HIDDEN, "f4"), np.zeros(10, "f4")
    step_size = np.float32(rate)
    for step in range(1, most):
        rows = draw.integers(0, len(y), batch)
        x = X[rows]
        hidden = np.maximum(x @ A + a, 0)
        scores = hidden @ B + b
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)
        error[np.arange(batch), y[rows]] -= 1
        error /= batch
        back = (error @ B.T) * (hidden > 0)
        B -= step_size * (hidden.T @ error)
        b -= step_size * error.sum(axis=0)
        A -= step_size * (x.T @ back)
        a -= step_size * back.sum(axis=0)
        guessed = (np.maximum(X_test @ A + a, 0) @ B + b).argmax(axis=1)
        if (guessed == y_test).mean() >= target:
            return step
    return most


def steps_by_batch(
    batches: Iterable[int], target: float = 0.93, seeds: Iterable[int] = range(8), rate: float = 0.08
) -> dict[int, tuple[float, float]]:
    """Measure the steps to ``target`` for each batch, with the best learning rate.

    Args:
        batches: From small to large.
        target: The test accuracy.
        seeds: The runs of which the mean is taken.
        rate: The learning rate of the smallest batch. For each batch the best rate of the batch before is tried, and
            its double.

    Returns:
        Batch → the least mean number of steps, and the rate that it took.
    """
    best, seeds = {}, [*seeds]
    for batch in batches:
        tried = {each: mean(steps_to(target, batch, each, seed) for seed in seeds) for each in (rate, 2 * rate)}
        rate = min(tried, key=tried.__getitem__)
        best[batch] = float(tried[rate]), rate
    return best
