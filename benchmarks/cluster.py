"""Emulated hosts: how fast plans are against their links, how true the model is, how quickly hosts come and go.

P7: bound ÷ measured on 4 hosts at 400 Mbit/s, 20 MB; the bound is the model's, with links that carry what is left
beside the headers of packets. P8: the model's error on other hosts, sizes and plans; nothing is fitted. A run in which
the processors were busy for more than 60 % of it is listed with an exclamation mark and not counted. Racks: rings of
8 hosts in 2 racks that pass the uplink once, twice and four times.
"""

import statistics
import time

from benchmarks.common import Run, busy, processor_time
from d2lps import aggregate_at, cluster, cost, hierarchical, ring, sharded

RATE = "400 Mbit/s"
ORDERS = "01234567", "01452367", "04152637"  # of hosts in a ring; hosts 0 to 3 are in one rack, 4 to 7 in the other


def plans(hosts: int, servers: int) -> dict:
    """The strategies of chapter 03 between the CPUs of hosts with two GPUs each."""
    cpus = [f"host{i}/cpu" for i in range(hosts)]
    inside = {cpu: [cpu.replace("cpu", f"gpu{i}") for i in range(2)] for cpu in cpus}
    found = {
        "GPU 0's host": aggregate_at(cpus, cpus[0]),
        "one server": aggregate_at(cpus, "server0"),
        "ring": ring(cpus),
        "shards": sharded(cpus),
        "hierarchy, ring": hierarchical(inside, ring(cpus)),
    }
    for k in range(2, servers + 1):
        found[f"{k} servers"] = sharded(cpus, [f"server{i}" for i in range(k)])
    return found


def measured(hosts, plan, nbytes: int, rounds: int) -> tuple[float, float, float]:
    """(predicted, measured seconds, part of the processors' time that was used meanwhile)."""
    begun = processor_time()
    trace = hosts.measure(plan, nbytes, rounds=rounds)
    return cost.shared(plan, hosts.topology, nbytes).duration, trace.duration, busy(begun)


def p7(run: Run) -> None:
    rounds, nbytes = (1, 1_000_000) if run.quick else (5, 20_000_000)
    with cluster.emulated(hosts=4, gpus_per_host=2, bandwidth=RATE, servers=4) as hosts:
        for name, plan in plans(4, 4).items():
            bound, took, used = measured(hosts, plan, nbytes, rounds)
            print(f"P7   {name:<16} {took:6.3f} s, bound {bound:6.3f} s: {bound / took:.3f} (≥ 0.93), {used:.0%} busy")
            run.note(f"P7 {name}", ratio=bound / took, seconds=took, bound=bound, busy=used)


def p8(run: Run) -> None:
    errors, rounds = [], 1 if run.quick else 3
    for n, servers in ((2, 1),) if run.quick else ((2, 1), (3, 2), (5, 2)):
        with cluster.emulated(hosts=n, gpus_per_host=2, bandwidth=RATE, servers=servers) as hosts:
            for nbytes in (1_000_000,) if run.quick else (8_000_000, 32_000_000):
                for name, plan in plans(n, servers).items():
                    bound, took, used = measured(hosts, plan, nbytes, rounds)
                    error = abs(bound / took - 1)
                    mark = "!" if used > 0.6 else " "
                    print(f"P8 {mark} {n} hosts, {nbytes / 1e6:g} MB, {name:<16} {took:6.3f} s, off by {error:.1%}")
                    errors += [] if used > 0.6 else [error]
                    run.note(f"P8 {n} hosts, {nbytes} B, {name}", error=error, busy=used)
    if errors:
        high = sorted(errors)[min(len(errors) - 1, int(0.95 * len(errors)))]
        print(
            f"P8   {len(errors)} predictions: median {statistics.median(errors):.1%} (≤ 4 %), p95 {high:.1%} (≤ 10 %)"
        )
        run.note("P8", median=statistics.median(errors), p95=high, counted=len(errors))


def racks(run: Run) -> None:
    """Three orders of hosts in a ring; ``nbytes`` is at least 50 times the burst that a link lets pass unshaped."""
    rounds, nbytes = (1, 4_000_000) if run.quick else (3, 8_000_000)
    with cluster.emulated(hosts=8, gpus_per_host=0, bandwidth="100 Mbit/s", racks=2, uplink="100 Mbit/s") as hosts:
        for order in ORDERS:
            bound, took, used = measured(hosts, ring([f"host{i}/cpu" for i in order]), nbytes, rounds)
            mark = "!" if used > 0.6 else " "
            print(f"racks {mark} {order} {took:6.3f} s, predicted {bound:6.3f} s: {took / bound:.3f} (≤ 1.08)")
            run.note(f"racks {order}, {nbytes} B", ratio=took / bound, seconds=took, busy=used)


def lives(run: Run) -> None:
    """How long hosts take to come and to go."""
    (count, number), ups, downs = (1, 2) if run.quick else (20, 8), [], []
    for _ in range(count):
        begin = time.perf_counter()
        hosts = cluster.emulated(hosts=number, bandwidth=RATE)
        up = time.perf_counter()
        hosts.close()
        ups.append(up - begin)
        downs.append(time.perf_counter() - up)
    for what, times, aim in (("up", ups, 3), ("gone", downs, 1)):
        print(f"     {number} hosts {what} in {statistics.median(times):.2f} s, at most {max(times):.2f} s (≤ {aim} s)")
        run.note(f"{number} hosts {what}", median=statistics.median(times), most=max(times))
