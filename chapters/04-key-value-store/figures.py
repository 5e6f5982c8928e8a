"""With what this chapter opens: three workers, one of them slow, and three ways to wait for it, simulated."""

import heapq
from fractions import Fraction

from d2lps import Event, Link, Plan, Topology, Trace

WORKERS, SERVER = ("w0", "w1", "w2"), "server"  # short, since three pictures stand side by side
COMPUTING = (0.010, 0.010, 0.030)  # seconds that each worker needs for its gradient
TRAVEL = 0.004  # seconds for which a gradient is under way, or the weights
PUSHES = 12  # of all workers together
NBYTES = 8_000_000  # of a gradient


def opening() -> dict:
    """The same twelve pushes: workers wait for all, for all but one round, or for no other."""
    return {"sync": _run(0, whole=True), "staleness 1": _run(1), "async": _run(PUSHES)}


def _run(ahead: int, whole: bool = False) -> Trace:
    """Pull p of a worker is answered when everybody has pushed p − ``ahead`` times.

    ``whole``: the server steps once per round, with the sum of all, instead of once per push.
    """
    count, waiting, events = [0] * len(WORKERS), [], []
    pushed: dict[int, list[int]] = {}  # round → whose pushes are in the weights, in the order in which they came
    seen = [{} for _ in WORKERS]  # what each worker has had of that, by round
    arrivals = [(seconds + TRAVEL, rank) for rank, seconds in enumerate(COMPUTING)]
    heapq.heapify(arrivals)
    while sum(count) < PUSHES:
        now, rank = heapq.heappop(arrivals)
        count[rank] += 1
        pushed.setdefault(count[rank], []).append(rank)
        events.append(_event("send", count[rank], now - TRAVEL, now, WORKERS[rank], SERVER, "add", (rank,)))
        waiting.append(rank)
        if not whole or len(pushed[count[rank]]) == len(WORKERS):
            events.append(_event("update", count[rank], now, now, SERVER, SERVER, "sgd"))
        for one in [one for one in waiting if min(count) >= count[one] - ahead]:
            waiting.remove(one)
            news = [number for number, ranks in pushed.items() if seen[one].get(number) != ranks]
            for number in news:
                seen[one][number] = list(pushed[number])
                size, carries = Fraction(NBYTES, len(news)), sorted(pushed[number])
                events.append(_event("send", number, now, now + TRAVEL, SERVER, WORKERS[one], "copy", carries, size))
            heapq.heappush(arrivals, (now + COMPUTING[one] + 2 * TRAVEL, one))
    rounds = max(pushed)
    share = {str(number): Fraction(1, rounds) for number in range(1, rounds + 1)}
    plan = Plan([*WORKERS, SERVER], share, [[] for _ in share], holds=WORKERS, wants=[])
    ends = [pair for worker in WORKERS for pair in ((worker, SERVER), (SERVER, worker))]
    links = [Link(*pair, f"{NBYTES / TRAVEL / 1e9:g} GB/s") for pair in ends]
    network = Topology("network", dict.fromkeys([*WORKERS, SERVER], "machine"), links)
    return Trace("shared", plan, network, NBYTES * rounds, tuple(sorted(events, key=lambda each: each.start)))


def _event(
    kind: str,
    number: int,
    start: float,
    end: float,
    src: str,
    dst: str,
    op: str,
    carries: "tuple[int, ...] | list[int]" = (),
    nbytes: "int | Fraction" = NBYTES,
) -> Event:
    names = tuple(WORKERS[rank] for rank in carries) or None
    return Event(kind, number, start, end, src, dst, str(number), op, float(nbytes), names)
