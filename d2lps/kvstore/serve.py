"""A server in a process of its own: ``python -m d2lps.kvstore.serve``, told what to be in one line on its input.

It says where it listens in one line on its output, and stays until every worker has said goodbye or is lost, whatever
becomes of the process that started it. The secret is in the environment or in a file, never among the arguments.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from d2lps.kvstore.errors import Refused, ServerLost


class Started:
    """A server process that this one has started.

    ``told``: ``table`` (what :class:`~d2lps.kvstore.rounds.Table` takes), ``address``, ``run``, ``number``, ``tls``
    (:class:`~d2lps.kvstore.tls.Certificates`, or None).
    """

    def __init__(self, told: dict, seconds: float):
        self.number = told["number"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "d2lps.kvstore.serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for the worker
        )  # fmt: skip
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


def main() -> None:
    """Be a server."""
    import torch

    from d2lps.kvstore import handshake
    from d2lps.kvstore.rounds import Table
    from d2lps.kvstore.server import Server
    from d2lps.kvstore.tls import Certificates

    torch.set_num_threads(1)
    # Ten thousand keys are as many objects: to look through all of torch's for garbage, again and again, costs half.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    told = json.loads(sys.stdin.readline())
    address = told["address"] if isinstance(told["address"], str) else tuple(told["address"])
    try:
        table = Table(**told["table"])
        server = Server(table, address, secret=handshake.secret_given() or b"", run=told["run"], number=told["number"],
                        certificates=told.get("tls") and Certificates(*told["tls"]))  # fmt: skip
    except Refused as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print(json.dumps({"address": server.address}), flush=True)
    alone = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), alone.set()), daemon=True).start()
    seen = time.monotonic()
    while not ended.wait(0.05) and table.live:
        if server.busy or not alone.is_set():
            seen = time.monotonic()
        elif time.monotonic() - seen > table.deadline:
            break  # who started it has gone, and nobody else is here
    server.close()
    if isinstance(address, str):
        with suppress(OSError):  # the last server of this folder removes it
            os.rmdir(os.path.dirname(address))


if __name__ == "__main__":
    main()
