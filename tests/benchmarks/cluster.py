"""Emulated hosts: how fast plans are against their links, how true the model is, how quickly hosts come and go.

    python tests/benchmarks/cluster.py [--save] [--quick]

P7: bound ÷ measured on 4 hosts at 400 Mbit/s, 20 MB; the bound is the model's, with links that carry what is left
beside the headers of packets. P8: the model's error on other hosts, sizes and plans; nothing is fitted. A run in which
the processors were busy for more than 60 % of it is listed with an exclamation mark and not counted. Racks: rings of
8 hosts in 2 racks that pass the uplink once, twice and four times.
"""

import argparse
import os
import statistics
import time

import torch
from saved import processor_time, save

from d2lps import aggregate_at, cluster, cost, hierarchical, ring, sharded, this_host

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
    used, whole = (after - begin for after, begin in zip(processor_time(), begun, strict=True))
    return cost.shared(plan, hosts.topology, nbytes).duration, trace.duration, used / whole


def p7(found: list, rounds: int, nbytes: int) -> None:
    with cluster.emulated(hosts=4, gpus_per_host=2, bandwidth=RATE, servers=4) as hosts:
        for name, plan in plans(4, 4).items():
            bound, took, busy = measured(hosts, plan, nbytes, rounds)
            print(f"P7   {name:<16} {took:6.3f} s, bound {bound:6.3f} s: {bound / took:.3f} (≥ 0.93), {busy:.0%} busy")
            found.append({"what": f"P7 {name}", "ratio": bound / took, "seconds": took, "bound": bound, "busy": busy})


def p8(found: list, rounds: int, quick: bool) -> None:
    errors = []
    for n, servers in ((2, 1),) if quick else ((2, 1), (3, 2), (5, 2)):
        with cluster.emulated(hosts=n, gpus_per_host=2, bandwidth=RATE, servers=servers) as hosts:
            for nbytes in (1_000_000,) if quick else (8_000_000, 32_000_000):
                for name, plan in plans(n, servers).items():
                    bound, took, busy = measured(hosts, plan, nbytes, rounds)
                    error = abs(bound / took - 1)
                    mark = "!" if busy > 0.6 else " "
                    print(f"P8 {mark} {n} hosts, {nbytes / 1e6:g} MB, {name:<16} {took:6.3f} s, off by {error:.1%}")
                    errors += [] if busy > 0.6 else [error]
                    found.append({"what": f"P8 {n} hosts, {nbytes} B, {name}", "error": error, "busy": busy})
    if errors:
        high = sorted(errors)[min(len(errors) - 1, int(0.95 * len(errors)))]
        print(
            f"P8   {len(errors)} predictions: median {statistics.median(errors):.1%} (≤ 4 %), p95 {high:.1%} (≤ 10 %)"
        )
        found.append({"what": "P8", "median": statistics.median(errors), "p95": high, "counted": len(errors)})


def racks(found: list, rounds: int, nbytes: int) -> None:
    """Three orders of hosts in a ring; ``nbytes`` is at least 50 times the burst that a link lets pass unshaped."""
    with cluster.emulated(hosts=8, gpus_per_host=0, bandwidth="100 Mbit/s", racks=2, uplink="100 Mbit/s") as hosts:
        for order in ORDERS:
            bound, took, busy = measured(hosts, ring([f"host{i}/cpu" for i in order]), nbytes, rounds)
            mark = "!" if busy > 0.6 else " "
            print(f"racks {mark} {order} {took:6.3f} s, predicted {bound:6.3f} s: {took / bound:.3f} (≤ 1.08)")
            found.append({"what": f"racks {order}, {nbytes} B", "ratio": took / bound, "seconds": took, "busy": busy})


def lives(found: list, count: int, number: int) -> None:
    """How long ``number`` hosts take to come and to go."""
    ups, downs = [], []
    for _ in range(count):
        begin = time.perf_counter()
        hosts = cluster.emulated(hosts=number, bandwidth=RATE)
        up = time.perf_counter()
        hosts.close()
        ups.append(up - begin)
        downs.append(time.perf_counter() - up)
    for what, times, aim in (("up", ups, 3), ("gone", downs, 1)):
        print(f"     {number} hosts {what} in {statistics.median(times):.2f} s, at most {max(times):.2f} s (≤ {aim} s)")
        found.append({"what": f"{number} hosts {what}", "median": statistics.median(times), "most": max(times)})


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--save", action="store_true", help="write the figures to tests/benchmarks/measured/")
    options.add_argument("--quick", action="store_true", help="few rounds, small sizes: to see that it works")
    options = options.parse_args()
    found, host = [], this_host()
    print(f"{host.name}, {os.cpu_count()} processors, torch {torch.__version__}, {RATE} each way")
    lives(found, *((1, 2) if options.quick else (20, 8)))
    p7(found, *((1, 1_000_000) if options.quick else (5, 20_000_000)))
    p8(found, 1 if options.quick else 3, options.quick)
    racks(found, *((1, 4_000_000) if options.quick else (3, 8_000_000)))
    if options.save:
        save("cluster", found)


if __name__ == "__main__":
    main()
