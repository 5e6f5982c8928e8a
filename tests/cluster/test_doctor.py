"""What is looked at on a host before it trains with others."""

import json
import sys

import pytest
from helpers.schemas import valid

from d2lps.__main__ import main
from d2lps.cluster import doctor


def test_every_finding_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_emulation", lambda: iter(()))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    status = doctor.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    valid(found, "cluster/doctor.schema.json")
    findings = found["findings"]
    assert found["well"] is (status == 0)
    assert [finding["what"] for finding in findings][:3] == ["system", "Python", "torch"]
    assert status == int(any(finding["well"] is False for finding in findings))
    assert all(
        bool(finding["advice"]) == (finding["well"] is False) for finding in findings if finding["well"] is not None
    )
    doctor.main([])
    output = capsys.readouterr().out
    assert all(f"{finding['what']:<12} {finding['found']}" in output for finding in findings)


def test_doctor_reports_a_host_whose_name_means_loopback(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    for address, well in (("127.0.1.1", False), ("10.0.0.7", True)):
        monkeypatch.setattr(doctor.socket, "gethostbyname", lambda name, at=address: at)
        (finding,) = doctor._name()
        assert finding.well is well and address in finding.found and "GLOO_SOCKET_IFNAME" in finding.advice
    monkeypatch.setattr(doctor.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    for card, well in (("eth0", True), ("eth7", False)):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", card)
        assert next(doctor._name()).well is well


def test_cards_of_infiniband_have_rates_and_lanes(monkeypatch, tmp_path):
    for card, state, width in (("mlx5_0", "4: ACTIVE", "16"), ("mlx5_1", "1: DOWN", "8")):
        files = {"ports/1/rate": "400 Gb/sec (4X NDR)", "ports/1/state": state, "device/current_link_width": width}
        files |= {"device/max_link_width": "16", "device/current_link_speed": "32.0 GT/s PCIe"}
        for name, content in files.items():
            (tmp_path / card / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / card / name).write_text(f"{content}\n")
    (tmp_path / "mlx5_2").mkdir()
    monkeypatch.setattr(doctor, "INFINIBAND", tmp_path)
    whole, half, bare = [finding for finding in doctor._interfaces() if finding.what == "InfiniBand"]
    assert whole.found.startswith("mlx5_0: 400 Gb/sec (4X NDR) ACTIVE, PCIe 32.0 GT/s ×16;") and whole.well
    assert half.found.startswith("mlx5_1: 400 Gb/sec (4X NDR) DOWN, PCIe 32.0 GT/s ×8;") and not half.well
    assert "the card has ×16 lanes" in half.advice
    assert bare.found.startswith("mlx5_2: no port; ") and bare.well


def test_lanes_and_nvlinks_of_gpus_that_differ_need_mending(monkeypatch):
    up = "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))

    def said(widths, blocks):
        rows = "".join(f"{i}, 5, 16, 1, {width}, NVIDIA H100 80GB HBM3\n" for i, width in enumerate(widths))
        status = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-5e)\n{block}" for i, block in enumerate(blocks))
        monkeypatch.setattr(doctor.local, "nvidia_smi", lambda *arguments: status if "nvlink" in arguments else rows)
        return [(finding.what, finding.found, finding.well) for finding in doctor._links()]

    assert said([16, 16], [up, up]) == [
        ("PCIe", "2 × ×16 of ×16, version 5 at most", True),
        ("NVLink", "2 × 18 links of 26.562 GB/s", True),
    ]
    pcie, nvlink = said([16, 8], [up, up.replace("17: 26.562 GB/s", "17: <inactive>")])
    assert pcie == ("PCIe", "1 × ×16 of ×16, version 5 at most, 1 × ×8 of ×16, version 5 at most", False)
    assert nvlink == ("NVLink", "1 × 18 links of 26.562 GB/s, 1 × 17 links of 26.562 GB/s", False)
    assert [what for what, *_ in said([16], ["\t Link 0: <inactive>\n"])] == ["PCIe"]
    assert said([], []) == [] and said(["[N/A]", "0"], [])[0][2]


def test_without_torch_the_rest_is_looked_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    assert [finding.well for check in (doctor._torch, doctor._gpus, doctor._backends) for finding in check()] == [False]
    assert {finding.what for finding in doctor._limits()} >= {"open files"}


def test_on_a_terminal_each_check_is_named_while_it_runs(capsys, monkeypatch):
    def slow():
        assert capsys.readouterr().err.endswith("slow\r")
        yield doctor.Finding("slow", "ended", True)

    monkeypatch.setattr(doctor, "_torch", slow)
    monkeypatch.setattr(doctor, "_emulation", lambda: iter(()))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    doctor._torch.__name__ = "_slow"
    doctor.main([])
    assert "ok    slow         ended" in capsys.readouterr().out


def test_help_is_no_error_and_an_unknown_command_is_named(capsys):
    for call, words in ((["--help"], "parallelize"), ([], "doctor"), (["doctor", "--help"], "--json")):
        with pytest.raises(SystemExit) as ended:
            main(call)
        printed = capsys.readouterr()
        assert ended.value.code == 0 and words in printed.out and "``" not in printed.out and not printed.err
    for call, unknown in ((["doktor"], "'doktor'"), (["doctor", "--jsn"], "--jsn")):
        with pytest.raises(SystemExit) as ended:
            main(call)
        printed = capsys.readouterr()
        assert ended.value.code == 2 and unknown in printed.err and not printed.out
