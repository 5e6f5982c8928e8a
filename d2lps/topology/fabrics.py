"""Fabrics of data centres: leaf and spine switches, three tiers, and rails, by ratio of oversubscription.

>>> fabric = rails(hosts=4, gpus=8)
>>> [f"{link.src}→{link.dst}" for link in fabric.route("host0/gpu3", "host3/gpu3")]
['host0/gpu3→rail3', 'rail3→host3/gpu3']
>>> [f"{link.src}→{link.dst}" for link in fabric.route("host0/gpu3", "host0/gpu5")]
['host0/gpu3→host0/nvswitch', 'host0/nvswitch→host0/gpu5']

A tier of switches that spread messages evenly over all paths counts as one switch whose link is as wide as all of
theirs together: the limit of perfect load balancing. Real fabrics hash flows onto paths, and lose what collides
(:func:`busiest_uplink`).
"""

from collections import Counter
from fractions import Fraction
from random import Random

from d2lps.messages import text
from d2lps.topology.graph import Topology
from d2lps.topology.links import NVLINK, Link, TopologyError, both_ways, require_counts
from d2lps.units import Bandwidth, bandwidth, seconds

NIC = "50 GB/s"  # 400 Gbit/s
NVLINKS = Bandwidth(18 * bandwidth(NVLINK))  # of an H100 to its NVSwitch


