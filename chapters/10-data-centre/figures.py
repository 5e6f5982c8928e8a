"""The runs with which this chapter opens."""

from d2lps import Trace, cost, machines, ring

ORDERS = ("01234567", "01452367", "04152637")


def opening() -> dict[str, Trace]:
    """Return one ring over eight hosts in two racks, in three orders; a rack's uplink is as fast as two hosts."""
    place = machines(8, 0, nic="1 GB/s", racks=2, uplink="2 GB/s")
    return {order: cost.shared(ring([f"host{i}/cpu" for i in order]), place, "400 MB") for order in ORDERS}
