"""A server process that is replaced when it ends; the new one gets its data from the other servers."""

import glob
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.replicas.register import as_name
from d2lps.kvstore.server.process import ServerProcess
from d2lps.messages import text

LOOK, MOST = 0.02, 5.0  # seconds between two looks at it; and at most before another one is started


class ReplicaProcess(ServerProcess):
    """A server with its replicas in a process of its own: see :mod:`d2lps.kvstore.replicas.__main__`."""

    module = "d2lps.kvstore.replicas"

    def names(self) -> dict[int, tuple]:
        """Return the names of its replicas by slot. Raises Refused, or ServerLost."""
        return {slot: as_name(name) for slot, name in self._begun()["names"]}


class Keeper:
    """Server ``spec["number"]``, as long as the store of the worker that started it is open.

    ``spec``, ``seconds``, ``holds``: as :class:`ReplicaProcess` takes them.
    """

    def __init__(self, spec: dict, seconds: float, holds: Sequence[int]):
        self.number, self._spec, self._seconds = spec["number"], spec, seconds
        self._holds = [os.dup(descriptor) for descriptor in holds]
        self._ending = threading.Event()
        self.process = ReplicaProcess(spec, seconds, self._holds)
        self._begun = True

    def names(self) -> dict[int, tuple]:
        """Return the same as :meth:`ReplicaProcess.names`; from then on the process is replaced when it ends."""
        names = self.process.names()
        threading.Thread(target=self._watch, daemon=True, name=f"d2lps keeper of server {self.number}").start()
        return names

    def kill(self) -> None:
        """End the process abruptly, as a machine that fails."""
        self.process.process.kill()

    def _watch(self) -> None:
        pause = LOOK
        while not self._ending.wait(LOOK):
            if self.process.process.poll() is None:
                continue
            self._tidy()
            if self._ending.wait(pause):
                return
            pause = min(2 * pause, MOST)  # do not restart at once a process that cannot begin
            begun = time.monotonic()
            try:
                self._begun = False
                self.process = ReplicaProcess(self._spec, self._seconds, self._holds)
                self.process.names()
                self._begun = True
            except (KVError, OSError):
                continue
            pause = LOOK if time.monotonic() - begun < MOST else pause

    def _tidy(self) -> None:
        """Remove its sockets: a process that is killed leaves them."""
        for path in glob.glob(f"{self._spec['folder']}/{self.number}-*") if self._spec["folder"] else ():
            with suppress(OSError):
                os.unlink(path)

    def leave(self) -> None:
        """Let go of it: it ends when its workers have gone."""
        self._ending.set()
        self.process.leave()

    def close(self) -> None:
        """Let go of it, and wait a moment for its end."""
        self.leave()
        self.process.close() if self._begun else self.process.stop()
        while self._holds:
            os.close(self._holds.pop())
        if self.process.process.poll() is not None:
            self._tidy()
            with suppress(OSError):
                self._spec["folder"] and os.rmdir(self._spec["folder"])

    def stop(self) -> None:
        """Stop it, also if workers are connected."""
        self._ending.set()
        self.process.stop()
        self.close()


def kill(keepers: Sequence[Keeper], owners: Sequence[int], rank: int, number: object) -> None:
    """End server ``number``; ``owners``: by server the rank that started it. Refused unless that is this one."""
    if type(number) is not int or not 0 <= number < len(owners):
        raise Refused(text("store.no-server", server=repr(number), last=len(owners) - 1))
    if owners[number] != rank:
        raise Refused(text("store.not-my-server", server=number, rank=rank, owner=owners[number]))
    next(keeper for keeper in keepers if keeper.number == number).kill()
