"""What this chapter shows before its reader has made it."""

from d2lps import aggregate_at, cost, nvswitch, sharded

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def opening() -> dict:
    """The race of this chapter: all keys on one server, and spread over four."""
    place = nvswitch(4)
    plans = {"1 server": aggregate_at(GPUS, "gpu0"), "4 servers": sharded(GPUS)}
    return {name: cost.shared(plan, place, "160 MB") for name, plan in plans.items()}
