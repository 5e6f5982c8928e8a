"""Results that were recorded with a package that not every machine can have, and are shown where it is missing.

``python -m course.site record 04`` runs the notebook of a chapter and writes ``recorded.json`` in the chapter's folder.
"""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.notebook.grading.course import CHAPTERS

FILE = "recorded.json"
ALWAYS = ("numpy", "torch")  # packages whose versions are recorded beside that of the package itself

_found: dict[str, Any] = {}  # package → the result of this program


class NotRecorded(Brief, ValueError):
    """A package is missing here, and no chapter has a recorded result for it."""


def recorded(package: str, found: Any = None) -> Any:
    """Return a result that needs a package, or the recorded one if the package is missing here.

    The recorded result comes with a printed sentence, which says when it was recorded, with which versions, and how to
    run it here.

    Args:
        package: The package, which is also the name of an extra of d2lps, such as ``"mxnet"``.
        found: The result of a run on this machine, made of lists, dicts, numbers and texts; None if the package is
            missing.

    Returns:
        ``found``, unless it is None.

    Raises:
        NotRecorded: If ``found`` is None and no chapter has a recorded result.

    Example:
        >>> from d2lps.notebook.recorded import recorded
        >>> recorded("mxnet", {"seconds": 0.5})
        {'seconds': 0.5}
    """
    if found is not None:
        _found[package] = found
        return found
    for file in sorted(CHAPTERS.glob(f"*/{FILE}")):
        if kept := json.loads(file.read_text("utf-8")).get(package):
            about = {"package": package, **{name: kept[name] for name in ("day", "machine", "versions")}}
            print(text("extras.recorded", **about, command=f"pip install -e '.[course,{package}]'"))
            return kept["found"]
    raise NotRecorded(text("extras.not-recorded", package=package, command=f"pip install -e '.[course,{package}]'"))


def write(folder: str) -> None:
    """Write the results of this program, if there are any, into a chapter's folder."""
    if not _found:
        return
    machine = f"{os.cpu_count()} × {platform.machine()}, {platform.system()}"
    results = {}
    for package, found in _found.items():
        names = dict.fromkeys((package, *ALWAYS))
        versions = ", ".join(f"{name} {version(name)}" for name in names)
        about = {"day": date.today().isoformat(), "machine": machine}
        results[package] = about | {"versions": f"{versions}, Python {platform.python_version()}", "found": found}
    (Path(folder) / FILE).write_text(json.dumps(results, ensure_ascii=False) + "\n", "utf-8")
