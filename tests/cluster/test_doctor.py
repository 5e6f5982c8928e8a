"""What is looked at on a host before it trains with others."""

import json
import sys

import pytest

from d2lps.__main__ import main
from d2lps.cluster import doctor


def test_every_finding_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_emulation", lambda: iter(()))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    status = doctor.main(["--json"])
    findings = json.loads(capsys.readouterr().out)
    assert [finding["what"] for finding in findings][:3] == ["system", "Python", "torch"]
    assert status == int(not all(finding["well"] for finding in findings))
    assert all(finding["advice"] for finding in findings if not finding["well"])
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
