"""The workers of a store, side by side."""

import threading
import time

from d2lps.kvstore import KVError


def each(stores, work, *arguments, patience=60):
    """What ``work(store, *arguments)`` returns or raises for each worker, each in a thread of its own."""
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


def interrupted_as_it_was_done(store, what, said) -> None:
    """As Ctrl-C is that comes when a call of all workers was done, and has not returned."""
    store._calls.run((), store._not_heard, what, said, True)
