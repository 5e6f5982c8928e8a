"""``python -m d2lps busbw``: bus bandwidths of your hosts: predicted, measured by nccl-tests, and chosen by NCCL.

A prediction is the time of the bytes as :func:`d2lps.cost.shared` has it, and the latency of the way of one key: parts
of NCCL's messages run freely, and do not wait for each other at the end of a step. All-gathers and reduce-scatters are
the halves of the all-reduces: by the same rings, in half the time.
"""

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from d2lps.algorithms import all_to_all, broadcast, double_tree, rail_rings, rail_wise, ring, sharded
from d2lps.messages import text, why
from d2lps.plan.acts import Send, sends
from d2lps.plan.lazy import Lazy
from d2lps.plan.plan import Plan
from d2lps.simulate import cost
from d2lps.simulate.cost import Flow, step_flows
from d2lps.topology import Topology, TopologyError, nccl, rails
from d2lps.topology.fabrics import NIC, NVLINKS
from d2lps.topology.links import Link, require_counts
from d2lps.topology.nccl import ACROSS, INSIDE, PROTOCOL
from d2lps.units import Bandwidth, UnitError, bandwidth, show_seconds, show_size
from d2lps.view.tables import Table, table

SIZES = [4**i << 20 for i in range(7)]
ALGORITHMS = "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT".split()  # by NCCL's numbers
PROTOCOLS = "LL LL128 Simple".split()
ABOUT = 0.003  # by which busbw ÷ algbw, as printed, may differ from the factor of a collective
HALVES = "all_gather", "reduce_scatter"  # of an all-reduce
COLLECTIVES = ("all_reduce", *HALVES, "all_to_all", "broadcast")
SCHEMA = 1  # the version of --json: it grows when a field is renamed or removed, or has another unit
CHUNKS = 64  # of a broadcast along a chain
WIDTHS = {"int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "double": 8, "int64": 8, "uint64": 8}  # bytes; of others: 4

_TAG = r"(?:\[[\d,]+\](?:<std\w+>)?:?|\d+:(?= ))"  # of a line, by mpirun or srun
_INFO = re.compile(rf"(?:{_TAG}\s*)?[A-Za-z][\w.-]*:\d+:\d+ \[\d+\] NCCL [^\n]*\n?{_TAG}?")  # may stand inside a row
_CHOICE = re.compile(r"NCCL INFO (?:(\w+): +)?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_RANK = re.compile(r"^\s*# +Rank +\d+ .* on +(\S+) device", re.MULTILINE)
_PROGRAM = re.compile(r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|scatter|gather)_perf")
_ROW = r"^ *(\d+) +(\d+) +([a-z]\w*)(?: +([a-z]\w*))?{root} +[\d.]+ +([\d.]+) +([\d.]+) +\S+"


class Tested(NamedTuple):
    """The output of nccl-tests and NCCL, by bytes: algbw and busbw in GB/s, algorithm and protocol; and host → GPUs.

    ``collective`` is the one that the output names or its columns tell; empty if neither does.
    """

    bands: dict[int, tuple[float, float]]
    chosen: dict[int, str]
    gpus: dict[str, int]
    collective: str = ""


def read(printed: str, collective: str | None = None) -> Tested:
    """Return what the outputs of nccl-tests and of ``NCCL_DEBUG=INFO`` contain, also if they are mixed.

    Args:
        printed: The outputs.
        collective: That of the test; what they say, if left out.

    Raises:
        TopologyError: For outputs of several collectives.
    """

    def named(word: str, known: list[str]) -> str:
        if word.isdecimal():
            return known[int(word)] if int(word) < len(known) else word
        return next((name for name in known if name.lower() == word.replace("_", "").lower()), word)

    rows = re.sub(f"^{_TAG}", "", _INFO.sub("", printed), flags=re.MULTILINE)
    old = re.search(r"^\s*# +size +count .*redop +time", rows, re.MULTILINE)  # the column root came later
    found = re.findall(_ROW.format(root=r"( )" if old else r" +(-?\d+)"), rows, re.MULTILINE)
    hosts = _RANK.findall(rows)
    bands = {int(size): (float(algbw), float(busbw)) for size, *_, algbw, busbw in found if float(busbw)}
    named_by = {_spelled(word) for word in _PROGRAM.findall(printed)} or {
        _told(*row[:5]) for row in found if int(row[0])
    }
    if len(named_by) > 1:
        raise TopologyError(text("busbw.several", given=" ".join(sorted(named_by - {""}))))
    told = "".join(named_by)
    called = collective or told or COLLECTIVES[0]
    chosen = {
        int(size): f"{named(algorithm, ALGORITHMS)}, {named(protocol, PROTOCOLS)}"
        for prefix, size, algorithm, protocol in _CHOICE.findall(printed)
        if not prefix or _spelled(prefix.lower()) == called
    }
    return Tested(bands, chosen, {host: hosts.count(host) for host in hosts}, told)


def _spelled(word: str) -> str:
    """Return the name of a collective as it is spelled here: ``all_to_all`` of ``alltoall``."""
    return next((name for name in COLLECTIVES if name.replace("_", "") == word.replace("_", "")), word)


def _told(size: str, count: str, kind: str, operation: str, root: str) -> str:
    """Return the collective that the columns of a row tell; empty for all-gather and all-to-all, which look alike."""
    to_all = root.strip() in ("", "-1")
    if operation in ("", "none"):
        return "" if to_all else "broadcast"
    if not to_all:
        return "reduce"
    width = WIDTHS.get(kind, 1 if kind.startswith("f8") or kind.startswith("fp8") else 4)
    return "all_reduce" if int(count) * width == int(size) else "reduce_scatter"


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
    elif len(plan.steps) == 1:
        way = max(latency(send) for send in sends(plan.steps[0]))
    else:
        way = sum(max((latency(send) for send in sends(step) if send.key == key), default=0.0) for step in plan.steps)
    within = nvlinks(place)  # of whose rate NCCL's protocol leaves a part
    links = [
        replace(link, latency=0.0, bandwidth=Bandwidth(link.bandwidth * (PROTOCOL if link in within else 1)))
        for link in place.links
    ]
    return cost.shared(plan, Topology(place.name, place.kinds, links), "1 GB").duration / 1e9, way


def nvlinks(place: Topology) -> set[Link]:
    """Return the links of NVLink: those between two GPUs, and those of a switch that leads only to GPUs."""
    beside: dict[str, set[str]] = {}
    for link in place.links:
        beside.setdefault(link.src, set()).add(place.kinds[link.dst])
    ends = {node for node, kinds in beside.items() if place.kinds[node] == "gpu" or kinds == {"gpu"}}
    return {link for link in place.links if {link.src, link.dst} <= ends}


def factor_of(collective: str, gpus: int) -> float:
    """Return busbw ÷ algbw, as nccl-tests define it."""
    return {"all_reduce": 2 - 2 / gpus, "broadcast": 1.0}.get(collective, 1 - 1 / gpus)


def plans_of(collective: str, groups: list[list[str]]) -> dict[str, Plan]:
    """Return the plans that the package has for a collective on hosts with these GPUs."""
    gpus = [gpu for group in groups for gpu in group]
    if collective == "all_to_all":
        pairwise = all_to_all(gpus)  # NCCL's messages do not wait for each other
        at_once = [[send for step in pairwise.steps for send in sends(step)]]
        return {"direct": Plan(gpus, pairwise.share, at_once, pairwise.holds, pairwise.wants)}
    if collective == "broadcast":
        return {"chain": broadcast(gpus, chunks=CHUNKS), "trees": broadcast(gpus)}
    if len(groups) > 1:
        plans = {"ring": ring(gpus), "rail_rings": rail_rings(groups), "rail_wise": rail_wise(groups)}
        return plans if collective in HALVES else plans | {"trees": rail_wise(groups, double_tree)}
    plans = {"ring": ring(gpus), "sharded": sharded(gpus)}
    return plans if collective in HALVES else plans | {"trees": double_tree(gpus)}


def compare(
    printed: str, hosts: int | None = None, nic: "str | Bandwidth | None" = None, collective: str | None = None
) -> dict[str, Any]:
    """Return everything that is printed as numbers, for programs; ``busbw.schema.json`` describes it.

    Args:
        printed: The outputs that :func:`read` and :func:`host_in` read.
        hosts: Their number; that of the output of nccl-tests, or 1, if left out.
        nic: The rate of a network card; what the topology says, or 50 GB/s, if left out.
        collective: One of ``COLLECTIVES``; that of the output, or ``"all_reduce"``, if left out.

    Raises:
        TopologyError: For outputs that do not fit each other or the number of hosts.
    """
    tested, (place, rate) = read(printed, collective), host_in(printed)
    hosts, card = len(tested.gpus) or 1 if hosts is None else hosts, bandwidth(nic or rate or NIC)
    require_counts(hosts=hosts)
    if place is None:
        place = rails(hosts, max(tested.gpus.values(), default=8), card, latency=ACROSS, inside_latency=INSIDE)
    elif hosts > 1:
        place = rails(hosts, place, card, latency=ACROSS)
    gpus = [node for node, kind in place.kinds.items() if kind == "gpu"]
    if len(gpus) < 2:
        raise TopologyError(text("bandwidth.nothing"))
    collective = collective or tested.collective or ("" if tested.bands else COLLECTIVES[0])
    if collective not in COLLECTIVES:
        raise TopologyError(text("busbw.which", given=collective or "–", known=" ".join(COLLECTIVES)))
    groups = [[*group] for _, group in groupby(gpus, key=lambda gpu: gpu.rpartition("/")[0])]
    factor = factor_of(collective, len(gpus))
    algbw, busbw = tested.bands[max(tested.bands)] if tested.bands else (1.0, factor)
    if abs(busbw / algbw / factor - 1) > ABOUT + 0.01 / algbw:
        given = {"got": f"{busbw / algbw:.3f}", "right": f"{factor:.3f}", "gpus": len(gpus), "collective": collective}
        raise TopologyError(text("busbw.factor", **given))
    scale = {"all_to_all": len(gpus)}.get(collective, 0.5 if collective in HALVES else 1)
    takes = {name: seconds(plan, place) for name, plan in plans_of(collective, groups).items()}
    takes = {name: (scale * each, way * min(scale, 1)) for name, (each, way) in takes.items()}
    alike = {"Ring": "rail_rings" if hosts > 1 else "ring", "Tree": "trees"}
    only = "direct" if collective == "all_to_all" else ""  # which NCCL does not choose
    rows: list[dict[str, Any]] = []
    for size in sorted({*tested.bands, *tested.chosen}) or SIZES:
        rates = {name: Bandwidth(factor * size / (size * each + way)) for name, (each, way) in takes.items()}
        chosen, (_, measured) = tested.chosen.get(size), tested.bands.get(size, (0, 0))
        near = rates.get(alike.get((chosen or "").partition(",")[0], only))
        row = {"bytes": size, "predicted_bytes_per_second": {name: float(rate) for name, rate in rates.items()}}
        row |= {"measured_bytes_per_second": 1e9 * measured if measured else None, "chosen": chosen}
        rows.append(row | {"error": near / 1e9 / measured - 1 if near and measured else None})
    inside = max(link.capacity for link in place.leaving(gpus[0]) if hosts == 1 or link.dst.startswith("host0/"))
    return {
        "schema": SCHEMA,
        "collective": collective,
        "hosts": hosts,
        "gpus_per_host": len(groups[0]),
        "inside_bytes_per_second": float(inside),
        "cards_per_host": len({*place.nics.values()}) // hosts if hosts > 1 else None,
        "card_bytes_per_second": float(card) if hosts > 1 else None,
        "assumed": _assumed(printed, nic),
        "rows": rows,
    }


def report(
    printed: str, hosts: int | None = None, nic: "str | Bandwidth | None" = None, collective: str | None = None
) -> tuple[str, Table]:
    """Return a line that describes the cluster, and the table of bus bandwidths.

    Args:
        printed, hosts, nic, collective: As for :func:`compare`.

    Raises:
        TopologyError: As :func:`compare` does.
    """
    found = compare(printed, hosts, nic, collective)
    columns: dict[str, list[str | None]] = {}
    for row in found["rows"]:
        measured, error = row["measured_bytes_per_second"], row["error"]
        cells: dict[str, str | None] = {"size": show_size(row["bytes"])}
        cells |= {name: str(Bandwidth(rate)) for name, rate in row["predicted_bytes_per_second"].items()}
        cells |= {"measured": str(Bandwidth(measured)) if measured else None, "chosen": row["chosen"]}
        for name, cell in (cells | {"error": None if error is None else f"{error:+.0%}"}).items():
            columns.setdefault(name, []).append(cell)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    card = found["card_bytes_per_second"]
    outside = f"{found['cards_per_host']} × {Bandwidth(card)}" if card else "–"
    inside = Bandwidth(found["inside_bytes_per_second"])
    line = text("busbw.line", hosts=found["hosts"], gpus=found["gpus_per_host"], inside=inside, outside=outside)
    line = f"{found['collective']}, {line}" if found["collective"] != COLLECTIVES[0] else line
    return line, table(*columns, rows=zip(*columns.values(), strict=True))


def _assumed(printed: str, nic: "str | Bandwidth | None") -> dict[str, float]:
    """Return what a prediction assumes because no topology is given; nothing if one is."""
    if host_in(printed)[0] is not None:
        return {}
    given = max(read(printed).gpus.values(), default=0)
    return {
        **({} if given else {"gpus_per_host": 8}),
        "inside_bytes_per_second": float(bandwidth(NVLINKS)),
        **({} if nic else {"card_bytes_per_second": float(bandwidth(NIC))}),
        "inside_latency_seconds": INSIDE,
        "outside_latency_seconds": ACROSS,
    }


def assumed(printed: str, nic: "str | Bandwidth | None" = None) -> Table | None:
    """Return what a prediction assumes because no topology is given as a table; None if one is."""
    found = _assumed(printed, nic)
    if not found:
        return None
    rows: list[tuple[str, object]] = [
        (text("busbw.gpus"), found.get("gpus_per_host")),
        (text("busbw.inside"), Bandwidth(found["inside_bytes_per_second"])),
        (text("busbw.card"), Bandwidth(found["card_bytes_per_second"]) if "card_bytes_per_second" in found else None),
        (text("busbw.latency"), f"{show_seconds(INSIDE)}, {show_seconds(ACROSS)}"),
    ]
    return table("assumed", "value", rows=[(what, str(value)) for what, value in rows if value is not None])


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a file cannot be read or does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m d2lps busbw", description=__doc__.splitlines()[0].partition(": ")[2]
    )
    known = "output of nvidia-smi topo -m and nvlink -s, of nccl-tests and NCCL_DEBUG=INFO, or NCCL_TOPO_DUMP_FILE"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=known)
    parser.add_argument("--hosts", type=int, help="if left out, those of nccl-tests, or 1")
    parser.add_argument("--nic", help='such as "25 GB/s"; if left out, that of NCCL_TOPO_DUMP_FILE, or 50 GB/s')
    of_test = "of the output; if left out, as the output or the name of its file says, or all_reduce"
    parser.add_argument("--collective", choices=COLLECTIVES, help=of_test)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    try:
        texts = {file: file.read_text("utf-8", "replace") for file in options.files}
        for file, printed in texts.items():
            if not (any(read(printed)) or host_in(printed)[0] or re.search(r"^\s*GPU \d+:", printed, re.MULTILINE)):
                raise TopologyError(text("busbw.unknown", file=file))
        printed = "\n".join(texts.values())
        named = {_spelled(word) for file in texts for word in _PROGRAM.findall(file.name)}
        collective = options.collective or (named.pop() if len(named) == 1 else None)
        if options.json:
            print(json.dumps(compare(printed, options.hosts, options.nic, collective)))
            return 0
        print(*report(printed, options.hosts, options.nic, collective), sep="\n")
        if assumptions := assumed(printed, options.nic):
            print("", assumptions, sep="\n")
    except (OSError, TopologyError, UnitError) as error:
        print(f"{error.filename}: {why(error)}" if isinstance(error, OSError) else error, file=sys.stderr)
        return 1
    return 0
