"""Run each file of benchmarks once with small sizes, and see that it prints its table: ``python -m benchmarks.check``.

The figures then mean nothing. Give names of files to run only these.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
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
    "planner": ["in all, out of sample", "FSDP", "tuned layouts"],
    "player": ["first painted after", "script per frame"],
    "replicas": ["replicas=1 ÷ 0", "a new primary", "a newcomer"],
    "sharded": ["P17 ", "P18 "],
    "site": ["search|not measured"],
    "step": ["P26 ", "P27 ", "P28 "],
}
DEADLINE = 1800.0  # seconds; on an idle machine each takes less than 120


def fault(name: str) -> str:
    """Run a file of benchmarks; return why it failed with what it printed, or an empty string."""
    command = [sys.executable, "-m", "benchmarks", name, "--quick"]
    with tempfile.TemporaryFile() as output:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
        try:
            status = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # its ranks and servers, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        printed = output.read().decode("utf-8", "replace")
    if status is None:
        return f"{printed}no end within {DEADLINE:g} s"
    if status:
        return f"{printed}status {status}"
    missing = [what for what in PRINTED[name] if not re.search(what, printed)]
    return f"{printed}not printed: {', '.join(missing)}" if missing else ""


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
