"""Rings on this machine: our carriers against gloo, against the memory's own speed, and against the prediction.

    python tests/benchmarks/carriers.py [--save] [--quick] [--pairs 100] [--only P1|P2|P8h]

Every comparison runs in one set of processes, one thread each, in turns A B B A; the time of an iteration is the
slowest rank's, between barriers; every result is verified. Given are the median of the paired ratios with p10 and p90,
and both medians beside it. ``--save`` writes what was measured to tests/benchmarks/measured/.

P1   ring over sockets ÷ all_reduce on gloo (loopback interface)
P2   all_reduce on gloo ÷ ours in shared memory, n = 4, 40 MB
P3   time that the memory needs at least ÷ time of P2; its traffic as measured with all ranks copying at once
P8h  error of predicted against measured times; calibrated, before each n, with n = 4 at 1, 8 and 32 MB on a ping-pong,
     a relay that adds, an all-gather and a reduce-scatter; listed but not counted are runs with p90/p10 > 1.3, and
     the strategies that are put together of what was measured (ring, naive ring)
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from saved import save

from d2lps import Processes, SharedMemory, algorithms, calibrate, compare
from d2lps.carriers.execute import compile
from d2lps.topology.local import this_host

WARM = 5
FITTED = ("ring", "naive ring")


def on_ranks(n: int, program, *arguments):
    """Return the result of ``program(*arguments)`` on rank 0 of ``n`` processes."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, n, store.port, found, program, arguments)) for rank in range(n)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(600)
        rank.kill()
    if found.empty():
        sys.exit(f"{program.__name__} on {n} ranks failed")
    return found.get()


def _rank(rank, n, port, found, program, arguments):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(n),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    result = program(*arguments)
    if rank == 0:
        found.put(result)
    time.sleep(1)  # no rank leaves while others still send to it
    os._exit(0)


def paired(carrier, ours, theirs, pairs: int):
    """Seconds of (ours, theirs) in pairs, A B B A; each is (go, tensor to fill, tensor to check)."""
    times = ([], [])
    for turn in range(WARM + pairs):
        order = (0, 1) if turn % 2 else (1, 0)
        for which in order:
            go, given, found = (ours, theirs)[which]
            given.fill_(carrier.rank + 1)
            dist.barrier()
            start = time.perf_counter()
            go()
            took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            want = carrier.size * (carrier.size + 1) / 2
            assert found[0] == found[-1] == want, "a wrong sum is no measurement"
            dist.barrier()  # all have looked before anybody fills it again
            if turn >= WARM:
                times[which].append(took.item())
    return times


def p1(sizes, pairs):
    carrier = Processes()
    dist.init_process_group("gloo")
    rows = []
    for nbytes in sizes:
        mine, theirs = torch.empty(nbytes // 4), torch.empty(nbytes // 4)
        go = compile(algorithms.ring(carrier.names), mine, carrier).execute
        gloo = (lambda t=theirs: dist.all_reduce(t), theirs, theirs)
        rows.append((nbytes, *paired(carrier, (go, mine, mine), gloo, pairs)))
    return rows


def p2(nbytes, pairs):
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
        rates = [_copying(count)]
        times = paired(carrier, ours, gloo, pairs)
        rates.append(_copying(count))
        found[name] = (*times, statistics.mean(rates))
    return found


def _copying(count: int) -> float:
    """Bytes per second that the memory moves, read and written, with all ranks copying at once."""
    source, target, times = torch.ones(count), torch.empty(count), []
    for _ in range(10):
        dist.barrier()
        start = time.perf_counter()
        target.copy_(source)
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(took.item())
    return 2 * 4 * count * dist.get_world_size() / statistics.median(times[3:])


def fit():
    return calibrate(Processes())


def p8(calibration, sizes, repeats):
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


def ceilings():
    """Return the bounds of this machine: (name, value) lines."""
    carrier = Processes()
    dist.init_process_group("gloo")
    return {"memory, read and written, all ranks copying": _copying(10_000_000), "ranks": carrier.size}


def spread(ratios):
    ordered = sorted(ratios)
    last = len(ordered) - 1
    return statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)]


def line(name, what, ratios, ours, theirs, aim):
    middle, low, high = spread(ratios)
    ours, theirs = (1e3 * statistics.median(times) for times in (ours, theirs))
    print(
        f"{name:4} {what:32} {middle:6.2f}  [{low:.2f}, {high:.2f}]   ours {ours:8.2f} ms   gloo {theirs:8.2f} ms   "
        f"aim {aim}"
    )
    return {
        "what": f"{name} {what}",
        "ratio": middle,
        "p10": low,
        "p90": high,
        "ours_ms": ours,
        "gloo_ms": theirs,
        "aim": aim,
    }


