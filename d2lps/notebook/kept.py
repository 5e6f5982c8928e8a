"""Store guesses and passed exercises beside the reader's notebooks. Nothing is ever sent.

They lie in ``.d2lps/`` in the workspace, for all its notebooks: a small file for each entry, replaced in one step, so
that notebooks that are open at the same time never damage each other's entries. Outside a notebook, entries are
remembered as long as the program runs, and nothing is written.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


def count(kind: str, name: str, what: str) -> None:
    """Add 1 to the number ``what`` in the entry of this name, also if another notebook does so at the same time."""
    with _alone():
        counts = kept(kind, name) or {}
        before = counts.get(what)
        keep(kind, name, counts | {what: (before if type(before) is int else 0) + 1})


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other notebook count meanwhile, if entries are in a folder that can be locked."""
    place = folder()
    with ExitStack() as locked:
        with suppress(OSError, ImportError):
            if place:
                import fcntl  # which a browser does not have

                place.mkdir(parents=True, exist_ok=True)
                locked.callback(os.close, descriptor := os.open(place, os.O_RDONLY))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
