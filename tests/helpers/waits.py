"""Waits for an event: until it happens, and at most as long as anything takes that still lives on a busy machine."""

import time
from collections.abc import Callable

LIVE = 60.0  # seconds; a wait that must end in failure, such as one for a lost worker, has a deadline of its own


def soon(happens: Callable[[], object], seconds: float = LIVE) -> None:
    """Wait until ``happens()``."""
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, "this should have happened"
        time.sleep(0.005)
