"""The DDP program: the same weights as one device, and nothing left behind when it does not come to an end."""

import time

import psutil
import pytest
import torch

from d2lps import concise, train


def ours() -> set[int]:
    return {p.pid for p in psutil.process_iter(["cmdline"]) if "d2lps.concise" in (p.info["cmdline"] or [])}


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
    data = train.digits().train
    joined = train.one_device(train.small_cnn(), data, size=128, steps=48, lr=0.03, momentum=0.9)
    torch.testing.assert_close(concise.weights(processes=2), joined.weights, rtol=1e-3, atol=1e-4)


def test_a_deadline_ends_every_process():
    with pytest.raises(concise.ProcessesError, match="2 processes did not finish within 2 s"):
        concise.weights(processes=2, deadline=2)


def test_processes_that_cannot_start_say_why():
    with pytest.raises(concise.ProcessesError, match="0 processes failed. They said:"):
        concise.weights(processes=0)
