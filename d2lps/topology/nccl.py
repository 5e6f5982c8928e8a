"""The XML file in which NCCL describes its host (``NCCL_TOPO_DUMP_FILE``), read into the table of ``nvidia.py``."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple
from xml.etree import ElementTree

from d2lps.messages import text
from d2lps.topology.links import LANES, NVLINK, TopologyError
from d2lps.topology.nvidia import FAR, HOST, NVLINKS, SWITCHES, Host, TopoMatrix, host_of
from d2lps.units import Bandwidth

INSIDE, ACROSS = 1.7e-6, 7e-6  # seconds of a link of a host and of the network: half of NCCL's tuning.cc
PROTOCOL = 370 / 450  # of an NVLink's rate that NCCL's protocol leaves: a maintainer of NCCL in nccl-tests, issue 212
NVSWITCH = "0x068000"  # the PCI class of the switch to which an NVLink leads
VERSIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # 10⁹ transfers per second of a lane → version of PCIe


class Device(NamedTuple):
    """A GPU or network card; ``way``: its CPU, the PCI devices that lead to it, and itself."""

    element: ElementTree.Element
    way: tuple[str, ...]
    rate: Bandwidth | None  # of its own link; None if unknown


def read(source: str, latency: "float | str" = 0.0) -> tuple[Host, Bandwidth | None]:
    """Return the host, and bytes per second of the slowest network card that a GPU uses; raise TopologyError."""
    if "<!DOCTYPE" in source:  # it could declare entities, which grow without end
        raise TopologyError(text("nvidia.not-xml", why="<!DOCTYPE …>"))
    try:
        found = [*_devices(ElementTree.fromstring(source.strip()))]
    except (ElementTree.ParseError, ValueError) as error:
        raise TopologyError(text("nvidia.not-xml", why=error)) from None
    gpus = {f"GPU{gpu.element.get('dev', '')}": gpu for gpu in found if gpu.element.tag == "gpu"}
    cards = {card.element.get("name", ""): card for card in found if card.element.tag == "net"}
    if not gpus:
        raise TopologyError(text("nvidia.not-xml", why="<gpu> × 0"))
    devices = gpus | cards
    codes = {(a, b): "X" if a == b else _near(gpus[a], devices[b]) for a, b in product(gpus, devices)}
    for a, b in combinations(gpus, 2):
        one, other = gpus[a], gpus[b]
        if links := _nvlinks(one, other.way[-1]) or min(_nvlinks(one), _nvlinks(other)):
            codes[a, b] = codes[b, a] = f"NV{links}"
    table = TopoMatrix((*gpus,), (*cards,), codes, {name: gpu.way[0] for name, gpu in gpus.items()})
    pcie = {name.lower(): gpu.rate for name, gpu in gpus.items() if gpu.rate}
    generation = max(_number(gpu.element.get("sm", "")) for gpu in gpus.values())  # the compute capability
    nvlink = NVLINKS[2] if generation >= 100 else {60.0: NVLINKS[0], 86.0: NVLINKS[1]}.get(generation, NVLINK)
    host = host_of(table, nvlink, pcie, latency=latency)
    rates = [rate for card in host.nics.values() if (rate := cards[card].rate)]
    return host, min(rates, default=None)


def _devices(root: ElementTree.Element) -> Iterator[Device]:
    stack = [Device(root, (), None)]
    while stack:
        element, way, rate = stack.pop()
        if element.tag == "cpu":
            way = (str(id(element)),)
        elif element.tag == "pci":
            speed, width = (_number(element.get(name, "").partition(" ")[0]) for name in ("link_speed", "link_width"))
            lanes = LANES.get(VERSIONS.get(speed, 0), 0) * width
            way, rate = (*way, element.get("busid", "").lower()), Bandwidth(lanes) if lanes else None
        elif element.tag == "net":
            megabits = _number(element.get("speed", ""))
            rate = Bandwidth(megabits * 1e6 / 8) if megabits else None
        if way:
            yield Device(element, way, rate)
        stack += [Device(child, way, rate) for child in reversed(element)]


def _number(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdecimal() else 0.0


def _near(a: Device, b: Device) -> str:
    """Return the code of ``nvidia-smi topo -m`` for two devices: one CPU, and one PCI device before them, or not."""
    unlike = [one != other for one, other in zip(a.way, b.way, strict=False)] + [True]
    return (FAR[0], HOST[0], SWITCHES[0])[min(unlike.index(True), 2)]


def _nvlinks(gpu: Device, target: str = "") -> int:
    """Return the number of NVLinks from a GPU to the GPU at a PCI device, or to NVSwitch."""
    links = [link for link in gpu.element.iter("nvlink") if link.get("count", "").isdecimal()]
    if target:
        leading = [link for link in links if link.get("target", "").lower() == target]
    else:
        leading = [link for link in links if link.get("tclass") == NVSWITCH]
    return sum(int(link.get("count", "")) for link in leading)
