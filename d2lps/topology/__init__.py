"""Topologies: nodes and directed links, on which plans are costed and traces drawn.

Start with ``links.py`` (Link, and Resource for nodes that are themselves a limit), then read ``graph.py``: it defines
the Topology and decides the route of every message. ``hosts.py`` builds known machines by name and decides their
bandwidths, ``fabrics.py`` the switches of data centres; ``nvidia.py`` reads the table of ``nvidia-smi topo -m``,
``amd.py`` those of ``rocm-smi`` and ``amd-smi``, ``nccl.py`` the file ``NCCL_TOPO_DUMP_FILE``;
``local.py`` inspects this machine; ``cycles.py`` finds the rings that links form, ``turns.py`` the nodes from which a
topology looks the same. A topology is plain data: no module here knows plans, traces or tensors.

>>> nvswitch(gpus=8).route("gpu0", "gpu7")[0].capacity / 1e9
150.0
"""

from d2lps.topology.cycles import Ring, rings
from d2lps.topology.fabrics import busiest_uplink, leaf_spine, rails
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
    "busiest_uplink",
    "dgx1_v100",
    "kind_of",
    "leaf_spine",
    "machines",
    "nvswitch",
    "one_memory",
    "pcie_server",
    "rails",
    "rings",
    "this_host",
]
