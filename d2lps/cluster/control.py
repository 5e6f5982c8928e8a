"""Start emulated hosts, send them requests, and end them.

One thread reads the answers of the first process of every host, and the output of their programs.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from d2lps.cluster.errors import ClusterError, HostLost, NoAnswer, NoEmulation
from d2lps.cluster.run import Job, Member
from d2lps.messages import text

PATHS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # Debian hides ip and tc there
SWITCH = "switch"  # joins the hosts, and ends with them
SPACES = "--net --mount --uts --ipc --pid --fork --kill-child --mount-proc".split()
AS_USER = ["--user", "--map-root-user"]
ANSWER = 30.0  # seconds until an answer must have come
MOST = 1 << 20  # bytes of a message


class Control:
    """The hosts with these addresses (name → address)."""

    def __init__(self, address: Mapping[str, str]):
        self.address = address
        self.lost: set[str] = set()
        self.closed, self._process = False, os.getpid()
        self._numbers, self._lock = count(1), threading.Condition()
        self._answers: dict[int, dict] = {}
        self._runs: dict[int, Job] = {}
        self._outputs: dict[int, tuple[Job, Member]] = {}
        self._thread, self._wake = None, os.pipe()
        try:
            try:
                self.pids = self._started([*AS_USER, *SPACES])
            except NoEmulation:  # as in some containers, in which root may still do it
                if os.geteuid():
                    raise
                self.pids = self._started(SPACES)
        except BaseException:
            self.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="d2lps cluster", daemon=True)
        self._thread.start()

    def _started(self, spaces: list[str]) -> dict[str, int]:
        """Start the switch, which makes the hosts; return host → the number of its first process inside the switch."""
        names = [SWITCH, *self.address]
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
        self._control = {name: mine for name, (mine, _) in zip(names, pairs, strict=True)}
        theirs = {name: other for name, (_, other) in zip(names, pairs, strict=True)}
        lines = [f"{at} {name}\n::ffff:{at} {name}\n" for name, at in self.address.items()]
        arguments = {
            "world": theirs[SWITCH].fileno(),
            "hosts": {name: theirs[name].fileno() for name in self.address},
            "table": "".join(["127.0.0.1 localhost\n", *lines]),
        }
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
        self._switch = subprocess.Popen(
            ["unshare", *spaces, sys.executable, "-m", "d2lps.cluster.agent", json.dumps(arguments)],
            pass_fds=[end.fileno() for end in theirs.values()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": PATHS},
            start_new_session=True,
        )
        for end in theirs.values():
            end.close()
        ready, *_ = select.select([self._control[SWITCH]], [], [], ANSWER)
        if answer := self._control[SWITCH].recv(MOST) if ready else b"":
            return json.loads(answer)["pids"]
        os.killpg(self._switch.pid, signal.SIGKILL)
        why = self._switch.communicate()[1].decode(errors="replace").strip()
        for mine in self._control.values():
            mine.close()
        if not ready:
            raise NoAnswer(text("cluster.slow", seconds=f"{ANSWER:g}"))
        raise NoEmulation(text("cluster.refused", why=why.splitlines()[-1] if why else "–"))

    def close(self) -> None:
        """End all processes and hosts; do nothing in a forked child, which shares the sockets."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        if hasattr(self, "pids"):
            for control in self._control.values():
                with suppress(OSError):  # it is already gone
                    control.shutdown(socket.SHUT_RDWR)
            try:
                self._switch.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._switch.pid, signal.SIGKILL)
                self._switch.wait(10)
            if self._switch.stderr:
                self._switch.stderr.close()
        if self._thread is not None:
            os.write(self._wake[1], b"x")
            self._thread.join(10)
            for control in self._control.values():
                control.close()
        for descriptor in self._wake:
            os.close(descriptor)

    # ---- requests

    def ask(self, name: str, do: str, **request) -> int:
        """Send a request to a host or the switch; return its number for :meth:`answer`."""
        number = next(self._numbers)
        self._send(name, {"do": do, "number": number, **request})
        return number

    def answer(self, name: str, number: int) -> None:
        """Wait until the request of this number is done."""
        with self._lock:
            in_time = self._lock.wait_for(lambda: number in self._answers or name in self.lost, ANSWER)
            answer = self._answers.pop(number, None)
        if answer is None:
            if name in self.lost and name != SWITCH:
                raise HostLost(text("cluster.host-lost", host=name))
            raise ClusterError(text("cluster.over" if in_time else "cluster.deaf", host=name))
        if "error" in answer:
            raise ClusterError(text("cluster.network", host=name, why=answer["error"]))

    def network(self, lines: Mapping[str, tuple[list[str], list[str]]]) -> None:
        """Make and shape links: host → lines for ``ip`` and for ``tc`` there."""
        numbers = {name: self.ask(name, "network", ip=ip, tc=tc) for name, (ip, tc) in lines.items()}
        for name, number in numbers.items():
            self.answer(name, number)

    def kill(self, name: str) -> None:
        """End a host as if its power were cut."""
        if name not in self.lost:
            self.answer(SWITCH, self.ask(SWITCH, "kill", pid=self.pids[name]))
            with self._lock:
                if not self._lock.wait_for(lambda: name in self.lost, ANSWER):
                    raise ClusterError(text("cluster.deaf", host=name))

    def start(self, members: list[Member], argv: list[str] | None, call: int, env: list[dict], deadline: float) -> Job:
        """Start a process per member, with its environment: a program, or the function in the file ``call``.

        Processes that call a function meet in a store that outlives them all, in a process of its own on the first
        host.
        """
        number = next(self._numbers)
        run = Job(number, members, argv is None, deadline, self.stop)
        with self._lock:
            self._runs[number] = run
            self._outputs |= {member.reading: (run, member) for member in members}
        os.write(self._wake[1], b"r")  # so that the thread reads the new outputs, too
        request = {"do": "start", "number": number, "argv": argv, "cwd": os.getcwd()}
        try:
            if argv is None:
                with open(os.devnull, "r+b") as null:
                    self._send(members[0].host, request | {"env": env[0], "rank": -1}, [null.fileno()] * 3)
            for member, variables in zip(members, env, strict=True):
                files = call, member.writing, member.result.fileno()
                self._send(member.host, request | {"env": variables, "rank": member.rank}, files)
        except BaseException:  # a host was lost just now, or Ctrl-C: end the processes that have begun
            self.stop(run)
            raise
        finally:
            for member in members:
                os.close(member.writing)
        return run

    def stop(self, run: Job) -> None:
        """End the remaining processes of a run, its store, and processes that they have started."""
        for name in {member.host for member in run.members} - self.lost:
            with suppress(ClusterError):  # the host is already gone
                self.answer(name, self.ask(name, "stop", run=run.number))

    def _send(self, name: str, request: dict, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._control[name], [json.dumps(request).encode()], list(descriptors))
        except OSError:
            if name == SWITCH:
                raise ClusterError(text("cluster.over")) from None
            raise HostLost(text("cluster.host-lost", host=name)) from None

    # ---- answers and output, read by a thread

    def _listen(self) -> None:
        controls = {control.fileno(): name for name, control in self._control.items()}
        try:
            while not self.closed:
                with self._lock:
                    outputs = dict(self._outputs)
                ready, *_ = select.select([*controls, *outputs, self._wake[0]], [], [])
                for descriptor in ready:
                    if descriptor == self._wake[0]:
                        os.read(descriptor, 4096)
                    elif descriptor in controls:
                        if message := self._message(controls[descriptor]):
                            self._handle(json.loads(message))
                        else:
                            self._lose(controls.pop(descriptor))
                    elif self._outputs.get(descriptor) is outputs[descriptor]:  # not ended just now
                        self._read(descriptor, *outputs[descriptor])
        finally:
            self._lose(SWITCH)  # so that no thread waits on, whatever ended this one

    def _message(self, name: str) -> bytes:
        try:
            return self._control[name].recv(MOST)
        except OSError:
            return b""

    def _handle(self, message: dict) -> None:
        if "lost" in message:
            self._lose(message["lost"])
        elif message.get("rank") is None:
            with self._lock:
                self._answers[message["number"]] = message
                self._lock.notify_all()
        elif message["rank"] >= 0 and (run := self._runs.get(message["number"])):
            self._end(run, run.members[message["rank"]], message.get("status", "late"))

    def _read(self, descriptor: int, run: Job, member: Member) -> bool:
        """Read output of a process; return True if there may be more."""
        try:
            output = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if output:
            run.printed(member, output)
        else:
            self._forget(descriptor)
        return bool(output)

    def _forget(self, descriptor: int) -> None:
        with self._lock:
            if self._outputs.pop(descriptor, None):
                os.close(descriptor)

    def _end(self, run: Job, member: Member, status: "int | str") -> None:
        """Read the remaining output of a process that has ended, and tell the run."""
        while member.reading in self._outputs and self._read(member.reading, run, member):
            pass
        self._forget(member.reading)  # in case a process that it started holds the pipe open
        run.ended(member, status)
        if run.over:
            with self._lock:
                self._runs.pop(run.number, None)

    def _lose(self, name: str) -> None:
        """Mark a host as lost, or all of them if it is the switch."""
        gone = {name} if name != SWITCH else {SWITCH, *self.address}
        with self._lock:
            self.lost |= gone
            runs = list(self._runs.values())
            self._lock.notify_all()
        for run in runs:
            for member in run.members:
                if member.host in gone and member.status is None:
                    self._end(run, member, "over" if self.closed else "host-lost")