def leaf_spine(
    hosts: int = 64,
    per_leaf: int = 32,
    nic: "str | Bandwidth" = NIC,
    oversubscription: "Fraction | float" = 1,
    latency: "float | str" = 0.0,
    per_pod: int | None = None,
) -> Topology:
    """Return hosts on leaf switches, which meet at a spine: two tiers, or three with pods.

    Args:
        hosts, per_leaf: The number of hosts, and how many share a leaf (top-of-rack) switch.
        nic: Bytes per second of a network card, one way.
        oversubscription: The bandwidth of a leaf's hosts, divided by that of its uplinks: 1 for a fabric that never
            blocks.
        latency: Seconds of each link.
        per_pod: How many leaves form a pod with a tier of its own; pods then meet at the core. The upper tier is not
            oversubscribed any further.

    Returns:
        The nodes are ``host0`` …, ``leaf0`` …, and ``spine``; or ``pod0`` … and ``core`` above the leaves.

    Raises:
        TopologyError, UnitError: For numbers below 1, and for bad units.

    Example:
        >>> fabric = leaf_spine(hosts=8, per_leaf=4, nic="100 Gbit/s", oversubscription=4)
        >>> [str(link.bandwidth) for link in fabric.route("host0", "host7")]
        ['12.5 GB/s', '12.5 GB/s', '12.5 GB/s', '12.5 GB/s']
    """
    require_counts(hosts=hosts, per_leaf=per_leaf, per_pod=1 if per_pod is None else per_pod)
    ratio = _ratio(oversubscription)
    card = bandwidth(nic)
    leaves = -(-hosts // per_leaf)
    kinds = {f"host{i}": "machine" for i in range(hosts)} | {f"leaf{i}": "switch" for i in range(leaves)}
    links = [link for i in range(hosts) for link in both_ways(f"host{i}", f"leaf{i // per_leaf}", card, latency)]
    uplink = Bandwidth(float(Fraction(card) * per_leaf / ratio))
    if per_pod is None:
        kinds["spine"] = "switch"
        links += [link for i in range(leaves) for link in both_ways(f"leaf{i}", "spine", uplink, latency)]
        return Topology("leaf_spine", kinds, links)
    pods = -(-leaves // per_pod)
    kinds |= {f"pod{i}": "switch" for i in range(pods)} | {"core": "switch"}
    links += [link for i in range(leaves) for link in both_ways(f"leaf{i}", f"pod{i // per_pod}", uplink, latency)]
    links += [link for i in range(pods) for link in both_ways(f"pod{i}", "core", uplink, latency, count=per_pod)]
    return Topology("leaf_spine", kinds, links)


def rails(
    hosts: int = 4,
    gpus: int | Topology = 8,
    nic: "str | Bandwidth" = NIC,
    inside: "str | Bandwidth" = NVLINKS,
    latency: "float | str" = 0.0,
    inside_latency: "float | str" = 0.0,
    per_pod: int | None = None,
    oversubscription: "Fraction | float" = 1,
) -> Topology:
    """Return hosts whose GPUs have network cards: card i of every host is on the same switch, rail i.

    Args:
        hosts: The number of hosts.
        gpus: The number of GPUs in each, with a card of its own per GPU; or what each host is like, with its ``nics``,
            as :meth:`Topology.from_nvidia_smi` reads it. Then ``inside`` and ``inside_latency`` do not count.
        nic, inside: Bytes per second, one way, of a network card and of all NVLinks of a GPU.
        latency, inside_latency: Seconds of each network link and of each link inside a host.
        per_pod: How many hosts share the rail switches of a pod; pods then meet at the spine. All hosts by default.
        oversubscription: The bandwidth of the cards on a rail switch, divided by that of its uplinks.

    Returns:
        The nodes are ``host0/gpu0`` …, ``host0/nvswitch`` …, ``rail0`` … (in pods ``pod0/rail0`` …), and ``spine``,
            which also joins rails to each other. A card that several GPUs use is a node, such as ``host0/mlx5_0``.

    Raises:
        TopologyError, UnitError: For numbers below 1, for a host without network cards, and for bad units.

    Example:
        >>> pods = rails(hosts=4, gpus=2, per_pod=2)
        >>> [link.dst for link in pods.route("host0/gpu1", "host3/gpu1")]
        ['pod0/rail1', 'spine', 'pod1/rail1', 'host3/gpu1']

    Source: Wang et al., "Rail-only", 2023 (arXiv 2307.12169); NVIDIA DGX SuperPOD reference architecture.
    """
    require_counts(hosts=hosts, per_pod=1 if per_pod is None else per_pod)
    like = gpus if isinstance(gpus, Topology) else _nvswitch(gpus, inside, inside_latency)
    if not like.nics:
        raise TopologyError(text("topology.no-nics", name=like.name))
    ratio = _ratio(oversubscription)
    card, size = bandwidth(nic), min(per_pod or hosts, hosts)
    latency = seconds(latency)  # read only once
    users = Counter(like.nics.values())
    shared = [nic for nic, count in users.items() if count > 1]
    rail_of = {nic: f"rail{i}" for i, nic in enumerate(users)}
    pods = -(-hosts // size)
    prefix = [f"pod{p}/" if pods > 1 else "" for p in range(pods)]
    kinds: dict[str, str] = {}
    links = []
    for host, pod in ((f"host{h}/", prefix[h // size]) for h in range(hosts)):
        kinds |= {host + node: kind for node, kind in like.kinds.items()}
        links += [Link(host + a.src, host + a.dst, a.bandwidth, a.latency, a.count) for a in like.links]
        kinds |= {host + nic: "switch" for nic in shared}
        links += [link for nic in shared for link in both_ways(host + nic, pod + rail_of[nic], card, latency)]
        for gpu, nic in like.nics.items():
            links += both_ways(host + gpu, host + nic if nic in shared else pod + rail_of[nic], card, latency)
    switches = [prefix[p] + rail for p in range(pods) for rail in rail_of.values()]
    kinds |= dict.fromkeys([*switches, "spine"], "switch")
    uplink = Bandwidth(float(Fraction(card) * size / ratio))
    links += [link for switch in switches for link in both_ways(switch, "spine", uplink, latency)]
    limits = {f"host{h}/{node}": limit for h in range(hosts) for node, limit in like.limits.items()}
    nics = {f"host{h}/{gpu}": f"host{h}/{nic}" for h in range(hosts) for gpu, nic in like.nics.items()}
    return Topology("rails", kinds, links, limits=limits, nics=nics)


def _nvswitch(gpus: int, inside: "str | Bandwidth", latency: "float | str") -> Topology:
    """Return a host whose GPUs meet at NVSwitch, and have a network card each."""
    require_counts(gpus=gpus)
    ends = [f"gpu{i}" for i in range(gpus)]
    links = [link for end in ends for link in both_ways(end, "nvswitch", inside, latency)]
    kinds = dict.fromkeys(ends, "gpu") | {"nvswitch": "switch"}
    return Topology("host", kinds, links, nics={end: f"nic{i}" for i, end in enumerate(ends)})


def busiest_uplink(flows: int, uplinks: int, parts: int = 1, seed: int = 0) -> Fraction:
    """Return the load of the busiest uplink if flows are hashed onto uplinks (ECMP), as a multiple of the mean.

    Args:
        flows, uplinks: The number of equal flows, and of uplinks of a switch.
        parts: Into how many flows each is cut, such as queue pairs with ports of their own.
        seed: Equal seeds give equal hashes.

    Returns:
        1 for perfect balance.

    Raises:
        TopologyError: For numbers below 1.

    Example:
        >>> busiest_uplink(flows=32, uplinks=32) > busiest_uplink(flows=32, uplinks=32, parts=16) > 1
        True
    """
    require_counts(flows=flows, uplinks=uplinks, parts=parts)
    random = Random(seed)
    loads = Counter(random.randrange(uplinks) for _ in range(flows * parts))
    return Fraction(max(loads.values()) * uplinks, flows * parts)


def _ratio(oversubscription: "Fraction | float") -> Fraction:
    try:
        ratio = Fraction(oversubscription)
    except (TypeError, ValueError, OverflowError):
        ratio = Fraction(0)
    if ratio <= 0:
        raise TopologyError(text("topology.oversubscription", ratio=repr(oversubscription)))
    return ratio
