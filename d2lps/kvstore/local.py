"""The stores of one process: ``local`` adds in main memory, ``device`` on the devices, by a plan."""

from collections.abc import Iterator

import torch

from d2lps.algorithms import sharded
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.saving import State
from d2lps.kvstore.store import KVStore, fill
from d2lps.kvstore.values import Given, Known, added, each_of


class LocalStore(KVStore):
    """``local``: what the devices of one process push is summed in main memory, in the order given."""

    type = "local"

    def __init__(self):
        super().__init__()
        self._values: dict[Known, torch.Tensor] = {}
        self._memory: dict[Known, dict] = {}
        self._updates: Optimizer | None = None

    def _init(self, fresh: list[tuple[Known, torch.Tensor]]) -> None:
        for known, value in fresh:
            self._values[known], self._memory[known] = added([value]).clone(), {}

    def _push(self, keys: list[Known], values: list[Given]) -> None:
        for known, given in zip(keys, values, strict=True):
            total = self._sum(given)
            if self._updates is not None:
                total = self._updates.stepped(
                    self._values[known], total, self._memory[known], 1, torch.empty_like(self._values[known])
                )
            self._values[known] = total

    def _sum(self, given: Given) -> torch.Tensor:
        total = added(given)
        return total.clone() if total.data_ptr() == each_of(given)[0].data_ptr() else total

    def _pull(self, keys: list[Known], outs: list[Given]) -> None:
        for known, into in zip(keys, outs, strict=True):
            fill(into, self._values[known])

    def _rows(self, asked) -> None:
        for known, outs, index in asked:
            fill(outs, self._values[known].view(-1, known.width)[index].reshape(-1))

    def _states(self) -> Iterator[tuple[Known, State]]:
        for known, value in self._values.items():
            yield known, {"value": value} | self._memory[known]

    def _restore(self, states: list[tuple[Known, State]], optimizer: Optimizer | None) -> None:
        self._updates = optimizer
        for known, state in states:
            state = {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in state.items()}
            self._values[known], self._memory[known] = state.pop("value"), state

    def _optimizer(self, optimizer: Optimizer) -> None:
        self._updates, self._memory = optimizer, {known: {} for known in self._memory}


class DeviceStore(LocalStore):
    """``device``: the same, and the sum comes together on the devices, a shard on each (``sharded``).

    :meth:`trace` is the run of the last push of several values.
    """

    type = "device"
    _run = None

    def trace(self, key=None, rounds: int = 8):
        if self._run is None:
            raise Refused("nothing has been summed yet: push a list of values, one per device")
        return self._run

    def _sum(self, given: Given) -> torch.Tensor:
        values = each_of(given)
        if len(values) == 1:
            return super()._sum(given)
        from d2lps.carriers.execute import run
        from d2lps.carriers.here import Here

        names = [f"device{i}" for i in range(len(values))]
        buffers = {name: value.reshape(-1).clone() for name, value in zip(names, values, strict=True)}
        carrier = Here({name: buffer.device for name, buffer in buffers.items()})
        self._run = run(sharded(names), buffers, carrier)
        return buffers[names[0]].cpu()
