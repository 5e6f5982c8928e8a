"""Results that were recorded with what not every machine can have, and are shown where it is missing.

That is a package, or the emulation of hosts (``d2lps.cluster``), for which Linux is needed. ``make record
CHAPTER=04`` runs the notebook of a chapter and writes ``recorded.json`` in the chapter's folder.
"""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from d2lps.messages import language, text, unmarked
from d2lps.messages.raised import Brief
from d2lps.messages.spoken import VARIABLE
from d2lps.notebook.grading.course import CHAPTERS

FILE = "recorded.json"
EMULATION = "emulation"  # needed where it is no package
ALWAYS = ("numpy", "torch")  # packages whose versions are recorded beside that of the package itself

ABOUT = ("day", "machine", "versions")

_found: dict[str, Any] = {}  # what was needed, and the cell if it has one → the result of this program


class NotRecorded(Brief, ValueError):
    """A package, or the emulation of hosts, is missing here, and no chapter has a recorded result for it."""


def recorded(needed: str, found: Any = None, cell: str = "") -> Any:
    """Return a result that needs a package or emulated hosts, or the recorded one if these are missing here.

    The recorded result comes with a printed sentence, which says when it was recorded, on which machine, and with which
    versions; if a package is missing, also how to run it here.

    Args:
        needed: The package, which is also the name of an extra of d2lps, such as ``"mxnet"``; or ``"emulation"``.
        found: The result of a run on this machine, made of lists, dicts, numbers and texts; None if there can be none.
        cell: The cell of a chapter with several results.

    Returns:
        ``found``, unless it is None.

    Raises:
        NotRecorded: If ``found`` is None and no chapter has a recorded result.

    Example:
        >>> from d2lps.notebook.recorded import recorded
        >>> recorded("mxnet", {"seconds": 0.5})
        {'seconds': 0.5}
    """
    name = f"{needed}/{cell}".strip("/")
    if found is not None:
        _found[name] = found
        return found
    kind = needed if needed == EMULATION else "package"
    values = {"package": needed, "command": f"pip install -e '.[course,{needed}]'"}
    for file in sorted(CHAPTERS.glob(f"*/{FILE}")):
        if kept := json.loads(file.read_text("utf-8")).get(name):
            print(text(f"extras.{kind}-recorded", **values, **{what: kept[what] for what in ABOUT}))
            # Sentences are recorded in all languages.
            return kept["found"] if os.environ.get(VARIABLE) else unmarked(kept["found"], language())
    raise NotRecorded(text(f"extras.{kind}-not-recorded", **values))


def write(folder: str) -> None:
    """Write the results of this program, if there are any, into a chapter's folder."""
    if not _found:
        return
    machine = f"{os.cpu_count()} × {platform.machine()}, {platform.system()}"
    results = {}
    for name, found in _found.items():
        package = name.partition("/")[0]
        packages = dict.fromkeys([package, *ALWAYS] if package != EMULATION else ALWAYS)
        versions = ", ".join(f"{each} {version(each)}" for each in packages)
        about = date.today().isoformat(), machine, f"{versions}, Python {platform.python_version()}"
        results[name] = dict(zip(ABOUT, about, strict=True)) | {"found": found}
    (Path(folder) / FILE).write_text(json.dumps(results, ensure_ascii=False) + "\n", "utf-8")
