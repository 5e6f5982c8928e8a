"""Call an answer in another process, to see if its result depends on the process, as ``hash`` does."""

import json
import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

PATIENCE = 60.0  # seconds
ASK = """
import json, pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
answer, arguments = pickle.load(sys.stdin.buffer)
json.dump(answer(*arguments), out)
"""


class Away(ABC):
    """A function in another process, for judges that do more than call it; calling this object calls the function."""

    @abstractmethod
    def __call__(self, *arguments: object, **named: object) -> object: ...

    @abstractmethod
    def size_kept(self, without: Iterable[object]) -> int:
        """Do the same as :func:`~d2lps.notebook.grading.size_kept` in the other process."""

    @abstractmethod
    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        """Do the same as :func:`~d2lps.notebook.grading.shared_names` in the other process."""

    @abstractmethod
    def elsewhere(self, *arguments: object) -> object:
        """Do the same as :func:`~d2lps.notebook.grading.elsewhere`, in a third process."""


def elsewhere(answer: Callable, *arguments: object) -> object:
    """Return ``answer(*arguments)`` from a process in which texts have another ``hash``.

    Parameters
    ----------
    answer, *arguments
        The function, and its arguments.

    Returns
    -------
    object
        The result after a trip through JSON: tuples become lists. None if the answer cannot be sent, or fails there.
    """
    if isinstance(answer, Away):
        return answer.elsewhere(*arguments)
    import cloudpickle

    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    try:
        sent = cloudpickle.dumps((answer, arguments))
    except (pickle.PicklingError, TypeError):  # it refers to an object that cannot leave this process, such as a lock
        return None
    path = os.pathsep.join(filter(None, sys.path))
    try:
        process = subprocess.run(
            [sys.executable, "-c", ASK],
            input=sent,
            capture_output=True,
            timeout=PATIENCE,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(process.stdout) if process.returncode == 0 else None
