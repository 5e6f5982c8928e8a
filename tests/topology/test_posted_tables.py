"""Tables as people post them: columns that ran together, lost escapes, logs, Markdown, a part of a host, and AMD's."""

import re
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Topology, cost, nvswitch, sharded
from d2lps.topology import TopologyError

TEXTS = {path.stem: path.read_text("utf-8") for path in Path(__file__).with_name("nvidia_smi").glob("*.txt")}
read = Topology.from_nvidia_smi


def alike(text, expected):
    found = read(text)
    return found == expected and [*found.nics.items()] == [*expected.nics.items()]


# ---------------------------------------------------------------- columns that ran together

CLEAN = """
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     SYS     SYS     PIX     NODE    SYS     SYS     0-31    0               N/A
GPU1    NV4      X      SYS     SYS     NODE    PIX     SYS     SYS     0-31    0               N/A
GPU2    SYS     SYS      X      NV4     SYS     SYS     PIX     NODE    32-63   1               N/A
GPU3    SYS     SYS     NV4      X      SYS     SYS     NODE    PIX     32-63   1               N/A
NIC0    PIX     NODE    SYS     SYS      X      NODE    SYS     SYS
"""
HEADS, CELLS = ("NIC2    NIC3", "NIC2NIC3"), ("PIX     NODE    32", "PIXNODE    32")


@pytest.mark.parametrize("changes", [[HEADS], [CELLS], [HEADS, CELLS], [("GPU2    GPU3", "GPU2GPU3")]])
def test_columns_that_ran_together_are_parted(changes):
    text = CLEAN
    for old, new in changes:
        text = text.replace(old, new, 1)
    assert alike(text, read(CLEAN))
    assert read(CLEAN).nics == {f"gpu{i}": f"NIC{i}" for i in range(4)}
    assert [kind for kind in read(CLEAN).kinds.values()].count("cpu") == 2


def test_cells_of_all_kinds_are_parted():
    text = re.sub(r"(NV4|SYS|PIX|NODE| X ) +(?=NV4|SYS|PIX|NODE|X)", lambda cell: cell[1].strip(), CLEAN)
    assert "XNV4SYSSYSPIXNODE" in text and alike(text, read(CLEAN))
    cards = CLEAN.replace("NIC", "mlx5_")
    assert alike(cards.replace("mlx5_2    mlx5_3", "mlx5_2mlx5_3"), read(cards))


GPU2 = "GPU2    SYS     SYS      X      NV4     SYS"


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (GPU2, GPU2 + " SYS", "line 5: GPU2 has 9 cells for 8 columns"),
        (GPU2, GPU2.replace("NV4", ""), "line 5: the entry between GPU2 and NIC3 is '32-63', not X"),
        ("PIX     NODE    32", "PlX     NODE    32", "line 5: the entry between GPU2 and NIC2 is 'PlX', not X"),
        ("PIX     NODE    32", "X       NODE    32", "line 5: the entry between GPU2 and NIC2 is 'X', not X"),
        ("PIX     NODE    32", "PIXNODEE    32", "line 5: the entry between GPU2 and NIC2 is 'PIXNODEE', not X"),
        ("NIC2    NIC3", "NIC2", "line 3: GPU0 has 8 cells for 7 columns"),
    ],
)
def test_a_cell_that_is_no_code_is_named_with_its_line_in_all_columns(old, new, sentence):
    assert old in CLEAN
    with pytest.raises(TopologyError) as refused:
        read(CLEAN.replace(old, new, 1))
    assert str(refused.value).startswith(sentence)


# ---------------------------------------------------------------- text around the words


def prefixed(text, prefix):
    return "\n".join(prefix.format(number) + line for number, line in enumerate(text.splitlines()))


def markdown(text, mark):
    """Write the table as GitHub's Markdown; only lines with GPUs or cards are rows."""
    head, *rows = [line for line in text.splitlines() if re.match(r"\s*(\x1b\[4m)?\s*(GPU|NIC|mlx)[0-9]", line)]
    cells = [re.split(r"\t+| {2,}", row.strip()) for row in rows]
    lines = ["| | " + " | ".join(re.split(r"\t+| {2,}", head.strip())) + " |", "|---" * 4 + "|"]
    lines += ["| " + " | ".join([f"{mark}{row[0]}{mark}", *map(str.strip, row[1:])]) + " |" for row in cells]
    rest = [line for line in text.splitlines() if re.match(r"\s*NIC[0-9]+:", line)]
    return "\n".join(lines + rest)


