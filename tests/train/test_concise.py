"""The DDP program: the same weights as one device, and nothing left behind when it does not come to an end."""

import time
import uuid

import psutil
import pytest
import torch

from d2lps.train import by_plan, ddp

pytestmark = pytest.mark.slow  # of several processes


def marked(mark: str) -> set[int]:
    """The processes of the program that were started with that mark: others may run it on this machine at any time."""
    names = set()
    for process in psutil.process_iter(["cmdline", "environ"]):
        program = "d2lps.train.ddp" in (process.info["cmdline"] or [])
        if program and (process.info["environ"] or {}).get("D2LPS_TEST") == mark:
            names.add(process.pid)
    return names


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    """No process of the program that was started here is there any more, after the time that it takes to die."""
    monkeypatch.setenv("D2LPS_TEST", mark := uuid.uuid4().hex)
    yield
    until = time.monotonic() + 10
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.2)
    assert marked(mark) == set()


def test_two_processes_are_one_device_within_rounding():
    data = by_plan.digits().train
    joined = by_plan.one_device(by_plan.small_cnn(), data, size=128, steps=48, lr=0.03, momentum=0.9)
    torch.testing.assert_close(ddp.weights(processes=2), joined.weights, rtol=1e-3, atol=1e-4)


def test_a_deadline_ends_every_process():
    with pytest.raises(ddp.ProcessesError, match="2 processes did not finish within 2 s"):
        ddp.weights(processes=2, deadline=2)


def test_processes_that_cannot_start_say_why():
    with pytest.raises(ddp.ProcessesError, match="0 processes failed. Their output:"):
        ddp.weights(processes=0)
