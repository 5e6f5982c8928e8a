"""Known machines by name: a PCIe server, a DGX-1, GPUs behind NVSwitch, one shared memory, a small cluster.

>>> host = dgx1_v100()
>>> [f"{link.src}→{link.dst}" for link in host.route("gpu0", "gpu5")]
['gpu0→switch0', 'switch0→cpu0', 'cpu0→cpu1', 'cpu1→switch2', 'switch2→gpu5']
>>> [f"{link.src}→{link.dst} ×{link.count}" for link in host.route("gpu0", "gpu3")]
['gpu0→gpu3 ×2']
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from d2lps import units
from d2lps.messages import text
from d2lps.plan.parse import names
from d2lps.topology.graph import Topology
from d2lps.topology.links import (
    BETWEEN_CPUS,
    NVLINK,
    PCIE,
    Link,
    Resource,
    TopologyError,
    both_ways,
    kind_of,
    require_counts,
)
from d2lps.units import Bandwidth, is_count

# (i, j) of GPUs, each list one cycle through all eight; `nvidia-smi topo -m` prints NV2 and NV1.
_DOUBLE = [(0, 3), (3, 2), (2, 1), (1, 5), (5, 6), (6, 7), (7, 4), (4, 0)]
_SINGLE = [(0, 1), (1, 3), (3, 7), (7, 5), (5, 4), (4, 6), (6, 2), (2, 0)]


def pcie_server(
    gpus: int = 4,
    bandwidth: "str | Bandwidth | Sequence[str | Bandwidth]" = PCIE,
    latency: "float | str" = 0.0,
    switches: int = 1,
    nvlink: "str | Bandwidth | None" = None,
) -> Topology:
    """Return a host with GPUs and one CPU on a PCIe switch, each with its own link of ``bandwidth`` each way.

    Several switches share the GPUs equally, and meet at the CPU.

    Args:
        gpus: The number of GPUs, 1 or more.
        bandwidth: Bytes per second, one way; a sequence has one for each GPU and, last, one for the CPU. PCIe 3.0 with
            16 lanes counts as 16 GB/s (15.75 before overheads).
        latency: Seconds of each link; a message takes two or more.
        switches: The number of switches.
        nvlink: Bytes per second, one way, of NVLinks that join each GPU with the next, and the last with the first.

    Returns:
        The nodes are ``gpu0`` …, ``switch`` or ``switch0`` …, ``cpu``.

    Raises:
        TopologyError, UnitError: For a bad number of GPUs, switches or bandwidths, and for bad units.

    Example:
        >>> server = pcie_server(gpus=2, bandwidth=["16 GB/s", "16 GB/s", "12 GB/s"])
        >>> [str(link.bandwidth) for link in server.route("gpu0", "cpu")]
        ['16 GB/s', '12 GB/s']
    """
    ends = [*_gpus(gpus), "cpu"]
    rates = _one_or_each(bandwidth, len(ends))
    if len(rates) != len(ends):
        raise TopologyError(text("topology.bandwidths", bandwidths=len(rates), links=len(ends)))
    require_counts(switches=switches)
    above = ["switch"] if switches == 1 else [f"switch{i}" for i in range(switches)]
    kinds = {**dict.fromkeys(ends[:-1], "gpu"), **dict.fromkeys(above, "switch"), "cpu": "cpu"}
    cables = [(gpu, above[switches * i // gpus], rates[i]) for i, gpu in enumerate(ends[:-1])]
    cables += [("cpu", switch, rates[-1]) for switch in above]
    if nvlink is not None and gpus > 1:
        cables += [(ends[i], ends[(i + 1) % gpus], nvlink) for i in range(gpus if gpus > 2 else 1)]
    links = [link for end, to, rate in cables for link in both_ways(end, to, rate, latency)]
    return Topology("pcie_server", kinds, links)


def one_memory(
    nodes: Iterable[str],
    bandwidth: "str | Bandwidth",
    adding: "str | Bandwidth | None" = None,
    overhead: "float | str" = 0.0,
    latency: "float | str" = 0.0,
    each: "str | Bandwidth | None" = None,
    each_adding: "str | Bandwidth | None" = None,
) -> Topology:
    """Return devices that share one memory or one processor: every route crosses the same ``bandwidth``.

    This is the honest model of a laptop that plays several devices: all bytes move through its one memory.

    Args:
        nodes: The devices; none may be called ``memory``.
        bandwidth: Bytes per second that the memory moves.
        adding: Bytes per second at which the memory adds, beside moving the bytes; adding is free by default.
        overhead: Least seconds of the memory's time for each message.
        latency: Seconds during which a message is under way and occupies nothing; each of its two links has half of
            them.
        each, each_adding: Bytes per second that one node (such as one processor of several) can send and receive by
            itself, and bytes per second that it can add; no limit by default.

    Returns:
        The given nodes, and ``memory``.

    Raises:
        TopologyError, PlanError, UnitError: For a node named ``memory``, for invalid node names, and for bad units.

    Example:
        >>> from d2lps import aggregate_at, cost
        >>> laptop = one_memory(["cpu0", "cpu1", "cpu2"], "8 GB/s", adding="4 GB/s", overhead="20 us")
        >>> trace = cost.shared(aggregate_at(["cpu1", "cpu2"], "cpu0"), laptop, "8 MB")
        >>> [f"{1000 * (end - start):g} ms" for start, end in trace.step_times()]
        ['6 ms', '2 ms']
        >>> trace = cost.shared(aggregate_at(["cpu1", "cpu2"], "cpu0"), laptop, "8 kB")
        >>> [f"{1000 * (end - start):g} ms" for start, end in trace.step_times()]
        ['0.04 ms', '0.04 ms']
    """
    nodes = names(nodes)
    if "memory" in nodes:
        raise TopologyError(text("topology.memory"))
    kinds = {node: kind_of(node) for node in nodes} | {"memory": "memory"}
    half = units.seconds(latency) / 2
    links = [link for node in nodes for link in both_ways(node, "memory", Bandwidth("inf"), half)]
    given: dict[str, Any] = {"through": bandwidth, "adding": adding, "overhead": units.seconds(overhead) or None}
    limits = {"memory": Resource(**given)}
    if each is not None or each_adding is not None:
        given = {"adding": each_adding, "port": Bandwidth("inf") if each is None else each}
        limits |= dict.fromkeys(nodes, Resource(**given))
    return Topology("one_memory", kinds, links, limits=limits)


def dgx1_v100(
    bandwidth: "str | Bandwidth" = "18 GB/s",
    latency: "float | str" = 0.0,
    pcie: "str | Bandwidth" = PCIE,
    between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
) -> Topology:
    """Return a DGX-1 with eight V100 (also an AWS p3.16xlarge): six NVLinks per GPU, and PCIe for all other pairs.

    Eight pairs of GPUs are joined by two NVLinks and eight pairs by one, as ``nvidia-smi topo -m`` prints them on one
    such machine; the numbering differs between machines (:meth:`Topology.from_nvidia_smi`).

    Args:
        bandwidth: Bytes per second of one NVLink, one way. The default is the figure of *Dive into Deep Learning*,
            which the course uses. NVLink 2 is specified as 25 GB/s, and copies reach about 24: ``dgx1_v100("25
            GB/s")``.
        latency: Seconds of each link.
        pcie, between_cpus: Bytes per second, one way, of each PCIe link and of the link between the two CPUs (by
            default an assumed QPI link of 9.6 GT/s).

    Returns:
        The nodes are ``gpu0`` … ``gpu7``, ``switch0`` … ``switch3`` for two GPUs each, ``cpu0`` and ``cpu1`` for two
            switches each.

    Raises:
        UnitError: For a bad bandwidth or latency.

    Source: The hybrid cube mesh of NVIDIA's "DGX-1 With Tesla V100 System Architecture".

    Example:
        >>> from d2lps import rings
        >>> [ring.count for ring in rings(dgx1_v100())]
        [2, 1]
    """
    gpus = _gpus(8)
    kinds = {**dict.fromkeys(gpus, "gpu"), **{f"switch{i}": "switch" for i in range(4)}, "cpu0": "cpu", "cpu1": "cpu"}
    links = [
        both_ways(gpus[i], gpus[j], bandwidth, latency, count)
        for count, pairs in ((2, _DOUBLE), (1, _SINGLE))
        for i, j in pairs
    ]
    links += [both_ways(gpus[i], f"switch{i // 2}", pcie, latency) for i in range(8)]
    links += [both_ways(f"switch{i}", f"cpu{i // 2}", pcie, latency) for i in range(4)]
    links += [both_ways("cpu0", "cpu1", between_cpus, latency)]
    return Topology("dgx1_v100", kinds, sum(links, []))


def nvswitch(
    gpus: int = 16, bandwidth: "str | Bandwidth" = NVLINK, latency: "float | str" = 0.0, links: int = 6
) -> Topology:
    """Return GPUs that meet at NVSwitch by ``links`` NVLinks of ``bandwidth`` each way, all equally near.

    ========  =========================  =====================  ==================
    host      call                       one way, of each GPU   both ways together
    ========  =========================  =====================  ==================
    DGX-2     ``nvswitch()``             6 × 25 = 150 GB/s      300 GB/s
    DGX A100  ``nvswitch(8, links=12)``  12 × 25 = 300 GB/s     600 GB/s
    DGX H100  ``nvswitch(8, links=18)``  18 × 25 = 450 GB/s     900 GB/s
    ========  =========================  =====================  ==================

    All switches of a host count as one, since together they never block; its CPUs and PCIe are left out.

    Args:
        gpus: The number of GPUs, 1 or more.
        bandwidth: Bytes per second of one NVLink, one way.
        latency: Seconds of each link; a message takes two.
        links: The number of NVLinks of each GPU.

    Returns:
        The nodes are ``gpu0`` …, ``switch``.

    Raises:
        TopologyError, UnitError: For a number of GPUs or links below 1, and for bad units.

    Source: NVIDIA's data sheets for these hosts.

    Example:
        >>> print(nvswitch(8, links=12).route("gpu0", "gpu7")[0].capacity / 1e9)
        300.0
    """
    ends = _gpus(gpus)
    joins = [link for end in ends for link in both_ways(end, "switch", bandwidth, latency, links)]
    return Topology("nvswitch", {**dict.fromkeys(ends, "gpu"), "switch": "switch"}, joins)


def machines(
    hosts: int = 4,
    gpus_per_host: int = 2,
    nic: "str | Bandwidth | Sequence[str | Bandwidth]" = "10 Gbit/s",
    inside: "str | Bandwidth" = PCIE,
    latency: "float | str" = 0.0,
    servers: int = 0,
    *,
    racks: int = 1,
    uplink: "str | Bandwidth | Sequence[str | Bandwidth] | None" = None,
) -> Topology:
    """Return hosts on one network switch or in racks, each with GPUs and a CPU on a PCIe switch, and a network card.

    The name of a node begins with its host: ``host0/gpu1``, ``host0/cpu``. With several racks, each has a top-of-rack
    switch ``rack0`` …, which its hosts share, and the switch ``network`` is the spine that joins the racks.

    Args:
        hosts: The number of hosts with GPUs, 1 or more.
        gpus_per_host: The number of GPUs of each host, 0 or more.
        nic: Bytes per second of a network card, one way; a sequence has one for each host, then one for each server.
        inside: Bytes per second of each PCIe link, one way.
        latency: Seconds of each link between a card and a switch or between two switches of the network; a message
            between hosts takes two of them, and between racks four.
        servers: The number of further hosts, ``server0`` …, each with a processor only.
        racks: The number of racks, to which the hosts and then the servers are dealt in order and as equally as
            possible.
        uplink: Bytes per second from a rack to the spine, one way; a sequence has one for each rack. By default it is
            as wide as all cards of the rack together, so that the spine is not oversubscribed.

    Returns:
        The nodes are ``host0/gpu0`` …, ``host0/cpu``, ``host0/switch``, …, ``server0`` …, ``rack0`` … if there are
            several racks, ``network``.

    Raises:
        TopologyError, UnitError: For bad numbers, and for bad units.

    Example:
        >>> two = machines(hosts=2, gpus_per_host=1, nic="400 Mbit/s")
        >>> [f"{link.src}→{link.dst}" for link in two.route("host0/gpu0", "host1/gpu0")]
        ['host0/gpu0→host0/switch', 'host0/switch→network', 'network→host1/switch', 'host1/switch→host1/gpu0']
        >>> four = machines(hosts=4, gpus_per_host=0, racks=2)
        >>> [f"{link.src}→{link.dst} {link.bandwidth}" for link in four.route("host1/switch", "host2/switch")][:2]
        ['host1/switch→rack0 1.25 GB/s', 'rack0→network 2.5 GB/s']
    """
    require_counts(hosts=hosts)
    require_counts(least=0, gpus_per_host=gpus_per_host, servers=servers)
    names = [f"host{i}" for i in range(hosts)]
    cards = [*(f"{name}/switch" for name in names), *(f"server{i}" for i in range(servers))]
    if not is_count(racks, 1, len(cards)):
        raise TopologyError(text("topology.racks", racks=repr(racks), cards=len(cards)))
    if racks == 1 and uplink is not None:
        raise TopologyError(text("topology.no-uplink", uplink=repr(uplink)))
    rates = [units.bandwidth(rate) for rate in _one_or_each(nic, len(cards))]
    if len(rates) != len(cards):
        raise TopologyError(text("topology.cards", bandwidths=len(rates), cards=len(cards)))
    above = in_racks(cards, racks)
    together: dict[str, float] = defaultdict(float)
    for card, rate in zip(cards, rates, strict=True):
        together[above[card]] += rate
    uplinks = list(map(Bandwidth, together.values())) if uplink is None else _one_or_each(uplink, racks)
    if len(uplinks) != racks:
        raise TopologyError(text("topology.uplinks", bandwidths=len(uplinks), racks=racks))
    kinds: dict[str, str] = {}
    links: list[Link] = []
    for name in names:
        ends = [*(f"{name}/gpu{i}" for i in range(gpus_per_host)), f"{name}/cpu"]
        kinds |= {**dict.fromkeys(ends[:-1], "gpu"), ends[-1]: "cpu", f"{name}/switch": "switch"}
        links += [link for end in ends for link in both_ways(end, f"{name}/switch", inside)]
    kinds |= dict.fromkeys(cards[hosts:], "cpu") | dict.fromkeys([*together, "network"], "switch")
    joins: list[tuple[str, str, str | Bandwidth]] = [
        (card, above[card], rate) for card, rate in zip(cards, rates, strict=True)
    ]
    joins += [(rack, "network", rate) for rack, rate in zip(together, uplinks, strict=True) if racks > 1]
    links += [link for end, switch, rate in joins for link in both_ways(end, switch, rate, latency)]
    return Topology("machines", kinds, links)


def in_racks(cards: Sequence[str], racks: int) -> dict[str, str]:
    """Return card → the switch that it is joined to: ``network``, or that of its rack if there are several racks.

    >>> in_racks(["host0", "host1", "server0"], racks=2)
    {'host0': 'rack0', 'host1': 'rack0', 'server0': 'rack1'}
    """
    return {card: f"rack{i * racks // len(cards)}" if racks > 1 else "network" for i, card in enumerate(cards)}


def _one_or_each(rate: "str | Bandwidth | Sequence[str | Bandwidth]", count: int) -> "list[str | Bandwidth]":
    return list(rate) if isinstance(rate, Sequence) and not isinstance(rate, str) else [rate] * count


def _gpus(gpus: int) -> list[str]:
    if not is_count(gpus, least=1):
        raise TopologyError(text("topology.gpus", gpus=repr(gpus)))
    return [f"gpu{i}" for i in range(gpus)]
