"""This machine as a topology: its GPUs as their driver shows them, or else its processors around one memory.

>>> host = this_host(["rank0", "rank1"], bandwidth="10 GB/s")
>>> host.kinds, str(host.through["memory"])
({'rank0': 'machine', 'rank1': 'machine', 'memory': 'memory'}, '10 GB/s')
"""

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from d2lps.plan.parse import names
from d2lps.topology.graph import Topology
from d2lps.topology.hosts import one_memory
from d2lps.topology.links import LANES, PCIE, Resource, TopologyError
from d2lps.units import Bandwidth

DEADLINE = 10.0  # seconds that nvidia-smi may take; it wakes the GPUs, and a broken GPU may block it forever
COPIED = 16_000_000  # bytes: more than most caches hold
COPIES = 7

QUERY = "index,pcie.link.gen.max,pcie.link.width.max,pcie.link.gen.current,pcie.link.width.current,name"


def own_nodes() -> list[str]:
    """Return the nodes of a cluster that bear the name of this process; none outside a cluster.

    The processes of a host share its nodes out among themselves.
    """
    nodes = os.environ.get("D2LPS_PLAYING", "").split()
    return nodes and nodes[int(os.environ["LOCAL_RANK"]) :: int(os.environ["LOCAL_WORLD_SIZE"])]


def this_host(
    nodes: Iterable[str] | None = None, bandwidth: "str | Bandwidth | None" = None, root: "str | Path" = "/"
) -> Topology:
    """Return the topology of the machine that this process runs on.

    If ``nvidia-smi`` shows GPUs, this is :meth:`Topology.from_nvidia_smi` of its table, with PCIe links as fast as GPU
    and slot together allow. GPUs are numbered as in ``nvidia-smi``, which is torch's order under
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Without GPUs it is :func:`one_memory`. Its name is the model of the GPUs or of
    the processor.

    Args:
        nodes: The nodes that the topology must have. GPUs are used only if all these nodes are GPUs of this machine. By
            default all GPUs, or without GPUs ``rank0`` …, one for each processor that this process may use.
        bandwidth: Bytes per second at which the one memory copies; by default a quick measurement, which takes some
            tens of milliseconds (``calibrate`` measures better).
        root: The folder that contains ``proc/cpuinfo``.

    Returns:
        The GPUs and links of the host, or its one memory.

    Raises:
        PlanError, TopologyError, UnitError: For invalid node names, and for a bad bandwidth.

    Source: ``nvidia-smi --help-query-gpu``; the encodings of the PCIe versions.
    """
    wanted = None if nodes is None else names(nodes)
    host = _gpus()
    if host and {*(wanted or ())} <= {*host.kinds}:
        return host
    ranks = wanted if wanted is not None else [f"rank{i}" for i in range(_processors())]
    memory = one_memory(ranks, Bandwidth("inf") if bandwidth is None else bandwidth)
    if bandwidth is None:  # measured only after the names have been checked
        memory = replace(memory, limits={"memory": Resource(copy_rate())})
    return replace(memory, name=_processor(Path(root)) or memory.name)


def copy_rate(nbytes: int = COPIED, copies: int = COPIES) -> Bandwidth:
    """Measure the bytes per second at which one processor copies ``nbytes``: the median of ``copies`` copies.

    A copy reads and writes every byte, so the memory moves twice as many.
    """
    source, target, times = bytearray(nbytes), bytearray(nbytes), []
    for _ in range(copies + 1):
        start = perf_counter()
        target[:] = memoryview(source)
        times.append(perf_counter() - start)
    middle = sorted(times[1:])[copies // 2]  # the first touch of a page is not a copy
    return Bandwidth(nbytes / max(middle, 1e-9))


def listed() -> list[list[str]]:
    """Return the cells of QUERY for each GPU that ``nvidia-smi`` shows."""
    printed = nvidia_smi(f"--query-gpu={QUERY}", "--format=csv,noheader") or ""
    rows = [[cell.strip() for cell in line.split(",", 5)] for line in printed.splitlines()]
    return [row for row in rows if len(row) == 6 and row[0].isdecimal()]


def _gpus() -> Topology | None:
    """Return the topology of the GPUs, or None if no GPU is visible."""
    rows = listed()
    table = nvidia_smi("topo", "-m") if rows else None
    if not table:
        return None
    names = "".join(f"\nGPU {index}: {name}" for index, *_, name in rows)
    table += f"\n{nvidia_smi('nvlink', '-s') or ''}{names}"
    try:
        host = Topology.from_nvidia_smi(table, pcie={f"gpu{index}": _rate(*link) for index, *link, _ in rows})
    except TopologyError:  # the driver shows GPUs but not their links, as in a virtual machine
        return None
    models = {name for *_, name in rows}
    return replace(host, name=_short(f"{len(rows)} × {models.pop()}") or host.name) if len(models) == 1 else host


def _rate(*generations_and_widths: str) -> "Bandwidth | str":
    """Return the bytes per second, one way, of a GPU's PCIe link.

    It is the most that GPU and slot can do, since a sleeping GPU runs slower, but at least the present rate, since the
    slot that a virtual machine sees may be invented.
    """
    best, width, now, width_now = (int(text) if text.isdecimal() else 0 for text in generations_and_widths)
    rate = max(LANES.get(best, 0) * width, LANES.get(now, 0) * width_now)
    return Bandwidth(rate) if rate else PCIE


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of ``nvidia-smi``, or None if it fails."""
    import subprocess  # here, because the core must load in an instant

    command = ["nvidia-smi", *arguments]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.decode("utf-8", "replace") if process.returncode == 0 else None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(root: Path) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_bytes().decode("utf-8", "replace")
    except OSError:
        lines = ""
    model = re.search(r"^(?:model name|Model|Hardware)\s*:(.*)$", lines, re.MULTILINE)
    return _short(model[1] if model else platform.processor() or platform.machine())


def _short(name: str) -> str:
    """Return ``name`` if it can be printed on one line, else an empty text."""
    name = " ".join(name.split())
    return name if name.isprintable() and len(name) <= 60 else ""
