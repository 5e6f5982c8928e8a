"""The runs with which this chapter opens."""

from fractions import Fraction

from d2lps import Plan, Send, Trace, cost, machines
from d2lps.train import recommender

WORKERS, SERVERS, ROWS, BATCH = 4, 4, 1_000_000, 4096


def opening() -> dict[str, Trace]:
    """Return one pull of four workers from four servers: rows by range, rows by hash, and by hash each row once."""
    place = machines(WORKERS, 0, nic="1 GB/s", servers=SERVERS)
    batches = [recommender.zipf(BATCH, ROWS, seed=seed) for seed in range(WORKERS)]
    ways = {
        "range": [ids * SERVERS // ROWS for ids in batches],
        "hash": [_hashed(ids) for ids in batches],
        "once": [_hashed(ids.unique()) for ids in batches],
    }
    traces = {}
    for name, chosen in ways.items():
        counts = {(w, k): int((servers == k).sum()) for w, servers in enumerate(chosen) for k in range(SERVERS)}
        counts = {pair: count for pair, count in counts.items() if count}
        total = sum(counts.values())
        share = {f"{w}.{k}": Fraction(count, total) for (w, k), count in counts.items()}
        ends = {f"{w}.{k}": (f"server{k}", f"host{w}/cpu") for w, k in counts}
        sends = [Send(*pair, key, "copy") for key, pair in ends.items()]
        nodes = [node for node, kind in place.kinds.items() if kind != "switch"]
        plan = Plan(
            nodes,
            share,
            [sends],
            holds=[(pair[0], key) for key, pair in ends.items()],
            wants=[(pair[1], key) for key, pair in ends.items()],
        )
        traces[name] = cost.shared(plan, place, 64 * total)
    return traces


def _hashed(ids):
    return (ids * 2654435761 % 2**32) * SERVERS // 2**32
