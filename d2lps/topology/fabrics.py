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
from numbers import Rational
from random import Random

from d2lps.messages import text
from d2lps.topology.graph import Topology
from d2lps.topology.links import TopologyError, both_ways, require_counts
from d2lps.units import Bandwidth, bandwidth, seconds

NIC = "50 GB/s"  # 400 Gbit/s
NVLINKS = "450 GB/s"  # of an H100 to its NVSwitch: 18 links of 25 GB/s


def leaf_spine(
    hosts: int = 64,
    per_leaf: int = 32,
    nic: "str | Bandwidth" = NIC,
    oversubscription: "Rational | float" = 1,
    latency: "float | str" = 0.0,
    per_pod: int | None = None,
) -> Topology:
    """Return hosts on leaf switches, which meet at a spine: two tiers, or three with pods.

    Parameters
    ----------
    hosts, per_leaf : int
        The number of hosts, and how many share a leaf (top-of-rack) switch.
    nic : str or Bandwidth
        Bytes per second of a network card, one way.
    oversubscription : Fraction or float
        The bandwidth of a leaf's hosts, divided by that of its uplinks: 1 for a fabric that never blocks.
    latency : float or str
        Seconds of each link.
    per_pod : int, optional
        How many leaves form a pod with a tier of its own; pods then meet at the core. The upper tier is not
        oversubscribed any further.

    Returns
    -------
    Topology
        The nodes are ``host0`` …, ``leaf0`` …, and ``spine``; or ``pod0`` … and ``core`` above the leaves.

    Raises
    ------
    TopologyError, UnitError
        For numbers below 1, and for bad units.

    Examples
    --------
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
    gpus: int = 8,
    nic: "str | Bandwidth" = NIC,
    inside: "str | Bandwidth" = NVLINKS,
    latency: "float | str" = 0.0,
    inside_latency: "float | str" = 0.0,
    per_pod: int | None = None,
    oversubscription: "Rational | float" = 1,
) -> Topology:
    """Return hosts whose GPUs have a network card each: card i of every host is on the same switch, rail i.

    Parameters
    ----------
    hosts, gpus : int
        The number of hosts, and of GPUs in each.
    nic, inside : str or Bandwidth
        Bytes per second, one way, of a network card and of all NVLinks of a GPU.
    latency, inside_latency : float or str
        Seconds of each network link and of each link inside a host.
    per_pod : int, optional
        How many hosts share the rail switches of a pod; pods then meet at the spine. All hosts by default.
    oversubscription : Fraction or float
        The bandwidth of the cards on a rail switch, divided by that of its uplinks.

    Returns
    -------
    Topology
        The nodes are ``host0/gpu0`` …, ``host0/nvswitch`` …, ``rail0`` … (in pods ``pod0/rail0`` …), and ``spine``,
        which also joins rails to each other.

    Raises
    ------
    TopologyError, UnitError
        For numbers below 1, and for bad units.

    Examples
    --------
    >>> pods = rails(hosts=4, gpus=2, per_pod=2)
    >>> [link.dst for link in pods.route("host0/gpu1", "host3/gpu1")]
    ['pod0/rail1', 'spine', 'pod1/rail1', 'host3/gpu1']

    References
    ----------
    Wang et al., "Rail-only", 2023 (arXiv 2307.12169); NVIDIA DGX SuperPOD reference architecture.
    """
    require_counts(hosts=hosts, gpus=gpus, per_pod=1 if per_pod is None else per_pod)
    ratio = _ratio(oversubscription)
    card, size = bandwidth(nic), min(per_pod or hosts, hosts)
    inside, latency, inside_latency = bandwidth(inside), seconds(latency), seconds(inside_latency)  # read only once
    pods = -(-hosts // size)
    prefix = [f"pod{p}/" if pods > 1 else "" for p in range(pods)]
    kinds: dict[str, str] = {}
    links = []
    for h in range(hosts):
        ends = [f"host{h}/gpu{i}" for i in range(gpus)]
        kinds |= {**dict.fromkeys(ends, "gpu"), f"host{h}/nvswitch": "switch"}
        for i, end in enumerate(ends):
            links += both_ways(end, f"host{h}/nvswitch", inside, inside_latency)
            links += both_ways(end, f"{prefix[h // size]}rail{i}", card, latency)
    switches = [f"{prefix[p]}rail{i}" for p in range(pods) for i in range(gpus)]
    kinds |= dict.fromkeys([*switches, "spine"], "switch")
    uplink = Bandwidth(float(Fraction(card) * size / ratio))
    links += [link for switch in switches for link in both_ways(switch, "spine", uplink, latency)]
    return Topology("rails", kinds, links)


def busiest_uplink(flows: int, uplinks: int, parts: int = 1, seed: int = 0) -> Fraction:
    """Return the load of the busiest uplink if flows are hashed onto uplinks (ECMP), as a multiple of the mean.

    Parameters
    ----------
    flows, uplinks : int
        The number of equal flows, and of uplinks of a switch.
    parts : int
        Into how many flows each is cut, such as queue pairs with ports of their own.
    seed : int
        Equal seeds give equal hashes.

    Returns
    -------
    Fraction
        1 for perfect balance.

    Raises
    ------
    TopologyError
        For numbers below 1.

    Examples
    --------
    >>> busiest_uplink(flows=32, uplinks=32) > busiest_uplink(flows=32, uplinks=32, parts=16) > 1
    True
    """
    require_counts(flows=flows, uplinks=uplinks, parts=parts)
    random = Random(seed)
    loads = Counter(random.randrange(uplinks) for _ in range(flows * parts))
    return Fraction(max(loads.values()) * uplinks, flows * parts)


def _ratio(oversubscription: "Rational | float") -> Fraction:
    try:
        ratio = Fraction(oversubscription)
    except (TypeError, ValueError, OverflowError):
        ratio = Fraction(0)
    if ratio <= 0:
        raise TopologyError(text("topology.oversubscription", ratio=repr(oversubscription)))
    return ratio
