"""The processes of a run on the hosts of a cluster: their output, their results, and how they end."""

import math
import os
import pickle
import sys
import threading
import time
from collections import deque
from typing import NamedTuple

from d2lps.cluster.errors import ClusterError, HostLost, RunFailed
from d2lps.messages import text
from d2lps.topology.local import own_nodes

KEPT = 1 << 16  # bytes of a process's last output that are kept
GONE = 10.0  # seconds within which a killed process must have ended
SHOWN = 1 << 18  # bytes of output of all processes of a run that are shown


def playing() -> tuple[str, ...]:
    """Return the nodes that bear the name of this process of a cluster, which ``Processes()`` plays.

    Several processes of a host share its nodes out among themselves.

    Returns:
        Such as ``("host0/gpu0", "host0/gpu1", "host0/cpu")``.

    Raises:
        ClusterError: If this is not a process of a cluster.
    """
    if "D2LPS_PLAYING" not in os.environ:
        raise ClusterError(text("cluster.nowhere"))
    return tuple(own_nodes())


class Ended(NamedTuple):
    """The end of a program: its ``host``, ``rank``, exit ``status``, and the last of its ``output``."""

    host: str
    rank: int
    status: int
    output: str


class Member:
    """One process of a run."""

    def __init__(self, host: str, rank: int):
        self.host, self.rank = host, rank
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.result = os.fdopen(os.memfd_create("result"), "rb")
        self.output: deque[bytes] = deque()
        self.open_line = b""  # not shown until it ends
        self.status: int | str | None = None  # a word if the exit status is unknown, as when the host is lost

    def keep(self, output: bytes) -> None:
        self.output.append(output)
        while sum(map(len, self.output)) - len(self.output[0]) > KEPT:
            self.output.popleft()

    def outcome(self, function: bool) -> "tuple[object, BaseException | None]":
        """Return (its result, None), or (None, the error)."""
        output = b"".join(self.output).decode(errors="replace")
        result = self._read() if function else {}
        if "returned" in result:
            return result["returned"], None
        if self.status == 0 and not function:
            return Ended(self.host, self.rank, 0, output), None
        if isinstance(self.status, str):
            kind = RunFailed if self.status == "late" else HostLost
            return None, kind(text(f"cluster.{self.status}", host=self.host))
        if result:
            error = result["raised"] or RunFailed(result["traceback"])
            error.__notes__ = [*getattr(error, "__notes__", []), f"{self.host}:\n{result['traceback']}"]
            return None, error
        status: object = self.status
        if self.status is not None and self.status < 0:
            status = text("cluster.signal", number=-self.status)
        tail = "\n".join(output.splitlines()[-20:])
        return None, RunFailed(text("cluster.status", host=self.host, rank=self.rank, status=status, output=tail))

    def _read(self) -> dict:
        self.result.seek(0)
        pickled = self.result.read()
        return pickle.loads(pickled) if pickled else {}


class Job:
    """The processes of one run on the hosts, made by :meth:`Cluster.start`."""

    def __init__(self, number: int, members: list[Member], function: bool, deadline: float, stop):
        self.number, self.members, self.function = number, members, function
        self._until, self._stop = time.monotonic() + deadline, stop
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._shown, self._left = 0, {id(member) for member in members}

    # ---- called by the cluster's thread

    def printed(self, member: Member, output: bytes) -> None:
        """Keep and show output of a process."""
        member.keep(output)
        lines, newline, rest = (member.open_line + output).rpartition(b"\n")
        if len(rest) > KEPT:  # a line without an end is shown in pieces
            lines, newline, rest = lines + newline, rest, b""
        member.open_line = rest
        self._show(member.host, lines + newline)

    def _show(self, host: str, output: bytes) -> None:
        with self._changed:
            if self._shown < SHOWN:
                self._lines += [f"{host} │ {line}\n" for line in output.decode(errors="replace").splitlines()]
                self._shown += len(output)
                if self._shown >= SHOWN:
                    self._lines.append(text("cluster.flood", bytes=SHOWN) + "\n")
            self._changed.notify_all()

    def ended(self, member: Member, status: "int | str") -> None:
        """Note the exit status of a process."""
        self._show(member.host, member.open_line)
        with self._changed:
            if member.status is None:
                member.status = status
            self._left.discard(id(member))
            self._changed.notify_all()

    # ---- called by the user

    @property
    def over(self) -> bool:
        """True if all its processes have ended."""
        return not self._left

    def results(self) -> list:
        """Wait for all processes, and show their output meanwhile.

        Returns:
            The result of the function in each process, or an :class:`Ended` for each program, in the order of ranks.

        Raises:
            HostLost: If a host was lost.
            RunFailed: If a program failed, or was not done by the deadline; the message names the first. An error that
                a function raised is raised unchanged.
        """
        try:
            self._wait()
        finally:
            self.stop()
        outcomes = [member.outcome(self.function) for member in self.members]
        results = [value if error is None else error for value, error in outcomes]
        failed = [error for _, error in outcomes if error is not None]
        if failed:
            raise _first(failed, results)
        return results

    def stop(self) -> None:
        """End its processes, and wait until they are gone."""
        self._stop(self)
        with self._changed:
            if not self._changed.wait_for(lambda: self.over, GONE):
                raise ClusterError(text("cluster.deaf", host=self.members[0].host))

    def _wait(self) -> None:
        over = False
        while not over:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self.over, max(0.0, self._until - time.monotonic()))
                lines, over = self._lines, self.over
                self._lines = []
            sys.stdout.write("".join(lines))
            if time.monotonic() > self._until and not over:
                for member in self.members:
                    member.status = "late" if member.status is None else member.status
                self.stop()
                self._until = math.inf


def _first(failed: list[BaseException], results: list) -> BaseException:
    """Choose the error to raise: the cause, a lost host, before the errors of processes that missed it."""
    from d2lps.carriers.rendezvous import RankLost

    order = sorted(failed, key=lambda error: (not isinstance(error, HostLost), isinstance(error, RankLost)))
    first = order[0]
    if isinstance(first, RunFailed):
        first.results = results
    return first
