"""What a reader has done, kept beside their notebooks: guesses, and exercises that were passed. Nothing is ever sent.

It lies in ``.d2lps/`` in the workspace, for all its notebooks together: a small file for each thing, put in place
whole, so that notebooks that are open at the same time never spoil what the other has written. A program that is no
notebook remembers for as long as it runs, and writes nothing.
"""

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

NAME = ".d2lps"

_remembered: dict[str, dict] = {}  # where there is no folder, or none that can be written to


def folder() -> Path | None:
    """Where things are kept: in the workspace, or in the folder of a notebook that was opened elsewhere."""
    with suppress(FileNotFoundError):  # somebody has removed the folder in which this process stands
        here = Path.cwd()
        for each in (here, *here.parents):
            if each.name == "workspace" and (each.parent / "chapters").is_dir():
                return each / NAME
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        return here / NAME if hasattr(shell, "kernel") else None
    return None


def keep(kind: str, name: str, value: dict) -> bool:
    """Keep ``value`` instead of what had that name; whether it will still be there tomorrow."""
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
    """What was kept under that name, or None; a file that says nothing sensible counts as none."""
    place = folder()
    if place:
        with suppress(OSError, ValueError):
            value = json.loads((place / f"{kind}-{name}.json").read_text("utf-8"))
            return value if isinstance(value, dict) else None
    return _remembered.get(f"{kind}-{name}")
