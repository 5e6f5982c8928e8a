"""Waits for an event: until it happens, and at most as long as anything takes that still lives on a busy machine."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

LIVE = 60.0  # seconds; a wait that must end in failure, such as one for a lost worker, has a deadline of its own


def soon(happens: Callable[[], Result], seconds: float = LIVE, every: float = 0.005) -> Result:
    """Wait until ``happens()``, which is asked every so many seconds, and return what it returned."""
    until = time.monotonic() + seconds
    while not (happened := happens()):
        assert time.monotonic() < until, "this should have happened"
        time.sleep(every)
    return happened
