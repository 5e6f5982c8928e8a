"""What this machine does, and how well that was predicted.

``timing`` repeats runs and takes turns, ``calibration`` measures what messages cost here and makes a topology of it,
``comparing`` sets predicted beside measured. A single time on a shared machine is worth little: all of them repeat.
"""

from d2lps.measure.timing import copy_bandwidth, median_run

__all__ = ["copy_bandwidth", "median_run"]
