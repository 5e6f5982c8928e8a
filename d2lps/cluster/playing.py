"""The nodes that a process of a cluster plays."""

import os

from d2lps.cluster.errors import ClusterError
from d2lps.messages import text


def playing() -> tuple[str, ...]:
    """Return the nodes that this process of a cluster plays, for ``Processes(playing())``.

    Returns
    -------
    tuple of str
        Such as ``("host0/gpu0", "host0/gpu1", "host0/cpu")``.

    Raises
    ------
    ClusterError
        If this is not a process of a cluster.
    """
    if "D2LPS_PLAYING" not in os.environ:
        raise ClusterError(text("cluster.nowhere"))
    return tuple(os.environ["D2LPS_PLAYING"].split())
