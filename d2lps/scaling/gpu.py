"""GPUs: their data sheets, and the rates at which groups of them exchange bytes."""

from math import prod
from typing import NamedTuple

from d2lps.scaling.models import data
from d2lps.topology.nccl import ACROSS, INSIDE, PROTOCOL

PRODUCTS, PRODUCTS8 = 0.8, 0.72  # of the peak that products reach, where no measured rate is given: as on most GPUs


class Gpu(NamedTuple):
    """A data sheet.

    Args:
        peak: FLOP/s of products of 16-bit matrices, without sparsity.
        memory: Bytes.
        reading, inside, outside: Bytes per second of its memory; to the other GPUs of its node, one way; and to other
            nodes.
        fp8: FLOP/s of products of 8-bit matrices; 0 if there are none.
        products, products8: FLOP/s that the fastest measured products of matrices reach, in 16 and in 8 bits; 0 if
            unknown.
        nvls: Bytes per second of an all-reduce inside a node if its switch adds (NVLS); 0 if it does not.
    """

    peak: float
    memory: int
    reading: float
    inside: float
    outside: float
    fp8: float = 0
    products: float = 0
    products8: float = 0
    nvls: float = 0

    @property
    def reached(self) -> float:
        """FLOP/s of the fastest product of 16-bit matrices."""
        return self.products or PRODUCTS * self.peak

    @property
    def reached8(self) -> float:
        """FLOP/s of the fastest product of 8-bit matrices; 0 if there are none."""
        return self.products8 or PRODUCTS8 * self.fp8


GPUS = {name: Gpu(**sheet) for name, sheet in data("gpus.toml").items()}


def beside(per_node: int, *dimensions: tuple[int, int]) -> tuple[int, int]:
    """Return the GPUs of a group, and the fewest of them that share a node.

    Args:
        per_node: GPUs of a node.
        dimensions: How many GPUs the group has in each dimension, and how many numbers lie between two neighbors.
    """
    places = [(count, max(1, per_node // stride)) for count, stride in dimensions]
    return prod(count for count, _ in places), prod(count % most or most for count, most in places)


def around(gpu: Gpu, members: int, near: int) -> tuple[float, float]:
    """Return the bytes per second that a GPU sends in an all-gather or half an all-reduce, and its latency in seconds.

    NCCL makes as many rings as a node has GPUs of the group, and each leaves the node by a card of its own: this is the
    prediction of ``busbw`` for :func:`~d2lps.rail_rings`, which the tests compare, over links that carry what NCCL's
    protocol leaves of them.

    Args:
        gpu: The data sheet.
        members, near: The GPUs of the group, and those in each node, as :func:`beside` returns them.
    """
    inside = PROTOCOL * gpu.inside
    if members == near:
        return inside, (members - 1) * 2 * INSIDE
    rate = near * min(gpu.outside, inside / (near - 1) if near > 1 else gpu.outside)
    return rate, (members - 1) * 2 * (ACROSS + (near - 1) * INSIDE) / near


def across(gpu: Gpu, members: int, near: int) -> float:
    """Return the bytes per second that a GPU of a group sends in an all-to-all: each by its own card, others inside.

    Args:
        gpu, members, near: As for :func:`around`.
    """
    inside = PROTOCOL * gpu.inside
    if members == near:
        return inside
    outside = gpu.outside * (members - 1) / (members - near)
    return min(outside, inside * (members - 1) / (near - 1)) if near > 1 else outside
