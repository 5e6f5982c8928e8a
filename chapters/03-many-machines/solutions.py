"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math
from fractions import Fraction

from d2lps import Plan, Send, aggregate_at, hierarchical, naive_ring, ring, sharded


def servers(m, machine, server):
    k = 1
    while k * server < m * machine:
        k += 1
    return k


def seven_steps(trace):
    def host(node):
        return node.split("/")[0]

    events = {step: [] for step in (3, 4, 5, 6, 7)}
    for event in trace.events:
        inside = host(event.src) == host(event.dst)
        if event.kind == "update":
            step = 5
        elif event.op == "add":
            step = 3 if inside else 4
        else:
            step = 7 if inside else 6
        events[step].append(event)
    seconds = dict.fromkeys(events, 0.0)
    for step, some in events.items():
        if some:
            seconds[step] = max(event.end for event in some) - min(event.start for event in some)
    return seconds


def hierarchy(hosts):
    m, n = len(hosts), len(hosts[0])
    shares = {f"{j}.{i}": Fraction(1, n * m) for j in range(n) for i in range(m)}
    inside, across = [], []
    for j in range(n):
        for i in range(m):
            for gpus in hosts:
                inside += [Send(gpu, gpus[j], f"{j}.{i}", "add") for gpu in gpus if gpu != gpus[j]]
            across += [Send(gpus[j], hosts[i][j], f"{j}.{i}", "add") for gpus in hosts if gpus != hosts[i]]
    back = [[Send(dst, src, key, "copy") for src, dst, key, _ in step] for step in (across, inside)]
    gpus = [gpu for some in hosts for gpu in some]
    return Plan(gpus, shares, [inside, across, *back])


def best_mix(machines, bandwidth, servers):
    m, total = len(machines), sum(map(Fraction, servers.values()))
    cards = total / Fraction(bandwidth)
    theirs = min(Fraction(1), 2 * (m - 1) * cards / (m * m + cards * (m - 2)))
    shares = {machine: (1 - theirs) / m for machine in machines}
    for server, rate in servers.items():
        shares[server] = theirs * Fraction(rate) / total
    return shares


# Typical wrong answers, each with one mistake; the helpers are their common parts.


def stepwise(measure, sort=None):
    """``measure`` of the events of each step; ``sort`` tells the step of an event."""
    def answer(trace):
        seconds = {}
        for step in (3, 4, 5, 6, 7):
            events = [event for event in trace.events if (sort or step_of)(event) == step]
            seconds[step] = measure(events) if events else 0.0
        return seconds

    return answer


def step_of(event):
    inside = event.src.split("/")[0] == event.dst.split("/")[0]
    if event.kind == "update":
        return 5
    return (3 if inside else 4) if event.op == "add" else (7 if inside else 6)


def turned_round(event):
    return {3: 7, 4: 6, 6: 4, 7: 3}.get(step_of(event), 5)


def by_the_servers(event):
    """To and from nodes that are called servers; the rest is inside."""
    if event.kind == "update":
        return 5
    if event.dst.startswith("server"):
        return 4
    if event.src.startswith("server"):
        return 6
    return 3 if event.op == "add" else 7


def same(begin):
    """Compares no whole machine, but what ``begin`` tells of two names."""
    def sort(event):
        if event.kind == "update":
            return 5
        inside = begin(event.src, event.dst)
        return (3 if inside else 4) if event.op == "add" else (7 if inside else 6)
    return stepwise(span, sort)


def span(events):
    return max(event.end for event in events) - min(event.start for event in events)


def by_number(trace):
    """The plan's steps taken for steps 3, 4, 6, 7."""
    found = stepwise(span)(trace)
    spans = [end - start for start, end in trace.step_times()]
    return found | dict(zip((3, 4, 6, 7), spans))


def chunks_forgotten(trace):
    """Only of the first chunk."""
    return stepwise(span, lambda event: "." not in event.key.removesuffix(".1") and step_of(event))(trace)


def leaders_of(hosts):
    return [gpus[0] for gpus in hosts]


def everyone(hosts):
    return [gpu for gpus in hosts for gpu in gpus]


def at_leaders(hosts, across):
    return hierarchical({gpus[0]: gpus for gpus in hosts}, across(leaders_of(hosts)))


def machine_after_machine(hosts):
    """Over the network, one machine collects at a time, and one sends back at a time."""
    plan = hierarchy(hosts)
    between = [[send for send in step if send.key.endswith(f".{i}")]
               for step in plan.steps[1:3] for i in range(len(hosts))]
    return Plan(plan.nodes, plan.share, [plan.steps[0], *between, plan.steps[3]])


def without_last(hosts):
    plan = hierarchy(hosts)
    return Plan(plan.nodes, plan.share, plan.steps[:-1])


def named_by_number(hosts):
    """Makes up the names of the GPUs."""
    return hierarchy([[f"host{i}/gpu{j}" for j in range(len(gpus))] for i, gpus in enumerate(hosts)])


