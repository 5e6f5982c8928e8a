"""A process that is confined as an answer's process is, and what it tries.

``confined("newest", victim)`` uses all that this kernel has; ``"older"`` simulates one without Landlock's later parts
that refuses namespaces, as the profile of Docker does on Linux 5.13.
"""

import asyncio
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from course.classes import landlock, sandbox
from helpers.ranks import FORKED

KERNELS = "newest", "older"
LIMITS = 10, 20  # of the victim's processor seconds
libc = ctypes.CDLL(None, use_errno=True)


class Victim(NamedTuple):
    """A process beside, a file of its own, and the sockets at which it receives datagrams."""

    process: int
    file: str
    path: str
    abstract: str
    free: str  # an abstract name that another process wants to take later


def call(function: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError."""
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)


def pair() -> socket.socket:
    one, other = socket.socketpair()
    KEPT.append(other)
    return one


def datagram(address: str) -> None:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"from the answer", address)


def library() -> str:
    return os.__file__


KEPT: list[socket.socket] = []
TRIES = {
    "kill": lambda victim: os.kill(victim.process, 9),
    "tgkill": lambda victim: call("tgkill", victim.process, victim.process, 9),
    "sigqueue": lambda victim: call("sigqueue", victim.process, 9, 0),
    "pidfd": lambda victim: signal.pidfd_send_signal(os.pidfd_open(victim.process), 9),
    "F_SETOWN": lambda victim: fcntl.fcntl(pair(), 8, victim.process),
    "F_SETOWN_EX": lambda victim: fcntl.fcntl(pair(), 15, struct.pack("ii", 1, victim.process)),
    "F_SETSIG": lambda victim: fcntl.fcntl(pair(), 10, 9),
    "F_SETLEASE": lambda victim: fcntl.fcntl(os.open(library(), os.O_RDONLY), 1024, 0),
    "lock": lambda victim: fcntl.lockf(os.open(library(), os.O_RDONLY), fcntl.LOCK_SH),
    "FIOSETOWN": lambda victim: fcntl.ioctl(pair(), 0x8901, struct.pack("i", victim.process)),
    "SIOCSPGRP": lambda victim: fcntl.ioctl(pair(), 0x8902, struct.pack("i", victim.process)),
    "TIOCSTI": lambda victim: fcntl.ioctl(0, 0x5412, b"x"),
    "limits of another": lambda victim: resource.prlimit(victim.process, resource.RLIMIT_CPU, (1, 1)),
    "higher limits": lambda victim: resource.prlimit(0, resource.RLIMIT_NOFILE, (99, 99)),
    "processors of another": lambda victim: os.sched_setaffinity(victim.process, {0}),
    "priority of another": lambda victim: os.setpriority(os.PRIO_PROCESS, victim.process, 19),
    "priority of all": lambda victim: os.setpriority(os.PRIO_USER, 0, 19),
    "memory of another": lambda victim: call("process_vm_readv", victim.process, None, 0, None, 0, 0),
    "trace": lambda victim: call("ptrace", 16, victim.process, None, None),
    "core scheduling": lambda victim: call("prctl", 62, 2, victim.process, 0, 0),
    "outlive the keeper": lambda victim: call("prctl", 1, 0, 0, 0, 0),
    "fork": lambda victim: os.fork() or os._exit(0),
    "thread in a new namespace": lambda victim: call("syscall", CLONE, 0x40010000, 0, 0, 0, 0),
    "datagram": lambda victim: datagram(victim.path),
    "abstract datagram": lambda victim: datagram("\0" + victim.abstract),
    "packets": lambda victim: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
    "unix": lambda victim: socket.socket(socket.AF_UNIX),
    "netlink": lambda victim: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "raw": lambda victim: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "sctp": lambda victim: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132),
    "read": lambda victim: os.open(victim.file, os.O_RDONLY),
    "write": lambda victim: os.open(victim.file, os.O_WRONLY),
    "cut short": lambda victim: os.open(victim.file, os.O_RDONLY | os.O_TRUNC),
    "cut short, opened for nothing": lambda victim: os.open(victim.file, 3 | os.O_TRUNC),
    "cut a library short": lambda victim: os.open(Path(victim.file).parent / "library" / "a.py", os.O_TRUNC),
    "truncate": lambda victim: os.truncate(victim.file, 0),
    "create": lambda victim: os.open(victim.file + "x", os.O_CREAT | os.O_WRONLY),
    "remove": lambda victim: os.remove(victim.file),
}
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)


def take(victim: Victim) -> None:
    """Take a name; it is harmless in a namespace of its own."""
    pair().bind("\0" + victim.free)


def work() -> str:
    """Do what right answers do."""
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(asyncio.sleep(0, "slept"))))
    thread.start()
    thread.join(10)
    with open(os.devnull, "w") as nothing, open(library()) as module:
        assert not nothing.isatty() and module.readline() and print("x", file=nothing) is None
    one, other = socket.socketpair()
    one.setblocking(False), other.settimeout(10)
    one.send(b"x"), select.select([other], [], [], 10)
    os.close(os.dup(other.fileno()))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
    signal.pthread_kill(threading.main_thread().ident, 0)
    return f"{found} {other.recv(9)}"


def confined(kernel: str, victim: Victim, without: tuple[str, ...] = ()) -> dict:
    """Return what could not be refused, what was: by name the error's, or None if it was done, and the ``work``."""
    pipe, theirs = FORKED.Pipe()
    process = FORKED.Process(target=_outside, args=(theirs, kernel, victim, without), daemon=True)
    process.start()
    theirs.close()
    try:
        assert pipe.poll(60), "the confined process says nothing"
        found = pipe.recv()
        assert "error" not in found, found["error"]
        return found
    finally:
        process.kill(), process.join(10), pipe.close()


def _outside(pipe, kernel: str, victim: Victim, without: tuple[str, ...]) -> None:
    namespaces = sandbox.own_namespaces() if kernel == "newest" else set()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        _call, _control = landlock._call, landlock._control

        def call(*numbers):
            if "landlock" in without and numbers[0] == landlock.RULESET:
                raise OSError(errno.ENOSYS, "no Landlock")
            version = numbers[:2] == (landlock.RULESET, None) and kernel == "older"
            return min(1, _call(*numbers)) if version else _call(*numbers)

        def control(*numbers):
            if "seccomp" in without and numbers[0] == landlock.SECCOMP:
                raise OSError(errno.EINVAL, "no filters")
            _control(*numbers)

        landlock._call, landlock._control = call, control
        paths = [Path(os.__file__).parent, Path(victim.file).parent / "library"]
        missing = sandbox.shut_in(paths, namespaces, 1 << 30, 60)
        pipe.send({"missing": missing, "refused": {} if without else _refused(victim), "work": without or work()})
    except BaseException as error:
        pipe.send({"error": repr(error)})
    finally:
        os._exit(0)


def _refused(victim: Victim) -> dict[str, str | None]:
    found = {}
    for name, attempt in TRIES.items():
        try:
            attempt(victim)
            found[name] = None
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
    with suppress(OSError):
        take(victim)
    return found
