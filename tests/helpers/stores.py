"""The workers of a store, side by side."""

import threading
import time

import torch

from d2lps.kvstore import KVError, Refused
from d2lps.kvstore.calls import Call
from d2lps.kvstore.server.session import WorkerSession
from helpers.waits import LIVE, soon


def each(stores, work, *arguments, patience=LIVE):
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


def aside(work, *arguments) -> tuple[threading.Thread, list]:
    """Begin ``work`` in a thread; give that thread, and a list that will contain the result."""
    found: list = []
    thread = threading.Thread(target=lambda: found.append(work(*arguments)), daemon=True)
    thread.start()
    return thread, found


def raised(call, *arguments) -> KVError | None:
    """Return the error of the store that a call raises."""
    try:
        call(*arguments)
    except KVError as error:
        return error


def until_whole(servers) -> None:
    """Wait until each slot has a backup again."""
    soon(lambda: all(len(view.members) == 2 for view in servers.views))


def full(value, size=3) -> torch.Tensor:
    return torch.full((size,), float(value))


def pulled(store, key="w", size=3) -> list[float]:
    """Return the different elements that a pull gets."""
    store.pull(key, out=(out := torch.empty(size)))
    return out.unique().tolist()


def dies(store) -> None:
    """Have a worker say nothing more, as a process that is killed."""
    for client in store.clients:
        client._open = False
        client._channel.close()


def interrupt(store) -> None:
    """Interrupt the call that runs, whose caller no longer waits."""
    store._calls.current.interrupted = True
    store._calls.current.stop()


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
