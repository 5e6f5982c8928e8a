"""The stores of one process: ``local`` adds in main memory, ``device`` adds on the devices, by a plan."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from d2lps.algorithms import sharded
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Memory, Optimizer, State, lent, remembered
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.together import Saving
from d2lps.kvstore.values import KeySpec, Value, added, counted, each_of, fill, in_rows
from d2lps.messages import text


class LocalStore(KVStore):
    """The store ``local``: values of several devices are summed in main memory, in the order given."""

    type = "local"

    def __init__(self):
        super().__init__()
        self._values: dict[KeySpec, Tensor] = {}
        self._memory: dict[KeySpec, Memory] = {}  # the state of the optimizer

    def _init(self, fresh: list[tuple[KeySpec, Tensor]]) -> None:
        for spec, value in fresh:
            self._values[spec], self._memory[spec] = added([value]).clone(), {}

    def _push(
        self, keys: list[KeySpec], values: list[Value], outs: list[Value] | None, retry: Collection[KeySpec]
    ) -> None:
        done = [spec for spec in keys if spec in retry]
        with counted(done):
            for spec, value in zip(keys, values, strict=True):
                if spec not in retry:
                    self._values[spec] = self._added(spec, value)
                    done.append(spec)
        if outs is not None:
            self._pull_after_push(keys, outs)

    def _added(self, spec: KeySpec, value: Value) -> Tensor:
        total = self._sum(value)
        if self.optimizer is None:
            return total
        before = self._values[spec]
        return self.optimizer.stepped(before, total, self._memory[spec], 1, torch.empty_like(before))

    def _sum(self, value: Value) -> Tensor:
        total = added(value)
        return total if in_rows(value) or total.data_ptr() != each_of(value)[0].data_ptr() else total.clone()

    @torch.inference_mode()  # as ``out`` may have been made there
    def _pull(self, keys: list[KeySpec], outs: list[Value]) -> None:
        for spec, into in zip(keys, outs, strict=True):
            fill(into, self._values[spec])

    @torch.inference_mode()
    def _pull_rows(self, wanted: list[tuple[KeySpec, list, Tensor]]) -> None:
        for spec, outs, index in wanted:
            fill(outs, self._values[spec].view(-1, spec.width)[index].reshape(-1))

    def _choose(self, optimizer: Optimizer, number: int) -> None:
        """Do nothing: the state of a key is looked at in its next step."""

    def _take_snapshot(self, number: int, saving: Saving) -> Iterator[tuple[KeySpec, State]]:
        snapshot = [(spec, self._values[spec], lent(self._memory[spec])) for spec in self._keys.values()]
        optimizer = self.optimizer
        return ((spec, {"value": value} | remembered(optimizer, memory)) for spec, value, memory in snapshot)

    def _restore(self, states: list[tuple[KeySpec, State]], optimizer: Optimizer | None, number: int) -> None:
        for spec, state in states:
            state = {name: item.clone() if isinstance(item, Tensor) else item for name, item in state.items()}
            self._values[spec] = state.pop("value")
            self._memory[spec] = {optimizer.rule: state} if optimizer and state else {}


class DeviceStore(LocalStore):
    """The store ``device``: as ``local``, but each device sums a shard (``sharded``).

    :meth:`trace` returns the run of the last push of several values.
    """

    type = "device"
    _summed = None

    def trace(self, key=None, rounds: int = 8):
        if self._summed is None:
            raise Refused(text("store.nothing-summed"))
        return self._summed

    def _sum(self, value: Value) -> Tensor:
        values = each_of(value)
        if len(values) == 1:
            return super()._sum(value)
        from d2lps.carriers.execute import run
        from d2lps.carriers.here import Here

        names = [f"device{i}" for i in range(len(values))]
        buffers = {name: value.reshape(-1).clone() for name, value in zip(names, values, strict=True)}
        carrier = Here({name: buffer.device for name, buffer in buffers.items()})
        self._summed = run(sharded(names), buffers, carrier)
        return buffers[names[0]].cpu()