@pytest.mark.parametrize("name", TEXTS)
def test_what_stands_around_the_words_does_not_matter(name):
    text, expected = TEXTS[name], read(TEXTS[name])
    head = next(line for line in text.splitlines() if "GPU0" in line)
    for escape in ("\x1b", "", "^[", "␛", "\\x1b", "\\033", "\\e"):
        assert alike(text.replace(head, f"{escape}[4m{head}{escape}[0m"), expected), escape
    assert alike("\ufeff" + text, expected)
    for prefix in (
        "[rank0]: ",
        "[2026-11-29 10:00:{:02}] ",
        "2026-11-29T10:00:{:02}Z node7 python[123]: ",
        "(Worker pid=7) ",
    ):
        assert alike(prefixed(text, prefix), expected), prefix
        assert alike("starting on GPU0 and GPU1\n" + prefixed(text, prefix), expected), prefix
    for mark in ("", "**", "`"):
        assert alike(markdown(text, mark), expected), mark


def test_a_name_after_the_prefix_of_a_log_tells_the_rate_of_nvlink():
    pair = prefixed("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\nGPU 0: NVIDIA B200 (UUID: GPU-5e1f)", "[rank0]: ")
    assert read(pair).route("gpu0", "gpu1")[0].bandwidth == 50e9


# ---------------------------------------------------------------- a part of a host with NVSwitch


def uniform(count, links, model):
    lines = [" ".join(f"GPU{i}" for i in range(count))]
    for i in range(count):
        lines.append(" ".join([f"GPU{i}", *("X" if i == j else f"NV{links}" for j in range(count))]))
    return "\n".join([*lines, *(f"GPU {i}: {model} (UUID: GPU-{i})" for i in range(count if model else 0))])


@pytest.mark.parametrize(
    "model, links",
    [
        ("Tesla V100-SXM3-32GB", 6),
        ("NVIDIA A800-SXM4-80GB", 8),
        ("NVIDIA H800", 8),
        ("NVIDIA A100-SXM4-40GB", 12),
        ("NVIDIA H100 80GB HBM3", 18),
        ("NVIDIA B200", 18),
    ],
)
@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_few_gpus_with_all_links_to_each_other_meet_at_a_switch(count, model, links):
    rate = "50 GB/s" if "B200" in model else "25 GB/s"
    assert read(uniform(count, links, model)) == nvswitch(count, rate, links=links)


def test_four_v100_of_a_dgx2_exchange_through_six_links_each():
    place = read(uniform(4, 6, "Tesla V100-SXM3-32GB"))
    seconds = cost.shared(sharded([f"gpu{i}" for i in range(4)]), place, "1 GB").duration
    assert seconds == pytest.approx(2 * 3 / 4 / (6 * 25), rel=1e-9)


@pytest.mark.parametrize("model, links", [("", 6), ("NVIDIA A100-SXM4-40GB", 4), ("Tesla V100-SXM2-16GB", 2)])
def test_links_that_a_gpu_has_are_direct(model, links):
    place = read(uniform(4, links, model))
    assert "switch" not in place.kinds and place.route("gpu0", "gpu3")[0].count == links


# ---------------------------------------------------------------- tables of other programs

P2P = "        GPU0    GPU1\nGPU0   X       GNS\nGPU1   GNS     X\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"


@pytest.mark.parametrize("code", ["OK", "CNS", "GNS", "TNS", "NS", "U"])
def test_a_table_of_who_may_read_whose_memory_is_named_as_such(code):
    with pytest.raises(TopologyError, match=f"line 2: '{code}' is a code of `nvidia-smi topo -p2p`.*topo -m`"):
        read(P2P.replace("GNS", code))


