"""Measure this machine: ``python -m benchmarks P4 --quick``.

Give names of rows (``P1``) or of files (``carriers``); without names everything is measured, ``--list`` prints them.
Ratios are medians of pairs with p10 and p90; the pairs are taken in turns A B B A in one set of processes, one thread
each, and the time of a run is the slowest rank's, between barriers. Every result is verified. ``--save`` writes the
figures to benchmarks/measured/, a file for each file of rows.
"""

import argparse
import os
import secrets
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import torch

from benchmarks.common import Run
from d2lps import this_host
from d2lps.messages import allow_any_letter

# File → its rows: each is a function of that name in small letters, with _ for -.
FILES = {
    "model": "P9 P10 P19 P20",
    "carriers": "memory-traffic P1 P2 P8h",  # P2 has P3, too
    "gpu": "P21 P22 P23 P24 P25",
    "step": "P26 P27 P28",
    "kvstore": "flow P4 small P5 P14 held",
    "replicas": "times failover catch-up",
    "cluster": "lives P7 P8 racks",
    "hosts": "P29",
    "planner": "P30",
    "pipeline": "P15 P16",
    "sharded": "P17",  # and P18
    "classes": "grading",
    "player": "frames",
    "site": "reading",
}


def row_of(module: ModuleType, row: str) -> Callable[[Run], None]:
    """Return the function of a row."""
    return getattr(module, row.lower().replace("-", "_"))


def main() -> None:
    """Measure the rows that are asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="rows or files; all if left out")
    options.add_argument("--list", action="store_true", help="print files and rows")
    options.add_argument("--save", action="store_true", help="write the figures to benchmarks/measured/")
    options.add_argument("--quick", action="store_true", help="small sizes, few pairs: to see that it works")
    options.add_argument("--pairs", type=int, help="paired runs of each comparison")
    options.add_argument("--untuned", action="store_true", help="MXNet with its own defaults")
    given = options.parse_args()
    rows = {row: file for file, all_rows in FILES.items() for row in all_rows.split()}
    if unknown := {*given.names} - {*rows, *FILES}:
        options.error(f"there is no {' '.join(sorted(unknown))}: --list prints files and rows")
    if given.list:
        print("\n".join(f"{file}: {all_rows}" for file, all_rows in FILES.items()))
        return
    os.environ.setdefault("D2LPS_SECRET", secrets.token_hex(32))  # of servers and workers alike
    allow_any_letter()
    print(f"{this_host().name}, {os.cpu_count()} processors, torch {torch.__version__}")
    for file, all_rows in FILES.items():
        asked = [row for row in all_rows.split() if not given.names or {row, file} & {*given.names}]
        if not asked:
            continue
        module, run = import_module(f"benchmarks.{file}"), Run(given.quick, given.pairs, given.untuned)
        for row in asked:
            row_of(module, row)(run)
        if given.save and run.figures:
            run.save(file)


if __name__ == "__main__":
    main()
