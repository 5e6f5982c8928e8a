"""Measure the cost of replicas, and how fast a slot recovers from the loss of its primary, on this machine.

times     a round of the store with replicas=1 ÷ without, 2 workers and 2 servers in processes of their own, over TCP on
          the loopback interface, in turns A B B A: synchronous and asynchronous with 16 MB in 4 keys, and a small key
failover  a server process is killed between two rounds: seconds until the backup is the primary (the view has changed,
          from the kill), and until the round that was under way is done
catch-up  a server process is killed, and the one that takes its place learns 512 MB: bytes per second from when it
          listens, and how long a step of a small key takes meanwhile ÷ before

The bytes that servers say to one another are counted in-process: for each round the sum once, where n workers push.
"""

import statistics
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.common import Run, divided, in_turns, on_ranks, slowest, spread
from d2lps import kvstore
from d2lps.kvstore.server.process import Keeper
from d2lps.kvstore.wire.channel import Channel
from d2lps.kvstore.wire.frames import Op

LARGE, SMALL = [1_000_000] * 4, [16]
DEADLINE, JOINING = 30.0, 120.0


def _store(kind: str, replicas: int):
    options = {"servers": 2, "deadline": DEADLINE, "joining": JOINING, "replicas": replicas}
    return kvstore.create(kind, transport="tcp", **options)


