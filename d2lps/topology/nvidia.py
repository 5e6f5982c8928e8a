"""The output of ``nvidia-smi topo -m``, read into a table, and the table into the nodes and links of its host.

>>> table = '''
...         GPU0    GPU1    GPU2    mlx5_0  CPU Affinity    NUMA Affinity
... GPU0     X      NV4     SYS     PIX     0-31            0
... GPU1    NV4      X      SYS     PIX     0-31            0
... GPU2    SYS     SYS      X      SYS     32-63           1
... '''
>>> host = read(table)
>>> host.kinds
{'gpu0': 'gpu', 'gpu1': 'gpu', 'gpu2': 'gpu', 'switch': 'switch', 'cpu0': 'cpu', 'cpu1': 'cpu'}
>>> [f"{link.src}→{link.dst} ×{link.count}" for link in host.links[:2]]
['gpu0→gpu1 ×4', 'gpu1→gpu0 ×4']
>>> host.nics
{'gpu0': 'mlx5_0', 'gpu1': 'mlx5_0', 'gpu2': 'mlx5_0'}
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from d2lps import units
from d2lps.messages import text
from d2lps.topology.links import BETWEEN_CPUS, NVLINK, PCIE, Link, TopologyError, both_ways
from d2lps.units import Bandwidth

# Codes for the connection of two devices: PCIe switches only, a host bridge, the link between CPUs.
SWITCHES, HOST, FAR = ("PIX", "PSB", "PXB"), ("PHB", "NODE"), ("SYS", "SOC")
MOST_NVLINKS = {"V100": 6, "A800": 8, "H800": 8, "A100": 12}  # that a GPU of this name has
ANY_NVLINKS = 18  # the most of any GPU so far (H100, B200)
NVLINKS = "20 GB/s", "14.0625 GB/s", "50 GB/s"  # one link, one way, where it is not 25: see _MODELS

# Names of GPUs with such links: NVLink 1, the links of workstation cards, NVLink 5 of Blackwell.
_MODELS = r"P100\b", r"RTX 3090\b|RTX A[0-9]{4}\b|A40\b", r"\bG?B[123]00\b"
_MODEL, _RATE = re.compile(r"(?:^|\s)GPU [0-9]+: (.+)", re.MULTILINE), re.compile(r"Link [0-9]+: ([0-9.]+) GB/s")

# Before or between the words of the table: the codes of a terminal (the ESC of m, which underlines the heading, may be
# lost or shown), the marks of a quotation and of Markdown, and the mark at the beginning of a file.
_ESC = r"(?:\x1b|␛|\^\[|\\(?:x1b|033|e))"
MARKS = re.compile(rf"{_ESC}\[[0-9;?]*[ -/]*[@-~]|\[[0-9;]*m|^[ \t]*>[ \t>]*|[|*`\ufeff]", re.MULTILINE)
_LEGEND = re.compile(r"(?:^|\s)(NIC[0-9]+): +(\S+)\s*$", re.MULTILINE)
_GPU = re.compile(r"GPU[0-9]{1,4}")
_CODE = re.compile(r"X|NV[1-9][0-9]?|" + "|".join(SWITCHES + HOST + FAR))
_PART = re.compile(rf"(?:GPU|NIC|mlx5_)[0-9]+|{_CODE.pattern}")  # of words that ran together, such as NIC11NIC12
_P2P = re.compile(r"OK|[CGT]?NS|DR|U")  # the codes of `topo -p2p`


class Host(NamedTuple):
    """The name, nodes, links and network cards of a host: arguments of a Topology."""

    name: str
    kinds: dict[str, str]
    links: list[Link]
    nics: dict[str, str]


class TopoMatrix(NamedTuple):
    """The table as printed: ``codes`` maps (GPU, device) to a code, ``affinity`` a GPU to its CPU's cores or number."""

    gpus: tuple[str, ...]
    others: tuple[str, ...]
    codes: Mapping[tuple[str, str], str]
    affinity: Mapping[str, str]

    def nvlinks(self, a: str, b: str) -> int:
        """Return the number of NVLinks between two GPUs."""
        code = self.codes[a, b]
        return int(code[2:]) if code.startswith("NV") else 0

    def same_switch(self, a: str, b: str) -> bool:
        """Return True if two GPUs are on one PCIe switch; if NVLinks hide it, a network card beside both shows it."""
        if not self.nvlinks(a, b):
            return self.codes[a, b] in SWITCHES
        return any(self.codes[a, other] in SWITCHES and self.codes[b, other] in SWITCHES for other in self.others)

    def same_cpu(self, a: str, b: str) -> bool:
        """Return True if two GPUs are on one CPU, because the same cores are near both or because of their code."""
        if self.nvlinks(a, b) or (self.affinity[a] and self.codes[a, b] in FAR):
            return self.affinity[a] == self.affinity[b]
        return self.codes[a, b] not in FAR

    def cards(self) -> dict[str, str]:
        """Return GPU → its closest network card; of equally close ones, one that serves the fewest GPUs so far."""
        near = {code: steps for steps, code in enumerate(SWITCHES + HOST + FAR)}
        cards: dict[str, str] = {}
        for gpu in self.gpus if self.others else ():
            taken = [*cards.values()]
            far = [(near.get(self.codes[gpu, nic], len(near)), taken.count(nic)) for nic in self.others]
            cards[gpu] = self.others[far.index(min(far))]
        return cards


