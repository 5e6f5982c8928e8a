"""Common parts of benchmarks: figures as committed data, and the load of this machine meanwhile."""

import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

from d2lps import this_host
from d2lps.messages import allow_any_letter

HERE = Path(__file__).parent

allow_any_letter()  # in every benchmark, which all import this module


def processor_time() -> tuple[float, float]:
    """Processor time of this machine so far: (used, all)."""
    if not Path("/proc/stat").exists():
        return 0.0, time.monotonic()
    counts = [int(count) for count in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(counts) - counts[3] - counts[4], sum(counts)


def save(name: str, figures: list, **versions: str) -> None:
    """Write the figures of ``name``.py to measured/, with the machine, the command and what they were measured with."""
    ask = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(ask, capture_output=True, text=True, cwd=HERE).stdout
    data = {
        "date": date.today().isoformat(),
        "device": f"{this_host().name}, {os.cpu_count()} processors",
        "system": platform.platform(),
        "torch": torch.__version__,
        **versions,
        "commit": commit.strip(),
        "command": " ".join(["python", f"tests/benchmarks/{name}.py", *sys.argv[1:]]),
        "figures": figures,
    }
    path = HERE / "measured" / f"{name}-{date.today().isoformat()}-{os.cpu_count()}-processors.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
