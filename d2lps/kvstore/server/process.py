"""A server in a process of its own, which a worker starts and stops; one with replicas is replaced when it ends."""

import glob
import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import KVError, Refused, ServerLost
from d2lps.kvstore.server.register import as_name
from d2lps.messages import text

LOOK, MOST = 0.02, 5.0  # seconds between two looks at it; and at most before another one is started
START, TRIES = 120.0, 3  # seconds that it may take to start on a busy machine; failures in turn until a warning
ALONE = {"servers": 1, "replicas": 0, "folder": None, "address": None, "run": ""}
log = logging.getLogger("d2lps.kvstore.server")


class ServerProcess(ChildProcess):
    """A server process that this process has started.

    ``spec``: ``store`` (the arguments of :class:`~d2lps.kvstore.server.store.SlotStore`) and ``number`` of ``servers``
    with so many ``replicas``; the ``folder`` of its Unix sockets, or the ``address`` of its host; and ``run``. It
    has ``seconds`` to report its names; ``holds``: descriptors that keep the folder.
    """

    def __init__(self, spec: dict, seconds: float, holds: Sequence[int] = ()):
        super().__init__("d2lps.kvstore.server", keeps=holds)
        spec = ALONE | spec
        self.number, self._folder, self._until = spec["number"], spec["folder"], time.monotonic() + seconds
        self._moment = min(5.0, max(1.0, spec["store"].get("deadline", 5.0)))
        with suppress(ConnectionError):  # names() finds out that it has ended
            send(self.pipe, spec)

    def names(self) -> dict[int, tuple]:
        """Return by slot (server, incarnation, address). Raises the Refused of the server, or ServerLost."""
        try:
            answer = receive(self.pipe) if self.pipe.poll(max(0.1, self._until - time.monotonic())) else {}
        except (EOFError, ConnectionError):
            answer = {}
        if "refused" in answer:
            raise Refused(answer["refused"])
        if not answer:
            self.process.kill()
            raise ServerLost(f"server {self.number} did not start", (self.number,))
        return {slot: as_name(name) for slot, name in answer["names"]}

    def kill(self) -> None:
        """Kill the process, as a machine fails."""
        self.process.kill()

    def leave(self) -> None:
        """Release it: it ends when its workers have gone."""
        if not self.pipe.closed:
            self.pipe.close()
            self._until = time.monotonic() + self._moment

    def close(self) -> None:
        """Release it, and wait a moment for its end."""
        self.leave()
        try:
            self.process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
        self.tidy()
        if self._folder:
            with suppress(OSError):
                os.rmdir(self._folder)

    def tidy(self) -> None:
        """Remove its sockets: a process that is killed leaves them."""
        for path in glob.glob(f"{glob.escape(self._folder)}/{self.number}-*") if self._folder else ():
            with suppress(OSError):
                os.unlink(path)

    def stop(self) -> None:
        """Stop it, also if workers are connected."""
        self.process.terminate()
        self.close()


class Keeper:
    """A server process that is replaced when it ends, as long as the store of the worker that started it is open.

    The new one gets its data from the other servers. ``spec``, ``seconds``, ``holds``: as :class:`ServerProcess` takes
    them.
    """

    def __init__(self, spec: dict, seconds: float, holds: Sequence[int] = ()):
        self.number, self._spec, self._seconds = spec["number"], spec, seconds
        self._holds = [os.dup(descriptor) for descriptor in holds]
        self._ending = threading.Event()
        self.process = ServerProcess(spec, seconds, self._holds)
        self._begun = True

    def names(self) -> dict[int, tuple]:
        """Do as :meth:`ServerProcess.names`; from then on the process is replaced when it ends."""
        names = self.process.names()
        threading.Thread(target=self._watch, daemon=True, name=f"d2lps keeper of server {self.number}").start()
        return names

    def kill(self) -> None:
        """Kill the process, as a machine fails."""
        self.process.kill()

    def _watch(self) -> None:
        pause, failed, since, reason = LOOK, 0, float("-inf"), ""
        while not self._ending.wait(LOOK):
            if self.process.process.poll() is None:
                continue
            self.process.tidy()
            served = self._begun and time.monotonic() - since > MOST
            # A process that cannot begin is not started again at once.
            pause, failed = (LOOK, 0) if served else (min(2 * pause, MOST), failed + 1)
            if self._ending.wait(pause):
                return
            if failed == TRIES:
                log.warning("%s", text("store.not-replaced", server=self.number, tries=TRIES, why=reason))
            try:
                self._begun = False
                self.process = ServerProcess(self._spec, max(self._seconds, START), self._holds)
                self.process.names()
                self._begun, since, reason = True, time.monotonic(), text("store.ended-again")
            except (KVError, OSError) as error:
                reason = str(error)

    def leave(self) -> None:
        """Release it: it ends when its workers have gone."""
        self._ending.set()
        self.process.leave()

    def close(self) -> None:
        """Release it, and wait a moment for its end."""
        self.leave()
        if self._begun:
            self.process.close()
        else:
            self.process.stop()
        while self._holds:
            os.close(self._holds.pop())

    def stop(self) -> None:
        """Stop it, also if workers are connected."""
        self._ending.set()
        self.process.stop()
        self.close()


def kill(servers: Sequence[ServerProcess | Keeper], owners: Sequence[int], rank: int, number: int) -> None:
    """Kill server ``number``; ``owners``: by server the rank that started it. Refused unless that is this one."""
    require_server(number, len(owners))
    if owners[number] != rank:
        raise Refused(text("store.not-my-server", server=number, rank=rank, owner=owners[number]))
    next(server for server in servers if server.number == number).kill()


def require_server(number: object, servers: int) -> None:
    """Raise Refused unless there is a server with this number among so many."""
    if type(number) is not int or not 0 <= number < servers:
        raise Refused(text("store.no-server", server=repr(number), last=servers - 1))