def rocm(types, weights=None, numa=(), form="GPU[{}]\t\t: (Topology) Numa {}: {}", title="={}="):
    """Write tables as rocm-smi does; a table is a function of two numbers, None for itself."""
    count, lines = len(numa) or 4, ["", "=" * 28 + " ROCm System Management Interface " + "=" * 28]
    for name, table in (("Weight", weights), ("Hops", lambda i, j: 1), ("Link Type", types)):
        if table is None:
            continue
        lines += [
            title.format(f" {name} between two GPUs ".center(60, "=")),
            " " * 7 + "".join(f"GPU{i:<10}" for i in range(count)),
        ]
        lines += [
            f"GPU{i:<4}" + "".join(f"{0 if i == j else table(i, j):<13}" for j in range(count)) for i in range(count)
        ]
        lines.append("")
    lines.append(title.format(" Numa Nodes ".center(60, "=")))
    for i, node in enumerate(numa):
        lines += [form.format(i, "Node", node), form.format(i, "Affinity", node)]
    return "\n".join([*lines, "=" * 20 + " End of ROCm SMI Log " + "=" * 20])


def amd_smi(types, weights):
    names = [f"0000:{bus}:00.0" for bus in ("0c", "22", "38", "5c")]
    lines = ["ACCESS TABLE:", " " * 13 + " ".join(names), *(f"{name} " + "ENABLED      " * 4 for name in names)]
    for title, table, own in (("WEIGHT", weights, "0"), ("HOPS", lambda i, j: 1, "0"), ("LINK TYPE", types, "SELF")):
        lines += ["", f"{title} TABLE:", " " * 13 + " ".join(names)]
        lines += [
            f"{name} " + " ".join(f"{own if i == j else table(i, j):<12}" for j in range(4))
            for i, name in enumerate(names)
        ]
    lines += ["NUMA BW TABLE:", " " * 13 + " ".join(names), *(f"{name} " + "50000-50000  " * 4 for name in names)]
    return "\n".join(
        [*lines, "", "Legend:", "  SELF = Current GPU", "  ENABLED / DISABLED = Link is enabled or disabled"]
    )


def everything(value):
    return lambda i, j: value


def hive(i, j):
    return "XGMI" if i // 4 == j // 4 else "PCIE"


def package(i, j):
    """Weights of MI250: a ring of four, where opposite ones are two links apart."""
    return 30 if (i - j) % 4 == 2 else 15


ALL_XGMI, TWO_HIVES = (
    rocm(everything("XGMI"), everything(15), range(4)),
    rocm(hive, lambda i, j: 15 if hive(i, j) == "XGMI" else 72, [0] * 4 + [1] * 4),
)


def links(topology):
    """Return the pairs of GPUs that have links of their own."""
    kinds = topology.kinds
    return {(link.src, link.dst) for link in topology.links if kinds[link.src] == kinds[link.dst] == "gpu"}


def pairs(*groups):
    return {(f"gpu{i}", f"gpu{j}") for group in groups for i, j in permutations(group, 2)}


@pytest.mark.parametrize("text", [ALL_XGMI, amd_smi(everything("XGMI"), everything(15)), rocm(everything("XGMI"))])
def test_gpus_with_xgmi_have_a_link_for_each_pair(text):
    host = Topology.from_rocm_smi(text, xgmi="64 GB/s", latency="1 us")
    assert links(host) == pairs(range(4)) and list(host.kinds)[:4] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert host.route("gpu0", "gpu3")[0].capacity == 64e9 and host.route("gpu0", "gpu3")[0].latency == 1e-6


def test_two_hives_are_joined_by_their_cpus():
    host = Topology.from_rocm_smi(TWO_HIVES, between_cpus="40 GB/s")
    assert links(host) == pairs(range(4), range(4, 8))
    assert [link.dst for link in host.route("gpu1", "gpu6")] == ["cpu0", "cpu1", "gpu6"]


@pytest.mark.parametrize("weight, cpus", [(40, 1), (52, 2), (72, 2)])
def test_the_weight_over_pcie_tells_whether_two_gpus_share_a_cpu(weight, cpus):
    for text in (rocm(everything("PCIE"), everything(weight), range(2)), rocm(everything("PCIE"), everything(weight))):
        host = Topology.from_rocm_smi(text)
        count = sum(kind == "gpu" for kind in host.kinds.values())
        assert links(host) == set() and len(host.kinds) - count == (1 if cpus == 1 else count)


