"""Store guesses and passed exercises beside the reader's notebooks. Nothing is ever sent.

They lie in ``.d2lps/`` in the workspace, for all its notebooks: a small file for each entry, replaced in one step, so
that notebooks that are open at the same time never damage each other's entries. Outside a notebook, entries are
remembered as long as the program runs, and nothing is written.
"""

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

NAME = ".d2lps"

_remembered: dict[str, dict] = {}  # entries without a folder, or with one that cannot be written


def folder() -> Path | None:
    """Return the folder of entries: in the workspace, or beside a notebook that was opened elsewhere."""
    with suppress(FileNotFoundError):  # the current folder has been removed
        here = Path.cwd()
        for path in (here, *here.parents):
            if path.name == "workspace" and (path.parent / "chapters").is_dir():
                return path / NAME
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        return here / NAME if hasattr(shell, "kernel") else None
    return None


def keep(kind: str, name: str, value: dict) -> bool:
    """Store ``value`` under this name; return True if it was written to a file."""
    place = folder()
    with suppress(OSError):
        if place:
            place.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=place)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(value, file, ensure_ascii=False, indent=1)
                os.replace(temporary, place / f"{kind}-{name}.json")
            finally:
                Path(temporary).unlink(missing_ok=True)
            return True
    _remembered[f"{kind}-{name}"] = value
    return False


def kept(kind: str, name: str) -> dict | None:
    """Return the value stored under this name; None if there is none, or its file is damaged."""
    place = folder()
    if place:
        with suppress(OSError, ValueError):
            value = json.loads((place / f"{kind}-{name}.json").read_text("utf-8"))
            return value if isinstance(value, dict) else None
    return _remembered.get(f"{kind}-{name}")
