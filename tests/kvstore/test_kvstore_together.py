"""Collective calls, calls of worker 0 for all, and the leftovers of a cluster whose interpreter ends."""

import subprocess
import sys
import threading
import time

import pytest
import torch
from helpers.stores import each

from d2lps import kvstore
from d2lps.kvstore import KVError, ServerLost, Timeout, checkpoint
from d2lps.kvstore.wire import Op


def late_barriers(server):
    """How often a worker's deadline is over at a barrier of ``server``: a list that grows."""
    wait, late = server.store.wait_at, []

    def asked(*arguments, **options):
        try:
            return wait(*arguments, **options)
        except Timeout as error:
            late.append(error)
            raise

    server.store.wait_at = asked
    return late


@pytest.mark.slow
def test_a_file_that_takes_longer_than_the_deadline_is_waited_for(monkeypatch, tmp_path):
    """It was good, and the others said that worker 0 had not come."""
    with kvstore.cluster(workers=2, deadline=0.5) as workers:
        each(workers, lambda worker: worker.init("w", torch.ones(3)))
        write, late = checkpoint.write, late_barriers(workers.servers[0])

        def slowly(*arguments):
            until = time.monotonic() + 60
            while len(late) < 3:
                assert time.monotonic() < until, "the other one does not wait"
                time.sleep(0.01)
            write(*arguments)

        monkeypatch.setattr(checkpoint, "write", slowly)
        assert each(workers, lambda worker: worker.save(tmp_path / "file")) == [None, None]
        assert each(workers, lambda worker: worker.load(tmp_path / "file")) == [None, None]


@pytest.mark.slow
def test_nobody_waits_longer_than_the_deadline_for_worker_0_that_does_nothing():
    with kvstore.cluster(workers=2, deadline=0.5) as workers:
        each(workers, lambda worker: worker.init("w", torch.ones(3)))
        late = late_barriers(workers.servers[0])
        with pytest.raises(Timeout, match="worker 0 missing"):
            workers[1].save("nowhere")
        assert len(late) == 1


def test_an_optimizer_that_worker_0_does_not_tell_all_servers_is_to_be_set_again(monkeypatch):
    """One has it and one has not: no call goes on with that, until it is set on all."""
    with kvstore.cluster(workers=3, servers=2, lost="drop", deadline=5.0) as workers:
        each(workers, lambda worker: worker.init("w", torch.zeros(1 << 18)))
        first = workers[0].clients[1]
        ask = first.ask

        def gone(request):
            if request.op == Op.OPTIMIZER:
                raise ServerLost("worker 0 is no more", (1,))
            return ask(request)

        with monkeypatch.context() as patch:
            patch.setattr(first, "ask", gone)
            errors = each(workers, lambda worker: worker.set_optimizer("sgd", lr=-1.0))
        assert isinstance(errors[0], ServerLost) and all(isinstance(error, KVError) for error in errors)
        errors = each(workers, lambda worker: worker.push("w", torch.ones(1 << 18)))
        assert all("the last set_optimizer did not end on all workers" in str(error) for error in errors)
        assert each(workers, lambda worker: worker.set_optimizer("sgd", lr=-1.0)) == [None] * 3
        assert [server.store.updates.rule for server in workers.servers] == ["sgd", "sgd"]
        each(workers, lambda worker: worker.pushpull("w", torch.ones(1 << 18)))


AT_WORK = """
import atexit, threading
atexit.register(lambda: print([one.name for one in threads._started if one.is_alive()]))  # the last thing that is done
import torch
from d2lps import kvstore
from d2lps.kvstore import threads
cluster, begun = kvstore.cluster(workers=2, servers=2), threading.Barrier(3)
def work(store):
    store.init("w", torch.zeros(300_000))
    begun.wait(60)
    try:
        while True:
            store.pushpull("w", torch.ones(300_000), out=torch.empty(300_000))
    except kvstore.KVError:
        pass
for store in cluster:
    threading.Thread(target=work, args=(store,), daemon=True).start()
begun.wait(60)
"""


@pytest.mark.slow
def test_at_the_end_of_an_interpreter_the_threads_of_a_cluster_end_first():
    """Python ends them where they are: in the midst of torch, which aborts the process, once in four times."""
    ended = subprocess.run([sys.executable, "-c", AT_WORK], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


def test_a_cluster_may_be_closed_by_two_threads_at_once():
    workers, heard = kvstore.cluster(workers=2, servers=2), []

    def close():
        try:
            workers.close()
        except Exception as error:
            heard.append(error)

    closers = [threading.Thread(target=close) for _ in range(4)]
    [one.start() for one in closers]
    [one.join(30) for one in closers]
    assert heard == [] and not any(one.is_alive() for one in closers)