def rounds(kind: str, sizes: list[int], pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of a round without and with replicas, in pairs."""
    dist.init_process_group("gloo")
    keys = list(range(len(sizes)))
    given, found = [torch.ones(size) for size in sizes], [torch.empty(size) for size in sizes]
    with _store(kind, 0) as without, _store(kind, 1) as with_:
        for store in (without, with_):
            store.init(keys, given)
            store.set_optimizer("sgd", lr=0.01)
        ways = (lambda store=store: store.pushpull(keys, given, out=found) for store in (without, with_))
        return in_turns(*ways, pairs, warm=3)


def failovers(times: int) -> tuple[list[float], list[float]]:
    """Of so many kills: seconds until there is a new primary, and until the round under way is done."""
    dist.init_process_group("gloo")
    rank, seen, done = dist.get_rank(), [], []
    with kvstore.create("dist_sync", servers=2, deadline=DEADLINE, joining=JOINING, replicas=1) as store:
        store.init("w", torch.zeros(1000))
        for number in range(times):
            until = time.monotonic() + 60
            while any(len(view.members) < 2 for view in store.views) and time.monotonic() < until:
                time.sleep(0.05)
            for _ in range(5):
                store.pushpull("w", torch.ones(1000), out=(out := torch.empty(1000)))
            dist.barrier()
            before, victim = store.views, number % 2
            start = time.perf_counter()
            if rank == victim:
                store.kill_server(victim)
            if rank == 0:
                led = [slot for slot, view in enumerate(before) if view.members[0] == victim] or [0]
                while store.views[led[0]].number == before[led[0]].number:
                    time.sleep(0.0005)
                seen.append(time.perf_counter() - start)
            dist.barrier()
            store.pushpull("w", torch.ones(1000), out=out)
            done.append(slowest(time.perf_counter() - start))
    return seen, done


def caught_up(megabytes: int, times: int) -> list[tuple[float, float, float]]:
    """Of so many newcomers, whose predecessor was killed: seconds from when it listens until it has learnt all; how
    long a step of a small key takes meanwhile ÷ before the kill, medians; and the longest step meanwhile."""
    dist.init_process_group("gloo")
    found = []
    with _store("dist_sync", 1) as store:
        store.init(["large", "small"], [torch.zeros(megabytes * 250_000), torch.zeros(1000)])
        keepers = [each for each in store.started if isinstance(each, Keeper)]
        for number in range(times):
            _until(lambda: all(len(view.members) == 2 for view in store.views))
            time.sleep(1.0)
            stop, steps = threading.Event(), []
            training = threading.Thread(target=_train, args=(store, stop, steps))
            training.start()
            time.sleep(0.5)
            keeper, killed = keepers[number % 2], time.perf_counter()
            keeper.kill()
            _until(lambda keeper=keeper: not keeper._begun)
            _until(lambda keeper=keeper: keeper._begun)
            begun = time.perf_counter()
            _until(lambda: all(len(view.members) == 2 for view in store.views))
            learnt = time.perf_counter()
            stop.set()
            training.join()
            before = statistics.median(took for when, took in steps if when < killed - 0.1)
            meanwhile = [took for when, took in steps if begun < when < learnt]
            found.append((learnt - begun, statistics.median(meanwhile) / before, max(meanwhile)))
    return found


def _train(store, stop: threading.Event, steps: list[tuple[float, float]]) -> None:
    """When each step began, and how long it took."""
    given, out = torch.ones(1000), torch.empty(1000)
    while not stop.is_set():
        start = time.perf_counter()
        store.pushpull("small", given, out=out)
        steps.append((start, time.perf_counter() - start))


def _until(done: Callable[[], bool]) -> None:
    late = time.monotonic() + 60
    while not done():
        if time.monotonic() > late:
            raise SystemExit("nothing has happened for 60 s")
        time.sleep(0.001)


def said() -> dict:
    """Bytes of tensors between workers and servers, and between servers, per round and byte of values."""
    counted = {"workers": 0, "servers": 0}
    send, size, count = Channel.send, 250_000, 8

    def counting(channel, op, *arguments, **named):
        payload = named.get("payload") if "payload" in named else (arguments[3] if len(arguments) > 3 else b"")
        counted["servers" if op == Op.PEER else "workers"] += len(payload)
        return send(channel, op, *arguments, **named)

    with kvstore.cluster("dist_sync", workers=1, servers=2, replicas=1) as (store,):
        store.init("w", torch.zeros(size))
        Channel.send = counting
        for _ in range(count):
            store.pushpull("w", torch.ones(size), out=torch.empty(size))
        store.barrier()
        Channel.send = send
    return {each: round(counted[each] / (4 * size * count), 2) for each in counted}


def tell(run: Run, what: str, figure: dict) -> None:
    run.note(what, **figure)
    print(what, figure, flush=True)


def times(run: Run) -> None:
    tell(run, "bytes per byte of values and round, one worker", said())
    large = [10_000] * 4 if run.quick else LARGE
    for kind, sizes in (("dist_sync", large), ("dist_async", large), ("dist_sync", SMALL)):
        without, with_ = on_ranks(2, rounds, kind, sizes, 2 if run.quick else 40)
        middle, low, high = spread(divided(with_, without))
        more = statistics.median(with_) - statistics.median(without)
        figure = {"÷": round(middle, 2), "p10": round(low, 2), "p90": round(high, 2), "more µs": round(1e6 * more)}
        tell(run, f"replicas=1 ÷ 0, {kind}, {4 * sum(sizes)} bytes", figure)


def failover(run: Run) -> None:
    found = on_ranks(2, failovers, 1 if run.quick else 20)
    for what, some in zip(("a new primary", "the round done"), found, strict=True):
        ordered = sorted(1e3 * each for each in some)
        figure = {"median ms": round(statistics.median(ordered), 1), "most ms": round(ordered[-1], 1)}
        tell(run, f"after a kill: {what}", figure | {"of": len(ordered)})


def catch_up(run: Run) -> None:
    megabytes = 16 if run.quick else 512
    seconds, ratios, longest = zip(*on_ranks(1, caught_up, megabytes, 1 if run.quick else 10), strict=True)
    middle, low, high = spread([megabytes / each for each in seconds])
    figure = {"MB": megabytes, "MB/s": round(middle), "p10": round(low), "p90": round(high)}
    figure |= {"step meanwhile ÷ before": round(statistics.median(ratios), 2), "most": round(max(ratios), 2)}
    figure |= {"longest step meanwhile ms": round(1e3 * max(longest), 1), "of": len(ratios)}
    tell(run, "a newcomer", figure)
