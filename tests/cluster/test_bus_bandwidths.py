"""Bus bandwidths of a cluster: predictions against formulas, and the outputs of NCCL and nccl-tests beside them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.schemas import valid

from d2lps.__main__ import main
from d2lps.cluster import busbw
from d2lps.topology import TopologyError
from d2lps.topology.nccl import PROTOCOL
from d2lps.units import Bandwidth, show_size

ROOT, HERE = Path(__file__).parents[1], Path(__file__).with_name("nccl")
PERF, LOG = ((HERE / f"{name}.txt").read_text("utf-8") for name in ("all_reduce_perf", "debug_info"))
SMI = (ROOT / "topology/nvidia_smi/hgx_h100_ten.txt").read_text("utf-8")
XML = (ROOT / "topology/nccl/hgx_h100_eight.xml").read_text("utf-8")
MEASURED = {1 << 20: 21.28, 1 << 22: 64.51, 1 << 24: 148.73, 1 << 26: 257.79, 1 << 28: 334.65, 1 << 30: 363.41}


def gigabytes(cell):
    return float(cell.removesuffix(" GB/s"))


def test_bandwidths_and_choices_stand_in_one_table_with_the_predictions():
    line, table = busbw.report("\n".join([SMI, PERF, LOG]))
    assert line == "2 × 8 GPUs: 450 GB/s from each to its host, 8 × 50 GB/s from each host to the others"
    assert table.heads[1:5] == ["ring", "rail rings", "rail-wise", "trees"]
    for size, row in zip(MEASURED, table.rows, strict=False):
        assert gigabytes(row[5]) == pytest.approx(MEASURED[size], rel=1e-3)
        # 30 hops of an n-th of an eighth by a card; each part crosses 3 or 4 times in 30 hops of 16 nodes.
        least = 1.875 * size / (30 / 16 * size / 8 / 50e9 + (4 * 14 + 26 * 3.4) * 1e-6)
        assert 1e9 * gigabytes(row[2]) == pytest.approx(least, rel=0.08)
    assert [row[6] for row in table.rows] == ["Tree, LL128"] * 2 + ["Tree, Simple"] + ["Ring, Simple"] * 4
    predicted, measured, error = (table.rows[-1][i] for i in (2, 5, 7))
    assert error == f"{gigabytes(predicted) / gigabytes(measured) - 1:+.0%}"


def mixed(perf, log):
    """The log inside the rows, as one stream of rank 0 prints them: each row ends when its measurement has."""
    lines = []
    for line in perf.splitlines():
        size = line.split()[0] if line.strip() else ""
        said = [each for each in log.splitlines() if f"INFO {size} Bytes" in each]
        cut = line.find("-1") + 2
        lines.append(line if not said else line[:cut] + "\n".join(said * 2) + "\n" + line[cut:])
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        PERF + LOG,
        mixed(PERF, LOG),
        re.sub("^", "[1,0]<stdout>:", PERF + LOG, flags=re.M),
        re.sub("^", "[0] ", mixed(PERF, LOG), flags=re.M),
        re.sub("^", "0: ", PERF + LOG, flags=re.M),
        PERF + re.sub(r"INFO (\d+) Bytes -> Algo 0", r"INFO AllReduce: \1 Bytes -> Algo TREE", LOG),
        PERF + LOG.replace("proto 2", "proto SIMPLE channel{Lo..Hi}={0..15}"),
        (PERF + LOG).replace("\n", "\r\n"),
    ],
)
def test_outputs_are_read_as_launchers_and_versions_print_them(text):
    tested = busbw.read(text)
    assert tested.gpus == {"gpu-001": 8, "gpu-002": 8}
    assert {size: busbw for size, (_, busbw) in tested.bands.items() if size in MEASURED} == MEASURED
    assert tested.chosen == busbw.read(LOG).chosen and tested.chosen[1 << 30] == "Ring, Simple"


OLD = """#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608     float     sum    855.9   39.20   73.51  1e-06   1003.6   33.43   62.69  1e-06
   100663296      25165824     float     sum    30086    3.35    6.27  1e-06    11328    8.89   16.66    N/A
