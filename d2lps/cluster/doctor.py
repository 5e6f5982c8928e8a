"""Checks of a host before it trains together with others: ``python -m d2lps doctor``.

A new check is a generator of findings, listed in ``_look``; what it reads from a command's output is in ``gpu_checks``.
"""

import argparse
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from d2lps.cluster import gpu_checks
from d2lps.cluster.gpu_checks import Finding
from d2lps.topology import local

FILES = 1024  # open files, a shell's usual limit: sockets to the ranks of a few hosts, libraries, data
TESTED = range(11, 15)  # of the Pythons 3.x
INFINIBAND = Path("/sys/class/infiniband")
SCHEMA = 1  # the version of --json, which doctor.schema.json describes
SECONDS = 10.0  # that a command may take
SHARED = 1 << 30  # bytes of /dev/shm: NCCL, data loaders and shared memory between ranks


def examine() -> list[Finding]:
    """Look at this host.

    Returns:
        In the order in which to fix them. ``well`` is None for what could not be found out.

    Example:
        >>> [finding.what for finding in examine()][:3]
        ['system', 'Python', 'torch']
    """
    return [*_look(False)]


def main(arguments: list[str]) -> int:
    """Print each finding as soon as it is there, or (``--json``) all for programs; 1 if something needs mending."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps doctor", description="Check this host before it trains with others."
    )
    parser.add_argument("--json", action="store_true", help="print the findings for programs")
    if parser.parse_args(arguments).json:
        findings = examine()
        mend = any(finding.well is False for finding in findings)
        printed = {"schema": SCHEMA, "well": not mend, "findings": [finding._asdict() for finding in findings]}
        print(json.dumps(printed, indent=1))
        return int(mend)
    mend = False
    for what, found, well, advice in _look(sys.stderr.isatty()):
        state = {True: "ok  ", False: "mend", None: "?   "}[well]
        print(f"{state}  {what:<12} {found}", flush=True)
        if advice:
            print(f"      {'':<12} → {advice}", flush=True)
        mend = mend or well is False
    return int(mend)


def _look(aloud: bool) -> Iterator[Finding]:
    """Yield what each check finds; ``aloud`` names the check on the terminal while it runs, since some take seconds."""
    checks = _system, _torch, _gpus, _backends, _links, _cluster, _name, _interfaces, _clock, _limits, _emulation
    for check in checks:
        if aloud:
            print(f"...   {check.__name__[1:]}", end="\r", file=sys.stderr, flush=True)
        findings = [*check()]
        if aloud:
            print("\x1b[K", end="", file=sys.stderr, flush=True)  # clears the line
        yield from (finding._replace(advice="") if finding.well else finding for finding in findings)


def _system() -> Iterator[Finding]:
    system = f"{sys.platform}, {os.cpu_count()} processors"
    advice = "training on several hosts needs Linux; on other systems use one host"
    yield Finding("system", system, sys.platform == "linux", advice)
    tested = f"d2lps is tested with Python 3.{TESTED[0]} to 3.{TESTED[-1]}"
    yield Finding("Python", sys.version.split()[0], sys.version_info[1] in TESTED, tested)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(
            "torch",
            str(error),
            False,
            "pip install -e '.[course]', or make lab, which takes the versions of requirements.lock",
        )
        return
    yield Finding("torch", f"{torch.__version__}: the same on all hosts?", True)


def _gpus() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return  # reported by _torch
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        names = {torch.cuda.get_device_name(i) for i in range(count)}
        yield Finding(
            "GPUs", f"{count} × {', '.join(sorted(names))}", len(names) == 1, "different GPUs wait for the slowest"
        )
        peers = [torch.cuda.can_device_access_peer(0, i) for i in range(1, count)]
        yield Finding(
            "peers", f"{sum(peers)} of {count - 1} reach GPU 0 directly", all(peers), "see nvidia-smi topo -m"
        )
    elif shutil.which("nvidia-smi"):
        advice = "this torch is built without CUDA, or the driver is too old: see nvidia-smi and torch.version.cuda"
        yield Finding("GPUs", "nvidia-smi is installed, but torch sees no GPU", False, advice)
    else:
        yield Finding("GPUs", "none: gradients travel by gloo, from main memory", True)


def _backends() -> Iterator[Finding]:
    try:
        import torch.distributed as dist
    except ImportError:
        return
    backends = [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]
    yield Finding("backends", " ".join(backends), "gloo" in backends, "install a torch with distributed")


def _cluster() -> Iterator[Finding]:
    """Look at what matters on hosts with GPUs that train with others; nothing without them."""
    smi = local.nvidia_smi()
    if smi is None:
        return
    try:
        import torch

        cuda, nccl = torch.version.cuda, torch.cuda.nccl.version() if torch.cuda.is_available() else None
    except (ImportError, RuntimeError, AttributeError):
        cuda = nccl = None
    yield from gpu_checks.versions(smi, cuda, nccl)
    yield from gpu_checks.health(local.nvidia_smi(f"--query-gpu={gpu_checks.QUERY}", "--format=csv,noheader"))
    for what, read, command in ("Xid", gpu_checks.xids, ["dmesg"]), ("ACS", gpu_checks.acs, ["lspci", "-vvv"]):
        printed, why = _printed(*command)
        yield from read(printed) if printed is not None else [Finding(what, f"unknown: {why}", None)]
    if INFINIBAND.is_dir() and any(INFINIBAND.iterdir()):
        driver = _read(Path("/proc/driver/nvidia/version")) or None
        yield from gpu_checks.gpudirect(_read(Path("/proc/modules")) or None, driver, platform.release())
    yield from gpu_checks.affinity(local.nvidia_smi("topo", "-m"))


def _printed(*command: str) -> tuple[str | None, str]:
    """Return the output of a command; else None, and why there is none."""
    if shutil.which(command[0]) is None:
        return None, f"{command[0]} is not installed"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} did not answer within {SECONDS:g} s"
    except OSError as error:
        return None, f"{command[0]}: {error.strerror}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode:
        return None, said[-1] if said else f"{command[0]} ended with {done.returncode}"
    return done.stdout.decode("utf-8", "replace"), ""


def _name() -> Iterator[Finding]:
    name, chosen = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        exists = chosen in (name for _, name in socket.if_nameindex())
        yield Finding("name", f"{name}; gloo uses {chosen}", exists, _TAKE)
        return
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        alone = "on one host, give torchrun --local-addr=127.0.0.1; for several"
        yield Finding("name", f"{name}: {error}", False, f"{alone}, {_TAKE}")
        return
    loopback = address.startswith("127.")
    yield Finding("name", f"{name} is {address}", not loopback, f"other hosts cannot reach that address: {_TAKE}")


_TAKE = "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface between the hosts, such as eth0"


def _interfaces() -> Iterator[Finding]:
    net = Path("/sys/class/net")
    cards = sorted(card for card in net.iterdir() if card.name != "lo") if net.is_dir() else []
    up = [card for card in cards if _read(card / "operstate") in ("up", "unknown")]
    described = []
    for card in up:
        speed = _read(card / "speed")  # Mbit/s; virtual cards have none
        rate = f"{int(speed) / 1000:g} Gbit/s" if speed.lstrip("-").isdigit() and int(speed) > 0 else "speed unknown"
        described.append(f"{card.name} ({rate}, MTU {_read(card / 'mtu')})")
    advice = "ip link set … up, or ask the administrator"
    yield Finding("network", ", ".join(described) or "no card is up", bool(up), advice)
    for card in sorted(INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []:
        ports = [
            f"{_read(p / 'rate') or 'rate unknown'} {_read(p / 'state')[3:]}" for p in sorted(card.glob("ports/*"))
        ]
        width, most = (_read(card / f"device/{which}_link_width") for which in ("current", "max"))
        pcie = f", PCIe {_read(card / 'device/current_link_speed').partition(' PCIe')[0]} ×{width}" if width else ""
        found = f"{card.name}: {', '.join(ports) or 'no port'}{pcie}; NCCL uses it automatically, gloo does not"
        advice = f"the card has ×{most} lanes: seat it anew, or take another slot"
        yield Finding("InfiniBand", found, not _narrow(width, most), advice)


def _narrow(width: str, most: str) -> bool:
    return (
        width.isdecimal() and most.isdecimal() and 0 < int(width) < int(most)
    )  # 0 is unknown, as in a virtual machine


def _links() -> Iterator[Finding]:
    rows = local.listed()
    if not rows:
        return
    narrow = [index for index, _, most, _, width, _ in rows if _narrow(width, most)]
    found = _counted(f"×{width} of ×{most}, version {version} at most" for _, version, most, _, width, _ in rows)
    yield Finding(
        "PCIe", found, not narrow, f"GPU {', '.join(narrow)} has fewer lanes than it could: take another slot"
    )
    blocks = re.split(r"^GPU +\d+:", local.nvidia_smi("nvlink", "-s") or "", flags=re.MULTILINE)[1:]
    up = [tuple(rate for rate in re.findall(r"Link \d+: ([\d.]+) GB/s", block) if float(rate)) for block in blocks]
    if any(up):
        found = _counted(f"{len(rates)} links of {' or '.join(sorted({*rates}))} GB/s" for rates in up)
        advice = "some GPUs have fewer or slower links up than others: see nvidia-smi nvlink -s and -e"
        yield Finding("NVLink", found, len({*up}) == 1, advice)


def _counted(found: Iterable[str]) -> str:
    return ", ".join(f"{count} × {each}" for each, count in Counter(found).items())


def _clock() -> Iterator[Finding]:
    answer, why = _printed("timedatectl", "show", "--property=NTPSynchronized", "--value")
    advice = "d2lps corrects the clocks in traces of several hosts, but logs are off: sudo timedatectl set-ntp true"
    state = {"yes": "synchronized", "no": "not synchronized"}.get((answer or "").strip(), "")
    if state:
        yield Finding("clock", state, state == "synchronized", advice)
    else:
        yield Finding("clock", f"unknown: {why or 'timedatectl does not say'}", None)


def _limits() -> Iterator[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    enough = files == resource.RLIM_INFINITY or files >= FILES
    yield Finding("open files", f"{files} at most", enough, f"ulimit -n {4 * FILES}")
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    cards = INFINIBAND.is_dir() and any(INFINIBAND.iterdir())
    yield gpu_checks.locked(None if most == resource.RLIM_INFINITY else most, cards)
    shm = Path("/dev/shm")
    if shm.is_dir():
        size = shutil.disk_usage(shm).total
        advice = "docker run --shm-size=8g, or an emptyDir of medium Memory at /dev/shm in Kubernetes"
        yield Finding("/dev/shm", f"{size / 1e9:.1f} GB", size >= SHARED, advice)


def _emulation() -> Iterator[Finding]:
    from d2lps.cluster.emulation import emulated
    from d2lps.cluster.errors import ClusterError, NoAnswer

    try:
        emulated(hosts=1, gpus_per_host=0, bandwidth="10 Mbit/s").close()
    except NoAnswer as error:
        yield Finding("emulation", f"unknown: {error}", None)
        return
    except ClusterError as error:
        yield Finding("emulation", str(error), True)  # training does not need it
        return
    yield Finding("emulation", "hosts can be emulated here (d2lps.cluster.emulated)", True)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
