"""The XML file in which NCCL describes its host (``NCCL_TOPO_DUMP_FILE``), read into the table of ``nvidia.py``.

>>> device = '<pci busid="{}" link_speed="32.0 GT/s PCIe" link_width="16">{}</pci>'
>>> link = '<gpu dev="{}" sm="100"><nvlink target="{}" count="4" tclass="0x030200"/></gpu>'
>>> gpus = device.format("1:0", link.format(0, "2:0")) + device.format("2:0", link.format(1, "1:0"))
>>> card = device.format("3:0", '<nic><net name="mlx5_0" speed="400000"/></nic>')
>>> host, rate = read(f'<system version="1"><cpu numaid="0">{gpus}{card}</cpu></system>')
>>> host.nics, str(rate), [str(link.bandwidth) for link in host.links[::2]]
({'gpu0': 'mlx5_0', 'gpu1': 'mlx5_0'}, '50 GB/s', ['50 GB/s', '63.02 GB/s', '63.02 GB/s'])
"""

from itertools import combinations, product
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from d2lps.messages import text
from d2lps.topology.links import LANES, NVLINK, TopologyError
from d2lps.topology.nvidia import FAR, HOST, NVLINKS, SWITCHES, Host, TopoMatrix, host_of
from d2lps.units import Bandwidth

NVSWITCH = "0x068000"  # the PCI class of the switch to which an NVLink leads
VERSIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # 10⁹ transfers per second of a lane → version of PCIe

Way = tuple[str, ...]  # the CPU of a device, then the PCI devices that lead to it, and itself


class Device(NamedTuple):
    """A GPU or network card: its element, the way to it, and bytes per second of its own link; None if unknown."""

    element: Element
    way: Way
    rate: Bandwidth | None


def read(source: str, latency: "float | str" = 0.0) -> tuple[Host, Bandwidth | None]:
    """Return the host, and bytes per second of the slowest network card that a GPU uses; raise TopologyError."""
    found, cards = _devices(source)
    numbers = [gpu.element.get("dev", "") for gpu in found]
    unique = len({*numbers}) == len(numbers) and all(map(str.isdecimal, numbers))
    gpus = {f"GPU{number if unique else i}": gpu for i, (number, gpu) in enumerate(zip(numbers, found, strict=True))}
    devices = gpus | cards
    codes = {(a, b): "X" if a == b else _near(gpus[a].way, devices[b].way) for a, b in product(gpus, devices)}
    for a, b in combinations(gpus, 2):
        one, other = gpus[a], gpus[b]
        if links := _nvlinks(one, other) or min(_nvlinks(one), _nvlinks(other)):
            codes[a, b] = codes[b, a] = f"NV{links}"
    table = TopoMatrix((*gpus,), (*cards,), codes, {name: gpu.way[0] for name, gpu in gpus.items()})
    pcie = {name.lower(): gpu.rate for name, gpu in gpus.items() if gpu.rate}
    generation = _number(found[0].element.get("sm", "")) or 0  # of the GPU: its compute capability
    nvlink = NVLINKS[2] if generation >= 100 else {60: NVLINKS[0], 86: NVLINKS[1]}.get(generation, NVLINK)
    host = host_of(table, nvlink, pcie, latency=latency)
    return host, min((cards[card].rate for card in host.nics.values() if cards[card].rate), default=None)


def _devices(source: str) -> tuple[list[Device], dict[str, Device]]:
    """Return the GPUs, and name → network card."""
    if "<!DOCTYPE" in source:  # it could declare entities, which grow without end
        raise TopologyError(text("nvidia.not-xml", why="<!DOCTYPE …>"))
    try:
        root = ElementTree.fromstring(source.strip())
    except (ElementTree.ParseError, ValueError) as error:
        raise TopologyError(text("nvidia.not-xml", why=error)) from None
    gpus, cards, stack = [], {}, [Device(root, (), None)]
    while stack:
        element, way, rate = stack.pop()
        if element.tag == "cpu":
            way = (str(id(element)),)
        elif element.tag == "pci":
            speed, width = (_number(element.get(name, "").partition(" ")[0]) for name in ("link_speed", "link_width"))
            lanes = LANES.get(VERSIONS.get(speed), 0) * (width or 0)
            way, rate = (*way, element.get("busid", "").lower()), Bandwidth(lanes) if lanes else None
        elif element.tag == "gpu" and way:
            gpus.append(Device(element, way, rate))
        elif element.tag == "net" and way:
            megabits = _number(element.get("speed", ""))
            rate = Bandwidth(megabits * 1e6 / 8) if megabits else None
            cards[element.get("name", f"net{len(cards)}")] = Device(element, way, rate)
        stack += [Device(child, way, rate) for child in reversed(element)]
    if not gpus:
        raise TopologyError(text("nvidia.not-xml", why="<gpu> × 0"))
    return gpus, cards


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def _near(a: Way, b: Way) -> str:
    """Return the code of ``nvidia-smi topo -m`` for two devices: one CPU, and one PCI device before them, or not."""
    shared = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    return (FAR[0], HOST[0], SWITCHES[0])[min(shared, 2)]


def _nvlinks(gpu: Device, other: Device | None = None) -> int:
    """Return the number of NVLinks from a GPU to another, or to NVSwitch."""
    links = [link for link in gpu.element.iter("nvlink") if link.get("count", "").isdecimal()]
    if other is None:
        return sum(int(link.get("count")) for link in links if link.get("tclass") == NVSWITCH)
    return sum(int(link.get("count")) for link in links if link.get("target", "").lower() == other.way[-1])
