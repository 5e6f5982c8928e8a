"""A server in a process of its own, started and let go of by a worker."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import Refused, ServerLost


class ServerProcess(ChildProcess):
    """A server process that this one has started.

    ``spec``: ``store`` (what :class:`~d2lps.kvstore.ShardStore` takes), ``address``, ``run``, ``number``,
    ``tls`` (:class:`~d2lps.kvstore.wire.tls.Certificates`, or None). It has ``seconds`` to say where it listens, and
    ``holds`` the folder of its socket.
    """

    module = "d2lps.kvstore.server"

    def __init__(self, spec: dict, seconds: float, holds: Sequence[int] = ()):
        super().__init__(self.module, keeps=holds)
        self.number, self._path, self._until = spec["number"], spec["address"], time.monotonic() + seconds
        self._moment = min(5.0, max(1.0, spec["store"].get("deadline", 5.0)))
        with suppress(ConnectionError):  # that it has ended is heard when its address is asked for
            send(self.line, spec)

    def address(self) -> "tuple[str, int] | str":
        """Where it listens. Raises Refused with its own words, or ServerLost."""
        address = self._begun()["address"]
        return tuple(address) if isinstance(address, list) else address

    def _begun(self) -> dict:
        """What it says when it has begun."""
        try:
            answer = receive(self.line) if self.line.poll(max(0.1, self._until - time.monotonic())) else {}
        except (EOFError, ConnectionError):
            answer = {}
        if "refused" in answer:
            raise Refused(answer["refused"])
        if not answer:
            self.process.kill()
            raise ServerLost(f"server {self.number} did not start", (self.number,))
        return answer

    def leave(self) -> None:
        """Let go of it: it ends by itself when its workers have gone."""
        if not self.line.closed:
            self.line.close()
            self._until = time.monotonic() + self._moment

    def close(self) -> None:
        """Let go of it, and wait a moment for its end."""
        self.leave()
        try:
            self.process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
        if isinstance(self._path, str):  # which it has removed, unless it was killed
            with suppress(OSError):
                os.unlink(self._path)
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._path))

    def stop(self) -> None:
        """Stop it, whoever is connected."""
        self.process.terminate()
        self.close()
