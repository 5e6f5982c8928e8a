"""Topologies: nodes and directed links, on which plans are costed and traces drawn.

``graph`` is the Topology, ``hosts`` builds known ones by name, ``nvidia`` reads ``nvidia-smi topo -m``, ``local``
looks at this machine, ``cycles`` finds the rings that links form.
"""

from d2lps.topology.graph import Link, Topology, TopologyError, both_ways, kind_of

__all__ = ["Link", "Topology", "TopologyError", "both_ways", "kind_of"]
