"""How long a save stops training, in the background and without, on this machine.

2 workers and 2 servers in processes of their own; 64 MB of weights in 4 keys, and as much momentum. In turns, B and b:

blocking    seconds of ``store.save(path)``, the slowest worker's, as all wait for it
stall       seconds of ``store.save(path, background=True)``, likewise; ÷ blocking
next        seconds that the step after it takes longer: in it a copy is made of what the optimizer remembers
all         seconds that training is longer until the file is there: the stall, and by how much all steps meanwhile take
            longer than as many without a save. Processors that have something else to do meanwhile are in it
"""

import os
import statistics
import tempfile

import torch
import torch.distributed as dist

from benchmarks.common import Run, on_ranks, timed
from d2lps import kvstore

KEYS = 4


def saves(options: dict, times: int, elements: int) -> list[tuple[float, float, float, float, float]]:
    """Of each turn: seconds of a blocking save and of a call in the background; of the next step, more; of all, more;
    of a step.
    """
    dist.init_process_group("gloo")
    keys, found = list(range(KEYS)), []
    given, out = [torch.ones(elements) for _ in keys], [torch.empty(elements) for _ in keys]

    with (
        tempfile.TemporaryDirectory() as folder,
        kvstore.create("dist_sync", servers=2, joining=120.0, **options) as store,
    ):
        path = os.path.join(folder, "saved")

        def step() -> None:
            store.pushpull(keys, given, out=out)

        store.init(keys, given)
        store.set_optimizer("sgd", lr=0.01, momentum=0.9)
        for turn in range(2 + times):
            usual = [timed(step) for _ in range(5)]
            blocking = timed(lambda: store.save(path))
            timed(step)
            said = []
            stall = timed(lambda said=said: said.append(store.save(path, background=True)))
            meanwhile, over = [], torch.zeros(1)
            while not over.item():
                meanwhile.append(timed(step))
                over[0] = said[0].done if dist.get_rank() == 0 else 0
                dist.broadcast(over, 0)
            said[0].wait()
            one = statistics.median(usual)
            if turn >= 2:
                found.append((blocking, stall, meanwhile[0] - one, stall + sum(meanwhile) - one * len(meanwhile), one))
    return found


def stall(run: Run) -> None:
    for options in ({}, {"transport": "tcp"}, {"replicas": 1})[: 1 if run.quick else 3]:
        found = on_ranks(2, saves, options, *((1, 10_000) if run.quick else (10, 4_000_000)))
        blocking, stalled, following, longer, step = (statistics.median(each) for each in zip(*found, strict=True))
        figure = {
            "options": options,
            "blocking ms": round(1e3 * blocking),
            "stall ms": round(1e3 * stalled, 1),
            "stall ÷ blocking": round(statistics.median(each[1] / each[0] for each in found), 3),
            "next step, more ms": round(1e3 * following),
            "all more ms": round(1e3 * longer),
            "step ms": round(1e3 * step),
        }
        run.figures.append(figure)
        print(figure, flush=True)
