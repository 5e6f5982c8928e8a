"""``python -m d2lps busbw``: bus bandwidths of all-reduce on your hosts, predicted, measured by nccl-tests, and chosen.

A prediction is the time of the bytes as :func:`d2lps.cost.shared` has it, and the latency of the way of one key: parts
of NCCL's messages run freely, and do not wait for each other at the end of a step.
"""

import argparse
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from d2lps.algorithms import double_tree, rail_rings, rail_wise, ring, sharded
from d2lps.messages import text, why
from d2lps.plan.acts import Send, sends
from d2lps.plan.lazy import Lazy
from d2lps.plan.plan import Plan
from d2lps.simulate import cost
from d2lps.simulate.cost import Flow, step_flows
from d2lps.topology import Topology, TopologyError, nccl, rails
from d2lps.topology.fabrics import NIC
from d2lps.topology.links import require_counts
from d2lps.topology.nccl import ACROSS, INSIDE
from d2lps.units import Bandwidth, UnitError, bandwidth, show_size
from d2lps.view.tables import Table, table

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
    """The output of nccl-tests and NCCL, by bytes: algbw and busbw in GB/s, algorithm and protocol; and host → GPUs."""

    bands: dict[int, tuple[float, float]]
    chosen: dict[int, str]
    gpus: dict[str, int]


def read(printed: str) -> Tested:
    """Return what the outputs of ``all_reduce_perf`` and of ``NCCL_DEBUG=INFO`` contain, also if they are mixed."""

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

    def latency(flow: Flow | Send) -> float:
        return sum(link.latency for link in place.route(flow.src, flow.dst))

    key, way = next(iter(plan.share)), 0.0
    if isinstance(plan.steps, Lazy):  # a ring, in each step of which every key moves
        kinds = [*map(plan.steps.kind, range(len(plan.steps)))]
        for kind, count in Counter(kinds).items():
            flows = step_flows(plan, kinds.index(kind))
            way += count * sum(many * latency(flow) for flow, many in flows.items()) / sum(flows.values())
    else:
        way = sum(max((latency(send) for send in sends(step) if send.key == key), default=0.0) for step in plan.steps)
    links = [replace(link, latency=0.0) for link in place.links]
    return cost.shared(plan, Topology(place.name, place.kinds, links), "1 GB").duration / 1e9, way


def report(printed: str, hosts: int | None = None, nic: "str | Bandwidth | None" = None) -> tuple[str, Table]:
    """Return a line that describes the cluster, and the table of bus bandwidths."""
    tested, (place, rate) = read(printed), host_in(printed)
    hosts, card = len(tested.gpus) or 1 if hosts is None else hosts, bandwidth(nic or rate or NIC)
    require_counts(hosts=hosts)
    if place is None:
        place = rails(hosts, max(tested.gpus.values(), default=8), card, latency=ACROSS, inside_latency=INSIDE)
    elif hosts > 1:
        place = rails(hosts, place, card, latency=ACROSS)
    gpus = [node for node, kind in place.kinds.items() if kind == "gpu"]
    if len(gpus) < 2:
        raise TopologyError(text("bandwidth.nothing"))
    groups, factor = [[*group] for _, group in groupby(gpus, key=lambda gpu: gpu.rpartition("/")[0])], 2 - 2 / len(gpus)
    algbw, busbw = tested.bands[max(tested.bands)] if tested.bands else (1.0, factor)
    if abs(busbw / algbw / factor - 1) > ABOUT + 0.01 / algbw:
        raise TopologyError(text("busbw.factor", got=f"{busbw / algbw:.3f}", right=f"{factor:.3f}", gpus=len(gpus)))
    if hosts > 1:
        plans = {"ring": ring(gpus), "rail_rings": rail_rings(groups), "rail_wise": rail_wise(groups)}
        plans["trees"] = rail_wise(groups, double_tree)
    else:
        plans = {"ring": ring(gpus), "sharded": sharded(gpus), "trees": double_tree(gpus)}
    takes = {name: seconds(plan, place) for name, plan in plans.items()}
    alike = {"Ring": "rail_rings" if hosts > 1 else "ring", "Tree": "trees"}
    columns: dict[str, list[str | None]] = {name: [] for name in ("size", *takes, "measured", "chosen", "error")}
    for size in sorted({*tested.bands, *tested.chosen}) or SIZES:
        rates = {name: Bandwidth(factor * size / (size * each + way)) for name, (each, way) in takes.items()}
        chosen, (_, measured) = tested.chosen.get(size), tested.bands.get(size, (0, 0))
        near = rates.get(alike.get((chosen or "").partition(",")[0], ""))
        row = {name: str(rate) for name, rate in rates.items()} | {"size": show_size(size), "chosen": chosen}
        row["measured"] = str(Bandwidth(1e9 * measured)) if measured else None
        row["error"] = f"{near / 1e9 / measured - 1:+.0%}" if near and measured else None
        for name, cells in columns.items():
            cells.append(row[name])
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    inside = max(link.capacity for link in place.leaving(gpus[0]) if hosts == 1 or link.dst.startswith("host0/"))
    outside = f"{len({*place.nics.values()}) // hosts} × {card}" if hosts > 1 else "–"
    line = text("busbw.line", hosts=hosts, gpus=len(groups[0]), inside=Bandwidth(inside), outside=outside)
    return line, table(*columns, rows=zip(*columns.values(), strict=True))


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a file cannot be read or does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps busbw", description=__doc__.splitlines()[0].partition(": ")[2]
    )
    known = "output of nvidia-smi topo -m and nvlink -s, of all_reduce_perf and NCCL_DEBUG=INFO, or NCCL_TOPO_DUMP_FILE"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=known)
    parser.add_argument("--hosts", type=int, help="if left out, those of all_reduce_perf, or 1")
    parser.add_argument("--nic", help='such as "25 GB/s"; if left out, that of NCCL_TOPO_DUMP_FILE, or 50 GB/s')
    options = parser.parse_args(arguments)
    try:
        texts = {file: file.read_text("utf-8", "replace") for file in options.files}
        for file, printed in texts.items():
            if not (any(read(printed)) or host_in(printed)[0] or re.search(r"^\s*GPU \d+:", printed, re.MULTILINE)):
                raise TopologyError(text("busbw.unknown", file=file))
        print(*report("\n".join(texts.values()), options.hosts, options.nic), sep="\n")
    except (OSError, TopologyError, UnitError) as error:
        print(f"{error.filename}: {why(error)}" if isinstance(error, OSError) else error, file=sys.stderr)
        return 1
    return 0
