"""Checks of ``doctor`` for hosts of a GPU cluster: each reads the output of a command, and none runs one.

What a command did not print is not judged: ``None`` in the place of an output gives no finding, and an output without
the words that a check looks for is ``unknown``.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from d2lps.topology import TopologyError, nvidia

BRAKES = {0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
QUERY = "index,ecc.mode.current,ecc.errors.uncorrected.volatile.total,clocks.sm,clocks.max.sm,"
QUERY += "clocks_throttle_reasons.active"  # still the name that all drivers know


class Finding(NamedTuple):
    """The result of one check: its subject (``what``), the state ``found``, if that is ``well``, and advice if not.

    ``well`` is None if the state is unknown.
    """

    what: str
    found: str
    well: bool | None
    advice: str = ""


def versions(smi: str | None, cuda: str | None, nccl: tuple[int, ...] | None) -> Iterator[Finding]:
    """Yield the driver's version, and those of CUDA and NCCL in torch.

    Args:
        smi: The output of nvidia-smi.
        cuda: ``torch.version.cuda``.
        nccl: ``torch.cuda.nccl.version()``.
    """
    driver = re.search(r"Driver Version: *([\d.]+).*?CUDA Version: *([\d.]+)", smi or "", re.DOTALL)
    if driver:
        found, old = f"{driver[1]}, for CUDA up to {driver[2]}", False
        if cuda:
            old = int(cuda.split(".")[0]) > int(driver[2].split(".")[0])
            found += f"; torch has CUDA {cuda}"
        advice = f"CUDA {cuda} needs a newer driver, or take a torch for CUDA {driver[2].split('.')[0]}"
        yield Finding("driver", found, not old, advice)
    if nccl:
        yield Finding("NCCL", f"{'.'.join(map(str, nccl))}: the same on all hosts?", True)


def health(rows: str | None) -> Iterator[Finding]:
    """Yield ECC errors and what brakes the clocks, from ``nvidia-smi --query-gpu=QUERY --format=csv,noheader``."""
    cells = [[cell.strip() for cell in line.split(",")] for line in (rows or "").splitlines()]
    cells = [row for row in cells if len(row) == 6 and row[0].isdecimal()]
    if not cells:
        return
    modes = Counter(mode for _, mode, *_ in cells)
    errors = {index: int(count) for index, _, count, *_ in cells if count.isdecimal()}
    bad = [index for index, count in errors.items() if count]
    state = ", ".join(f"{count} × {mode.lower()}" for mode, count in modes.items())
    counted = f"{sum(errors.values())} uncorrected errors since the driver started"
    unknown = not errors and "[N/A]" in modes
    if unknown:
        yield Finding("ECC", "unknown: these GPUs, or this virtual machine, do not show it", None)
    else:
        advice = f"GPU {', '.join(bad)}: see nvidia-smi -q -d ECC,ROW_REMAPPER; reset or replace it"
        yield Finding("ECC", f"{state}; {counted}", not bad, advice)
    slow = {index: _brakes(mask) for index, *_, mask in cells}
    if all(reasons is None for reasons in slow.values()):
        yield Finding("GPU clocks", "unknown: nvidia-smi does not show what limits them", None)
        return
    held = [f"GPU {index}: {', '.join(reasons)}" for index, reasons in slow.items() if reasons]
    now = ", ".join(f"{count} × {clock} of {most}" for (clock, most), count in Counter(map(_clocks, cells)).items())
    advice = "cooling, power supply or power limit: see nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE"
    yield Finding("GPU clocks", "; ".join([now, *held]), not held, advice)


def _clocks(row: list[str]) -> tuple[str, str]:
    return row[3], row[4]


def _brakes(mask: str) -> list[str] | None:
    """Return what slows a GPU down, of the reasons that are no normal ones; None if it is unknown."""
    if not re.fullmatch(r"0x[0-9a-fA-F]+", mask):
        return None
    return [name for bit, name in BRAKES.items() if int(mask, 16) & bit]


def xids(log: str | None) -> Iterator[Finding]:
    """Yield the errors (Xid) that the driver wrote into the kernel's log (``dmesg``)."""
    if log is None:
        return
    found = Counter(re.findall(r"NVRM: Xid \(PCI:[0-9a-fA-F]+:([0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d+)", log))
    listed = ", ".join(f"{count} × Xid {number} of {gpu}" for (gpu, number), count in found.items())
    advice = "look the number up in NVIDIA's list of Xid errors; 48, 63, 74, 79, 94, 95 concern the GPU or its links"
    yield Finding("Xid", listed or "none in the kernel's log", not found, advice)


