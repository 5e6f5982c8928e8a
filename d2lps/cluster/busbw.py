"""``python -m d2lps busbw``: bus bandwidths of all-reduce on your hosts, predicted, measured by nccl-tests, and chosen.

A prediction is the time of the bytes as :func:`d2lps.cost.shared` has it, and the latency of the way of one key: parts
of NCCL's messages run freely, and do not wait for each other at the end of a step.
"""

import argparse
import re
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from d2lps.algorithms import double_tree, rail_rings, rail_wise, ring, sharded
from d2lps.messages import text, why
from d2lps.plan.acts import sends
from d2lps.plan.plan import Plan
from d2lps.simulate import cost
from d2lps.topology import Topology, TopologyError, nccl, rails
from d2lps.topology.fabrics import NIC
from d2lps.topology.links import require_counts
from d2lps.units import Bandwidth, UnitError, bandwidth, show_size
from d2lps.view.tables import Table, table

INSIDE, ACROSS = 1.7e-6, 7e-6  # seconds of a link inside a host and of the network: halves of NCCL's 3.4 and 14 µs
SIZES = [4**i << 20 for i in range(7)]
ALGORITHMS = "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT".split()  # by NCCL's numbers
PROTOCOLS = "LL LL128 Simple".split()
ABOUT = 0.003  # by which busbw ÷ algbw, as printed, may differ from the factor of an all-reduce

