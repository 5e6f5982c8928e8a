"""Ask an answer in another process: what it says must not depend on what is of one process alone, as ``hash`` is."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import cloudpickle

from d2lps.notebook.grading.away import Away

PATIENCE = 60.0  # seconds
ASK = """
import json, pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
answer, arguments = pickle.load(sys.stdin.buffer)
json.dump(answer(*arguments), out)
"""


def elsewhere(answer: Callable, *arguments: object) -> object:
    """What ``answer(*arguments)`` is in a process whose ``hash`` of a text is another one.

    Parameters
    ----------
    answer, *arguments
        What is called, and with what.

    Returns
    -------
    object
        As JSON has it: tuples are lists. None if it cannot go there, or fails there.
    """
    if isinstance(answer, Away):
        return answer.elsewhere(*arguments)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    try:
        sent = cloudpickle.dumps((answer, arguments))
    except (pickle.PicklingError, TypeError):  # it holds on to what is of this process alone, as a lock is
        return None
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK],
            input=sent,
            capture_output=True,
            timeout=PATIENCE,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None
