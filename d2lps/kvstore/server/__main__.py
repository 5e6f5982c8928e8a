"""A server in a process of its own: ``python -m d2lps.kvstore.server``, told what to be in one line on its input.

It says where it listens in one line on its output, and stays until every worker has said goodbye or is lost, whatever
becomes of the process that started it. The secret is in the environment or in a file, never among the arguments.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress

from d2lps.kvstore.errors import Refused


def main() -> None:
    """Be a server."""
    import torch

    from d2lps.kvstore.server.rounds import ShardStore
    from d2lps.kvstore.server.server import Server
    from d2lps.kvstore.wire import handshake
    from d2lps.kvstore.wire.tls import Certificates

    torch.set_num_threads(1)
    # Ten thousand keys are as many objects: to look through all of torch's for garbage, again and again, costs half.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    told = json.loads(sys.stdin.readline())
    address = told["address"] if isinstance(told["address"], str) else tuple(told["address"])
    try:
        table = ShardStore(**told["table"])
        server = Server(
            table,
            address,
            secret=handshake.secret_given() or b"",
            run=told["run"],
            number=told["number"],
            certificates=told.get("tls") and Certificates(*told["tls"]),
        )
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
    os._exit(0)  # a thread that still adds would be ended by Python in the midst of torch, which aborts the process
