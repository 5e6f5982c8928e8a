"""Emulated hosts: are ways to add up gradients predicted in the right order, and how far are the predictions off?

P29: two processes on each of two and three hosts, at 200 and 400 Mbit/s: ``calibrate`` measures inside and between
hosts, and ``compare`` runs five plans and gloo's own all-reduce. The median error of the plans is to be at most 5 %,
the largest at most 12 %, and their predicted order the measured one, except of pairs that differ by less than 5 %.
"""

from itertools import combinations
from statistics import median

import torch.distributed as dist

from benchmarks.common import Run, busy, processor_time
from d2lps import Processes, aggregate_at, calibrate, cluster, compare, hierarchical, ring, sharded

NEAR = 1.05  # ratio of measured times below which two ways have no order


def ways(hosts: "tuple[tuple[str, ...], ...]") -> dict:
    """Return the plans between the processes of some hosts, each with the sum of all."""
    names = [name for host in hosts for name in host]
    dealt = [name for row in zip(*hosts, strict=True) for name in row]
    return {
        "ring": ring(names),
        "reordered ring": ring(dealt),
        "sharded": sharded(names),
        "hierarchical": hierarchical({host[0]: host for host in hosts}, ring([host[0] for host in hosts])),
        "at rank0": aggregate_at(names, names[0]),
    }


def measured(nbytes: int, repeats: int) -> tuple:
    """Return what a process measured: the figures, and the table."""
    carrier = Processes()
    figures = calibrate(carrier)
    plans = ways(figures.hosts) | {"all_reduce": dist.all_reduce}
    return figures, compare(plans, nbytes, carrier, figures, repeats)


def wrong_pairs(rows: list) -> list[tuple[str, str]]:
    """Return the pairs of ways whose predicted order is not the measured one."""
    wrong = []
    for one, other in combinations(sorted(rows, key=lambda row: row.measured), 2):
        if other.measured > NEAR * one.measured and other.predicted <= one.predicted:
            wrong.append((one.name, other.name))
    return wrong


def p29(run: Run) -> None:
    errors, wrong = [], []
    for hosts, rate in ((2, 200),) if run.quick else ((2, 200), (2, 400), (3, 200), (3, 400)):
        begun = processor_time()
        with cluster.emulated(hosts, gpus_per_host=2, bandwidth=f"{rate} Mbit/s") as emulated:
            arguments = (2_000_000, 3) if run.quick else (12_000_000, 9)
            figures, table = emulated.run(measured, *arguments, per_host=2, deadline=600)[0]
        used = busy(begun)
        print(f"{hosts} hosts, {rate} Mbit/s, {used:.0%} busy\n{figures}\n{table}")
        rows = [row for row in table if row.name != "all_reduce"]  # predicted as the ring that gloo says it is
        errors += [abs(row.error) for row in rows]
        wrong += [(hosts, rate, *pair) for pair in wrong_pairs(rows)]
        for row in table:
            run.note(f"P29 {hosts} hosts, {rate} Mbit/s, {row.name}", seconds=row.measured, error=row.error, busy=used)
    print(f"P29  {len(errors)} predictions: median {median(errors):.1%} (≤ 5 %), largest {max(errors):.1%} (≤ 12 %)")
    print(f"P29  pairs in the wrong order: {wrong or 'none'}")
    run.note("P29", median=median(errors), largest=max(errors), **{"wrong order": len(wrong)})
