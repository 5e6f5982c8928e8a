"""The programs inside an emulated cluster: the first process of the switch, and the first process of every host.

The switch's process is started in new namespaces (``unshare``). It imports torch once, then makes the hosts, each with
its own network, files in memory, name and process numbers. Both kinds serve requests over a socket: make links, start
processes, end them. They exit when the other end of that socket closes, and with the first process of a namespace the
kernel ends all others in it.
"""

import ctypes
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000  # <sched.h>
REC, PRIVATE, BIND = 0x4000, 0x40000, 0x1000  # <sys/mount.h>
MOST = 1 << 20  # bytes of one request
# So that a round after a pause is as fast as the one before it, and the same on all systems.
TCP = {"tcp_slow_start_after_idle": "0", "tcp_congestion_control": "cubic"}
_libc = ctypes.CDLL(None, use_errno=True)


def main(world: int, hosts: dict[str, int], table: str) -> NoReturn:
    """Run the switch: make ``hosts`` (name → descriptor of its socket), report their processes, and serve."""
    import networkx  # noqa: F401 - once, before the hosts are forked
    import torch.distributed  # noqa: F401

    import d2lps.algorithms
    import d2lps.cluster.measured
    import d2lps.topology  # noqa: F401
    from d2lps.messages import allow_any_letter

    allow_any_letter()  # in all hosts, which are forked from here
    pids, open_ends = {}, {world, *hosts.values()}
    for name, descriptor in hosts.items():
        pids[name] = _new_host(name, descriptor, table, open_ends - {descriptor})
        os.close(descriptor)
        open_ends.remove(descriptor)
    control = socket.socket(fileno=world)
    control.send(json.dumps({"pids": pids}).encode())
    Agent(control, {pid: name for name, pid in pids.items()}).serve()


def _new_host(name: str, descriptor: int, table: str, others: set[int]) -> int:
    """Start the first process of a host; return its number in the switch. ``others``: descriptors it must close."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        # Takes effect for the next child: only a child can be the first process of a new namespace.
        _require(_libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET), "unshare")
        if first := os.fork():
            os.write(writing, str(first).encode())
            os._exit(0)
        try:
            for other in others:
                os.close(other)
            _furnish(name, table)
            Agent(socket.socket(fileno=descriptor)).serve()
        finally:
            os._exit(1)
    os.close(writing)
    os.waitpid(pid, 0)
    first = int(os.read(reading, 32) or 0)
    os.close(reading)
    return first


def _furnish(name: str, table: str) -> None:
    """Give a host its own name, table of host names, process list and shared memory."""
    os.setsid()
    socket.sethostname(name)
    _mount(None, "/", None, REC | PRIVATE)
    _mount("tmpfs", "/dev/shm", "tmpfs", 0, b"mode=1777")
    names = Path("/dev/shm/.hosts")
    names.write_text(table, "utf-8")
    with suppress(OSError):  # without it, hosts can only be reached by address
        _mount(str(names), "/etc/hosts", None, BIND)
    with suppress(OSError):  # in some containers /proc is partly covered: then the machine's /proc stays
        _mount("proc", "/proc", "proc", 0)
    for setting, value in TCP.items():
        with suppress(OSError):
            Path("/proc/sys/net/ipv4", setting).write_text(value)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: bytes | None = None) -> None:
    encoded = [None if argument is None else argument.encode() for argument in (source, target, kind)]
    _require(_libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {target}")


def _require(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


class Agent:
    """Serves the requests on ``control`` one after another, and reports how processes end."""

    def __init__(self, control: socket.socket, hosts: dict[int, str] | None = None):
        self.control, self.hosts = control, hosts or {}  # on the switch: first process → its host
        self.running: dict[int, tuple[int, int]] = {}  # process → the number of its request, and its rank
        self.woken, self.wake = socket.socketpair()
        for end in (self.woken, self.wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake ``select``
        signal.set_wakeup_fd(self.wake.fileno())

    def serve(self) -> NoReturn:
        while True:
            ready, *_ = select.select([self.control, self.woken], [], [])
            if self.woken in ready:
                self.woken.recv(4096)
                self._reap()
            if self.control in ready:
                message, descriptors, *_ = socket.recv_fds(self.control, MOST, 3)
                if not message:
                    os._exit(0)
                request = json.loads(message)
                try:
                    answer = getattr(self, f"_{request.pop('do')}")(*descriptors, **request)
                except Exception as error:
                    sentence = f"{type(error).__name__}: {error}"
                    answer = {key: request.get(key) for key in ("number", "rank")} | {"error": sentence}
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
                if answer is not None:
                    self._send(answer)

    def _send(self, answer: dict) -> None:
        try:
            self.control.send(json.dumps(answer).encode())
        except OSError:
            os._exit(0)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (request := self.running.pop(ended[0], None)) is not None:
                    number, rank = request
                    self._send({"number": number, "rank": rank, "status": os.waitstatus_to_exitcode(ended[1])})
                elif ended[0] in self.hosts:
                    self._send({"lost": self.hosts[ended[0]]})

    def _network(self, number: int, ip: list[str], tc: list[str]) -> dict:
        """Make and shape links with lines for the programs of iproute2."""
        for program, lines in (("ip", ip), ("tc", tc)):
            if lines:
                command = [program, "-batch", "-"]
                process = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=60)
                if process.returncode:
                    return {"number": number, "error": f"{program}: {process.stderr.strip()}"}
        return {"number": number}

    def _kill(self, number: int, pid: int) -> dict:
        """End a host as if its power were cut, without closing its connections."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return {"number": number}

    def _stop(self, number: int, run: int) -> dict:
        """End the processes of a run, and, if no other run is under way here, all processes they have started."""
        for pid, (started, _) in self.running.items():
            if started == run:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        if {started for started, _ in self.running.values()} <= {run}:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all in this namespace except its first process
        return {"number": number}

    def _start(
        self, call: int, output: int, result: int, *, number: int, rank: int, argv: list | None, env: dict, cwd: str
    ) -> None:
        """Start a process for a program, or for the function in the file ``call``; the answer follows when it ends."""
        if pid := os.fork():
            self.running[pid] = number, rank
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ |= env
            os.chdir(cwd)
            for mine in (self.control, self.woken, self.wake):
                mine.close()
            if argv is not None:
                os.execvp(argv[0], argv)
            status = _meet(env) if rank < 0 else _call(call, result)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _meet(env: dict) -> NoReturn:
    """Serve the store in which the processes of a run meet, until it is killed."""
    import torch.distributed as dist

    _store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    while True:
        signal.pause()


def _call(call: int, result: int) -> int:
    """Call the function in the file ``call``, and write its result or error to the file ``result``."""
    import cloudpickle
    import torch

    from d2lps.messages import speak

    speak(os.environ["D2LPS_LANGUAGE"])  # the language of the notebook that will show an error
    torch.set_num_threads(1)
    status = 0
    try:
        # All processes share the file's position, so this reads without moving it.
        function, arguments = pickle.loads(os.pread(call, os.fstat(call).st_size, 0))
        pickled = cloudpickle.dumps({"returned": function(*arguments)})
    except BaseException as error:
        status, trace = 1, traceback.format_exc()
        try:
            pickled = cloudpickle.dumps({"raised": error, "traceback": trace})
            pickle.loads(pickled)
        except Exception:  # an error that cannot be pickled
            pickled = cloudpickle.dumps({"raised": None, "traceback": trace})
    with open(result, "wb", closefd=False) as file:
        file.write(pickled)
    return status


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
