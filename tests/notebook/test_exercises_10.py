"""The exercises of chapter 10: right answers unlike the solutions, and what the judges know."""

import random
from fractions import Fraction
from itertools import groupby

import pytest
from helpers.exercises import module

from d2lps import cost, machines, rails, ring, together
from d2lps.notebook.grading import check_exercise, edited
from d2lps.notebook.grading.course import texts_of

CHAPTER = "10-data-centre"
IDS = ("busbw", "order-the-hosts", "bruck", "rail-ring")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_order, judge_rails = (module(CHAPTER, name) for name in ("judge_order", "judge_rails"))


# ---- right answers that are unlike the solutions


def by_link(collective, n, nbytes, seconds):
    """Counts the bytes that one rank has to move, in blocks."""
    block = Fraction(nbytes) if collective in ("all_gather", "gather", "broadcast", "reduce") else Fraction(nbytes, n)
    blocks = {"all_reduce": 2 * (n - 1), "broadcast": 1, "reduce": 1}.get(collective, n - 1)
    return float(blocks * block) / seconds


def by_groups(rack_of):
    """Rack by rack, the last rack first, as a tuple."""
    hosts = sorted(rack_of, key=rack_of.get, reverse=True)
    return tuple(host for _, rack in groupby(hosts, rack_of.get) for host in sorted(rack))


def turned(rack_of):
    """The ring begins in the middle of a rack."""
    order = SOLVED["order-the-hosts"](rack_of)
    return [*order[1:], order[0]]


def by_names(rank, n, mine, swap):
    """Keeps blocks by rank, and sends to the ranks after it."""
    blocks, apart = {rank: mine}, 1
    while apart < n:
        count = min(apart, n - apart)
        mine_first = [(rank - i) % n for i in range(count)]
        came = swap((rank + apart) % n, [blocks[i] for i in mine_first], (rank - apart) % n)
        blocks |= {(rank - apart - i) % n: block for i, block in enumerate(came)}
        apart *= 2
    return tuple(blocks[i] for i in range(n))


def by_pairs(hosts, k):
    """Enters even hosts by the last rail but k, odd ones by the one before; begins in the middle of a host."""
    g = len(hosts[0])
    far, near = g - 1 - k, (g - 2 - k) % g
    order = []
    for h, host in enumerate(hosts):
        first, last = (far, near) if h % 2 == 0 else (near, far)
        inner = [gpu for i, gpu in enumerate(host) if i not in (first, last)]
        order += [host[first], *inner[::-1], *[host[last]] * (g > 1)]
    return tuple(order[1:] + order[:1])


RIGHT = {"busbw": [by_link], "order-the-hosts": [by_groups, turned], "bruck": [by_names], "rail-ring": [by_pairs]}
MEASURED = {
    "busbw": ["254 GB/s", "444.6 GB/s"],
    "order-the-hosts": ["host0 host2 host4 host6 host1 host3 host5 host7", "4 flows"],
    "bruck": ["2 steps", "a ring takes 3", "3 blocks"],
    "rail-ring": ["h0g0 h0g1 h1g1 h1g0", "crosses it 2 times"],
}


# ---- what the judges know


def test_flows_out_of_a_rack_are_what_a_ring_takes():
    """On an uplink as fast as one host, a ring takes as many times as long as flows share it."""
    case, draw = judge_order.CASES[0], random.Random(0)
    racks = dict(case.hosts)
    place = machines(8, 0, nic="1 GB/s", racks=2, uplink="1 GB/s")
    there = {host: f"host{i}/cpu" for i, host in enumerate(sorted(racks, key=racks.get))}

    def seconds(order):
        return cost.shared(ring([there[host] for host in order]), place, "8 MB").duration

    best, seen = SOLVED["order-the-hosts"](racks), set()
    for order in [best, list(racks), *(draw.sample(best, 8) for _ in range(10))]:
        flows = judge_order.most_leaving(case, order)
        assert seconds(order) == pytest.approx(flows * seconds(best))
        seen.add(flows)
    assert {1, 4} < seen


@pytest.mark.parametrize("case", judge_order.CASES, ids=lambda case: case.label)
def test_no_order_sends_fewer_flows_than_the_judge_wants(case):
    draw, hosts = random.Random(0), [host for host, _ in case.hosts]
    for _ in range(50):
        assert judge_order.most_leaving(case, draw.sample(hosts, len(hosts))) >= int(len(case.racks) > 1)


@pytest.mark.parametrize("case", judge_rails.CASES[:4], ids=lambda case: case.label)
def test_rings_on_their_rails_have_all_cards_and_no_spine(case):
    """On a thin spine they take as long as on a full one, and a flat ring as many times as long as it is thin."""
    hosts, gpus = len(case.hosts), len(case.hosts[0])
    there = {gpu: f"host{h}/gpu{i}" for h, host in enumerate(case.hosts) for i, gpu in enumerate(host)}

    def seconds(answer, ratio):
        rings = [[there[gpu] for gpu in answer([*map(list, case.hosts)], k)] for k in range(gpus)]
        place = rails(hosts, gpus, nic="1 GB/s", inside="100 GB/s", oversubscription=ratio)
        return cost.shared(together(*(ring(r, key=f"r{k}-") for k, r in enumerate(rings))), place, "64 MB").duration

    n, right = hosts * gpus, SOLVED["rail-ring"]
    assert seconds(right, 4) == seconds(right, 1) == pytest.approx(2 * (n - 1) / n * 0.064 / gpus)
    flat = [gpu for host in case.hosts for gpu in host]
    assert len(judge_rails.crossings(case, flat)) == hosts
    assert seconds(lambda hosts, k: flat, 4 * gpus) > seconds(lambda hosts, k: flat, 1)


def test_the_last_round_of_bruck_sends_what_is_left():
    """One block is left only if n is next to a power of two."""
    power = "apart if n & (n - 1) == 0 or 2 * apart < n else 1"
    verdict = check_exercise("bruck", edited(SOLVED["bruck"], ("min(apart, n - apart)", power)))
    assert not verdict.passed and verdict.sentence.startswith("n = 6"), verdict
