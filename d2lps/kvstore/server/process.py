"""A server in a process of its own, which a worker starts and stops."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import Refused, ServerLost


class ServerProcess(ChildProcess):
    """A server process that this process has started.

    ``spec``: ``store`` (the arguments of :class:`~d2lps.kvstore.ShardStore`), ``address``, ``run``, ``number``,
    ``tls`` (:class:`~d2lps.kvstore.wire.tls.Certificates`, or None). It has ``seconds`` to report its address;
    ``holds``: descriptors that keep the folder of its socket.
    """

    module = "d2lps.kvstore.server"

    def __init__(self, spec: dict, seconds: float, holds: Sequence[int] = ()):
        super().__init__(self.module, keeps=holds)
        self.number, self._path, self._until = spec["number"], spec["address"], time.monotonic() + seconds
        self._moment = min(5.0, max(1.0, spec["store"].get("deadline", 5.0)))
        with suppress(ConnectionError):  # address() finds out that it has ended
            send(self.line, spec)

    def address(self) -> "tuple[str, int] | str":
        """Return its address. Raises the Refused of the server, or ServerLost."""
        address = self._begun()["address"]
        return tuple(address) if isinstance(address, list) else address

    def _begun(self) -> dict:
        """Return its first message."""
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
        """Let go of it: it ends when its workers have gone."""
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
        if isinstance(self._path, str):  # it has removed that, unless it was killed
            with suppress(OSError):
                os.unlink(self._path)
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._path))

    def stop(self) -> None:
        """Stop it, also if workers are connected."""
        self.process.terminate()
        self.close()
