"""Topologies: nodes and directed links, on which plans are costed and traces drawn.

``links`` has what a topology is made of, Link and Resource, ``graph`` is the Topology with its routes, ``hosts`` builds
known ones by name, ``nvidia`` reads ``nvidia-smi topo -m``, ``local`` looks at this machine, ``cycles`` finds the rings
that links form. All are data: nothing here knows about plans, times or tensors.

>>> nvswitch(gpus=8).route("gpu0", "gpu7")[0].capacity / 1e9
150.0
"""

from d2lps.topology.cycles import Ring, rings
from d2lps.topology.graph import Topology
from d2lps.topology.hosts import dgx1_v100, machines, nvswitch, one_memory, pcie_server
from d2lps.topology.links import FORWARDING, PCIE, Link, Resource, TopologyError, both_ways, kind_of
from d2lps.topology.local import this_host

__all__ = [
    "FORWARDING",
    "PCIE",
    "Link",
    "Resource",
    "Ring",
    "Topology",
    "TopologyError",
    "both_ways",
    "dgx1_v100",
    "kind_of",
    "machines",
    "nvswitch",
    "one_memory",
    "pcie_server",
    "rings",
    "this_host",
]
