"""Worker 0 at work for all, who wait for it at a barrier: they hear that it is on its way."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from d2lps.kvstore.errors import KVError
from d2lps.kvstore.wire.frames import Op
from d2lps.kvstore.worker.client import Request, ServerClient


@contextmanager
def coming(clients: Sequence[ServerClient], name: str, number: int) -> Iterator[None]:
    """While what is in it goes on, say now and then that this worker will come to that barrier."""
    over, metadata = threading.Event(), {"name": name, "round": number, "coming": True}

    def say() -> None:
        while not over.wait(clients[0].deadline / 4):
            for client in clients:
                with suppress(KVError):
                    client.ask(Request(Op.BARRIER, metadata=metadata))

    with suppress(RuntimeError):  # there is no thread left: they wait for one deadline
        threading.Thread(target=say, daemon=True, name="d2lps on its way").start()
    try:
        yield
    finally:
        over.set()
