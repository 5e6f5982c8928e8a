"""This machine as a topology: its GPUs as its driver shows them, or else its processors round their one memory.

>>> host = this_host(["rank0", "rank1"], bandwidth="10 GB/s")
>>> host.kinds, str(host.through["memory"])
({'rank0': 'machine', 'rank1': 'machine', 'memory': 'memory'}, '10 GB/s')
"""

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from d2lps.plan.parse import names
from d2lps.topology.graph import Topology, TopologyError
from d2lps.topology.hosts import PCIE, one_memory
from d2lps.topology.nvidia import read
from d2lps.units import Bandwidth

DEADLINE = 10.0  # seconds that nvidia-smi may take; it wakes the GPUs, and a lost one may block it for ever
COPIED = 16_000_000  # bytes: more than most caches keep
COPIES = 7
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s.*", re.DOTALL)


def this_host(
    nodes: Iterable[str] | None = None, bandwidth: "str | Bandwidth | None" = None, root: "str | Path" = "/"
) -> Topology:
    """The machine that this runs on.

    With GPUs that ``nvidia-smi`` shows, :meth:`Topology.from_nvidia_smi` of its table, PCIe links as fast as the
    kernel says that both their ends can be; numbered as ``nvidia-smi`` does, which is torch's order under
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Without, :func:`one_memory`.

    nodes
        the nodes that have to be there. GPUs are used only if all of them are among them; by default all GPUs, or
        without GPUs ``rank0`` …, one for each processor that this process may use.
    bandwidth
        bytes per second at which the one memory copies; by default measured, which takes some tens of milliseconds.
        A quick figure: ``calibrate`` gives a better one.
    root
        the folder under which ``sys/bus/pci/devices`` and ``proc/cpuinfo`` are.

    The name says what it is, as the driver or the processor does. Raises PlanError or TopologyError for names that
    cannot be nodes, UnitError for a bandwidth that is none. Source of the rates: ``max_link_speed`` and
    ``max_link_width``, times the encoding of each PCIe version.
    """
    wanted = None if nodes is None else names(nodes)
    host = _gpus(Path(root))
    if host and {*(wanted or ())} <= {*host.kinds}:
        return host
    ranks = wanted if wanted is not None else [f"rank{i}" for i in range(_processors())]
    memory = one_memory(ranks, Bandwidth("inf") if bandwidth is None else bandwidth)
    if bandwidth is None:  # measured once everything else is known to be right
        memory = replace(memory, through={"memory": copy_rate()})
    return replace(memory, name=_processor(Path(root)) or memory.name)


def copy_rate(nbytes: int = COPIED, copies: int = COPIES) -> Bandwidth:
    """Bytes copied per second from one buffer of ``nbytes`` to another by one processor: the median of ``copies``.

    A copy reads and writes every byte, so the memory moves twice as much.
    """
    source, target, times = bytearray(nbytes), bytearray(nbytes), []
    for _ in range(copies + 1):
        start = perf_counter()
        target[:] = memoryview(source)
        times.append(perf_counter() - start)
    middle = sorted(times[1:])[copies // 2]  # the first touch of a page is not a copy
    return Bandwidth(nbytes / max(middle, 1e-9))


def link_rate(device: Path) -> Bandwidth | None:
    """Bytes per second, one way, between a PCI device and the port above it, or None where the kernel does not tell.

    It is what both ends can do, since a GPU that sleeps does less; but at least what it does now, since the port that
    a virtual machine sees may be made up.
    """
    device = device.resolve()  # a link into the tree of the bus, where the folder above is the port
    return max(filter(None, [_rate("max", device, device.parent), _rate("current", device)]), default=None)


def _rate(which: str, *ends: Path) -> Bandwidth | None:
    speeds = [speed for end in ends if (speed := _number(end / f"{which}_link_speed"))]
    widths = [width for end in ends if (width := _number(end / f"{which}_link_width"))]
    if not speeds or not widths:
        return None
    return Bandwidth(min(speeds) * 1e9 / 8 * _useful(min(speeds)) * min(widths))


def _useful(speed: float) -> float:
    """The part of the transfers that is data: 8 of 10 bits in versions 1 and 2, 128 of 130 up to 5, 242 of 256 in 6."""
    return 8 / 10 if speed < 8 else 128 / 130 if speed < 64 else 242 / 256


def _number(path: Path) -> float | None:
    said = _read(path).strip()
    found = _SPEED.fullmatch(said) or re.fullmatch(r"([0-9]{1,4})", said)
    return float(found[1]) if found else None


def _gpus(root: Path) -> Topology | None:
    """The GPUs, or None where there are none that can be seen."""
    listed = _says("--query-gpu=index,pci.bus_id,name", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in (listed or "").splitlines()]
    rows = [row for row in rows if len(row) == 3 and row[0].isdecimal()]
    table = _says("topo", "-m") if rows else None
    if not table:
        return None
    devices = root / "sys/bus/pci/devices"
    rates = {f"gpu{index}": link_rate(devices / _address(bus)) or PCIE for index, bus, _ in rows}
    try:
        host = read(table, pcie=rates)
    except TopologyError:  # a driver that shows GPUs and not how they are joined, as in a virtual machine
        return None
    models = {model for _, _, model in rows}
    return replace(host, name=_short(f"{len(rows)} × {models.pop()}") or host.name) if len(models) == 1 else host


def _says(*arguments: str) -> str | None:
    """What nvidia-smi prints, or None."""
    command = ["nvidia-smi", *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _address(bus: str) -> str:
    """``00000000:3B:00.0``, as the driver writes it, is ``0000:3b:00.0`` for the kernel."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}".replace("/", "")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(root: Path) -> str:
    found = re.search(r"^(?:model name|Model|Hardware)\s*:(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return _short(found[1] if found else platform.processor() or platform.machine())


def _short(name: str) -> str:
    """A name fit to be printed on one line, or nothing."""
    name = " ".join(name.split())
    return name if name.isprintable() and len(name) <= 60 else ""


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
