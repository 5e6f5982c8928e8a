"""All nodes in this process, on any list of devices."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import TypeAlias

import torch

from d2lps.carriers.base import Bound, Carrier, Executed, Program
from d2lps.carriers.tensors import TensorError
from d2lps.messages import text
from d2lps.plan.plan import Plan

Device: TypeAlias = str | torch.device


class Here(Carrier):
    """The carrier for one process: ``Here()``, ``Here(["cuda:0", "cuda:1"])``, ``Here({"gpu0": "cuda:0", …})``.

    Between two devices bytes travel on CUDA streams, one per pair, so that different pairs move at once;
    on one device the receiver reads the sender's memory directly, one message after the other.

    Args:
        devices: None leaves every tensor on its device. A list is dealt to the nodes in turn, over and over if it is
            shorter, except that nodes named ``cpu`` or ``cpu0`` … lie in main memory. A mapping has a device per node.

    Raises:
        TensorError: if this machine has no such device.

    Example:
        >>> {node: str(device) for node, device in Here(["cpu"]).place(["gpu0", "cpu"]).items()}
        {'gpu0': 'cpu', 'cpu': 'cpu'}
    """

    def __init__(self, devices: "Sequence[Device] | Mapping[str, Device] | None" = None):
        self.devices: dict[str, torch.device] | list[torch.device] | None
        if isinstance(devices, Mapping):
            self.devices = {node: _device(device) for node, device in devices.items()}
        elif devices is None:
            self.devices = None
        else:
            listed = [devices] if isinstance(devices, Device) else devices
            if not isinstance(listed, Sequence) or not listed:
                raise TensorError(text("here.no-device", given=repr(devices)))
            self.devices = [_device(device) for device in listed]
        self._streams: dict[tuple[torch.device, torch.device], list[torch.cuda.Stream]] = {}
        self._zero: dict[torch.device, tuple[float, torch.cuda.Event]] = {}
        self._exchanging = threading.Lock()  # several threads may use one carrier, but only one exchanges at a time

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        nodes = list(nodes)
        if self.devices is None:
            return None
        if isinstance(self.devices, dict):
            missing = [node for node in nodes if node not in self.devices]
            if missing:
                raise TensorError(text("here.missing", node=missing[0], nodes=" ".join(self.devices)))
            return {node: self.devices[node] for node in nodes}
        dealt = cycle(self.devices)
        return {n: torch.device("cpu") if n.rstrip("0123456789") == "cpu" else next(dealt) for n in nodes}

    def load(self, program: Program) -> Callable[[], Executed]:
        def exchange(_: int, sends: list[Bound]) -> list[tuple[float, float]]:
            if any(tensor.is_cuda for _, source, target in sends for tensor in (source, target)):
                with self._exchanging:
                    return self._exchange_cuda(program, sends)
            spans = []
            for sent, source, target in sends:
                start = time.perf_counter()
                program.write(sent.begins, target, source)
                spans.append((start, time.perf_counter()))
            return spans

        return program.stepwise(exchange, self.clock)

    def _exchange_cuda(self, program: Program, sends: list[Bound]) -> list[tuple[float, float]]:
        self.clock()  # wait for the spare copies and for earlier steps
        self._zero = {}
        carried: list[tuple] = []
        for _, source, target in sends:
            here, there = source.device, target.device
            device = there if there.type == "cuda" else here
            if here == there:
                carried.append((source, device, None))
                continue
            with self._streams_of(here, there):
                start = self._mark(device)
                # Pinned, because a copy to ordinary main memory would block all streams.
                arrived = torch.empty_like(source, device=there, pin_memory=there.type == "cpu")
                arrived.copy_(source, non_blocking=True)
                end = self._mark(device)
            carried.append((arrived, device, (start, end)))
        # Write in the order given, each after its own arrival, so that sums have the same bits every time.
        times = []
        for (sent, _, target), (arrived, device, marks) in zip(sends, carried, strict=True):
            start = marks[0] if marks else self._now(device)
            if marks and target.is_cuda:
                torch.cuda.current_stream(target.device).wait_event(marks[1])
                arrived.record_stream(torch.cuda.current_stream(target.device))
            elif marks:
                marks[1].synchronize()
            program.write(sent.begins, target, arrived)
            times.append((device, start, self._now(target.device)))
        self.clock()
        spans = [(self._seconds(device, start), self._seconds(device, end)) for device, start, end in times]
        return [(start, max(start, end)) for start, end in spans]

    def clock(self) -> float:
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            torch.cuda.synchronize(index)
        return time.perf_counter()

    def describe(self, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> str:
        # The devices that the tensors really lie on: "cpu ×4", "cuda:0 + cuda:1 + cpu".
        counts: dict[str, int] = {}
        for tensor in tensors.values():
            counts[str(tensor.device)] = counts.get(str(tensor.device), 0) + 1
        return " + ".join(device if count == 1 else f"{device} ×{count}" for device, count in counts.items())

    def __str__(self) -> str:
        if self.devices is None:
            return text("here.stay")
        devices = list(self.devices.values() if isinstance(self.devices, dict) else self.devices)
        if all(device.type == "cpu" for device in devices):
            return text("here.cpu")
        return text("here.devices", devices=" ".join(dict.fromkeys(map(str, devices))))

    @contextmanager
    def _streams_of(self, src: torch.device, dst: torch.device) -> Iterator[None]:
        """Enter the streams of this pair on both devices: torch copies between GPUs on the source's current stream."""
        if (src, dst) not in self._streams:
            self._streams[src, dst] = [torch.cuda.Stream(end) for end in (src, dst) if end.type == "cuda"]
        with ExitStack() as entered:
            for stream in self._streams[src, dst]:
                entered.enter_context(torch.cuda.stream(stream))
            yield

    def _mark(self, device: torch.device) -> torch.cuda.Event:
        """Record the present moment on the current stream of ``device``."""
        if device not in self._zero:  # events only give differences: tie them to this process's clock, anew each step
            zero = torch.cuda.Event(enable_timing=True)
            zero.record(torch.cuda.current_stream(device))
            zero.synchronize()
            self._zero[device] = time.perf_counter(), zero
        mark = torch.cuda.Event(enable_timing=True)
        mark.record(torch.cuda.current_stream(device))
        return mark

    def _now(self, device: torch.device) -> "torch.cuda.Event | float":
        return self._mark(device) if device.type == "cuda" else time.perf_counter()

    def _seconds(self, device: torch.device, moment: "torch.cuda.Event | float") -> float:
        if isinstance(moment, float):
            return moment
        origin, zero = self._zero[device]
        return origin + zero.elapsed_time(moment) / 1e3


def _device(name: Device) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise TensorError(text("here.not-a-device", name=repr(name))) from None
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise TensorError(text("here.too-few", name=repr(name), gpus=torch.cuda.device_count()))
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
