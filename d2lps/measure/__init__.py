"""Measure this machine, and compare predicted with measured times.

A single time on a shared machine is worth little, so everything here is repeated, and jobs take turns. Start with
``calibration.calibrate`` and ``comparing.compare``, which ``d2lps`` hands on::

    timing        how runs are repeated and take turns; ``copy_bandwidth``
    calibration   the figures of this machine, how they are fitted, and the topology made of them
    comparing     the table and the plot of predicted and measured times, and when runs count as steady
"""

from d2lps.measure.timing import copy_bandwidth

__all__ = ["copy_bandwidth"]
