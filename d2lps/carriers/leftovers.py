"""Files and folders that live as long as a process: the next process removes those of a killed one.

Each process that needs such a file holds a lock on it (flock), which the kernel releases when the last holder ends,
in whatever way. A file of ours without a lock is therefore left over.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress

PREFIX = "d2lps-held-"


def held(make: Callable[..., str | tuple[int, str]], folder: str | os.PathLike) -> tuple[str, int]:
    """Call ``make(prefix=…, dir=folder)``, mkdtemp or mkstemp, and return the path and the descriptor with the lock.

    Leftovers in ``folder`` are removed first.
    """
    sweep(folder)
    while True:
        new = make(prefix=PREFIX, dir=folder)
        try:
            path, descriptor = (new, os.open(new, os.O_RDONLY)) if isinstance(new, str) else (new[1], new[0])
        except FileNotFoundError:  # another process swept just before this one opened it
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):  # or just before this one locked it
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return path, descriptor
        os.close(descriptor)


def sweep(folder: str | os.PathLike) -> None:
    """Remove the leftovers of this user in ``folder``, without following links."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(PREFIX):
                with suppress(OSError):  # it is locked, another user's, a link, or gone
                    _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(path)
            return
        for name in os.listdir(descriptor):
            os.unlink(name, dir_fd=descriptor)
        os.rmdir(path)
    finally:
        os.close(descriptor)
