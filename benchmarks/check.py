"""Run each file of benchmarks once with small sizes, and see that it prints its table: ``python -m benchmarks.check``.

The figures then mean nothing. Give names of files to run only these.
"""

import argparse
import re
import subprocess
import sys
import time

from benchmarks.__main__ import FILES
from benchmarks.common import ROOT

PRINTED = {  # what each prints, at least
    "carriers": ["P1 ", "P2 ", "P3 ", "P8h"],
    "classes": ["notebooks: 1", "seconds: "],
    "cluster": ["hosts up in", "P7 ", "P8 "],
    "gpu": ["P22 "],
    "hosts": ["alone, between hosts", "P29 "],
    "kvstore": ["P4 ", "small ", "P5 ", "P14 ", "memory server"],
    "model": ["P9 ", "P10 ", "P19 ", "P20 "],
    "pipeline": ["P15 ", "P16 "],
    "player": ["first painted after", "script per frame"],
    "replicas": ["replicas=1 ÷ 0", "a new primary", "a newcomer"],
    "saving": ["stall ÷ blocking"],
    "sharded": ["P17 ", "P18 "],
    "site": ["search|not measured"],
    "step": ["P26 ", "P27 ", "P28 "],
}
DEADLINE = 600.0  # seconds; on an idle machine each takes less than 30


def fault(name: str) -> str:
    """Run a file of benchmarks; return why it failed with what it printed, or an empty string."""
    command = [sys.executable, "-m", "benchmarks", name, "--quick"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    try:
        run = subprocess.run(command, cwd=ROOT, text=True, timeout=DEADLINE, **pipes)
    except subprocess.TimeoutExpired as late:
        return f"{(late.output or b'').decode('utf-8', 'replace')}no end within {DEADLINE:.0f} s"
    if run.returncode:
        return f"{run.stdout}status {run.returncode}"
    missing = [what for what in PRINTED[name] if not re.search(what, run.stdout)]
    return f"{run.stdout}not printed: {', '.join(missing)}" if missing else ""


def main() -> int:
    """Run the files that are asked for, one after the other; return 1 if any failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="file", help="all if left out")
    names = options.parse_args().names or [*FILES]
    if unknown := {*names} - {*FILES}:
        options.error(f"there is no {' '.join(sorted(unknown))}: choose from {' '.join(FILES)}")
    failed = []
    for name in names:
        begun = time.monotonic()
        why = fault(name)
        failed += [name] if why else []
        print(f"{name:10} {time.monotonic() - begun:6.1f} s", f"  failed:\n{why}" if why else "", flush=True)
    print(f"failed: {' '.join(failed)}" if failed else f"all {len(names)} ran")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
