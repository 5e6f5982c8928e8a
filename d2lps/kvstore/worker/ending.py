"""How a worker's store ends: of itself, or because a server counts the worker as lost."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from d2lps.kvstore.errors import WorkerLost
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.worker.client import ServerClient


def end(
    process: int, clients: Sequence[ServerClient], pool: ThreadPoolExecutor, started: Sequence, arena: Arena | None
) -> None:
    """Let go of all that a store has made in ``process``."""
    if os.getpid() != process:
        return  # a child that was forked: the sockets and servers are its parent's
    pool.shutdown(wait=False)
    with ExitStack() as ends:  # of which none is left out where another is interrupted
        for each in reversed([*clients, *started, *filter(None, [arena])]):
            ends.callback(each.close)
        for each in (*clients, *started):  # all hear of it before any is waited for
            each.leave()


def leave_where_lost(rank: int, clients: Sequence[ServerClient], errors: Sequence[Exception]) -> None:
    """Where one server goes on without worker ``rank``, that leaves the others: they would wait for it in vain."""
    for error in errors:
        if isinstance(error, WorkerLost) and rank in error.ranks:
            for client in clients:
                client.end(error)
