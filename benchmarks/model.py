"""How true and how quick the cost model is.

P9: prediction ÷ closed form, the furthest from 1 over the algorithms and n = 2 … 64. P10: building a ring of 1024
nodes and predicting its duration, and how much more the process has used at most by then; beside it, what the ring is
spared (checking it), and other large plans. P19: plans on a fabric of 10,240 GPUs, the bandwidth of each, and a step of
it with equal nodes merged. P20: a schedule of
65,536 tasks. ``--quick``: a sixteenth of the nodes.
"""

import resource
import time
from fractions import Fraction

from benchmarks.common import Run
from d2lps import (
    all_to_all,
    bandwidth,
    check,
    cost,
    double_tree,
    fold,
    halving_doubling,
    hierarchical,
    naive_ring,
    pcie_server,
    rail_wise,
    rails,
    ring,
    sharded,
    tree,
)
from d2lps.schedule import one_f_one_b, pipeline

S, B, ALPHA = 160_000_000, 16_000_000_000, 2 * Fraction(5e-6)
BOTH = {
    "sharded": lambda n: (2, Fraction(2 * (n - 1), n)),
    "ring": lambda n: (2 * (n - 1), Fraction(2 * (n - 1), n)),
    "naive_ring": lambda n: (2 * (n - 1), 2 * (n - 1)),
    "tree": lambda n: (2 * (n - 1).bit_length(), 2 * (n - 1).bit_length()),
    "halving_doubling": lambda n: (2 * (n - 1).bit_length(), Fraction(2 * (n - 1), n)),
}


def gpus(n):
    return [f"gpu{i}" for i in range(n)]


def memory():
    """MiB that this process has used at most, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


BEFORE = memory()


def timed(what, work):
    begin = time.perf_counter()
    result = work()
    print(f"{what:<52} {time.perf_counter() - begin:7.2f} s   {memory() - BEFORE:5.0f} MiB more at most so far")
    return result


def p10(run: Run) -> None:
    nodes = 64 if run.quick else 1024
    place, quarter = pcie_server(gpus=nodes), nodes // 4
    plan = timed(f"P10  ring of {nodes}: build it", lambda: ring(gpus(nodes)))
    timed(f"P10  ring of {nodes}: cost.shared(…).duration", lambda: cost.shared(plan, place, S).duration)
    many = 10 * nodes
    timed(f"     ring of {many}: both", lambda: cost.shared(ring(gpus(many)), pcie_server(gpus=many), S).duration)
    timed(f"     double_tree of {nodes}: both", lambda: cost.shared(double_tree(gpus(nodes)), place, S).duration)
    timed(f"     ring of {quarter}: check", lambda: check(ring(gpus(quarter))))
    timed(f"     ring of {nodes}: check", lambda: check(plan))
    timed(
        f"     halving_doubling of {nodes}: both", lambda: cost.shared(halving_doubling(gpus(nodes)), place, S).duration
    )


def p20(run: Run) -> None:
    """Time a schedule of many tasks."""
    stages, micro = (8, 64) if run.quick else (64, 512)
    table = one_f_one_b(stages, micro)
    schedule = timed(f"P20  1F1B, {stages} × {micro}: make and check it", lambda: pipeline(table))
    timed("P20  cost.shared(…).bubble()", lambda: cost.shared(schedule).bubble())


def p19(run: Run) -> None:
    """Time plans on all GPUs of a fabric of rails."""
    hosts = 20 if run.quick else 1280
    place = timed(
        f"P19  {hosts} hosts of 8 GPUs: the fabric", lambda: rails(hosts, latency="7 us", inside_latency="1.7 us")
    )
    members = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(hosts)]
    flat, leaders = [gpu for gpus in members for gpu in gpus], {gpus[0]: gpus for gpus in members}
    power = members[: 1 << hosts.bit_length() - 1]
    for name, make in {
        "ring of all": lambda: ring(flat),
        "tree of all": lambda: tree(flat),
        "one leader per host, ring": lambda: hierarchical(leaders, ring(leaders)),
        "rail by rail, ring": lambda: rail_wise(members),
        f"rail by rail, halving and doubling, {len(power)} hosts": lambda: rail_wise(power, halving_doubling),
        "all-to-all": lambda: all_to_all(flat),
        "all-to-all in few steps": lambda: all_to_all(flat, few_steps=True),
    }.items():
        size = 10**9 * (len(flat) if "all-to-all" in name else 1)  # 1 GB on every GPU
        trace = timed(f"P19  {name}: both", lambda make=make, size=size: cost.shared(make(), place, size))
        print(f"     {'predicted for 1 GB':<47} {1e3 * trace.duration:7.1f} ms")
        timed("     its bandwidth", lambda trace=trace: bandwidth(trace))
        timed("     its second step, with equal nodes merged", lambda trace=trace: fold(trace, 2))


def p9(run: Run) -> None:
    worst, large = 0.0, (16,) if run.quick else (16, 64)
    for make in (sharded, ring, naive_ring, tree, halving_doubling):
        for n in (2, 4, 8, *large) if make is halving_doubling else (*range(2, 10), *large):
            steps, times = BOTH[make.__name__](n)
            found = cost.shared(make(gpus(n)), pcie_server(gpus=n, latency="5 us"), S).duration
            worst = max(worst, abs(found / float(steps * ALPHA + times * Fraction(S, B)) - 1))
    print(f"P9   prediction ÷ closed form: 1 ± {worst:.1e}")
