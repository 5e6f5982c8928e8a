"""A server in a process of its own: ``python -m d2lps.kvstore.server``.

Its parent sends the settings over a pipe, and it answers with the names of its replicas. It stays until every worker
has said goodbye or is lost, also if its parent ends before. The secret is in the environment or in a file, never among
the arguments.
"""

import gc
import os
import signal
import threading
import time
from contextlib import suppress

import torch

from d2lps.kvstore.child import pipe_to_parent, receive, send
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.server.register import joined
from d2lps.kvstore.server.server import Host
from d2lps.kvstore.wire.handshake import read_secret

ALONE = 0.5  # seconds without its parent and any other, after which one that holds nothing ends


def main() -> None:
    """Run a server."""
    torch.set_num_threads(1)
    # Ten thousand keys are as many objects: to search all objects of torch for garbage each time would halve the speed.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    parent = pipe_to_parent()
    spec = receive(parent)
    folder, register = spec["folder"], joined(spec["run"]) if spec["replicas"] else None
    try:
        run = {"run": spec["run"], "secret": read_secret() or b""}
        where = {"folder": folder, "address": spec["address"]}
        host = Host(spec["number"], spec["servers"], spec["store"], register, run, **where)
    except Refused as error:
        send(parent, {"refused": str(error)})
        return
    ended = threading.Event()
    for polite in (signal.SIGTERM, signal.SIGINT):
        signal.signal(polite, lambda *_: ended.set())
    with suppress(ConnectionError):  # its parent may have ended; other workers may still come
        send(parent, {"names": list(host.names.items())})
    seen = time.monotonic()
    while not ended.wait(0.05) and host.needed:
        if host.busy or not parent.poll():  # the parent sends nothing more; poll() is true at its end
            seen = time.monotonic()
        elif time.monotonic() - seen > (host.deadline if host.member else ALONE):
            break  # its parent has ended, and no worker is here
    host.close()
    if folder and parent.poll():  # else its parent may need the folder for the server that replaces this one
        with suppress(OSError):  # the last server of this folder removes it
            os.rmdir(folder)


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread that still adds would be ended by Python in the midst of torch, which aborts the process
