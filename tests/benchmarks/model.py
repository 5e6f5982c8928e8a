"""How true and how quick the cost model is.

    python tests/benchmarks/model.py

P9: prediction ÷ closed form, the furthest from 1 over the algorithms and n = 2 … 64. P10: building a ring of 1024
nodes and predicting its duration, and what the process has used at most by then; beside it, what the ring is
spared (checking it), and other large plans. An earlier version is measured by PYTHONPATH=its folder.
"""

import resource
import time
from fractions import Fraction

from d2lps import check, cost, double_tree, halving_doubling, naive_ring, pcie_server, ring, sharded, tree

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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB, on Linux


def timed(what, work):
    begin = time.perf_counter()
    result = work()
    print(f"{what:<52} {time.perf_counter() - begin:7.2f} s   {memory():5.0f} MiB at most so far")
    return result


def p10():
    place = pcie_server(gpus=1024)
    plan = timed("P10  ring of 1024: build it", lambda: ring(gpus(1024)))
    timed("P10  ring of 1024: cost.shared(…).duration", lambda: cost.shared(plan, place, S).duration)
    large = gpus(10_240)
    timed("     ring of 10 240: both", lambda: cost.shared(ring(large), pcie_server(gpus=10_240), S).duration)
    timed("     double_tree of 1024: both", lambda: cost.shared(double_tree(gpus(1024)), place, S).duration)
    timed("     ring of 256: check", lambda: check(ring(gpus(256))))
    timed("     ring of 1024: check", lambda: check(plan))
    timed("     halving_doubling of 1024: both", lambda: cost.shared(halving_doubling(gpus(1024)), place, S).duration)


def p9():
    worst = 0.0
    for make in (sharded, ring, naive_ring, tree, halving_doubling):
        for n in (2, 4, 8, 16, 64) if make is halving_doubling else (*range(2, 10), 16, 64):
            steps, times = BOTH[make.__name__](n)
            found = cost.shared(make(gpus(n)), pcie_server(gpus=n, latency="5 us"), S).duration
            worst = max(worst, abs(found / float(steps * ALPHA + times * Fraction(S, B)) - 1))
    print(f"P9   prediction ÷ closed form: 1 ± {worst:.1e}")


if __name__ == "__main__":
    p10()
    p9()
