"""What an answer tries that the sandbox refuses, noted before the call, so that no ``except`` hides it."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

MOST = 20  # attempts noted
KINDS = dict.fromkeys(("open", "os.listdir", "os.scandir", "os.link", "os.rename", "os.remove", "os.mkdir"), "file")
KINDS |= dict.fromkeys(("os.system", "os.fork", "os.exec", "os.posix_spawn", "os.kill", "subprocess.Popen"), "process")
KINDS |= dict.fromkeys(("socket.connect", "socket.sendto", "socket.getaddrinfo"), "network")
LOCAL = ("127.", "localhost", "::1", "None")


def watch(readable: Iterable[Path]) -> list[tuple[str, str]]:
    """Return a list that grows with each attempt of this process, as its kind and the name of a file, from now on."""
    noted, places = [], tuple(map(str, readable))

    def look(event: str, arguments: tuple) -> None:
        kind, first = KINDS.get(event), next(iter(arguments), None)
        if kind is None or len(noted) >= MOST or sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
            return
        if kind == "file" and not isinstance(first, str | bytes | os.PathLike):
            return  # a descriptor
        name = os.path.realpath(os.fsdecode(first)) if kind == "file" else ""
        if kind == "file" and (name + "/").startswith(tuple(f"{place}/" for place in places)):
            return
        if kind == "network" and str(first if event.endswith("info") else arguments[1]).lstrip("('").startswith(LOCAL):
            return
        noted.append((kind, os.path.basename(name)))

    sys.addaudithook(look)
    return noted
