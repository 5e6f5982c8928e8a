"""What is pulled while a load ends: each key is of before it or of after it, with all its parts."""

import threading

import pytest
import torch
from helpers.stores import each

from d2lps.kvstore import cluster
from d2lps.kvstore.server.session import loads_of
from d2lps.kvstore.server.shard import Snapshot
from d2lps.kvstore.wire import Frame, Op
from d2lps.kvstore.wire.frames import LOAD
from d2lps.kvstore.worker import dist
from d2lps.kvstore.worker.pulls import of_one_load

ROWS, WIDTH = 400, 10


def begin(worker, path):
    worker.init(["w", "v"], [torch.zeros(ROWS, WIDTH), torch.zeros(3)])
    worker.set_optimizer("sgd", lr=-1.0)
    worker.save(path)
    worker.push(["w", "v"], [torch.ones(ROWS, WIDTH), torch.ones(3)])
    worker.barrier()


def pull(worker, out):
    worker.pull(["w", "v"], out=[out, torch.empty(3)])


def some_rows(worker, out):
    worker.row_sparse_pull("w", out=out, row_ids=torch.arange(ROWS))


@pytest.mark.parametrize("how", [pull, some_rows])
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_no_key_is_pulled_in_part_of_before_a_load(kind, replicas, how, monkeypatch, tmp_path):
    """Server 0 has heard that the load counts, and server 1 has not, when worker 1, about to say so, too, pulls."""
    options = {"deadline": 8.0, "placement": {"large": 1000}, "replicas": replicas}
    with cluster(kind, 2, 2, **options) as workers:
        assert each(workers, begin, tmp_path / "file") == [None] * 2
        some_heard, goes_on, again = threading.Event(), threading.Event(), threading.Event()

        def tells(op, metadata, each_its, until, ask_all=workers[0]._ask_all):
            workers[0]._ask(workers[0].clients[:1], op, metadata | each_its[0])
            some_heard.set()
            assert goes_on.wait(20)
            ask_all(op, metadata, each_its, until)

        def meets(what, *arguments, meet=workers[1]._meet):
            note = meet(what, *arguments)
            assert what != "load" or goes_on.wait(20)
            return note

        asked = []

        def asks(request, ask=workers[1].clients[1].ask):
            if request.op in (Op.PULL, Op.ROWS):
                asked.append(request)
                len(asked) > 1 and again.set()
            return ask(request)

        out = torch.full((ROWS, WIDTH), -1.0)
        puller = threading.Thread(target=how, args=(workers[1], out))
        restore = workers[0]._restore

        def restored(*arguments):
            staged = restore(*arguments)
            monkeypatch.setattr(workers[0], "_ask_all", tells)
            return staged

        monkeypatch.setattr(workers[0], "_restore", restored)
        monkeypatch.setattr(workers[1], "_meet", meets)
        monkeypatch.setattr(workers[1].clients[1], "ask", asks)
        loading = threading.Thread(target=each, args=(workers, lambda worker: worker.load(tmp_path / "file")))
        loading.start()
        assert some_heard.wait(20)
        puller.start()
        assert again.wait(20)
        goes_on.set()
        for thread in (puller, loading):
            thread.join(20)
        assert out.unique().tolist() == [0.0]


@pytest.mark.parametrize("given", ["out", "values"])
def test_a_pushpull_whose_values_are_of_two_loads_pulls_once_more_and_counts_once(given, monkeypatch):
    with cluster("dist_sync", 1, 2, placement={"large": 1000}) as (worker,):
        worker.init("w", torch.zeros(4000))
        worker.set_optimizer("sgd", lr=-1.0)
        told = iter([False, True])
        monkeypatch.setattr(dist, "of_one_load", lambda places, answers: next(told))
        value = torch.full((4000,), 3.0)
        out = value if given == "values" else torch.empty(4000)
        worker.pushpull("w", value, out=out)
        assert next(told)  # the first answers were of two
        assert out.unique().tolist() == [3.0]


@pytest.mark.parametrize(
    ("loads", "whole"),
    [
        (([0, 0], [0, 0]), True),  # nothing was loaded
        (([2, 2], [2, 2]), True),
        (([1, 1], [2, 2]), False),
        (([0, 0], [1, 1]), False),
        (([1, 2], [1, 2]), True),  # each key of one
        (([2, 0], [2, 2]), False),
        (([256, 256], [1, 1]), True),  # as far as can be told
        (([255, 255], [256, 256]), False),
    ],
)
def test_all_parts_of_a_key_are_of_one_load(loads, whole):
    """As servers say it, in the header of a frame or in its table."""
    answers = []
    for each_its in loads:
        load, metadata = loads_of([Snapshot(torch.zeros(1), 0, 0, load) for load in each_its])
        answers.append(Frame(Op.DATA, 1, [], metadata or {}, 4, load << LOAD))
    assert of_one_load([(0, 1), (0, 1)], answers) is whole
