"""What runs on a rank: an engine of ipyparallel that finds in its environment what torchrun would have put there."""

import json
import os
import threading
import time
from pathlib import Path

from d2lps.messages import counted, speak

TELLS = 0.5  # seconds: so often rank 0 says how far it is


def load() -> None:
    """Import what every rank needs: once, before there are several."""
    import ipyparallel.engine.app  # noqa: F401

    import d2lps.algorithms
    import d2lps.carriers.processes
    import d2lps.carriers.shared_memory  # noqa: F401


def play(folder: str, number: int) -> None:
    """Be rank ``number``; ipyparallel keeps its papers in ``folder``."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    import numpy
    import torch
    from ipyparallel.engine.app import IPEngine

    torch.set_num_threads(1)
    numpy.random.seed()  # or all copies would draw the same numbers
    while not (connection := read_connection(folder, "engine")):
        time.sleep(0.02)
    os.environ["IPP_CONNECTION_INFO"] = json.dumps(connection)
    if number == 0:
        threading.Thread(target=tell, args=(Path(folder, "reached"),), daemon=True).start()
    options = ["IPEngine.enable_nanny=False", "IPEngine.timeout=60", "IPEngine.max_heartbeat_misses=0"]
    launch(IPEngine, folder, f"IPEngine.id={number}", *options)


def launch(application, folder: str, *options: str) -> None:
    """Become one of ipyparallel's programs."""
    application.launch_instance([f"--profile-dir={folder}", "--log-level=WARN", *(f"--{option}" for option in options)])


def read_connection(folder: str | Path, role: str) -> dict | None:
    """What ipyparallel's controller writes for an engine or a client who wants to reach it; None until it is there."""
    try:
        return json.loads(Path(folder, "security", f"ipcontroller-{role}.json").read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def tell(file: Path) -> None:
    """Write down how far a long loop of this process has come, whenever it has; nobody is asked, so nobody waits."""
    before = None
    while True:
        time.sleep(TELLS)
        if (now := counted.reached) != before:
            file.write_text(f"{now.done} {now.of}" if now else "", "utf-8")
            before = now


def read_reached(folder: str | Path) -> counted.Reached | None:
    """What rank 0 wrote down last; None where it is in no loop."""
    try:
        done, of = Path(folder, "reached").read_text("utf-8").split()
        return counted.Reached(int(done), int(of))
    except (FileNotFoundError, ValueError):  # it may just be writing
        return None


# ---- what the notebook asks of a rank


def process() -> int:
    """The number of this process."""
    return os.getpid()


def begin(cell: int, language: str) -> None:
    """Before the ``cell``-th cell that all of them run: speak this language, and let torch's groups meet anew.

    torch counts its groups from 0 again once the first is destroyed, or as far as each rank came when a cell failed,
    and waits forever for the addresses of before. A number that grows with the cells is the same on all of them.
    """
    from torch.distributed import distributed_c10d

    speak(language)
    counted.reached = None  # a loop that was broken off may have left it
    if not distributed_c10d.is_initialized():
        distributed_c10d._world.group_count = cell * 1_000_000