def mixed(theirs):
    """``theirs(m, cards)``: which part the servers add, in proportion to their bandwidths."""
    def answer(machines, bandwidth, servers):
        m, total = len(machines), sum(map(Fraction, servers.values()))
        part = theirs(m, total / Fraction(bandwidth)) if servers else Fraction(0)
        return {machine: (1 - part) / m for machine in machines} | {
            server: part * Fraction(rate) / total for server, rate in servers.items()}

    return answer


def formula(m, cards):
    """May be above 1."""
    return 2 * (m - 1) * cards / (m * m + cards * (m - 2))


def pushed(m, cards):
    """As if nothing came back while gradients are sent: 1 − y = m·x."""
    return 1 - m * max(Fraction(0), (m - cards) / (m * m - cards))


def own_sent_too(m, cards):
    """As if a machine sent itself its own part."""
    return 1 - m * max(Fraction(0), (m - cards) / (m * (m + cards)))


def all_alike(machines, bandwidth, servers):
    return dict.fromkeys([*machines, *servers], Fraction(1, len(machines) + len(servers)))


def equal_servers(machines, bandwidth, servers):
    shares = best_mix(machines, bandwidth, servers)
    theirs = sum(shares[server] for server in servers)
    return shares | {server: theirs / len(servers) for server in servers}


def numbers(machines, bandwidth, servers):
    return {node: float(share) for node, share in best_mix(machines, bandwidth, servers).items()}


WRONG = {
    "servers": {
        "bandwidths-ignored": [lambda m, machine, server: m],
        "rounding": [lambda m, machine, server: max(1, int(m * machine / server)),
                     lambda m, machine, server: int(m * machine / server) + 1,
                     lambda m, machine, server: max(1, m * machine / server)],
        "ratio-turned": [lambda m, machine, server: math.ceil(m * server / machine)],
        "both-directions": [lambda m, machine, server: math.ceil(2 * m * machine / server)],
        "differs": [lambda m, machine, server: 1],
        "not-general": [lambda m, machine, server: min(8, servers(m, machine, server))],
    },
    "seven-steps": {
        "sums": [stepwise(lambda events: sum(event.end - event.start for event in events))],
        "until-the-end": [stepwise(lambda events: max(event.end for event in events))],
        "hosts-mixed": [stepwise(span, by_the_servers)],
        "prefix": [same(lambda src, dst: src[:5] == dst[:5])],
        "step-by-number": [by_number],
        "directions": [stepwise(span, turned_round)],
        "differs": [stepwise(lambda events: max(event.end - event.start for event in events))],
        "not-general": [chunks_forgotten],
    },
    "hierarchy": {
        "flat": [lambda hosts: sharded(everyone(hosts))],
        "one-machine": [lambda hosts: aggregate_at(everyone(hosts), everyone(hosts)[0])],
        "one-leader": [lambda hosts: at_leaders(hosts, ring)],
        "one-after-another": [machine_after_machine],
        "not-sent-back": [without_last],
        "not-general": [named_by_number],
    },
    "best-mix": {
        "servers-idle": [mixed(lambda m, cards: Fraction(0))],
        "machines-idle": [mixed(lambda m, cards: Fraction(1))],
        "all-alike": [all_alike],
        "server-bandwidths": [equal_servers],
        "one-direction": [mixed(pushed)],
        "own-part": [mixed(own_sent_too)],
        "negative": [mixed(formula)],
        "inexact": [numbers],
        "differs": [mixed(lambda m, cards: Fraction(2, 5))],
        "not-general": [mixed(lambda m, cards: Fraction(9, 19))],
    },
}


RULES = {
    "servers": {
        "from which on a further one is useless": "both-directions",
        "with one fewer a round takes longer": "rounding",
        "for these bandwidths": "bandwidths-ignored",
        "a server may be faster than a machine": "ratio-turned",
        "any m": "not-general",
        "at least one": "differs",
    },
    "seven-steps": {
        "from the first start": "until-the-end",
        "to the last end": "differs",
        "of all events": "sums",
        "by machine, not by number of the step": "step-by-number",
        "0 without events": lambda trace: {step: value or 1.0 for step, value in seven_steps(trace).items()},
        "the sum before the copy": "directions",
        "the name of a node begins with its machine": "prefix",
        "a server may be on a machine": "hosts-mixed",
        "many chunks": "not-general",
        "each of the steps 3 to 7": lambda trace: {step: value for step, value in seven_steps(trace).items() if value},
    },
    "hierarchy": {
        "among these GPUs alone": "not-general",
        "little goes over a network card": "flat",
        "over every one": "one-machine",
        "a leader needs longer": "one-leader",
        "all cards at once": "one-after-another",
        "everyone gets the sum": "not-sent-back",
    },
    "best-mix": {
        "exact shares": "inexact",
        "none below 0": "negative",
        "they add up to 1": lambda machines, bandwidth, servers: dict.fromkeys(machines, Fraction(1, len(machines) + 1)),
        "by their names": lambda machines, bandwidth, servers: best_mix([f"host{i}/cpu" for i, _ in enumerate(machines)], bandwidth, servers),
        "servers help": "servers-idle",
        "machines, too": "machines-idle",
        "a machine sends its own part nowhere": "own-part",
        "both directions at once": "one-direction",
        "servers may be of any speed": "server-bandwidths",
        "and unlike the machines": "all-alike",
        "any m": "not-general",
    },
}
