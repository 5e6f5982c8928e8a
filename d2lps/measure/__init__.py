"""What this machine does: ``timing`` repeats a run, ``calibration`` measures what messages cost here, ``comparing``
sets predicted beside measured.
"""

from d2lps.measure.timing import copy_bandwidth, median_run

__all__ = ["copy_bandwidth", "median_run"]
