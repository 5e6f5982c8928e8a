"""A worker that leaves when all is done fails no other wait."""

import threading
import time
from contextlib import ExitStack

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import cluster


@pytest.mark.parametrize("kind", ["dist_async", "dist_ssp"])
def test_a_pull_that_waits_for_the_backup_does_not_wait_for_a_worker_that_leaves(kind):
    with cluster(kind, 2, 2, replicas=1) as servers:
        each(servers, lambda store: store.init("w", torch.zeros(3)))
        each(servers, lambda store: store.set_optimizer("sgd", lr=-1.0))
        each(servers, lambda store: store.push("w", torch.ones(3)))
        each(servers, lambda store: store.barrier())
        until_whole(servers)
        (slot,) = [view for view, store in enumerate(servers[0].clients) if "w" in [*store.keys]]
        store = servers.servers[servers.views[slot].members[0]].replicas[slot].store
        out, errors = torch.empty(3), []

        def pull():
            try:
                servers[0].pull("w", out=out)
            except Exception as error:
                errors.append(error)

        pulling = threading.Thread(target=pull)
        with ExitStack() as held:
            for line in store.slot._lines.values():
                held.enter_context(line._sending)
            pulling.start()
            until = time.monotonic() + 10
            while not store._pulls:
                assert time.monotonic() < until
                time.sleep(0.001)
            store.lose(1, "it said goodbye", left=True)
        pulling.join(10)
        assert not errors and out.tolist() == [2.0, 2.0, 2.0]
        servers[0].push("w", torch.ones(3))
        servers[0].pull("w", out=out)
        assert out.tolist() == [3.0, 3.0, 3.0]
