"""What doctor reads from the outputs of commands on hosts with GPUs: nothing is claimed that they do not say."""

import subprocess
from pathlib import Path

import pytest

from d2lps.cluster import doctor, errors, gpu_checks
from d2lps.cluster.gpu_checks import acs, affinity, gpudirect, health, locked, versions, xids

ROOT = Path(__file__).parents[1]
SMI = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""
LSPCI = """00:00.0 Host bridge: Intel Corporation Device 09a2
\tCapabilities: [40] Express Root Complex Integrated Endpoint

3a:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\tCapabilities: [128 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\tSrcValid{0} TransBlk- ReqRedir{0} CmpltRedir{0} UpstreamFwd{0} EgressCtrl- DirectTrans-

3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tCapabilities: [100 v1] Access Control Services
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

5c:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
"""
XID = "[{}] NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def one(findings):
    (found,) = findings
    return found.found, found.well


def test_a_driver_older_than_torchs_cuda_needs_mending():
    assert one(versions(SMI, None, None)) == ("550.54.15, for CUDA up to 12.4", True)
    assert one(versions(SMI, "12.8", None)) == ("550.54.15, for CUDA up to 12.4; torch has CUDA 12.8", True)
    assert one(versions(SMI, "13.0", None)) == ("550.54.15, for CUDA up to 12.4; torch has CUDA 13.0", False)
    assert one(versions(None, "13.0", (2, 27, 3))) == ("2.27.3: the same on all hosts?", True)
    assert [*versions("NVIDIA-SMI has failed", "13.0", None)] == []


def rows(*changes):
    usual = ["Enabled", "0", "1980 MHz", "1980 MHz", "0x0000000000000000"]
    return "".join(
        f"{i}, {', '.join(change.get(k, cell) for k, cell in enumerate(usual))}\n" for i, change in enumerate(changes)
    )


def test_errors_and_brakes_are_named_with_their_gpu():
    ecc, clocks = health(rows({}, {}))
    assert (ecc.found, ecc.well) == ("2 × enabled; 0 uncorrected errors since the driver started", True)
    assert (clocks.found, clocks.well) == ("2 × 1980 MHz of 1980 MHz", True)
    ecc, clocks = health(rows({}, {1: "3", 2: "1200 MHz", 4: "0x0000000000000048"}))
    assert "3 uncorrected" in ecc.found and not ecc.well and ecc.advice.startswith("GPU 1:")
    assert clocks.found.endswith("GPU 1: hardware slowdown, heat (hardware)") and clocks.well is False


@pytest.mark.parametrize("mask", ["0x0000000000000001", "0x0000000000000004", "0x0000000000000002"])
def test_idle_power_limit_and_chosen_clocks_are_no_faults(mask):
    assert [found.well for found in health(rows({4: mask}))] == [True, True]


def test_what_a_virtual_machine_hides_is_unknown():
    ecc, clocks = health(rows({0: "[N/A]", 1: "[N/A]", 4: "[N/A]"}))
    assert ecc.well is None and clocks.well is None and ecc.found.startswith("unknown")
    assert [*health(None)] == [*health("")] == [*health("Field is not a valid field to query.\n")] == []


def test_xids_are_counted_by_gpu_and_number():
    assert one(xids(XID.format(1, 79) + XID.format(2, 79) + "usb 1-1: new device")) == ("2 × Xid 79 of 3b:00", False)
    assert one(xids("usb 1-1: new device\n")) == ("none in the kernel's log", True) and [*xids(None)] == []


def test_acs_counts_at_bridges_only():
    assert one(acs(LSPCI.format("+"))) == ("on at 1 of 2 PCI bridges: 3a:00.0", False)
    assert one(acs(LSPCI.format("-"))) == ("on at 0 of 2 PCI bridges", True)
    assert one(acs("3a:00.0 PCI bridge: Broadcom\n\tCapabilities: <access denied>\n")) == (
        "unknown: lspci shows it to root only",
        None,
    )
    assert [*acs(None)] == []


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"


@pytest.mark.parametrize(
    "modules, driver, kernel, words, well",
    [
        ("nvidia_peermem 16384 0 - Live 0x0\nib_core 4 1\n", CLOSED, "5.4.0-100-generic", "nvidia_peermem is", True),
        ("nvidia 1 1\n", OPEN, "5.15.0-91-generic", "by dma-buf", True),
        ("nvidia 1 1\n", OPEN, "5.4.0-100-generic", "neither", False),
        ("nvidia 1 1\n", CLOSED, "6.8.0", "neither", False),
        ("ib_core 4 1 nvidia_peermem, Live\n", CLOSED, "6.8.0", "neither", False),
    ],
)
def test_cards_read_gpus_by_a_module_or_by_dma_buf(modules, driver, kernel, words, well):
    found, state = one(gpudirect(modules, driver, kernel))
    assert words in found and state is well


def test_gpus_without_a_card_on_their_switch_are_named():
    table = (ROOT / "topology/nvidia_smi/hgx_h100_ten.txt").read_text("utf-8")
    assert one(affinity(table)) == ("8 of 8 GPUs have a card on their PCIe switch", True)
    (found,) = affinity(table.replace("PIX", "NODE"))
    assert found.well is False and found.found.startswith("0 of 8 GPUs") and found.advice.startswith("GPU0, GPU1")
    assert [*affinity(None)] == [*affinity("no devices were found")] == []
    assert [*affinity((ROOT / "topology/nvidia_smi/workstation.txt").read_text("utf-8"))] == []


def test_cards_need_memory_without_a_limit():
    assert [locked(*case).well for case in ((None, True), (65536, True), (65536, False))] == [True, False, True]


def test_a_command_that_is_missing_slow_or_refused_is_unknown(monkeypatch):
    def late(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(doctor.local, "nvidia_smi", lambda *arguments: SMI if not arguments else None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name if name == "dmesg" else None)
    monkeypatch.setattr(doctor.subprocess, "run", late)
    found = {finding.what: (finding.found, finding.well) for finding in doctor._cluster()}
    assert found["Xid"] == ("unknown: dmesg did not answer within 10 s", None)
    assert found["ACS"] == ("unknown: lspci is not installed", None) and found["driver"][1]
    refused = subprocess.CompletedProcess([], 1, b"", b"dmesg: read kernel buffer failed: Operation not permitted\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *command, **options: refused)
    found = {finding.what: finding.found for finding in doctor._cluster()}
    assert found["Xid"] == "unknown: dmesg: read kernel buffer failed: Operation not permitted"
    monkeypatch.setattr(doctor.local, "nvidia_smi", lambda *arguments: None)
    assert [*doctor._cluster()] == []


def test_hosts_that_start_too_slowly_are_no_refusal(monkeypatch, capsys):
    def slow(**options):
        raise errors.NoAnswer("the emulated hosts did not start within 30 s")

    monkeypatch.setattr("d2lps.cluster.emulation.emulated", slow)
    assert one(doctor._emulation()) == ("unknown: the emulated hosts did not start within 30 s", None)
    monkeypatch.setattr(doctor, "_look", lambda aloud: doctor._emulation())
    assert doctor.main([]) == 0 and capsys.readouterr().out.startswith("?     emulation    unknown: ")


def test_what_is_well_carries_no_advice(monkeypatch):
    checks = {check: lambda: iter(()) for check in ("_torch", "_gpus", "_links", "_cluster", "_emulation", "_clock")}
    for name, check in checks.items():
        monkeypatch.setattr(doctor, name, check)
        check.__name__ = name
    findings = doctor.examine()
    assert findings and all(not finding.advice for finding in findings if finding.well)
    assert gpu_checks.Finding is doctor.Finding
