"""The program of a rank, an engine of ipyparallel with torchrun's environment variables; and ``%%px`` without ranks.

Until it is called it needs neither torch nor ipyparallel.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from d2lps.messages import speak, text

# What training imports, which takes a second of each process: the first optimizer of torch imports torch._dynamo.
TRAINING = ("d2lps.train", "torch._dynamo")


def load(further: Iterable[str] = ()) -> None:
    """Import the modules that every rank needs, and the ``further`` ones, once, before the ranks are forked."""
    import ipyparallel.engine.app  # noqa: F401

    import d2lps.algorithms
    import d2lps.carriers.processes
    import d2lps.carriers.shared_memory  # noqa: F401

    for name in further:
        import_module(name)


def play(folder: str, number: int) -> None:
    """Run rank ``number``; ipyparallel has its files in ``folder``."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    import numpy
    import torch
    from ipyparallel.engine.app import IPEngine

    torch.set_num_threads(1)
    loopback()
    numpy.random.seed()  # otherwise all forks would draw the same numbers
    while not (connection := read_connection(folder, "engine")):
        time.sleep(0.02)
    os.environ["IPP_CONNECTION_INFO"] = json.dumps(connection)
    options = ["IPEngine.enable_nanny=False", "IPEngine.timeout=60", "IPEngine.max_heartbeat_misses=0"]
    launch(IPEngine, folder, f"IPEngine.id={number}", *options)


def loopback() -> str:
    """Return the address of this host that ipyparallel takes; ZeroMQ has to be asked for IPv6 in each context."""
    address = os.environ["MASTER_ADDR"]
    if ":" not in address:
        return address
    from zmq import Context

    begin = Context.__init__

    def begin_with_ipv6(context, *arguments, **options) -> None:
        begin(context, *arguments, **options)
        context.ipv6 = True

    Context.__init__ = begin_with_ipv6  # type: ignore[method-assign, assignment]
    return f"[{address}]"


def launch(application, folder: str, *options: str) -> None:
    """Become one of ipyparallel's programs."""
    application.launch_instance([f"--profile-dir={folder}", "--log-level=WARN", *(f"--{option}" for option in options)])


def read_connection(folder: str | Path, role: str) -> dict | None:
    """Read the file by which an engine or a client reaches ipyparallel's controller; None until it exists."""
    try:
        return json.loads(Path(folder, "security", f"ipcontroller-{role}.json").read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


# ---- called by the notebook


def process() -> int:
    """Return the number of this process."""
    return os.getpid()


def begin(cell: int, language: str) -> None:
    """Prepare for the ``cell``-th cell that all ranks run: set the language and the number of torch's next group.

    torch numbers groups from 0 again once the first is destroyed, and after a failed cell the ranks may have counted
    differently; then it waits forever for old addresses. A number that grows with the cells is the same on all ranks.
    """
    from torch.distributed import distributed_c10d

    speak(language)
    if not distributed_c10d.is_initialized():
        distributed_c10d._world.group_count = cell * 1_000_000


# ---- ``%%px`` before there are ranks, or after a restart of the kernel: it says how to start them


def stand_in() -> None:
    """Register the magic in a notebook that has no ``%%px`` yet. IPython must have been imported."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or shell.find_cell_magic("px") is not None:
        return
    shell.register_magic_function(without_ranks, "line_cell", "px")


def without_ranks(line: str, cell: str | None = None) -> None:
    """Raise NoRanks for ``%px`` and ``%%px``."""
    from d2lps.carriers.rendezvous import NoRanks

    raise brief(NoRanks(text("ranks.none")))


def brief(error: Any) -> Any:
    """Return the error, which IPython then shows without a traceback."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}".removesuffix(": ")]
    return error
