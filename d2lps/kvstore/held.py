"""One part of a key at one server: its value, its open round, and who waits for it."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import KVError


class Found(NamedTuple):
    """What a pull gets: the value, how many rounds (asynchronously: pushes) are in it, and how many were summed."""

    value: Tensor
    version: int
    counted: int


Reply = Callable[["Found | KVError"], object]


class Waiting(NamedTuple):
    rank: int
    need: int
    until: float
    reply: Reply


class Held:
    """One part of a key at one server."""

    def __init__(self, name: str, elements: int, dtype: torch.dtype, workers: int):
        self.name, self.elements, self.dtype = name, elements, dtype
        self.value: Tensor | None = None
        self.version, self.counted, self.skip = 0, 0, False
        self.rounds = [0] * workers  # how many pushes of each worker are counted
        self.arrived: dict[int, Tensor] = {}  # of the open round, not yet in the sum
        self.summed: list[int] = []
        self.sum: Tensor | None = None
        self.memory: dict = {}
        self.waiting: list[Waiting] = []
        self.changed = threading.Condition()


def answer(done: "list[tuple[Waiting, Found | KVError]]") -> None:
    """Outside of the lock: a reply may take its time."""
    for waiting, found in done:
        waiting.reply(found)


def workers(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"
