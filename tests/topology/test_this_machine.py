"""This machine as a topology: with GPUs that a fake nvidia-smi shows, and without."""

import os
from pathlib import Path

import pytest
from pytest import approx

from d2lps import one_memory, this_host
from d2lps.plan.plan import PlanError
from d2lps.topology import TopologyError
from d2lps.topology import local as module
from d2lps.units import UnitError

TEXTS = Path(__file__).with_name("nvidia_smi")
PCIE1, PCIE3, PCIE4 = 2.5e9 / 8 * 8 / 10, 8e9 / 8 * 128 / 130, 16e9 / 8 * 128 / 130  # bytes/s of one lane


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """Put an nvidia-smi on PATH that prints a table and GPUs with their PCIe links."""

    def put(table, gpus, code=0, wait=0):
        (tmp_path / "table").write_text(table, "utf-8")
        (tmp_path / "list").write_text("".join(f"{line}\n" for line in gpus), "utf-8")
        script = tmp_path / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\n[ {wait} = 0 ] || exec /bin/sleep {wait}\n"
            f'if [ "$1" = topo ]; then /bin/cat {tmp_path}/table; '
            f'elif [ "$1" = --query-gpu={module.QUERY} ]; then /bin/cat {tmp_path}/list; fi\n'
            f"exit {code}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


def gpu(index, name="NVIDIA X1, 2", most="4", width="16", now="1", width_now="16"):
    return f"{index}, {most}, {width}, {now}, {width_now}, {name}"


# ---------------------------------------------------------------- without GPUs


def test_without_gpus_it_is_one_memory_of_a_rank_for_each_processor(no_gpu):
    host = this_host(bandwidth="10 GB/s")
    ranks = [f"rank{i}" for i in range(len(os.sched_getaffinity(0)))]
    assert list(host.kinds) == [*ranks, "memory"] and host.through == {"memory": 10e9}


def test_the_nodes_may_be_given(no_gpu):
    host = this_host(["gpu0", "gpu1", "cpu"], "10 GB/s")
    plain = one_memory(["gpu0", "gpu1", "cpu"], "10 GB/s")
    assert (host.kinds, host.links, host.through) == (plain.kinds, plain.links, plain.through)


def test_it_is_named_after_the_processor(no_gpu, tmp_path):
    (tmp_path / "proc").mkdir()
    names = {"Some  CPU @ 2.0GHz": "Some CPU @ 2.0GHz", "x" * 100: "one_memory", "\x1b[0m": "one_memory"}
    for model, name in names.items():
        (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: fpu\n")
        assert this_host(["a"], "1 GB/s", root=tmp_path).name == name


def test_the_memory_is_measured_unless_its_bandwidth_is_given(no_gpu, monkeypatch):
    assert 1e7 < this_host(["a", "b"]).through["memory"] < 1e13
    monkeypatch.setattr(module, "copy_rate", lambda: pytest.fail("nothing to measure"))
    this_host(["a", "b"], "1 GB/s")


@pytest.mark.parametrize(
    "nodes, bandwidth, error",
    [
        ("ab", None, PlanError),
        (["a", "a"], None, PlanError),
        (["a", "memory"], None, TopologyError),
        (["a"], 5, UnitError),
    ],
)
def test_invalid_input_is_refused_before_a_measurement(no_gpu, monkeypatch, nodes, bandwidth, error):
    monkeypatch.setattr(module, "copy_rate", lambda: pytest.fail("nothing to measure"))
    with pytest.raises(error):
        this_host(nodes, bandwidth)


@pytest.mark.parametrize(
    "table, gpus, code",
    [
        ("No devices were found", ["No devices were found"], 0),
        ("", [], 0),
        ((TEXTS / "one_gpu.txt").read_text("utf-8"), [gpu(0)], 9),
        ("topo is not supported here", [gpu(0)], 0),
    ],
)
def test_an_nvidia_smi_that_shows_no_gpu_is_as_good_as_none(smi, table, gpus, code):
    smi(table, gpus, code)
    assert "memory" in this_host(["a"], "1 GB/s").kinds


def test_an_nvidia_smi_that_hangs_is_given_up(smi, monkeypatch):
    monkeypatch.setattr(module, "DEADLINE", 0.2)
    smi("", [], wait=60)
    assert "memory" in this_host(["a"], "1 GB/s").kinds


# ---------------------------------------------------------------- with GPUs


@pytest.fixture
def four(smi):
    smi(
        (TEXTS / "workstation.txt").read_text("utf-8"),
        [
            gpu(0),
            gpu(1, most="3", width="8"),
            gpu(2, most="1", width="1", now="3"),
            gpu(3, most="[N/A]", width="[Unknown Error]", now="9", width_now=""),
        ],
    )


def rates(host):
    """Return the bandwidth of the link from each GPU upwards."""
    return {link.src: link.bandwidth for link in host.links if link.dst.startswith(("switch", "cpu"))}


def test_gpus_are_joined_as_the_table_says_and_as_fast_as_the_driver_says(four):
    host = this_host()
    assert host.kinds == {
        **dict.fromkeys(["gpu0", "gpu1", "gpu2", "gpu3"], "gpu"),
        "switch0": "switch",
        "switch1": "switch",
        "cpu": "cpu",
    }
    assert rates(host)["gpu0"] == approx(16 * PCIE4), "a GPU that sleeps"
    assert rates(host)["gpu1"] == approx(8 * PCIE3), "a slot that can do less than the GPU"
    assert rates(host)["gpu2"] == approx(16 * PCIE3), "a slot that a virtual machine made up"
    assert rates(host)["gpu3"] == 16e9, "a driver that does not tell"


def test_it_is_named_after_the_gpus(four, smi):
    assert this_host().name == "4 × NVIDIA X1, 2"
    smi((TEXTS / "workstation.txt").read_text("utf-8"), [gpu(i, f"NVIDIA X{i}") for i in range(4)])
    assert this_host().name == "host"


def test_nvlinks_are_as_fast_as_the_model_has_them(smi):
    for model, rate in (("NVIDIA B200", 50e9), ("NVIDIA H100 80GB HBM3", 25e9)):
        smi((TEXTS / "hgx_h100_ten.txt").read_text("utf-8"), [gpu(i, model) for i in range(8)])
        assert {link.bandwidth for link in this_host().links} == {rate}


def test_gpus_are_used_where_all_the_given_nodes_are_among_them(four):
    assert this_host(["gpu0", "gpu3", "cpu"]) == this_host()
    assert list(this_host(["gpu0", "gpu4"], "1 GB/s").kinds) == ["gpu0", "gpu4", "memory"]


def test_an_early_version_sends_ten_bits_for_eight(smi):
    smi((TEXTS / "one_gpu.txt").read_text("utf-8"), [gpu(0, most="1", width="4", width_now="4")])
    assert rates(this_host())["gpu0"] == approx(4 * PCIE1)