def read(
    text: str,
    nvlink: "str | Bandwidth | None" = None,
    pcie: "str | Bandwidth | Mapping[str, str | Bandwidth]" = PCIE,
    between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
    latency: "float | str" = 0.0,
) -> Host:
    """Return the host whose table is ``text``: see :meth:`d2lps.Topology.from_nvidia_smi`."""
    table, legend, models = parse(text), dict(_LEGEND.findall(MARKS.sub(" ", text))), " ".join(_MODEL.findall(text))
    limit = max((count for name, count in MOST_NVLINKS.items() if name in models), default=ANY_NVLINKS)
    host = host_of(table, nvlink or nvlink_rate(text), pcie, between_cpus, latency, limit)
    return host._replace(nics={gpu: legend.get(nic, nic) for gpu, nic in host.nics.items()})


def nvlink_rate(text: str) -> "str | Bandwidth":
    """Return bytes per second, one way, of a link of the GPUs that ``nvidia-smi nvlink -s`` or ``-L`` lists.

    The rates that the driver states include the coding of the line: 26.562 for 25 GB/s, 53.125 for 50 GB/s.

    >>> nvlink_rate("GPU 0: NVIDIA B200 (UUID: GPU-5e1)")
    '50 GB/s'
    """
    rates = [float(rate) for rate in _RATE.findall(text) if rate.strip(".0")]
    if rates:
        rate = max(rates, key=rates.count)
        coded = 25 * round(rate / 25)
        return Bandwidth(1e9 * (coded if coded and 1 <= rate / coded < 1.07 else rate))
    model = next(iter(_MODEL.findall(text)), "")
    return next((rate for named, rate in zip(_MODELS, NVLINKS, strict=True) if re.search(named, model)), NVLINK)


def host_of(
    table: "TopoMatrix", nvlink, pcie, between_cpus=BETWEEN_CPUS, latency: "float | str" = 0.0, limit: int = ANY_NVLINKS
) -> Host:
    """Return the host that a table describes; the rates are as for :meth:`d2lps.Topology.from_nvidia_smi`.

    GPUs that would need more than ``limit`` NVLinks meet at NVSwitch.
    """
    name = {gpu: gpu.lower() for gpu in table.gpus}
    gpus = dict.fromkeys(name.values(), "gpu")
    nics = {name[gpu]: nic for gpu, nic in table.cards().items()}
    counts = {(a, b): table.nvlinks(a, b) for a, b in combinations(table.gpus, 2)}
    rows = {gpu: [count for pair, count in counts.items() if gpu in pair] for gpu in table.gpus}
    nvswitch = ""  # its name, if there is one
    if max(map(sum, rows.values())) > limit:
        most = {gpu: max(row) for gpu, row in rows.items()}
        nvswitch = "switch" if all(most.values()) else "nvswitch"
        links = [both_ways(name[gpu], nvswitch, nvlink, latency, count) for gpu, count in most.items() if count]
        if all(most.values()):  # else PCIe leads to the rest
            return Host("nvswitch", gpus | {"switch": "switch"}, sum(links, []), nics)
    else:
        links = [both_ways(name[a], name[b], nvlink, latency, count) for (a, b), count in counts.items() if count]
    rates = pcie if isinstance(pcie, Mapping) else dict.fromkeys(gpus, pcie)
    rate = {gpu: units.bandwidth(rates.get(name[gpu], PCIE)) for gpu in table.gpus}
    cpus = _named("cpu", _groups(table.gpus, table.same_cpu))
    switches = _named("switch", [group for group in _groups(table.gpus, table.same_switch) if len(group) > 1])
    above = {gpu: cpu for cpu, group in cpus.items() for gpu in group}
    for switch, group in switches.items():
        links.append(both_ways(switch, above[group[0]], max(rate[gpu] for gpu in group), latency))
        above |= dict.fromkeys(group, switch)
    links += [both_ways(name[gpu], above[gpu], rate[gpu], latency) for gpu in table.gpus]
    links += [both_ways(a, b, between_cpus, latency) for a, b in combinations(cpus, 2)]
    kinds = gpus | dict.fromkeys([*filter(None, [nvswitch]), *switches], "switch") | dict.fromkeys(cpus, "cpu")
    return Host("host", kinds, sum(links, []), nics)


