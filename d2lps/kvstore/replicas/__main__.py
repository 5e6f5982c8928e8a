"""A server and its replicas in a process: ``python -m d2lps.kvstore.replicas``.

Its parent sends the settings, and it answers with the names of its replicas. It stays until every worker has said
goodbye or is lost.
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
from d2lps.kvstore.replicas.host import Host
from d2lps.kvstore.replicas.lines import Peers
from d2lps.kvstore.replicas.register import joined
from d2lps.kvstore.wire.handshake import read_secret
from d2lps.kvstore.wire.tls import Certificates

ALONE = 0.5  # seconds without its parent and any other, after which one that holds nothing ends


def main() -> None:
    """Be a server."""
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    parent = line_to_parent()
    spec = receive(parent)
    try:
        certificates = spec["tls"] and Certificates(*spec["tls"])
        peers = Peers(spec["run"], read_secret() or b"", certificates)
        where = {"folder": spec["folder"], "address": spec["address"]}
        host = Host(spec["number"], spec["servers"], spec["store"], joined(spec["run"]), peers, **where)
    except Refused as error:
        send(parent, {"refused": str(error)})
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with suppress(ConnectionError):  # whoever started it may have gone; the others may still come
        send(parent, {"names": list(host.names.items())})
    seen = time.monotonic()
    while not ended.wait(0.05) and host.needed:
        if host.busy or not parent.poll():  # nothing more comes from there but its end
            seen = time.monotonic()
        elif time.monotonic() - seen > (spec["store"]["deadline"] if host.member else ALONE):
            break  # who started it has gone, and nobody else is here
    host.close()
    if spec["folder"]:
        with suppress(OSError):  # the last server of this folder removes it
            os.rmdir(spec["folder"])


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread that still adds would be ended by Python in the midst of torch, which aborts the process
