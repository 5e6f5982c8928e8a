"""The DDP program: the same weights as one device, and nothing left behind when it does not come to an end."""

import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from helpers.waits import LIVE

from d2lps.train import by_plan, ddp

ROOT = Path(__file__).parents[2]
UNSHARE = [*"unshare --user --map-root-user --uts sh -c".split(), 'hostname no-address.invalid && exec "$@"', "sh"]
LOOKUP = "import socket\ntry: socket.gethostbyname(socket.gethostname())\nexcept socket.gaierror: print('no address')"


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
    until = time.monotonic() + LIVE
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.2)
    assert marked(mark) == set()


@pytest.fixture
def nameless(tmp_path):
    """Return a function that runs a program on a host whose name has no address, if this system can make one."""

    def run(*command, on=UNSHARE, seconds=60):
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"} | variables
        pipes = {"capture_output": True, "text": True, "timeout": seconds}
        return subprocess.run([*on, sys.executable, *command], cwd=tmp_path, env=environment, **pipes)

    try:
        possible = run("-c", LOOKUP).stdout == "no address\n"
    except FileNotFoundError:
        possible = False
    return run if possible else partial(run, on=())


def test_two_processes_are_one_device_within_rounding_and_need_no_address_of_the_host_name(nameless, tmp_path):
    program = "import torch; from d2lps.train import ddp; torch.save(ddp.weights(processes=2, deadline=180), 'weights')"
    done = nameless("-c", program, seconds=220)
    assert done.returncode == 0, done.stderr
    data = by_plan.digits().train
    joined = by_plan.one_device(by_plan.small_cnn(), data, size=128, steps=48, lr=0.03, momentum=0.9)
    assert torch.allclose(torch.load(tmp_path / "weights"), joined.weights, rtol=1e-3, atol=1e-4)


def test_torchrun_line_of_the_package_page_needs_no_address_of_the_host_name(nameless):
    page = (ROOT / "docs/package.md").read_text("utf-8")
    line, program = re.search(r"`\.venv/bin/torchrun (.*? )(examples/ring\.py)`:", page).groups()
    assert (ROOT / program).read_text("utf-8").endswith(re.search("```text\n(import torch.*?)```", page, re.DOTALL)[1])
    done = nameless("-m", "torch.distributed.run", *shlex.split(line.replace("=4", "=2")), str(ROOT / program))
    assert done.stdout.startswith("<Trace: gloo ×2"), done.stderr


def test_a_deadline_ends_every_process_and_shows_the_last_lines_of_the_output(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("for i in range(20): print('line', i, flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ddp.ProcessesError, match="2 processes did not finish within 2 s") as error:
        ddp.weights(processes=2, deadline=2)
    _, *last = str(error.value).splitlines()
    assert len(last) == 10 and any(re.fullmatch(r"line \d+", line) for line in last)


def test_processes_that_cannot_start_say_why():
    with pytest.raises(ddp.ProcessesError, match="0 processes failed. Their output:"):
        ddp.weights(processes=0)
