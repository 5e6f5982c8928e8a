"""The output of ``nvidia-smi topo -m`` as a topology: ``nvidia_smi/`` has texts like those of real hosts."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Topology, cost, nvswitch, rail_wise, rails, rings, sharded
from d2lps.topology import TopologyError
from d2lps.topology.nvidia import parse

TEXTS = {path.stem: path.read_text("utf-8") for path in Path(__file__).with_name("nvidia_smi").glob("*.txt")}


def host(name, **more):
    return Topology.from_nvidia_smi(TEXTS[name], **more)


def way(topology, src, dst):
    return "→".join([src, *(link.dst for link in topology.route(src, dst))])


def above(topology):
    """Return node → the forwarding node above it to which it is linked."""
    rank = {"gpu": 0, "switch": 1, "cpu": 2}
    return {
        link.src: link.dst for link in topology.links if rank[topology.kinds[link.src]] < rank[topology.kinds[link.dst]]
    }


# ---------------------------------------------------------------- hosts


def test_a_dgx1_that_numbers_its_gpus_otherwise_has_the_same_rings_under_its_own_numbers():
    found = rings(host("dgx1v"))
    assert [(ring.count, "-".join(node[3:] for node in ring.nodes)) for ring in found] == [
        (2, "0-2-3-1-7-4-5-6"),
        (1, "0-1-2-5-7-6-4-3"),
    ]


def test_its_pcie_switches_are_found_through_the_network_cards_where_nvlinks_hide_them():
    server = host("dgx1v")
    assert above(server) == {
        **{f"gpu{i}": f"switch{i // 2}" for i in range(8)},
        **{f"switch{i}": f"cpu{i // 2}" for i in range(4)},
    }
    assert way(server, "gpu0", "gpu4") == "gpu0→switch0→cpu0→cpu1→switch2→gpu4"


@pytest.mark.parametrize("name, gpus, links", [("dgx2", 16, 6), ("dgx_a100", 8, 12), ("hgx_h100_ten", 8, 18)])
def test_more_links_than_a_gpu_has_are_those_to_nvswitch(name, gpus, links):
    assert host(name) == nvswitch(gpus, links=links)
    assert host(name, nvlink="50 GB/s", latency="1 us") == nvswitch(gpus, "50 GB/s", "1 us", links)


def sharded_seconds(topology):
    return cost.shared(
        sharded([node for node, kind in topology.kinds.items() if kind == "gpu"]), topology, "1 GB"
    ).duration


def test_one_gpu_with_fewer_links_than_the_others_meets_them_at_nvswitch():
    """Each GPU sends 7/8 of 1 GB twice, as fast as the slowest link to the switch."""
    lines = TEXTS["hgx_h100_ten"].splitlines()
    for row in range(1, 9):
        cells = lines[row].split("\t")
        cells[4] = cells[4].replace("NV18", "NV17")
        lines[row] = "\t".join(cells) if row != 4 else lines[row].replace("NV18", "NV17")
    short = Topology.from_nvidia_smi("\n".join(lines))
    assert {link.src: link.count for link in short.links if link.dst == "switch"} == {
        f"gpu{i}": 17 if i == 3 else 18 for i in range(8)
    }
    assert sharded_seconds(host("hgx_h100_ten")) == pytest.approx(2 * 7 / 8 / 450, rel=1e-9)  # 3.889 ms
    assert sharded_seconds(short) == pytest.approx(2 * 7 / 8 / 425, rel=1e-9)


def test_a_gpu_without_nvlinks_reaches_those_at_nvswitch_over_pcie():
    text = "GPU0 GPU1 GPU2 GPU3\nGPU0 X NV12 NV12 SYS\nGPU1 NV12 X NV12 SYS\nGPU2 NV12 NV12 X SYS\nGPU3 SYS SYS SYS X"
    four = Topology.from_nvidia_smi(text)
    assert way(four, "gpu0", "gpu2") == "gpu0→nvswitch→gpu2"
    assert way(four, "gpu0", "gpu3") == "gpu0→cpu0→cpu1→gpu3"


def test_nvswitch_keeps_the_numbers_of_the_gpus_that_are_shown():
    text = "      GPU2  GPU5  GPU7\nGPU2   X   NV12  NV12\nGPU5  NV12   X   NV12\nGPU7  NV12  NV12   X"
    assert list(Topology.from_nvidia_smi(text).kinds) == ["gpu2", "gpu5", "gpu7", "switch"]


def test_four_gpus_joined_directly_are_no_nvswitch():
    four = host("a100_four")
    assert four.kinds == dict.fromkeys(["gpu0", "gpu1", "gpu2", "gpu3"], "gpu") | {"cpu0": "cpu", "cpu1": "cpu"}
    assert [ring.count for ring in rings(four)] == [2, 2, 2]


def test_a_workstation_has_two_switches_on_one_cpu():
    four = host("workstation", pcie="32 GB/s")
    assert above(four) == {
        "gpu0": "switch0",
        "gpu1": "switch0",
        "gpu2": "switch1",
        "gpu3": "switch1",
        "switch0": "cpu",
        "switch1": "cpu",
    }
    assert way(four, "gpu0", "gpu1") == "gpu0→switch0→gpu1"
    assert way(four, "gpu0", "gpu3") == "gpu0→switch0→cpu→switch1→gpu3"
    assert {link.bandwidth for link in four.links} == {32e9}


def test_gpus_near_the_same_cores_share_their_cpu_whatever_the_code():
    """In each of two steps, 4 × 4 messages of 1/8 GB cross between the CPUs."""
    eight = host("rtx4090_eight")
    assert above(eight) == {f"gpu{i}": f"cpu{i // 4}" for i in range(8)}
    assert sharded_seconds(eight) == pytest.approx(2 * 4 * 4 / 8 / 19.2, rel=1e-9)  # 208 ms
    by_numa = re.sub(r"[0-9]+-[0-9]+,[0-9]+-[0-9]+", "N/A", TEXTS["rtx4090_eight"])
    assert Topology.from_nvidia_smi(by_numa) == eight


def test_two_gpus_of_a_workstation_meet_at_its_cpu():
    assert above(host("two")) == {"gpu0": "cpu", "gpu1": "cpu"} and host("two").nics == {}


def test_bridged_pairs_on_two_cpus_meet_over_the_link_between_them():
    four = host("bridged_pairs", between_cpus="40 GB/s")
    assert [way(four, "gpu0", "gpu1"), way(four, "gpu0", "gpu2")] == ["gpu0→gpu1", "gpu0→cpu0→cpu1→gpu2"]
    assert four.route("gpu0", "gpu1")[0].capacity == 100e9
    assert four.route("cpu0", "cpu1")[0].bandwidth == 40e9


def test_one_gpu_is_a_host_as_well():
    assert host("one_gpu").kinds == {"gpu0": "gpu", "cpu": "cpu"}


def test_each_gpu_may_have_a_pcie_rate_of_its_own_and_a_switch_goes_up_as_fast_as_its_fastest():
    four = host("workstation", pcie={"gpu0": "8 GB/s", "gpu1": "32 GB/s", "gpu2": "4 GB/s"})
    up = {link.src: link.bandwidth for link in four.links if above(four).get(link.src) == link.dst}
    assert up == {"gpu0": 8e9, "gpu1": 32e9, "gpu2": 4e9, "gpu3": 16e9, "switch0": 32e9, "switch1": 16e9}


# ---------------------------------------------------------------- NVLinks

PAIR_OF = "GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
STATUS = "GPU {}: {} (UUID: GPU-5e1f)\n\t Link 0: {} GB/s\n\t Link 1: {} GB/s\n\t Link 2: <inactive>\n"


@pytest.mark.parametrize(
    "after, rate",
    [
        ("", 25e9),
        (STATUS.format(0, "Tesla V100-SXM2-16GB", "25.781", "25.781"), 25e9),
        (STATUS.format(0, "NVIDIA H100 80GB HBM3", "26.562", "26.562"), 25e9),
        (STATUS.format(0, "NVIDIA B300 SXM6 AC", "53.125", "53.125"), 50e9),
        (STATUS.format(0, "NVIDIA RTX A6000", "14.062", "14.062"), 14.062e9),
        (STATUS.format(0, "NVIDIA H100 80GB HBM3", "0", "26.562"), 25e9),  # a link that is down
        ("GPU 0: NVIDIA B200 (UUID: GPU-5e1f)\nGPU 1: NVIDIA B200 (UUID: GPU-5e20)", 50e9),
        ("GPU 0: NVIDIA GB200", 50e9),
        ("GPU 0: NVIDIA H200", 25e9),
        ("GPU 0: Tesla P100-SXM2-16GB", 20e9),
        ("GPU 0: NVIDIA RTX A6000", 14.0625e9),
    ],
)
def test_nvlinks_are_as_fast_as_the_driver_or_the_name_of_the_gpu_says(after, rate):
    assert Topology.from_nvidia_smi(PAIR_OF + after).route("gpu0", "gpu1")[0].bandwidth == rate
    assert Topology.from_nvidia_smi(PAIR_OF + after, nvlink="30 GB/s").route("gpu0", "gpu1")[0].bandwidth == 30e9


# ---------------------------------------------------------------- network cards

TEN = {f"gpu{i}": f"mlx5_{card}" for i, card in enumerate([0, 3, 1, 2, 6, 9, 7, 8])}


@pytest.mark.parametrize(
    "name, cards",
    [
        ("hgx_h100_ten", TEN),  # the two cards for storage are no GPU's own
        ("hgx_h100_eight", {f"gpu{i}": f"ibp{i}" for i in range(8)}),
        ("dgx_a100", {f"gpu{i}": f"mlx5_{i // 2}" for i in range(8)}),
        ("dgx1v", {f"gpu{i}": f"mlx5_{i // 2}" for i in range(8)}),
    ],
)
def test_each_gpu_has_the_network_card_that_is_closest(name, cards):
    assert host(name).nics == cards
    assert host(name).slowed("gpu0", by=2).nics == cards


def test_of_equally_close_cards_a_gpu_takes_one_that_fewer_use():
    text = "GPU0 GPU1 GPU2 NIC0 NIC1\nGPU0 X PHB PHB PXB PXB\nGPU1 PHB X PHB PXB PXB\nGPU2 PHB PHB X PXB PXB"
    assert Topology.from_nvidia_smi(text).nics == {"gpu0": "NIC0", "gpu1": "NIC1", "gpu2": "NIC0"}


@pytest.mark.parametrize("name", ["hgx_h100_eight", "hgx_h100_ten"])
def test_hosts_with_a_card_for_each_gpu_are_joined_by_rails(name):
    joined, plain = rails(4, host(name)), rails(4, gpus=8, inside="450 GB/s")
    gpus = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(4)]
    assert way(joined, "host0/gpu3", "host3/gpu3") == "host0/gpu3→rail3→host3/gpu3"
    assert way(joined, "host0/gpu3", "host0/gpu5") == "host0/gpu3→host0/switch→host0/gpu5"
    # Inside, reduce-scatter and all-gather of 1 GB among 8; across, all-reduce of 1/8 GB among 4.
    seconds = 2 * 7 / 8 / 450 + 2 * 3 / 4 / 8 / 50
    for place in joined, plain:
        assert cost.shared(rail_wise(gpus), place, "1 GB").duration == pytest.approx(seconds, rel=1e-9)


def test_gpus_that_use_one_card_share_its_bandwidth():
    place = rails(2, host("dgx_a100"), nic="25 GB/s")
    assert way(place, "host0/gpu2", "host1/gpu2") == "host0/gpu2→host0/mlx5_1→rail1→host1/mlx5_1→host1/gpu2"
    gpus = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(2)]
    # Two GPUs send an eighth of 1 GB each through a card, in each of two steps of halves.
    seconds = 2 * 7 / 8 / 300 + 2 * 2 * (1 / 8 / 2) / 25
    assert cost.shared(rail_wise(gpus), place, "1 GB").duration == pytest.approx(seconds, rel=1e-9)


def test_hosts_without_network_cards_are_refused():
    with pytest.raises(
        TopologyError, match="host has no network cards: give it nics={'gpu0': 'mlx5_0', …}, or give the"
    ):
        rails(4, host("workstation"))
    with pytest.raises(TopologyError, match="gpu9"):
        Topology("host", {"gpu0": "gpu"}, [], nics={"gpu9": "mlx5_0"})


# ---------------------------------------------------------------- ways to print it


@pytest.mark.parametrize("name", TEXTS)
def test_spaces_line_ends_and_escapes_do_not_matter(name):
    text, expected = TEXTS[name], host(name)
    head = next(line for line in text.splitlines() if "GPU0" in line)
    for other in (
        re.sub(r"\t", "    ", text),
        re.sub(r" {2,}", "\t", text),
        text.replace("\n", "\r\n"),
        text.replace(head, f"\x1b[4m{head}\x1b[0m"),
        text.partition("Legend")[0],
        "$ nvidia-smi topo -m\n" + text,
        re.sub(r"^", "> ", text, flags=re.MULTILINE),
        re.sub(r"^", ">>", text, flags=re.MULTILINE),
    ):
        topology = Topology.from_nvidia_smi(other)
        assert topology == expected and [*topology.nics] == [*expected.nics]


def test_without_affinities_sys_alone_tells_the_cpus():
    bare = "\n".join("\t".join(line.split("\t")[:9]) for line in TEXTS["dgx1v"].splitlines()[:9])
    cpus = {node: kind for node, kind in Topology.from_nvidia_smi(bare).kinds.items() if kind == "cpu"}
    assert list(cpus) == ["cpu0", "cpu1"]


# ---------------------------------------------------------------- invalid tables

GIVE = "give the complete output of `nvidia-smi topo -m`"
CODES = "not X (itself), NV1 …, PIX, PSB, PXB, PHB, NODE, SYS or SOC"
PAIR = "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV4     0-15\nGPU1    NV4      X      0-15\n"
REFUSED = [
    ("", "the text has no line for GPU0 …; it begins with 'nothing'"),
    ("No devices were found\n", "the text has no line for GPU0 …; it begins with 'No devices were found'"),
    (None, "None is not a text"),
    (b"GPU0", "b'GPU0' is not a text"),
    ("GPU0 CPU Affinity", "GPU0 has a column but no line of its own"),
    (PAIR.partition("\n")[2], "line 1: GPU0 comes without a header that names the columns"),
    (PAIR.replace("X      NV4     0-15", "X"), "line 2: GPU0 has 1 cells for 2 columns"),
    (PAIR.rpartition("GPU1")[0], "GPU1 has a column but no line of its own"),
    (PAIR + "GPU2    NV4     X", "line 4: GPU2 has no column"),
    (PAIR + "GPU1    NV4     X", "line 4: GPU1 appears twice"),
    (PAIR.replace("GPU1    CPU", "GPU0    CPU"), "line 1: a column appears twice"),
    (PAIR.replace("GPU1    NV4", "GPU1    NV2"), "GPU0 has NV4 for GPU1, which has NV2 for GPU0"),
    (PAIR.replace("GPU1    NV4", "GPU1    QPI"), f"line 3: the entry between GPU1 and GPU0 is 'QPI', {CODES}"),
    (PAIR.replace("GPU1    NV4", "GPU1     X "), f"line 3: the entry between GPU1 and GPU0 is 'X', {CODES}"),
]


@pytest.mark.parametrize("text, sentence", REFUSED)
def test_what_is_no_table_is_refused_in_one_sentence_that_names_the_line(text, sentence):
    with pytest.raises(TopologyError) as error:
        Topology.from_nvidia_smi(text)
    assert str(error.value).startswith(sentence) and str(error.value).endswith(f": {GIVE}")


WORDS = st.sampled_from(
    "GPU0|GPU1|GPU2|X| X |NV1|NV18|PIX|SYS|mlx5_0|CPU|Affinity|0-15|N/A|\t|\n|\n|\r\n|  |\x1b[4m|GPU|NUMA|²|NV0".split(
        "|"
    )
)


@given(st.text() | st.lists(WORDS, max_size=60).map(" ".join))
def test_any_text_is_a_topology_or_a_topology_error(text):
    try:
        topology = Topology.from_nvidia_smi(text)
    except TopologyError as error:
        assert "nvidia-smi topo -m" in str(error)
    else:
        assert "gpu" in topology.kinds.values()


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 3000), st.integers(0, 20))
def test_a_table_with_a_piece_missing_is_a_topology_or_a_topology_error(name, start, length):
    text = TEXTS[name][:start] + TEXTS[name][start + length :]
    try:
        Topology.from_nvidia_smi(text)
    except TopologyError as error:
        assert "nvidia-smi topo -m" in str(error)


codes = st.sampled_from(["NV1", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"])


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(codes, min_size=n * n, max_size=n * n))))
def test_on_every_host_all_gpus_reach_each_other_and_the_nvlinks_are_those_of_the_table(table):
    n, drawn = table
    cell = [["X" if i == j else drawn[min(i, j) * n + max(i, j)] for j in range(n)] for i in range(n)]
    lines = [" ".join(f"GPU{i}" for i in range(n)), *(" ".join([f"GPU{i}", *cell[i]]) for i in range(n))]
    topology = Topology.from_nvidia_smi("\n".join(lines))
    direct = {(link.src, link.dst): link.count for link in topology.links}
    for i in range(n):
        for j in range(n):
            assert i == j or topology.route(f"gpu{i}", f"gpu{j}")
            count = int(cell[i][j][2:]) if cell[i][j].startswith("NV") else None
            assert direct.get((f"gpu{i}", f"gpu{j}")) == count
    assert parse("\n".join(lines)).gpus == tuple(f"GPU{i}" for i in range(n))
