"""The DDP program: the same weights as one device, and nothing left behind when it does not come to an end."""

import time

import psutil
import pytest
import torch

from d2lps.train import by_plan, ddp

pytestmark = pytest.mark.slow  # of several processes


def ours() -> set[int]:
    return {p.pid for p in psutil.process_iter(["cmdline"]) if "d2lps.train.ddp" in (p.info["cmdline"] or [])}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process of the program is there that was not before, after the time that it takes to die."""
    before = ours()
    yield
    until = time.monotonic() + 10
    while ours() - before and time.monotonic() < until:
        time.sleep(0.2)
    assert ours() - before == set()


def test_two_processes_are_one_device_within_rounding():
    data = by_plan.digits().train
    joined = by_plan.one_device(by_plan.small_cnn(), data, size=128, steps=48, lr=0.03, momentum=0.9)
    torch.testing.assert_close(ddp.weights(processes=2), joined.weights, rtol=1e-3, atol=1e-4)


def test_a_deadline_ends_every_process():
    with pytest.raises(ddp.ProcessesError, match="2 processes did not finish within 2 s"):
        ddp.weights(processes=2, deadline=2)


def test_processes_that_cannot_start_say_why():
    with pytest.raises(ddp.ProcessesError, match="0 processes failed. They said:"):
        ddp.weights(processes=0)
