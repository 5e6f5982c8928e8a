"""What runs on the hosts of a cluster: one process or several on each, what they say, how they end."""

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

KEPT = 1 << 16  # bytes of what a process says last
GONE = 10.0  # seconds until what is ended must have ended
SHOWN = 1 << 18  # bytes of what all processes of a run say that are shown


class Ended(NamedTuple):
    """How a program ended: on which ``host``, as which ``rank``, with which exit ``status``, what it said last."""

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
        self.said: deque[bytes] = deque()
        self.open_line = b""  # not shown until it ends
        self.status: int | str | None = None  # a word where it is not known: the host is lost

    def keep(self, said: bytes) -> None:
        self.said.append(said)
        while sum(map(len, self.said)) - len(self.said[0]) > KEPT:
            self.said.popleft()

    def outcome(self, function: bool) -> "tuple[object, BaseException | None]":
        """(what it gave, None), or (what can be said, why it failed)."""
        words = b"".join(self.said).decode(errors="replace")
        said = self._read() if function else {}
        if "returned" in said:
            return said["returned"], None
        if self.status == 0 and not function:
            return Ended(self.host, self.rank, 0, words), None
        if isinstance(self.status, str):
            kind = RunFailed if self.status == "late" else HostLost
            return None, kind(text(f"cluster.{self.status}", host=self.host))
        if said:
            error = said["raised"] or RunFailed(said["traceback"])
            error.__notes__ = [*getattr(error, "__notes__", []), f"{self.host}:\n{said['traceback']}"]
            return None, error
        how = text("cluster.signal", number=-self.status) if self.status < 0 else self.status
        tail = "\n".join(words.splitlines()[-20:])
        return None, RunFailed(text("cluster.status", host=self.host, rank=self.rank, status=how, output=tail))

    def _read(self) -> dict:
        self.result.seek(0)
        said = self.result.read()
        return pickle.loads(said) if said else {}


class Run:
    """Processes under way on the hosts: made by :meth:`Cluster.start`."""

    def __init__(self, number: int, members: list[Member], function: bool, deadline: float, stop):
        self.number, self.members, self.function = number, members, function
        self._until, self._stop = time.monotonic() + deadline, stop
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._shown, self._left = 0, {id(member) for member in members}

    # ---- what the cluster's thread tells

    def heard(self, member: Member, said: bytes) -> None:
        """Keep and show what a process has printed."""
        member.keep(said)
        whole, newline, rest = (member.open_line + said).rpartition(b"\n")
        if len(rest) > KEPT:  # a line without an end is shown in pieces
            whole, newline, rest = whole + newline, rest, b""
        member.open_line = rest
        self._show(member.host, whole + newline)

    def _show(self, host: str, said: bytes) -> None:
        with self._changed:
            if self._shown < SHOWN:
                self._lines += [f"{host} │ {line}\n" for line in said.decode(errors="replace").splitlines()]
                self._shown += len(said)
                if self._shown >= SHOWN:
                    self._lines.append(text("cluster.flood", bytes=SHOWN) + "\n")
            self._changed.notify_all()

    def ended(self, member: Member, status: "int | str") -> None:
        """Note how a process has ended."""
        self._show(member.host, member.open_line)
        with self._changed:
            if member.status is None:
                member.status = status
            self._left.discard(id(member))
            self._changed.notify_all()

    # ---- what the user asks

    @property
    def over(self) -> bool:
        """Whether all its processes have ended."""
        return not self._left

    def results(self) -> list:
        """Wait for all of them, and show meanwhile what they say.

        Returns
        -------
        list
            What the function returned on each, or an :class:`Ended` for each program, in the order of ranks.

        Raises
        ------
        HostLost
            If a host was lost.
        RunFailed
            If a program or function failed, or was not done by the deadline: the first that did is named. Those of an
            error's own type are raised as they are, where a function raised one.
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
    """The error to raise: that of a lost host rather than those who missed it; a function's own as it is."""
    from d2lps.carriers.rendezvous import RankLost

    order = sorted(failed, key=lambda error: (not isinstance(error, HostLost), isinstance(error, RankLost)))
    first = order[0]
    if isinstance(first, RunFailed):
        first.results = results
    return first