"""


def test_older_tests_have_no_column_for_the_root():
    assert busbw.read(OLD).bands == {33554432: (39.20, 73.51), 100663296: (3.35, 6.27)}


@pytest.mark.parametrize("host", [SMI, XML, ""])
def test_rates_of_a_fabric_follow_from_its_links(host):
    """The busbw of a ring is the speed of a card, that of rings on rails the speed of all eight."""
    _, table = busbw.report(host, hosts=16, nic="25 GB/s")
    ring, rings = (gigabytes(table.rows[-1][i]) for i in (1, 2))
    assert ring == pytest.approx(25, rel=0.02) and rings == pytest.approx(200, rel=0.05)


def test_the_rate_of_cards_is_in_the_file_of_nccl():
    slower = XML.replace('speed="400000"', 'speed="200000"')
    assert "8 × 25 GB/s from" in busbw.report(slower, hosts=2)[0]


def test_one_host_has_rings_inside():
    line, table = busbw.report(XML)
    assert line.startswith("1 × 8 GPUs: 450 GB/s from each to its host, –")
    assert table.heads[1:] == ["ring", "sharded", "trees"]
    assert gigabytes(table.rows[-1][1]) == pytest.approx(450 * PROTOCOL, rel=0.01)


@pytest.mark.parametrize(
    "text, hosts, sentence",
    [
        (PERF, 4, "busbw ÷ algbw is 1.875 in the largest row, but 1.938 in all_reduce of 32 GPUs: give --hosts"),
        (
            (ROOT / "topology/nvidia_smi/one_gpu.txt").read_text("utf-8"),
            1,
            "a bandwidth needs the trace of a plan that sends something",
        ),
        ((ROOT / "topology/nvidia_smi/workstation.txt").read_text("utf-8"), 2, "no network cards"),
        ("<system></system>", 2, "NCCL_TOPO_DUMP_FILE"),
        ("", -1, "hosts = -1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(text, hosts, sentence):
    with pytest.raises(TopologyError, match=re.escape(sentence)):
        busbw.report(text, hosts)


# Rows as people have published them: NVIDIA/nccl#1435 (2 GPUs), NVIDIA/nccl-tests#78 (64 GPUs, an older version).
PAIR = """# nThread 1 nGpus 2 minBytes 771751936 maxBytes 855638016 step: 16777216(bytes)
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   771751936     192937984  bfloat16    none      -1   2786.5  276.96  138.48      0   2384.8  323.62  161.81      0
   855638016     213909504  bfloat16    none      -1   3013.0  283.98  141.99      0   2588.5  330.56  165.28      0
"""
OLDER = """#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   268435456       1048576     float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00
   536870912       2097152     float          1041974    0.52    0.51  0e+00  1041299    0.52    0.51  1e+00
