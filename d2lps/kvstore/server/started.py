"""A server in a process of its own, started and let go of by a worker."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

from d2lps.kvstore.errors import Refused, ServerLost


class Started:
    """A server process that this one has started.

    ``told``: ``table`` (what :class:`~d2lps.kvstore.server.rounds.ShardStore` takes), ``address``, ``run``, ``number``,
    ``tls`` (:class:`~d2lps.kvstore.wire.tls.Certificates`, or None).
    """

    def __init__(self, told: dict, seconds: float):
        self.number = told["number"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "d2lps.kvstore.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the worker
        )
        self._told, self._until = told, time.monotonic() + seconds
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def address(self) -> "tuple[str, int] | str":
        """Where it listens. Raises Refused with its own words, or ServerLost."""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(max(0.1, self._until - time.monotonic()))
        try:
            found = json.loads(said[0])
        except (IndexError, ValueError):
            self.process.kill()
            raise ServerLost(f"server {self.number} did not start", (self.number,)) from None
        if "refused" in found:
            raise Refused(found["refused"])
        return tuple(found["address"]) if isinstance(found["address"], list) else found["address"]

    def close(self, seconds: float = 5.0) -> None:
        """Let go of it: it ends by itself when its workers have gone. Those who started it wait a moment for that."""
        self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        finally:
            self.process.stdout.close()
        if isinstance(self._told["address"], str):  # which it has removed, unless it was killed
            with suppress(OSError):
                os.unlink(self._told["address"])
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._told["address"]))

    def end(self) -> None:
        """Stop it, whoever is connected."""
        self.process.terminate()
        self.close()