def parse(text: str) -> TopoMatrix:
    """Parse the table that ``nvidia-smi topo -m`` prints, or raise a TopologyError that names the line."""
    if not isinstance(text, str):
        raise _refused("not-a-text", given=repr(text))
    lines = [*enumerate(map(_words, MARKS.sub(" ", text).splitlines()), 1)]
    if re.search("between two GPUs|(?:LINK TYPE|WEIGHT|ACCESS|HOPS) TABLE:", text, re.IGNORECASE):
        raise _refused("amd")
    rows = ((i, words[i + 1 :]) for _, words in lines for i, word in enumerate(words) if _GPU.fullmatch(word))
    before = next((i for i, cells in rows if cells and _CODE.fullmatch(cells[0])), 0)  # words of a log in each line
    lines = [(number, words[before:]) for number, words in lines]
    starts = [i for i, (_, words) in enumerate(lines) if words and _GPU.fullmatch(words[0])]
    if not starts:
        first = next((" ".join(words) for _, words in lines if words), "nothing")
        raise _refused("no-gpu", first=repr(first[:80]))
    row = next((i for i, start in enumerate(starts) if _CODE.fullmatch(" ".join(lines[start][1][1:2]))), 1)
    head = starts[max(0, row - 1)]  # the line above the first row; any text may come before
    number, words = lines[head]
    if not row:
        raise _refused("no-header", line=number, gpu=words[0])
    end = next((i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
    columns, titles = words[:end], words[end:]
    gpus = tuple(word for word in columns if _GPU.fullmatch(word))
    if len({*columns}) < len(columns):
        raise _refused("column-twice", line=number)
    codes: dict[tuple[str, str], str] = {}
    affinity: dict[str, str] = {}
    for number, (gpu, *cells) in ((number, words) for number, words in lines[head + 1 :] if words):
        if not _GPU.fullmatch(gpu):
            continue
        if gpu not in gpus or gpu in affinity:
            raise _refused("gpu-twice" if gpu in affinity else "no-column", line=number, gpu=gpu)
        extra = sum(_CODE.fullmatch(cell) is not None for cell in cells[len(columns) :])
        if len(cells) < len(columns) or extra:
            count = len(columns) + extra if extra else len(cells)
            raise _refused("few-cells", line=number, gpu=gpu, cells=count, columns=len(columns))
        cells_of = dict(zip(columns, cells, strict=False))
        for other, cell in cells_of.items():
            if _P2P.fullmatch(cell):
                raise _refused("p2p", line=number, cell=repr(cell))
            if gpu == other and cell in ("0", "SELF"):
                raise _refused("amd")
            if not _CODE.fullmatch(cell) or (cell == "X") != (gpu == other):
                known = {"codes": ", ".join(SWITCHES + HOST + FAR[:-1]), "last": FAR[-1]}
                raise _refused("bad-cell", line=number, gpu=gpu, other=other, cell=repr(cell), **known)
        codes |= {(gpu, other): code for other, code in cells_of.items()}
        near = dict(zip(titles[::2], cells[len(columns) :], strict=False)) if "Affinity" in titles else {}
        affinity[gpu] = next((near[title] for title in ("CPU", "NUMA") if near.get(title, "N/A") != "N/A"), "")
    if missing := [gpu for gpu in gpus if gpu not in affinity]:
        raise _refused("no-line", gpu=missing[0])
    for a, b in combinations(gpus, 2):
        if codes[a, b] != codes[b, a]:
            raise _refused("unlike", gpu=a, other=b, says=codes[a, b], back=codes[b, a])
    return TopoMatrix(gpus, tuple(word for word in columns if word not in gpus), codes, affinity)


def _words(line: str) -> list[str]:
    """Return the words of a line; names and codes that ran together are words of their own."""
    together = [(word, _PART.findall(word)) for word in line.split()]
    return [part for word, parts in together for part in (parts if "".join(parts) == word else [word])]


def _refused(reason: str, **values: object) -> TopologyError:
    return TopologyError(text(f"nvidia.{reason}", **values) + ("" if reason == "amd" else text("nvidia.give")))


def _groups(gpus: Sequence[str], same: Callable[[str, str], bool]) -> list[list[str]]:
    """Put each GPU into the first group in which it is the ``same`` as every member, or into a new group."""
    groups: list[list[str]] = []
    for gpu in gpus:
        for group in groups:
            if all(same(gpu, other) for other in group):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def _named(kind: str, groups: list[list[str]]) -> dict[str, list[str]]:
    return {f"{kind}{i}" if len(groups) > 1 else kind: group for i, group in enumerate(groups)}
