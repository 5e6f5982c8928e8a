"""Files and folders for as long as a process lives: what one that was killed leaves behind, the next one removes.

Whoever needs such a thing holds a lock on it (flock), which goes with the last of its holders, however that ends. So
what is ours and nobody holds is left over.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress

PREFIX = "d2lps-held-"


def held(make: Callable[..., object], folder: str) -> tuple[str, int]:
    """What ``make(prefix=…, dir=folder)`` makes, mkdtemp or mkstemp: its path, and the descriptor that holds it.

    Before that, what is left over in ``folder`` is removed.
    """
    sweep(folder)
    while True:
        made = make(prefix=PREFIX, dir=folder)
        try:
            path, descriptor = (made, os.open(made, os.O_RDONLY)) if isinstance(made, str) else reversed(made)
        except FileNotFoundError:  # somebody swept here just before it was opened
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):  # or just before it was held
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return path, descriptor
        os.close(descriptor)


def sweep(folder: str) -> None:
    """Remove what is left over in ``folder``: only this user's, and nothing by way of a link."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(PREFIX):
                with suppress(OSError):  # somebody holds it, or it is another user's, a link, or gone
                    _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(path)
            return
        for name in os.listdir(descriptor):
            os.unlink(name, dir_fd=descriptor)
        os.rmdir(path)
    finally:
        os.close(descriptor)
