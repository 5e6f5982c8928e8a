"""Worker 0 is lost in the midst of a load: all servers have what it loaded, or none has."""

import threading
import time

import pytest
import torch
from helpers.stores import each

from d2lps.kvstore import KVError, WorkerLost, cluster
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.wire import Op

SIZE = 4000
pytestmark = pytest.mark.fault("F1", "worker 0 killed in the midst of a load")


def dies(worker) -> None:
    """It says nothing more, as who is killed."""
    for client in worker.clients:
        client._open = False
        client._channel.close()


def saved(store, path):
    store.init("w", torch.ones(SIZE))
    store.save(path)
    store.pushpull("w", torch.full((SIZE,), 5.0))


def pulled(store) -> list[float]:
    store.pull("w", out=(out := torch.empty(SIZE)))
    return out.unique().tolist()


def push(worker) -> None:
    """Where a server has not yet noticed that worker 0 is lost, this waits for the end of the load."""
    worker.push("w", torch.full((SIZE,), 3.0))


def ended(replicas, path, monkeypatch, when):
    """What the workers hear of a load where worker 0 dies as it is about to ask server 1, ``when`` that is true."""
    with cluster(
        workers=3, servers=2, lost="drop", deadline=5.0, placement={"large": 1000}, replicas=replicas
    ) as workers:
        each(workers, saved, path)
        for client in workers[0].clients:

            def asked(request, ask=client.ask, server=client.number):
                if when(server, request):
                    dies(workers[0])
                    raise KVError("killed")
                return ask(request)

            monkeypatch.setattr(client, "ask", asked)
        heard = each(workers, lambda worker: worker.load(path))
        rest = [workers[1], workers[2]]
        values = [pulled(worker) for worker in rest]
        for worker in rest:
            push(worker)
        return heard[1:], values, [pulled(worker) for worker in rest]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_what_one_server_has_taken_the_others_take_too(replicas, monkeypatch, tmp_path):
    heard, values, after = ended(
        replicas, tmp_path / "file", monkeypatch, lambda server, said: said.op == Op.COMMIT and server
    )
    assert heard == [None, None] and values == [[1.0]] * 2 and after == [[6.0]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_what_the_others_do_not_hear_of_counts_nowhere(replicas, monkeypatch, tmp_path):
    def tells(server, said):
        return said.op == Op.BARRIER and said.metadata["name"] == "load" and said.metadata.get("note")

    heard, values, after = ended(replicas, tmp_path / "file", monkeypatch, tells)
    assert all(isinstance(error, WorkerLost) for error in heard) and values == [[15.0]] * 2 and after == [[6.0]] * 2


@pytest.mark.parametrize("replicas", [0, 1])
def test_what_the_others_have_heard_of_is_not_loaded_again(replicas, monkeypatch, tmp_path):
    """Worker 0 is interrupted as it hears that all know; the others go on, and then it gives the same call again."""
    with cluster("dist_async", 2, 2, deadline=5.0, placement={"large": 1000}, replicas=replicas) as workers:

        def begin(worker):
            worker.init("w", torch.ones(SIZE))
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")

        each(workers, begin)
        hear = workers[0]._hear
        with monkeypatch.context() as patched:

            def interrupted(*arguments):
                hear(*arguments)
                raise Interrupted("by Ctrl-C")

            patched.setattr(workers[0], "_hear", interrupted)
            first, second = each(workers, lambda worker: worker.load(tmp_path / "file"))
        assert isinstance(first, Interrupted) and second is None
        workers[1].push("w", torch.full((SIZE,), 3.0))
        workers[0].load(tmp_path / "file")
        assert each(workers, pulled) == [[4.0]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_of_another_thread_drops_nothing_that_counts(replicas, monkeypatch, tmp_path):
    """Workers have heard of the load, and worker 0 is lost; other threads of theirs push to what is loaded."""
    with cluster(
        "dist_async", 3, 2, lost="drop", deadline=5.0, placement={"large": 1000}, replicas=replicas
    ) as workers:

        def begin(worker):
            worker.init(["w", "x"], [torch.ones(SIZE), torch.ones(SIZE)])
            worker.set_optimizer("sgd", lr=-1.0)
            worker.save(tmp_path / "file")
            worker.push("w", torch.full((SIZE,), 5.0))
            worker.barrier()

        each(workers, begin)

        def live():
            at = workers.servers[1]
            return (at.replicas[1] if replicas else at).store.live

        heard, pushing = threading.Barrier(2), []

        def tells(self, *arguments, ask=workers[0]._ask_all):
            dies(workers[0])
            raise KVError("killed")

        monkeypatch.setattr(workers[0], "_ask_all", tells)
        for worker in (workers[1], workers[2]):

            def hears(what, *arguments, worker=worker, hear=worker._hear):
                said = hear(what, *arguments)
                heard.wait(10)
                pushing.append(threading.Thread(target=worker.push, args=("x", torch.ones(SIZE))))
                pushing[-1].start()
                until = time.monotonic() + 3
                while 0 in live() and time.monotonic() < until:
                    time.sleep(0.01)
                time.sleep(0.2)
                return said

            monkeypatch.setattr(worker, "_hear", hears)
        found = each(workers, lambda worker: worker.load(tmp_path / "file"))
        for thread in pushing:
            thread.join(10)
        assert found[1:] == [None, None]
        assert [pulled(worker) for worker in (workers[1], workers[2])] == [[1.0]] * 2
        workers[1].pull("x", out=(out := torch.empty(SIZE)))
        assert out.unique().tolist() == [3.0]
