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
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # machine → its audit number
# The system calls that an answer may make, and their numbers on these machines. All others are refused; CHECKED are
# allowed with some arguments: threads, and sockets of an own network namespace.
ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57,
close_range 436 436, dup 32 23, dup2 33 -, fcntl 72 25, ioctl 16 29, fstat 5 80, stat 4 -, lstat 6 -,
newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439, open 2 -, openat 257 56,
readlink 89 -, readlinkat 267 78, getcwd 79 17, getdents64 217 61, fadvise64 221 223, pipe 22 -, pipe2 293 59,
eventfd2 290 19, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233,
brk 12 214, mincore 27 232, msync 26 227, membarrier 324 283, get_mempolicy 239 236, set_mempolicy 238 237,
mbind 237 235, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132, tgkill 234 131,
futex 202 98, get_robust_list 274 100, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293,
arch_prctl 158 -, prctl 157 167, sched_yield 24 124, sched_getaffinity 204 123, sched_setaffinity 203 122,
getpriority 140 141, getcpu 309 168, exit 60 93, exit_group 231 94, restart_syscall 219 128, nanosleep 35 101,
clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getrandom 318 278, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getgroups 115 158, uname 63 160, sysinfo 99 179, prlimit64 302 261, getrusage 98 165, wait4 61 260,
waitid 247 95, socketpair 53 199, connect 42 203, accept 43 202, accept4 288 242, bind 49 200, listen 50 201,
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockname 51 204,
getpeername 52 205, setsockopt 54 208, getsockopt 55 209
"""
CHECKED = "clone 56 220, socket 41 198, clone3 435 435"


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return name → number of the calls of a table that a machine has."""
    column = 1 + list(MACHINES).index(machine)
    calls = (call.split() for call in table.split(","))
    return {call[0]: int(call[column]) for call in calls if call[column] != "-"}


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
    """Refuse all system calls but ALLOWED ones, new threads and, with an own network namespace, internet sockets.

    Raises OSError if the system calls of this machine are unknown, or its kernel has no filters.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"system calls of {machine} are not known")
    clone, socket_call, clone3 = numbers(CHECKED, machine).values()
    load, equal, masked, back = 0x20, 0x15, 0x45, 0x06  # BPF: load a word, ==, &, return
    allow, deny, absent = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

    program = [(load, 0, 0, 4), (equal, 1, 0, MACHINES[machine]), (back, 0, 0, 0x80000000), (load, 0, 0, 0)]
    # Calls of the x32 ABI have numbers of their own, which are not in the table.
    for number in numbers(ALLOWED, machine).values():
        program += [(equal, 0, 1, number), (back, 0, 0, allow)]
    # Without clone3 a thread is started by clone, whose flags can be read.
    program += [(equal, 0, 1, clone3), (back, 0, 0, absent)]
    program += [(equal, 0, 4, clone), (load, 0, 0, 16), (masked, 1, 0, THREAD), (back, 0, 0, deny), (back, 0, 0, allow)]
    inet = (socket.AF_INET, socket.AF_INET6) if network else ()
    families = [step for family in inet for step in ((equal, 0, 1, int(family)), (back, 0, 0, allow))]
    program += [(equal, 0, 1 + len(families), socket_call), (load, 0, 0, 16), *families, (back, 0, 0, deny)]

    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    filter = struct.pack("@HP", len(program), ctypes.addressof(code))
    _control(NEW_PRIVILEGES, 1, 0, 0, 0)
    _control(SECCOMP, 2, ctypes.c_char_p(filter), 0, 0)
