"""Rings on this machine: our carriers against gloo, against the memory's own speed, and against the prediction.

P1   ring over sockets ÷ all_reduce on gloo (loopback interface)
P2   all_reduce on gloo ÷ ours in shared memory, n = 4, 40 MB; and as P3 the time that the memory needs at least ÷ ours;
     its traffic as measured with all ranks copying at once
P8h  error of predicted against measured times; calibrated, before each n, with n = 4 at 1, 8 and 32 MB on a ping-pong,
     a relay that adds, an all-gather and a reduce-scatter; listed but not counted are runs with p90/p10 > 1.3, and
     the strategies that are put together of what was measured (ring, naive ring)
"""

import statistics

import torch
import torch.distributed as dist

from benchmarks.common import Run, ceilings, copying, divided, in_turns, on_ranks
from d2lps import Processes, SharedMemory, algorithms, calibrate, compare
from d2lps.carriers.execute import compile

FITTED = ("ring", "naive ring")


def paired(carrier, ours, theirs, pairs: int):
    """Return seconds of (ours, theirs) in pairs; each is (go, tensor to fill, tensor to check)."""

    def fill(turn: int, which: int) -> None:
        (ours, theirs)[which][1].fill_(carrier.rank + 1)

    def check(turn: int, which: int) -> None:
        found = (ours, theirs)[which][2]
        want = carrier.size * (carrier.size + 1) / 2
        assert found[0] == found[-1] == want, "a wrong sum is no measurement"
        dist.barrier()  # all have looked before any rank fills it again

    return in_turns(ours[0], theirs[0], pairs, before=fill, after=check)


def over_sockets(sizes, pairs):
    carrier = Processes()
    dist.init_process_group("gloo")
    rows = []
    for nbytes in sizes:
        mine, theirs = torch.empty(nbytes // 4), torch.empty(nbytes // 4)
        go = compile(algorithms.ring(carrier.names), mine, carrier).execute
        gloo = (lambda t=theirs: dist.all_reduce(t), theirs, theirs)
        rows.append((nbytes, *paired(carrier, (go, mine, mine), gloo, pairs)))
    return rows


def in_memory(nbytes, pairs):
    carrier = SharedMemory()
    dist.init_process_group("gloo")
    count = nbytes // 4
    shared, ordinary, theirs = SharedMemory.tensor(count), torch.empty(count), torch.empty(count)
    direct = algorithms.sharded(carrier.names)
    ways = {
        "own copies": (compile(direct, shared, carrier).execute, shared, shared),
        "ordinary tensors": (compile(direct, ordinary, carrier).execute, ordinary, ordinary),
    }
    gloo = (lambda: dist.all_reduce(theirs), theirs, theirs)
    found = {}
    for name, ours in ways.items():
        rates = [copying(count)]
        times = paired(carrier, ours, gloo, pairs)
        rates.append(copying(count))
        found[name] = (*times, statistics.mean(rates))
    return found


def fit():
    return calibrate(Processes())


def compared(calibration, sizes, repeats):
    carrier = Processes()
    names = carrier.names
    plans = {
        "ring": algorithms.ring(names),
        "sharded": algorithms.sharded(names),
        "rank0": algorithms.aggregate_at(names, "rank0"),
        "naive ring": algorithms.naive_ring(names),
        "tree": algorithms.tree(names),
        "bidirectional": algorithms.bidirectional_ring(names),
        "double tree": algorithms.double_tree(names),
    }
    if carrier.size & (carrier.size - 1) == 0:
        plans["halving-doubling"] = algorithms.halving_doubling(names)
    return compare(plans, sizes, carrier, calibration, repeats).rows


def memory_traffic(run: Run) -> None:
    counts = (4,) if run.quick else (1, 2, 4)
    for n, rate in zip(counts, ceilings(counts), strict=True):
        run.note(f"memory traffic of {n} copying at once, GB/s", value=rate / 1e9)


def p1(run: Run) -> None:
    sizes = [4 * 1024, 256 * 1024] + ([] if run.quick else [1 << 20, 4 << 20, 16 << 20, 40_000_000])
    for nbytes, ours, theirs in on_ranks(4, over_sockets, sizes, run.pairs or (2 if run.quick else 100)):
        aim = "≤ 1.05" if nbytes >= 4 << 20 else "≤ 1.2"
        run.compare("P1", f"ring, {nbytes / 1e6:.3g} MB", divided(ours, theirs), {"ours": ours, "gloo": theirs}, aim)


def p2(run: Run) -> None:
    traffic = {"own copies": (8, "≥ 3"), "ordinary tensors": (None, "≥ 1.8")}
    nbytes = 4_000_000 if run.quick else 40_000_000
    found = on_ranks(4, in_memory, nbytes, run.pairs or (2 if run.quick else 100))
    for name, (ours, theirs, rate) in found.items():
        times, aim = traffic[name]
        run.compare("P2", name, divided(theirs, ours), {"ours": ours, "gloo": theirs}, aim)
        if times:
            floor = times * nbytes / rate
            value = floor / statistics.median(ours)
            least = f"least {1e3 * floor:.2f} ms for {times}·S at {rate / 1e9:.1f} GB/s"
            print(f"P3     {name:34} {value:6.2f}   {least}   aim ≥ 0.7")
            run.note(f"P3 {name}", ratio=value, aim="≥ 0.7")


def p8h(run: Run) -> None:
    errors, unsteady, everything = [], 0, []
    for n in (2,) if run.quick else (2, 3, 4, 6, 8):
        calibration = on_ranks(4, fit)  # anew: what else runs on a shared machine changes from minute to minute
        print(f"P8h  calibrated with 4 ranks:\n{calibration}")
        sizes, repeats = (["1 MB"], 3) if run.quick else (["16 MB", "40 MB"], 15)
        for row in on_ranks(n, compared, calibration, sizes, repeats):
            mark = " " if row.steady else "~"
            print(
                f"     n = {n}  {row.name:16} {row.nbytes / 1e6:3.0f} MB   predicted {1e3 * row.predicted:7.2f} ms  "
                f"measured {1e3 * row.measured:7.2f} ms  {mark}{row.spread:.2f}  error {row.error:+.0%}"
            )
            everything.append(abs(row.error))
            unsteady += not row.steady
            if row.steady and row.name not in FITTED:
                errors.append(abs(row.error))
            figures = {"predicted_ms": 1e3 * row.predicted, "measured_ms": 1e3 * row.measured, "error": row.error}
            run.note(f"P8h n={n} {row.name} {row.nbytes}", **figures, **{"p90/p10": row.spread})
    for what, some in (("P8h", errors), ("P8h, all that is listed", everything)):
        if some:
            some.sort()
            middle, high = statistics.median(some), some[min(len(some) - 1, int(0.95 * len(some)))]
            print(f"{what}: error of {len(some)} predictions: median {middle:.0%} (≤ 10 %), p95 {high:.0%} (≤ 25 %)")
            run.note(what, median=middle, p95=high, counted=len(some))
    print(f"     {unsteady} of {len(everything)} unsteady")
