"""Programs of several workers: under torchrun, or in processes forked from one that has imported torch.

Those take a tenth of the processor time. They find in their environment what torchrun would have put there.
"""

import atexit
import gc
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.ranks import FORKED
from helpers.servers import fork_servers

SECONDS = 200  # for a program to end
USUAL = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def torchrun(script: Path, n: int, **environment: str) -> subprocess.CompletedProcess:
    """Run a script with ``n`` workers under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--local-addr=127.0.0.1", f"--nproc-per-node={n}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script)]
    environment = os.environ | USUAL | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)


def forked(script: Path, n: int, without: tuple[str, ...] = (), **environment: str) -> list[list[str]]:
    """Return the lines that each of ``n`` workers prints; none is ended because another has failed.

    ``without``: prefixes of variables that the workers must not have.
    """
    meeting = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    usual = {
        "WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    environment = inherited | usual | environment
    outputs = [script.with_suffix(f".{rank}.txt") for rank in range(n)]
    processes = [
        FORKED.Process(target=_run, args=(str(script), str(output), environment | {"RANK": str(rank)}))
        for rank, output in enumerate(outputs)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(SECONDS)
            assert process.exitcode is not None, f"{process} has not ended within {SECONDS} s"
    finally:
        for process in processes:
            process.kill()
            process.join(10)
    return [output.read_text("utf-8").splitlines() for output in outputs]


def _run(script: str, output: str, environment: dict[str, str]) -> None:
    """Be a worker: a process that has just begun, as far as ``script`` can tell."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    gc.freeze()  # the objects of torch are many, and stay
    torch.set_num_threads(1)
    for number, path in ((1, output), (2, output + ".errors")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.argv = [script]
    fork_servers()
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
        sys.stdout.flush()