def measure_p1(found: list, pairs: int, quick: bool) -> None:
    sizes = [4 * 1024, 256 * 1024] + ([] if quick else [1 << 20, 4 << 20, 16 << 20, 40_000_000])
    for nbytes, ours, theirs in on_ranks(4, p1, sizes, pairs):
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        what = f"ring, {nbytes / 1e6:.3g} MB"
        found.append(line("P1", what, ratios, ours, theirs, "≤ 1.05" if nbytes >= 4 << 20 else "≤ 1.2"))


def measure_p2(found: list, pairs: int, quick: bool) -> None:
    traffic = {"own copies": (8, "≥ 3"), "ordinary tensors": (None, "≥ 1.8")}
    nbytes = 4_000_000 if quick else 40_000_000
    for name, (ours, theirs, rate) in on_ranks(4, p2, nbytes, pairs).items():
        times, aim = traffic[name]
        found.append(line("P2", name, [b / a for a, b in zip(ours, theirs, strict=True)], ours, theirs, aim))
        if times:
            floor = times * nbytes / rate
            value = floor / statistics.median(ours)
            print(
                f"P3   {name:32} {value:6.2f}   least {1e3 * floor:.2f} ms for {times}·S at {rate / 1e9:.1f} GB/s   "
                "aim ≥ 0.7"
            )
            found.append({"what": f"P3 {name}", "ratio": value, "aim": "≥ 0.7"})


def measure_p8(found: list, pairs: int, quick: bool) -> None:
    errors, unsteady, everything = [], 0, []
    for n in (2,) if quick else (2, 3, 4, 6, 8):
        calibration = on_ranks(4, fit)  # anew: what else runs on a shared machine changes from minute to minute
        print(f"P8h  calibrated with 4 ranks:\n{calibration}")
        for row in on_ranks(n, p8, calibration, ["1 MB"] if quick else ["16 MB", "40 MB"], 3 if quick else 15):
            mark = " " if row.steady else "~"
            print(
                f"     n = {n}  {row.name:16} {row.nbytes / 1e6:3.0f} MB   predicted {1e3 * row.predicted:7.2f} ms  "
                f"measured {1e3 * row.measured:7.2f} ms  {mark}{row.spread:.2f}  error {row.error:+.0%}"
            )
            everything.append(abs(row.error))
            unsteady += not row.steady
            if row.steady and row.name not in FITTED:
                errors.append(abs(row.error))
            found.append(
                {
                    "what": f"P8h n={n} {row.name} {row.nbytes}",
                    "predicted_ms": 1e3 * row.predicted,
                    "measured_ms": 1e3 * row.measured,
                    "error": row.error,
                    "p90/p10": row.spread,
                }
            )
    for what, some in (("P8h", errors), ("P8h, all that is listed", everything)):
        if some:
            some.sort()
            middle, high = statistics.median(some), some[min(len(some) - 1, int(0.95 * len(some)))]
            print(f"{what}: error of {len(some)} predictions: median {middle:.0%} (≤ 10 %), p95 {high:.0%} (≤ 25 %)")
            found.append({"what": what, "median": middle, "p95": high, "counted": len(some)})
    print(f"     {unsteady} of {len(everything)} unsteady")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--save", action="store_true", help="write the figures to tests/benchmarks/measured/")
    options.add_argument("--quick", action="store_true", help="small sizes, few pairs: to see that it works")
    options.add_argument("--pairs", type=int, default=100, help="paired runs of each comparison (100)")
    options.add_argument("--only", choices=("P1", "P2", "P8h"), help="one of the comparisons")
    options = options.parse_args()
    pairs = 2 if options.quick else options.pairs
    found = []
    host = this_host()
    print(f"{host.name}, {os.cpu_count()} processors, torch {torch.__version__}, 4 ranks of 1 thread, gloo on lo")
    for n in (4,) if options.quick else (1, 2, 4):
        rate = on_ranks(n, ceilings)["memory, read and written, all ranks copying"]
        print(f"     memory traffic of {n} copying at once: {rate / 1e9:.1f} GB/s")
        found.append({"what": f"memory traffic of {n} copying at once, GB/s", "value": rate / 1e9})
    for name, measure in {"P1": measure_p1, "P2": measure_p2, "P8h": measure_p8}.items():
        if options.only in (None, name):
            measure(found, pairs, options.quick)
    if options.save:
        save("carriers", found)


if __name__ == "__main__":
    main()