def acs(listed: str | None) -> Iterator[Finding]:
    """Yield whether PCI bridges send what goes between two devices to the CPU first, from ``lspci -vvv``."""
    if listed is None:
        return
    blocks = [block for block in re.split(r"\n\s*\n", listed) if re.search(r"^\S+ PCI bridge", block, re.MULTILINE)]
    controls = {block.split()[0]: control for block in blocks if (control := re.search(r"ACSCtl:(.*)", block))}
    if not controls:
        hidden = "unknown: lspci shows it to root only" if "access denied" in listed else "no PCI bridge has it"
        yield Finding("ACS", hidden, None if "access denied" in listed else True)
        return
    on = [name for name, control in controls.items() if re.search(r"SrcValid\+|ReqRedir\+", control[1])]
    found = f"on at {len(on)} of {len(controls)} PCI bridges" + f": {', '.join(on[:4])}{' …' * (len(on) > 4)}" * bool(
        on
    )
    advice = (
        "GPUs and cards reach each other by way of the CPU: switch ACS off in the BIOS, or setpci -s … ECAP_ACS+6.w=0"
    )
    yield Finding("ACS", found, not on, advice)


def gpudirect(modules: str | None, driver: str | None, kernel: str) -> Iterator[Finding]:
    """Yield whether network cards can read the memory of GPUs themselves.

    Args:
        modules: ``/proc/modules``.
        driver: ``/proc/driver/nvidia/version``.
        kernel: Its release, such as ``5.15.0-91-generic``.
    """
    if modules is None or driver is None:
        return
    loaded = re.search(r"^(nvidia_peermem|nv_peer_mem) ", modules, re.MULTILINE)
    number = tuple(map(int, re.findall(r"\d+", kernel)[:2]))
    if loaded:
        yield Finding("GPUDirect", f"{loaded[1]} is loaded", True)
    elif "Open Kernel Module" in driver and number >= (5, 12):
        yield Finding("GPUDirect", f"by dma-buf: open kernel modules on Linux {'.'.join(map(str, number))}", True)
    else:
        advice = "sudo modprobe nvidia-peermem, or the driver's open kernel modules on Linux 5.12 or newer"
        yield Finding("GPUDirect", "neither nvidia_peermem nor dma-buf: messages go through main memory", False, advice)


def affinity(topo: str | None) -> Iterator[Finding]:
    """Yield whether each GPU has a network card beside it, from ``nvidia-smi topo -m``."""
    try:
        table = nvidia.parse(topo or "")
    except TopologyError:
        return
    if not table.others:
        return
    codes = {gpu: table.codes[gpu, card] for gpu, card in table.cards().items()}
    shared = max(Counter(table.cards().values()).values())
    far = [gpu for gpu, code in codes.items() if code not in nvidia.SWITCHES]
    found = f"{len(codes) - len(far)} of {len(codes)} GPUs have a card on their PCIe switch"
    found += f"; {shared} GPUs share a card" * (shared > 1)
    advice = f"{', '.join(far)}: messages cross the CPU; put the cards into slots beside the GPUs"
    yield Finding("NIC affinity", found, not far, advice)


def locked(limit: int | None, cards: bool) -> Finding:
    """Return whether enough memory can be locked for network cards.

    Args:
        limit: Bytes, as ``ulimit -l`` says; None if there is no limit.
        cards: Whether there are InfiniBand or RoCE cards, which lock the memory of their buffers.
    """
    found = "no limit to locked memory" if limit is None else f"{limit / 1e6:.3g} MB of locked memory at most"
    advice = "ulimit -l unlimited; for all users: * - memlock unlimited in /etc/security/limits.conf, "
    advice += "LimitMEMLOCK=infinity for services, --ulimit memlock=-1 in Docker"
    return Finding("memlock", found, limit is None or not cards, advice)
