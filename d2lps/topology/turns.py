"""Turns: a topology that stays the same if all nodes of a plan move on by a few places.

If every node sends to the node so many places after it, all places that turn into each other carry the same load. So
the messages of a few nodes tell the load of every link.

>>> from d2lps import rails
>>> pods = rails(hosts=6, gpus=2, per_pod=3)
>>> turn = turning(pods, [node for node, kind in pods.kinds.items() if kind == "gpu"])
>>> turn.period, turn.sizes[turn.orbit[pods.links[0]]]  # the six GPUs of a pod turn into those of the other one
(6, 2)
"""

from collections.abc import Sequence
from typing import NamedTuple

from d2lps.topology.graph import Topology
from d2lps.topology.links import Link


class Turn(NamedTuple):
    """The least ``period`` in places; link or node → the number of its orbit; how many places each orbit has."""

    period: int
    orbit: "dict[Link | str, int]"
    sizes: list[int]


def turning(topology: Topology, nodes: Sequence[str]) -> Turn | None:
    """Return how ``topology`` turns with ``nodes``, or None if it does not.

    A turn maps every node to the one ``period`` places after it, and the other nodes so that every link, limit and
    route has an equal one as its image. Routes do, if there is only one way between two switches, and if the image of
    a node has its links in the same order.
    """
    if not _one_way(topology):
        return None
    for period in range(1, len(nodes) // 2 + 1):
        if len(nodes) % period == 0:
            image = _image(topology, nodes, period)
            if _is_symmetry(topology, image):
                return Turn(period, *_orbits(topology, image))
    return None


def _one_way(topology: Topology) -> bool:
    """Return True if there is at most one way between any two forwarding nodes."""
    group = {node: {node} for node in topology.kinds if topology.forwards(node)}
    for a, b in {tuple(sorted((k.src, k.dst))) for k in topology.links if k.src in group and k.dst in group}:
        if group[a] is group[b]:
            return False
        small, large = sorted((group[a], group[b]), key=len)
        large |= small
        group |= dict.fromkeys(small, large)
    return True


def _image(topology: Topology, nodes: Sequence[str], period: int) -> dict[str, str]:
    """Return node → its image; what ``nodes`` do not determine is paired in the order of the links."""
    image = dict(zip(nodes, [*nodes[period:], *nodes[:period]], strict=True))
    taken, queue = {*nodes}, [*nodes]
    for node in queue:  # grows meanwhile
        ends, others = ([link.dst for link in topology.leaving(at)] for at in (node, image[node]))
        new = {end: None for end in ends if end not in image}
        image |= zip(new, (end for end in others if end not in taken), strict=False)
        taken |= {image[end] for end in new if end in image}
        queue += [end for end in new if end in image]
    return image


def _is_symmetry(topology: Topology, image: dict[str, str]) -> bool:
    if not len(image) == len({*image.values()}) == len(topology.kinds):
        return False

    def look(link: Link, src: str, dst: str) -> tuple:
        return src, dst, link.bandwidth, link.latency, link.count

    for node, other in image.items():
        if topology.kinds[node] != topology.kinds[other] or topology.limits.get(node) != topology.limits.get(other):
            return False
        for links in (topology.leaving, topology.arriving):
            turned = [look(link, image[link.src], image[link.dst]) for link in links(node)]
            others = [look(link, link.src, link.dst) for link in links(other)]
            if turned != others and (not topology.forwards(node) or sorted(turned) != sorted(others)):
                return False
    return True


def _orbits(topology: Topology, image: dict[str, str]) -> "tuple[dict[Link | str, int], list[int]]":
    links = {(link.src, link.dst): link for link in topology.links}
    orbit: dict[Link | str, int] = {}
    sizes: list[int] = []
    places: list[Link | str] = [*topology.links, *topology.limits]
    for place in places:
        size = 0
        while place not in orbit:
            orbit[place] = len(sizes)
            place = links[image[place.src], image[place.dst]] if isinstance(place, Link) else image[place]
            size += 1
        sizes += [size] if size else []
    return orbit, sizes
