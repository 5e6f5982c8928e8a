"""Attempts of an answer that the sandbox refuses, noted before the call, so that no ``except`` hides it."""

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
    noted, places = [], tuple(f"{path}/" for path in readable)

    def look(event: str, arguments: tuple) -> None:
        kind, first = KINDS.get(event), next(iter(arguments), None)
        if kind is None or len(noted) >= MOST or sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
            return
        path, address = "", first if event.endswith("info") else arguments[-1]
        if kind == "file":
            path = os.path.realpath(os.fsdecode(first)) if isinstance(first, str | bytes | os.PathLike) else os.devnull
        local = kind == "network" and str(address).lstrip("('").startswith(LOCAL)
        if not local and not (path + "/").startswith(places):
            noted.append((kind, os.path.basename(path)))

    sys.addaudithook(look)
    return noted
