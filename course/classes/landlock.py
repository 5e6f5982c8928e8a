"""System calls that confine a process on Linux: Landlock, namespaces, and a filter of system calls.

Python has no module for them, so they are called by number. None of them needs a privilege.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from course.classes import allowed

NEW_PRIVILEGES, DEATH_SIGNAL, SECCOMP = 38, 1, 22  # of prctl
NAMESPACES = {"user": 0x10000000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x08000000}
RULESET, RULE, RESTRICT = 444, 445, 446  # Landlock, on all machines
CAPABILITIES = {"x86_64": (125, 126), "aarch64": (90, 91)}  # machine → the calls that get and set them
READ_SEARCH = 1 << 2  # the capability to read what others may not: it only reads, and Landlock says what
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (libraries are), read files, list folders

_libc = ctypes.CDLL(None, use_errno=True)


def _call(*numbers: object) -> int:
    result = _libc.syscall(*(ctypes.c_long(number) if isinstance(number, int) else number for number in numbers))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _control(*numbers: object) -> None:
    if _libc.prctl(*(ctypes.c_ulong(number) if isinstance(number, int) else number for number in numbers)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _control(DEATH_SIGNAL, 9, 0, 0, 0)


def leave(*kinds: str) -> None:
    """Enter new namespaces as the same user. Raises OSError."""
    user, group, flags = os.geteuid(), os.getegid(), 0
    for kind in ("user", *kinds):
        flags |= NAMESPACES[kind]
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def raise_loopback() -> None:
    """Start the loopback interface of this network namespace. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running


def see_only(paths: Iterable[Path], devices: Iterable[Path] = ()) -> None:
    """Allow only reading below these paths and writing to these devices from now on. Raises OSError."""
    version = _call(RULESET, None, 0, 1)
    files = 0x1FFF | (version > 1) << 13 | (version > 2) << 14 | (version > 4) << 15
    signals_and_sockets = 3 if version > 5 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", files, 0, signals_and_sockets)[:size]
    rules = _call(RULESET, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for path, rights in [*((path, READ) for path in paths), *((path, 6) for path in devices)]:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                rights = rights if path.is_dir() else rights & 0x7  # a file cannot be listed
                rule = struct.pack("=Qi", rights, place)
                _call(RULE, rules, 1, ctypes.c_char_p(rule), 0)
            finally:
                os.close(place)
        _control(NEW_PRIVILEGES, 1, 0, 0, 0)
        _call(RESTRICT, rules, 0)
    finally:
        os.close(rules)


def start_nothing(network: bool) -> None:
    """Give up all privileges, and refuse all system calls but :mod:`~course.classes.allowed` ones.

    Raises OSError if the system calls of this machine are unknown, or its kernel has no filters.
    """
    machine = platform.machine()
    if machine not in allowed.MACHINES:
        raise OSError(errno.ENOSYS, f"system calls of {machine} are not known")
    _drop_privileges(*CAPABILITIES[machine])
    steps = allowed.program(machine, network)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    filter = struct.pack("@HP", len(steps), ctypes.addressof(code))
    _control(NEW_PRIVILEGES, 1, 0, 0, 0)
    _control(SECCOMP, 2, ctypes.c_char_p(filter), 0, 0)


def _drop_privileges(get: int, put: int) -> None:
    """Give up the capabilities of an administrator, with which a process raises its own limits."""
    version, has = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    _call(get, ctypes.c_char_p(version), has)
    effective, permitted, *_ = struct.unpack("=6I", has.raw[:24])
    kept = struct.pack("=6I", effective & READ_SEARCH, permitted & READ_SEARCH, 0, 0, 0, 0)
    _call(put, ctypes.c_char_p(version), ctypes.c_char_p(kept))