_TAG = r"(?:\[[\d,]+\](?:<std\w+>)?:?|\d+:(?= ))"  # of a line, by mpirun or srun
_INFO = re.compile(rf"(?:{_TAG}\s*)?[A-Za-z][\w.-]*:\d+:\d+ \[\d+\] NCCL [^\n]*\n?{_TAG}?")  # may stand inside a row
_CHOICE = re.compile(r"NCCL INFO (?:AllReduce: +)?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_RANK = re.compile(r"^\s*# +Rank +\d+ .* on +(\S+) device", re.MULTILINE)
_ROW = r"^\s*(\d+)\s+\d+\s+\w+\s+\w+{root}\s+[\d.]+\s+([\d.]+)\s+([\d.]+)\s+\S+"


class Tested(NamedTuple):
    """What nccl-tests and NCCL printed, by bytes: algbw and busbw in GB/s, algorithm and protocol; and host → GPUs."""

    bands: dict[int, tuple[float, float]]
    chosen: dict[int, str]
    gpus: dict[str, int]

    @property
    def found(self) -> bool:
        """True if there is something beside the predictions."""
        return bool(self.bands or self.chosen)


def read(printed: str) -> Tested:
    """Return what the outputs of ``all_reduce_perf`` and of ``NCCL_DEBUG=INFO`` contain, also if they are mixed.

    >>> read("1048576 262144 float sum -1 h:41:99 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 0\\n 71.2 14.73 25.78 0")
    Tested(bands={1048576: (14.73, 25.78)}, chosen={1048576: 'Ring, LL'}, gpus={})
    """

    def named(word: str, known: list[str]) -> str:
        if word.isdecimal():
            return known[int(word)] if int(word) < len(known) else word
        return next((name for name in known if name.lower() == word.replace("_", "").lower()), word)

    chosen = {
        int(size): f"{named(algorithm, ALGORITHMS)}, {named(protocol, PROTOCOLS)}"
        for size, algorithm, protocol in _CHOICE.findall(printed)
    }
    rows = re.sub(f"^{_TAG}", "", _INFO.sub("", printed), flags=re.MULTILINE)
    old = re.search(r"^\s*# +size +count .*redop +time", rows, re.MULTILINE)  # the column root came later
    found = re.findall(_ROW.format(root="" if old else r"\s+-?\d+"), rows, re.MULTILINE)
    hosts = _RANK.findall(rows)
    return Tested(
        {int(size): (float(algbw), float(busbw)) for size, algbw, busbw in found if float(busbw)},
        chosen,
        {host: hosts.count(host) for host in hosts},
    )


def host_in(printed: str) -> tuple[Topology | None, Bandwidth | None]:
    """Return the host that nvidia-smi or NCCL describes in a text, and the rate of its cards; None for unknown ones."""
    if xml := re.search(r"<system\b.*</system>", printed, re.DOTALL):
        return Topology.from_nccl(xml[0], INSIDE), nccl.read(xml[0])[1]
    if re.search(r"^[\s>]*GPU\d+\s.*\bX\b", printed, re.MULTILINE):
        return Topology.from_nvidia_smi(printed, latency=INSIDE), None
    return None, None


def seconds(plan: Plan, place: Topology) -> tuple[float, float]:
    """Return the seconds per byte of a plan, and the latency of the way of one key."""
    key, way = next(iter(plan.share)), 0.0
    for step in plan.steps:
        routes = [place.route(send.src, send.dst) for send in sends(step) if send.key == key]
        way += max((sum(link.latency for link in route) for route in routes), default=0.0)
    links = [replace(link, latency=0.0) for link in place.links]
    return cost.shared(plan, Topology(place.name, place.kinds, links), "1 GB").duration / 1e9, way


def report(printed: str, hosts: int | None = None, nic: "str | Bandwidth | None" = None) -> tuple[str, Table]:
    """Return a line that describes the cluster, and the table of bus bandwidths."""
    tested, (host, rate) = read(printed), host_in(printed)
    hosts, card = len(tested.gpus) or 1 if hosts is None else hosts, bandwidth(nic or rate or NIC)
    require_counts(hosts=hosts)
    if host is None:
        host = rails(hosts, max(tested.gpus.values(), default=8), card, latency=ACROSS, inside_latency=INSIDE)
    elif hosts > 1:
        host = rails(hosts, host, card, latency=ACROSS)
    gpus = [node for node, kind in host.kinds.items() if kind == "gpu"]
    groups = [[*group] for _, group in groupby(gpus, key=lambda gpu: gpu.rpartition("/")[0])]
    n, factor = len(gpus), 2 - 2 / len(gpus)
    if n < 2:
        raise TopologyError(text("busbw.one"))
    if tested.bands:
        algbw, busbw = tested.bands[max(tested.bands)]
        if abs(busbw / algbw / factor - 1) > ABOUT + 0.01 / algbw:
            raise TopologyError(text("busbw.factor", got=f"{busbw / algbw:.3f}", right=f"{factor:.3f}", gpus=n))
    plans = {"ring": ring(gpus), "sharded": sharded(gpus), "trees": double_tree(gpus)}
    if hosts > 1:
        plans = {"ring": plans["ring"], "rail_rings": rail_rings(groups), "rail_wise": rail_wise(groups)}
        plans["trees"] = rail_wise(groups, double_tree)
    takes = {name: seconds(plan, host) for name, plan in plans.items()}
    alike = {"Ring": "rail_rings" if hosts > 1 else "ring", "Tree": "trees"}
    rows = []
    for size in sorted({*tested.bands, *tested.chosen}) or SIZES:
        found = {name: Bandwidth(factor * size / (size * each + way)) for name, (each, way) in takes.items()}
        row = [show_size(size), *map(str, found.values())]
        measured, chosen = tested.bands.get(size), tested.chosen.get(size)
        near = alike.get((chosen or "").partition(",")[0])
        error = f"{found[near] / 1e9 / measured[1] - 1:+.0%}" if near and measured else None
        rows.append(
            [*row, *([str(Bandwidth(1e9 * measured[1])) if measured else None, chosen, error] if tested.found else [])]
        )
    inside = max(link.capacity for link in host.leaving(gpus[0]) if hosts == 1 or link.dst.startswith("host0/"))
    line = text("busbw.line", hosts=hosts, gpus=n // hosts, inside=Bandwidth(inside))
    if hosts > 1:
        line += text("busbw.cards", cards=len({*host.nics.values()}) // hosts, nic=card)
    columns = ["measured", "chosen", "error"] if tested.found else []
    return line, table("size", *takes, *columns, rows=rows)


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a file cannot be read or does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps busbw", description=__doc__.partition(": ")[2].partition("\n")[0]
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="output of nvidia-smi topo -m and nvlink -s, "
        "NCCL_TOPO_DUMP_FILE, output of all_reduce_perf and of NCCL_DEBUG=INFO, in any order",
    )
    parser.add_argument("--hosts", type=int, help="number of hosts; if left out, those of all_reduce_perf, or 1")
    parser.add_argument(
        "--nic", help='of a network card, such as "25 GB/s"; if left out, that of NCCL_TOPO_DUMP_FILE, or 50 GB/s'
    )
    options = parser.parse_args(arguments)
    try:
        printed = "\n".join(file.read_text("utf-8", "replace") for file in options.files)
        print(*report(printed, options.hosts, options.nic), sep="\n")
    except (OSError, TopologyError, UnitError) as error:
        print(f"{error.filename}: {why(error)}" if isinstance(error, OSError) else error, file=sys.stderr)
        return 1
    return 0
