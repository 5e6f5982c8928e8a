"""Time to accuracy: steps × time per step, for a batch and a number of devices, and what it costs.

>>> job = Job(steps=18, critical=33, rate=1000, exchange=0.002)
>>> job.steps_of(33), job.steps_of(33 * 9)
(36.0, 20.0)
>>> round(job.best_batch(16)), f"{job.seconds(16):.3f}"
(31, '0.142')

With batches of V examples a training takes q (1 + V_c/V) steps (McCandlish, Kaplan & Amodei, "An empirical model of
large-batch training", 2018), so it reads q (V + V_c) examples; q is the fewest steps. On n devices that process
``rate`` examples per second each, a step takes V/(n·rate) seconds, and the all-reduce (n−1)/n of ``exchange``, which is
2S/B for a gradient of S bytes over links of B bytes per second.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from d2lps.messages import text
from d2lps.scaling.transformer import ScalingError


class Job(NamedTuple):
    """A training up to a given accuracy.

    Args:
        steps: The fewest steps, q: those that it takes with very large batches.
        critical: The critical batch V_c, in examples: with this batch it takes twice as many steps.
        rate: Examples per second of one device.
        exchange: Seconds that an all-reduce takes among very many devices.
        least: The fewest examples of a step on one device, for which ``rate`` still holds.
    """

    steps: float
    critical: float
    rate: float
    exchange: float = 0
    least: float = 1

    def steps_of(self, batch: float) -> float:
        """Return the number of steps with batches of this size.

        Args:
            batch: Examples in a minibatch.

        Returns:
            Not rounded: it is a mean over many runs.
        """
        return self.steps * (1 + self.critical / batch)

    def step_seconds(self, devices: int, batch: float) -> float:
        """Return the time of a step: computing, then the all-reduce.

        Args:
            devices, batch: The number of devices, and the examples of the whole minibatch.

        Returns:
            Seconds.
        """
        return batch / (devices * self.rate) + self.exchange * (devices - 1) / devices

    def best_batch(self, devices: int) -> float:
        """Return the batch that is fastest on so many devices.

        The time is q (1 + V_c/V)(V/(n·rate) + z), with an all-reduce of z seconds; it is least where V² = V_c·z·n·rate.

        Args:
            devices: Their number, n.

        Returns:
            Examples in a minibatch; at least ``least`` per device.
        """
        exchange = self.exchange * (devices - 1) / devices
        return max(self.least * devices, math.sqrt(self.critical * exchange * devices * self.rate))

    def seconds(self, devices: int, batch: float | None = None) -> float:
        """Return the time of the whole training.

        Args:
            devices, batch: The number of devices, and the examples of a minibatch; if left out, the best number.

        Returns:
            Seconds.
        """
        batch = batch or self.best_batch(devices)
        return self.steps_of(batch) * self.step_seconds(devices, batch)

    def cost(self, devices: int, price: float, batch: float | None = None) -> float:
        """Return the cost of the whole training.

        Args:
            devices, batch: As for :meth:`seconds`.
            price: The price of a device per hour.

        Returns:
            In the currency of the price.
        """
        return devices * price * self.seconds(devices, batch) / 3600


def fit(measured: Mapping[float, float]) -> tuple[float, float]:
    """Fit the fewest steps and the critical batch to measured numbers of steps.

    Args:
        measured: Batch → steps, for at least two batches.

    Returns:
        q and V_c, for which the squares of the relative errors of q (1 + V_c/V) have the least sum.

    Raises:
        ScalingError: For fewer than two batches, and for steps that do not fall with the batch.

    Example:
        >>> fit({1: 612, 4: 166.5, 64: 27.28125})
        (18.0, 33.0)
    """
    if len(measured) < 2:
        raise ScalingError(text("scaling.two-batches", given=len(measured)))
    # With x = 1/V the steps are q + q·V_c·x: the normal equations of two unknowns.
    rows = [(1 / steps, 1 / (batch * steps)) for batch, steps in measured.items()]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    scale = aa * bb - ab * ab
    steps, examples = (a * bb - b * ab) / scale, (b * aa - a * ab) / scale
    if not (steps > 0 and examples > 0):
        raise ScalingError(text("scaling.no-hyperbola"))
    return float(f"{steps:.12g}"), float(f"{examples / steps:.12g}")
