"""Confine a process as far as this machine can: the files it may read, the network, and its memory and time."""

import os
import resource
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path

import course
import d2lps
from course.classes import landlock

PACKAGES = [Path(package.__file__).resolve().parent for package in (d2lps, course)]
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
OPEN_FILES = 64


def readable(secret: Sequence[Path]) -> list[Path]:
    """Return the folders of Python and its libraries without those that contain, or are inside, a ``secret`` one."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = [*PACKAGES, *map(Path, [*SYSTEM, *library, *sys.path, sys.prefix])]
    existing = {place.resolve() for place in places if str(place) not in ("", ".") and place.exists()}
    return sorted(
        place
        for place in existing
        if not any(path.is_relative_to(place) or place.is_relative_to(path) for path in secret)
    )


def own_namespaces() -> set[str]:
    """Enter namespaces without network and other processes if the kernel allows it; they hold after the next fork."""
    for kinds in (("net", "pid", "ipc"), ("net", "ipc"), ()):
        with suppress(OSError):
            if kinds:
                landlock.leave(*kinds)
            return {*kinds}
    return set()


def shut_in(paths: Sequence[Path], namespaces: set[str], memory: int, seconds: float) -> list[str]:
    """Confine this process for good; return what could not be refused: of ``files``, ``processes``, ``network``."""
    missing, network = [], False
    if "net" in namespaces:
        with suppress(OSError):
            landlock.raise_loopback()
        network = True
    _limit(memory, seconds)
    try:
        landlock.see_only(paths, [Path(device) for device in DEVICES])
    except (OSError, AttributeError, ValueError):
        missing.append("files")
    try:
        landlock.start_nothing(network)
    except (OSError, AttributeError, ValueError):
        missing.append("processes")
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NPROC, (OPEN_FILES, OPEN_FILES))
        if not network:
            missing.append("network")
    return missing


def limit_judge(memory: int) -> None:
    """Limit further memory of this process, which reads what an answer sends and would take as much as it asks for."""
    limits = {resource.RLIMIT_CORE: (0, 0)}
    if used := _used():
        limits[resource.RLIMIT_AS] = (used + memory, used + memory)
    _set(limits)


def limit_exercise(seconds: float, over: Callable[[], object]) -> None:
    """Call ``over()`` in the main thread when this process has computed for so many seconds from now on.

    An answer may make its judge compute in C, where nothing can be called: after twice the time the process ends.
    """

    def stop(*_: object) -> None:
        _set({resource.RLIMIT_CPU: (hard, hard)})  # the signal comes again every second
        over()

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    signal.signal(signal.SIGXCPU, stop)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, 2 * seconds)
    _set({resource.RLIMIT_CPU: (ceil(time.process_time() + seconds), hard)})


@contextmanager
def at_most(memory: int) -> Iterator[None]:
    """Raise MemoryError if this process takes more than so many further bytes within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if used := _used():
        allowed = [limit for limit in (used + memory, soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(allowed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _used() -> int:
    """Return the bytes of address space that this process has; 0 if this machine does not tell."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit(memory: int, seconds: float) -> None:
    """Limit further memory in bytes, and processor seconds; allow no written files and no core dumps."""
    used = _used()
    processor_seconds = ceil(seconds)
    limits = {
        resource.RLIMIT_AS: (used + memory, used + memory),
        resource.RLIMIT_CPU: (processor_seconds, processor_seconds),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (OPEN_FILES, OPEN_FILES),
    }
    _set(limits)


def _set(limits: dict[int, tuple[int, int]]) -> None:
    for which, limit in limits.items():
        with suppress(OSError, ValueError):  # macOS does not have all of them
            resource.setrlimit(which, limit)