"""
HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"


def row(size, count, operation, root, algbw, busbw):
    return f"{HEADER}  {size}   {count}   float  {operation}   {root}   100.0  {algbw}  {busbw}   0  99.0 1.0 1.0 0\n"


@pytest.mark.parametrize(
    "text, collective",
    [
        (PERF, "all_reduce"),
        (OLD, "all_reduce"),
        (PAIR, ""),
        ("# Collective test starting: all_gather_perf\n" + PAIR, "all_gather"),
        ("mpirun -np 64 ./build/alltoall_perf -b 256M\n" + OLDER, "all_to_all"),
        (OLDER, ""),
        (row(1 << 30, 1 << 25, "sum", -1, 100.0, 87.5), "reduce_scatter"),
        (row(1 << 30, 1 << 28, "sum", -1, 100.0, 175.0), "all_reduce"),
        (row(1 << 30, 1 << 28, "none", 0, 100.0, 100.0), "broadcast"),
        (row(1 << 30, 1 << 28, "sum", 0, 100.0, 100.0), "reduce"),
    ],
)
def test_an_output_tells_its_collective_by_name_or_by_columns(text, collective):
    tested = busbw.read(text)
    assert tested.collective == collective and tested.bands


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("hosts", [1, 4])
def test_halves_of_an_all_reduce_have_its_bus_bandwidth(collective, hosts):
    """Both send half as much, in half the time; nccl-tests divide by half the factor."""
    _, whole = busbw.report(SMI, hosts)
    _, half = busbw.report(SMI, hosts, collective=collective)
    assert [row[:3] for row in half.rows] == [row[:3] for row in whole.rows] and "trees" not in half.heads


def test_all_to_alls_leave_each_host_by_all_cards():
    """Of 31 parts of a GPU 24 go to other hosts, by its own card; inside, the links set the rate."""
    line, table = busbw.report(SMI, 4, collective="all_to_all")
    assert line.startswith("all_to_all, 4 × 8 GPUs")
    assert gigabytes(table.rows[-1][1]) == pytest.approx(50 * 31 / 24, rel=0.01)
    _, inside = busbw.report(SMI, 1, collective="all_to_all")
    assert gigabytes(inside.rows[-1][1]) == pytest.approx(450 * PROTOCOL, rel=0.01)


def test_a_broadcast_passes_the_whole_buffer_by_one_card():
    _, table = busbw.report(SMI, 2, collective="broadcast")
    chain = 50 / (1 + (16 - 2) / busbw.CHUNKS * 50 / 450 / PROTOCOL)  # in 14 steps no chunk is between the hosts
    assert table.heads[1:] == ["chain", "trees"] and gigabytes(table.rows[-1][1]) == pytest.approx(chain, rel=0.01)


def test_a_measured_all_to_all_has_its_error_without_a_choice_of_nccl():
    _, table = busbw.report(row(1 << 32, 1 << 27, "none", -1, 100.0, 87.5), collective="all_to_all")
    predicted, measured, error = table.rows[0][1:]
    assert measured == "87.5 GB/s" and error == f"{gigabytes(predicted) / 87.5 - 1:+.0%}"


@pytest.mark.parametrize(
    "text, options, sentence",
    [
        (PAIR, {}, "does not tell which collective it is of (–): give --collective"),
        (row(1 << 30, 1 << 28, "sum", 0, 1.0, 1.0), {}, "(reduce): give --collective"),
        (PERF + "# Collective test starting: all_gather_perf", {"collective": "all_gather"}, "all_gather of 16 GPUs"),
        ("all_gather_perf\nalltoall_perf\n" + PAIR, {}, "several collectives (all_gather all_to_all)"),
    ],
)
def test_an_output_of_another_collective_is_refused_with_the_way_out(text, options, sentence):
    with pytest.raises(TopologyError, match=re.escape(sentence)):
        busbw.report(text, **options)


def test_the_name_of_a_file_tells_its_collective(tmp_path, capsys):
    (tmp_path / "all_gather_perf-2024.txt").write_text(PAIR)
    (tmp_path / "pair.txt").write_text("\n".join(SMI.splitlines()))
    assert main(["busbw", str(tmp_path / "all_gather_perf-2024.txt"), str(tmp_path / "pair.txt"), "--hosts", "1"]) == 1
    assert "0.500 in the largest row, but 0.875 in all_gather of 8 GPUs" in capsys.readouterr().err
    assert main(["busbw", str(tmp_path / "all_gather_perf-2024.txt")]) == 1
    assert "all_gather of 8 GPUs" in capsys.readouterr().err


def test_what_is_assumed_without_a_topology_is_listed(capsys):
    assert busbw.assumed(SMI) is None and busbw.assumed(XML) is None
    assert [row[1] for row in busbw.assumed("").rows] == ["8", "450 GB/s", "50 GB/s", "1.7 µs, 7 µs"]
    assert [row[1] for row in busbw.assumed(PERF, "25 GB/s").rows] == ["450 GB/s", "1.7 µs, 7 µs"]
    assert main(["busbw", "--hosts", "2"]) == 0
    assert "assumed, as no topology is given" in capsys.readouterr().out


def test_the_command_names_a_file_that_is_not_there(capsys):
    assert main(["busbw", "nowhere.txt"]) == 1
    assert capsys.readouterr().err == "nowhere.txt: No such file or directory\n"
    assert main(["busbw", "--hosts", "2", "--nic", "25"]) == 1 and "GB/s" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "all is well\n", "gpu-001:1:2 [0] NCCL INFO Connected all rings\n"])
def test_a_file_without_any_of_these_outputs_is_refused(text, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text(text)
    assert main(["busbw", str(tmp_path / "notes.txt"), str(HERE / "all_reduce_perf.txt")]) == 1
    assert "notes.txt has no output of nvidia-smi topo -m" in capsys.readouterr().err


def test_host_and_rate_of_nvlinks_may_be_in_two_files(tmp_path, capsys):
    (tmp_path / "topo.txt").write_text(SMI)
    (tmp_path / "links.txt").write_text("GPU 0: NVIDIA B200 (UUID: GPU-5e)\n\t Link 0: 53.125 GB/s\n")
    assert main(["busbw", str(tmp_path / "links.txt"), str(tmp_path / "topo.txt")]) == 0
    assert "900 GB/s from each to its host" in capsys.readouterr().out


def test_the_command_runs_without_torch():
    files = ROOT / "topology/nvidia_smi/hgx_h100_ten.txt", HERE / "all_reduce_perf.txt", HERE / "debug_info.txt"
    arguments = ["busbw", *map(str, files)]
    code = f"import sys; sys.modules['torch'] = None; from d2lps.__main__ import main; sys.exit(main({arguments}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT.parent)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 9


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nic", "25 GB/s", "--hosts", "2", "--collective", "all_to_all"],
        ["hgx_h100_ten.txt", "all_reduce_perf.txt", "debug_info.txt"],
        ["two_hosts_of_four.txt", "--nic", "200 Gbit/s"],
    ],
)
def test_json_has_all_that_is_printed(arguments, capsys):
    folders = {"hgx_h100_ten.txt": ROOT / "topology/nvidia_smi"}
    call = ["busbw", *(str(folders.get(each, HERE) / each) if each.endswith(".txt") else each for each in arguments)]
    assert main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    valid(found, "cluster/busbw.schema.json")
    assert main(call) == 0
    printed = capsys.readouterr().out
    for row in found["rows"]:
        rates = [*row["predicted_bytes_per_second"].values(), row["measured_bytes_per_second"]]
        cells = [show_size(row["bytes"]), *(str(Bandwidth(rate)) for rate in rates if rate), row["chosen"] or ""]
        cells.append("" if row["error"] is None else f"{row['error']:+.0%}")
        assert " ".join(" ".join(cells).split()) in [" ".join(line.split()) for line in printed.splitlines()]
    assert ("assumed" in printed) == bool(found["assumed"])
    assert all(str(found[name]) in printed.splitlines()[0] for name in ("collective", "hosts", "gpus_per_host")[1:])


def test_a_published_run_of_two_hosts_lies_between_one_ring_and_a_ring_per_card():
    printed = (HERE / "two_hosts_of_four.txt").read_text("utf-8")
    for row in busbw.compare(printed, nic="200 Gbit/s")["rows"]:
        rates = row["predicted_bytes_per_second"]
        assert rates["ring"] < 0.3 * row["measured_bytes_per_second"]
        assert 0.02 < rates["rail_rings"] / row["measured_bytes_per_second"] - 1 < 0.07
