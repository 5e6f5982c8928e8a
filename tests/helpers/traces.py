"""Plans, topologies and traces of every kind that is drawn and played."""

from dataclasses import replace
from xml.etree import ElementTree

from d2lps import (
    Event,
    Plan,
    Send,
    Topology,
    aggregate_at,
    algorithms,
    bidirectional_ring,
    cost,
    double_tree,
    one_memory,
    pcie_server,
    sharded,
    tree,
)
from d2lps.topology import Link, both_ways
from d2lps.topology.hosts import nvswitch
from d2lps.trace import Trace, pairs


def names(count: int) -> list[str]:
    return [f"gpu{i}" for i in range(count)]


def ring(count: int) -> Plan:
    return algorithms.ring(names(count))


def mesh(plan: Plan) -> Topology:
    links = {(a, b) for step in plan.steps for send in step if isinstance(send, Send) for a, b in [send[:2]]}
    return Topology("mesh", dict.fromkeys(plan.nodes, "gpu"), tuple(Link(a, b, "16 GB/s") for a, b in sorted(links)))


def neighbours(nodes: list[str]) -> Topology:
    """A link each way between nodes that follow each other, round."""
    hops = dict.fromkeys(frozenset(hop) for hop in zip(nodes, nodes[1:] + nodes[:1], strict=True) if len({*hop}) == 2)
    links = [link for hop in hops for link in both_ways(*sorted(hop), "25 GB/s")]
    return Topology("neighbours", dict.fromkeys(sorted(nodes, key=lambda n: int(n[3:])), "gpu"), tuple(links))


def machines(count: int) -> Topology:
    """Two machines of half the GPUs each, joined through their CPUs and a network switch."""
    kinds, links = {}, []
    for machine, gpus in enumerate((names(count)[: count // 2], names(count)[count // 2 :])):
        kinds |= dict.fromkeys(gpus, "gpu") | {f"switch{machine}": "switch", f"cpu{machine}": "cpu"}
        links += [link for gpu in gpus for link in both_ways(gpu, f"switch{machine}", "16 GB/s")]
        links += both_ways(f"switch{machine}", f"cpu{machine}", "16 GB/s")
    kinds["network"] = "switch"
    links += [link for machine in (0, 1) for link in both_ways(f"cpu{machine}", "network", "100 Gbit/s")]
    return Topology("machines", kinds, tuple(links))


SCENES = {
    "pcie, at GPU 0": lambda n: (aggregate_at(names(n), "gpu0"), pcie_server(n)),
    "pcie, at the CPU": lambda n: (aggregate_at(names(n), "cpu"), pcie_server(n)),
    "pcie, sharded": lambda n: (sharded(names(n)), pcie_server(n)),
    "pcie, part of it": lambda n: (sharded(names(n)), pcie_server(n + 2)),
    "memory, sharded": lambda n: (sharded(names(n)), one_memory(names(n), "10 GB/s")),
    "memory, servers": lambda n: (sharded(names(n), ["s0", "s1"]), one_memory([*names(n), "s0", "s1"], "10 GB/s")),
    "pairs, star": lambda n: (plan := aggregate_at(names(n), "gpu0"), pairs(plan)),
    "pairs, everyone": lambda n: (plan := sharded(names(n)), pairs(plan)),
    "pairs, ring": lambda n: (plan := ring(n), pairs(plan)),
    "pairs, servers": lambda n: (plan := sharded(names(n), ["s0", "s1", "s2"]), pairs(plan)),
    "mesh, ring": lambda n: (plan := ring(n), mesh(plan)),
    "machines, ring": lambda n: (ring(n), machines(n)),
    "neighbours, ring": lambda n: (ring(n), neighbours(names(n))),
    "switch, ring": lambda n: (ring(n), nvswitch(n)),
    "pairs, both ways": lambda n: (plan := bidirectional_ring(names(n)), pairs(plan)),
    "pairs, tree": lambda n: (plan := tree(names(n)), pairs(plan)),
    "pairs, double tree": lambda n: (plan := double_tree(names(n), chunks=2), pairs(plan)),
}


def predicted(name: str, count: int, model=cost.shared) -> Trace:
    return model(*SCENES[name](count), "160 MB")


PLANS = {
    "aggregate": aggregate_at(names(4), "gpu0"),
    "cpu": aggregate_at(names(4), "cpu", chunks=3, update=("sgd", {"lr": 0.1})),
    "sharded": sharded(names(4), chunks=2),
    "servers": sharded(names(4), {"cpu": "2/3", "gpu2": "1/3"}, update=("sgd", {"lr": 0.1})),
    "ring": ring(5),
}


def measured(plan: Plan) -> Trace:
    """As a run would record it: the messages of a step one after the other, with pauses."""
    trace = cost.ideal(plan, pcie_server(5), "160 MB")
    events, now = [], 0.0
    for event in trace.events:
        events.append(replace(event, start=now, end=now + 1e-3))
        now += 1.5e-3
    return replace(trace, origin="cpu ×4", topology=pairs(plan), events=tuple(events))


def hurried() -> Trace:
    """A ring of 4 as processes without a barrier run it: gpu0 is slow, the others begin a step when they can."""
    plan, ready, events = ring(4), dict.fromkeys(names(4), 0.0), []
    for number, step in enumerate(plan.steps, 1):
        ends = {send.src: ready[send.src] + (3e-3 if send.src == "gpu0" else 1e-3) for send in step}
        events += [Event("send", number, ready[send.src], ends[send.src], *send, 4e7) for send in step]
        ready = {send.dst: max(ends[send.src], ends[send.dst]) for send in step}
    return Trace("gloo ×4", plan, pairs(plan), 160_000_000, tuple(sorted(events, key=lambda e: e.end)))


def repeated_ring(count: int, rounds: int) -> Plan:
    """An all-reduce on a ring, ``rounds`` times, each for its part of the gradient."""
    nodes = [f"gpu{i}" for i in range(count)]
    keys = [[f"g{r}.{i}" for i in range(count)] for r in range(rounds)]
    steps = []
    for mine in keys:
        for shift, op in ((0, "add"), (1, "copy")):
            for s in range(count - 1):
                steps.append(
                    [
                        Send(node, nodes[(i + 1) % count], mine[(i + shift - s) % count], op)
                        for i, node in enumerate(nodes)
                    ]
                )
    share = {key: f"1/{count * rounds}" for mine in keys for key in mine}
    return Plan(nodes, share, steps)


def heavy() -> dict[str, Trace]:
    """Return the traces that give a player the most work, by name."""
    server = pcie_server(gpus=16)
    around = cost.shared(repeated_ring(16, 2), server, "160 MB")
    everyone = sharded([f"gpu{i}" for i in range(16)])
    return {
        "ring, 16 nodes × 60 steps, on a switch": around,
        "ring, 16 nodes × 60 steps, on a circle": replace(around, origin="cpu ×16", topology=pairs(around.plan)),
        "sharded, 16 nodes, 240 messages at once": cost.shared(everyone, server, "160 MB"),
    }


def texts(svg: str) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
