"""All nodes in this process, on any list of devices."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

import torch

from d2lps.execute import Message, TensorError
from d2lps.text import text

Device = str | torch.device


class Here:
    """The carrier for one process: ``Here()``, ``Here(["cuda:0", "cuda:1"])``, ``Here({"gpu0": "cuda:0", …})``.

    devices
        None leaves every tensor where it is. A list is dealt in turn to the nodes, over and over if it is
        shorter, except that nodes named ``cpu`` or ``cpu0`` … lie in main memory. A mapping says it for each node.

    Between two devices bytes travel on CUDA streams, one per pair, so that different pairs move at once;
    on one device the receiver reads the sender's memory directly, one message after the other.

    >>> {node: str(device) for node, device in Here(["cpu"]).place(["gpu0", "cpu"]).items()}
    {'gpu0': 'cpu', 'cpu': 'cpu'}
    """

    def __init__(self, devices: "Sequence[Device] | Mapping[str, Device] | None" = None):
        if isinstance(devices, Mapping):
            self.devices = {node: _device(device) for node, device in devices.items()}
        elif devices is None:
            self.devices = None
        else:
            self.devices = [_device(device) for device in ([devices] if isinstance(devices, str) else devices)]
            if not self.devices:
                raise TensorError("Here([]) has no device: give at least one, such as Here(['cpu'])")
        self._streams: dict[tuple[torch.device, torch.device], torch.cuda.Stream] = {}
        self._zero: dict[torch.device, tuple[float, torch.cuda.Event]] = {}

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        """The device of each node; None if every tensor may stay where it is."""
        nodes = list(nodes)
        if self.devices is None:
            return None
        if isinstance(self.devices, dict):
            missing = [node for node in nodes if node not in self.devices]
            if missing:
                raise TensorError(f"Here has no device for {missing[0]} (it has {' '.join(self.devices)})")
            return {node: self.devices[node] for node in nodes}
        dealt = cycle(self.devices)
        return {n: torch.device("cpu") if n.rstrip("0123456789") == "cpu" else next(dealt) for n in nodes}

    def exchange(self, messages: list[Message]) -> list[tuple[float, float]]:
        """Carry one step; see :class:`d2lps.execute.Carrier`."""
        sources = _as_they_stood(messages)
        if any(tensor.is_cuda for m in messages for tensor in (m.source, m.target)):
            return self._exchange_cuda(messages, sources)
        times = []
        for message, source in zip(messages, sources, strict=True):
            start = time.perf_counter()
            message.write(source)
            times.append((start, time.perf_counter()))
        return times

    def _exchange_cuda(self, messages: list[Message], sources: list[torch.Tensor]) -> list[tuple[float, float]]:
        self.clock()  # the snapshots are made, and nothing of an earlier step is under way
        marks = []
        for message, source in zip(messages, sources, strict=True):
            here, there = source.device, message.target.device
            device = there if there.type == "cuda" else here
            stream = self._stream(here, device if here == there else there, device)
            with torch.cuda.device(device), torch.cuda.stream(stream):
                start = self._mark(device)
                arrived = source if here == there else source.to(there, non_blocking=there.type == "cuda")
                end = self._mark(device)
            marks.append((message, arrived, stream, start, end, device))
        # The writes follow in the order given, each after its own arrival: sums are the same bits every time.
        times = []
        for message, arrived, stream, start, end, device in marks:
            target = message.target.device
            if target.type == "cuda":
                main = torch.cuda.current_stream(target)
                main.wait_stream(stream)
                with torch.cuda.device(target):
                    start = self._mark(target) if message.source.device == target else start
                    message.write(arrived)
                    end = self._mark(target)
                arrived.record_stream(main)
            else:
                stream.synchronize()
                message.write(arrived)
            times.append((device, start, end))
        self.clock()
        return [(self._seconds(device, start), self._seconds(device, end)) for device, start, end in times]

    def clock(self) -> float:
        """Seconds, once all that was asked of any GPU is done."""
        for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
            torch.cuda.synchronize(index)
        return time.perf_counter()

    def describe(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """``"cpu ×4"``, ``"cuda:0 + cuda:1 + cpu"``: the devices that really carried it."""
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

    def _stream(self, src: torch.device, dst: torch.device, device: torch.device) -> torch.cuda.Stream:
        if (src, dst) not in self._streams:
            self._streams[src, dst] = torch.cuda.Stream(device)
        return self._streams[src, dst]

    def _mark(self, device: torch.device) -> torch.cuda.Event:
        if device not in self._zero:  # events know only differences: tie them to this process's clock once
            torch.cuda.synchronize(device)
            zero = torch.cuda.Event(enable_timing=True)
            zero.record()
            torch.cuda.synchronize(device)
            self._zero[device] = time.perf_counter(), zero
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def _seconds(self, device: torch.device, mark: torch.cuda.Event) -> float:
        origin, zero = self._zero[device]
        return origin + zero.elapsed_time(mark) / 1e3


def _as_they_stood(messages: list[Message]) -> list[torch.Tensor]:
    """The sources, with a copy of those that this same step overwrites."""
    written = {(m.send.dst, m.send.key) for m in messages}
    kept: dict[tuple[str, str], torch.Tensor] = {}
    sources = []
    for m in messages:
        place = (m.send.src, m.send.key)
        if place in written and place not in kept:
            kept[place] = m.source.clone()
        sources.append(kept.get(place, m.source))
    return sources


def _device(device: Device) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise TensorError(f"{device!r} is not a device of torch: write 'cpu' or 'cuda:0'") from None
    return torch.device("cuda", torch.cuda.current_device()) if found == torch.device("cuda") else found
