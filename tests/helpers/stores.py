"""The workers of a store, side by side."""

import threading
import time

from d2lps.kvstore import KVError, Refused
from d2lps.kvstore.calls import Call
from d2lps.kvstore.server.session import WorkerSession


def each(stores, work, *arguments, patience=60):
    """Return the result or error of ``work(store, *arguments)`` for each worker, each in a thread of its own."""
    found = [None] * len(list(stores))

    def one(store):
        try:
            found[store.rank] = work(store, *arguments)
        except KVError as error:
            found[store.rank] = error

    threads = [threading.Thread(target=one, args=(store,), daemon=True) for store in stores]
    for thread in threads:
        thread.start()
    until = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return found


def until_whole(servers) -> None:
    """Until each slot has a backup again."""
    until = time.monotonic() + 10
    while any(len(view.members) < 2 for view in servers.views):
        assert time.monotonic() < until, servers.views
        time.sleep(0.01)


class Function(Call):
    """A call of a store that does what a test wants."""

    def __init__(self, work, *arguments):
        super().__init__()
        self.function, self.arguments = work, arguments

    def work(self):
        return self.function(*self.arguments)


def interrupted_as_it_was_done(store, call) -> None:
    """As Ctrl-C that comes when ``call`` was done and has not returned."""
    call.missed(True)


def refuse_first_push(monkeypatch, rank):
    """Let every server refuse the first push of this worker."""
    refused, admit = set(), WorkerSession._admit

    def refusing(session, frame):
        if session.rank == rank and session.number not in refused:
            refused.add(session.number)
            raise Refused(f"the first push of worker {rank}")
        return admit(session, frame)

    monkeypatch.setattr(WorkerSession, "_admit", refusing)
