"""The output of ``rocm-smi --showtopo`` or ``amd-smi topology``, read into the table of ``nvidia.py``."""

import re

from d2lps.messages import text
from d2lps.topology.links import BETWEEN_CPUS, PCIE, TopologyError
from d2lps.topology.nvidia import MARKS, Host, TopoMatrix, host_of
from d2lps.units import Bandwidth

XGMI = "50 GB/s"  # one link of MI200, one way; of MI300 it is 64, of MI350 76.8
NEAR = 40  # the most weight of a way over PCIe through one CPU: 20 up, 20 down

_TITLE = re.compile(r"=\s*$|TABLE:|between two gpus", re.IGNORECASE)
_KIND = re.compile(r"(link type|weight)\b.*(?:between two gpus|table:)", re.IGNORECASE)
_DEVICE = re.compile(r"GPU[0-9]{1,4}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_NUMA = re.compile(r"GPU\s?\[?([0-9]+)\]?\s*: \(Topology\) Numa Node: ([0-9]+)")


def read(
    text: str,
    xgmi: "str | Bandwidth" = XGMI,
    pcie: "str | Bandwidth" = PCIE,
    between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
    latency: "float | str" = 0.0,
) -> Host:
    """Return the host whose tables ``text`` contains: see :meth:`d2lps.Topology.from_rocm_smi`."""
    types, weights = parse(text)
    devices = [*dict.fromkeys(a for a, _ in types)]
    numbered = {device: f"GPU{i}" if ":" in device else device for i, device in enumerate(devices)}
    direct = min((weights.get(pair, 0) for pair, kind in types.items() if kind == "XGMI"), default=0)
    numa = {f"GPU{gpu}": node for gpu, node in _NUMA.findall(text)}
    codes = {}
    for pair, kind in types.items():
        weight, (a, b) = weights.get(pair, 0), (numbered[device] for device in pair)
        far = weight > NEAR if weights and kind == "PCIE" else bool(numa)
        codes[a, b] = "X" if a == b else "NV1" if kind == "XGMI" and weight == direct else "SYS" if far else "PHB"
    table = TopoMatrix((*numbered.values(),), (), codes, {gpu: numa.get(gpu, "") for gpu in numbered.values()})
    return host_of(table, xgmi, pcie, between_cpus, latency)


def parse(text: str) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], int]]:
    """Parse the tables of link types and weights, or raise a TopologyError that names the line."""
    if not isinstance(text, str):
        raise _refused("not-a-text", given=repr(text))
    tables: dict[str, dict[tuple[str, str], str]] = {"link type": {}, "weight": {}, "": {}}
    kind, columns = "", list[str]()
    for number, line in enumerate(MARKS.sub(" ", text).splitlines(), 1):
        if _TITLE.search(line):
            found = _KIND.search(line)
            kind, columns = found[1].lower() if found else "", []
        words = line.split()
        first = next((i for i, word in enumerate(words) if _DEVICE.fullmatch(word)), len(words))
        if not kind or not words[first:] or not columns:
            columns = words[first:]
            continue
        gpu, *cells = words[first:]
        if gpu not in columns or len(cells) != len(columns):
            reason = "few-cells" if gpu in columns else "no-column"
            raise _refused(reason, line=number, gpu=gpu, cells=len(cells), columns=len(columns))
        for other, cell in zip(columns, cells, strict=True):
            known = "0|SELF" if gpu == other else "[0-9]+" if kind == "weight" else "XGMI|PCIE"
            if not re.fullmatch(known, cell):
                raise _refused("amd-cell", line=number, gpu=gpu, other=other, cell=repr(cell))
            tables[kind][gpu, other] = cell
    types, weights = tables["link type"], tables["weight"]
    both = {(b, a): cell for (a, b), cell in types.items()}
    if not types or both != types or weights and weights.keys() != types.keys():
        raise _refused("amd-table")
    return types, {pair: int(cell.replace("SELF", "0")) for pair, cell in weights.items()}


def _refused(reason: str, **values: object) -> TopologyError:
    return TopologyError(text(f"nvidia.{reason}", **values) + text("nvidia.amd-give"))
