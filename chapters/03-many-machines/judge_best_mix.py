"""Judge which part of the gradient is added where, if machines and dedicated servers help each other.

With both directions busy all the time, a round takes as long as the fullest direction of a network card: no plan in
chunks is faster, and those in small equal pieces come near.
"""

import copy
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import lcm

from d2lps import Plan, Trace, cost, machines, ring, sharded, together
from d2lps.notebook.grading import PlanCase, call, failure, number, sealed, size_text, time_text, unlike, withheld
from d2lps.units import bandwidth, size

NBYTES = size("20 MB")
CHUNKS = 4  # of what is watched
CHUNKS_OF_A_PIECE = 32


def mix_case(m: int, card: str, *servers: str, first: int = 0) -> PlanCase:
    """Make a case of ``m`` machines, whose cards have one rate, and of servers with their own.

    If they are numbered from another ``first`` than 0, the last one comes first.
    """
    order, rate = -1 if first else 1, float(bandwidth(card))
    hosts = tuple(f"host{first + i}/cpu" for i in range(m)[::order])
    cards = {f"server{first + j}": each for j, each in enumerate(servers)}
    helpers = {name: float(bandwidth(cards[name])) for name in [*cards][::order]}
    k = sum(map(Fraction, helpers.values())) / Fraction(rate)  # servers, counted in cards like the machines'
    best = 2 * m * (m - 1) / (m * m + k * (m - 2)) if k < m else Fraction(1)
    label = ", ".join([f"m = {m}, {card}", *map(" ".join, cards.items())])
    label = label.replace(" Mbit", "\u00a0Mbit").replace(" Gbit", "\u00a0Gbit")
    return PlanCase(
        label,
        (list(hosts), rate, helpers),
        hosts,
        machines(first + m, 0, [card] * (2 * first + m) + list(servers), servers=first + len(servers)),
        steps=CHUNKS + 1,
        bound=best * NBYTES / Fraction(rate),
        servers=tuple(helpers),
        nbytes=NBYTES,
    )


def judge(case: PlanCase, answer: Callable) -> Trace:
    """The predicted trace of the plan with these shares; raises Failure."""
    shares = _shares(case, answer)
    trace = cost.shared(served(case, shares, CHUNKS), case.topology, NBYTES)
    node, way, time = fullest(case, trace)
    if time > case.bound * (1 + Fraction(1, 10**9)):
        passed = trace.bytes_sent(node) if way == "out" else trace.bytes_received(node)
        got, enough = unlike(passed, case.bound * rates(case)[node], size_text)
        taken, bound = unlike(time, case.bound, time_text)
        values = {"node": node, "got": got, "enough": enough, "time": taken, "bound": bound}
        raise failure(_mistake(case, shares), f"card-{way}", case, trace, **values)
    return trace


def rates(case: PlanCase) -> dict[str, Fraction]:
    """Node → bytes per second of its network card, one way."""
    hosts, rate, servers = case.arguments
    return {node: Fraction(each) for node, each in (dict.fromkeys(hosts, rate) | servers).items()}


def served(case: PlanCase, shares: Mapping[str, Fraction], chunks: int) -> Plan:
    """Owners of shares add them up; collecting and sending back overlap."""
    plan = sharded(case.workers, {node: share for node, share in shares.items() if share}, chunks)
    idle = [node for node in case.servers if node not in plan.nodes]
    return Plan([*plan.nodes, *idle], plan.share, plan.steps, case.workers, case.workers)


def fullest(case: PlanCase, trace: Trace) -> tuple[str, str, Fraction]:
    """The node whose card has most to do, in which direction, and for how many seconds."""
    asked = {}
    for node, rate in rates(case).items():
        asked[node, "out"] = Fraction(trace.bytes_sent(node)) / rate
        asked[node, "in"] = Fraction(trace.bytes_received(node)) / rate
    (node, way), time = max(asked.items(), key=lambda item: float(item[1]))
    return node, way, time


@withheld
def best_shares(case: PlanCase) -> dict[str, Fraction]:
    """The shares with which no card has to do more than for the case's bound."""
    rate = rates(case)
    theirs = {server: case.bound * rate[server] / (len(case.workers) * NBYTES) for server in case.servers}
    most = max(sum(theirs.values()), Fraction(1))  # servers that are faster than all machines share what there is
    own = (1 - sum(theirs.values()) / most) / len(case.workers)
    return dict.fromkeys(case.workers, own) | {server: share / most for server, share in theirs.items()}


@sealed
def in_pieces(case: PlanCase) -> float:
    """Seconds of the cost model where all that travels is cut into equal pieces, so that fair sharing idles no card."""
    shares = best_shares(case)
    count = lcm(*(share.denominator for share in shares.values()))
    owners = [node for node, share in shares.items() for _ in range(int(share * count))]
    pieces = [sharded(case.workers, {owner: 1}, CHUNKS_OF_A_PIECE, key=f"p{i}.") for i, owner in enumerate(owners)]
    return cost.shared(together(*pieces), case.topology, NBYTES).duration


def times(case: PlanCase) -> dict[str, str]:
    """Return the times shown to a right answer: of the machines alone, and near the bound."""
    alone = cost.shared(ring(case.workers), case.topology, NBYTES).duration
    return {"ring": time_text(alone), "pieces": time_text(in_pieces(case))}


def _shares(case: PlanCase, answer: Callable) -> dict[str, Fraction]:
    given = call(case, answer, *copy.deepcopy(case.arguments))
    if not isinstance(given, dict):
        raise failure("wrong-type", "not-shares", case, type=type(given).__name__)
    if not given:
        raise failure("todo", "no-shares", case)
    nodes = (*case.workers, *case.servers)
    for node in given:
        if node not in nodes:
            raise failure("differs", "share-strange", case, node=repr(node))
    shares = {node: _exact(case, node, given.get(node, 0)) for node in nodes}
    total = sum(shares.values())
    if 0 < abs(total - 1) < 1e-9:  # rounded to the digits that a sentence shows, the sum would be 1
        raise failure("inexact", "shares-rounded", case, off=f"{float(total - 1):.1g}")
    if total != 1:
        raise failure("share-sum", "shares-total", case, total=f"{float(total):.12g}")
    return shares


def _exact(case: PlanCase, node: str, share: object) -> Fraction:
    try:
        exact = Fraction(share if isinstance(share, str) else number(share))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise failure("wrong-type", "share-no-number", case, node=node, share=repr(share)) from None
    if exact < 0:
        raise failure("negative", "share-negative", case, node=node, share=str(share))
    return exact


def _mistake(case: PlanCase, shares: Mapping[str, Fraction]) -> str:
    """Names shares that come of a typical thought."""
    m, rate = len(case.workers), rates(case)
    theirs, own = [shares[each] for each in case.servers], {shares[each] for each in case.workers}
    if len(own) > 1:
        return "differs"
    (mine,) = own
    if not any(theirs):
        return "servers-idle"
    if not mine:
        return "machines-idle"
    if len({*theirs, mine}) == 1:
        return "all-alike"
    if len({share / rate[each] for share, each in zip(theirs, case.servers, strict=True)}) > 1:
        return "server-bandwidths"
    card = rate[case.workers[0]]
    served = m * theirs[0] * card / rate[case.servers[0]]  # for how long a server's card is busy, as 1 is for S
    if served == 1 - mine:
        return "one-direction"
    if served == 1 + m * mine:
        return "own-part"
    if all(share * card == mine * rate[each] for share, each in zip(theirs, case.servers, strict=True)):
        return "all-alike"
    return "differs"
