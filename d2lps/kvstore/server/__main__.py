"""A server in a process of its own: ``python -m d2lps.kvstore.server``.

Its parent sends the settings over a line, and it answers with its address. It stays until every worker has said goodbye
or is lost, also if its parent ends before. The secret is in the environment or in a file, never among the arguments.
"""

import gc
import os
import signal
import threading
import time
from contextlib import suppress

import torch

from d2lps.kvstore.child import line_to_parent, receive, send
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.shard_store import ShardStore
from d2lps.kvstore.wire.handshake import read_secret
from d2lps.kvstore.wire.tls import Certificates


def main() -> None:
    """Run a server."""
    torch.set_num_threads(1)
    # Ten thousand keys are as many objects: to search all objects of torch for garbage each time would halve the speed.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    parent = line_to_parent()
    spec = receive(parent)
    address = spec["address"] if isinstance(spec["address"], str) else tuple(spec["address"])
    certificates = spec.get("tls") and Certificates(*spec["tls"])
    try:
        store, secret = ShardStore(**spec["store"]), read_secret() or b""
        server = Server(
            store, address, secret=secret, run=spec["run"], number=spec["number"], certificates=certificates
        )
    except Refused as error:
        send(parent, {"refused": str(error)})
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with suppress(ConnectionError):  # its parent may have ended; other workers may still come
        send(parent, {"address": server.address})
    seen = time.monotonic()
    while not ended.wait(0.05) and store.live:
        if server.busy or not parent.poll():  # the parent sends nothing more; poll() is true at its end
            seen = time.monotonic()
        elif time.monotonic() - seen > store.deadline:
            break  # its parent has ended, and no worker is here
    server.close()
    if isinstance(address, str):
        with suppress(OSError):  # the last server of this folder removes it
            os.rmdir(os.path.dirname(address))


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread that still adds would be ended by Python in the midst of torch, which aborts the process