def test_gpus_of_one_numa_node_share_a_cpu_if_there_are_no_weights():
    host = Topology.from_rocm_smi(rocm(everything("PCIE"), None, [0, 0, 1, 1]))
    assert [host.route(f"gpu{i}", "gpu0")[0].dst for i in (1, 2, 3)] == ["cpu0", "cpu1", "cpu1"]


def test_xgmi_through_another_gpu_is_no_link():
    ring = pairs((0, 1), (1, 2), (2, 3), (3, 0))
    for text in (rocm(everything("XGMI"), package, range(4)), amd_smi(everything("XGMI"), package)):
        assert links(Topology.from_rocm_smi(text)) == ring


def test_forms_of_one_output_give_one_host():
    lines = ALL_XGMI.splitlines()
    expected = Topology.from_rocm_smi(ALL_XGMI)
    rows = [
        re.sub(r"\s{2,}", " | ", f"| {line.strip()} |") if line.strip().startswith("GPU") and "]" not in line else line
        for line in lines
    ]
    for text in (
        rocm(everything("XGMI"), everything(15), range(4), form="GPU {}          : (Topology) Numa {}: {}"),
        prefixed(ALL_XGMI, "[rank0]: "),
        "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n" + ALL_XGMI,
        "\ufeff" + ALL_XGMI.replace("\n", "\r\n"),
        re.sub(" +(?=\n)", "", ALL_XGMI),
        ALL_XGMI.replace("between two", "Between Two"),
        "\n".join(rows),
    ):
        assert Topology.from_rocm_smi(text) == expected


@pytest.mark.parametrize(
    "text", [ALL_XGMI, TWO_HIVES, amd_smi(everything("PCIE"), everything(40)), "GPU0 GPU1\nGPU0 0 XGMI"]
)
def test_a_table_of_amd_is_named_as_such(text):
    with pytest.raises(TopologyError, match="table of rocm-smi or amd-smi.* Topology.from_rocm_smi"):
        read(text)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "no table of link types"),
        (None, "None is not a text"),
        (TEXTS["dgx1v"], "no table of link types"),
        (ALL_XGMI.partition("= Link Type")[0], "no table of link types"),
        (ALL_XGMI.replace("XGMI", "QPI", 1), "the entry between GPU0 and GPU1 is 'QPI', not XGMI or PCIE"),
        (ALL_XGMI.replace("15", "N/A", 1), "the entry between GPU0 and GPU1 is 'N/A'"),
        (ALL_XGMI.replace("XGMI", "", 1), "line 19: GPU0 has 3 cells for 4 columns"),
        (ALL_XGMI.replace("XGMI", "PCIE", 1), "or not the whole of it"),
        (re.sub(r"GPU3.*XGMI.*\n", "", ALL_XGMI), "or not the whole of it"),
        (re.sub(r"GPU3.*15.*\n", "", ALL_XGMI), "or not the whole of it"),
    ],
)
def test_what_is_no_table_of_amd_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(TopologyError) as refused:
        Topology.from_rocm_smi(text)
    assert sentence in str(refused.value) and str(refused.value).endswith("`amd-smi topology`")


WORDS = "GPU0|GPU1|0|15|XGMI|PCIE|SELF|\n|\n|Link Type between two GPUs|WEIGHT TABLE:|0000:0c:00.0|==|N/A".split("|")


@given(st.text() | st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_any_text_is_a_host_or_one_sentence(text):
    try:
        host = Topology.from_rocm_smi(text)
    except TopologyError as error:
        assert "rocm-smi --showtopo" in str(error)
    else:
        assert "gpu" in host.kinds.values()


@given(st.integers(0, len(TWO_HIVES)), st.integers(0, 40))
def test_tables_with_a_piece_missing_are_a_host_or_one_sentence(start, length):
    try:
        Topology.from_rocm_smi(TWO_HIVES[:start] + TWO_HIVES[start + length :])
    except TopologyError as error:
        assert "rocm-smi --showtopo" in str(error)
