"""What has begun on all servers, and that some have not heard of: it is ended before whatever comes next."""

import threading
from contextlib import contextmanager, suppress

import pytest
import torch
from helpers.stores import each

from d2lps.kvstore import Refused, Timeout, checkpoint, cluster
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.wire import Op

SIZE = 4000


class Silent:
    """Server 1 hears nothing of the end of a load, or that an optimizer is taken, while it ``is_silent``."""

    def __init__(self, workers, monkeypatch):
        self.is_silent = True
        for worker in workers:
            monkeypatch.setattr(worker, "_ask_all", self._between(worker, worker._ask_all))

    def _between(self, worker, ask_all):
        def asks(op, metadata, each=None, until=None):
            if self.is_silent and (op == Op.COMMIT or metadata.get("take")):
                worker._ask(worker.clients[:1], op, metadata | (each or [{}])[0])
                raise Timeout("server 1 is silent")
            ask_all(op, metadata, each, until)

        return asks


def begin(worker):
    """Keys on two servers, and an optimizer that adds what is pushed."""
    worker.init(["w", "v"], [torch.zeros(SIZE)] * 2)
    worker.set_optimizer("sgd", lr=-1.0)
    worker.barrier()


@pytest.fixture(params=[0, 1], ids=["alone", "replicas"])
def workers(request):
    options = {"deadline": 4.0, "placement": {"large": 1000}}
    with cluster("dist_sync", 2, 2, replicas=request.param, **options) as stores:
        assert each(stores, begin) == [None] * 2
        yield stores


def pushed(worker):
    """What is there after one more push of each worker."""
    pulled = torch.empty(SIZE)
    worker.pushpull("w", torch.ones(SIZE), out=pulled)
    return pulled.unique().tolist()


def test_an_optimizer_that_some_servers_have_not_taken_is_taken_before_the_next_push(workers, monkeypatch):
    server = Silent(workers, monkeypatch)
    raised = each(workers, lambda worker: worker.set_optimizer("sgd", lr=-100.0))
    assert [str(error) for error in raised] == ["server 1 is silent"] * 2
    with pytest.raises(Timeout, match="server 1 is silent"):
        workers[0].push("w", torch.ones(SIZE))
    server.is_silent = False
    assert each(workers, pushed) == [[200.0]] * 2
    assert [worker.optimizer for worker in workers] == [Optimizer("sgd", {"lr": -100.0})] * 2


def test_a_file_has_the_optimizer_that_some_servers_had_not_taken(workers, monkeypatch, tmp_path):
    server = Silent(workers, monkeypatch)
    each(workers, lambda worker: worker.set_optimizer("adagrad", lr=1.0))
    server.is_silent = False
    assert each(workers, lambda worker: worker.save(tmp_path / "file")) == [None] * 2
    assert checkpoint.read(tmp_path / "file").optimizer.rule == "adagrad"


def test_a_load_that_some_servers_have_not_heard_of_is_ended_before_another_optimizer(workers, monkeypatch, tmp_path):
    """What is said late of the load does not undo what came after it."""
    each(workers, lambda worker: worker.save(tmp_path / "file"))
    server = Silent(workers, monkeypatch)
    raised = each(workers, lambda worker: worker.load(tmp_path / "file"))
    assert [str(error) for error in raised] == ["server 1 is silent"] * 2
    server.is_silent = False
    assert each(workers, lambda worker: worker.set_optimizer("sgd", lr=-100.0)) == [None] * 2
    assert each(workers, pushed) == [[200.0]] * 2


def test_while_one_thread_ends_a_load_another_waits_for_that(workers, monkeypatch, tmp_path):
    """Server 0 has what was loaded, and server 1 is about to hear of it: nobody pulls a part of each."""
    each(workers, lambda worker: worker.save(tmp_path / "file"))
    each(workers, lambda worker: worker.push(["w", "v"], [torch.ones(SIZE)] * 2))
    server, worker = Silent(workers, monkeypatch), workers[0]
    each(workers, lambda worker: worker.load(tmp_path / "file"))
    server.is_silent = False
    asked, goes_on = threading.Event(), threading.Event()

    def ask_all(*arguments, ask_all=worker._ask_all):
        asked.set()
        assert goes_on.wait(10)
        ask_all(*arguments)

    monkeypatch.setattr(worker, "_ask_all", ask_all)
    pulled = {key: torch.full((SIZE,), -1.0) for key in ("w", "v")}
    ends, waits = (threading.Thread(target=worker.pull, args=item) for item in pulled.items())
    ends.start()
    assert asked.wait(10)
    waits.start()
    waits.join(0.2)
    goes_on.set()
    for thread in (ends, waits):
        thread.join(10)
    assert [value.unique().tolist() for value in pulled.values()] == [[0.0]] * 2


@pytest.fixture(params=[0, 1], ids=["alone", "replicas"])
def worker(request, tmp_path):
    """One that is alone, and has saved a file."""
    options = {"deadline": 4.0, "placement": {"large": 1000}, "replicas": request.param}
    with cluster("dist_sync", 1, 2, **options) as (store,):
        begin(store)
        store.save(tmp_path / "file")
        yield store


@contextmanager
def ends(worker, monkeypatch, error, said):
    """Within it what worker 0 does for all raises when it is done: before it has said so, or after that."""

    def meets(what, *arguments, meet=worker._meet):
        if what.endswith("begins"):
            return meet(what, *arguments)
        said and meet(what, *arguments)
        raise error("when all is done")

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(worker, "_meet", meets)
        yield


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("error", [Interrupted, Timeout])
def test_who_is_alone_pushes_after_a_load_that_was_not_ended(worker, error, said, monkeypatch, tmp_path):
    """All of it is ready when it is interrupted: the next call does what it says, and so does the same again."""
    for again in (False, True):
        with ends(worker, monkeypatch, error, said):
            worker.load(tmp_path / "file")
        if again:
            worker.load(tmp_path / "file")
        assert pushed(worker) == [1.0]


def test_who_is_alone_hears_of_its_own_save_and_not_of_one_before_it(worker, monkeypatch, tmp_path):
    with ends(worker, monkeypatch, Interrupted, True):
        worker.save(tmp_path / "file")
    with pytest.raises(Refused, match="No such file"):
        worker.save(tmp_path / "none" / "file")
    with ends(worker, monkeypatch, Interrupted, True), suppress(Refused):
        worker.save(tmp_path / "none" / "file")
    worker.save(tmp_path / "other")
