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

NEW_PRIVILEGES, DEATH_SIGNAL, SECCOMP = 38, 1, 22  # of prctl
NAMESPACES = {"user": 0x10000000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x08000000}
THREAD = 0x00010000  # a flag of clone for a thread, which is no new process
RULESET, RULE, RESTRICT = 444, 445, 446  # Landlock, on all machines
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (libraries are), read files, list folders
# Machine → its audit number, the number of clone, and calls that are refused: those that start a process, reach another
# one, or get around this filter.
CALLS = {
    "x86_64": (
        0xC000003E,
        56,
        {
            "fork": 57, "vfork": 58, "clone3": 435, "execve": 59, "execveat": 322, "ptrace": 101,
            "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "pidfd_open": 434,
            "pidfd_getfd": 438, "io_uring_setup": 425, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
            "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
            "keyctl": 250, "add_key": 248, "request_key": 249, "kcmp": 312, "memfd_create": 319, "shmget": 29,
            "shmat": 30, "msgget": 68, "semget": 64, "open_by_handle_at": 304, "kill": 62, "tkill": 200,
        },
    ),
    "aarch64": (
        0xC00000B7,
        220,
        {
            "clone3": 435, "execve": 221, "execveat": 281, "ptrace": 117, "process_vm_readv": 270,
            "process_vm_writev": 271, "process_madvise": 440, "pidfd_open": 434, "pidfd_getfd": 438,
            "io_uring_setup": 425, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "unshare": 97,
            "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "keyctl": 219, "add_key": 217,
            "request_key": 218, "kcmp": 272, "memfd_create": 279, "shmget": 194, "shmat": 196, "msgget": 186,
            "semget": 190, "open_by_handle_at": 265, "kill": 129, "tkill": 130,
        },
    ),
}  # fmt: skip
SOCKET = {"x86_64": 41, "aarch64": 198}

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
        for path, allowed in [*((path, READ) for path in paths), *((path, 6) for path in devices)]:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                allowed = allowed if path.is_dir() else allowed & 0x7  # a file cannot be listed
                rule = struct.pack("=Qi", allowed, place)
                _call(RULE, rules, 1, ctypes.c_char_p(rule), 0)
            finally:
                os.close(place)
        _control(NEW_PRIVILEGES, 1, 0, 0, 0)
        _call(RESTRICT, rules, 0)
    finally:
        os.close(rules)


def start_nothing(network: bool) -> None:
    """Refuse calls that start a process or reach another one, and all sockets except those of an own network namespace.

    Raises OSError if the system calls of this machine are unknown, or its kernel has no filters.
    """
    machine = platform.machine()
    if machine not in CALLS:
        raise OSError(errno.ENOSYS, f"system calls of {machine} are not known")
    audit, clone, refused = CALLS[machine]
    load, equal, masked, back = 0x20, 0x15, 0x45, 0x06  # BPF: load a word, ==, &, return
    allow, deny, absent = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

    program = [(load, 0, 0, 4), (equal, 1, 0, audit), (back, 0, 0, 0x80000000), (load, 0, 0, 0)]
    if machine == "x86_64":  # calls of the x32 ABI have other numbers
        program += [(0x35, 0, 1, 0x40000000), (back, 0, 0, deny)]
    for name, number in refused.items():
        # Without clone3 a thread is started by clone, whose flags can be read.
        program += [(equal, 0, 1, number), (back, 0, 0, absent if name == "clone3" else deny)]
    program += [(equal, 0, 4, clone), (load, 0, 0, 16), (masked, 1, 0, THREAD), (back, 0, 0, deny), (back, 0, 0, allow)]
    inet = (socket.AF_INET, socket.AF_INET6) if network else ()
    families = [step for family in inet for step in ((equal, 0, 1, int(family)), (back, 0, 0, allow))]
    program += [(equal, 0, 2 + len(families), SOCKET[machine]), (load, 0, 0, 16), *families, (back, 0, 0, deny)]
    program.append((back, 0, 0, allow))

    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    filter = struct.pack("@HP", len(program), ctypes.addressof(code))
    _control(NEW_PRIVILEGES, 1, 0, 0, 0)
    _control(SECCOMP, 2, ctypes.c_char_p(filter), 0, 0)
